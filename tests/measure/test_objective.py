import math
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import all_masks, covariance_of, log_density, masked_score

from sklearn_mpt import feature_contributions, lml_samples


def enumerated_log_prob(conditional, X):
    """Proposition 1 by brute force: sum over sizes of the average over all masks."""
    n_features = X.shape[1]
    return sum(
        np.mean([masked_score(conditional(X, m), m) for m in masks], axis=0)
        for masks in (all_masks(n_features, s + 1) for s in range(n_features))
    )


def enumerated_shapley_values(conditional, X):
    n_features = X.shape[1]
    total = np.zeros(X.shape)
    for size in range(1, n_features + 1):
        for mask in all_masks(n_features, size):
            total += conditional(X, mask) / (math.comb(n_features, size) * size)
    return total


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_scores_of_all_masks_add_up_to_the_log_density(known, share):
    model, X = known
    X[np.random.default_rng(1).random(X.shape) < share] = np.nan
    X[0] = np.nan
    total = enumerated_log_prob(model.conditional_log_prob, X)
    expected = log_density(X, model.mean_, covariance_of(model))
    assert_allclose(total, expected, atol=1e-12)


def test_contributions_sum_to_the_log_density(known):
    model, X = known
    X[3, 2] = np.nan
    contributions = feature_contributions(
        model, X, n_orders=np.int64(3), random_state=0
    )
    assert_allclose(contributions.sum(axis=1), model.score_samples(X))
    assert contributions[3, 2] == 0


def test_contributions_are_shapley_values(known):
    model, X = known
    expected = enumerated_shapley_values(model.conditional_log_prob, X)
    error = np.array([
        feature_contributions(model, X, n_orders=10, random_state=seed) - expected
        for seed in range(30)
    ])  # fmt: skip
    z = error.mean(axis=0) / (error.std(axis=0, ddof=1) / np.sqrt(30))
    assert np.abs(z).max() < 5
    assert np.sqrt(np.mean(z**2)) < 1.5


@pytest.mark.slow
def test_standard_errors_of_contributions_are_those_over_orders(known):
    model, X = known
    options = {"n_orders": 9, "return_std": True}
    runs = [
        feature_contributions(model, X, random_state=s, **options) for s in range(80)
    ]
    spread = np.array([values for values, _ in runs]).std(axis=0, ddof=1)
    variance = np.mean([std_errors**2 for _, std_errors in runs], axis=0)
    assert_allclose(np.median(np.sqrt(variance) / spread), 1, atol=0.1)
    _, none = feature_contributions(model, X, n_orders=2, return_std=True)
    assert np.isnan(none).all()


def test_contributions_refuse_what_is_no_model():
    with pytest.raises(TypeError, match=r"conditional_log_prob\(X, mask\)"):
        feature_contributions("model", np.ones((2, 2)))
    for function in (feature_contributions, lml_samples):
        with pytest.raises(ValueError, match="n_orders must be an int in the range"):
            function(lambda X, mask: X, np.ones((2, 2)), n_orders=0)
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            function(lambda X, mask: X, np.ones(2))


@pytest.mark.parametrize("names", [None, list("abcdef")])
def test_contributions_as_an_object_of_shap(known, names, monkeypatch):
    """shap is heavy: what it would be given is tested, and itself where it is there."""
    model, X = known
    rows = X if names is None else pd.DataFrame(X, columns=names)
    model.fit(rows)
    options = {"n_orders": 4, "random_state": 0}
    values, std_errors = feature_contributions(model, rows, return_std=True, **options)
    monkeypatch.setitem(sys.modules, "shap", None)  # as if it were not installed
    plain = feature_contributions(model, rows, as_explanation=True, **options)
    stand_in = SimpleNamespace(Explanation=lambda **entries: entries)
    monkeypatch.setitem(sys.modules, "shap", stand_in)
    entries = feature_contributions(model, rows, as_explanation=True, **options)
    assert entries.keys() == vars(plain).keys()
    for found in (plain, SimpleNamespace(**entries)):
        assert_array_equal(found.values, values)
        assert_array_equal(found.error_std, std_errors)
        assert_array_equal(found.base_values, np.zeros(len(X)))
        assert_array_equal(found.data, X)
        assert found.feature_names == names


def test_contributions_are_drawn_by_shap(known):
    shap = pytest.importorskip("shap")
    model, X = known
    explanation = feature_contributions(model, X, n_orders=4, as_explanation=True)
    shap.plots.waterfall(explanation[0], show=False)
    plt.close("all")


def no_joint(X, mask):
    mean = np.where(mask, 0.0, X).mean(axis=1, keepdims=True)
    return np.where(mask, -((X - mean) ** 2), 0.0)


def test_lml_samples_of_missing_entries_and_few_orders(known):
    model, X = known
    X[np.random.default_rng(1).random(X.shape) < 0.3] = np.nan
    X[0] = np.nan
    log_prob, std_error = lml_samples(model, X, n_orders=2, return_std=True)
    assert_allclose(log_prob, model.score_samples(X), atol=1e-12)
    assert std_error.max() < 1e-10
    X = np.random.default_rng(0).normal(size=(4, 3))
    log_prob, std_error = lml_samples(no_joint, X, n_orders=50, return_std=True)
    again = lml_samples(no_joint, X, n_orders=6, random_state=9)
    assert_allclose(log_prob, again)  # there are no more orders of three features
    assert_allclose(std_error, 0, atol=1e-12)
