"""Tables of several kinds of columns: reading, models of them, and filling in."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from tables import codes_of, some_table, with_gaps

from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTImputer,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
)

KINDS = ["gaussian", "bernoulli", "categorical", "poisson"]


LIKELIHOOD = {"smokes": "bernoulli", "level": "categorical", "visits": "poisson"}


def model(**changes):
    settings = {"n_components": 1, "likelihood": LIKELIHOOD, "random_state": 0}
    return MPTLinearVAE(**(settings | changes))


@pytest.fixture(scope="module")
def frame():
    return some_table()


@pytest.fixture(scope="module")
def fitted(frame):
    return model().fit(with_gaps(frame))


def kinds_of(likelihood, X):
    return MPTLinearVAE(1, likelihood=likelihood, max_iter=0).fit(X).likelihoods_


def test_kinds_come_from_names_sequences_dicts_and_dtypes(frame):
    X = np.eye(3, 4, 1) + np.eye(3, 4)
    assert kinds_of(KINDS, X) == KINDS
    assert kinds_of({3: "poisson"}, X) == ["gaussian"] * 3 + ["poisson"]
    reordered = pd.DataFrame(
        X, columns=[3, 2, 1, 7]
    )  # numbers that are names come first
    assert kinds_of({3: "poisson"}, reordered) == ["poisson"] + ["gaussian"] * 3
    assert kinds_of({0: "poisson"}, reordered) == ["poisson"] + ["gaussian"] * 3
    fitted = model(max_iter=0).fit(frame)
    assert fitted.likelihoods_ == KINDS
    assert fitted.categories_[2].tolist() == ["high", "low", "mid"]
    expected = ["gaussian", "bernoulli", "categorical", "gaussian"]
    assert kinds_of("from_dtype", frame) == expected


def test_tables_of_polars_are_read_as_those_of_pandas(frame):
    polars = pytest.importorskip("polars")
    other = polars.DataFrame(
        {
            name: [None if x != x else kind(x) for x in with_gaps(frame)[name]]
            for name, kind in zip(frame, (float, bool, str, int), strict=True)
        },
        schema_overrides={"level": polars.Categorical, "visits": polars.Int64},
    )
    assert kinds_of("from_dtype", other) == kinds_of("from_dtype", frame)
    one, twin = (model().fit(table) for table in (with_gaps(frame), other))
    assert_array_equal(one.score_samples(with_gaps(frame)), twin.score_samples(other))
    filled = twin.impute(other)
    assert filled.schema == other.schema
    assert filled.null_count().sum_horizontal().item() == 0


def test_training_by_masks_reaches_the_likelihood_of_a_table(fitted, frame):
    rows = with_gaps(frame)
    by_likelihood = model(objective="lml").fit(rows)
    assert by_likelihood.score(rows) == pytest.approx(fitted.score(rows), abs=3e-3)
    last = by_likelihood.loss_curve_[-1]  # in the units of the rows
    assert last == pytest.approx(-by_likelihood.score(rows), abs=0.01)
    assert fitted.score(rows) > model(max_iter=0).fit(rows).score(rows) + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"mask_rate": 2}, {"objective": "elbo"}])
def test_other_objectives_come_near_it(changes, fitted, frame):
    rows = with_gaps(frame)
    assert model(**changes).fit(rows).score(rows) > fitted.score(rows) - 0.03


def test_masked_scores_add_up_to_the_score(fitted, frame):
    rows = with_gaps(frame)[:30]
    total = 0
    for code in range(1, 16):
        mask = np.array([code >> j & 1 for j in range(4)], dtype=bool)
        share = 1 / (mask.sum() * [0, 4, 6, 4, 1][mask.sum()])
        total = total + share * fitted.conditional_log_prob(rows, mask).sum(axis=1)
    assert_allclose(total, fitted.score_samples(rows), atol=2e-3)


def test_units_of_a_column_shift_its_density_alone(frame):
    rows = with_gaps(frame)
    metres = rows.assign(height=rows["height"] / 100)
    one, other = (model().fit(X).score_samples(X) for X in (rows, metres))
    expected = np.log(100) * rows["height"].notna()
    assert_allclose(other - one, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "error", "match"),
    [
        (KINDS[:3], ValueError, r"likelihood must have shape \(n_columns,\) = \(4,\)"),
        ("nominal", ValueError, "likelihood must be one of"),
        ({"age": "poisson"}, ValueError, "a column 'age', which X does not have"),
        ({"level": "nominal"}, ValueError, "likelihood of column 'level' must be"),
        (3, TypeError, "likelihood must be a name, a sequence"),
        ("gaussian", ValueError, "Column 'level' holds .*not numbers"),
        (["gaussian"] * 4, ValueError, "Column 'level' holds strings .*not numbers"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(likelihood, error, match, frame):
    with pytest.raises(error, match=match):
        model(likelihood=likelihood).fit(frame)


def test_columns_that_are_no_categories_are_refused(frame):
    mixed = frame.assign(level=pd.Series([1, "a"] * 100, dtype=object))
    with pytest.raises(TypeError, match="Column 'level' mixes numbers and strings"):
        model().fit(mixed)
    single = frame.assign(level=pd.Categorical(["low"] * 200))
    with pytest.raises(ValueError, match="Column 'level' has one category, 'low'"):
        model().fit(single)
    with pytest.raises(ValueError, match="Column 2: categories of an array are codes"):
        model(likelihood=KINDS).fit(np.full((5, 4), 0.5))


CODES = np.array([[1.0, 0, 0, 2], [2.0, 1, 1, 0], [3.0, 0, 2, 1], [0.5, 1, 0, 3]])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ([0, 0, 0, -3], "Column 3: likelihood='poisson' takes counts .*as -3, -2, -1"),
        ([0, 0, 0, 0.5], "Column 3: likelihood='poisson' takes counts .* as 0.5"),
        ([0, 0.5, 0, 0], "Column 1: likelihood='bernoulli' takes rows of 0, 1"),
        ([0, 0, 0.5, 0], "Column 2: categories of an array are codes"),
        ([0, 0, -1, 0], r"Column 2: categories .* found -1"),
    ],
)
def test_values_that_no_feature_takes_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        model(likelihood=KINDS).fit(CODES + change)


def test_codes_not_seen_in_training_are_refused():
    fitted = model(likelihood=KINDS, max_iter=0).fit(CODES)
    with pytest.raises(
        ValueError, match=r"Column 2 has categories .* \[3\.0\]; it had"
    ):
        fitted.score(np.add(CODES, [0, 0, 1, 0]))
    with pytest.raises(ValueError, match="Column 3: likelihood='poisson' takes counts"):
        fitted.score(CODES - [0, 0, 0, 3])


def test_a_column_that_broke_a_rule_of_all_is_named():
    with pytest.raises(ValueError, match="Column 0: likelihood='poisson' takes counts"):
        model(likelihood="poisson").fit(CODES)
    frame = pd.DataFrame(CODES[:, [1, 2]], columns=["fine", "more"])
    for likelihood in ("bernoulli", ["bernoulli"] * 2):
        with pytest.raises(ValueError, match=r"Column 'more': .* other values, .* 2\."):
            model(likelihood=likelihood).fit(frame)
    empty = frame.assign(none=np.nan)
    with pytest.raises(ValueError, match=r"entries of column\(s\) \['none'\] of X"):
        model(likelihood="poisson").fit(empty)


def test_objects_that_are_no_categories_are_refused(fitted, frame):
    lists = frame.assign(level=pd.Series([[1]] * len(frame), dtype=object))
    match = "Column 'level' holds objects that are no categories: unhashable type"
    with pytest.raises(TypeError, match=match):
        model(likelihood="from_dtype").fit(lists)
    with pytest.raises(TypeError, match=match):
        fitted.score(lists)
    days = frame.assign(day=pd.Timestamp("2020-01-01"))
    with pytest.raises(TypeError, match="Column 'day' has dtype Datetime"):
        model(likelihood="from_dtype").fit(days)


def test_zeros_and_ones_with_a_gaussian_likelihood_are_warned_of():
    X = np.random.default_rng(0).integers(0, 2, (30, 3)).astype(float)
    with pytest.warns(UserWarning, match="likelihood='bernoulli'"):
        MPTLinearVAE(n_components=1, max_iter=0).fit(X)


def test_posterior_is_that_of_a_grid(fitted, frame):
    rows = with_gaps(frame)[:5]
    mean, covariance = fitted.posterior(rows)
    z = np.linspace(-6, 6, 2001)
    log_joint = np.zeros((5, len(z))) - 0.5 * z**2
    codes = codes_of(rows)
    locations = z[:, None] * fitted.components_ + fitted.intercept_
    log_category = (
        locations[:, 2:5] - np.logaddexp.reduce(locations[:, 2:5], 1)[:, None]
    )
    for i, (height, smokes, level, visits) in enumerate(codes):
        if height == height:
            square = (height - locations[:, 0]) ** 2
            log_joint[i] -= 0.5 * square / fitted.noise_variance_[0]
        if smokes == smokes:
            log_joint[i] -= np.logaddexp(0, (1 - 2 * smokes) * locations[:, 1])
        if level == level:
            log_joint[i] += log_category[:, int(level)]
        if visits == visits:
            log_joint[i] += visits * locations[:, 5] - np.exp(locations[:, 5])
    weight = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    expected = weight @ z
    assert_allclose(mean[:, 0], expected, atol=1e-4)
    assert_allclose(covariance[:, 0, 0], weight @ z**2 - expected**2, atol=1e-3)
    assert_allclose(mean, fitted.transform(rows), atol=1e-4)


def test_training_starts_from_fitted_parameters(fitted, frame):
    init = {
        name: getattr(fitted, f"{name}_")
        for name in ("components", "intercept", "noise_variance")
    }
    again = model(init=init, max_iter=0).fit(with_gaps(frame))
    assert_allclose(again.score_samples(frame), fitted.score_samples(frame), rtol=1e-6)
    with pytest.raises(ValueError, match=r"init\['noise_variance'\] must be > 0"):
        model(init=init | {"noise_variance": -init["noise_variance"]}).fit(frame)


def test_a_refit_keeps_nothing_of_another_kind_of_model(frame):
    binary = frame[["smokes"]].astype(float).assign(other=frame["smokes"][::-1].values)
    refitted = model().fit(frame).set_params(likelihood="bernoulli").fit(binary)
    once = model(likelihood="bernoulli").fit(binary)
    assert vars(refitted).keys() == vars(once).keys()
    assert not hasattr(refitted, "likelihoods_")
    assert not hasattr(refitted, "noise_variance_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_components", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_bound_on_the_density_of_categories_is_one(n_components):
    rng = np.random.default_rng(0)
    slopes, noise = rng.normal(size=(4, 6)), rng.normal(size=(16, 6))
    X = np.digitize(rng.normal(size=(16, 4)) @ slopes + noise, [-1, 1]).astype(float)
    settings = {"likelihood": ["categorical"] * 6, "random_state": 0}
    bound = MPTLinearVAE(n_components, objective="elbo", max_iter=3, **settings).fit(X)
    start = MPTLinearVAE(n_components, max_iter=0, **settings).fit(X)
    assert start.score(X) + 0.1 < -bound.loss_curve_[-1] < bound.score(X)


def passengers(n_rows=40):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "name": [f"n{i}" for i in range(n_rows)],
            "sex": ["m", "f"] * (n_rows // 2),
            "age": rng.normal(30, 5, n_rows),
            "day": pd.date_range("2020-01-01", periods=n_rows),
            "ship": "one",
            "cabin": None,
            "mixed": [1, "a"] * (n_rows // 2),
        }
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("likelihood", ["from_dtype", "gaussian"])
@pytest.mark.parametrize("estimator", [MPTMixture(2), MPTLinearVAE(1)])
def test_all_problems_of_columns_are_named_at_once(estimator, likelihood, library):
    X = passengers()
    if library == "polars":
        X = pl.DataFrame(X.drop(columns="mixed").to_dict("list"))
    estimator = clone(estimator).set_params(likelihood=likelihood)
    with pytest.raises(ValueError, match="from_dtype") as caught:
        estimator.fit(X)
    said = str(caught.value)
    assert all(repr(name) in said for name in ("name", "day", "ship"))
    assert (repr("cabin") in said) == (likelihood == "from_dtype")


def test_all_columns_that_are_no_numbers_are_named():
    with pytest.raises(
        ValueError, match="'name', 'sex', 'day', 'ship', 'mixed' hold dates and str"
    ):
        MPTProbabilisticPCA(1).fit(passengers())


def several_dtypes(n_rows=60):
    numbers = np.random.default_rng(0).normal(size=(n_rows, 6))
    words = np.where(numbers[:, :3] > 0, "high", "low")
    return pd.DataFrame(
        {
            "number": numbers[:, 3],
            "whole": np.rint(10 * numbers[:, 4]).astype("int16"),
            "nullable": pd.array(np.rint(9 * numbers[:, 5]).astype(int), dtype="Int64"),
            "word": words[:, 0],
            "level": pd.Categorical(words[:, 1], ["low", "high"], ordered=True),
            "kind": pd.Categorical(words[:, 2]),
            "yes": np.arange(n_rows) % 3 == 0,
        }
    )


@pytest.mark.parametrize("estimator", [MPTMixture(1)])
def test_draws_of_a_model_of_a_dataframe_have_its_names_dtypes_and_categories(
    estimator,
):
    frame = several_dtypes()
    estimator = clone(estimator).set_params(likelihood="from_dtype", random_state=0)
    drawn = estimator.fit(frame).sample(15, random_state=0)
    pd.testing.assert_series_equal(drawn.dtypes, frame.dtypes)
    assert set(drawn["word"]) <= {"low", "high"}
    assert drawn.shape == (15, 7)
    array = clone(estimator).fit(frame).set_output(transform="default").sample(15, 0)
    assert_array_equal(array[:, 3:6], drawn.iloc[:, 3:6])
    other = clone(estimator).fit(frame).set_output(transform="polars").sample(15, 0)
    assert isinstance(other, pl.DataFrame)
    assert other.columns == list(frame)
    assert other["level"].to_list() == drawn["level"].tolist()
    in_polars = pl.DataFrame(frame.drop(columns=["level", "kind"]).to_dict("list"))
    drawn = clone(estimator).fit(in_polars).sample(3, random_state=0)
    assert drawn.schema == in_polars.schema
    filled = estimator.impute(frame.mask(frame["number"] > 1), method="sample")
    assert filled.columns.tolist() == list(frame)


@pytest.mark.parametrize("names", [["a", "b"], [0, 1], ["a", "a"]])
def test_draws_of_numbers_have_the_names_of_the_table(names):
    X = np.random.default_rng(0).normal(size=(30, 2))
    frame = pd.DataFrame(X, columns=names)
    model = MPTProbabilisticPCA(1, max_iter=0, init="pca")
    drawn = model.fit(frame).sample(4, random_state=0)
    assert drawn.columns.tolist() == names
    assert_allclose(drawn, clone(model).fit(X).sample(4, random_state=0), atol=1e-9)
    named = clone(model).fit(X).set_output(transform="pandas").sample(4)
    assert named.columns.tolist() == ["x0", "x1"]
    with config_context(transform_output="polars"):
        assert isinstance(clone(model).fit(X).sample(4), pl.DataFrame)


FAST = [
    MPTLinearVAE(1, max_iter=0),
    MPTMixture(max_iter=1),
    MPTDeepVAE(1, max_iter=0),
    MPTMaskedAutoencoder(max_iter=0),
    MPTDependencyNetwork(classifier=DummyClassifier(strategy="prior")),
    MPTImputer(max_models=1),
]


@pytest.mark.parametrize("estimator", FAST, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_numbers_as_strings_are_not_taken_as_categories_without_a_word(estimator):
    """As of a column of a CSV file in which "?" stands for gaps."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=60), "y": rng.integers(0, 30, 60)})
    X["y"] = X["y"].astype(str).where(X.index > 2, "?")
    line = re.escape("X['y'] = pd.to_numeric(X['y'], errors='coerce')")
    estimator = clone(estimator).set_params(likelihood="from_dtype", random_state=0)
    with pytest.warns(UserWarning, match=f"numbers as strings.*{line}"):
        estimator.fit(X)
    estimator.fit(X.astype({"y": "category"}))  # which the user has chosen
