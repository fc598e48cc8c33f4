"""Weights of rows reach everything: 1e-9 is 0, and 2 is the row twice.

Every estimator, and every method that takes weights. A new estimator needs a line in
MODELS.
"""

import functools
import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
from kinds import LINEAR_KINDS
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_fitted_parameters import plain_of

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

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def numbers(n_rows=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 1)) * [1.0, -1.0, 0.5] + rng.normal(size=(n_rows, 3))
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def answers(n_rows=60):
    return np.where(np.isnan(numbers(n_rows)), np.nan, numbers(n_rows) > 0)


def counts(n_rows=60):
    X = numbers(n_rows)
    rate = np.where(X[:, [0]] > 0, 8.0, 2.0)
    many = np.random.default_rng(1).poisson(rate, X.shape)
    return np.where(np.isnan(X), np.nan, many)


def table(n_rows=60):
    X = numbers(n_rows)
    letters = np.where(X[:, 2] > 0, "a", "b").astype(object)
    return pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "z": letters})


LML = {"objective": "lml", "tol": 1e-6, "random_state": 0}
NET = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0}
MODELS = {
    "ppca": (MPTProbabilisticPCA(1, **LML), numbers()),
    "ppca, masks": (MPTProbabilisticPCA(1, max_iter=3, random_state=0), numbers()),
    "factor analysis": (MPTLinearVAE(1, noise="per_feature", **LML), numbers()),
    "linear, binary": (MPTLinearVAE(1, likelihood="bernoulli", **LML), answers()),
    "linear, table": (
        MPTLinearVAE(1, likelihood="from_dtype", init="pca", **LML),
        table(),
    ),
    "mixture": (MPTMixture(2, max_iter=200, **LML), numbers()),
    **{
        f"mixture, {form}": (
            MPTMixture(2, covariance_type=form, max_iter=30, **LML),
            numbers(),
        )
        for form in ("diag", "low_rank")
    },
    "mixture, masks": (MPTMixture(2, max_iter=3, random_state=0), numbers()),
    "mixture, counts": (MPTMixture(2, likelihood="poisson", **LML), counts()),
    "mixture, table": (MPTMixture(2, likelihood="from_dtype", **LML), table()),
    "classes": (MPTMixture(2, likelihood="bernoulli", **LML), answers()),
    "items": (MPTItemResponse(slope_prior=2.0, tol=1e-8), answers()),
    "deep, validated": (MPTDeepVAE(1, **NET), numbers()),
    "masked": (MPTMaskedAutoencoder(n_orders=2, **NET), numbers()),
    "network": (MPTDependencyNetwork(n_orders=2, random_state=0), numbers()),
    "imputer": (MPTImputer(max_models=4, random_state=0), numbers()),
    "imputer, table": (MPTImputer(max_models=3, random_state=0), table()),
    "imputer of a model": (MPTImputer(MPTProbabilisticPCA(1, **LML)), numbers()),
}
CLOSED = [  # whose fits do not depend on draws of rows or masks
    name
    for name, (model, _) in MODELS.items()
    if getattr(model, "objective", "") == "lml" or name == "imputer of a model"
]
N_KEPT = 40
# Models with priors that count as rows.
HAVE_PRIORS = (
    "mixture, low_rank",
    "mixture, counts",
    "mixture, table",
    "classes",
    "items",
    "network",
)


def some(X, rows):
    return X.iloc[rows].reset_index(drop=True) if hasattr(X, "iloc") else X[rows]


def another_world(X):
    """Return rows of which the last are unlike the others, with another category."""
    X = X.copy()
    if hasattr(X, "iloc"):
        X.loc[N_KEPT:, "x"] *= -1000
        X.loc[N_KEPT:, "z"] = "c"
    elif np.nanmax(X) > 1:
        X[N_KEPT:, 1] *= -1000
    else:
        X[N_KEPT:, 0] = 1 - X[N_KEPT:, 1]
    return X


def result(model, X):
    if isinstance(model, MPTImputer):
        return [np.asarray(model.transform(X)), np.asarray(model.score(X))]
    return [model.score_samples(some(X, np.arange(3)))]


def assert_same(one, other, **tolerance):
    for a, b in zip(one, other, strict=True):
        if a.dtype == object:
            assert_array_equal(a[:, 2], b[:, 2])
            a, b = (part[:, :2].astype(float) for part in (a, b))
        assert_allclose(a, b, **tolerance)


def test_all_estimators_are_here():
    named = {type(model).__name__ for model, _ in MODELS.values()}
    estimators = {
        name
        for name in sklearn_mpt.__all__
        if "sample_weight"
        in inspect.signature(getattr(getattr(sklearn_mpt, name), "fit", id)).parameters
    }
    assert named == estimators


@functools.cache
def rows_and_result_of_kept(name):
    model, X = MODELS[name]
    kept = some(X, np.arange(N_KEPT))
    return kept, result(clone(model).fit(kept), kept)


def with_empty_rows(X, n_rows=20):
    """Return rows, of which the last have no entry."""
    rows = np.minimum(np.arange(len(X) + n_rows), len(X) - 1)
    X = some(X, rows)
    if hasattr(X, "iloc"):
        X.loc[len(X) - n_rows :] = np.nan
    else:
        X[-n_rows:] = np.nan
    return X


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_almost_no_weight_or_without_entries_count_nothing(name):
    model, X = MODELS[name]
    kept, expected = rows_and_result_of_kept(name)
    weight = np.repeat([1.0, 1e-9, 1.0], [N_KEPT, len(X) - N_KEPT, 20])
    more = with_empty_rows(another_world(X))
    fitted = clone(model).fit(more, sample_weight=weight)
    assert_same(result(fitted, kept), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_weights_that_count_no_rows_are_refused_by_name(name):
    model, X = MODELS[name]
    for weight in (1e200, 1e-200, np.inf, np.nan):
        with pytest.raises(ValueError, match="sample_weight"):
            clone(model).fit(X, sample_weight=np.full(len(X), weight))


@pytest.mark.parametrize("name", CLOSED)
def test_a_weight_of_two_is_the_row_twice(name):
    model, X = MODELS[name]
    weight = np.random.default_rng(1).integers(0, 3, len(X))
    twice = some(X, np.repeat(np.arange(len(X)), weight))
    fitted = clone(model).fit(X, sample_weight=weight)
    assert_same(result(fitted, X), result(clone(model).fit(twice), X), atol=2e-3)


@functools.cache
def score_with_weights_of_one(name):
    model, X = MODELS[name]
    return clone(model).fit(X, sample_weight=np.ones(len(X))).score(X)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_weight_of_all_rows_changes_nothing_or_is_warned_of(name):
    model, X = MODELS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = clone(model).fit(X, sample_weight=np.full(len(X), 1 / 300))
    said = [str(w.message) for w in caught if "adds up to 0.2" in str(w.message)]
    if name in HAVE_PRIORS:
        assert len(said) == 1
    else:
        assert not said
        change = fitted.score(X) - score_with_weights_of_one(name)
        assert abs(change) < 1e-6


TAKE_WEIGHTS = [
    pytest.param(name, method, id=f"{name}-{method}")
    for name in ("ppca", "factor analysis", "linear, table", "mixture", "items")
    for method in dir(type(MODELS[name][0]))
    if not method.startswith(("_", "fit", "partial_fit", "set_"))
    and callable(function := getattr(type(MODELS[name][0]), method))
    and "sample_weight" in inspect.signature(function).parameters
    and (name, method) != ("linear, table", "factor_loadings")  # of numbers only
    and method != "dif"  # fits as many models as there are items
]


@pytest.mark.parametrize(("name", "method"), TAKE_WEIGHTS)
@pytest.mark.filterwarnings("ignore")  # of standard errors of few rows
def test_methods_take_a_weight_of_two_as_the_row_twice(name, method):
    model, X = MODELS[name]
    if name == "items":
        X = np.nan_to_num(np.hstack([X, X[:, ::-1] * np.roll(X, 1, axis=0)]))
    weight = np.random.default_rng(1).integers(0, 3, len(X))
    model = clone(model).fit(X, sample_weight=weight)
    index = np.repeat(np.arange(len(X)), weight)
    given = {
        "group": np.arange(len(X)) % 2,
        "covariates": np.cos(np.arange(len(X)))[:, None],
        "outcome": np.sin(np.arange(len(X))),
        "nested": clone(model).set_params(max_iter=0),
    }
    if method == "likelihood_ratio_test":  # refuses priors
        model = clone(model).set_params(slope_prior=None).fit(X, sample_weight=weight)
        given["nested"] = clone(model).set_params(model="rasch").fit(X)
    names = inspect.signature(getattr(model, method)).parameters
    given = {key: value for key, value in given.items() if key in names}
    more = {k: v if k == "nested" else v[index] for k, v in given.items()}
    weighted = getattr(model, method)(X=X, sample_weight=weight, **given)
    twice = getattr(model, method)(X=some(X, index), **more)
    assert_near(plain_of(weighted), plain_of(twice))


def assert_near(one, other):
    if isinstance(one, dict):
        return [assert_near(one[key], other[key]) for key in one]
    if isinstance(one, list):
        return [assert_near(a, b) for a, b in zip(one, other, strict=True)]
    if np.asarray(one).dtype.kind == "f":
        assert_allclose(one, other, rtol=1e-5, atol=1e-8)
    else:
        assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["imputer", "imputer, table", "imputer of a model"])
def test_scores_of_imputers_weigh_rows(name):
    model, X = MODELS[name]
    model = clone(model).fit(X)
    first, both = (
        model.score(X, sample_weight=np.where(np.arange(len(X)) < N_KEPT, 2.0, other))
        for other in (0.0, 2.0)
    )
    assert first == pytest.approx(model.score(some(X, np.arange(N_KEPT))), rel=1e-9)
    assert both == pytest.approx(model.score(X), rel=1e-12)


def test_draws_for_several_tables_are_of_rows_that_count():
    X = another_world(numbers())
    weight = np.where(np.arange(len(X)) < N_KEPT, 1.0, 0.0)
    imputer = MPTImputer(
        MPTProbabilisticPCA(1, **LML), n_imputations=2, random_state=0
    ).fit(X, sample_weight=weight)
    tables = imputer.transform_multiple(X)
    kept = X[:N_KEPT]
    for table in tables:
        assert np.abs(table[:N_KEPT]).max() < 10
    with pytest.raises(
        ValueError, match="fit had sample_weight, and X is another table"
    ):
        imputer.transform_multiple(kept)
    again = imputer.transform_multiple(kept, sample_weight=np.ones(N_KEPT))
    assert len(again) == 2
    with pytest.raises(ValueError, match="must add up to at least 2"):
        imputer.transform_multiple(X, sample_weight=weight / 100)


def test_many_more_rows_leave_little_doubt_about_models():
    """A weight of 100 is a hundred rows: tables differ by draws of entries alone."""
    X = numbers()
    X[0] = [3.0, np.nan, np.nan]
    model = MPTProbabilisticPCA(1, **LML)
    spread = []
    for weight in (1.0, 100.0):
        imputer = MPTImputer(model, n_imputations=20, random_state=0)
        imputer.fit(X, sample_weight=np.full(len(X), weight))
        many = np.vstack([X[[0]]] * 300 + [X])
        count = np.r_[np.full(300, 1e-3 * weight), np.full(len(X), weight)]
        tables = imputer.transform_multiple(many, sample_weight=count)
        spread.append(np.std([table[:300, 1].mean() for table in tables]))
    assert spread[1] < 0.7 * spread[0]


# Linear models, and what holds models


def rows(n_samples=150, n_features=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_samples, 1)) * np.linspace(0.5, 1.5, n_features)
    return X + rng.normal(size=X.shape)


def holes(X):
    return np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


def binary(n_samples=150, n_features=4):
    return (rows(n_samples, n_features) > 0.3).astype(float)


def counted_table():
    """Counts, counts and one of three categories, with holes."""
    rate = np.exp(0.5 * rows()[:, :2])
    counts = np.random.default_rng(3).poisson(rate).astype(float)
    return holes(np.column_stack([counts, rows()[:, 2].round().clip(-1, 1) + 1]))


KINDS = ["poisson", "poisson", "categorical"]
LINEAR = {
    "ppca with gaps": (MPTProbabilisticPCA(1), holes(rows())),
    "factor analysis": (MPTLinearVAE(1, noise="per_feature"), rows()),
    "shared nodes": (MPTLinearVAE(1, likelihood="bernoulli"), binary(n_features=10)),
    "own nodes": (MPTLinearVAE(1, likelihood=KINDS), counted_table()),
}
WEIGHT = np.random.default_rng(2).integers(0, 4, 150)


def repeated(X):
    index = np.repeat(np.arange(len(X)), WEIGHT)
    return X[index]


@pytest.mark.parametrize("name", LINEAR)
def test_masks_reach_the_same_optimum(name):
    model, X = clone(LINEAR[name][0]).set_params(random_state=0), LINEAR[name][1]
    exact = clone(model).set_params(objective="lml", tol=1e-6)
    best = exact.fit(X, sample_weight=WEIGHT).score(X, sample_weight=WEIGHT)
    unweighted = clone(exact).fit(X).score(X, sample_weight=WEIGHT)
    by_masks = model.fit(X, sample_weight=WEIGHT).score(X, sample_weight=WEIGHT)
    assert best - by_masks < 2e-3
    assert best - unweighted > 5e-3


def test_bound_of_weighted_rows_is_that_of_repeated_ones():
    model = MPTLinearVAE(
        1, likelihood="bernoulli", objective="elbo", random_state=0, tol=1e-8
    )
    weighted, twice = (
        clone(model).fit(binary(), None, WEIGHT),
        model.fit(repeated(binary())),
    )
    assert weighted.loss_curve_[-1] == pytest.approx(twice.loss_curve_[-1], abs=1e-5)


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_starts_of_all_kinds_are_those_of_repeated_rows(kind):
    X = np.exp(rows())
    if kind == "bernoulli":
        X = binary()
    elif kind not in ("gaussian", "interval", "lognormal"):
        X = np.minimum(np.floor(X), 3.0)
    model = MPTLinearVAE(1, likelihood=kind, init="pca", max_iter=0, random_state=0)
    weighted, twice = clone(model).fit(X, None, WEIGHT), clone(model).fit(repeated(X))
    assert_allclose(weighted.components_, twice.components_, atol=1e-10)


def test_a_stream_of_weighted_parts_is_that_of_repeated_ones():
    X, model = rows(), MPTProbabilisticPCA(1, objective="lml", random_state=0)
    weighted, twice = clone(model), clone(model)
    for _ in range(5):
        weighted.partial_fit(X, sample_weight=WEIGHT)
        twice.partial_fit(repeated(X))
    assert_allclose(weighted.components_, twice.components_)


@pytest.mark.parametrize("kind", [MPTProbabilisticPCA, MPTDeepVAE])
def test_weights_that_are_none_are_refused(kind):
    model, X = kind(1, max_iter=0), rows(5)
    for wrong, match in (
        (-np.ones(5), "Negative values in data passed to `sample_weight`"),
        (np.zeros(5), "at least one non-zero"),
        (np.ones(4), r"sample_weight.shape == \(4,\), expected \(5,\)"),
        (np.full(5, np.nan), "sample_weight contains NaN"),
        (np.full(5, 1e308), "adds up to inf, but a weight of 1 is a row"),
        (np.full(5, 1e200), r"adds up to 5e\+200, but a weight of 1 is a row"),
        (np.full(5, 1e-200), "adds up to 5e-200, .* divide them by their mean"),
    ):
        fitted = clone(model).fit(X)
        for method in (model.fit, model.partial_fit, fitted.score):
            with pytest.raises(ValueError, match=match):
                method(X, sample_weight=wrong)


def test_weights_find_their_way_through_a_pipeline():
    model = MPTProbabilisticPCA(1, objective="lml", random_state=0)
    with config_context(enable_metadata_routing=True):
        scale = StandardScaler().set_fit_request(sample_weight=False)
        pipe = make_pipeline(scale, clone(model).set_fit_request(sample_weight=True))
        pipe.fit(rows(), sample_weight=WEIGHT)
    Z = StandardScaler().fit_transform(rows())
    expected = model.fit(Z, sample_weight=WEIGHT)
    assert_array_equal(pipe[-1].transform(Z), expected.transform(Z))


def test_an_imputer_hands_weights_on():
    X, model = holes(rows()), MPTProbabilisticPCA(1, objective="lml", random_state=0)
    imputer = MPTImputer(model).fit(X, sample_weight=WEIGHT)
    assert_array_equal(imputer.transform(X), model.fit(X, None, WEIGHT).impute(X))


def test_an_imputer_hands_no_weights_to_who_takes_none():
    class Unweighted(MPTProbabilisticPCA):
        def fit(self, X, y=None):
            return super().fit(X)

    with pytest.raises(TypeError, match=r"Unweighted\.fit\(\) got .* 'sample_weight'"):
        MPTImputer(Unweighted()).fit(rows(), sample_weight=WEIGHT)
