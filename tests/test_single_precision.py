"""Rows in single precision: kept so, and computed with in double, block by block."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from test_common import quiet_fit

from sklearn_mpt import (
    MPTImputer,
    MPTLinearVAE,
    MPTProbabilisticPCA,
    feature_contributions,
    lml_samples,
    mpt_curve,
)

SETTINGS = {"random_state": 0, "max_iter": 20}
MODELS = {
    "ppca": MPTProbabilisticPCA(2, **SETTINGS),
    "closed form": MPTProbabilisticPCA(2, objective="lml", **SETTINGS),
    "factor analysis": MPTLinearVAE(1, noise="per_feature", **SETTINGS),
    "binary": MPTLinearVAE(2, likelihood="bernoulli", **SETTINGS),
    "table": MPTLinearVAE(
        1, likelihood=["bernoulli"] + ["gaussian"] * 5, random_state=0, max_iter=3
    ),
}


def rows_for(name, *, gaps):
    """Rows of columns that differ 10^5 times in scale, in single precision."""
    n_rows = 12 if name in ("binary", "table") else 120
    X = load_breast_cancer().data[:n_rows, [7, 0, 2, 3, 4, 9]]
    X = X.astype(np.float32)
    if name in ("binary", "table"):
        which = slice(None) if name == "binary" else slice(1)
        X[:, which] = X[:, which] > np.median(X[:, which], axis=0)
    if gaps:
        X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    return X


@pytest.fixture(scope="module", params=[("ppca", False), *((m, True) for m in MODELS)])
def case(request):
    return request.param


@pytest.fixture(scope="module")
def name(case):
    return case[0]


@pytest.fixture(scope="module")
def single(case):
    return rows_for(case[0], gaps=case[1])


@pytest.fixture(scope="module")
def double(single):
    return single.astype(np.float64)


@pytest.fixture(scope="module")
def model(name, double):
    return quiet_fit(clone(MODELS[name]), double)


@pytest.fixture(scope="module")
def own(name, single):
    return quiet_fit(clone(MODELS[name]), single)


def test_a_fit_is_that_of_the_same_rows_in_double(own, model):
    for key in ("components_", "noise_variance_", "loss_curve_"):
        if hasattr(model, key):
            value = getattr(own, key)
            assert np.asarray(value).dtype == np.float64
            scale = np.nanmax(np.abs(getattr(model, key)))
            assert_allclose(value, getattr(model, key), rtol=1e-6, atol=1e-9 * scale)


def test_a_stream_is_that_of_the_same_rows_in_double(own, model, single, double):
    one, other = copy.deepcopy((own, model))
    for _ in range(3):
        one.partial_fit(single)
        other.partial_fit(double)
    scale = np.abs(other.components_).max()
    assert_allclose(one.components_, other.components_, atol=1e-6 * scale)


@pytest.mark.parametrize(
    "function",
    [
        lambda model, X: model.score_samples(X),
        lambda model, X: model.score_samples(X, return_std=True)[1],
        lambda model, X: model.conditional_log_prob(X, np.arange(6) < 3),
        lambda model, X: model.posterior(X)[1],
        lambda model, X: mpt_curve(model, X[:6], n_masks=2).scores,
        lambda model, X: lml_samples(model, X[:6], n_orders=1),
        lambda model, X: feature_contributions(model, X[:6], n_orders=1),
    ],
)
def test_densities_are_those_of_the_same_rows_in_double(
    function, model, single, double
):
    found = function(model, single)
    assert found.dtype == np.float64
    assert_allclose(found, function(model, double), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "function",
    [
        lambda model, X: model.transform(X),
        lambda model, X: model.inverse_transform(
            np.nan_to_num(X[:, : len(model.components_)])
        ),
        lambda model, X: model.impute(X),
        lambda model, X: model.impute(X, "sample", random_state=1),
    ],
)
def test_rows_come_back_in_single_precision(function, model, single, double):
    found = function(model, single)
    assert found.dtype == np.float32
    assert_array_equal(found, function(model, double).astype(np.float32))


@pytest.mark.usefixtures("own")
def test_a_fit_leaves_the_rows_as_they_are(name, single):
    assert_array_equal(single, rows_for(name, gaps=np.isnan(single).any()))


def test_imputers_keep_single_precision():
    X = rows_for("ppca", gaps=True)
    imputer = quiet_fit(MPTImputer(MODELS["ppca"]), X)
    assert imputer.transform(X).dtype == np.float32
    tags = imputer.__sklearn_tags__()
    assert tags.transformer_tags.preserves_dtype == ["float64", "float32"]
