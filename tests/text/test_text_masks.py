from itertools import pairwise
from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import MPTScorer
from sklearn_mpt._text.masks import MaskDraw
from sklearn_mpt._text.windows import Window

(METHOD,) = MPTScorer._parameter_constraints["method"]
METHODS = sorted(METHOD.options)


def make_window(n_tokens=7, words=None, positions=None, first_token=10):
    """A window between one added token on either side."""
    is_fixed = np.zeros(n_tokens, dtype=bool)
    is_fixed[[0, -1]] = True
    return Window(
        text=0,
        inputs={"input_ids": first_token + np.arange(n_tokens)},
        is_fixed=is_fixed,
        is_maskable=~is_fixed,
        positions=np.arange(1, n_tokens - 1)
        if positions is None
        else np.array(positions),
        words=np.arange(n_tokens) if words is None else np.array(words),
        offsets=np.zeros((n_tokens, 2), dtype=int),
    )


def rows_of(draw, window):
    hidden, target = zip(*draw.plan(window), strict=True)
    return np.array(hidden), np.array(target)


def test_sets_have_every_size_and_are_all_scored():
    hidden, target = rows_of(MaskDraw("mpt", 0, 2), make_window())
    assert_array_equal(hidden, target)
    assert_array_equal(hidden.sum(axis=1), [1, 1, 2, 2, 3, 3, 4, 4, 5])
    assert not hidden[:, [0, -1]].any()


def test_sets_of_a_size_are_different_and_all_where_few():
    hidden, _ = rows_of(MaskDraw("mpt", 0, 8), make_window())
    sizes, counts = np.unique(hidden.sum(axis=1), return_counts=True)
    assert_array_equal(counts, [min(8, comb(5, size)) for size in sizes])
    assert len(np.unique(hidden, axis=0)) == len(hidden)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sets_are_uniform(size):
    window = make_window()
    hits = np.zeros(5)
    for seed in range(600):
        draw = MaskDraw("mpt", seed, 1, rates=np.array([size / 5]))
        hits += rows_of(draw, window)[0][0, 1:-1]
    rate = size / 5
    z = (hits - 600 * rate) / np.sqrt(600 * rate * (1 - rate))
    assert np.abs(z).max() < 4


def test_rates_share_sizes_and_take_the_masks_of_the_full_curve():
    window = make_window()
    rates = np.array([0.9, 0.1, 0.15, 0.4])
    assert_array_equal(MaskDraw("mpt", 0, 3, rates).sizes(5), [1, 2, 5])
    some, _ = rows_of(MaskDraw("mpt", 0, 3, rates), window)
    every, _ = rows_of(MaskDraw("mpt", 0, 3), window)
    assert_array_equal(some, every[np.isin(every.sum(axis=1), [1, 2, 5])])


def test_masks_are_keyed_by_seed_and_tokens():
    def masks(seed, first_token=10):
        return rows_of(
            MaskDraw("mpt", seed, 1), make_window(20, None, None, first_token)
        )[0]

    assert_array_equal(masks(0), masks(0))
    assert (masks(0) != masks(1)).any()
    assert (masks(0) != masks(0, first_token=11)).any()


def test_more_masks_contain_the_fewer():
    few, _ = rows_of(MaskDraw("mpt", 0, 2), make_window())
    many, _ = rows_of(MaskDraw("mpt", 0, 4), make_window())
    assert {row.tobytes() for row in few} < {row.tobytes() for row in many}


def test_orders_uncover_one_target_after_the_other():
    hidden, target = rows_of(MaskDraw("chain", 0, 3), make_window())
    assert len(hidden) == 3 * 5
    for order in range(3):
        steps = slice(5 * order, 5 * order + 5)
        assert_array_equal(hidden[steps].sum(axis=1), [5, 4, 3, 2, 1])
        for now, later in pairwise(range(5)):
            uncovered = hidden[steps][now] & ~hidden[steps][later]
            assert_array_equal(uncovered, target[steps][now])


def test_singles_hide_each_token_alone():
    hidden, target = rows_of(MaskDraw("pll", 0, 9), make_window(positions=[2, 4]))
    assert_array_equal(hidden, target)
    assert_array_equal(hidden.argmax(axis=1), [2, 4])
    assert_array_equal(hidden.sum(axis=1), 1)


def test_words_hide_the_rest_of_the_word():
    window = make_window(7, words=[-1, 0, 1, 1, 1, 2, -1])
    hidden, target = rows_of(MaskDraw("pll_word_l2r", 0, 1), window)
    assert_array_equal(target.argmax(axis=1), [1, 2, 3, 4, 5])
    expected = [[1], [2, 3, 4], [3, 4], [4], [5]]
    assert [list(row.nonzero()[0]) for row in hidden] == expected


@pytest.mark.parametrize("method", METHODS)
def test_windows_of_thousands_of_tokens(method):
    """Numbers of sets are beyond floats; only a few rows are drawn here."""
    n_positions = 2000
    window = make_window(n_positions + 2)
    draw = MaskDraw(method, 0, 2)
    hidden, _ = next(draw.plan(window))
    assert hidden.sum() == (n_positions if method in ("chain", "ordered") else 1)


@pytest.mark.parametrize("method", METHODS)
def test_number_of_rows_is_not_underestimated(method):
    draw = MaskDraw(method, 0, 4)
    n_rows = len(rows_of(draw, make_window())[0])
    assert n_rows <= draw.n_rows(make_window()) <= 4 * n_rows


def estimate(draw, window, table):
    """Estimate a score from the log-probabilities of tokens for each mask."""
    rows = list(draw.plan(window))
    targets = [target.nonzero()[0] for _, target in rows]
    log_prob = [table(hidden)[target] for hidden, target in rows]
    return draw.estimate(window, np.concatenate(log_prob), targets)


def noisy(hidden):
    """Conditionals that belong to no joint distribution."""
    rng = np.random.default_rng(hidden.astype(int))
    return -rng.gamma(2.0, 1 + hidden.sum() / 7, size=7)


@pytest.mark.parametrize("method", ["mpt", "chain"])
def test_estimates_and_variances_are_unbiased(method):
    window = make_window()
    truth = estimate(MaskDraw(method, 0, 120), window, noisy)
    assert_array_equal(truth.contrasts, np.zeros_like(truth.contrasts))
    both = [estimate(MaskDraw("mpt", 0, 120), window, noisy).terms.sum()]
    both.append(estimate(MaskDraw("chain", 0, 120), window, noisy).terms.sum())
    assert_allclose(*both)
    draws = [estimate(MaskDraw(method, s, 3), window, noisy) for s in range(400)]
    totals = np.array([score.terms.sum() for score in draws])
    variances = [np.sum(score.contrasts**2) for score in draws]
    assert abs(totals.mean() - truth.terms.sum()) < 4 * totals.std() / 20
    assert_allclose(np.mean(variances), totals.var(ddof=1), rtol=0.25)
    of_tokens = np.array([score.tokens for score in draws])
    assert_allclose(of_tokens.sum(axis=1), totals)


def test_variances_are_unknown_from_one_mask_and_zero_if_nothing_is_random():
    window = make_window()
    of_sizes = np.sum(estimate(MaskDraw("mpt", 0, 1), window, noisy).contrasts, axis=1)
    assert_array_equal(np.isnan(of_sizes), [True] * 4 + [False])
    assert np.isnan(estimate(MaskDraw("chain", 0, 1), window, noisy).contrasts).all()
    for method in ("pll", "pll_word_l2r", "ordered"):
        score = estimate(MaskDraw(method, 0, 1), window, noisy)
        assert not score.contrasts.any()
        assert not score.token_contrasts.any()


@pytest.mark.parametrize("method", ["mpt", "chain"])
def test_a_token_of_probability_zero(method):
    def impossible(hidden):
        return np.where(np.arange(7) == 2, -np.inf, -1.0)

    score = estimate(MaskDraw(method, 0, 4), make_window(), impossible)
    assert np.isneginf(score.terms.sum())
