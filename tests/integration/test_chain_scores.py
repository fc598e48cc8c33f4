"""Scores along orders for models integrated over z, against one call per prefix."""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    bernoulli_log_prob,
    binary_rows,
    scores_of_orders,
    terms_of_orders,
)

from sklearn_mpt import MPTDeepVAE, MPTLinearVAE, mpt_curve

pytestmark = pytest.mark.filterwarnings(
    "ignore:Maximum iterations:sklearn.exceptions.ConvergenceWarning"
)


def binary_model(n_components, n_features=10, n_rows=30, steepness=1.5):
    rng = np.random.default_rng(0)
    components = steepness * rng.normal(size=(n_components, n_features))
    start = {"components": components, "intercept": 0.3 * rng.normal(size=n_features)}
    model = MPTLinearVAE(
        n_components, likelihood="bernoulli", init=start, max_iter=0, random_state=0
    )
    X = binary_rows(n_rows, components, start["intercept"], 1)
    return model.fit(X), X


@functools.cache
def deep_model(likelihood, n_rows=12):
    rng = np.random.default_rng(0)
    X = np.sin(rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, 5)))
    X = X + 0.3 * rng.normal(size=X.shape)
    X = X if likelihood == "gaussian" else (X > 0).astype(float)
    model = MPTDeepVAE(
        hidden_layer_sizes=(8,),
        likelihood=likelihood,
        early_stopping=False,
        max_iter=4,
        random_state=0,
    )
    return model.fit(X), X


# A factory, and in nats what its points of integration are good for.
MODELS = {
    "binary, one component": (lambda: binary_model(1), 0.02),
    "binary, five components": (lambda: binary_model(5), 0.03),
    "deep gaussian": (lambda: deep_model("gaussian"), 0.03),
    "deep bernoulli": (lambda: deep_model("bernoulli"), 0.03),
}


def with_orders(X, has_gaps):
    """Rows, and two orders of the features, for all rows or, with gaps, for each."""
    rng = np.random.default_rng(1)
    shape = (2, X.shape[1])
    if has_gaps:
        X = np.where(rng.random(X.shape) < 0.3, np.nan, X)
        X[0] = np.nan
        shape = (2, *X.shape)
    orders = np.broadcast_to(np.arange(X.shape[1]), shape)
    return X, rng.permuted(orders, axis=-1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("has_gaps", [False, True])
def test_scores_are_those_of_one_call_per_prefix(name, has_gaps):
    factory, accuracy = MODELS[name]
    model, X = factory()
    X, orders = with_orders(X, has_gaps)
    scores = model.mean_chain_scores(X, orders)
    expected = scores_of_orders(model.conditional_log_prob, X, orders)
    assert_allclose(scores, expected, atol=accuracy)
    assert_allclose(scores[1].sum(axis=1), model.score(X), atol=2 * accuracy)


def mixed_model(n_components, noise=0.3):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(16, n_components))
    location = z @ rng.normal(size=(n_components, 4))
    X = location + noise * rng.normal(size=location.shape)
    X[:, :2] = X[:, :2] > 0
    X[:, 2] = np.digitize(X[:, 2], [-1, 0, 1])
    kinds = ["bernoulli", "bernoulli", "ordinal", "gaussian"]
    options = {"noise": "per_feature", "slope_prior": 2.0, "max_iter": 3}
    model = MPTLinearVAE(n_components, likelihood=kinds, random_state=0, **options)
    return model.fit(X), X


@pytest.mark.parametrize(
    "factory",
    [
        lambda: binary_model(1),
        lambda: binary_model(2, n_features=6),
        lambda: binary_model(1, steepness=25.0),  # too steep for nodes of all rows
        lambda: binary_model(4, n_features=5, n_rows=8),
        lambda: mixed_model(2),
        lambda: mixed_model(1, noise=0.01),
    ],
)
@pytest.mark.parametrize("has_gaps", [False, True])
def test_log_probs_are_those_of_one_call_per_prefix(factory, has_gaps):
    model, X = factory()
    X, orders = with_orders(X, has_gaps)
    log_prob = model.chain_log_prob(X, orders)
    expected = terms_of_orders(model.conditional_log_prob, X, orders)
    assert_allclose(log_prob, expected, atol=1e-9)


def test_orders_hold_each_feature_once():
    model, X = binary_model(1)
    with pytest.raises(ValueError, match=r"orders must hold each .* once"):
        model.chain_log_prob(X, np.zeros((2, 10), dtype=int))
    with pytest.raises(ValueError, match=r"got shape \(10,\) and dtype int64"):
        model.chain_log_prob(X, np.arange(10))


@pytest.mark.slow
def test_the_error_of_integration_is_in_the_standard_error():
    model, X = binary_model(2, n_features=7, n_rows=10)
    truth = bernoulli_log_prob(X, model.components_, model.intercept_).mean()
    curves = [mpt_curve(model, X, n_masks=6, random_state=seed) for seed in range(50)]
    error = np.array([curve.lml for curve in curves]) - truth
    std_error = np.array([curve.lml_std_error for curve in curves])
    assert abs(error.mean()) < 4 * error.std(ddof=1) / np.sqrt(50)
    assert 0.7 < np.mean(std_error**2) / error.var() < 1.4


def test_chunks_of_rows_do_not_change_the_scores(monkeypatch):
    model, X = binary_model(2)
    orders = np.arange(10)[None]
    whole = model.mean_chain_scores(X, orders)
    monkeypatch.setattr("sklearn_mpt._integration.chain_scores.CACHE_ENTRIES", 2**13)
    assert_allclose(model.mean_chain_scores(X, orders), whole, rtol=1e-10)
    assert_array_equal(
        model.mean_chain_scores(X, orders), model.mean_chain_scores(X, orders)
    )


def test_the_chain_of_encoding_and_decoding_has_no_hook():
    assert hasattr(MPTDeepVAE(), "mean_chain_scores")
    assert not hasattr(MPTDeepVAE(conditional="encode_decode"), "mean_chain_scores")


@pytest.mark.slow
def test_errors_of_rows_average_out():
    """With points that rows share, many rows have the error of one."""
    model, X = binary_model(4, n_features=12, n_rows=160)
    few, many = (
        [mpt_curve(model, rows, n_masks=3, random_state=s) for s in range(8)]
        for rows in (X[:10], X)
    )
    few, many = (np.mean([c.lml_std_error**2 for c in group]) for group in (few, many))
    assert many < 0.25 * few
