"""Standardised loadings, rotations, and fits from covariance matrices."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import expm
from scipy.optimize import approx_fprime, minimize
from sklearn.datasets import load_wine

from sklearn_mpt import (
    MPTItemResponse,
    MPTLinearVAE,
    MPTProbabilisticPCA,
    rows_from_covariance,
)

NAMES = ["general", "picture", "blocks", "maze", "reading", "vocab"]
N_PERSONS = 112
# Ability and intelligence tests (Smith and Stanley 1983; `ability.cov` of R).
ABILITY = np.array([
    [24.641, 5.991, 33.520, 6.023, 20.755, 29.701],
    [5.991, 6.700, 18.137, 1.782, 4.936, 7.204],
    [33.520, 18.137, 149.831, 19.424, 31.430, 50.753],
    [6.023, 1.782, 19.424, 12.711, 4.757, 9.075],
    [20.755, 4.936, 31.430, 4.757, 52.604, 66.762],
    [29.701, 7.204, 50.753, 9.075, 66.762, 135.292],
])  # fmt: skip


def factors(n_components=2, **changes):
    settings = {"noise": "per_feature", "objective": "lml", "random_state": 0}
    return MPTLinearVAE(n_components, **(settings | {"tol": 1e-7} | changes))


@pytest.fixture(scope="module")
def rows():
    return rows_from_covariance(ABILITY, N_PERSONS)


@pytest.fixture(scope="module")
def model(rows):
    X, weight = rows
    return factors().fit(X, sample_weight=weight)


def discrepancy(covariance, S):
    """log |C| + tr(S / C) - log |S| - d, of which n / 2 is minus the log-likelihood."""
    difference = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(S)[1]
    return difference + np.trace(np.linalg.solve(covariance, S)) - len(S)


def test_uniquenesses_are_those_of_factanal(model):
    """Printed by R for ``factanal(factors = 2, covmat = ability.cov)``."""
    uniqueness = model.factor_loadings().uniqueness
    assert_allclose(uniqueness, [0.455, 0.589, 0.218, 0.769, 0.052, 0.334], atol=6e-4)
    W = model.components_
    value = discrepancy(W.T @ W + np.diag(model.noise_variance_), ABILITY)
    bartlett = N_PERSONS - 1 - (2 * 6 + 5) / 6 - 2 * 2 / 3
    assert bartlett * value == pytest.approx(6.11, abs=0.006)


def test_fit_minimises_the_discrepancy(model):
    """A search over the noise variances, with loadings by eigenvectors (Joreskog)."""
    size = np.sqrt(ABILITY.diagonal())
    correlation = ABILITY / np.outer(size, size)

    def value(log_noise):
        root = np.exp(log_noise / 2)
        low = np.linalg.eigvalsh(correlation / np.outer(root, root))[:-2]
        return (low - np.log(low) - 1).sum()

    best = minimize(value, np.full(6, -1.0), tol=1e-12)
    W = model.components_
    fitted = discrepancy(W.T @ W + np.diag(model.noise_variance_), ABILITY)
    assert fitted == pytest.approx(best.fun, abs=1e-6)
    noise = model.noise_variance_ / size**2
    assert_allclose(noise, np.exp(best.x), atol=5e-4)


@pytest.mark.parametrize("of", [factors(), MPTProbabilisticPCA(2, objective="lml")])
def test_a_covariance_is_as_good_as_its_rows(of):
    X = load_wine().data[:, :6]
    S, mean = np.cov(X.T, bias=True), X.mean(axis=0)
    standing, weight = rows_from_covariance(S, len(X), mean=mean)
    assert_allclose(np.cov(standing.T, aweights=weight, bias=True), S)
    by_rows = of.fit(X)
    reports = by_rows.aic(X), by_rows.bic(X), len(X) * by_rows.score(X)
    before = by_rows.factor_loadings(X)
    by_matrix = of.fit(standing, sample_weight=weight)
    now = (
        by_matrix.aic(standing, weight),
        by_matrix.bic(standing, weight),
        weight @ by_matrix.score_samples(standing),
    )
    assert_allclose(now, reports)
    for name, value in by_matrix.factor_loadings(standing, weight).items():
        assert_allclose(np.abs(value), np.abs(before[name]), atol=1e-4)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_names_of_a_covariance_are_kept(frame):
    S = frame(dict(zip(NAMES, ABILITY, strict=True)))
    X, _ = rows_from_covariance(S, N_PERSONS)
    assert isinstance(X, frame)
    assert list(X.columns) == NAMES


@pytest.mark.parametrize(("changes", "message"), [
    ({"covariance": np.ones((2, 3))}, r"must be square, got shape \(2, 3\)"),
    ({"covariance": [[1, 0.5], [0.4, 1]]}, "must be symmetric"),
    ({"covariance": [[1, 2], [2, 1]]}, "semidefinite, got one with the eigenvalue -1"),
    ({"n_samples": 0}, "n_samples must be a positive number, got 0"),
    ({"mean": [1.0]}, r"mean must have shape \(2,\), got shape \(1,\)"),
])  # fmt: skip
def test_what_is_no_covariance_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        rows_from_covariance(**({"covariance": np.eye(2), "n_samples": 9} | changes))


@pytest.mark.parametrize(("likelihood", "kind"), [
    ("bernoulli", "2pl"),
    ("partial_credit", "gpcm"),
    ("ordinal", "graded"),
])  # fmt: skip
def test_criteria_are_those_of_items(likelihood, kind):
    """The same models, with other names."""
    rng = np.random.default_rng(0)
    n_levels = 2 if likelihood == "bernoulli" else 3
    z = rng.normal(size=(300, 1)) + rng.logistic(size=(300, 4))
    X = np.digitize(z, [0.0, 1.0][: n_levels - 1]).astype(float)
    linear = MPTLinearVAE(1, likelihood=likelihood, objective="lml").fit(X)
    items = MPTItemResponse(kind).fit(X)
    assert linear.bic(X) == pytest.approx(items.bic(X), abs=0.1)
    assert linear.aic(X) == pytest.approx(items.aic(X), abs=0.1)


def criterion(loadings, method):
    """Varimax and quartimin, from their definitions."""
    square = loadings**2
    if method == "varimax":
        return -square.var(axis=0).sum()
    return sum(
        square[:, a] @ square[:, b]
        for a in range(square.shape[1])
        for b in range(square.shape[1])
        if a != b
    )


def transform_of(x, k, method):
    """T from free parameters: of a rotation, or unit columns."""
    if method == "varimax":
        skew = np.zeros((k, k))
        skew[np.triu_indices(k, 1)] = x
        return expm(skew - skew.T)
    T = x.reshape(k, k)
    return T / np.linalg.norm(T, axis=0)


def by_search(loadings, method):
    """The best of some searches of SciPy."""
    k, rng = loadings.shape[1], np.random.default_rng(0)
    size = k * (k - 1) // 2 if method == "varimax" else k**2

    def value(x):
        T = transform_of(x, k, method)
        return criterion(loadings @ np.linalg.inv(T).T, method)

    runs = [minimize(value, rng.normal(size=size), tol=1e-12) for _ in range(6)]
    best = min(runs, key=lambda run: run.fun)
    return transform_of(best.x, k, method)


def in_order(loadings):
    """Longest column first, with positive sums."""
    loadings = loadings[:, (loadings**2).sum(axis=0).argsort()[::-1]]
    return loadings * np.sign(loadings.sum(axis=0))


@pytest.fixture(scope="module")
def wine():
    X = load_wine().data
    return factors(3, tol=1e-5).fit(X), X


@pytest.mark.parametrize("method", ["varimax", "oblimin"])
def test_rotations_minimise_their_criterion(method, wine):
    model, _ = wine
    T = by_search(model.factor_loadings().loadings, method)
    expected = in_order(model.factor_loadings().loadings @ np.linalg.inv(T).T)
    assert_allclose(
        model.factor_loadings(rotation=method).loadings, expected, atol=1e-4
    )


def test_promax_fits_powers_of_varimax(wine):
    """As written by Hendrickson and White, and in R."""
    model, _ = wine
    simple = model.factor_loadings(rotation="varimax").loadings
    U = np.linalg.inv(simple.T @ simple) @ simple.T @ (simple * np.abs(simple) ** 3)
    U = U @ np.diag(np.sqrt(np.linalg.inv(U.T @ U).diagonal()))
    found = model.factor_loadings(rotation="promax")
    assert_allclose(found.loadings, in_order(simple @ U), atol=1e-8)
    correlation = np.abs(np.linalg.inv(U.T @ U))
    values = np.sort(np.abs(found.factor_correlation), axis=None)
    assert_allclose(values, np.sort(correlation, axis=None), atol=1e-8)


@pytest.mark.parametrize("rotation", [None, "varimax", "oblimin", "promax"])
def test_rotations_keep_the_model(rotation, wine):
    model, X = wine
    found = model.factor_loadings(rotation=rotation)
    L, correlation = found.loadings, found.factor_correlation
    W = model.components_
    C = W.T @ W + np.diag(model.noise_variance_)
    size = np.sqrt(C.diagonal())
    reproduced = L @ correlation @ L.T + np.diag(found.uniqueness)
    assert_allclose(reproduced, C / np.outer(size, size), atol=1e-10)
    assert_allclose(correlation.diagonal(), 1)
    assert_allclose(found.communality, 1 - model.noise_variance_ / C.diagonal())
    assert found.explained_variance.sum() == pytest.approx(found.communality.sum())
    scores = model.transform(X) @ found.rotation_matrix
    rows = model.mean_ + size * (scores @ L.T)
    assert_allclose(rows, model.inverse_transform(model.transform(X)))


def test_units_do_not_matter(wine):
    model, X = wine
    units = 10.0 ** np.arange(-6, 7)
    other = factors(3, tol=1e-5).fit(units * X)
    expected, found = (m.factor_loadings(rotation="oblimin") for m in (model, other))
    assert_allclose(found.loadings, expected.loadings, atol=2e-3)


@pytest.mark.parametrize("method", ["varimax", "oblimin"])
def test_errors_are_those_with_the_rotation_as_a_constraint(method, model, rows):
    """Inverse information, bordered by derivatives of the conditions of the rotation.

    The parameters are rotated loadings and correlations of the factors themselves,
    so nothing is rotated again (Jennrich).
    """
    found = model.factor_loadings(*rows, rotation=method)
    L, correlation = found.loadings, found.factor_correlation
    start = np.concatenate(
        [L.flatten(), [correlation[0, 1]], np.log(ABILITY.diagonal())]
    )

    def parts(theta):
        phi = np.array([[1, theta[12]], [theta[12], 1]])
        return theta[:12].reshape(6, 2), phi, np.exp(theta[13:] / 2)

    def loss(theta):
        L, phi, size = parts(theta)
        common = L @ phi @ L.T
        common[np.diag_indices(6)] = 1
        return N_PERSONS / 2 * discrepancy(np.outer(size, size) * common, ABILITY)

    def conditions(theta):
        """Derivatives of the criterion as one factor turns towards the other."""
        L, phi, _ = parts(theta)
        gradient = approx_fprime(
            L.flatten(), lambda x: criterion(x.reshape(6, 2), method), 1e-6
        )
        turn = L.T @ gradient.reshape(6, 2)
        if method == "varimax":
            return np.array([turn[0, 1] - turn[1, 0], theta[12]])
        turn = turn @ np.linalg.inv(phi)
        return np.array([turn[0, 1], turn[1, 0]])

    def derivatives(function, h=1e-4):
        steps = h * np.eye(len(start))
        return np.array(
            [(function(start + s) - function(start - s)) / 2 / h for s in steps]
        )

    H = derivatives(lambda theta: approx_fprime(theta, loss, 1e-6))
    B = derivatives(conditions)
    bordered = np.block([[(H + H.T) / 2, B], [B.T, np.zeros((2, 2))]])
    deviation = np.sqrt(np.linalg.inv(bordered).diagonal()[:13])
    assert_allclose(found.loadings_error, deviation[:12].reshape(6, 2), rtol=0.02)
    if method == "oblimin":
        error = found.factor_correlation_error
        assert_allclose(error, [[0, deviation[12]], [deviation[12], 0]], atol=2e-3)


def test_rotation_and_kind_of_the_model_are_checked(model):
    with pytest.raises(ValueError, match=r"one of \['varimax', .* got 'equamax'"):
        model.factor_loadings(rotation="equamax")
    counts = MPTLinearVAE(1, likelihood="poisson", max_iter=0)
    counts.fit(np.eye(4))
    with pytest.raises(ValueError, match=r"'ordinal', .* got \['poisson'\]"):
        counts.factor_loadings()
