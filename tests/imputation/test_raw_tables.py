"""MPTImputer on tables as they come: every table with anything to model is served."""

import datetime
import re
import warnings
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.impute import MissingIndicator, SimpleImputer

from sklearn_mpt import MPTImputer, MPTLinearVAE

N = 40
Z = np.random.default_rng(0).normal(size=N)
DAYS = pd.date_range("2020-03-01", periods=N)


def imputer(**params):
    return MPTImputer(**({"max_models": 1, "random_state": 0} | params))


def table(**columns):
    """Two related columns of numbers, one with gaps, and others beside them."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": Z + rng.normal(size=N), "y": 2 * Z + rng.normal(size=N)})
    frame.loc[::7, "y"] = np.nan
    return frame.assign(**columns)


def objects(values, step=5):
    """A column of dtype object in which every fifth entry is None."""
    entries = [None if i % step == 0 else v for i, v in enumerate(values)]
    return pd.Series(entries, dtype=object)


def with_none(values, step=5):
    series = pd.Series(values)
    return series.mask(np.arange(N) % step == 0)


UNMODELLED = {
    "names": ([f"person {i}" for i in range(N)], "40 distinct strings among 40"),
    "text": (objects(f"{i // 2 * 2 if i < 9 else i}" for i in range(N)), "as strings"),
    "mixed objects": (
        objects(i if i % 2 else "a" for i in range(N)),
        "numbers and str",
    ),
    "several time zones": (
        objects(
            day.tz_localize(zone)
            for day, zone in zip(DAYS, ["UTC", "Asia/Tokyo"] * (N // 2), strict=True)
        ),
        "dates in several time zones",
    ),
    "periods": (with_none(pd.period_range("2020", periods=N)), r"dtype period\[D\]"),
    "intervals": (pd.interval_range(0, N), "intervals, which MPTLinearVAE takes"),
    "intervals among numbers": (
        objects(pd.Interval(-np.inf, 0) if i % 3 else Z[i] for i in range(N)),
        "intervals, which MPTLinearVAE takes",
    ),
    "times": (objects(datetime.time(i % 24) for i in range(N)), "times of day"),
    "bytes": (objects([b"a", b"b"] * (N // 2)), "bytes"),
    "decimals": (objects(Decimal(i) for i in range(N)), "decimals"),
    "sets": (objects({i} for i in range(N)), "entries of type set"),
    "arrays": (objects(np.arange(i % 3 + 1) for i in range(N)), "of type ndarray"),
    "dicts": (objects({"a": i} for i in range(N)), "entries of type dict"),
    "tuples": (objects((i % 2, 1) for i in range(N)), "objects of type tuple"),
    "complex": (Z * 1j, "dtype complex128"),
    "infinite": (np.where(np.arange(N) == 3, np.inf, Z), "infinite values"),
    "huge": (1e200 * Z, "squares double precision cannot hold"),
    "tiny": (1e-200 * Z, "squares double precision cannot hold"),
}


@pytest.mark.parametrize("what", UNMODELLED)
def test_columns_without_a_kind_stay_as_they_are(what):
    values, reason = UNMODELLED[what]
    frame = table(odd=values)
    with pytest.warns(
        UserWarning, match=rf"MPTImputer .* 'odd' \(.*{reason}"
    ) as caught:
        filled = imputer().fit_transform(frame)
    assert len(caught) == 1
    pd.testing.assert_series_equal(filled["odd"], frame["odd"])
    assert not filled[["x", "y"]].isna().any(axis=None)


MODELLED = {
    "dates": with_none(DAYS),
    "dates in nanoseconds": with_none(DAYS.astype("M8[ns]")),
    "date objects": objects(DAYS.date),
    "timestamps": objects(DAYS),
    "time zone": with_none(DAYS.tz_localize("Europe/Paris")),
    "time zone by offset": with_none(DAYS.tz_localize("UTC+02:00")),
    "objects with a time zone": objects(DAYS.tz_localize("UTC")),
    "python dates with a time zone": objects(
        datetime.datetime(2020, 3, 1 + i % 28, tzinfo=ZoneInfo("Europe/Paris"))
        for i in range(N)
    ),
    "sparse": pd.arrays.SparseArray(with_none(Z)),
    "sparse with zeros": pd.arrays.SparseArray(
        with_none(np.where(Z > 0, 0, Z)), fill_value=0.0
    ),
    "time differences": with_none(pd.to_timedelta(Z, "D")),
    "difference objects": objects(datetime.timedelta(hours=i) for i in range(N)),
    "integers with NA": pd.array(
        [None if i % 5 == 0 else i for i in range(N)], "Int64"
    ),
    "booleans with None": objects((Z > 0).tolist()),
    "booleans with NA": with_none(Z > 0).astype("boolean"),
    "integers among objects": objects(range(N)),
    "floats among objects": objects(Z.tolist()),
    "strings": objects(np.where(Z > 0, "a", "b").tolist()),
    "string dtype": objects(np.where(Z > 0, "a", "b").tolist()).astype("string"),
    "categories": with_none(pd.Categorical(np.where(Z > 0, "a", "b"))),
    "levels": with_none(pd.Categorical(np.sign(Z) + 1, ordered=True)),
    "cut": with_none(pd.cut(Z, 3)),
    "constant": objects(["k"] * N),
    "constant date": with_none([pd.Timestamp("2020")] * N),
    "constant number": with_none([3.0] * N),
}


@pytest.mark.filterwarnings("ignore:MPTImputer does not model .* one value")
@pytest.mark.parametrize("method", ["mean", "sample"])
@pytest.mark.parametrize("what", MODELLED)
def test_gaps_are_filled_in_the_dtype_and_with_the_values_of_the_column(what, method):
    frame = table(odd=MODELLED[what])
    filled = imputer(method=method).fit_transform(frame)
    before, after = frame["odd"], filled["odd"]
    assert before.isna().any()
    assert after.dtype == before.dtype
    assert not after.isna().any()
    assert (after[before.notna()] == before[before.notna()]).all()
    types = {type(value) for value in before.dropna().tolist()}
    assert {type(value) for value in after.tolist()} == types


def test_dates_are_predicted_from_other_columns_and_rounded_as_those_seen():
    frame = pd.DataFrame({"x": np.arange(200.0)})
    frame["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(3 * frame["x"], "D")
    frame["wait"] = pd.to_timedelta(frame["x"], "h")
    whole = frame.copy()
    frame.loc[5::9, "day"] = None
    frame.loc[2::9, "wait"] = None
    filled = MPTImputer(random_state=0).fit_transform(frame)
    assert (filled["day"] - whole["day"]).abs().max() < pd.Timedelta(30, "D")
    assert (filled["day"].dt.normalize() == filled["day"]).all()
    assert (filled["wait"] - whole["wait"]).abs().max() < pd.Timedelta(10, "h")
    assert (filled["wait"].dt.round("h") == filled["wait"]).all()


@pytest.mark.parametrize("names", [[3, 1], [True, False], [("a", 1), ("a", 2)], "aa"])
def test_names_of_columns_may_be_anything(names):
    frame = table()
    frame.columns = pd.Index(list(names), tupleize_cols=False)
    filled = imputer().fit_transform(frame)
    assert filled.columns.equals(frame.columns)
    assert not filled.isna().any(axis=None)


def polars_table():
    gap = [i % 5 == 0 for i in range(N)]
    columns = {
        "x": Z.tolist(),
        "n": range(N),
        "s": np.where(Z > 0, "a", "b").tolist(),
        "day": list(DAYS.date),
        "time": list(DAYS.to_pydatetime()),
        "wait": [datetime.timedelta(hours=i) for i in range(N)],
        "yes": (Z > 0).tolist(),
    }
    return pl.DataFrame(
        {
            name: [None if g else v for g, v in zip(gap, values, strict=True)]
            for name, values in columns.items()
        }
    ).with_columns(
        name=pl.Series([f"p{i}" for i in range(N)]),
        list=pl.Series([[i] for i in range(N)]),
        never=pl.Series([None] * N),
    )


def test_tables_of_polars_are_served():
    frame = polars_table()
    with pytest.warns(UserWarning, match=r"'name' .*'list' .*'never' \(no values\)"):
        filled = imputer().fit_transform(frame)
    assert filled.schema == frame.drop("never").schema
    assert sum(filled.null_count().row(0)) == 0
    assert filled["name"].equals(frame["name"])


def test_arrays_of_objects_are_read_column_by_column():
    rows = np.array(table(s=objects(np.where(Z > 0, "a", "b"))), dtype=object)
    filled = imputer().fit_transform(rows)
    assert filled.dtype == object
    assert set(filled[:, 2]) == {"a", "b"}
    numbers = imputer().fit_transform(rows[:, :2])
    assert numbers.dtype == np.float64
    assert_array_equal(numbers, imputer().fit_transform(rows[:, :2].astype(float)))
    lists = [[1.0, None, "a"], [2.0, 3.0, "b"], [3.0, 4.5, None], [2.5, 3.1, "a"]]
    assert imputer().fit_transform(lists)[2, 2] in ("a", "b")


def test_numbers_as_strings_are_categories_with_a_hint():
    frame = table(code=objects(str(i % 4) for i in range(N)))
    with pytest.warns(UserWarning, match="Column 'code' holds numbers as strings"):
        filled = imputer().fit_transform(frame)
    assert set(filled["code"]) == set("0123")


@pytest.mark.parametrize("is_ordered", [False, True])
def test_categories_of_pyarrow_in_pandas_keep_their_dtype_and_order(is_ordered):
    pa = pytest.importorskip("pyarrow")
    words = with_none(np.where(Z > 0, "low", "high"))
    values = pd.Categorical(words, ["low", "high"], ordered=is_ordered)
    arrays = pd.arrays.ArrowExtensionArray(pa.array(values))
    frame = table(odd=pd.Series(arrays))
    assert "dictionary" in str(frame["odd"].dtype)
    fitted = imputer().fit(frame)
    assert fitted.estimator_.likelihoods_[-1] == (
        "ordinal" if is_ordered else "categorical"
    )
    filled = fitted.transform(frame)
    assert filled["odd"].dtype == frame["odd"].dtype
    assert not filled.isna().any(axis=None)
    model = MPTLinearVAE(1, likelihood="from_dtype", max_iter=0).fit(frame)
    expected = ["low", "high"] if is_ordered else ["high", "low"]
    assert model.categories_[-1].tolist() == expected
    assert model.impute(frame)["odd"].dtype == frame["odd"].dtype


LOOKS = {
    "thousands": (lambda i: f"{i + 1},{100 + i}", "numbers", 1100.0),
    "amounts": (lambda i: f"${i + 8}.31", "numbers as strings with '$'", 8.31),
    "negative amounts": (lambda i: f"-€1,{100 + i}.5", "'€' and ','", -1100.5),
    "percentages": (lambda i: f"{50 + i}%", "numbers as strings with '%'", 50.0),
    "decimal commas": (lambda i: f"{i},5", "',' before decimals", 0.5),
    "iso dates": (lambda i: f"2020-03-{1 + i % 28:02}", "dates", "2020-03-01"),
    "dates and times": (
        lambda i: f"2020-03-{1 + i % 28:02} 10:20:00",
        "dates",
        "2020-03-01 10:20",
    ),
    "slashes": (lambda i: f"03/{1 + i % 28:02}/2020", "dates", "2020-03-01"),
}


@pytest.mark.parametrize("what", LOOKS)
def test_the_line_that_the_warning_gives_converts_strings(what):
    """Of names of many values, and of columns that are taken as categories."""
    write, contents, first = LOOKS[what]
    for n_values in (N, 4):
        X = table(odd=[write(i % n_values) for i in range(N)])
        with pytest.warns(UserWarning, match=re.escape(contents)) as caught:
            imputer().fit(X)
        said = str(caught[0].message)
        line = said.rpartition("convert them: ")[2].removesuffix(".")
        assert ("taken as categories" in said) == (n_values == 4)
        exec(line, {"pd": pd, "X": X})
        expected = pd.Timestamp(first) if isinstance(first, str) else first
        assert X["odd"][0] == expected
        assert not X["odd"].isna().any()


def test_the_line_is_that_of_the_library_of_the_table():
    strings = [f"${i},100.5" for i in range(1, N + 1)]
    days = [f"2020-03-{1 + i % 28:02}" for i in range(N)]
    frame = pl.DataFrame({"pay": strings, "day": days, "x": Z})
    with pytest.warns(UserWarning, match="numbers as strings") as caught:
        imputer().fit(frame)
    for line in re.findall(
        r"convert them: (.*?\))\.(?: Column|$)", str(caught[0].message)
    ):
        names = {"pl": pl, "X": frame}
        exec(line, names)
        frame = names["X"]
    assert frame["pay"][0] == 1100.5
    assert frame["day"].dtype.is_temporal()


@pytest.mark.parametrize("strings", [["a", "b", "c2"], ["1x", "2", "b"], ["12-3", "x"]])
def test_other_strings_look_like_nothing(strings):
    """A warning would say what they look like."""
    imputer().fit(table(odd=objects(np.resize(strings, N))))


def test_nan_in_an_array_of_strings_is_a_gap():
    strings = np.array([["x", 1.5], ["y", 2.5], [np.nan, 3.5], ["x", np.nan]] * 10)
    assert strings.dtype.kind == "U"
    with pytest.warns(UserWarning, match="numbers as strings"):
        filled = imputer().fit_transform(strings)
    assert set(filled[:, 0]) == {"x", "y"}
    assert set(filled[:, 1]) == {"1.5", "2.5", "3.5"}
    model = MPTLinearVAE(1, likelihood="categorical", max_iter=0).fit(strings)
    assert [len(known) for known in model.categories_] == [2, 3]


REFUSED = {
    "one row": (table()[:1], "1 sample"),
    "no rows": (table()[:0], "0 sample"),
    "no columns": (table()[[]], "0 feature"),
    "nothing present": (table() * np.nan, r"nothing to model: 'x', 'y' \(no values\)"),
    "names alone": (
        pd.DataFrame({"a": [f"p{i}" for i in range(N)], "b": "k"}),
        r"nothing to model: 'a' \(40 distinct .*; 'b' \(one value\).*"
        r"MPTImputer\(likelihood={'a': 'categorical'}\)",
    ),
    "a series": (table()["x"], "2-dimensional"),
    "a vector": (Z, "Expected 2D array"),
    "complex": (np.c_[Z, Z] * 1j, "Complex data not supported"),
    "bytes": (np.array([[b"1", b"2"]] * 4), "X holds bytes"),
    "infinite": (np.full((4, 2), np.inf), r"0, 1 \(infinite values\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tables_with_nothing_to_model_are_refused(what):
    X, match = REFUSED[what]
    with pytest.raises(ValueError, match=match):
        imputer().fit(X)


def test_all_problems_are_in_one_message_and_the_fitted_imputer_stays():
    frame = table(word=np.where(Z > 0, "a", "b"))
    fitted = imputer().fit(frame)
    before = fitted.transform(frame)
    fitted.set_params(likelihood={"q": "gaussian"}, max_value={True: 5})
    match = "likelihood names a column 'q'.*max_value names a column True"
    with pytest.raises(ValueError, match=match):
        fitted.fit(frame)
    fitted.set_params(likelihood="from_dtype", max_value=None)
    pd.testing.assert_frame_equal(fitted.transform(frame), before)
    for bad, match in (
        ({"likelihood": {"x": "poisson"}}, "likelihood of column 'x' must be one of"),
        (
            {"likelihood": {"x": "bernoulli"}},
            "Column 'x': likelihood='bernoulli' takes",
        ),
        ({"random_state": -1}, "random_state must be"),
        ({"missing_values": [1]}, "missing_values"),
    ):
        with pytest.raises(ValueError, match=match):
            imputer(**bad).fit(frame)


def test_likelihood_names_kinds_of_columns():
    frame = table(level=np.arange(N) % 3, word=np.where(Z > 0, "a", "b"))
    kinds = imputer(likelihood={"level": "ordinal"}).fit(frame).estimator_.likelihoods_
    assert kinds == ["gaussian", "gaussian", "ordinal", "categorical"]
    named = imputer(likelihood={"name": "categorical"})
    few = frame.assign(name=[f"p{i // 3}" for i in range(N)])
    assert named.fit(few).estimator_.likelihoods_[-1] == "categorical"


@pytest.mark.parametrize("placeholder", [-1, "?"])
def test_missing_values_may_be_marked(placeholder):
    frame = table(n=np.arange(N), word=np.where(Z > 0, "a", "b"))
    gaps = frame.copy()
    name = "n" if placeholder == -1 else "word"
    gaps.loc[::4, name] = placeholder
    filled = imputer(missing_values=placeholder).fit_transform(gaps)
    assert (filled[name] != placeholder).all()
    nulls = frame.astype({"n": "Int64"})
    nulls.loc[::4, name] = None
    expected = imputer().fit_transform(nulls)
    assert filled[name].tolist() == expected[name].tolist()
    assert_array_equal(filled.dtypes, frame.dtypes)
    marked = np.where(
        np.isnan(table()), placeholder if name == "n" else np.nan, table()
    )
    assert_array_equal(
        imputer(missing_values=placeholder).fit_transform(marked),
        imputer().fit_transform(table().to_numpy()),
    )


def test_a_number_that_marks_gaps_is_no_truth_value():
    frame = table(n=np.arange(N), flag=Z > 0)
    filled = imputer(missing_values=1).fit_transform(frame)
    assert_array_equal(filled["flag"], Z > 0)
    assert filled["n"][1] != 1


def test_integers_beyond_64_bits_are_filled_in():
    whole = [10**20 + 10**18 * i for i in range(N)]
    given = pd.Series(
        [None if i % 5 == 0 else n for i, n in enumerate(whole)], dtype=object
    )
    frame = table(n=given, place=np.arange(N))
    filled = imputer().fit_transform(frame)["n"]
    assert all(isinstance(value, int) for value in filled)
    # a line, which goes on a little outside of what was seen
    error = [abs(value - n) / 10**18 for value, n in zip(filled, whole, strict=True)]
    assert max(error) < 0.1


@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_indicators_are_those_of_scikit_learn(kind):
    frame = table()
    make = {"pandas": pd.DataFrame, "polars": pl.from_pandas, "array": np.array}[kind]
    X = make(frame)
    fitted = imputer(add_indicator=True).fit(X)
    filled, plain = fitted.transform(X), imputer().fit_transform(X)
    assert isinstance(filled, type(X))
    missing = MissingIndicator().fit_transform(frame.to_numpy())
    assert_array_equal(np.asarray(filled), np.hstack([plain, missing]))
    names = fitted.get_feature_names_out().tolist()
    expected = SimpleImputer(add_indicator=True).fit(frame if kind != "array" else X)
    assert names == expected.get_feature_names_out().tolist()
    if kind != "array":
        assert list(filled.columns) == names
    filled = fitted.set_output(transform="pandas").transform(X)
    assert list(filled.columns) == names


def test_empty_columns_are_left_out_or_kept():
    frame = table(never=np.nan, none=objects([None] * N))
    with pytest.warns(UserWarning, match=r"'never', 'none' \(no values\)"):
        fitted = imputer().fit(frame)
    assert list(fitted.transform(frame).columns) == ["x", "y"]
    assert fitted.get_feature_names_out().tolist() == ["x", "y"]
    assert fitted.unmodelled_ == {"never": "no values", "none": "no values"}
    kept = imputer(keep_empty_features=True)
    with pytest.warns(UserWarning, match="no values"):
        filled = kept.fit_transform(frame)
    assert (filled["never"] == 0).all()
    assert filled["none"].isna().all()
    array = frame[["x", "never"]].to_numpy()
    with pytest.warns(UserWarning, match="no values"):
        assert imputer().fit(array).transform(array).shape == (N, 1)


def test_what_transform_cannot_read_is_refused_by_name():
    frame = table(word=np.where(Z > 0, "a", "b"), yes=Z > 0, day=DAYS)
    fitted = imputer().fit(frame)
    with (
        pytest.warns(UserWarning, match="valid feature names"),
        pytest.raises(
            ValueError, match=r"array of numbers, .* column\(s\) 'word', 'day' hold"
        ),
    ):
        fitted.transform(np.zeros((2, 5)))
    with pytest.warns(UserWarning, match="valid feature names"):
        same = fitted.transform(frame.to_numpy())
    assert same.tolist() == fitted.transform(frame).to_numpy().tolist()
    with pytest.raises(ValueError, match="Column 'x' holds strings"):
        fitted.transform(frame.assign(x="a"))
    with pytest.raises(ValueError, match="Column 'yes': likelihood='bernoulli' takes"):
        fitted.transform(frame.assign(yes=5))
    with pytest.raises(ValueError, match="Column 'day' must hold dates, as in fit"):
        fitted.transform(frame.assign(day="2020"))
    with pytest.raises(ValueError, match=r"X contains infinity in column\(s\) \['x'\]"):
        fitted.transform(frame.assign(x=np.inf))


def test_the_order_of_rows_and_of_columns_is_of_no_effect():
    frame = table(word=objects(np.where(Z > 0, "a", "b")), n=np.arange(N) % 7)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(N), rng.permutation(frame.columns)
    how = {"max_models": 4, "random_state": 0}
    plain = MPTImputer(**how).fit_transform(frame)
    reordered = MPTImputer(**how).fit(frame.iloc[rows][columns])
    again = reordered.transform(frame[columns])[frame.columns]
    pd.testing.assert_frame_equal(again, plain, check_exact=False, rtol=1e-9)


def test_scores_leave_out_columns_that_are_not_modelled():
    frame = table()
    names = frame.assign(name=[f"p{i}" for i in range(N)], always=1.0)
    with pytest.warns(UserWarning, match="'name' .*'always'"):
        fitted = imputer().fit(names)
    assert fitted.score(names) == pytest.approx(imputer().fit(frame).score(frame), 0.05)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pd.array([1, 2, None, 4] * 10, dtype="Int64"), -1),
        (pd.array([True, None] * 20, dtype="boolean"), -1),
        (pd.array(["u", "v", None, "NA"] * 10, dtype="string"), "NA"),
        (pd.Series([np.array([1, 2]), pd.NA] * 20, dtype=object), "NA"),
    ],
)
def test_missing_values_are_looked_for_beside_others_and_arrays(column, value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays are not modelled
        filled = imputer(missing_values=value).fit_transform(table(c=column))
    assert not (filled["c"].map(str) == "NA").any()


def test_a_cell_that_cannot_be_hashed_is_an_unknown_category():
    X = table(c=["a", "b"] * 20)
    fitted = imputer().fit(X)
    X["c"] = [[1, 2], *X["c"][1:]]
    with pytest.warns(UserWarning, match="categories that fit did not see.*'c'"):
        assert fitted.transform(X).loc[0, "c"] in ("a", "b")
