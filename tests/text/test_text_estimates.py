"""Scores along orders: against the formula, exact conditionals and enumeration."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("transformers")

from sklearn_mpt._text.estimates import weight_of_means
from sklearn_mpt._text.masks import MaskDraw, balanced_orders
from sklearn_mpt._text.results import TextScores
from sklearn_mpt._text.windows import Window

N = 6  # tokens of a text


def window_of(n_positions, text=0):
    return Window(
        text=text,
        inputs={"input_ids": np.arange(n_positions) + 7 * text},
        is_fixed=np.zeros(n_positions, dtype=bool),
        is_maskable=np.ones(n_positions, dtype=bool),
        positions=np.arange(n_positions),
        words=np.arange(n_positions),
        offsets=np.zeros((n_positions, 2), dtype=int),
    )


def consistent(rng):
    """Log-probability of each token given each set of others, of one joint."""
    joint = rng.normal(size=(2**N, 2**N))  # of texts of N bits
    joint = np.exp(joint[0]) / np.exp(joint[0]).sum()
    joint = joint.reshape([2] * N)

    def table(visible):
        hidden = tuple(j for j in range(N) if not visible[j])
        seen = joint.sum(axis=hidden)
        own = np.zeros(N)
        for j in hidden:
            both = joint.sum(axis=tuple(k for k in hidden if k != j))
            own[j] = np.log(both.flat[0] / seen.flat[0])  # the text is of zeros
        return own

    return table


def inconsistent(rng):
    """Log-probabilities that belong to no joint, likelier the more is visible."""
    noise = {}

    def table(visible):
        key = tuple(visible)
        if key not in noise:
            noise[key] = -rng.gamma(2.0, 1.5 - sum(key) / N, size=N)
        return noise[key]

    return table


def score_of(table, window, draw):
    rows = list(draw.plan(window))
    targets = [target.nonzero()[0] for _, target in rows]
    log_prob = [table(~hidden)[target] for hidden, target in rows]
    return draw.estimate(window, np.concatenate(log_prob), targets)


def truth_of(table):
    """The sum over sizes of the mean score of all sets."""
    total = 0.0
    for size in range(1, N + 1):
        scores = []
        for hidden in itertools.combinations(range(N), size):
            visible = np.ones(N, dtype=bool)
            visible[list(hidden)] = False
            scores.append(table(visible)[list(hidden)].mean())
        total += np.mean(scores)
    return total


def chain(seed, n_masks=4):
    return MaskDraw("mpt", seed, n_masks, design="chain")


@pytest.mark.parametrize("n_masks", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("n_positions", [1, 2, 3, 5, 8])
def test_orders_differ_and_are_balanced(n_positions, n_masks):
    orders = np.array(list(balanced_orders(window_of(n_positions), chain(0, n_masks))))
    n_all = np.prod(np.arange(1.0, n_positions + 1))
    assert len(np.unique(orders, axis=0)) == len(orders) == min(n_masks, n_all)
    assert_array_equal(
        np.sort(orders, axis=1), np.tile(np.arange(n_positions), (len(orders), 1))
    )
    if n_masks % 2 == 0 and n_positions > 3:
        steps = orders.argsort(axis=1)
        assert_allclose(steps.mean(axis=0), (n_positions - 1) / 2)


def test_a_token_comes_in_each_quarter_of_four_orders():
    orders = np.array(list(balanced_orders(window_of(8), chain(0))))
    quarters = orders.argsort(axis=1) // 2
    assert_array_equal(np.sort(quarters, axis=0), np.tile(np.arange(4), (8, 1)).T)


def test_the_first_of_a_pair_is_any_order():
    firsts = [
        next(balanced_orders(window_of(3), chain(s))).tolist() for s in range(300)
    ]
    found, counts = np.unique(firsts, axis=0, return_counts=True)
    assert len(found) == 6
    assert counts.min() > 30


def follow(table, order):
    """By steps: next token, mean and variance of the hidden ones, and the forecast.

    The forecast of the sum of later means takes the predictions of now.
    """
    rows = []
    for step in range(N):
        visible = np.isin(np.arange(N), order[:step])
        own = table(visible)
        later = [own[order[s:]].mean() for s in range(step + 1, N)]
        rows.append([own[order[step]], own[~visible].mean(), sum(later)])
        rows[-1].append(own[~visible].var())
    return np.array(rows).T


@pytest.mark.parametrize("n_masks", [1, 3, 4])
def test_the_estimate_is_that_of_the_formula(n_masks):
    table, window, draw = (
        inconsistent(np.random.default_rng(0)),
        window_of(N),
        chain(5, n_masks),
    )
    parts = [follow(table, order) for order in balanced_orders(window, draw)]
    along, means, forecasts, variances = np.swapaxes(parts, 0, 1)
    weight = weight_of_means(along, means, forecasts, variances.sum(axis=1).mean())
    along = along.sum(axis=1)
    difference = along - means.sum(axis=1)
    score = score_of(table, window, draw)
    expected = along - weight * difference
    assert_allclose(score.terms, expected.mean())
    assert_allclose(score.tokens.sum(), expected.mean())
    assert_allclose(score.sizes, np.mean(means, axis=0)[::-1])
    if n_masks > 1:
        spread = expected.var(ddof=1) / n_masks * (1 - n_masks / 720)
        assert_allclose((score.cautious**2).sum(), spread)
        assert_allclose(
            score.token_contrasts.sum(axis=1), score.cautious[0], atol=1e-12
        )
    else:
        assert np.isnan(score.contrasts).all()


@pytest.mark.parametrize("n_masks", [2, 4])
def test_orders_of_exact_conditionals_have_no_noise(n_masks):
    table = consistent(np.random.default_rng(0))
    truth = truth_of(table)
    for seed in range(5):
        score = score_of(table, window_of(N), chain(seed, n_masks))
        assert_allclose(score.terms, truth, rtol=1e-9)
        assert_allclose(score.contrasts, 0, atol=1e-9)


def test_all_orders_are_the_truth_whatever_the_conditionals():
    table = inconsistent(np.random.default_rng(1))
    score = score_of(table, window_of(N), chain(0, 720))
    assert_allclose(score.terms, truth_of(table))
    assert_array_equal(score.contrasts, np.zeros_like(score.contrasts))


def test_the_weight_has_the_least_noise():
    """For many orders, by the variances over orders that were not used for it."""
    table, rng = inconsistent(np.random.default_rng(3)), np.random.default_rng(0)
    parts = [follow(table, rng.permutation(N)) for _ in range(2000)]
    b, a, f, v = np.swapaxes(parts, 0, 1)
    half = len(parts) // 2
    weight = weight_of_means(b[:half], a[:half], f[:half], v[:half].sum(axis=1).mean())
    chains, means = b[half:].sum(axis=1), a[half:].sum(axis=1)
    difference = chains - means
    best = np.cov(chains, difference)[0, 1] / difference.var(ddof=1)
    assert abs(weight - best) < 0.1
    assert_allclose(v[half:].sum(axis=1).mean(), difference.var(ddof=1), rtol=0.1)


def nearly_consistent(rng):
    """Conditionals of one joint, with small errors."""
    exact, found = consistent(rng), {}

    def table(visible):
        key = tuple(visible)
        if key not in found:
            found[key] = exact(visible) + 0.1 * rng.normal(size=N)
        return found[key]

    return table


@pytest.mark.parametrize(
    ("make", "at_most"), [(inconsistent, 1.6), (nearly_consistent, 2.0)]
)
def test_no_more_noise_than_orders_or_independent_masks(make, at_most):
    """With the same number of rows."""
    n_masks = 4
    table, window = make(np.random.default_rng(2)), window_of(N)
    ways = (
        chain(0, n_masks),
        MaskDraw("chain", 0, n_masks),
        MaskDraw("mpt", 0, n_masks, design="independent"),
    )
    variances = []
    for way in ways:
        draws = [
            MaskDraw(way.method, s, n_masks, design=way.design) for s in range(400)
        ]
        scores = [score_of(table, window, draw).terms.sum() for draw in draws]
        variances.append(np.var(scores, ddof=1))
    assert variances[0] < at_most * min(variances[1:])


def test_a_warning_where_independent_masks_have_half_the_error():
    """The predictions are worse while one of two tokens is visible."""

    def table(visible):
        return np.full(12, -3.0 if visible[0] != visible[1] else -1.0)

    found = []
    for design in ("chain", "independent"):
        draw, windows = (
            MaskDraw("mpt", 0, 4, design=design),
            [window_of(12, text) for text in range(20)],
        )
        scores = [score_of(table, window, draw) for window in windows]
        found.append(TextScores(windows, scores, draw, np.arange(20)))
    along, independent = found
    independent.warn_of_noise()
    assert along.std_error_of_sum() > 2 * independent.std_error_of_sum()
    with pytest.warns(UserWarning, match="set design='independent'"):
        along.warn_of_noise()


def test_a_token_of_probability_zero():
    def impossible(visible):
        return np.where(np.arange(N) == 2, -np.inf, -1.0)

    score = score_of(impossible, window_of(N), chain(0))
    assert_array_equal(score.terms, [-np.inf])


@pytest.mark.parametrize("design", ["chain", "independent"])
def test_second_draws_give_the_error_of_a_sum_of_single_draws(design):
    windows = [window_of(N, text) for text in range(30)]
    rng = np.random.default_rng(0)
    tables = [inconsistent(np.random.default_rng(text)) for text in range(30)]

    def scores_of(draw, picked):
        return [score_of(tables[i], windows[i], draw) for i in picked]

    sums, variances = [], []
    for seed in range(40):
        draw = MaskDraw("mpt", seed, 1, design=design)
        scores = TextScores(windows, scores_of(draw, range(30)), draw, np.arange(30))
        assert np.isnan(scores.std_error_of_sum())
        picked = rng.permutation(scores.without_error())[:10]
        others = scores_of(draw.after_first(), picked)
        again = dict(zip(picked, others, strict=True))
        sums.append(scores.totals().sum())
        variances.append(scores.std_error_by_second_draws(again) ** 2)
    # enlarged by Student's t
    assert 0.8 < np.mean(variances) / np.var(sums, ddof=1) < 2.2
