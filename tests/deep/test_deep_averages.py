"""Imputations and posterior means of deep models against grids, and their warnings."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_mpt import MPTDeepVAE
from sklearn_mpt._latent import density as densities

N_FEATURES = 5


class Waves(torch.nn.Module):
    """Locations with several modes of the posterior, and a trend in the tails."""

    def __init__(self, n_dims, n_locations, slope=0.9):
        super().__init__()
        rng = np.random.default_rng(n_dims)
        frequency = rng.normal(size=(n_dims, n_locations))
        self.frequency = torch.nn.Parameter(torch.tensor(2 * frequency))
        self.slope = torch.nn.Parameter(torch.full((n_locations,), slope))

    def forward(self, z):
        return torch.sin(z @ self.frequency) + self.slope * z[:, :1]


def fitted(kind, n_dims, slope=0.9):
    rng = np.random.default_rng(0)
    draw = {
        "poisson": lambda: rng.poisson(3.0, (40, N_FEATURES)),
        "bernoulli": lambda: rng.integers(0, 2, (40, N_FEATURES)),
        "gaussian": lambda: rng.normal(size=(40, N_FEATURES)),
        "lognormal": lambda: rng.lognormal(size=(40, N_FEATURES)),
    }[kind]
    X = draw().astype(float)
    model = MPTDeepVAE(
        n_dims,
        likelihood=kind,
        decoder=lambda n, m: Waves(n, m, slope),
        max_iter=0,
        random_state=0,
    ).fit(X)
    gaps = rng.random(X.shape) < 0.5
    gaps[:, 0] = False
    return model, np.where(gaps, np.nan, X)[:12]


def on_a_grid(model, X, n_dims):
    """Scores, expected rows and posterior means, by sums over a fine grid of z."""
    density, (limit, n) = model._density(), {1: (9, 4001), 2: (7, 281)}[n_dims]
    axis = torch.linspace(-limit, limit, n, dtype=torch.float64)
    z = torch.cartesian_prod(*[axis] * n_dims).reshape(-1, n_dims)
    log_prior = -0.5 * (z**2).sum(1) - 0.5 * n_dims * np.log(2 * np.pi)
    rows, likelihood = density._rows(torch.from_numpy(X)), density.joint.likelihood
    with torch.no_grad():
        location = density.joint.location(z)
        observed = rows.observed.double()
        joint = likelihood.pair_log_prob(rows.X * observed, observed, location)
        joint = joint + log_prior + n_dims * np.log(2 * limit / (n - 1))
        weight = joint.softmax(1)
        mean = density._fill(weight @ likelihood.mean(location))
        scale = (rows.observed * density.units.log_scale).sum(1)
    score = torch.logsumexp(joint, 1) - scale
    return score.numpy(), mean.numpy(), (weight @ z).numpy()


@pytest.mark.parametrize(
    ("kind", "n_dims"),
    [
        ("poisson", 1),
        ("poisson", 2),
        ("bernoulli", 2),
        ("gaussian", 1),
        ("lognormal", 1),
    ],
)
def test_averages_are_those_of_a_grid(kind, n_dims):
    model, X = fitted(kind, n_dims)
    score, mean, z = on_a_grid(model, X, n_dims)
    found, error = model.score_samples(X, return_std=True)
    assert (np.abs(found - score) < 5 * error + 1e-3).all()
    filled = model.impute(X)
    gaps = np.isnan(X)
    assert_allclose(filled[gaps], mean[gaps], rtol=0.06, atol=0.05)
    assert_allclose(model.transform(X), z, atol=0.06)


def test_expected_counts_have_their_mass_in_the_tails():
    """A mean of exp(3 z) comes from z around 3, where hardly any posterior mass is."""
    model, X = fitted("poisson", 1, slope=3.0)
    X = np.where(np.arange(N_FEATURES) == 0, X[:, :1], np.nan)
    _, mean, _ = on_a_grid(model, X, 1)
    assert_allclose(model.impute(X), np.where(np.isnan(X), mean, X), rtol=0.1)


def test_averages_that_are_uncertain_are_said(monkeypatch):
    model, X = fitted("poisson", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.impute(X)
    monkeypatch.setattr(densities, "MAX_AVERAGE_ERROR", 1e-4)
    with pytest.warns(UserWarning, match="Expected values of .* rows are uncertain by"):
        model.impute(X)
    with pytest.warns(UserWarning, match="Means of latent variables of 12 of 12 rows"):
        model.transform(X)
    model.impute(np.nan_to_num(X))  # nothing is filled in
    monkeypatch.setattr(densities, "MIN_CANDIDATES", 1e4)
    with pytest.warns(UserWarning, match="Draws for 12 of 12 rows rest on as few as"):
        model.impute(X, method="sample")
