"""Steep slopes, where integrals over z are hard: errors are told, none is hidden."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm, poisson
from sklearn.decomposition import FactorAnalysis

from sklearn_mpt import MPTLinearVAE, lml_samples


def steep_model(n_components, slope, n_features, seed):
    """A model of known parameters, rows drawn from it, and some that are unlike it."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(n_components, n_features))
    W *= slope * rng.uniform(0.3, 1, n_features) / np.linalg.norm(W, axis=0)
    b = rng.normal(size=n_features) * min(1, slope / 3)
    X = rng.normal(size=(60, n_components)) @ W + b
    X = (rng.random(X.shape) < expit(X)).astype(float)
    X[::3] = rng.random(X[::3].shape) < 0.5
    model = MPTLinearVAE(
        n_components=n_components,
        likelihood="bernoulli",
        max_iter=0,
        init={"components": W, "intercept": b},
        random_state=seed,
    )
    return model.fit(X), X


def on_a_dense_grid(model, X, n_nodes=1201, radius=8.0):
    """log p(x) of rows for two components, line by line of an even grid."""
    axis, W, b = np.linspace(-radius, radius, n_nodes), model.components_, 0.0
    log_cell = 2 * np.log(axis[1] - axis[0]) - np.log(2 * np.pi)
    total = np.full(len(X), -np.inf)
    present, ones = ~np.isnan(X), np.nan_to_num(X)
    for first in axis:
        z = np.column_stack([np.full(n_nodes, first), axis])
        b = z @ W + model.intercept_
        log_prob = ones @ log_expit(b).T + (present - ones) @ log_expit(-b).T
        log_prob += log_cell - 0.5 * (z**2).sum(1)
        total = np.logaddexp(total, logsumexp(log_prob, axis=1))
    return total


@pytest.mark.parametrize("slope", [3, 30])
def test_quadrature_says_exact_where_it_is(slope):
    model, X = steep_model(2, slope, 12, seed=slope)
    X = X[:6]
    X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    value, error = model.score_samples(X, return_std=True)
    n_nodes = 301 if slope == 3 else 1201
    off = np.abs(value - on_a_dense_grid(model, X, n_nodes))
    assert (off[error == 0] < 5e-4).all()
    assert (off < 5 * error + 5e-4).all()
    assert (error == 0).mean() > 0.5


@pytest.mark.parametrize("slope", [30, 100])
def test_errors_of_very_steep_slopes_are_told(slope):
    """Against a line so fine that the steepest location moves by a tenth."""
    model, X = steep_model(1, slope, 12, seed=slope)
    value, error = model.score_samples(X, return_std=True)
    z = np.linspace(-9, 9, 18 * 10 * slope + 1)[:, None]
    location = z @ model.components_ + model.intercept_
    log_prob = X @ log_expit(location).T + (1 - X) @ log_expit(-location).T
    log_prob += np.log(z[1] - z[0]) - 0.5 * (z[:, 0] ** 2 + np.log(2 * np.pi))
    off = np.abs(value - logsumexp(log_prob, axis=1))
    assert (off < 5 * error + 5e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("n_components", [5, 10])
@pytest.mark.parametrize("slope", [3, 10])
def test_intervals_of_steep_models_cover(n_components, slope):
    """Against the mean of all others, of which each has the same expectation."""
    models = [steep_model(n_components, slope, 20, seed=1)[0] for _ in range(40)]
    X = steep_model(n_components, slope, 20, seed=1)[1][:20]
    scored = []
    for seed, model in enumerate(models):
        model.set_params(random_state=seed).fit(np.ones((2, 20)))
        scored.append(model.score_samples(X, return_std=True))
    value, error = np.stack(scored, 1)
    truth = logsumexp(value, axis=0) - np.log(len(value))
    covered = np.abs(value - truth) <= 1.96 * error
    assert 0.90 <= covered.mean() <= 0.99
    assert not ((np.abs(value - truth) > 0.5) & (error < 0.1)).any()


COUNTS = {
    "components": np.array([[0.3, 1.0, 1.0, 0.5]]),
    "intercept": np.array([0.0, 1.0, 1.0, 2.0]),
}


def grid_of(lowest, highest, n_nodes=100_001):
    axis = np.linspace(lowest, highest, n_nodes)
    return axis, norm.logpdf(axis) + np.log(axis[1] - axis[0])


def counts_on_a_grid(row):
    """log p(present entries) of one row under COUNTS."""
    z, total = grid_of(-15.0, 15.0)
    for j in np.flatnonzero(~np.isnan(row)):
        rate = np.exp(COUNTS["components"][0, j] * z + COUNTS["intercept"][j])
        total = total + poisson.logpmf(row[j], rate)
    return logsumexp(total)


@pytest.mark.parametrize("count", [3, 100, 5000])
def test_counts_that_no_other_entry_expects_have_their_probability(count):
    model = MPTLinearVAE(1, likelihood="poisson", max_iter=0, init=COUNTS)
    row = np.array([[0.0, count, 0.0, 2.0]])
    model.fit(np.vstack([row, np.arange(12).reshape(3, 4)]))
    for seen in ([], [0], [0, 2, 3]):
        mask = ~np.isin(np.arange(4), seen)
        hidden = np.where(mask, np.nan, row[0])
        with_it = np.where(np.arange(4) == 1, count, hidden)
        expected = counts_on_a_grid(with_it) - counts_on_a_grid(hidden)
        log_prob = model.conditional_log_prob(row, mask)[0, 1]
        assert_allclose(log_prob, expected, atol=2e-4)
    by_orders = lml_samples(model, row, n_orders=2, random_state=0)
    assert_allclose(by_orders, counts_on_a_grid(row[0]), atol=1e-3)
    assert_allclose(model.score_samples(row), counts_on_a_grid(row[0]), atol=2e-4)


@pytest.mark.parametrize("far", [3.0, 20.0, 1000.0])
def test_a_number_far_out_beside_a_binary_column_has_its_density(far):
    components, noise = np.array([[1.0, 1.0, 2.0]]), np.array([0.1, 0.3, 1.0])
    init = {"components": components, "intercept": np.zeros(3), "noise_variance": noise}
    kinds = ["gaussian", "gaussian", "bernoulli"]
    model = MPTLinearVAE(1, likelihood=kinds, max_iter=0, init=init)
    row = np.array([[0.0, far, 1.0]])
    model.fit(np.vstack([-np.eye(3) * [1, 1, 0], np.ones(3)]))
    z, total = grid_of(-far - 10, far + 10)
    total = total + norm.logpdf(0, z, np.sqrt(0.1)) + norm.logpdf(far, z, np.sqrt(0.3))
    expected = logsumexp(total + log_expit(2 * z))
    assert_allclose(model.score_samples(row), expected, rtol=1e-7, atol=2e-4)
    alone = model.conditional_log_prob(row, np.ones(3, bool))[0, 1]
    assert_allclose(alone, norm.logpdf(far, 0, np.sqrt(1.3)), rtol=1e-7, atol=2e-4)


def test_a_column_of_no_use_does_not_blur_the_numbers_beside_it():
    """The best model is factor analysis, and the share of ones."""
    rng = np.random.default_rng(0)
    z, errors = rng.normal(size=(100, 1)), rng.normal(size=(100, 3))
    numbers = z * [1.0, 2.0, 3.0] + 0.03 * errors
    coin = np.arange(100) % 2
    kinds = ["gaussian"] * 3 + ["bernoulli"]
    X = np.column_stack([numbers, coin])
    model = MPTLinearVAE(1, likelihood=kinds, random_state=0).fit(X)
    apart = FactorAnalysis(1, tol=1e-8, max_iter=10_000).fit(numbers)
    # a slope of the coin that fits by chance is worth chi2_1 / 2 nats of 100 rows
    excess = model.score(X) - (apart.score(numbers) - np.log(2))
    assert -1e-3 < excess < 8 / 100


def test_large_counts_are_fitted_as_by_their_likelihood():
    rate, rng = 1000, np.random.default_rng(0)
    X = rng.poisson(rate * np.exp(0.5 * rng.normal(size=(150, 1)) * np.ones(5)))
    model = MPTLinearVAE(1, likelihood="poisson", random_state=0).fit(X)
    assert_allclose(np.abs(model.components_), 0.5, atol=0.1)
    assert_allclose(model.intercept_, np.log(rate), atol=0.1)
    truth = MPTLinearVAE(
        1,
        likelihood="poisson",
        max_iter=0,
        init={
            "components": np.full((1, 5), 0.5),
            "intercept": np.full(5, np.log(rate)),
        },
    ).fit(X)
    assert truth.score(X) < model.score(X) < truth.score(X) + 20 / 150
