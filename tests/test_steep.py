"""Steep slopes, where integrals over z are hard: errors are told, none is hidden."""

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp

from sklearn_mpt import MPTLinearVAE


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


@pytest.mark.parametrize("slope", [3, 10, 30])
def test_quadrature_says_exact_where_it_is(slope):
    model, X = steep_model(2, slope, 12, seed=slope)
    X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    value, error = model.score_samples(X, return_std=True)
    off = np.abs(value - on_a_dense_grid(model, X))
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
