"""Every parameter of every class and function, against values that are none."""

import inspect
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from test_common import quiet_fit, real_rows
from text_models import TEXTS, make_model, make_tokenizer

from sklearn_mpt import (
    DataCollatorForMPT,
    LMLMonitor,
    LMLTrainerCallback,
    MPTCurve,
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    MPTScorer,
    check_masked_model,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
    pool_estimates,
)

NO_INT = [True, 1.5, np.nan, "1", None, [1], Fraction(3, 2)]
COUNT = [*NO_INT, 0, -1, np.int64(0)]
NO_REAL = [True, "1", None, [1.0], Fraction(1, 2), 1j, np.nan, np.inf, -np.inf]
NO_BOOL = ["yes", 0, 1, None, np.nan, [True]]
NO_NAME = ["magic", 1, True, None, np.nan, ["mpt"]]
ROTATION = ["oblimin", 1, True, np.nan, ["varimax"]]
N_JOBS = [0, "a", 1.5, True, np.nan, [1]]
RANDOM_STATE = [-1, 2**32, 1.5, np.nan, "a", True, [[1]], np.random.default_rng(0)]
DEVICE = ["toaster", "meta", 1.5, True, ["cpu"], torch.device("meta")]
GAUSSIAN = ["gaussian"] * 5  # the rows have five columns
LIKELIHOOD = [
    *["magic", 1, True, None, np.nan, [], ["mpt"], GAUSSIAN[1:], GAUSSIAN * 2],
    *[[*GAUSSIAN[1:], kind] for kind in ("magic", 1, True, None, np.nan)],
    *[{0: kind} for kind in ("magic", 1, None, ["gaussian"])],
    *[{key: "gaussian"} for key in (5, -1, 1.5, True, "age", None)],
    *[{"gaussian"}, np.array(GAUSSIAN)],
]
RATE = [0.0, -0.5, 1.5, np.nan, np.inf, 0, 99, True, None, "often", Fraction(1, 2), [1]]
COUNT_OR_AUTO = [*(value for value in COUNT if value != "1"), "all"]
INIT = ["magic", 1, None, {}, {"components": 1}, np.zeros((2, 5))]

MODEL = {
    "n_components": COUNT,
    "mask_rate": RATE,
    "n_masks": COUNT,
    "objective": NO_NAME,
    "max_iter": [*NO_INT, -1],
    "learning_rate": [*NO_REAL, 0, 0.0, -0.1],
    "batch_size": COUNT_OR_AUTO,
    "tol": [*NO_REAL, -0.1],
    "n_iter_no_change": COUNT,
    "warm_start": NO_BOOL,
    "verbose": ["a", -1, 1.5, None, np.nan],
    "device": DEVICE,
    "random_state": RANDOM_STATE,
    "n_jobs": N_JOBS,
}
MODELS = {
    MPTProbabilisticPCA: MODEL | {"init": INIT},
    MPTLinearVAE: MODEL
    | {"init": INIT, "likelihood": LIKELIHOOD, "noise": NO_NAME, "rotation": ROTATION}
    | {"slope_prior": [*(v for v in NO_REAL if v is not None), 0, 0.0, -1.0]},
    MPTDeepVAE: MODEL
    | {
        "n_masks": COUNT_OR_AUTO,
        "likelihood": LIKELIHOOD,
        "hidden_layer_sizes": [8, "8", None, (0,), (True,), (1.5,), (np.nan,), ("8",)],
        "activation": NO_NAME,
        "n_importance_samples": COUNT_OR_AUTO,
        "conditional": NO_NAME,
        "decoder": [1, "net"],
        "early_stopping": NO_BOOL,
        "validation_fraction": [*NO_REAL, 0.0, 1.0, 1.5, -0.1],
    },
    MPTDependencyNetwork: {
        **{name: MODEL[name] for name in ("mask_rate", "n_masks", "random_state")},
        "classifier": [1, "forest", LinearSVC(), RandomForestClassifier],
        "regressor": [1, "forest", StandardScaler(), RandomForestRegressor],
        "likelihood": [*LIKELIHOOD, object()],
        "max_inputs": [value for value in COUNT if value is not None],
        "max_rows": [value for value in COUNT if value is not None],
        "n_orders": COUNT,
        "marginal_weight": [*NO_REAL, 0.0, 1.0, -0.1],
        "calibrate": NO_BOOL,
        "n_jobs": N_JOBS,
    },
}
EVERY_MODEL = ("mask_rate", "max_iter", "learning_rate", "tol", "warm_start", "verbose")
EVERY_MODEL = {name: MODEL[name] for name in (*EVERY_MODEL, "device", "random_state")}
EVERY_MODEL |= {"n_masks": COUNT_OR_AUTO, "n_jobs": N_JOBS}
MODELS |= {
    MPTMixture: EVERY_MODEL
    | {
        "n_components": COUNT,
        "likelihood": LIKELIHOOD,
        "covariance_type": NO_NAME,
        "n_factors": COUNT,
        "objective": NO_NAME,
        "n_init": COUNT,
        "init_params": NO_NAME,
        "weights_init": ["a", [1.0, 1.0], [[1.0]], [np.nan]],
        "means_init": ["a", [0.0], np.zeros((2, 5)), np.full((1, 5), np.inf)],
        "precisions_init": ["a", [1.0], np.zeros((1, 5, 5)), -np.eye(5)[None]],
        "reg_covar": [*NO_REAL, -1e-6],
        "n_iter_no_change": COUNT,
    },
    MPTItemResponse: {
        name: EVERY_MODEL[name]
        for name in EVERY_MODEL
        if name not in ("mask_rate", "learning_rate", "n_masks")
    }
    | {
        "model": ["magic", 1, True, None, np.nan, [], ["2pl"], ["magic"] * 5],
        "n_components": COUNT,
        "rotation": ["magic", *ROTATION[1:]],
        "slope_prior": [*(v for v in NO_REAL if v is not None), 0, 0.0, -1.0],
        "guessing_prior": ["a", 1.0, [1.0], [0.0, 0.0], [np.nan, 1.0], [0.0, -1.0]],
        "fixed": ["a", 1, [1], {"a": {}}, {0: 1}, {0: {"slope": 1.0}}],
        "population": ["magic", *NO_NAME[1:], "free"],
        "reference_group": ["a", 1, [1]],
    },
    MPTMaskedAutoencoder: EVERY_MODEL
    | {
        "likelihood": LIKELIHOOD,
        "net": [1, "net"],
        "hidden_layer_sizes": MODELS[MPTDeepVAE]["hidden_layer_sizes"],
        "n_mixtures": COUNT,
        "n_orders": COUNT,
        "dropout": [*NO_REAL, 1.0, -0.1],
        "mask_blocks": ["a", 1, True, [1, 2]],
        "batch_size": COUNT_OR_AUTO,
        "n_iter_no_change": COUNT,
        "early_stopping": NO_BOOL,
        "validation_fraction": [*NO_REAL, 0.0, 1.0, 1.5, -0.1],
    },
}
SCORER = {
    "model": [None, 1, ["bert"], object()],
    "tokenizer": [1, ["bert"], object()],
    "mask_rates": [0.5, "all", [], [0.0], [1.5], [np.nan], [[0.5]], ["a"], [None]],
    "n_masks": COUNT_OR_AUTO,
    "method": NO_NAME,
    "batch_tokens": COUNT,
    "max_length": [*(value for value in COUNT if value is not None)],
    "overflow": NO_NAME,
    "device": DEVICE,
    "dtype": NO_NAME,
    "n_jobs": N_JOBS,
    "random_state": RANDOM_STATE,
    "revision": [1, True, ["main"]],
    "local_files_only": NO_BOOL,
    "trust_remote_code": NO_BOOL,
    "verbose": ["a", -1, 1.5, None, np.nan],
}
ORDERS = {"n_orders": COUNT, "random_state": RANDOM_STATE, "n_jobs": N_JOBS}
COMPARISON = ORDERS | {"estimators": [1, None, "ab", [], {}]}
FUNCTIONS = {
    mpt_curve: {
        "mask_sizes": ["a", [], [0], [7], [1.5], [np.nan], [True], [[1, 2]], [None]],
        "n_masks": [value for value in COUNT if value is not None],
        "design": NO_NAME,
        "order": NO_NAME,
        "block_size": COUNT,
        "allocation": NO_NAME,
        "mask_blocks": ["a", 1, True, [1, 2]],
        "random_state": RANDOM_STATE,
        "n_jobs": N_JOBS,
    },
    lml_samples: ORDERS | {"return_std": NO_BOOL},
    feature_contributions: ORDERS | {"return_std": NO_BOOL, "as_explanation": NO_BOOL},
    check_masked_model: {
        "n_masks": COUNT,
        "n_orders": [-1, 1.5, "4"],
        "random_state": RANDOM_STATE,
    },
}
OTHERS = {
    LMLMonitor: {"every": COUNT},
    DataCollatorForMPT: {
        "mask_rate": [value for value in RATE if value is not None],
        "random_state": RANDOM_STATE,
        "pad_to_multiple_of": [value for value in COUNT if value is not None],
        "mask_blocks": ["words", 1, True, np.nan, [0, 1]],
    },
    LMLTrainerCallback: {
        "texts": [None, 1, "a", [], [1], [["a"]]],
        "every": COUNT,
        "n_masks": COUNT,
        "batch_tokens": COUNT,
        "max_length": SCORER["max_length"],
        "overflow": NO_NAME,
        "random_state": RANDOM_STATE,
    },
    MPTCurve: {
        "mask_sizes": [1, [], [0], [6], [2, 1], [np.nan], ["a"], [[1]], [None]],
        "scores": [1.0, [1.0, 2.0], None],
        "std_errors": [1.0, [1.0, 2.0], None],
        "n_features": COUNT,
        "has_blocks": NO_BOOL,
    },
}
ARGUMENTS = {
    LMLMonitor: {},
    DataCollatorForMPT: {"tokenizer": make_tokenizer()},
    LMLTrainerCallback: {"texts": ["a"], "tokenizer": make_tokenizer()},
    MPTCurve: {
        "mask_sizes": [1],
        "scores": [1.0],
        "std_errors": [0.0],
        "n_features": 5,
    },
}
# Data, models and results; each has tests of its own.
NO_SETTINGS = {"estimator", "X", "tokenizer", "noise", "texts"}


def names_of(table):
    return [
        pytest.param(key, name, id=f"{key.__name__}-{name}")
        for key, parameters in table.items()
        for name in parameters
    ]


def refusal(call, value):
    try:
        call(value)
    except (ValueError, TypeError) as error:
        return str(error)
    return "no error"


def assert_refused_by_name(name, values, call):
    refusals = [(value, refusal(call, value)) for value in values]
    assert not [(value, said) for value, said in refusals if name not in said]


@pytest.mark.parametrize("table", [MODELS, FUNCTIONS, OTHERS, {MPTScorer: SCORER}])
def test_every_parameter_is_in_a_table(table):
    for function, parameters in table.items():
        names = set(inspect.signature(function).parameters) - NO_SETTINGS
        assert names <= set(parameters), function


def short(kind):
    """Return a model that is fitted in a short time."""
    if "max_iter" in inspect.signature(kind).parameters:
        return kind(max_iter=1)
    return kind(regressor=RandomForestRegressor(2))


def rows_for(kind):
    rows = real_rows()
    return (rows > 0).astype(float) if kind is MPTItemResponse else rows


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_models_refuse_bad_values_by_name(kind, method):
    if not hasattr(kind, method):
        pytest.skip(f"{kind.__name__} has no {method}")
    for name, values in MODELS[kind].items():

        def call(value, name=name):
            model = short(kind).set_params(**{name: value})
            try:
                getattr(model, method)(rows_for(kind))
            finally:
                assert not hasattr(model, "n_features_in_")

        assert_refused_by_name(name, values, call)


@pytest.mark.parametrize("name", SCORER)
def test_scorers_refuse_bad_values_by_name(name):
    scorer = MPTScorer(make_model(), make_tokenizer())

    def call(value):
        try:
            scorer.set_params(**{name: value}).fit(TEXTS)
        finally:
            assert set(vars(scorer)) == set(scorer.get_params())

    assert_refused_by_name(name, SCORER[name], call)


@pytest.mark.parametrize(("function", "name"), names_of(FUNCTIONS))
def test_functions_refuse_bad_values_by_name(function, name, known):
    model, X = known
    for estimator in (model, model.conditional_log_prob):
        assert_refused_by_name(
            name,
            FUNCTIONS[function][name],
            lambda value, of=estimator: function(of, X[:, :6], **{name: value}),
        )


@pytest.mark.parametrize("name", COMPARISON)
def test_comparisons_refuse_bad_values_by_name(name, known):
    model, X = known
    arguments = {"estimators": [model, model], "X": X}
    assert_refused_by_name(
        name, COMPARISON[name], lambda value: compare_lml(**arguments | {name: value})
    )


@pytest.mark.parametrize(("kind", "name"), names_of(OTHERS))
def test_others_refuse_bad_values_by_name(kind, name):
    assert_refused_by_name(
        name,
        OTHERS[kind][name],
        lambda value: kind(**ARGUMENTS[kind] | {name: value}),
    )


NUMPY_SCALARS = {
    "n_components": np.int64(1),
    "mask_rate": np.float32(0.5),
    "n_masks": np.int32(8),
    "max_iter": np.int64(2),
    "learning_rate": np.float64(0.01),
    "batch_size": np.int16(10),
    "tol": np.float64(0),
    "n_iter_no_change": np.uint8(3),
    "n_orders": np.int64(4),
    "marginal_weight": np.float32(0.02),
    "calibrate": np.bool_(False),
    "warm_start": np.bool_(False),
    "verbose": np.bool_(False),
    "random_state": np.int64(3),
    "n_jobs": np.int64(1),
}


@pytest.mark.parametrize("kind", MODELS)
def test_scalars_of_numpy_are_as_good_as_those_of_python(kind):
    X, names = rows_for(kind), inspect.signature(kind).parameters
    by_numpy = {k: v for k, v in NUMPY_SCALARS.items() if k in names}
    plain = {k: v.item() for k, v in by_numpy.items()}
    one, other = (quiet_fit(short(kind).set_params(**p), X) for p in (by_numpy, plain))
    assert_array_equal(one.score_samples(X), other.score_samples(X))


@pytest.mark.parametrize("kind", [MPTLinearVAE, MPTDeepVAE])
def test_a_fitted_model_keeps_its_likelihood(kind):
    """It would be another model: its probabilities would not even sum to one."""
    binary = (real_rows() > 0).astype(float)
    model = quiet_fit(kind(max_iter=1, likelihood="bernoulli", warm_start=True), binary)
    before = model.score_samples(binary)
    message = "likelihood='gaussian' differs from the 'bernoulli' of the fitted model"
    model.set_params(likelihood="gaussian")
    for call in (
        model.fit,
        model.partial_fit,
        model.score_samples,
        model.transform,
        model.impute,
        lambda X: model.conditional_log_prob(X, np.ones(5, dtype=bool)),
        lambda X: model.inverse_transform(X[:, :2]),
        lambda X: model.sample(2),
        lambda X: mpt_curve(model, X),
    ):
        with pytest.raises(ValueError, match=message):
            call(binary)
    model.set_params(likelihood="bernoulli")
    assert_array_equal(model.score_samples(binary), before)
    quiet_fit(model.set_params(likelihood="gaussian", warm_start=False), real_rows())
    assert hasattr(model, "noise_variance_")


@pytest.mark.parametrize(
    ("name", "values"),
    [("estimator", [1, "pca"]), ("method", NO_NAME), ("random_state", RANDOM_STATE)],
)
def test_imputers_refuse_bad_values_by_name(name, values):
    gaps = np.where(np.eye(30, 5), np.nan, real_rows())
    assert_refused_by_name(
        name, values, lambda value: MPTImputer().set_params(**{name: value}).fit(gaps)
    )


ITEMS = {"discrimination": [1.0, 2.0], "difficulty": [0.0, 1.0]}
KNOWN_ITEMS = MPTItemResponse.from_items(**ITEMS)


def fit_from(components):
    init = {"components": components, "mean": np.zeros(5), "noise_variance": 1.0}
    MPTProbabilisticPCA(init=init).fit(real_rows())


NO_NUMBERS = {
    "weights_init": lambda value: MPTMixture(2, weights_init=value).fit(real_rows()),
    r"init\['components'\]": fit_from,
    "theta": KNOWN_ITEMS.information,
    "estimates": lambda value: pool_estimates(value, [1.0, 1.0]),
    "variances": lambda value: pool_estimates([1.0, 1.0], value),
    **{
        name: lambda value, name=name: MPTItemResponse.from_items(
            **ITEMS | {"model": "3pl", name: value}
        )
        for name in (*ITEMS, "guessing", "latent_mean", "latent_variance")
    },
}


@pytest.mark.parametrize("name", NO_NUMBERS)
@pytest.mark.parametrize("value", ["many", [1.0, "many"], [[1.0], [1.0, 2.0]], [{}]])
def test_arrays_that_hold_no_numbers_are_named(name, value):
    message = f"^{name} must be an array of numbers, got "
    with pytest.raises((TypeError, ValueError), match=message):
        NO_NUMBERS[name](value)


# Messages shorten long lists, and say that they did


def test_lists_of_few_columns_are_complete():
    X = np.random.default_rng(0).normal(size=(20, 5))
    X[:, [1, 3]] = np.nan
    with pytest.raises(ValueError, match=r"column\(s\) \[1, 3\] of X are missing"):
        MPTProbabilisticPCA(1).fit(X)


@pytest.mark.parametrize("model", [MPTProbabilisticPCA(1), MPTMixture(1)])
def test_lists_of_many_columns_end_with_dots(model):
    X = np.random.default_rng(0).normal(size=(20, 40))
    X[:, :30] = np.nan
    shown = r"column\(s\) \[0, 1, 2[^.\]]*, \.\.\.\] of X are missing"
    with pytest.raises(ValueError, match=shown):
        model.fit(X)


def test_names_are_shown_as_they_are_written():
    X = pd.DataFrame({f"column {j}": [np.nan] * 5 for j in range(30)})
    X["complete"] = [1.0, 2.0, 3.0, 4.0, 7.0]
    with pytest.raises(
        ValueError, match=r"\['column 0', .*, \.\.\.\] of X are missing"
    ):
        MPTProbabilisticPCA(1).fit(X)


def test_the_imputer_names_a_few_of_many_columns_that_it_does_not_model():
    numbers = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)))
    numbers.columns = ["x", "y"]
    table = numbers.assign(**{f"empty{j}": np.nan for j in range(30)})
    with pytest.warns(UserWarning, match=r"'empty9', \.\.\. \(no values\)"):
        MPTImputer(max_models=1).fit(table)
