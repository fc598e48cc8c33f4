"""Estimators of a frame of all kinds of columns, saved and loaded."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import sklearn_mpt
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

pytest.importorskip("torch")

# `doc/user_guide.rst`, "Saving a model"
TRUSTED = ("sklearn_mpt.", "sklearn.tree._tree.Tree")


def frame_of_all_kinds(n_rows=80):
    """Columns that depend on each other, so that imputers take rich models."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=n_rows)

    def levels(count):
        place = (z + 0.4 * rng.normal(size=n_rows) + 1.5) / 3 * count
        return np.clip(place, 0, count - 1).astype(int)

    low_to_high = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    frame = pd.DataFrame(
        {
            "number": z + 0.3 * rng.normal(size=n_rows),
            "amount": np.exp(1.5 * z),
            "count": pd.array(rng.poisson(np.exp(1 + 0.5 * z)), dtype="Int64"),
            "boolean": levels(2) == 1,
            "boolean with gaps": pd.array(levels(2) == 1, dtype="boolean"),
            "word": np.array(["u", "v", "w"], dtype=object)[levels(3)],
            "category": pd.Categorical(np.array(["p", "q"])[levels(2)]),
            "ordered": pd.Categorical.from_codes(levels(3), dtype=low_to_high),
        }
    )
    with_gaps = frame.columns.drop("boolean")
    return frame.mask(
        pd.DataFrame(rng.random(frame.shape) < 0.15, columns=frame.columns)
        & frame.columns.isin(with_gaps)
    )


FRAME = frame_of_all_kinds()
NUMBERS = FRAME[["number", "amount"]]
ITEMS = FRAME[["boolean"]].assign(other=FRAME["ordered"].cat.codes.clip(0, 1))
FEW = {"likelihood": "from_dtype", "max_iter": 2, "random_state": 0}
CASES = {
    "PCA": (MPTProbabilisticPCA(1, max_iter=2, random_state=0), NUMBERS),
    "linear": (MPTLinearVAE(1, **FEW), FRAME),
    "deep": (MPTDeepVAE(1, hidden_layer_sizes=(4,), **FEW), FRAME),
    "masked": (MPTMaskedAutoencoder(hidden_layer_sizes=(4,), **FEW), FRAME),
    "mixture": (MPTMixture(2, **FEW), FRAME),
    "network": (
        MPTDependencyNetwork(
            RandomForestClassifier(2, random_state=0),
            RandomForestRegressor(2, random_state=0),
            n_orders=1,
            n_masks=1,
            random_state=0,
        ),
        FRAME,
    ),
    "items": (MPTItemResponse("2pl", max_iter=2, random_state=0), ITEMS.astype(float)),
    "imputer": (MPTImputer(random_state=0), FRAME),
}


def test_cases_are_all_estimators():
    public = {name for name in sklearn_mpt.__all__ if name.startswith("MPT")}
    estimators = {
        name for name in public if hasattr(getattr(sklearn_mpt, name), "get_params")
    }
    tested = {type(model).__name__ for model, _ in CASES.values()}
    assert estimators - tested == {"MPTScorer"}  # it holds a model of transformers


@pytest.fixture(scope="module", params=CASES)
def fitted(request):
    model, X = CASES[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few epochs of few rows
        model.fit(X)
    return model, X, results(model, X)


def results(model, X):
    if isinstance(model, MPTImputer):
        return model.transform(X)
    return pd.DataFrame(model.impute(X)).assign(score=model.score_samples(X))


@pytest.mark.parametrize("library", ["pickle", "skops"])
def test_a_loaded_model_is_the_saved_one(fitted, library):
    model, X, expected = fitted
    if library == "pickle":
        loaded = pickle.loads(pickle.dumps(model))
    else:
        import skops.io  # it takes seconds to load

        data = skops.io.dumps(model)
        types = skops.io.get_untrusted_types(data=data)
        assert all(name.startswith(TRUSTED) for name in types), types
        loaded = skops.io.loads(data, trusted=types)
    assert "_sklearn_mpt_version" not in vars(loaded)
    pd.testing.assert_frame_equal(results(loaded, X), expected)
