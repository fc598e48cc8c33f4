"""Noise of each feature: factor analysis, beside that of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.preprocessing import scale

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA, lml_samples, mpt_curve


def factors(n_components=2, **changes):
    settings = {"noise": "per_feature", "random_state": 0}
    return MPTLinearVAE(n_components, **(settings | changes))


@pytest.fixture(scope="module")
def X():
    return load_wine().data


@pytest.fixture(scope="module")
def fitted(X):
    return factors().fit(X)


@pytest.mark.parametrize("objective", ["mpt", "lml"])
def test_fit_is_a_maximum_for_scikit_learn_too(objective):
    """There are several; the one here is no worse than that of `FactorAnalysis`."""
    X = scale(load_breast_cancer().data)
    settings = {"tol": 1e-6, "max_iter": 5000, "random_state": 0}
    reference = FactorAnalysis(n_components=3, **settings).fit(X)
    fitted = factors(3, objective=objective).fit(X)
    tolerance = 5e-3 if objective == "mpt" else 1e-4
    assert fitted.score(X) > reference.score(X) - tolerance
    noise = {"noise_variance_init": fitted.noise_variance_}
    further = FactorAnalysis(n_components=3, **settings | noise).fit(X)
    assert_allclose(further.score(X), fitted.score(X), atol=tolerance)


@pytest.mark.filterwarnings("ignore:Heywood case")
def test_fits_by_masks_end_near_the_maximum_with_little_noise():
    """Components explain nearly all of some features."""
    X = scale(load_breast_cancer().data)
    best = factors(8, objective="lml").fit(X)
    by_masks = factors(8, n_masks=4).fit(X)
    assert by_masks.score(X) > best.score(X) - 0.02


@pytest.mark.filterwarnings("ignore:Heywood case")
def test_fits_by_masks_of_rows_with_gaps_end_near_the_maximum():
    X = scale(load_diabetes().data)
    X[np.random.default_rng(0).random(X.shape) < 0.15] = np.nan
    by_masks, exact = (
        factors(3, **how).fit(X).score(X)
        for how in ({"n_masks": 4}, {"objective": "lml"})
    )
    assert by_masks > exact - 0.01


def test_parameters_of_scikit_learn_have_its_scores():
    X = load_wine().data
    reference = FactorAnalysis(n_components=2, random_state=0).fit(X)
    start = {
        "components": reference.components_,
        "mean": reference.mean_,
        "noise_variance": reference.noise_variance_,
    }
    same = factors(init=start, max_iter=0).fit(X)
    assert_allclose(same.score_samples(X), reference.score_samples(X))
    assert_allclose(same.transform(X), reference.transform(X))


def joint_of(fitted):
    covariance = fitted.components_.T @ fitted.components_
    return fitted.mean_, covariance + np.diag(fitted.noise_variance_)


def test_rows_with_gaps_have_the_density_of_what_is_seen(fitted, X):
    mean, covariance = joint_of(fitted)
    seen = np.random.default_rng(0).random(13) < 0.5
    rows = np.where(seen, X[:5], np.nan)
    marginal = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
    assert_allclose(fitted.score_samples(rows), marginal.logpdf(X[:5, seen]))
    hidden = ~seen & (np.arange(13) < 8)
    log_prob = fitted.conditional_log_prob(rows, hidden | seen)
    marginals = -0.5 * (
        np.log(2 * np.pi * covariance.diagonal())
        + (rows - mean) ** 2 / covariance.diagonal()
    )
    assert_allclose(log_prob, np.nan_to_num(marginals))


def test_gaps_in_training_cost_little(fitted, X):
    gaps = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    assert factors().fit(gaps).score(X) > fitted.score(X) - 0.1


@pytest.mark.parametrize("gaps", [False, True])
def test_area_is_the_score(gaps, fitted, X):
    rows = X[:20].copy()
    if gaps:
        rows[np.random.default_rng(1).random(rows.shape) < 0.2] = np.nan
    curve = mpt_curve(fitted, rows, n_masks=40, random_state=0)
    assert abs(curve.lml - fitted.score(rows)) < 5 * curve.lml_std_error


def test_units_of_a_feature_do_not_matter(fitted, X):
    units = 10.0 ** np.arange(-6, 7)
    other = factors().fit(units * X)
    expected = fitted.score(X) - np.log(units).sum()
    assert other.score(units * X) == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_feature_without_noise_is_warned_of(X):
    """Rounding decides whether one of two equal features is without error, or both."""
    twin = np.column_stack([X, X[:, 0]])
    with pytest.warns(UserWarning, match="without error"):
        factors(5, max_iter=300, tol=1e-8, objective="lml").fit(twin)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_factor_that_is_a_feature_is_no_trouble():
    """One feature may have no noise, and the likelihood a maximum all the same."""
    X = load_iris().data
    with pytest.warns(UserWarning, match=r"Heywood case: .* feature\(s\) \[\d"):
        model = factors(2, tol=1e-3, objective="lml").fit(X)
    assert (model.noise_variance_ < 1e-6 * X.var(axis=0)).any()
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize(("seed", "objective"), [(0, "mpt"), (0, "lml"), (1, "lml")])
def test_a_variance_at_its_bound_is_said_and_has_no_standard_error(seed, objective):
    C = np.array([[1, 0.95, 0.9], [0.95, 1, 0.8], [0.9, 0.8, 1.0]])
    X = np.random.default_rng(seed).multivariate_normal(np.zeros(3), C, 100)
    with pytest.warns(UserWarning, match=r"Heywood case: .* feature\(s\) \[0\] with"):
        model = factors(1, objective=objective).fit(X)
    errors = model.standard_errors(X)
    assert np.isnan(errors.noise_variance).tolist() == [True, False, False]
    assert np.isfinite(errors.components).all()
    # The factor is the feature, but for its scale: a regression of the others on it.
    noise = np.linalg.lstsq(np.c_[X[:, :1], np.ones(100)], X[:, 1:])[1] / 100
    assert_allclose(model.noise_variance_[1:], noise, rtol=1e-3)
    expected = noise * np.sqrt(2 / 100)
    assert_allclose(errors.noise_variance[1:], expected, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:Heywood case")
@pytest.mark.parametrize("size", [1e-12, 1e-8])
def test_a_feature_that_hardly_varies_scores_alike_by_every_route(size):
    """Quotients before differences would be rounded: up to 1.4 nats apart."""
    rng = np.random.default_rng(0)
    x, others = rng.normal(size=(60, 1)), rng.normal(size=(60, 3))
    X = np.hstack([x, 3 + size * x, others])
    is_rounded = "rounds them visibly" if size == 1e-12 else "without error"
    with pytest.warns(UserWarning, match=is_rounded):
        model = factors(2, max_iter=300).fit(X)
    along = lml_samples(model, X, n_orders=3, random_state=0)
    assert_allclose(along, model.score_samples(X), atol=1e-8)


def test_noise_is_checked(X):
    with pytest.raises(ValueError, match="'noise' parameter of MPTLinearVAE must be a"):
        factors(noise="each").fit(X)


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_posterior_is_gaussian(noise, X):
    model = factors(noise=noise).fit(X)
    mean, covariance = model.posterior(X[:3])
    W, noise_variance = model.components_, model.noise_variance_
    precision = np.eye(2) + W / noise_variance @ W.T
    expected = np.broadcast_to(np.linalg.inv(precision), (3, 2, 2))
    assert_allclose(covariance, expected, atol=1e-12)
    pull = (X[:3] - model.mean_) / noise_variance @ W.T
    assert_allclose(mean, np.linalg.solve(precision, pull.T).T)
    assert_allclose(mean, model.transform(X[:3]))


@pytest.mark.parametrize("rotation", ["varimax", "quartimax"])
def test_rotations_make_components_simple_and_keep_the_law(rotation, fitted, X):
    rotated = factors(rotation=rotation).fit(X)
    assert_allclose(rotated.score_samples(X), fitted.score_samples(X))
    squares, before = (
        (model.components_ / X.std(axis=0)) ** 2 for model in (rotated, fitted)
    )
    assert_allclose(squares.sum(axis=0), before.sum(axis=0))
    if rotation == "varimax":
        squares, before = (s - s.mean(axis=1, keepdims=True) for s in (squares, before))
    assert (squares**2).sum() > (before**2).sum()


def test_draws_and_means_are_in_the_units_of_the_columns(fitted, X):
    """Columns of wine have deviations from 0.1 to 300."""
    Z = np.random.default_rng(0).normal(size=(3, 2))
    mean, covariance = joint_of(fitted)
    assert_allclose(fitted.inverse_transform(Z), Z @ fitted.components_ + mean)
    seen = np.arange(13) < 9
    rows = np.repeat(np.where(seen, X[:1], np.nan), 4000, axis=0)
    drawn = fitted.impute(rows, "sample", random_state=0)[:, ~seen]
    gain = covariance[np.ix_(~seen, seen)] @ np.linalg.inv(
        covariance[np.ix_(seen, seen)]
    )
    expected = mean[~seen] + gain @ (X[0] - mean)[seen]
    rest = covariance[np.ix_(~seen, ~seen)] - gain @ covariance[np.ix_(seen, ~seen)]
    deviation = np.sqrt(rest.diagonal())
    assert (np.abs(drawn.mean(0) - expected) < 4.5 * deviation / np.sqrt(4000)).all()
    assert_allclose(drawn.std(0), deviation, rtol=0.05)
    whitened = np.corrcoef(drawn.T) - rest / np.outer(deviation, deviation)
    assert np.abs(whitened).max() < 4.5 / np.sqrt(4000)


CONSTANT = r"Column\(s\) \[{}\] of X are constant: the likelihood of a constant column"


@pytest.mark.filterwarnings("ignore:Heywood case")
@pytest.mark.parametrize("value", [1.0, 1 / 3, 1e-5])
def test_a_constant_column_is_named_and_keeps_a_floor_of_noise(value):
    X = np.random.default_rng(0).normal(size=(60, 4))
    X[:, 2] = value
    model = MPTLinearVAE(1, noise="per_feature", objective="lml", tol=0.1)
    with pytest.warns(UserWarning, match=CONSTANT.format(2)):
        model.fit(X)
    assert model.noise_variance_[2] == pytest.approx(1e-9, rel=0.5)
    assert model.score(X) < 20
    frame = pd.DataFrame(X, columns=list("abcd"))
    with pytest.warns(UserWarning, match=CONSTANT.format("'c'")):
        model.fit(frame)


def test_a_constant_column_beside_others_is_named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"smokes": rng.random(40) < 0.5, "third": np.full(40, 1 / 3)})
    model = MPTLinearVAE(1, likelihood="from_dtype", objective="lml", tol=0.1)
    with pytest.warns(UserWarning, match=CONSTANT.format("'third'")):
        model.fit(frame)
    assert 1e-5 < model.noise_variance_[1] < 1e-4


@pytest.mark.parametrize(
    "model",
    [
        MPTProbabilisticPCA(1, random_state=0),
        MPTProbabilisticPCA(1, objective="lml"),
        MPTLinearVAE(1, noise="per_feature", objective="lml", tol=0.1),
    ],
)
def test_identical_rows_have_the_density_of_the_floor(model):
    same = np.tile(np.random.default_rng(0).normal(size=(1, 4)), (50, 1))
    with pytest.warns(UserWarning, match=CONSTANT.format("0, 1, 2, 3")):
        model.fit(same)
    assert_allclose(model.noise_variance_, 1e-9, rtol=0.1)
    assert model.score(same) == pytest.approx(-2 * np.log(2 * np.pi * 1e-9), rel=0.01)
