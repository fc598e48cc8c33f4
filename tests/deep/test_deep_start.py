"""Where deep models start, and that they learn curves from there."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import ml_optimum

from sklearn_mpt import MPTDeepVAE

pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")


def low_rank(n=300, n_features=6):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) @ rng.normal(size=(2, n_features))
    return 5 + 2 * (X + 0.3 * rng.normal(size=X.shape))


def started(X, likelihood="gaussian", **settings):
    """A linear decoder as it is before training."""
    params = {"hidden_layer_sizes": (), "max_iter": 0, "random_state": 0} | settings
    return MPTDeepVAE(likelihood=likelihood, **params).fit(X)


def test_a_linear_decoder_starts_at_probabilistic_pca():
    X = low_rank()
    assert_allclose(started(X).score(X), ml_optimum(X, 2), atol=0.01)


def test_a_linear_decoder_of_binary_rows_starts_with_some_of_them_explained():
    X = (low_rank(n=150) > 5).astype(float)
    shares = X.mean(0)
    independent = (X * np.log(shares) + (1 - X) * np.log(1 - shares)).sum(1).mean()
    assert started(X, "bernoulli").score(X) > independent + 0.5


@pytest.mark.parametrize(
    ("n_features", "widths", "activation"),
    [(255, [128, 128], "silu"), (256, [128, 128, 128], "relu")],
)
def test_nets_by_the_number_of_features(n_features, widths, activation):
    X = np.random.default_rng(0).normal(size=(20, n_features))
    model = MPTDeepVAE(max_iter=0, warm_start=True, random_state=0).fit(X)
    for intercepts in (model.encoder_intercepts_, model.decoder_intercepts_):
        assert [len(intercept) for intercept in intercepts[:-1]] == widths
    assert model.module_.activation == model.activation_ == activation
    before = model.decoder_coefs_
    model.set_params(hidden_layer_sizes=tuple(widths)).fit(X)
    for again, coefs in zip(model.decoder_coefs_, before, strict=True):
        assert_allclose(again, coefs)


def ring(n, seed):
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * rng.random(n)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    return points + 0.1 * rng.normal(size=points.shape)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mpt", "iwae"])
def test_a_ring_is_learned(objective):
    X, test = ring(200, 0), ring(200, 1)
    model = MPTDeepVAE(
        1, hidden_layer_sizes=(32, 32), objective=objective, max_iter=25, random_state=0
    )
    model.fit(X)
    angles = np.linspace(0, 2 * np.pi, 500, endpoint=False)
    points = np.column_stack([np.cos(angles), np.sin(angles)])
    distance = ((test[:, None] - points) ** 2).sum(2)
    density = np.exp(-distance / 0.02).mean(1) / (0.02 * np.pi)
    truth = np.log(density).mean()
    assert model.score(test) > truth - 0.2
    assert ml_optimum(X, 1) < truth - 0.8
    row = np.tile([[0.0, np.nan]], (200, 1))
    drawn = model.impute(row, method="sample", random_state=0)[:, 1]
    assert 0.25 < np.mean(drawn > 0) < 0.75


def test_a_net_of_linear_rows_ends_near_the_linear_optimum():
    X = low_rank(n=150)
    model = MPTDeepVAE(hidden_layer_sizes=(16,), max_iter=40, random_state=0).fit(X)
    assert model.score(X) > ml_optimum(X, 2) - 0.15
