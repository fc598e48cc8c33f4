"""Where deep models start, and that they learn curves from there."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from reference import ml_optimum
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import MPTDeepVAE
from sklearn_mpt._deep.nets import initial_layers, propagate
from sklearn_mpt._deep.recipe import recipe_for
from sklearn_mpt._deep.start import CURVED, LINEAR, StartKind, start
from sklearn_mpt._likelihoods import Bernoulli, Gaussian, Poisson


def low_rank(n=300, n_features=6):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) @ rng.normal(size=(2, n_features))
    return 5 + 2 * (X + 0.3 * rng.normal(size=X.shape))


def started(kind, X, likelihood="gaussian", **settings):
    """An estimator whose parameters are those of a start."""
    model = MPTDeepVAE(likelihood=likelihood, max_iter=0, random_state=0, **settings)
    rng = np.random.default_rng(0)
    likelihood = Gaussian() if likelihood == "gaussian" else Bernoulli()
    recipe = recipe_for(model, likelihood, *X.shape)
    attributes = start(recipe, model.n_components, likelihood, X, rng, kind)
    model.fit(X).__dict__.update(attributes)
    return model


def test_layers_are_spread_over_their_inputs():
    rng = np.random.default_rng(0)
    coefs, intercepts = initial_layers([3, 20, 7], rng)
    inputs = 100 + 5 * rng.normal(size=(400, 3))
    values = propagate(coefs, intercepts, "relu", inputs, 2.5, rng)
    entering = inputs @ coefs[0] + intercepts[0]
    assert_allclose(entering.std(0), 2.5)
    assert_allclose(np.abs(entering).min(0), 0, atol=1e-12)
    assert_allclose(values, np.maximum(entering, 0))


@pytest.mark.parametrize("hidden", [(), (32, 32)])
def test_a_linear_start_is_probabilistic_pca(hidden):
    X = low_rank()
    model = started(LINEAR, X, hidden_layer_sizes=hidden)
    # by importance sampling, and the net is linear but for its tails
    assert_allclose(model.score(X), ml_optimum(X, 2), atol=0.1 if hidden else 0.01)


def test_a_linear_start_of_binary_rows_explains_some_of_them():
    X = (low_rank(n=150) > 5).astype(float)
    model = started(LINEAR, X, "bernoulli", hidden_layer_sizes=(16,))
    shares = X.mean(0)
    independent = (X * np.log(shares) + (1 - X) * np.log(1 - shares)).sum(1).mean()
    assert model.score(X) > independent + 0.5


def test_a_linear_start_has_no_slope_for_a_constant_column():
    """Its weighted mean differs from it by a rounding error."""
    X = np.random.default_rng(0).poisson(3, size=(333, 4)).astype(float)
    X[:, 1] = 3
    weight = np.random.default_rng(1).random(333)
    recipe = recipe_for(MPTDeepVAE(1), Poisson(), *X.shape)
    rng = np.random.default_rng(0)
    slopes = start(recipe, 1, Poisson(), X, rng, LINEAR, weight)["encoder_information_"]
    assert_array_equal(slopes[:4, 0] == 0, [False, True, False, False])


def test_a_curled_start_is_further_from_linear():
    X = low_rank()
    z = np.random.default_rng(1).normal(size=(500, 2))
    linear = np.column_stack([z, np.ones(500)])

    def fraction_unexplained(kind):
        model = started(kind, X, activation="tanh")
        locations = model.inverse_transform(z)
        residual = np.linalg.lstsq(linear, locations, rcond=None)[1].sum()
        return residual / ((locations - locations.mean(0)) ** 2).sum()

    linear_fraction, smooth, curled = map(
        fraction_unexplained, (LINEAR, StartKind(1.5), CURVED)
    )
    assert linear_fraction < 0.01 < smooth < curled


@pytest.mark.parametrize(
    ("n_features", "widths"), [(255, [128, 128]), (256, [128, 128, 128])]
)
def test_layers_by_the_number_of_features(n_features, widths):
    X = np.random.default_rng(0).normal(size=(20, n_features))
    model = MPTDeepVAE(max_iter=0, warm_start=True, random_state=0).fit(X)
    for intercepts in (model.encoder_intercepts_, model.decoder_intercepts_):
        assert [len(intercept) for intercept in intercepts[:-1]] == widths
    before = model.decoder_coefs_
    model.set_params(hidden_layer_sizes=tuple(widths)).fit(X)
    for again, coefs in zip(model.decoder_coefs_, before, strict=True):
        assert_allclose(again, coefs)


def test_activation_by_the_number_of_features():
    def used(n_features, **settings):
        X = np.random.default_rng(0).normal(size=(20, n_features))
        model = MPTDeepVAE(max_iter=0, random_state=0, **settings).fit(X)
        assert model.module_.activation == model.activation_
        return model.activation_

    assert used(255) == "silu"
    assert used(256) == "relu"
    assert used(256, activation="tanh") == "tanh"


def ring(n, seed):
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * rng.random(n)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    return points + 0.1 * rng.normal(size=points.shape)


@pytest.mark.parametrize(
    "objective", ["mpt", pytest.param("iwae", marks=pytest.mark.slow)]
)
def test_a_ring_is_learned(objective):
    X, test = ring(200, 0), ring(200, 1)
    model = MPTDeepVAE(
        1, hidden_layer_sizes=(32, 32), objective=objective, max_iter=25, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
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


def test_a_fit_does_not_end_below_its_linear_part():
    X = low_rank(n=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MPTDeepVAE(hidden_layer_sizes=(16,), max_iter=12, random_state=0).fit(X)
    # which is linear in the rows that are not held out
    assert model.score(X) > ml_optimum(X, 2) - 0.15


def test_the_same_seed_gives_the_same_fit():
    X = ring(40, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MPTDeepVAE(1, hidden_layer_sizes=(8,), max_iter=4, random_state=3)
        one, two = (clone(model).fit(X) for _ in range(2))
    assert torch.equal(torch.tensor(one.loss_curve_), torch.tensor(two.loss_curve_))
    assert_allclose(one.score_samples(X[:9]), two.score_samples(X[:9]), rtol=1e-12)


def test_losses_are_in_the_units_of_the_rows():
    X, curves = low_rank(), []
    for scale in (1, 1000):
        model = MPTDeepVAE(hidden_layer_sizes=(), max_iter=2, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            curves.append(model.fit(scale * X).loss_curve_)
    assert_allclose(np.subtract(*curves[::-1]), 6 * np.log(1000), atol=0.01)
