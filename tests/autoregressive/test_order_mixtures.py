"""Models whose density is a mixture over orders, against enumeration."""

import functools
from itertools import permutations, product

import numpy as np
import pytest
import torch
from kinds import KINDS, rows_of_all_kinds
from numpy.testing import assert_allclose, assert_array_equal
from reference import masked_score, terms_of_orders
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from sklearn_mpt import (
    MPTDependencyNetwork,
    MPTMaskedAutoencoder,
    check_masked_model,
    lml_samples,
    mpt_curve,
)

pytestmark = pytest.mark.filterwarnings("ignore:Maximum iterations")

EVERY = np.array(list(product([0.0, 1.0], repeat=4)))
ORDERS = np.array(list(permutations(range(4))))
NET = {"n_mixtures": 3, "max_iter": 12, "batch_size": 32, "device": "cpu"}


def two_layers(n_inputs, n_outputs):
    inner = torch.nn.Linear(n_inputs, 8), torch.nn.Tanh()
    return torch.nn.Sequential(*inner, torch.nn.Linear(8, n_outputs))


MODELS = {
    "net": MPTMaskedAutoencoder(hidden_layer_sizes=(16,), **NET),
    "net of a user": MPTMaskedAutoencoder(net=two_layers, **NET),
    "forests": MPTDependencyNetwork(
        RandomForestClassifier(8, min_samples_leaf=3),
        RandomForestRegressor(8, min_samples_leaf=3),
    ),
}


@functools.cache
def fitted(name, likelihood):
    if likelihood == "bernoulli":
        z = np.random.default_rng(0).random((200, 1))
        X = np.random.default_rng(1).random((200, 4)) < 0.2 + 0.6 * z.round()
    else:
        X, likelihood = rows_of_all_kinds(), KINDS
    params = {"likelihood": likelihood, "n_orders": 3, "random_state": 0}
    model = clone(MODELS[name]).set_params(**params)
    return model.fit(X.astype(float)), X.astype(float)


def with_gaps(X):
    gaps = np.random.default_rng(2).random(X.shape) < 0.3
    gaps[0] = True
    return np.where(gaps, np.nan, X)


@pytest.mark.parametrize("name", MODELS)
def test_every_order_sums_to_one_and_so_does_their_mixture(name):
    model, _ = fitted(name, "bernoulli")
    each = model.chain_log_prob(EVERY, ORDERS).sum(2)
    assert_allclose(np.exp(each).sum(1), 1, rtol=1e-12)
    assert_allclose(np.exp(model.score_samples(EVERY)).sum(), 1, rtol=1e-12)
    assert each.std(0).max() > 1e-6  # orders are different models


@pytest.mark.parametrize("name", MODELS)
def test_the_score_is_the_mixture_of_the_fitted_orders(name):
    model, X = fitted(name, "all")
    X = X[:3]
    own = np.random.default_rng(0).random((2, *X.shape)).argsort(2)
    for rows in (X, with_gaps(X)):
        each = terms_of_orders(model.conditional_log_prob, rows, model.orders_)
        mixture = logsumexp(each.sum(2), 0) - np.log(3)
        assert_allclose(model.score_samples(rows), mixture, atol=1e-9)
        assert_allclose(model.chain_log_prob(rows, model.orders_), each, atol=1e-9)
        each = terms_of_orders(model.conditional_log_prob, rows, own)
        assert_allclose(model.chain_log_prob(rows, own), each, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_contract_holds(name):
    model, X = fitted(name, "all")
    check_masked_model(model, np.vstack([with_gaps(X[:6]), X[:6]]), n_masks=4)
    assert_array_equal(model.score_samples(np.full((2, X.shape[1]), np.nan)), 0.0)


@pytest.mark.parametrize("name", MODELS)
def test_the_curve_is_the_mean_over_all_orders(name):
    model, _ = fitted(name, "bernoulli")
    each = model.chain_log_prob(EVERY, ORDERS).sum(2)
    scores = {size: [] for size in range(1, 5)}
    for mask in EVERY[1:] == 1:
        score = masked_score(model.conditional_log_prob(EVERY, mask), mask)
        scores[mask.sum()].append(score)
    total = sum(np.mean(of_size, axis=0) for of_size in scores.values())
    assert_allclose(total, each.mean(0), atol=1e-10)
    assert (each.mean(0) <= logsumexp(each, 0) - np.log(24) + 1e-12).all()
    bound, error = lml_samples(model, EVERY, n_orders=24, return_std=True)
    assert_allclose(bound, each.mean(0), atol=1e-10 + 4 * error.max())
    curve = mpt_curve(model, EVERY, n_masks=40, random_state=0)
    assert abs(curve.lml - each.mean()) < 5 * curve.lml_std_error + 1e-9


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_conditionals_sum_or_integrate_to_one(name, kind):
    model, X = fitted(name, "all")
    column, log_step = KINDS.index(kind), 0.0
    if kind == "gaussian":
        grid = np.linspace(-60, 60, 40001)
    elif kind == "lognormal":
        log_step = np.linspace(-150, 30, 40001)
        grid = np.exp(log_step)
    else:
        is_count = kind in ("poisson", "negative_binomial")
        grid = np.arange(2000.0 if is_count else 1 + X[:, column].max())
    rows = np.repeat(X[3:4], len(grid), 0)
    rows[:, column] = grid
    log_prob = model.conditional_log_prob(rows, np.arange(len(KINDS)) == column)
    prob = np.exp(log_prob[:, column] + log_step)
    total = prob.sum()
    if kind in ("gaussian", "lognormal"):
        total = np.trapezoid(prob, grid if kind == "gaussian" else log_step)
    assert total == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_draws_have_the_frequencies_of_the_density(name):
    model, _ = fitted(name, "bernoulli")
    drawn = model.sample(4000, random_state=0)
    share = np.array([(drawn == row).all(1).mean() for row in EVERY])
    prob = np.exp(model.score_samples(EVERY))
    z = (share - prob) / np.sqrt(prob * (1 - prob) / 4000)
    assert np.abs(z).max() < 4.5
