"""How rows are read: what is no number, names of columns, categories, messages."""

import datetime
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import MPTDeepVAE, MPTImputer, MPTLinearVAE, MPTProbabilisticPCA

N = 12
DAYS = pd.date_range("2020", periods=N)
SETTINGS = {"n_components": 1, "max_iter": 0, "random_state": 0}
MODELS = {
    "ppca": MPTProbabilisticPCA(**SETTINGS),
    "linear": MPTLinearVAE(**SETTINGS),
    "table": MPTLinearVAE(likelihood=["gaussian"] * 2, **SETTINGS),
    "from_dtype": MPTLinearVAE(likelihood="from_dtype", **SETTINGS),
    "deep": MPTDeepVAE(hidden_layer_sizes=(4,), **SETTINGS),
    "imputer": MPTImputer(),
}
NO_NUMBERS = {
    "days": (DAYS, "dates|Datetime"),
    "days in a zone": (DAYS.tz_localize("UTC"), "dates|Datetime"),
    "timestamps": (pd.Series(DAYS).astype(object), "dates|Datetime"),
    "python dates": ([datetime.date(2020, 1, 1 + i) for i in range(N)], "dates|Date"),
    "numpy dates": (np.arange(N).astype("M8[D]"), "dates|Datetime"),
    "times": ([datetime.time(i) for i in range(N)], "times of day|Time"),
    "durations": (pd.to_timedelta(np.arange(N), "D"), "durations|Duration"),
    "numpy durations": (list(np.arange(N).astype("m8[D]")), "durations|Duration"),
    "periods": (pd.period_range("2020", periods=N), "period|type Period"),
    "intervals": (pd.interval_range(0, N), "intervals"),
    "complex": (np.arange(N) * 1j, "complex"),
    "bytes": ([b"1", b"2"] * (N // 2), "bytes"),
    "decimals": ([Decimal(i) for i in range(N)], "decimals|Decimal"),
    "python durations": ([datetime.timedelta(i) for i in range(N)], "durations|Dur"),
}
OF_POLARS = ("python dates", "times", "decimals", "python durations")


@pytest.mark.parametrize("name", ["ppca", "linear", "table", "from_dtype", "deep"])
@pytest.mark.parametrize("what", NO_NUMBERS)
@pytest.mark.parametrize("library", [pd, pl])
def test_columns_that_are_no_numbers_are_refused_by_name(what, name, library):
    values, word = NO_NUMBERS[what]
    if (what, name) == ("intervals", "from_dtype"):
        pytest.skip("MPTLinearVAE takes them")
    if library is pl and what not in OF_POLARS:
        pytest.skip("polars has no such columns")
    frame = library.DataFrame({"size": np.arange(N) / 2, "odd": values})
    with pytest.raises((ValueError, TypeError), match=f"Column 'odd' .*({word})"):
        MODELS[name].fit(frame)


ODD_ARRAYS = {
    "dates": np.arange(8).reshape(4, 2).astype("M8[D]"),
    "durations": np.arange(8).reshape(4, 2).astype("m8[s]"),
    "dates in lists": list(np.arange(8).reshape(4, 2).astype("M8[D]")),
    "bytes": np.array([[b"1", b"2"]] * 4),
    "durations among objects": np.array([[np.timedelta64(1, "D"), 1]] * 4, object),
    "decimals": np.array([[Decimal(1), 2]] * 4, object),
}


@pytest.mark.parametrize("what", ODD_ARRAYS)
@pytest.mark.parametrize("name", ["ppca", "linear", "table", "deep", "imputer"])
def test_arrays_that_are_no_numbers_are_refused(what, name):
    if name == "imputer" and ODD_ARRAYS[what][0].dtype == object:
        pytest.skip("MPTImputer reads columns of objects")
    with pytest.raises(ValueError, match=f"X holds {what.split()[0]} .*not numbers"):
        MODELS[name].fit(ODD_ARRAYS[what])


def test_latent_variables_that_are_dates_are_refused():
    fitted = MODELS["ppca"].fit(np.random.default_rng(0).normal(size=(4, 2)))
    with pytest.raises(ValueError, match="holds dates"):
        fitted.inverse_transform(np.arange(2).reshape(2, 1).astype("M8[D]"))


GAPS = [
    [None],
    [pd.NA],
    [np.nan],
    pd.array([pd.NA], dtype="string"),
    pd.array([pd.NA], dtype="Int64"),
    pd.array([pd.NA], dtype="boolean"),
    [pd.NaT],
    pd.Categorical([None], ["x"]),
]


@pytest.mark.parametrize("name", ["ppca", "linear", "from_dtype"])
def test_a_missing_number_is_missing_whatever_its_dtype(name):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(6, 2)), columns=["a", "b"])
    fitted = MODELS[name].fit(frame)
    plain_row = pd.DataFrame({"a": [0.5], "b": [np.nan]})
    mask = np.array([[True, False]])
    for method in (
        fitted.score_samples,
        fitted.transform,
        fitted.impute,
        lambda X: fitted.conditional_log_prob(X, mask),
    ):
        expected = np.asarray(method(plain_row), float)
        for gap in GAPS:
            found = method(pd.DataFrame({"a": [0.5], "b": gap}))
            assert_allclose(np.asarray(found, float), expected, err_msg=repr(gap))
    nulls = pl.DataFrame({"a": [0.5], "b": [None]})
    assert_allclose(fitted.score_samples(nulls), fitted.score_samples(plain_row))


TWICE = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=list("aab"))


@pytest.mark.parametrize("name", ["ppca", "linear", "deep", "from_dtype"])
def test_columns_of_the_same_name_do_no_harm(name):
    gaps = TWICE.mask(np.random.default_rng(1).random(TWICE.shape) < 0.3)
    once = gaps.set_axis(list("abc"), axis=1)
    fitted = MODELS[name].fit(TWICE)
    assert fitted.feature_names_in_.tolist() == ["a", "a.1", "b"]
    found = fitted.score_samples(gaps), np.asarray(fitted.impute(gaps))
    fitted.fit(once.fillna(TWICE.set_axis(list("abc"), axis=1)))
    assert_allclose(found[0], fitted.score_samples(once))
    assert_allclose(found[1], np.asarray(fitted.impute(once)))


def test_an_imputer_keeps_columns_of_the_same_name():
    gaps = TWICE.mask(np.random.default_rng(1).random(TWICE.shape) < 0.3)
    imputer = MPTImputer(MODELS["from_dtype"]).fit(gaps)
    filled = imputer.transform(gaps)
    assert list(filled.columns) == list("aab")
    assert not filled.isna().any().any()
    named = imputer.set_output(transform="pandas").transform(gaps)
    assert list(named.columns) == ["a", "a.1", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        imputer.transform(gaps.set_axis(list("abb"), axis=1))


def test_a_dict_must_name_one_column_each():
    def kinds(likelihood):
        model = MPTLinearVAE(likelihood=likelihood, **SETTINGS)
        return model.fit(TWICE.abs().round()).likelihoods_

    assert kinds({1: "poisson"}) == ["gaussian", "poisson", "gaussian"]
    with pytest.raises(ValueError, match=r"column 'a', and X has 2 .*at \[0, 1\]"):
        kinds({"a": "poisson"})
    with pytest.raises(ValueError, match="names column 'b' twice"):
        kinds({"b": "poisson", 2: "gaussian"})


def test_names_are_made_distinct():
    def distinct(names):
        rows = np.random.default_rng(0).normal(size=(N, len(names)))
        frame = pd.DataFrame(rows, columns=names)
        return MODELS["from_dtype"].fit(frame).feature_names_in_.tolist()

    assert distinct(["a", "b"]) == ["a", "b"]
    assert distinct(["a", "a", "a.1", "a"]) == ["a", "a.2", "a.1", "a.3"]
    assert distinct(["a.1", "a", "a"]) == ["a.1", "a", "a.2"]


@pytest.mark.parametrize(
    "columns",
    [[0, 0, 1], pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])],
)
def test_names_that_are_no_strings_come_back(columns):
    frame = TWICE.set_axis(columns, axis=1).set_axis([7] * N)
    filled = MODELS["from_dtype"].fit(frame).impute(frame.where(frame > 0))
    assert filled.columns.equals(frame.columns)
    assert filled.index.equals(frame.index)
    assert not filled.isna().any().any()


CATEGORIES = {
    "tuples": ([(1, 2), (0, 5)], object),
    "tuples of several lengths": ([(1, 2), (0, 5, 3)], object),
    "zeros at the end": (["a", "a\0"], object),
    "strings": (["a", "b"], "<U1"),
    "booleans": ([False, True], bool),
    "integers": ([3, 8], np.int64),
    "huge integers": ([1, 2**80], object),
    "bytes": ([b"a", b"a\0"], object),
}


@pytest.mark.parametrize("what", CATEGORIES)
def test_categories_are_the_very_values(what):
    values, dtype = CATEGORIES[what]
    column = pd.Series(values * (N // 2)).astype(object)
    frame = pd.DataFrame({"kind": column, "size": np.arange(N) / 2})
    model = MPTLinearVAE(likelihood={"kind": "categorical"}, **SETTINGS).fit(frame)
    assert model.categories_[0].shape == (2,)
    assert model.categories_[0].tolist() == sorted(values)
    assert model.categories_[0].dtype == dtype
    gap = pd.DataFrame({"kind": [None], "size": [1.0]})
    assert model.impute(gap)["kind"][0] in values
    together = model.impute(pd.concat([frame, gap], ignore_index=True))
    assert together["kind"].tolist()[:N] == column.tolist()
    drawn = model.sample(20, random_state=0)
    assert set(drawn["kind"].tolist()) == set(values)
    apart = model.score_samples(frame.iloc[:2].assign(size=0.0))
    assert apart[0] != apart[1]


def test_strings_of_several_types_are_one_kind():
    words = [np.str_("x"), "y"] * (N // 2)
    frame = pd.DataFrame({"a": pd.Series(words, dtype=object), "b": range(N)})
    fitted = MODELS["from_dtype"].fit(frame)
    assert fitted.categories_[0].tolist() == ["x", "y"]
    assert_array_equal(
        fitted.score_samples(frame), fitted.score_samples(frame.astype({"a": "str"}))
    )


def test_tables_without_rows_columns_or_values_are_refused():
    frame = pd.DataFrame({"a": ["x", "y", "x"], "b": [1.0, 2, 4]})
    model = MODELS["from_dtype"]
    with pytest.raises(ValueError, match="0 feature"):
        model.fit(frame[[]])
    with pytest.raises(ValueError, match="0 sample"):
        model.fit(frame[:0])
    with pytest.raises(ValueError, match=r"entries of column\(s\) \['a'\] of X are"):
        model.fit(frame.assign(a=None))
    with pytest.raises(ValueError, match="0 sample"):
        model.fit(frame).score_samples(frame[:0])


def test_messages_show_plain_numbers():
    frame = pd.DataFrame({"a": pd.Series([1, 2, 1, 2], dtype=object), "b": range(4)})
    likelihood = {"a": "categorical", ...: "from_dtype"}
    fitted = MPTLinearVAE(likelihood=likelihood, **SETTINGS).fit(frame)
    strange = frame.assign(a=pd.Series([np.int64(9)] * 4, dtype=object))
    with pytest.raises(ValueError, match=r"in fit: \[9\]; it had \[1, 2\]"):
        fitted.score(strange)
    numbered = frame.set_axis([np.int64(3), np.int64(5)], axis=1)
    with pytest.raises(ValueError, match=r"column 7, .* columns are \[3, 5\]\."):
        MPTLinearVAE(likelihood={np.int64(7): "poisson"}, **SETTINGS).fit(numbered)
    with pytest.raises(ValueError, match=r"got -2\.0"):
        MPTProbabilisticPCA(mask_rate=np.float64(-2)).fit(np.eye(4))


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (MPTProbabilisticPCA(1, random_state=0), [[1.0, 2], [3, 5], [4, 4]]),
        (MPTLinearVAE(1, likelihood="bernoulli"), [[0.0, 1], [1, 0], [0, 0]]),
        (MODELS["deep"], [[1.0, 2], [3, 5], [4, 4]]),
        (MODELS["from_dtype"], {"a": ["x", "y", "x"], "b": [1.0, 2, 4]}),
    ],
)
def test_a_part_that_is_all_missing_changes_nothing(model, rows):
    rows = pd.DataFrame(rows)
    model.fit(rows) if model.max_iter == 0 else model.partial_fit(rows)
    before, n_iter = model.score_samples(rows), model.n_iter_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(rows.iloc[:2].mask([[True, True]] * 2))
    assert_array_equal(model.score_samples(rows), before)
    assert model.n_iter_ == n_iter


def test_a_later_part_of_zeros_and_ones_is_not_warned_of():
    model = MPTProbabilisticPCA(1, random_state=0)
    table = MPTLinearVAE(1, random_state=0)
    for some in (model, table):
        some.partial_fit([[1.0, 2], [3, 5], [4, 4]])
        some.partial_fit([[0.0, 1.0]])
        assert some.n_iter_ == 2


def test_initial_arrays_that_hold_nan_are_told_so():
    init = {"components": [[1.0, np.nan]], "mean": [0.0, 0], "noise_variance": 1.0}
    with pytest.raises(
        ValueError, match=r"'components'\] must be finite, but 1 of its"
    ):
        MPTProbabilisticPCA(1, init=init).fit([[1.0, 2], [3, 5]])
    init["components"] = [[1.0, 2.0, 3.0]]
    match = r"must have shape \(1, 2\), got shape \(1, 3\)"
    with pytest.raises(ValueError, match=match):
        MPTProbabilisticPCA(1, init=init).fit([[1.0, 2], [3, 5]])
