"""Estimators fit, score and fill in with other values of each of their parameters."""

from numbers import Integral

import numpy as np
import pytest
from sklearn.utils._param_validation import Interval, StrOptions

pytest.importorskip("torch")

from sklearn_mpt import (
    MPTDeepVAE,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
)

MODELS = {
    "ppca": (MPTProbabilisticPCA, {"n_components": 1, "max_iter": 2}),
    "binary": (
        MPTLinearVAE,
        {"n_components": 1, "likelihood": "bernoulli", "max_iter": 2},
    ),
    "deep": (
        MPTDeepVAE,
        {"n_components": 1, "hidden_layer_sizes": (3,), "max_iter": 1}
        | {"n_importance_samples": 4},
    ),
    "mixture": (MPTMixture, {"n_components": 2, "max_iter": 2}),
    "classes": (
        MPTMixture,
        {"n_components": 2, "likelihood": "bernoulli", "max_iter": 2},
    ),
    "items": (MPTItemResponse, {"max_iter": 2}),
    "masked": (MPTMaskedAutoencoder, {"hidden_layer_sizes": (3,), "max_iter": 1}),
}
BINARY = ("binary", "classes", "items")
# Values of parameters whose constraints do not list them.
OTHERS = {"batch_size": [7], "mask_rate": [0.3, 2], "n_masks": [2], "init": ["pca"]}
# Processes cost seconds, and have tests of their own.
NOT_TRIED = {"n_jobs", "verbose", "n_components", "max_iter", "likelihood", "model"}


def values_of(constraints):
    """Return legal values: all strings, a number, None and both booleans."""
    values = []
    for constraint in constraints:
        if isinstance(constraint, StrOptions):
            values += sorted(constraint.options)
        elif isinstance(constraint, Interval):
            number = 3 if constraint.type is Integral else 0.3
            values += [number] if number in constraint else []
        elif constraint == "boolean":
            values += [True, False]
        elif constraint is None:
            values += [None]
    return values


def combinations():
    for name, (model, params) in MODELS.items():
        for parameter in sorted(model().get_params().keys() - NOT_TRIED - set(params)):
            constraints = model._parameter_constraints.get(parameter, [])
            yield name, parameter, OTHERS.get(parameter, values_of(constraints))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "parameter", "values"), [*combinations()])
def test_other_values_of_a_parameter_serve(name, parameter, values):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 1)) + 0.5 * rng.normal(size=(20, 3))
    X = (X > 0).astype(float) if name in BINARY else X
    gaps = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    model, params = MODELS[name]
    for value in values:
        changed = model(**params | {"random_state": 0, parameter: value})
        try:
            changed.fit(gaps)
        except (ValueError, TypeError) as error:  # such as a number without a meaning
            if parameter not in str(error):
                raise
            continue
        few = gaps[:4] if name == "deep" else gaps
        assert np.isfinite(changed.score(few))
        assert np.isfinite(np.asarray(changed.impute(few))).all()
