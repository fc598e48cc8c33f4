"""Line search by backtracking."""

import pytest

from sklearn_mpt._fitting.line_search import backtrack


@pytest.mark.parametrize(
    ("limit", "max_tries", "min_size", "tried", "is_accepted"),
    [
        (1.0, 9, 0.0, [1.0], True),
        (0.3, 9, 0.0, [1.0, 0.5, 0.25], True),
        (0.0, 3, 0.0, [1.0, 0.5, 0.25], False),
        (0.0, 9, 0.6, [1.0, 0.5], False),
    ],
    ids=["first", "shorter", "too many", "too small"],
)
def test_steps_are_halved_until_one_is_accepted(
    limit, max_tries, min_size, tried, is_accepted
):
    sizes = []

    def attempt(size):
        sizes.append(size)
        return -size if size <= limit else None

    size, result = backtrack(attempt, max_tries, min_size=min_size)
    assert sizes == tried
    assert result == (-size if is_accepted else None)
