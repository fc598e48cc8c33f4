import math
from itertools import permutations, product

import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

from sklearn_mpt import (
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    OrderSpread,
    feature_contributions,
    learn_order,
    lml_samples,
    mpt_curve,
    order_log_prob,
    order_spread,
)

ORDERS = np.array(list(permutations(range(3))))
CELLS = np.array(list(product([0.0, 1.0], repeat=3)))


LINKS = np.array([[0, 2.0, 0.5], [1.0, 0, -1.0], [0.2, 0.4, 0]])


def no_joint(X, mask, links=LINKS):
    """Logits that belong to no joint distribution; masks for each row or for all."""
    X, mask = np.asarray(X, dtype=float), np.broadcast_to(mask, np.shape(X))
    visible = np.where(mask | np.isnan(X), 0.0, 2 * X - 1)
    logit = 0.3 + visible @ links
    log_prob = -np.log1p(np.exp(np.where(X == 1, -logit, logit)))
    return np.where(mask & ~np.isnan(X), log_prob, 0.0)


def shared(X, mask):
    """The same, of one mask for all rows."""
    assert mask.ndim == 1
    return no_joint(X, mask)


def by_hand(X, order):
    total, hidden = np.zeros(len(X)), np.ones(3, dtype=bool)
    for j in order:
        total += no_joint(X, hidden)[:, j]
        hidden[j] = False
    return total


def test_each_order_and_each_mixture_is_normalised():
    for order in (*ORDERS.tolist(), ORDERS[:4], "left_to_right", 5):
        log_prob = order_log_prob(no_joint, CELLS, order, random_state=0)
        assert_allclose(np.exp(log_prob).sum(), 1)


def test_orders_are_those_given():
    alone = np.stack([by_hand(CELLS, order) for order in ORDERS])
    for order, expected in zip(ORDERS, alone, strict=True):
        assert_allclose(order_log_prob(no_joint, CELLS, order), expected)
    value, error = order_log_prob(shared, CELLS, ORDERS[1:4], return_std=True)
    assert_allclose(value, logsumexp(alone[1:4], axis=0) - np.log(3))
    assert_array_equal(error, 0)
    assert_allclose(order_log_prob(no_joint, CELLS, "left_to_right"), alone[0])
    frame = pd.DataFrame(CELLS, columns=["a", "b", "c"])
    by_name = order_log_prob(no_joint, frame, ["c", "a", "b"])
    assert_allclose(by_name, order_log_prob(no_joint, CELLS, [2, 0, 1]))


def test_all_orders_leave_no_error_and_some_leave_the_spread():
    mixture = order_log_prob(no_joint, CELLS, ORDERS)
    value, error = order_log_prob(no_joint, CELLS, 100, return_std=True)
    assert_allclose(value, mixture)
    assert_allclose(error, 0)
    values, errors = np.swapaxes(
        [
            order_log_prob(no_joint, CELLS, 3, return_std=True, random_state=seed)
            for seed in range(60)
        ],
        0,
        1,
    )
    assert (errors > 0).all()
    off = np.sqrt(((values - mixture) ** 2).mean() / (errors**2).mean())
    assert 0.7 < off < 1.4
    one = order_log_prob(no_joint, CELLS, 1, return_std=True, random_state=0)
    assert np.isnan(one[1]).all()


@pytest.mark.parametrize("per_row", [True, False])
def test_as_many_orders_as_exist_are_all_of_them(per_row):
    """120 of five columns, whatever measures them: no error is left."""
    rng = np.random.default_rng(0)
    links, X = rng.normal(size=(5, 5)), rng.integers(0, 2, (6, 5)).astype(float)
    terms = np.zeros((120, 6, 5))
    for i, order in enumerate(permutations(range(5))):
        for t, j in enumerate(order):
            hidden = np.isin(np.arange(5), order[t:])
            terms[i, :, j] = no_joint(X, hidden, links)[:, j]

    def model(X, mask):
        assert per_row or mask.ndim == 1
        return no_joint(X, mask, links)

    options = {"return_std": True, "random_state": 0}
    for value, error, expected in (
        (*lml_samples(model, X, n_orders=120, **options), terms.sum(2).mean(0)),
        (
            *order_log_prob(model, X, 120, **options),
            logsumexp(terms.sum(2), axis=0) - np.log(120),
        ),
        (*feature_contributions(model, X, n_orders=120, **options), terms.mean(0)),
    ):
        assert_allclose(value, expected, atol=1e-12)
        assert_allclose(error, 0, atol=1e-7)
    curve = mpt_curve(model, X, n_masks=10, random_state=0)  # as many as exist
    assert_allclose(curve.lml, terms.sum(2).mean(), atol=1e-12)
    assert_allclose(curve.lml_std_error, 0, atol=1e-12)


@pytest.mark.parametrize(("n_orders", "n_features"), [(8, 3), (120, 5), (7, 4), (3, 1)])
def test_orders_of_mixtures_are_distinct(n_orders, n_features):
    X = np.random.default_rng(0).normal(size=(20, n_features))
    settings = {"n_orders": n_orders, "max_iter": 0, "random_state": 0}
    drawn = MPTMaskedAutoencoder(**settings).fit(X).orders_
    assert len(drawn) == min(n_orders, math.factorial(n_features))
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    assert_array_equal(
        np.sort(drawn, axis=1), np.tile(np.arange(n_features), (len(drawn), 1))
    )
    even = len(drawn) // 2 * 2
    assert_array_equal(drawn[1:even:2], drawn[:even:2, ::-1])


def test_gaps_are_integrated_out(known):
    model, X = known
    X[::2, 1] = np.nan
    X[3] = np.nan
    for order in ([5, 0, 1, 2, 4, 3], 2):
        log_prob = order_log_prob(model, X, order, random_state=0)
        assert_allclose(log_prob, model.score_samples(X), atol=1e-10)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            "right_to_left",
            "must be 'left_to_right', 'confident', an int, or an array .* got 'right",
        ),
        (
            [0, 1],
            r"each of the 3 features once, of .* got shape \(2,\)",
        ),
        ([0, 1, 1], r"each of the 3 features once, got \[0, 1, 1\]"),
        ([0, 1, "z"], "indices or names of features, got 'z'; the features are"),
        (0, "order == 0, must be >= 1"),
        (np.zeros((0, 3), int), "each of the 3 features once"),
    ],
)
def test_bad_orders_are_named(order, message):
    with pytest.raises(ValueError, match=message):
        order_log_prob(no_joint, CELLS, order)


def test_texts_are_sent_elsewhere():
    from sklearn_mpt import MPTScorer

    with pytest.raises(TypeError, match=r"method='ordered', order=\.\.\.\)"):
        order_log_prob(MPTScorer(), ["a"], "left_to_right")


def test_a_joint_has_no_spread(known):
    model, X = known
    spread = order_spread(model, X, n_orders=4, random_state=0)
    assert spread.std.max() < 1e-9
    assert spread.gap.max() < 1e-9
    assert spread.p_value > 0.99
    assert "The orders agree" in repr(spread)


def test_integrals_over_z_are_allowed_their_errors():
    rng = np.random.default_rng(0)
    start = {"components": rng.normal(size=(1, 5)), "intercept": np.zeros(5)}
    X = (rng.random((12, 5)) < 0.5).astype(float)
    model = MPTLinearVAE(1, likelihood="bernoulli", init=start, max_iter=0).fit(X)
    assert order_spread(model, X, n_orders=4, random_state=0).p_value > 0.05


def test_spread_over_all_orders_is_that_of_enumeration():
    alone = np.stack([by_hand(CELLS, order) for order in ORDERS])
    spread = order_spread(shared, CELLS, n_orders=50, random_state=0)
    assert_allclose(spread.std, alone.std(axis=0, ddof=1))
    gap = logsumexp(alone, axis=0) - np.log(6) - alone.mean(axis=0)
    assert_allclose(spread.gap, gap)
    assert_allclose(spread.gap_std_error, 0, atol=1e-12)
    assert spread.p_value < 1e-10
    assert (spread.gap > 0).all()
    assert "do not agree" in repr(spread)


@pytest.mark.parametrize(("n_all", "share"), [(np.inf, 1.0), (10, 0.5)])
def test_errors_of_gaps_are_those_of_pseudo_values(n_all, share):
    log_prob = np.array([[-1.0, -3.0], [-1.5, -2.0], [0.3, -1.0], [-4, 0], [-2, -1]])

    def gap(rows):
        return logsumexp(rows, axis=0) - np.log(len(rows)) - rows.mean(axis=0)

    without = np.stack([gap(np.delete(log_prob, i, axis=0)) for i in range(5)])
    pseudo = 5 * gap(log_prob) - 4 * without
    spread = OrderSpread(log_prob, n_all)
    expected = np.sqrt(share * pseudo.var(axis=0, ddof=1) / 5)
    assert_allclose(spread.gap_std_error, expected)
    expected = np.sqrt(share * pseudo.mean(axis=1).var(ddof=1) / 5)
    assert spread.mean_gap_std_error == pytest.approx(expected)


def test_the_test_of_agreement_has_its_level():
    """Errors that rows share, and errors of their own, of the given size."""
    rng = np.random.default_rng(0)
    shared_errors = 0.1 * rng.normal(size=(2000, 5, 1)) + np.zeros(20)
    own_errors = 0.1 * rng.normal(size=(500, 5, 20))
    tolerance = np.full(20, 0.1)
    for errors, low, high in ((shared_errors, 0.038, 0.062), (own_errors, 0, 0.05)):
        p = [OrderSpread(e - 3, tolerance=tolerance).p_value for e in errors]
        assert low <= np.mean(np.array(p) < 0.05) <= high


def test_what_is_impossible_along_one_order_is_no_nan():
    spread = OrderSpread(np.array([[-1.0, -np.inf, -np.inf], [-1.0, -2.0, -np.inf]]))
    assert_array_equal(spread.std, [0, np.inf, 0])
    assert_array_equal(spread.gap, [0, np.inf, 0])
    assert spread.p_value == 0
    with pytest.raises(ValueError, match=r"two orders or more, got \(1, 3\)"):
        OrderSpread(np.zeros((1, 3)))


def test_the_picture_has_a_point_for_each_row():
    spread = order_spread(no_joint, CELLS, n_orders=4, random_state=0)
    display = spread.plot()
    assert_allclose(display.points_.get_offsets()[:, 1], spread.std)
    plt.close("all")


def test_bad_arguments(known):
    with pytest.raises(ValueError, match="n_orders == 1, must be >= 2"):
        order_spread(*known, n_orders=1)
    with pytest.raises(ValueError, match="at least two features"):
        order_spread(lambda X, m: np.where(m, -1.0, 0.0), np.zeros((3, 1)))


# Orders for each row


@pytest.fixture
def wide():
    """Rows of more features than orders are enumerated for, and a model of no joint."""
    weights = np.random.default_rng(3).normal(size=(7, 7))
    np.fill_diagonal(weights, 0)

    def conditional(X, mask):
        error = X - np.where(mask, 0.0, X) @ weights / 7
        return np.where(mask, -0.5 * error**2, 0.0)

    return conditional, np.random.default_rng(0).normal(size=(40, 7))


def test_orders_of_rows_of_their_own_average_out(wide):
    function, X = wide

    def for_all(X, mask):
        assert mask.ndim == 1
        return function(X, mask)

    means = [
        [lml_samples(f, X, n_orders=1, random_state=s).mean() for s in range(30)]
        for f in (function, for_all)
    ]
    assert np.std(means[0]) < 0.5 * np.std(means[1])
    truth = lml_samples(function, X, n_orders=200, random_state=99).mean()
    assert abs(np.mean(means[0]) - truth) < 4 * np.std(means[1]) / np.sqrt(30)


def test_numbers_depend_on_neither_workers_nor_blocks(wide, monkeypatch):
    function, X = wide
    X[3, 2] = np.nan

    def model(X, mask):
        return function(np.nan_to_num(X), mask | np.isnan(X)) * ~np.isnan(X)

    def measure(n_jobs):
        options = {"random_state": 0, "n_jobs": n_jobs}
        with joblib.parallel_config(backend="threading"):
            return [
                lml_samples(model, X, n_orders=3, **options),
                feature_contributions(model, X, n_orders=3, **options),
                mpt_curve(model, X, n_masks=3, **options).scores,
            ]

    expected = measure(None)
    for value, other in zip(expected, measure(2), strict=True):
        assert_allclose(value, other, rtol=1e-12)
    monkeypatch.setattr("sklearn_mpt._measure.contract.CACHE_ENTRIES", 60)
    for value, other in zip(expected, measure(None), strict=True):
        assert_allclose(value, other, rtol=1e-12)


def test_rows_share_the_orders_of_a_joint(known):
    """Masks that rows share are faster there, and orders make no difference."""
    model, X = known
    shapes = set()

    def conditional(X, mask):
        shapes.add((len(X), mask.ndim))
        return model.conditional_log_prob(X, mask)

    lml_samples(conditional, X, n_orders=2, random_state=0)
    assert (len(X), 2) not in shapes


def test_contributions_of_rows_add_up_along_their_own_orders(wide):
    function, X = wide
    parts = feature_contributions(function, X, n_orders=1, random_state=0)
    gaps = order_spread(function, X, n_orders=30, random_state=0)
    low, high = gaps.log_prob.min(axis=0) - 1, gaps.log_prob.max(axis=0) + 1
    assert ((low < parts.sum(axis=1)) & (parts.sum(axis=1) < high)).all()


def test_a_model_of_a_data_frame_takes_names():
    frame = pd.DataFrame(
        np.random.default_rng(0).normal(size=(9, 3)), columns=["a", "b", "c"]
    )
    model = MPTProbabilisticPCA(1, max_iter=0, random_state=0).fit(frame)
    log_prob = order_log_prob(model, frame, [["b", "a", "c"], ["c", "b", "a"]])
    assert_allclose(log_prob, model.score_samples(frame))


# Orders that are chosen


def opposite(X, mask):
    """The first feature tells most of the second or of the third, by its value."""
    return no_joint(X, mask, np.array([[0, 2.0, -2.0], [1.0, 0, -1.0], [0.2, 0.4, 0]]))


def opposite_for_all(X, mask):
    assert mask.ndim == 1
    return opposite(X, mask)


def confident_by_hand(X):
    """Log-probability of a row of `opposite`, and the order, one step at a time."""
    hidden, total, order = np.ones(3, dtype=bool), 0.0, []
    for _ in range(3):
        entropy = np.full(3, np.inf)
        for j in np.flatnonzero(hidden):
            p = []
            for value in (0.0, 1.0):
                row = np.where(np.arange(3) == j, value, X)[None]
                p.append(np.exp(opposite(row, hidden)[0, j]))
            assert sum(p) == pytest.approx(1)
            entropy[j] = -np.dot(p, np.log(p))
        j = int(entropy.round(6).argmin())
        total += opposite(X[None], hidden)[0, j]
        hidden[j] = False
        order.append(j)
    return total, order


@pytest.mark.parametrize("function", [opposite, opposite_for_all])
def test_the_confident_order_reveals_what_is_most_certain(function):
    log_prob = order_log_prob(function, CELLS, "confident", reference=CELLS)
    expected, orders = zip(*map(confident_by_hand, CELLS), strict=True)
    assert_allclose(log_prob, expected)
    assert len(set(map(tuple, orders))) > 1  # it depends on the row
    assert np.exp(log_prob).sum() == pytest.approx(1)
    alone = order_log_prob(function, CELLS[3:4], "confident", reference=CELLS[::-1])
    assert_allclose(alone, log_prob[3])


def test_the_confident_order_of_rows_with_gaps_is_normalised():
    cells = CELLS.copy()
    cells[:, 1] = np.nan
    log_prob, error = order_log_prob(
        no_joint, cells[[0, 1, 4, 5]], "confident", reference=CELLS, return_std=True
    )
    assert np.exp(log_prob).sum() == pytest.approx(1)
    assert (error == 0).all()


def test_the_confident_order_of_names_and_numbers_integrates_to_one():
    """A category and a number, each with conditionals of its own; a DataFrame."""

    def model(frame, mask):
        mask = np.broadcast_to(mask, frame.shape)
        is_a, x = (frame["kind"] == "a").to_numpy(), frame["x"].to_numpy()
        logit = np.where(mask[:, 1], 0.3, 2 * x)
        p_a = -np.log1p(np.exp(np.where(is_a, -logit, logit)))
        centre = np.where(mask[:, 0], 0.0, np.where(is_a, 1.5, -1.0))
        width = np.where(mask[:, 0], 2.0, 0.3)
        density = -(((x - centre) / width) ** 2) / 2 - np.log(width)
        density -= 0.5 * np.log(2 * np.pi)
        return np.where(mask, np.column_stack([p_a, density]), 0.0)

    grid = np.linspace(-15, 15, 3001)
    frame = pd.DataFrame({"kind": ["a"] * 3001 + ["b"] * 3001, "x": [*grid, *grid]})
    reference = frame.iloc[::300]
    log_prob = order_log_prob(model, frame, "confident", reference=reference)
    assert np.exp(log_prob).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-6)
    # with two values the category is more certain than a number of eight quantiles
    assert_allclose(log_prob, order_log_prob(model, frame, ["kind", "x"]))


@pytest.mark.parametrize("module", [pd, pl])
def test_the_confident_order_of_a_joint_of_kinds_is_its_density(module):
    """A table of names, numbers and booleans, with gaps in two thirds of the rows."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 3, 90)
    columns = {
        "kind": ["abc"[c] for c in code],
        "x": rng.normal(size=90) + 2 * code,
        "flag": rng.integers(0, 2, 90).astype(bool),
    }
    frame = module.DataFrame(columns)
    model = MPTMixture(2, likelihood="from_dtype", random_state=0).fit(frame)
    columns["kind"] = [None if i % 3 == 0 else k for i, k in enumerate(columns["kind"])]
    columns["x"] = [None if i % 3 == 1 else x for i, x in enumerate(columns["x"])]
    gaps = module.DataFrame(columns)[:12]
    log_prob = order_log_prob(model, gaps, "confident", reference=frame)
    assert_allclose(log_prob, model.score_samples(gaps))
    other = pl if module is pd else pd
    with pytest.raises(ValueError, match="reference must be of the type of X"):
        order_log_prob(model, gaps, "confident", reference=other.DataFrame(columns))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "confident"}, "needs reference, .* got None"),
        ({"order": [0, 1, 2], "reference": CELLS}, "order='confident' alone"),
        ({"order": "confident", "reference": CELLS[:, :2]}, "the 3 features of X, got"),
        ({"order": "confident", "reference": CELLS * np.nan}, "a value in each column"),
    ],
)
def test_a_reference_that_does_not_fit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        order_log_prob(no_joint, CELLS, **options)


def test_a_learned_order_is_better_than_all_its_neighbours(wide):
    """No feature gains by a move to another place."""
    function, X = wide
    rows = X @ (np.eye(7) + np.diag(np.ones(6), 1))
    order = learn_order(function, rows, n_sweeps=20).tolist()
    log_prob = order_log_prob(function, rows, order).mean()
    greedy = learn_order(function, rows, n_sweeps=0)
    swapped = order_log_prob(function, rows, learn_order(function, rows, max_shift=1))
    assert log_prob >= swapped.mean() >= order_log_prob(function, rows, greedy).mean()
    moved = [
        np.insert(np.delete(order, place), other, order[place])
        for place, other in product(range(7), range(7))
    ]
    others = [order_log_prob(function, rows, own).mean() for own in moved]
    assert max(others) == pytest.approx(log_prob, abs=1e-9)


def test_the_best_of_all_orders_of_three_is_learned():
    log_prob = [order_log_prob(no_joint, CELLS, order).mean() for order in ORDERS]
    learned = order_log_prob(no_joint, CELLS, learn_order(no_joint, CELLS)).mean()
    assert learned == pytest.approx(max(log_prob))
    with pytest.raises(ValueError, match="max_shift == 0, must be >= 1"):
        learn_order(no_joint, CELLS, max_shift=0)
    with pytest.raises(ValueError, match="n_sweeps == -1, must be >= 0"):
        learn_order(no_joint, CELLS, n_sweeps=-1)


def test_a_joint_keeps_its_greedy_order(known):
    model, X = known
    assert_array_equal(learn_order(model, X), learn_order(model, X, n_sweeps=0))


def test_named_orders_stand_beside_the_mixture():
    orders = {"forwards": "left_to_right", "sure": "confident", "back": [2, 1, 0]}
    spread = order_spread(
        no_joint, CELLS, n_orders=6, orders=orders, reference=CELLS, random_state=0
    )
    mixture = order_log_prob(no_joint, CELLS, ORDERS)
    assert list(spread.gap_of_named) == list(orders)
    for name, order in orders.items():
        reference = CELLS if order == "confident" else None
        alone = order_log_prob(no_joint, CELLS, order, reference=reference)
        assert_allclose(spread.gap_of_named[name], mixture - alone)
        assert f"mixture less {name}" in repr(spread)
    with pytest.raises(TypeError, match="orders must be a dict from names to orders"):
        order_spread(no_joint, CELLS, orders=["left_to_right"])


class TakesAnything:
    """Scores that ignore arguments that they do not know, and are positive."""

    conditional_log_prob = staticmethod(no_joint)

    def score_samples(self, X, **unknown):
        return np.full(len(X), 100.0)


def test_scores_without_errors_are_no_tolerance():
    spread = order_spread(TakesAnything(), CELLS, random_state=0)
    assert_array_equal(
        spread.p_value, order_spread(no_joint, CELLS, random_state=0).p_value
    )
    assert spread.p_value < 1e-3
