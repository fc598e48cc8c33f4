"""Scores of deep models where they are hard: far from the data, and with two modes."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from sklearn_mpt import MPTDeepVAE, MPTProbabilisticPCA, mpt_curve
from sklearn_mpt._deep.encoder import Encoder
from sklearn_mpt._deep.model import DeepModel, DeepModule
from sklearn_mpt._latent.estimator import _warn_if_unsure
from sklearn_mpt._latent.model import Units
from sklearn_mpt._likelihoods import Gaussian

NOISE = 0.01


class Knot(torch.nn.Module):
    """A decoder of two numbers, by which far values of z come near each other."""

    intercepts = (torch.zeros(2),)

    def forward(self, z):
        return torch.cat([z**2, (2 * z).sin()], -1)

    def value_and_jacobian(self, z):
        slopes = torch.cat([2 * z, 2 * (2 * z).cos()], 1)
        return self(z), slopes[:, None]


def knot():
    """A model whose encoder says nothing of z."""
    nothing = torch.zeros(4, 1, dtype=torch.float64)
    likelihood = Gaussian(torch.tensor(NOISE, dtype=torch.float64))
    module = DeepModule(Knot(), Encoder(nothing, nothing[:2].T, None), likelihood)
    units = Units(torch.zeros(2).double(), torch.ones(()).double())
    return DeepModel(module, units, "cpu", (0,))


def by_grid(X, observed):
    z = np.linspace(-12, 12, 48001)
    locations = np.column_stack([z**2, np.sin(2 * z)])
    log_prior = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) + np.log(z[1] - z[0])
    entries = -0.5 * ((X[:, None] - locations) ** 2 / NOISE + np.log(2 * np.pi * NOISE))
    return logsumexp(log_prior + (entries * observed[:, None]).sum(2), axis=1)


ROWS = np.array([[0.5, 0.9], [4.0, 0.7], [4.0, -0.7], [30.0, 0.0], [-3.0, 2.0]])


def test_scores_far_from_the_data_are_those_of_a_dense_grid():
    with torch.no_grad():
        value, error, n_effective = (t.numpy() for t in knot().lml(torch.tensor(ROWS)))
    truth = by_grid(ROWS, np.ones((5, 2)))
    noise_variance = knot().latent.likelihood.noise_variance.item()
    assert_allclose(noise_variance, NOISE, rtol=1e-6)
    assert (np.abs(value - truth) < np.maximum(5 * error, 0.05)).all()
    assert (error < 0.3).all()
    assert (n_effective > 10).all()


def test_conditionals_far_from_the_data_are_differences_of_likelihoods():
    rows, mask = np.array([[4.0, 0.7], [4.0, 60.0], [30.0, -9.0]]), np.array([0, 1])
    with torch.no_grad():
        value = knot().conditional_log_prob(
            torch.tensor(rows), torch.tensor(mask[None] > 0)
        )[:, 1]
    seen = np.tile([1.0, 0.0], (3, 1))
    expected = by_grid(rows, np.ones((3, 2))) - by_grid(rows, seen)
    assert expected[1] < -1e5
    assert_allclose(value, expected, rtol=1e-3, atol=0.1)


@pytest.fixture(scope="module")
def linear():
    """A linear decoder, at the closed form, and the model that is exact for it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 5))
    X += 0.2 * rng.normal(size=X.shape)
    pca = MPTProbabilisticPCA(2, init="pca", max_iter=0).fit(X)
    model = MPTDeepVAE(hidden_layer_sizes=(), max_iter=0, random_state=0).fit(X)
    W, v = pca.components_, pca.noise_variance_
    pull = W.T * model._scale / v
    model.decoder_coefs_, model.decoder_intercepts_ = [W], [pca.mean_]
    model.noise_variance_ = v
    centre = (pca.mean_ - model._shift) / model._scale
    model.encoder_information_ = np.concatenate([pull, -centre[:, None] * pull])
    model.encoder_precision_ = W / np.sqrt(v)
    return model, pca, X


@pytest.mark.parametrize("value", [10.0, 1e3])
def test_a_hidden_value_far_off_scores_what_the_density_says(linear, value):
    model, pca, X = linear
    row, mask = X[:1].copy(), np.arange(5) == 0
    row[0, 0] = value
    expected = pca.conditional_log_prob(row, mask)
    assert expected[0, 0] < -800
    assert_allclose(model.conditional_log_prob(row, mask), expected, rtol=1e-3)


def test_a_curve_with_an_outlier_agrees_with_the_score(linear):
    model, pca, X = linear
    X = X[:60].copy()
    X[0, 0] = 100.0
    curve = mpt_curve(model, X, n_masks=4, random_state=0)
    assert_allclose(curve.lml, pca.score(X), rtol=1e-3)
    assert_allclose(model.score(X), pca.score(X), rtol=1e-4)


def test_hard_rows_are_named_with_their_effective_points():
    std_error, n_effective = np.array([0.1, 0.9, 0.6]), np.array([1.0, 30.0, 4.0])
    message = "of 2 of 3 rows are uncertain by up to 0.9 nats, and rest on as few as 4 "
    with pytest.warns(UserWarning, match=message):
        _warn_if_unsure(std_error, n_effective)
    with pytest.warns(UserWarning, match="by up to 0.9 nats: the posterior"):
        _warn_if_unsure(std_error)
