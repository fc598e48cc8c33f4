import math
from itertools import permutations, product

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from recorder import orders_of
from scipy.special import logsumexp

from sklearn_mpt import (
    MPTMaskedAutoencoder,
    feature_contributions,
    lml_samples,
    mpt_curve,
    order_log_prob,
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
            "must be 'left_to_right', an int, or an array .* got 'right",
        ),
        (
            [0, 1],
            r"each of the 3 features once, of .* got shape \(2,\)",
        ),
        ([0, 1, 1], r"each of the 3 features once, got \[0, 1, 1\]"),
        ([0, 1, "z"], "order names a column 'z', which X does not have"),
        (0, "order must be an int in the range"),
        (np.zeros((0, 3), int), "each of the 3 features once"),
    ],
)
def test_bad_orders_are_named(order, message):
    with pytest.raises(ValueError, match=message):
        order_log_prob(no_joint, CELLS, order)


def test_texts_are_sent_elsewhere():
    from sklearn_mpt import MPTScorer

    with pytest.raises(TypeError, match=r"method='ordered'\)"):
        order_log_prob(MPTScorer(), ["a"], "left_to_right")


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
                mpt_curve(model, X, n_masks=2, design="independent", **options).scores,
            ]

    expected = measure(None)
    for value, other in zip(expected, measure(2), strict=True):
        assert_allclose(value, other, rtol=1e-12)
    monkeypatch.setattr("sklearn_mpt._measure.orders.CACHE_ENTRIES", 60)
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


def test_orders_are_uniform_and_where_few_distinct():
    few = orders_of(6, 50, 3)
    assert all(len(np.unique(few[:, row], axis=0)) == 6 for row in range(50))
    for n_features in (5, 8):  # all orders are listed; they are drawn
        first = orders_of(40, 100, n_features)[..., 0].ravel()
        counts = np.bincount(first, minlength=n_features)
        error = 5 * np.sqrt(4000 / n_features * (1 - 1 / n_features))
        assert_allclose(counts, 4000 / n_features, atol=error)
