"""Line search by backtracking."""

import pytest

from sklearn_mpt._optim.steps import (
    backtrack,
)


@pytest.mark.parametrize(
    ("limit", "max_tries", "tried", "is_accepted"),
    [
        (1.0, 9, [1.0], True),
        (0.3, 9, [1.0, 0.5, 0.25], True),
        (0.0, 3, [1.0, 0.5, 0.25], False),
    ],
    ids=["first", "shorter", "too many"],
)
def test_steps_are_halved_until_one_is_accepted(limit, max_tries, tried, is_accepted):
    sizes = []

    def attempt(size):
        sizes.append(size)
        return -size if size <= limit else None

    size, result = backtrack(attempt, max_tries)
    assert sizes == tried
    assert result == (-size if is_accepted else None)
