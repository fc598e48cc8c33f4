"""Parameters changed after `fit` are refused by name, or change nothing.

Every method of every estimator is called with every parameter changed. A new parameter
needs a value in CHANGED, and a new argument of a method a value in ARGUMENTS.
"""

import copy
import dataclasses
import functools
import inspect
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from test_common import binary_rows, quiet_fit, real_rows

from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
)

FEW = 2
SMALL_NET = {"hidden_layer_sizes": (3,), "early_stopping": False, "max_iter": 2}
MODELS = {
    "ppca": (MPTProbabilisticPCA(max_iter=3), real_rows()),
    "linear": (MPTLinearVAE(max_iter=3, noise="per_feature"), real_rows()),
    "linear, binary": (
        MPTLinearVAE(1, max_iter=3, likelihood="bernoulli", slope_prior=2.0),
        binary_rows(),
    ),
    "deep": (MPTDeepVAE(1, **SMALL_NET), real_rows()),
    "masked": (MPTMaskedAutoencoder(**SMALL_NET, n_orders=2), real_rows()),
    "network": (
        MPTDependencyNetwork(regressor=RandomForestRegressor(2), n_orders=2),
        real_rows(),
    ),
    "mixture": (
        MPTMixture(2, covariance_type="low_rank", max_iter=3, reg_covar=0.01),
        real_rows(),
    ),
    "items": (MPTItemResponse(max_iter=3, slope_prior=2.0), binary_rows()),
    "imputer": (
        MPTImputer(max_models=2, n_imputations=2),
        np.where(np.eye(30, 5) > 0, np.nan, real_rows()),
    ),
    "several abilities": (
        MPTItemResponse(n_components=2, max_iter=3, slope_prior=2.0),
        binary_rows(),
    ),
}
CHANGED = {
    "classifier": RandomForestClassifier(3),
    "regressor": RandomForestRegressor(3),
    "marginal_weight": 0.5,
    "calibrate": False,
    "n_components": 3,
    "likelihood": "poisson",
    "noise": "shared",
    "rotation": "varimax",
    "slope_prior": 0.1,
    "guessing_prior": (-1.0, 0.5),
    "reference_group": "b",
    "fixed": {0: {"intercept": 0.0}},
    "population": "free",
    "model": "rasch",
    "mask_rate": 0.4,
    "n_masks": 7,
    "max_inputs": 1,
    "max_rows": 9,
    "objective": "other",
    "init": "pca",
    "max_iter": 1,
    "learning_rate": 0.5,
    "batch_size": 5,
    "tol": 0.5,
    "n_iter_no_change": 3,
    "early_stopping": True,
    "validation_fraction": 0.4,
    "warm_start": True,
    "device": "cpu",
    "random_state": 7,
    "n_jobs": 2,
    "decoder": lambda n_inputs, n_outputs: torch.nn.Linear(n_inputs, n_outputs),
    "net": lambda n_inputs, n_outputs: torch.nn.Linear(n_inputs, n_outputs),
    "hidden_layer_sizes": (5, 4),
    "activation": "tanh",
    "n_importance_samples": 3,
    "conditional": "encode_decode",
    "mask_blocks": "span",
    "n_mixtures": 2,
    "n_orders": 3,
    "dropout": 0.4,
    "covariance_type": "diag",
    "n_factors": 3,
    "n_init": 2,
    "init_params": "random",
    "weights_init": [0.5, 0.5],
    "means_init": np.zeros((2, 5)),
    "precisions_init": np.zeros((2, 5, 5)),
    "reg_covar": 0.3,
    "verbose": 3,
    "estimator": MPTProbabilisticPCA(),
    "method": "sample",
    "n_imputations": 3,
    "min_value": 0.0,
    "max_value": 0.5,
    "missing_values": 0.0,
    "add_indicator": True,
    "keep_empty_features": True,
    "max_seconds": 1.0,
    "max_models": 1,
    "delta": {0: 1.0},
    "unknown": "error",
}
SAVES_TIME = ("random_state", "anchors")  # given though they have defaults
NO_RESULT = ("fit", "partial_fit", "set_", "get_", "from_", "plot")


def arguments_of(name, X):
    n_rows, n_features = X.shape
    mask = np.arange(n_features) % 2 == 0
    given = {
        "X": X,
        "Z": np.zeros((2, 2 if name not in ("deep", "linear, binary", "items") else 1)),
        "mask": mask,
        "masks": np.stack([mask, ~mask]),
        "orders": np.arange(n_features)[None],
        "n_samples": 2,
        "random_state": 0,
        "group": np.arange(n_rows) % 2,
        "covariates": np.arange(n_rows)[:, None],
        "outcome": np.arange(n_rows),
        "nested": fit_once(name),
        "anchors": np.arange(n_features) > 0,
        "theta": np.zeros((3, 2)) if name == "several abilities" else np.zeros(3),
    }
    return given


@functools.cache
def fit_once(name):
    model, X = MODELS[name]
    return quiet_fit(copy.deepcopy(model).set_params(random_state=0), X)


def results_of(model, name):
    """Return the result of each public method, or the error that it raises."""
    X = MODELS[name][1]
    X = X[:FEW] if name in ("deep", "masked") else X
    given, results = arguments_of(name, X), {}
    for method in dir(type(model)):
        function = getattr(type(model), method)
        if method.startswith(("_", *NO_RESULT)) or not callable(function):
            continue
        if not hasattr(model, method):
            continue
        known = {
            p.name: given[p.name]
            for p in inspect.signature(function).parameters.values()
            if p.name in given and (p.default is p.empty or p.name in SAVES_TIME)
        }
        try:
            results[method] = plain_of(getattr(model, method)(**known))
        except (ValueError, TypeError, NotImplementedError) as error:
            results[method] = error
    return results


def plain_of(result):
    """Return arrays, lists and dicts for results of every type."""
    if isinstance(result, pd.DataFrame):
        return result.to_dict("list")
    if dataclasses.is_dataclass(result):
        return plain_of(vars(result))
    if isinstance(result, torch.nn.Module):
        return {name: p.detach().numpy() for name, p in result.state_dict().items()}
    if isinstance(result, dict):
        return {name: plain_of(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain_of(value) for value in result]
    return result


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_parameters_changed_after_fit_are_refused_or_change_nothing(name):
    model = copy.deepcopy(fit_once(name))
    before = results_of(model, name)
    assert len(before) >= (3 if name == "imputer" else 7)
    assert not [e for e in before.values() if isinstance(e, TypeError)], before
    # those that may change do so at once, the others one by one
    own = model.get_params(deep=False)
    changes = [{name: CHANGED[name]} for name in own if name in model._bound]
    changes.append({name: CHANGED[name] for name in own if name not in model._bound})
    if name == "imputer":  # whose draws have no other seed
        del changes[-1]["random_state"]
    for change in changes:
        model.set_params(**change)
        for method, result in results_of(model, name).items():
            if isinstance(result, Exception) and any(p in str(result) for p in change):
                continue
            message = f"{method} after {list(change)} changed"
            expected = before[method]
            if isinstance(expected, Exception):
                expected, result = str(expected), str(result)
            np.testing.assert_equal(result, expected, message)
        model.set_params(**own)
    again = results_of(model, name)
    for method, result in before.items():
        if not isinstance(result, Exception):
            np.testing.assert_equal(again[method], result, method)


def test_values_of_parameters_are_compared():
    X, kinds = real_rows(), ["gaussian"] * 5
    model = quiet_fit(MPTLinearVAE(likelihood=kinds, max_iter=1), X)
    kinds[0] = "bernoulli"  # changed in place
    with pytest.raises(ValueError, match=r"likelihood=.* differs from the"):
        model.score_samples(X)
    kinds[0] = "gaussian"
    before = model.score_samples(X)
    np.testing.assert_equal(
        model.set_params(likelihood=["gaussian"] * 5).score_samples(X), before
    )
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_equal(loaded.score_samples(X), before)


def test_known_items_keep_their_model():
    items = MPTItemResponse.from_items(discrimination=[1.0, 2.0], difficulty=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"slope_prior=1\.0 differs from the None"):
        items.set_params(slope_prior=1.0).abilities([[0, 1]])


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        (np.nan, float("nan"), True),
        ([1, np.nan], [1, float("nan")], True),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 2])}, True),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 3])}, False),
        (np.array([1.0, 2.0]), [1.0, 2.0], True),
        (None, 1, False),
        ("gaussian", ["gaussian"] * 5, False),
        (pd.NA, np.nan, False),
    ],
)
def test_equal_values_of_parameters_are_the_same(value, other, same):
    model = MPTProbabilisticPCA(max_iter=0).fit(real_rows())
    model._bound = {"init": value}
    model.set_params(init=other)
    if same:
        model.score_samples(real_rows())
        return
    with pytest.raises(ValueError, match=r"init=.* differs from the"):
        model.score_samples(real_rows())
