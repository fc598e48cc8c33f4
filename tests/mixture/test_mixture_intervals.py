"""Mixtures of numbers that are known to lie in an interval, against scipy."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import minimize

from sklearn_mpt import MPTMixture, lml_samples, mpt_curve

pytest.importorskip("torch")

SIZES = np.array([[1.0, 1.5, 0.5], [1.2, 1.0, 0.5]])
MEANS = np.array([[4.0, -1.0, 1.0], [0.0, 3.0, 2.0]])
WEIGHTS = np.array([0.6, 0.4])


def table(n_rows=200, seed=0):
    """Numbers below the limits of their rows, numbers in classes, and numbers."""
    rng = np.random.default_rng(seed)
    k = (rng.random(n_rows) > WEIGHTS[0]).astype(int)
    Y = MEANS[k] + rng.normal(size=(n_rows, 3)) * SIZES[k]
    ends = np.stack([Y, Y], -1)
    limits, whole = rng.normal(0.5, 1, size=n_rows), np.floor(Y[:, 1])
    ends[:, 0, 1] = np.maximum(Y[:, 0], limits)
    ends[Y[:, 0] < limits, 0, 0] = -np.inf
    ends[:, 1] = np.stack([whole, whole + 1], -1)
    ends[::7, 1] = np.nan
    columns = [
        pd.arrays.IntervalArray.from_arrays(*ends[:, j].T, closed="both")
        for j in range(3)
    ]
    return pd.DataFrame(dict(zip("abc", columns, strict=True))), ends


def fitted(X, **params):
    """A mixture of two components of independent columns, at the parameters above."""
    start = {"weights_init": WEIGHTS, "means_init": MEANS, "max_iter": 0}
    settings = {"covariance_type": "diag", "precisions_init": 1 / SIZES**2} | params
    model = MPTMixture(2, likelihood="from_dtype", random_state=0)
    return model.set_params(**(start | settings)).fit(X)


def log_prob_of(ends, means, sizes):
    """Log-probability of entries in each component, (n, K, d); 0 where missing."""
    low, high = ends[:, None].transpose(3, 0, 1, 2)
    # complements keep the digits of tails
    a, b = (low - means) / sizes, (high - means) / sizes
    flip = a + b > 0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(stats.norm.cdf(b) - stats.norm.cdf(a))
        exact = stats.norm.logpdf(low, means, sizes)
    return np.nan_to_num(np.where(low == high, exact, logs), nan=0.0)


def test_scores_conditionals_and_classes_are_those_of_scipy():
    X, ends = table(40)
    model = fitted(X)
    entries = log_prob_of(ends, MEANS, SIZES)
    joint = entries.sum(2) + np.log(WEIGHTS)
    whole = np.logaddexp.reduce(joint, 1)
    assert_allclose(model.score_samples(X), whole, rtol=1e-5)
    assert_allclose(model.predict_proba(X), np.exp(joint - whole[:, None]), atol=1e-5)
    mask = np.array([True, False, True])
    found = model.conditional_log_prob(X, mask)
    given = np.log(WEIGHTS) + entries[..., 1]
    for j in (0, 2):
        expected = np.logaddexp.reduce(given + entries[..., j], 1)
        expected -= np.logaddexp.reduce(given, 1)
        assert_allclose(found[:, j], expected, rtol=1e-4, atol=1e-6)
    assert_allclose(mpt_curve(model, X, random_state=0).lml, whole.mean(), rtol=1e-5)
    along = lml_samples(model, X, n_orders=2, random_state=0)
    assert_allclose(along, whole, rtol=1e-5)


def test_intervals_are_filled_with_their_expectations_and_draws():
    X = pd.concat([table()[0][1:2]] * 2000, ignore_index=True)
    X["a"] = pd.arrays.IntervalArray.from_breaks([1.0, 3.0]).repeat(2000)
    model = fitted(table()[0])
    ends = np.array([[[1.0, 3.0], [X["b"][0].left] * 2, [X["c"][0].left] * 2]])
    ends[0, 1, 1] += 1
    joint = log_prob_of(ends, MEANS, SIZES).sum(2)[0] + np.log(WEIGHTS)
    share = np.exp(joint - np.logaddexp.reduce(joint))
    low, high = (1 - MEANS[:, 0]) / SIZES[:, 0], (3 - MEANS[:, 0]) / SIZES[:, 0]
    means = stats.truncnorm.mean(low, high, MEANS[:, 0], SIZES[:, 0])
    filled = model.impute(X)["a"]
    assert_allclose(filled, share @ means, rtol=1e-5)
    drawn = model.impute(X, "sample", random_state=0)["a"]
    assert drawn.between(1, 3).all()
    assert abs(drawn.mean() - filled[0]) < 4 * drawn.std() / np.sqrt(len(drawn))


@pytest.mark.parametrize("objective", ["mpt", "lml"])
@pytest.mark.parametrize("form", ["diag", "spherical"])
def test_fit_ends_where_the_likelihood_of_scipy_is_largest(form, objective):
    X, ends = table()
    settings = {"covariance_type": form, "objective": objective, "tol": 1e-7}
    model = MPTMixture(2, likelihood="from_dtype", random_state=0, **settings).fit(X)
    n_sizes = 6 if form == "diag" else 2

    def loss(params):
        weight = 1 / (1 + np.exp(-params[0]))
        means, sizes = params[1:7].reshape(2, 3), np.exp(params[7:]).reshape(2, -1)
        logs = log_prob_of(ends, means, np.broadcast_to(sizes, (2, 3))).sum(2)
        joint = logs + np.log([weight, 1 - weight])
        return -np.logaddexp.reduce(joint, 1).mean()

    sizes = np.sqrt(model.covariances_).ravel()
    start = [np.log(model.weights_[0] / model.weights_[1]), *model.means_.ravel()]
    found = np.array([*start, *np.log(sizes)])
    assert len(found) == 7 + n_sizes
    assert_allclose(-model.score(X), loss(found), rtol=1e-6)
    best = minimize(loss, found)
    assert loss(found) - best.fun < 1e-5
    errors = model.standard_errors(X)
    assert all(np.isfinite(errors[name]).all() for name in ("means", "covariances"))


def test_correlated_columns_refuse_intervals():
    with pytest.raises(ValueError, match=r"'full' takes no columns of intervals"):
        MPTMixture(2, likelihood="from_dtype").fit(table()[0])


def test_ends_of_columns_far_from_zero_are_refused():
    values = 1.7e9 + np.arange(9.0)
    X = pd.DataFrame({"t": [pd.Interval(1.7e9, np.inf), *values]})
    model = MPTMixture(1, likelihood="from_dtype", covariance_type="diag")
    with pytest.raises(ValueError, match="subtract a constant"):
        model.fit(X)
