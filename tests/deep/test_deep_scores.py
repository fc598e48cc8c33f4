"""Scores of deep models where they are hard: far from the data, and with two modes."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import expit, logsumexp
from scipy.stats import norm

from sklearn_mpt import MPTDeepVAE, MPTProbabilisticPCA

NOISE = 0.01


class Knot(torch.nn.Module):
    """A decoder of two numbers, by which far values of z come near each other."""

    def __init__(self):
        super().__init__()
        self.speed = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, z):
        return torch.cat([z**2, (self.speed * z).sin()], -1)


def without_encoder(n_dims, n_features, noise_variance=None, seed=0, **settings):
    """A model whose encoder says nothing of z, in units of 1; of bits without noise."""
    if noise_variance is None:
        settings["likelihood"], low = "bernoulli", 0.0
    else:
        low = -1.0
    model = MPTDeepVAE(
        n_dims, hidden_layer_sizes=(), max_iter=0, random_state=seed, **settings
    ).fit(np.repeat([[low], [1.0]], n_features, axis=1))
    if noise_variance is not None:
        model.noise_variance_ = noise_variance
    model.encoder_information_ = np.zeros((2 * n_features, n_dims))
    model.encoder_precision_ = np.zeros((n_dims, n_features))
    return model


def knot():
    return without_encoder(1, 2, NOISE, decoder=Knot())


def by_grid(X, observed):
    z = np.linspace(-12, 12, 48001)
    locations = np.column_stack([z**2, np.sin(2 * z)])
    log_prior = -0.5 * z**2 - 0.5 * np.log(2 * np.pi) + np.log(z[1] - z[0])
    entries = -0.5 * ((X[:, None] - locations) ** 2 / NOISE + np.log(2 * np.pi * NOISE))
    return logsumexp(log_prior + (entries * observed[:, None]).sum(2), axis=1)


ROWS = np.array([[0.5, 0.9], [4.0, 0.7], [4.0, -0.7], [30.0, 0.0], [-3.0, 2.0]])


def test_scores_far_from_the_data_are_those_of_a_dense_grid():
    value, error = knot().score_samples(ROWS, return_std=True)
    truth = by_grid(ROWS, np.ones((5, 2)))
    assert (np.abs(value - truth) < np.maximum(5 * error, 0.05)).all()
    assert (error < 0.3).all()  # without a warning of few effective points


def test_conditionals_far_from_the_data_are_differences_of_likelihoods():
    rows = np.array([[4.0, 0.7], [4.0, 60.0], [30.0, -9.0]])
    value = knot().conditional_log_prob(rows, np.array([False, True]))[:, 1]
    seen = np.tile([1.0, 0.0], (3, 1))
    expected = by_grid(rows, np.ones((3, 2))) - by_grid(rows, seen)
    assert expected[1] < -1e5
    assert_allclose(value, expected, rtol=1e-3, atol=0.1)


class Wave(torch.nn.Module):
    """A decoder that has a way to go in the tails of z, with modes on it."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, z):
        return torch.cat([self.slope * z + z.sin(), z.cos()], -1)


@pytest.mark.parametrize("x", [1.0, 4.0, -9.0, 15.0, -20.0])
def test_modes_far_in_the_tails_are_found(x):
    model, row = without_encoder(1, 2, NOISE, decoder=Wave()), np.array([[x, 0.5]])
    value, error = model.score_samples(row, return_std=True)
    z = np.linspace(-100, 100, 400001)
    locations = np.column_stack([0.3 * z + np.sin(z), np.cos(z)])
    entries = norm.logpdf(row, locations, NOISE**0.5).sum(1)
    truth = logsumexp(entries + norm.logpdf(z)) + np.log(z[1] - z[0])
    assert abs(value - truth) < max(5 * error, 0.1)
    assert error < 0.3


def at_the_closed_form():
    """A linear decoder, the model that is exact for it, and rows."""
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


@pytest.fixture(scope="module")
def linear():
    return at_the_closed_form()


@pytest.mark.parametrize("value", [10.0, 1e3])
def test_a_hidden_value_far_off_scores_what_the_density_says(linear, value):
    model, pca, X = linear
    row, mask = X[:1].copy(), np.arange(5) == 0
    row[0, 0] = value
    expected = pca.conditional_log_prob(row, mask)
    assert expected[0, 0] < -800
    assert_allclose(model.conditional_log_prob(row, mask), expected, rtol=1e-3)


def bent(noise_variance, n_features, steepness, seed, activation="tanh"):
    """A net of two latent variables, with locations of that standard deviation.

    Returns the model, and a function of z that returns locations.
    """
    rng = np.random.default_rng(seed)
    model = without_encoder(2, n_features, noise_variance, seed, activation=activation)
    points = rng.normal(size=(512, 2))
    first = rng.uniform(-1, 1, (2, 32))
    first *= 2 / (points @ first).std(0)
    chosen = points[rng.integers(512, size=32)]
    intercept = -(chosen * first.T).sum(1)  # each unit bends at one of the points
    activate = {
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x * expit(x),
    }[activation]
    last = rng.uniform(-1, 1, (32, n_features))
    last *= steepness / (activate(points @ first + intercept) @ last).std()
    last_intercept = rng.uniform(-0.2, 0.2, n_features)
    model.decoder_coefs_ = [first, last]
    model.decoder_intercepts_ = [intercept, last_intercept]
    return model, lambda z: activate(z @ first + intercept) @ last + last_intercept


def by_wide_grid(locations_of, noise_variance, X):
    """Log-densities, and whether the grid holds them: no mass is at its border."""
    axis = np.linspace(-12, 12, 801)
    parts, at_border = [], []
    for x in axis:
        z = np.column_stack([np.full(801, x), axis])
        locations = locations_of(z)
        if noise_variance is None:
            entries = X @ locations.T - np.logaddexp(0, locations).sum(1)
        else:
            squares = ((X[:, None] - locations) ** 2).sum(2) / noise_variance
            constant = X.shape[1] * np.log(2 * np.pi * noise_variance)
            entries = -0.5 * (squares + constant)
        joint = entries - 0.5 * (z**2).sum(1) - np.log(2 * np.pi)
        parts.append(logsumexp(joint, axis=1))
        inside = np.abs(z).max(1) < 11
        at_border.append(np.where(inside, -np.inf, joint).max(1))
    total = logsumexp(parts, axis=0)
    holds = np.max(at_border, axis=0) < total - 20
    return total + 2 * np.log(axis[1] - axis[0]), holds


KINDS = {
    # a kink between sharp numbers is narrower than the grid
    "numbers": (0.05, 8, 1.0, "relu"),
    "sharp numbers": (0.005, 4, 1.0, "tanh"),
    "bits": (None, 20, 4.0, "relu"),
    "steep bits": (None, 20, 10.0, "tanh"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Log-densities of")
@pytest.mark.parametrize("on_the_data", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_scores_cover_on_and_off_the_data(kind, on_the_data):
    """Rows of a model are alike, so that coverage varies more than of 240 rows.

    Off the data a row in a hundred may have a mode that no start leads to.
    """
    noise_variance, n_features, steepness, activation = KINDS[kind]
    covered, wrong = [], 0
    for seed in range(6):
        model, locations_of = bent(
            noise_variance, n_features, steepness, seed, activation
        )
        X = np.random.default_rng(seed).random((40, n_features))
        if on_the_data:
            X = model.sample(40, random_state=seed)
        else:
            X = (X < 0.5).astype(float) if noise_variance is None else 6 * X - 3
        value, error = model.score_samples(X, return_std=True)
        truth, holds = by_wide_grid(locations_of, noise_variance, X)
        off = np.abs(value - truth)[holds]
        covered += (off <= 1.96 * error[holds] + 1e-3).tolist()
        wrong += ((off > 1) & (error[holds] < 0.1)).sum()
    assert len(covered) > 100
    assert np.mean(covered) > 0.87
    assert wrong <= (0 if on_the_data else 0.01 * len(covered))


def test_many_dimensions_agree_with_the_exact_model():
    """Five latent variables of a linear decoder, and an encoder that knows nothing."""
    rng = np.random.default_rng(0)
    start = {
        "components": rng.normal(size=(5, 8)),
        "mean": np.zeros(8),
        "noise_variance": 0.3,
    }
    X = rng.normal(size=(30, 5)) @ start["components"]
    X += np.sqrt(0.3) * rng.normal(size=X.shape)
    exact = MPTProbabilisticPCA(5, init=start, max_iter=0).fit(X)
    model, mask = without_encoder(5, 8, 0.3), np.arange(8) < 3
    model.decoder_coefs_ = [start["components"]]
    model.decoder_intercepts_ = [np.zeros(8)]
    value, error = model.score_samples(X, return_std=True)
    off = value - exact.score_samples(X)
    assert (np.abs(off) < np.maximum(5 * error, 0.05)).all()
    assert error.max() < 0.1
    log_prob = model.conditional_log_prob(X, mask)
    assert_allclose(log_prob, exact.conditional_log_prob(X, mask), atol=0.1)
    assert_allclose(model.transform(X), exact.transform(X), atol=0.1)
