"""Scores of deep models where they are hard: far from the data, and with two modes."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from sklearn_mpt import MPTDeepVAE, MPTProbabilisticPCA, mpt_curve
from sklearn_mpt._base.density import Units
from sklearn_mpt._base.fitted_density import _warn_if_uncertain
from sklearn_mpt._deep.density import DeepDensity, DeepModule
from sklearn_mpt._deep.nets import Encoder, Layers, initial_layers, propagate
from sklearn_mpt._integration.integrals import log_joint, rows_of
from sklearn_mpt._integration.quadrature import Nodes, standard_normal_log_prob
from sklearn_mpt._likelihoods import Bernoulli, Gaussian

NOISE = 0.01


class Knot(torch.nn.Module):
    """A decoder of two numbers, by which far values of z come near each other."""

    intercepts = (torch.zeros(2),)
    width = 2

    def forward(self, z):
        return torch.cat([z**2, (2 * z).sin()], -1)

    def value_and_jacobian(self, z):
        slopes = torch.cat([2 * z, 2 * (2 * z).cos()], 1)
        return self(z), slopes[:, None]


def knot():
    """A model whose encoder says nothing of z."""
    likelihood = Gaussian(torch.tensor(NOISE, dtype=torch.float64))
    return without_encoder(Knot(), likelihood, (2, 1), 0)


def without_encoder(decoder, likelihood, shape, seed):
    n_features, n_dims = shape
    nothing = torch.zeros(2 * n_features, n_dims, dtype=torch.float64)
    encoder = Encoder(nothing, nothing[:n_features].T, None)
    units = Units(torch.zeros(n_features).double(), torch.ones(()).double())
    module = DeepModule(decoder, encoder, likelihood)
    return DeepDensity(module, units, "cpu", (seed,))


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
    noise_variance = knot().joint.likelihood.scatter.item()
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


class Wave(Knot):
    """A decoder that has a way to go in the tails of z, with modes on it."""

    def forward(self, z):
        return torch.cat([0.3 * z + z.sin(), z.cos()], -1)

    def value_and_jacobian(self, z):
        slopes = torch.cat([0.3 + z.cos(), -z.sin()], 1)
        return self(z), slopes[:, None]


@pytest.mark.parametrize("x", [1.0, 4.0, -9.0, 15.0, -20.0])
def test_modes_far_in_the_tails_are_found(x):
    likelihood = Gaussian(torch.tensor(NOISE, dtype=torch.float64))
    model, row = without_encoder(Wave(), likelihood, (2, 1), 0), [x, 0.5]
    with torch.no_grad():
        value, error, _ = model.lml(torch.tensor([row], dtype=torch.float64))
        z = torch.linspace(-100, 100, 400001, dtype=torch.float64)[:, None]
        entries = model.joint.entry_log_prob(torch.tensor([row]), z[None])[0].sum(1)
    joint = entries + standard_normal_log_prob(z) + (z[1] - z[0]).log()
    assert abs(value - torch.logsumexp(joint, 0)) < max(5 * error.item(), 0.1)
    assert error < 0.3


def at_the_closed_form(**settings):
    """A linear decoder, the model that is exact for it, and rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 5))
    X += 0.2 * rng.normal(size=X.shape)
    pca = MPTProbabilisticPCA(2, init="pca", max_iter=0).fit(X)
    model = MPTDeepVAE(
        hidden_layer_sizes=(), max_iter=0, random_state=0, **settings
    ).fit(X)
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


@pytest.fixture(scope="module")
def chain():
    return at_the_closed_form(conditional="encode_decode")


def test_chains_of_well_determined_rows_are_the_conditionals(chain):
    model, pca, X = chain
    mask = np.arange(5) == 0
    log_prob = model.conditional_log_prob(X[:4], mask)
    assert_allclose(log_prob, pca.conditional_log_prob(X[:4], mask), atol=0.3)


def test_densities_of_chains_integrate_to_one(chain):
    model, _, X = chain
    values, rows = np.linspace(-8, 8, 401) * X[:, 0].std(), np.tile(X[0], (401, 1))
    rows[:, 0] = values
    log_prob = model.conditional_log_prob(rows, np.arange(5) == 0)[:, 0]
    assert_allclose(np.trapezoid(np.exp(log_prob), values), 1, atol=1e-3)


@pytest.mark.parametrize("value", [10.0, 1e3])
def test_a_hidden_value_far_off_scores_what_the_density_says(linear, value):
    model, pca, X = linear
    row, mask = X[:1].copy(), np.arange(5) == 0
    row[0, 0] = value
    expected = pca.conditional_log_prob(row, mask)
    assert expected[0, 0] < -800
    assert_allclose(model.conditional_log_prob(row, mask), expected, rtol=1e-3)


@pytest.mark.slow
def test_a_curve_with_an_outlier_agrees_with_the_score(linear):
    model, pca, X = linear
    X = X.copy()
    X[0, 0] = 50 * X[:, 0].std()
    curve = mpt_curve(model, X, n_masks=4, random_state=0)
    assert_allclose(curve.lml, pca.score(X), rtol=1e-3)
    assert_allclose(model.score(X), pca.score(X), rtol=1e-4)


def test_hard_rows_are_named_with_their_effective_points():
    std_error, n_effective = np.array([0.1, 0.9, 0.6]), np.array([1.0, 30.0, 4.0])
    message = "of 2 of 3 rows are uncertain by up to 0.9 nats, and rest on as few as 4 "
    with pytest.warns(UserWarning, match=message):
        _warn_if_uncertain(std_error, n_effective)
    with pytest.warns(UserWarning, match="by up to 0.9 nats: the posterior"):
        _warn_if_uncertain(std_error)


def bent(likelihood, n_features, steepness, seed, activation="tanh"):
    """A net of two latent variables, with locations of that standard deviation."""
    rng = np.random.default_rng(seed)
    coefs, intercepts = initial_layers([2, 32, n_features], rng)
    points = rng.normal(size=(512, 2))
    last = propagate(coefs, intercepts, activation, points, 2.0, rng)
    coefs[1] *= steepness / (last @ coefs[1]).std()
    arrays = ([torch.tensor(a) for a in layers] for layers in (coefs, intercepts))
    net = Layers(*arrays, activation)
    return without_encoder(net, likelihood, (n_features, 2), seed)


def by_wide_grid(model, X):
    """Log-densities, and whether the grid holds them: no mass is at its border."""
    axis = torch.linspace(-12, 12, 801, dtype=torch.float64)
    rows, parts, at_border = rows_of(X), [], []
    for z in torch.cartesian_prod(axis, axis).split(50000):
        joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), model.joint)
        parts.append(torch.logsumexp(joint, 1))
        inside = z.abs().amax(1) < 11
        at_border.append(torch.where(inside, -torch.inf, joint).amax(1))
    total = torch.logsumexp(torch.stack(parts), 0)
    holds = torch.stack(at_border).amax(0) < total - 20
    return total + 2 * (axis[1] - axis[0]).log(), holds


KINDS = {
    # a kink between sharp numbers is narrower than the grid
    "numbers": (Gaussian(torch.tensor(0.05).double()), 8, 1.0, "relu"),
    "sharp numbers": (Gaussian(torch.tensor(0.005).double()), 4, 1.0, "tanh"),
    "bits": (Bernoulli(), 20, 4.0, "relu"),
    "steep bits": (Bernoulli(), 20, 10.0, "tanh"),
}


@pytest.mark.slow
@pytest.mark.parametrize("on_the_data", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_scores_cover_on_and_off_the_data(kind, on_the_data):
    """Rows of a model are alike, so that coverage varies more than of 240 rows.

    Off the data a row in a hundred may have a mode that no start leads to.
    """
    likelihood, n_features, steepness, activation = KINDS[kind]
    covered, wrong = [], 0
    for seed in range(6):
        model = bent(likelihood, n_features, steepness, seed, activation)
        rng = np.random.default_rng(seed)
        z = torch.tensor(rng.normal(size=(40, 2)))
        X = torch.tensor(rng.random((40, n_features)))
        with torch.no_grad():
            if on_the_data:
                X = likelihood.draw(model.joint.location(z), X)
            else:
                X = (X < 0.5).double() if likelihood.bounds == (0, 1) else 6 * X - 3
            value, error, _ = model.lml(X)
            truth, holds = by_wide_grid(model, X)
        off = (value - truth).abs()[holds]
        covered += (off <= 1.96 * error[holds] + 1e-3).tolist()
        wrong += ((off > 1) & (error[holds] < 0.1)).sum()
    assert len(covered) > 100
    assert np.mean(covered) > 0.87
    assert wrong <= (0 if on_the_data else 0.01 * len(covered))


def test_scores_of_rows_off_the_data_have_all_modes():
    n_rows = 0
    for seed in range(3):
        model = bent(Gaussian(torch.tensor(0.01).double()), 2, 1.0, seed, "silu")
        X = torch.tensor(2 * np.random.default_rng(seed).normal(size=(20, 2)))
        with torch.no_grad():
            value, error, _ = model.lml(X)
            truth, holds = by_wide_grid(model, X)
        assert ((value - truth).abs() < (5 * error).clamp(min=0.1))[holds].all()
        n_rows += holds.sum()
    assert n_rows > 50


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
    net = Layers([torch.tensor(start["components"])], [torch.zeros(8).double()], "silu")
    model = without_encoder(net, Gaussian(torch.tensor(0.3).double()), (8, 5), 0)
    rows, mask = torch.tensor(X), torch.arange(8) < 3
    with torch.no_grad():
        value, error, _ = model.lml(rows)
        log_prob = model.conditional_log_prob(rows, mask[None])
        z = model.latent_mean(rows)
    off = value.numpy() - exact.score_samples(X)
    assert (np.abs(off) < 5 * error.numpy() + 1e-6).all()
    assert error.max() < 0.1
    assert_allclose(log_prob, exact.conditional_log_prob(X, mask.numpy()), atol=0.1)
    assert_allclose(z, exact.transform(X), atol=0.1)
