"""Models of binary columns, by sums over a dense grid of the latent variables."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import (
    bernoulli_log_prob,
    bernoulli_posterior_average,
    binary_rows,
    by_differences,
)

from sklearn_mpt import MPTLinearVAE


def model_at(X, components, intercept):
    """A model with these parameters."""
    init = {"components": components, "intercept": intercept}
    settings = {"likelihood": "bernoulli", "init": init, "max_iter": 0}
    return MPTLinearVAE(len(components), **settings).fit(X)


@pytest.fixture(params=[(1, 0.3), (1, 2.0), (1, 5.0), (2, 0.3), (2, 2.0), (2, 5.0)])
def arrays(request):
    """Parameters, of gentle and of steep slopes."""
    n_components, scale = request.param
    rng = np.random.default_rng(n_components)
    return scale * rng.normal(size=(n_components, 6)), rng.normal(size=6)


@pytest.fixture
def X(arrays):
    X = binary_rows(20, *arrays, seed=2)
    X[0, :3], X[1] = np.nan, np.nan
    return X


def test_scores_and_conditionals_are_those_of_a_dense_grid(arrays, X):
    model = model_at(X, *arrays)
    log_prob, error = model.score_samples(X, return_std=True)
    assert_allclose(log_prob, bernoulli_log_prob(X, *arrays), atol=1e-4)
    assert (error < 1e-4).all()
    mask = np.random.default_rng(2).random(X.shape) < 0.5
    expected = by_differences(X, mask, lambda rows: bernoulli_log_prob(rows, *arrays))
    assert_allclose(model.conditional_log_prob(X, mask), expected, atol=1e-4)


def test_posteriors_are_those_of_a_dense_grid(arrays, X):
    mean, covariance = model_at(X, *arrays).posterior(X)
    expected = bernoulli_posterior_average(lambda z: z, X, *arrays)
    assert_allclose(mean, expected, atol=1e-3)
    square = bernoulli_posterior_average(lambda z: z**2, X, *arrays)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    assert_allclose(variance, square - expected**2, atol=1e-3)


def test_slopes_have_a_normal_prior():
    rng = np.random.default_rng(0)
    X = binary_rows(100, rng.normal(size=(1, 5)), rng.normal(size=5), seed=1)
    model = MPTLinearVAE(1, likelihood="bernoulli", slope_prior=0.5, objective="lml")
    slopes = model.set_params(tol=1e-9).fit(X).components_[0]

    def objective(slopes):
        log_prob = bernoulli_log_prob(X, slopes[None], model.intercept_)
        return log_prob.sum() - (slopes**2).sum() / (2 * 0.5**2)

    steps = 1e-4 * np.eye(5)
    gradient = [(objective(slopes + s) - objective(slopes - s)) / 2e-4 for s in steps]
    assert_allclose(gradient, 0, atol=0.02)
