"""Rows of any container, measured by functions that do with them what they like."""

import functools
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import (
    MPTLinearVAE,
    check_masked_model,
    compare_lml,
    feature_contributions,
    lml_samples,
    mpt_curve,
)

MEASURES = {
    **{
        design: functools.partial(mpt_curve, design=design, n_masks=2, random_state=0)
        for design in ("balanced", "independent")
    },
    "neyman": functools.partial(
        mpt_curve, allocation="neyman", n_masks=3, random_state=0
    ),
    "lml_samples": functools.partial(lml_samples, n_orders=2, random_state=0),
    "feature_contributions": functools.partial(
        feature_contributions, n_orders=2, random_state=0
    ),
    "compare_lml": lambda model, X: compare_lml(
        [model, model], X, n_orders=2, random_state=0
    ),
    "check_masked_model": functools.partial(
        check_masked_model, n_masks=2, random_state=0
    ),
}


def no_joint(X, mask):
    visible = np.where(mask | np.isnan(X), 0.0, X)
    mean = visible.sum(axis=1, keepdims=True) / X.shape[1]
    log_prob = -((X - mean) ** 2) - 0.5 * np.log(np.pi)
    return np.where(mask & ~np.isnan(X), log_prob, 0.0)


def writes(X, mask):
    log_prob = no_joint(X, mask)
    X[:] = 0
    mask[:] = True
    return log_prob


def writes_by_torch(X, mask):
    """torch writes to read-only arrays, too."""
    rows, hidden = torch.from_numpy(X), torch.from_numpy(mask)
    log_prob = no_joint(X, mask)
    rows.zero_()
    hidden.zero_()
    return log_prob


def writes_its_result_into_the_rows(X, mask):
    X[:] = no_joint(X, mask)
    return X


class Buffered:
    """A function that returns the same array every time."""

    def __init__(self):
        self.buffer = np.empty((100, 5))

    def __call__(self, X, mask):
        result = self.buffer[: len(X)]
        result[:] = no_joint(X, mask)
        return result


FUNCTIONS = [writes, writes_by_torch, writes_its_result_into_the_rows, Buffered()]


def numbers_of(result):
    if isinstance(result, np.ndarray) or result is None:
        return np.nan_to_num(np.asarray(result, dtype=float))
    names = ("scores", "log_prob", "lml")  # of curves, of orders, of comparisons
    return next(getattr(result, name) for name in names if hasattr(result, name))


@pytest.fixture(params=["Fortran", "memory map", "frame", "masked"])
def rows(request, tmp_path):
    """Rows in a container, and as a plain array."""
    X = np.random.default_rng(0).normal(size=(12, 5))
    X[2, 3] = X[5, 1] = np.nan
    joblib.dump(X, tmp_path / "X")
    containers = {
        "Fortran": np.asfortranarray(X),
        "memory map": joblib.load(tmp_path / "X", mmap_mode="r"),
        "frame": pd.DataFrame(X),
        "masked": np.ma.masked_array(np.nan_to_num(X), np.isnan(X)),
    }
    return containers[request.param], X


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: getattr(f, "__name__", f))
@pytest.mark.parametrize("name", MEASURES)
def test_what_a_function_does_to_its_rows_changes_nothing(name, function, rows):
    rows, X = rows
    before = np.array(rows)
    result = MEASURES[name](function, rows)
    assert_array_equal(np.asarray(rows), before)
    expected = MEASURES[name](no_joint, X)
    assert_allclose(numbers_of(result), numbers_of(expected), rtol=1e-12)


class Hooked:
    def conditional_log_prob(self, X, mask):
        return no_joint(X, mask)

    def mean_masked_scores(self, X, masks):
        X[:] = 0
        return np.zeros(len(masks))


@pytest.mark.parametrize("design", ["balanced", "independent"])
def test_optional_methods_that_write_are_stopped(design):
    X = np.ones((3, 4))
    with pytest.raises(ValueError, match="read-only"):
        mpt_curve(Hooked(), X, design=design, n_masks=2)
    assert_array_equal(X, 1)


def test_a_density_estimator_that_writes_does_no_harm():
    from sklearn.mixture import GaussianMixture

    class Writing(GaussianMixture):
        def score_samples(self, X):
            X[:] = 0
            return np.zeros(len(X))

    X = np.random.default_rng(0).normal(size=(20, 2))
    before = X.copy()
    models = [Writing().fit(before), GaussianMixture().fit(before)]
    assert compare_lml(models, X).lml[0] == 0
    assert_array_equal(X, before)


@pytest.fixture(scope="module")
def table():
    """Columns of several kinds as dict, and where they are missing."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=30)
    columns = {
        "height": 170 + 10 * z,
        "goals": rng.poisson(np.exp(0.5 * z)),
        "team": np.where(z > 0, "x", "y"),
        "won": z + rng.normal(size=30) > 0,
    }
    return columns, rng.random((30, 4)) < 0.2


def in_pandas(columns, missing):
    frame = pd.DataFrame(columns)
    frame = frame.astype({"goals": "Int64", "team": "category", "won": "boolean"})
    return frame.mask(missing)


def in_polars(columns, missing):
    return pl.DataFrame(
        {
            name: np.where(missing[:, j], None, own).tolist()
            for j, (name, own) in enumerate(columns.items())
        }
    )


def as_strings(columns, missing):
    frame = in_pandas(columns, missing)
    return frame.astype({"team": "string", "height": "Float64", "won": object})


FRAMES = [in_pandas, in_polars, as_strings]
KINDS = ["gaussian", "poisson", "categorical", "bernoulli"]


@pytest.fixture(scope="module")
def known_table(table):
    def make(make_frame):
        X = make_frame(*table)
        likelihood = dict(zip(table[0], KINDS, strict=True))
        model = MPTLinearVAE(1, likelihood=likelihood, max_iter=0, random_state=0)
        return model.fit(X), X

    return make


@pytest.mark.parametrize(
    ("name", "make_frame"),
    [(name, FRAMES[i % len(FRAMES)]) for i, name in enumerate(MEASURES)],
)
def test_tables_are_measured_by_every_function(name, make_frame, table, known_table):
    model, X = known_table(make_frame)
    before = X.clone() if isinstance(X, pl.DataFrame) else X.copy()
    result = numbers_of(MEASURES[name](model, X))
    assert np.isfinite(result).all()
    assert X.equals(before)
    if name == "lml_samples":
        assert_allclose(result, model.score_samples(X), atol=1e-3)
    if name == "feature_contributions":
        assert_array_equal(result[table[1]], 0)


@pytest.mark.parametrize("name", ["balanced", "lml_samples"])
def test_a_method_is_measured_as_a_function_of_the_users(name, known_table):
    model, X = known_table(in_polars)
    results = [
        numbers_of(MEASURES[name](function, X))
        for function in (
            model.conditional_log_prob,
            lambda rows, mask: model.conditional_log_prob(rows, mask),
        )
    ]
    assert np.isfinite(results[0]).all()
    assert_allclose(*results)


@pytest.mark.parametrize("make_frame", FRAMES)
def test_an_explanation_has_the_values_of_a_table(make_frame, table, known_table):
    model, X = known_table(make_frame)
    options = {"n_orders": 1, "as_explanation": True}
    explanation = feature_contributions(model, X, **options)
    assert explanation.feature_names == list(table[0])
    columns, missing = table
    for j, own in enumerate(columns.values()):
        entries = explanation.data[:, j]
        assert entries[~missing[:, j]].tolist() == own[~missing[:, j]].tolist()
        assert all(np.isnan(entry) for entry in entries[missing[:, j]])


def test_an_explanation_of_numbers_has_numbers():
    frame = pd.DataFrame({0: pd.array([1, None, 3], "Int64"), 1: [True, False, True]})
    options = {"n_orders": 1, "as_explanation": True}
    explanation = feature_contributions(no_joint, frame, **options)
    assert_array_equal(explanation.data, [[1, 1], [np.nan, 0], [3, 1]])
    assert [type(name) for name in explanation.feature_names] == [int, int]


@pytest.mark.parametrize("make_frame", FRAMES)
def test_a_table_model_that_reads_hidden_values_is_found(make_frame, known_table):
    model, X = known_table(make_frame)

    def cheats(rows, mask):
        entries = rows["height"].to_list()
        heights = np.array([0.0 if pd.isna(v) else v for v in entries])
        heights = np.nan_to_num(heights)
        log_prob = model.conditional_log_prob(rows, mask)
        return np.where(log_prob != 0, log_prob + heights[:, None] * mask[0], 0.0)

    with pytest.raises(ValueError, match=r"when the hidden values of .* changed, for"):
        check_masked_model(cheats, X)


def test_a_frame_of_numbers_is_an_array_to_a_function():
    columns = {"a": [1, None, 3], "b": [True, None, False], "c": [0.5] * 3}
    columns["d"] = [None] * 3
    frame = pd.DataFrame(columns).astype({"a": "Int64"})
    seen = []

    def function(X, mask):
        seen.append(X)
        return no_joint(X, mask)

    lml_samples(function, frame, n_orders=1)
    assert seen[0].dtype == np.float64
    nan = np.nan
    assert_array_equal(
        seen[0], [[1, 1, 0.5, nan], [nan, nan, 0.5, nan], [3, 0, 0.5, nan]]
    )
    lml_samples(function, pl.DataFrame(columns), n_orders=1)
    assert_array_equal(seen[-1], seen[0])


@pytest.mark.parametrize("name", MEASURES)
def test_columns_of_the_same_name(name):
    X = np.random.default_rng(0).normal(size=(12, 3))
    X[1, 1] = np.nan
    frame = pd.DataFrame(X, columns=["a", "a", 3])
    result, expected = (MEASURES[name](no_joint, rows) for rows in (frame, X))
    assert_allclose(numbers_of(result), numbers_of(expected))


def minus_one(X, mask):
    """Conditionals of any table; those of missing entries do not count."""
    return -1.0 * np.broadcast_to(mask, X.shape)


def test_gaps_of_every_kind_are_found():
    """Missing entries have no terms."""
    objects = np.array([[1, None, np.nan, pd.NA, pd.NaT, "x", np.datetime64("NaT")]])
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["x", None], ordered=True),
            "date": [pd.Timestamp("2020"), pd.NaT],
            "object": [True, None],
            "float": pd.array([0.5, None], "Float64"),
        }
    )
    for X, missing in (
        (pd.DataFrame(objects), [[False, True, True, True, True, False, True]]),
        (frame, [[False] * 4, [True] * 4]),
        (pl.DataFrame({"a": [1.0, float("nan"), None]}), [[False], [True], [True]]),
    ):
        terms = feature_contributions(minus_one, X, n_orders=1)
        assert_array_equal(terms, np.where(missing, 0, -1))


def test_hidden_values_change_in_frames_of_the_same_names_kinds_and_index():
    frame = pd.DataFrame(
        {
            "a": pd.Categorical(["x", "y", "z"], ordered=True),
            "b": pd.array([1, 2, None], "Int64"),
            "c": [1.0, 2.0, 3.0],
        },
        index=[7, 7, 3],
    ).set_axis(["a", "a", 0], axis=1)
    seen = []

    def function(X, mask):
        seen.append(X)
        return np.where(X.isna(), 0.0, 2 * minus_one(X, mask))

    check_masked_model(function, frame)
    whole = [X for X in seen if len(X) == 3]
    assert any((X.iloc[:, 0].array != frame.iloc[:, 0].array).any() for X in whole)
    for X in seen:
        assert X.columns.to_list() == ["a", "a", 0]
        assert X.dtypes.to_list() == frame.dtypes.to_list()
    assert all(X.index.to_list() == [7, 7, 3] for X in whole)


@pytest.mark.parametrize("estimator", [no_joint, Hooked()])
def test_frames_without_entries_are_refused(estimator):
    frame = pl.DataFrame({"a": ["x"], "b": ["y"]})
    for X, shape in [(frame.head(0), r"\(0, 2\)"), (frame.select([]), r"\(0, 0\)")]:
        with pytest.raises(ValueError, match=f"one row and one column, got .* {shape}"):
            mpt_curve(estimator, X)


def test_a_function_that_takes_no_shared_mask_breaks_the_contract():
    def function(X, mask):
        return no_joint(X, mask) * (mask.sum(axis=1, keepdims=True) > 0)

    X = np.random.default_rng(0).normal(size=(5, 3))
    with pytest.raises(ValueError, match=r"one, of shape \(3,\), it raised AxisError"):
        check_masked_model(function, X)
    expected = lml_samples(no_joint, X, random_state=0)
    assert_allclose(lml_samples(function, X, random_state=0), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", [n for n in MEASURES if n != "check_masked_model"])
def test_an_answer_that_is_no_log_probability_is_named(name, value, monkeypatch):
    """Rows are counted from the first of all, not from that of a block."""
    monkeypatch.setattr("sklearn_mpt._measure.orders.CACHE_ENTRIES", 10)
    X = np.random.default_rng(0).normal(size=(12, 5))
    X[7, 3] = 100

    def function(X, mask):
        return np.where(mask, np.where(X > 50, value, -(X**2) - 1), 0.0)

    with pytest.raises(ValueError, match=rf"got {value} at feature 3 of row 7, for th"):
        MEASURES[name](function, X)


@pytest.mark.parametrize("measure", [mpt_curve, lml_samples, feature_contributions])
def test_the_default_random_state_is_that_of_the_model(measure):
    X = np.random.default_rng(0).normal(size=(6, 9))
    model = SimpleNamespace(conditional_log_prob=no_joint, random_state=3)
    results = [measure(model, X, **options) for options in ({}, {"random_state": 3})]
    assert_array_equal(*map(numbers_of, results))


def test_a_row_of_probability_zero():
    X = np.random.default_rng(0).normal(size=(12, 5))
    X[7, 3] = 100

    def function(X, mask):
        return np.where(mask, np.where(X > 50, -np.inf, no_joint(X, mask)), 0.0)

    log_prob, error = lml_samples(function, X, n_orders=3, return_std=True)
    is_it = np.arange(12) == 7
    assert_array_equal(np.isneginf(log_prob), is_it)
    assert_array_equal(np.isnan(error), is_it)
    values, errors = feature_contributions(function, X, n_orders=4, return_std=True)
    assert_array_equal(np.argwhere(np.isneginf(values)), [[7, 3]])
    assert_array_equal(np.argwhere(np.isnan(errors)), [[7, 3]])
    with pytest.raises(ValueError, match=r"'one' is -inf at row 7"):
        compare_lml({"one": function, "two": no_joint}, X)
