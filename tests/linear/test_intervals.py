"""Numbers that are known to lie in an interval, against grids and other packages."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.optimize import minimize
from scipy.special import log_ndtr
from sklearn.model_selection import cross_val_score

from sklearn_mpt import (
    MPTDeepVAE,
    MPTLinearVAE,
    MPTMixture,
    MPTProbabilisticPCA,
    feature_contributions,
    mpt_curve,
)
from sklearn_mpt._likelihoods.interval import Interval, codes_of, ends_of

COMPONENTS = np.array([[8.0, -6.0, 3.0], [0.0, 2.0, 4.0]])
INTERCEPT, NOISE = np.array([50.0, 0.0, -20.0]), np.array([30.0, 20.0, 10.0])
GRID = np.linspace(-7, 7, 401)
# of seven digits of ends, and of integrals, in nats
TOLERANCE = 1e-4


def intervals(lower, upper):
    return pd.arrays.IntervalArray.from_arrays(lower, upper, closed="both")


def left_censored(values, limits):
    is_below = values < limits
    return intervals(
        np.where(is_below, -np.inf, values), np.where(is_below, limits, values)
    )


def table(n_rows=30, seed=0, n_components=2):
    """Numbers below the limits of their rows, numbers in classes, numbers, and gaps."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n_rows, 3)) * np.sqrt(NOISE)
    z = rng.normal(size=(n_rows, n_components))
    Y = z @ COMPONENTS[:n_components] + INTERCEPT + noise
    first = np.floor(Y[:, 1] / 5) * 5
    first[::5] = np.nan
    frame = pd.DataFrame(
        {
            "a": left_censored(Y[:, 0], rng.normal(48, 5, size=n_rows)),
            "b": intervals(first, np.where(first > 5, np.inf, first + 5)),
            "c": Y[:, 2],
        }
    )
    frame.loc[3, "c"] = np.nan
    return frame, Y


def model_of(X, n_components=2, likelihood="from_dtype"):
    """The model with the parameters of the module."""
    init = {
        "components": COMPONENTS[:n_components],
        "intercept": INTERCEPT,
        "noise_variance": NOISE,
    }
    settings = {"likelihood": likelihood, "init": init, "random_state": 0}
    return MPTLinearVAE(n_components, max_iter=0, **settings).fit(X)


def nodes(n_components):
    axes = np.meshgrid(*[GRID] * n_components)
    z = np.stack(axes, -1).reshape(-1, n_components)
    log_weight = stats.norm.logpdf(z).sum(1) + n_components * np.log(GRID[1] - GRID[0])
    return z @ COMPONENTS[:n_components] + INTERCEPT, log_weight


def ends_by_entry(frame):
    """Ends of all entries, infinite for gaps; (n, d, 2)."""
    ends = np.empty((*frame.shape, 2))
    for i, j in np.ndindex(*frame.shape):
        value = frame.iat[i, j]
        if isinstance(value, pd.Interval):
            ends[i, j] = value.left, value.right
        else:
            ends[i, j] = (-np.inf, np.inf) if np.isnan(value) else value
    return ends


def log_prob_at_nodes(ends, mean, size):
    if ends[0] == ends[1]:
        return stats.norm.logpdf(ends[0], mean, size)
    if np.isinf(ends).all():
        return 0.0
    a, b = (ends[0] - mean) / size, (ends[1] - mean) / size
    a, b = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
    return log_ndtr(b) + np.log(-np.expm1(log_ndtr(a) - log_ndtr(b)))


def by_grid(row_ends, columns, n_components):
    """Log-probability of some entries of a row by a grid, and shares of its nodes."""
    means, joint = nodes(n_components)
    for j in columns:
        joint = joint + log_prob_at_nodes(row_ends[j], means[:, j], np.sqrt(NOISE[j]))
    total = np.logaddexp.reduce(joint)
    return total, np.exp(joint - total)


@pytest.mark.parametrize("n_components", [1, 2])
def test_scores_and_conditionals_are_those_of_a_grid(n_components):
    X, _ = table(6)
    model, ends = model_of(X, n_components), ends_by_entry(X)
    whole = [by_grid(row, range(3), n_components)[0] for row in ends]
    assert_allclose(model.score_samples(X), whole, atol=TOLERANCE)
    mask = np.array([True, False, False])
    given = [by_grid(row, [1, 2], n_components)[0] for row in ends]
    conditional = model.conditional_log_prob(X, mask)[:, 0]
    assert_allclose(conditional, np.subtract(whole, given), atol=2 * TOLERANCE)


def test_intervals_are_filled_with_their_expectations():
    X, Y = table(8)
    filled = model_of(X, 1).impute(X)
    assert [str(dtype) for dtype in filled.dtypes] == ["float64"] * 3
    for i, row in enumerate(ends_by_entry(X)):
        _, share = by_grid(row, range(3), 1)
        means, size = nodes(1)[0], np.sqrt(NOISE)
        for j in np.flatnonzero(row[:, 0] < row[:, 1]):
            low, high = (row[j] - means[:, [j]]).T / size[j]
            expected = share @ stats.truncnorm.mean(low, high, means[:, j], size[j])
            assert_allclose(filled.iat[i, j], expected, atol=1e-3)
    known = np.array([interval.length == 0 for interval in X["a"]])
    assert_array_equal(filled["a"][known], Y[known, 0])


def test_draws_lie_in_intervals_and_have_their_expectations():
    X = pd.concat([table()[0][1:2]] * 1500, ignore_index=True)
    X["a"] = intervals(np.full(1500, 40.0), np.full(1500, 43.0))
    model = model_of(X, 1)
    drawn, expected = model.impute(X, "sample", random_state=0), model.impute(X[:1])
    assert drawn["a"].between(40, 43).all()
    for name in ("a", "b"):
        error = drawn[name].std() / np.sqrt(len(drawn))
        assert abs(drawn[name].mean() - expected[name][0]) < 4 * error
    assert [str(dtype) for dtype in model.sample(2).dtypes] == ["float64"] * 3


def test_censored_rows_have_the_probability_of_a_rectangle():
    X = pd.DataFrame(
        {
            name: intervals([-np.inf, 3.0], [end, 3.0])
            for name, end in zip("abc", (45.0, 2.0, -22.0), strict=True)
        }
    )
    covariance = COMPONENTS.T @ COMPONENTS + np.diag(NOISE)
    normal = INTERCEPT, covariance
    below = stats.multivariate_normal.logcdf([45.0, 2, -22], *normal, abseps=1e-8)
    at = stats.multivariate_normal.logpdf([3.0, 3, 3], *normal)
    assert_allclose(model_of(X).score_samples(X), [below, at], atol=TOLERANCE)


def test_regression_on_a_number_is_tobit_regression():
    """Of two columns the joint maximum is that of x and that of y given x."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=80)
    y, limits = 3 + 2 * x + rng.normal(size=80), rng.normal(2, 1, size=80)
    X = pd.DataFrame({"x": x, "y": left_censored(y, limits)})

    def loss(params):
        mean, size = params[0] + params[1] * x, np.exp(params[2])
        below = stats.norm.logcdf(limits, mean, size)
        return -np.where(y < limits, below, stats.norm.logpdf(y, mean, size)).mean()

    best = minimize(loss, [2.0, 1.0, 0.0], tol=1e-10)
    model = MPTLinearVAE(1, likelihood="from_dtype", tol=1e-7, random_state=0).fit(X)
    alone = stats.norm.logpdf(x, x.mean(), x.std()).mean()
    assert_allclose(model.score(X), alone - best.fun, atol=TOLERANCE)
    covariance = model.components_.T @ model.components_ + np.diag(
        model.noise_variance_
    )
    slope = covariance[0, 1] / covariance[0, 0]
    intercept = model.intercept_[1] - slope * model.intercept_[0]
    assert_allclose([intercept, slope], best.x[:2], atol=0.01)


def test_fit_ends_at_the_maximum_of_the_grid():
    X, _ = table(40, n_components=1)
    model = MPTLinearVAE(1, likelihood="from_dtype", tol=1e-6, random_state=0).fit(X)
    best = model.score(X)
    init = {
        "components": model.components_,
        "intercept": model.intercept_,
        "noise_variance": model.noise_variance_,
    }
    for name, array in init.items():
        for j in range(3):
            for sign in (-1, 1):
                moved = array.copy()
                moved[..., j] += sign * 0.2 * np.sqrt(NOISE[j])
                other = MPTLinearVAE(
                    1, likelihood="from_dtype", init={**init, name: moved}, max_iter=0
                )
                assert other.fit(X).score(X) < best


def test_without_intervals_it_is_factor_analysis():
    _, Y = table(100, n_components=1)
    init = {"components": COMPONENTS[:1], "mean": INTERCEPT, "noise_variance": NOISE}
    factors = MPTLinearVAE(1, noise="per_feature", init=init, max_iter=0).fit(Y)
    same = model_of(Y, 1, likelihood="interval")
    assert_allclose(same.score_samples(Y), factors.score_samples(Y), atol=TOLERANCE)
    settings = {"tol": 1e-7, "random_state": 0}
    model = MPTLinearVAE(1, likelihood="interval", **settings).fit(Y)
    factors = MPTLinearVAE(1, noise="per_feature", **settings).fit(Y)
    assert_allclose(model.score(Y), factors.score(Y), atol=TOLERANCE)


def test_loadings_are_found_in_spite_of_limits():
    """Limits in place of numbers shrink the loadings, and gaps even more."""
    rng = np.random.default_rng(0)
    loadings = np.array([1.0, 0.8, 1.2, 0.9])
    Y = np.outer(rng.normal(size=400), loadings) + rng.normal(size=(400, 4)) * 0.7
    limits = rng.normal(-0.4, 0.2, size=Y.shape)
    X = pd.DataFrame({j: left_censored(Y[:, j], limits[:, j]) for j in range(4)})
    model = MPTLinearVAE(1, likelihood="from_dtype", random_state=0).fit(X)

    def error(model):
        return np.abs(model.components_[0] - loadings).mean()

    naive = MPTLinearVAE(1, noise="per_feature", random_state=0)
    gaps = error(naive.fit(np.where(limits > Y, np.nan, Y)))
    assert error(model) < 0.07
    assert error(naive.fit(np.maximum(Y, limits))) > 0.2
    assert gaps > 0.2
    assert np.abs(model.intercept_).max() < 0.12


def test_rows_of_intervals_work_wherever_rows_do():
    X, _ = table(40)
    model = model_of(X, 1)
    curve = mpt_curve(model, X, random_state=0)
    assert abs(curve.lml - model.score(X)) < 4 * curve.lml_std_error + 0.005
    shares = feature_contributions(model, X[:5], n_orders=2, random_state=0)
    assert_allclose(shares.sum(1), model.score_samples(X[:5]), atol=2 * TOLERANCE)
    fresh = MPTLinearVAE(1, likelihood="from_dtype", max_iter=0, random_state=0)
    assert np.isfinite(cross_val_score(fresh, X, cv=2)).all()


def test_standard_errors_are_those_of_second_derivatives():
    X, _ = table(60, n_components=1)
    model = MPTLinearVAE(1, likelihood="from_dtype", random_state=0).fit(X)
    low, high = ends_by_entry(X).transpose(2, 0, 1)[..., None]
    is_gap, z = np.isinf(low) & np.isinf(high), GRID[::4]

    def log_likelihood(params):
        slope, mean, log_noise = params.reshape(3, -1, 1)
        size, means = np.exp(log_noise / 2), slope * z + mean
        a, b = (low - means) / size, (high - means) / size
        with np.errstate(all="ignore"):
            a, b = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
            logs = log_ndtr(b) + np.log(-np.expm1(log_ndtr(a) - log_ndtr(b)))
        logs = np.where(low == high, stats.norm.logpdf(low, means, size), logs)
        joint = np.where(is_gap, 0.0, logs).sum(1) + stats.norm.logpdf(z)
        return np.logaddexp.reduce(joint, 1).sum()

    noise = model.noise_variance_
    best = np.concatenate([model.components_[0], model.intercept_, np.log(noise)])
    steps = np.diag(np.repeat([0.3, 0.3, 0.03], 3))
    hessian = np.empty((9, 9))
    for i, j in zip(*np.tril_indices(9), strict=True):
        ends = [
            s * t * log_likelihood(best + s * steps[i] + t * steps[j])
            for s in (-1, 1)
            for t in (-1, 1)
        ]
        hessian[i, j] = hessian[j, i] = sum(ends) / (4 * steps[i, i] * steps[j, j])
    expected = np.sqrt(np.linalg.inv(-hessian).diagonal()).reshape(3, 3)
    errors = model.standard_errors(X)
    assert_allclose(errors["components"][0], expected[0], rtol=0.02)
    assert_allclose(errors["intercept"], expected[1], rtol=0.02)
    assert_allclose(errors["noise_variance"], expected[2] * noise, rtol=0.02)


@pytest.mark.parametrize(
    "column",
    [
        [0.5, pd.Interval(0, 1), None, pd.Interval(2, 2, closed="both")],
        pd.Series([0.5, pd.Interval(0, 1), np.nan, 2], dtype=object),
        [0.5, pd.Interval(0, 1), pd.Interval(-np.inf, np.inf), 2],
    ],
)
def test_columns_may_hold_intervals_among_numbers(column):
    X = pd.DataFrame({"x": [0.0, 1, 2, 3], "y": column})
    model = MPTLinearVAE(1, likelihood="from_dtype", max_iter=0, random_state=0).fit(X)
    assert model.likelihoods_ == ["gaussian", "interval"]
    filled = model.impute(X)["y"]
    assert_array_equal(filled[[0, 3]], [0.5, 2])
    assert 0 < filled[1] < 1
    assert np.isfinite(filled[2])
    masked = model.conditional_log_prob(X, [False, True])[:, 1]
    assert_array_equal(masked == 0, [False, False, True, False])


def test_classes_of_a_categorical_are_intervals():
    values = np.random.default_rng(0).normal(size=50)
    X = pd.DataFrame({"x": values, "y": pd.cut(values, 4)})
    kinds = {"y": "interval"}
    model = MPTLinearVAE(1, likelihood=kinds, max_iter=0, random_state=0).fit(X)
    filled = model.impute(X)["y"]
    assert all(v in interval for v, interval in zip(filled, X["y"], strict=True))


def test_intervals_are_refused_where_nothing_takes_them():
    X, _ = table()
    for model in (
        MPTProbabilisticPCA(1),
        MPTLinearVAE(1),
        MPTMixture(2),
        MPTDeepVAE(1, likelihood="from_dtype"),
    ):
        with pytest.raises((ValueError, TypeError), match=r"(?i)intervals"):
            model.fit(X)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([pd.Interval(2000, 2000.001), 2001.0, 2002.0], "too narrow"),
        (
            [pd.Interval(1.7e9, np.inf), 1.7e9 + 1, 1.7e9 + 2],
            r", inf\)\. .* subtract a",
        ),
        ([pd.Interval(0, 1e200), 1.0, 2.0], "rescale"),
        ([pd.Interval(0, 1), "low", 2.0], "Column 'y' holds strings"),
    ],
)
def test_intervals_that_cannot_be_read_are_refused(column, message):
    X = pd.DataFrame({"x": [0.0, 1, 2], "y": column})
    with pytest.raises(ValueError, match=message):
        MPTLinearVAE(1, likelihood={"y": "interval"}, max_iter=0).fit(X)


def test_codes_keep_the_ends_of_intervals():
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(size=(200, 2)) * 10.0 ** rng.integers(-9, 9, (200, 1)))
    ends[:4] = [[-np.inf, 0], [0, np.inf], [-1, 1], [-3, -0.0]]
    lower, upper = map(torch.tensor, ends.T.copy())
    is_code, low, high = ends_of(codes_of(lower, upper))
    assert is_code.all()
    assert (low[0], high[1]) == (-(2.0**100), 2.0**100)
    assert_allclose(low[1:], lower[1:], rtol=2**-22)
    assert_allclose(high[2:], upper[2:], rtol=2**-22)
    numbers = torch.tensor([0.0, -1e150, 1e150, np.nan, -3.5], dtype=torch.float64)
    assert not ends_of(numbers)[0].any()


ENDS = [(-np.inf, -0.3), (0.2, np.inf), (30.0, 31.0), (-np.inf, -50.0), (5, 5.001)]


def test_derivatives_in_the_tails_are_those_of_scipy():
    codes = codes_of(*(torch.tensor(end)[:, None] for end in np.array(ENDS).T))
    _, lower, upper = ends_of(codes)
    noise = torch.tensor([0.3], dtype=torch.float64)
    likelihood = Interval(noise, torch.tensor([0.7], dtype=torch.float64))

    def expected(mean, log_variance):
        size = np.exp(log_variance / 2)
        low, high = ((end.numpy() - mean) / size for end in (lower, upper))
        low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
        logs = log_ndtr(high) + np.log(-np.expm1(log_ndtr(low) - log_ndtr(high)))
        return logs + 0.7

    location = torch.full((5, 1), 0.4, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        log_prob = likelihood.entry_log_prob(codes, location)
    log_noise = np.log(likelihood.dispersion.item())
    assert_allclose(log_prob.detach(), expected(0.4, log_noise), rtol=1e-9)
    slope, information = (d.detach() for d in likelihood.derivatives(codes, location))
    step = 1e-4

    def difference(*moves):
        ends = [expected(0.4 + s * moves[0], log_noise + s * moves[1]) for s in (-1, 1)]
        return (ends[1] - ends[0]) / (2 * step)

    assert_allclose(slope, difference(step, 0), rtol=1e-5)
    shape_slope = likelihood.shape_scores(codes, location).detach()
    assert_allclose(shape_slope, difference(0, step), rtol=1e-5, atol=1e-6)
    by_autograd = torch.autograd.grad(log_prob.sum(), location)[0]
    assert_allclose(by_autograd, slope, rtol=1e-7)
    with torch.enable_grad():
        slope = likelihood.derivatives(codes, location)[0]
    second = torch.autograd.grad(slope.sum(), location)[0]
    assert_allclose(information, -second, rtol=1e-4)
