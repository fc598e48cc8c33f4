"""What weights of rows do to deep models: starts, losses, held-out rows, and fits."""

import copy
import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import log_density, low_rank_rows, ml_optimum
from sklearn.base import clone
from test_deep_start import ring
from test_deep_vae import mean_and_covariance

from sklearn_mpt import MPTDeepVAE

pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")

WEIGHT = np.random.default_rng(2).integers(0, 4, 60)
KINDS = {
    "gaussian": "gaussian",
    "bernoulli": "bernoulli",
    "table": ["poisson", "categorical", "gaussian", "gaussian"],
}


def rows(kind="gaussian"):
    """Sixty rows with gaps, with values of the kind."""
    X = low_rank_rows(60, 4, 1, 0.3, seed=0)
    if kind == "bernoulli":
        X = (X > 0.2).astype(float)
    if kind == "table":
        X[:, 0], X[:, 1] = np.exp(X[:, 0]).round(), X[:, 1].round().clip(-1, 1) + 1
    return np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


def quick(**settings):
    defaults = {"hidden_layer_sizes": (8,), "max_iter": 10, "random_state": 0}
    return MPTDeepVAE(1, **{**defaults, **settings})


@functools.cache
def trained():
    return quick(max_iter=2).fit(rows())


@pytest.mark.parametrize("kind", KINDS)
def test_starts_are_those_of_repeated_rows(kind):
    X, model = rows(kind), quick(hidden_layer_sizes=(), max_iter=0)
    model.set_params(likelihood=KINDS[kind])
    by_weight = clone(model).fit(X, sample_weight=WEIGHT)
    repeated = clone(model).fit(np.repeat(X, WEIGHT, 0))
    scores = (m.score_samples(X) for m in (by_weight, repeated))
    assert_allclose(*scores, atol=0.02)  # their noise is another one


OBJECTIVES = [
    {},
    {"n_masks": 8},
    {"mask_rate": 2},
    {"conditional": "encode_decode"},
    {"objective": "elbo"},
    {"objective": "iwae"},
]


@pytest.mark.parametrize("changes", OBJECTIVES)
def test_losses_are_weighted_means(changes):
    """So their sums over rows are linear in the weights, with the same samples."""
    model = quick(max_iter=0, early_stopping=False, **changes).fit(rows())
    model.set_params(warm_start=True, max_iter=1, learning_rate=1e-9)

    def total_loss(weight):
        (loss,) = copy.deepcopy(model).fit(rows(), sample_weight=weight).loss_curve_
        return loss * weight.sum()

    one, two = 1.0 + WEIGHT, 5.0 - WEIGHT
    expected = total_loss(one) + total_loss(two)
    assert total_loss(one + two) == pytest.approx(expected, rel=1e-5)
    assert total_loss(one) != pytest.approx(expected * one.sum() / 360, rel=1e-3)


@pytest.mark.parametrize("changes", [OBJECTIVES[i] for i in (0, 3, 4)])
def test_fits_end_on_held_out_rows_with_the_noise_that_these_set(changes):
    """Those that go on later do not."""
    X = low_rank_rows(20, 5, 2, 0.3, seed=0)
    settings = {"n_iter_no_change": 3, "tol": 10, "max_iter": 9} | changes
    model, goes_on = quick(**settings).fit(X), quick(**settings, warm_start=True).fit(X)
    assert (model.n_iter_, goes_on.n_iter_) == (6, 5)
    assert model.loss_curve_[:5] == goes_on.loss_curve_
    assert model.noise_variance_ == goes_on.noise_variance_
    assert (model.decoder_coefs_[0] != goes_on.decoder_coefs_[0]).any()


def test_without_held_out_rows_no_epochs_are_added():
    X = low_rank_rows(20, 5, 2, 0.3, seed=0)
    settings = {"n_iter_no_change": 3, "tol": 10, "early_stopping": False}
    assert quick(**settings, max_iter=9).fit(X).n_iter_ == 6


@pytest.mark.slow
def test_noise_of_many_features_is_that_of_held_out_rows_all_along():
    def fit(**parameters):
        model = quick(validation_fraction=0.25, max_iter=20, random_state=0)
        return model.set_params(**parameters).fit(few_wide)

    few_wide = low_rank_rows(60, 300, 2, 0.3, seed=0)  # more features than rows
    tuned, trained = fit(), fit(early_stopping=False)
    assert tuned.noise_variance_ > 1.05 * trained.noise_variance_


def test_noises_of_columns_are_trained_however_many_they_are():
    X = low_rank_rows(60, 120, 1, 0.3, seed=0)
    X[:, 60:] = np.random.default_rng(1).normal(size=(60, 60))
    X[:, -1] = X[:, -1] > 0
    kinds = ["gaussian"] * 119 + ["bernoulli"]
    noise = quick(likelihood=kinds, max_iter=12).fit(X).noise_variance_
    unexplained = noise / X.var(0)
    assert unexplained[:60].mean() < 0.7 * np.nanmean(unexplained[60:])


@pytest.mark.slow
def test_a_linear_decoder_reaches_the_weighted_optimum():
    X = low_rank_rows(400, 5, 1, 0.3, seed=0)
    weight = np.array([0, 1, 5])[np.digitize(X[:, 0] + X[:, 1], [-1, 0.5])]
    model = MPTDeepVAE(
        1, hidden_layer_sizes=(), n_iter_no_change=5, random_state=0, max_iter=200
    )

    def reached(**settings):
        model.set_params(**settings)
        parameters = mean_and_covariance(clone(model).fit(X, sample_weight=weight))
        return np.average(log_density(X, *parameters), weights=weight)

    optimum = ml_optimum(np.repeat(X, weight, 0), 1)
    unweighted = mean_and_covariance(clone(model).fit(X))
    assert optimum - np.average(log_density(X, *unweighted), weights=weight) > 0.2
    assert 0 < optimum - reached() < 0.03
    assert 0 < optimum - reached(objective="iwae") < 0.03


def test_a_stream_is_weighted():
    X = low_rank_rows(200, 5, 1, 0.3, seed=0)
    weight = np.array([0, 1, 5])[np.digitize(X[:, 0] + X[:, 1], [-1, 0.5])]
    model = MPTDeepVAE(1, hidden_layer_sizes=(), random_state=0)
    for _ in range(15):
        model.partial_fit(X, sample_weight=weight)
    reached = np.average(log_density(X, *mean_and_covariance(model)), weights=weight)
    assert 0 < ml_optimum(np.repeat(X, weight, 0), 1) - reached < 0.05


@pytest.mark.slow
def test_the_heavier_half_of_a_ring_is_drawn_more_often():
    X = ring(400, 0)
    weight = np.where(X[:, 0] > 0, 4.0, 1.0)
    model = quick(hidden_layer_sizes=(32, 32), max_iter=60)
    drawn = model.fit(X, sample_weight=weight).sample(4000, random_state=0)
    share = np.average(X[:, 0] > 0, weights=weight)
    assert abs(np.mean(drawn[:, 0] > 0) - share) < 0.05
    assert abs(np.mean(X[:, 0] > 0) - share) > 0.2
