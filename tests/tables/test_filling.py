"""What fills a gap: it depends on its row and on fit, not on the other rows given."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sklearn_mpt import MPTImputer, MPTLinearVAE

N = 24
INDEX = 2 * np.arange(N) + 5


def table():
    """One column of each dtype that pandas has for what tables hold."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=N)
    words = np.where(z > 0, "yes", "no")
    columns = {
        "float64": z + rng.normal(size=N),
        "float32": (2 * z).astype("float32"),
        "Float64": pd.array(3 * z, dtype="Float64"),
        "int64": rng.poisson(np.exp(z)) + 2,
        "int8": rng.integers(-5, 5, N).astype("int8"),
        "Int64": pd.array(rng.integers(3, 9, N), dtype="Int64"),
        "UInt8": pd.array(rng.poisson(2, N), dtype="UInt8"),
        "bool": z > 0,
        "boolean": pd.array(z > 0.3, dtype="boolean"),
        "objects, booleans": np.array([None, *(z > 0)[1:].tolist()], dtype=object),
        "objects, tuples": pd.Series([(1, 2), (0, 3), (1, 0)] * (N // 3), index=INDEX),
        "objects, strings": pd.Series(words, index=INDEX, dtype=object),
        "strings": words,
        "string": pd.array(words, dtype="string"),
        "category": pd.Categorical(words, categories=["yes", "unused", "no"]),
        "ordered": pd.Categorical(rng.integers(2, 5, N), ordered=True),
        "intervals": pd.cut(z, 3),
    }
    return pd.DataFrame(columns, index=INDEX)


def with_gaps(frame, seed=1):
    """The frame with gaps, in dtypes that can have gaps."""
    able = {"int64": "float64", "int8": "float64", "bool": object}
    hidden = np.random.default_rng(seed).random(frame.shape) < 0.4
    return frame.astype(able).mask(hidden)


def model(frame, likelihood="from_dtype"):
    return MPTLinearVAE(1, likelihood=likelihood, max_iter=0, random_state=0).fit(frame)


@pytest.fixture(scope="module")
def fitted():
    return model(table())


@pytest.mark.parametrize("method", ["mean", "sample"])
def test_gaps_get_values_of_the_dtypes_of_fit(fitted, method):
    frame = table()
    gaps = with_gaps(frame)
    filled = fitted.impute(gaps, method=method, random_state=0)
    assert filled.dtypes.to_dict() == frame.dtypes.to_dict()
    assert filled.index.equals(frame.index)
    assert list(filled.columns) == list(frame.columns)
    assert not filled.isna().any().any()
    for name in frame:
        seen = gaps[name].notna()
        assert (filled[name][seen] == frame[name][seen]).all()


WAYS_TO_GIVE_A_ROW = {
    "a slice": lambda row: row,
    "objects": lambda row: row.astype(object),
    "None": lambda row: made_of(row, None),
    "NaN": lambda row: made_of(row, np.nan),
    "NA": lambda row: made_of(row, pd.NA),
}


def made_of(row, gap):
    """A frame of one row whose dtypes pandas finds."""
    values = {c: gap if pd.isna(row[c].iloc[0]) else row[c].iloc[0] for c in row}
    return pd.DataFrame([values], index=row.index)


@pytest.mark.parametrize("way", WAYS_TO_GIVE_A_ROW)
def test_a_row_alone_is_filled_as_beside_others(fitted, way):
    gaps = with_gaps(table())
    together = fitted.impute(gaps)
    for place in range(3):
        row = WAYS_TO_GIVE_A_ROW[way](gaps.iloc[[place]])
        alone = fitted.impute(row)
        assert alone.index.equals(row.index)
        for name in gaps:
            one, other = alone[name].iloc[0], together[name].iloc[place]
            is_same = alone[name].dtype == together[name].dtype
            if isinstance(other, float | np.floating):
                assert one == pytest.approx(other, rel=1e-6)
            else:
                assert one == other
                assert is_same or row[name].notna().all()


def test_a_row_of_nothing_has_the_dtypes_of_fit(fitted):
    frame = table()
    filled = fitted.impute(pd.DataFrame({c: [None] for c in frame}))
    assert filled.dtypes.to_dict() == frame.dtypes.to_dict()
    assert not filled.isna().any().any()


def polars_table():
    frame = table()
    dtypes = {
        "float64": pl.Float64,
        "float32": pl.Float32,
        "Int64": pl.Int64,
        "int8": pl.Int8,
        "UInt8": pl.UInt8,
        "bool": pl.Boolean,
        "strings": pl.String,
        "category": pl.Categorical,
        "intervals": pl.Enum(["low", "none", "high"]),
    }
    frame["intervals"] = np.where(frame["float64"] > 0, "low", "high")
    return pl.DataFrame(
        [pl.Series(c, frame[c].tolist(), dtype=dtype) for c, dtype in dtypes.items()]
    )


def polars_gaps(frame, seed=1):
    hidden = np.random.default_rng(seed).random(frame.shape) < 0.4
    return pl.DataFrame(
        [
            pl.Series(
                series.name,
                [None if gap else x for x, gap in zip(series, column, strict=True)],
                dtype=series.dtype,
            )
            for series, column in zip(frame.get_columns(), hidden.T, strict=True)
        ]
    )


def test_rows_of_polars_are_filled_alone_as_together():
    frame = polars_table()
    fitted, gaps = model(frame), polars_gaps(frame)
    together = fitted.impute(gaps)
    assert together.schema == frame.schema
    assert sum(together.null_count().row(0)) == 0
    for place in range(3):
        alone = fitted.impute(gaps[place])
        assert alone.schema == frame.schema
        assert alone.rows()[0] == pytest.approx(together.rows()[place])
        undeclared = {c: gaps[place][c].to_list() for c in gaps.columns}
        again = fitted.impute(pl.DataFrame(undeclared))
        assert again.rows()[0] == pytest.approx(alone.rows()[0])


def test_columns_of_another_library_get_the_same_values():
    frame = polars_table()
    fitted = model(frame)
    nothing = fitted.impute(pd.DataFrame({c: [None] for c in frame.columns}))
    same = fitted.impute(pl.DataFrame({c: [None] for c in frame.columns}))
    assert nothing.iloc[0].tolist() == pytest.approx(list(same.row(0)))
    assert nothing["category"].dtype == pd.CategoricalDtype(["no", "yes"])
    levels = pd.CategoricalDtype(["low", "none", "high"], ordered=True)
    assert nothing["intervals"].dtype == levels
    assert nothing["UInt8"].dtype == "int64"
    assert nothing["bool"].dtype == "bool"
    back = model(table()).impute(pl.DataFrame({c: [None] for c in table()}))
    assert back.schema["category"] == pl.Categorical
    assert back.schema["boolean"] == pl.Boolean
    assert back.schema["int8"] == pl.Int64
    assert back.schema["float32"] == pl.Float64


@pytest.mark.parametrize("dtype", ["UInt8", "Int8", "UInt64", "int16"])
def test_integers_stay_within_their_range(dtype):
    place = np.arange(-10.0, 11)
    frame = pd.DataFrame({"x": place, "n": pd.array(place + 110, dtype="Int64")})
    start = {"components": [[1e6, 1e9]], "mean": [0, 110.0], "noise_variance": [1, 1]}
    settings = {"init": start, "max_iter": 0, "noise": "per_feature"}
    fitted = MPTLinearVAE(1, likelihood="from_dtype", **settings)
    fitted.fit(frame.astype({"n": dtype}))
    ends = pd.DataFrame({"x": [-1e20, 1e20], "n": [None, None]})
    filled = fitted.impute(ends)["n"]
    least, largest = (getattr(np.iinfo(dtype.lower()), end) for end in ("min", "max"))
    assert filled.dtype == dtype
    assert filled.tolist() == [least, largest]


def test_present_values_that_fit_had_no_dtype_for_stay_as_they_are():
    frame = pd.DataFrame({"x": [0.0, 1, 2, 4], "n": pd.array([1, 2, 3, 9], "UInt8")})
    fitted = model(frame)
    given = pd.DataFrame({"x": [1.0, 2], "n": [2.5, np.nan]})
    assert fitted.impute(given)["n"].iloc[0] == 2.5
    given = pd.DataFrame({"x": [1.0, 2], "n": pd.array([-3, None], "Int8")})
    filled = fitted.impute(given)["n"]
    assert filled.iloc[0] == -3
    assert filled.iloc[1] == fitted.impute(given[1:])["n"].iloc[0]


def test_a_dtype_that_is_given_is_kept_where_it_can_hold_the_values():
    frame = pd.DataFrame({"x": [0.0, 1, 2, 4], "n": [1.0, 2, 3, np.nan]})
    frame["word"] = ["a", "b", "a", None]
    fitted = model(frame)
    given = frame.astype({"n": "Int64", "word": pd.CategoricalDtype(["c", "b", "a"])})
    assert (fitted.impute(given).dtypes == given.dtypes).all()
    for dtype in ("Int64", "boolean"):
        halves = frame.assign(n=frame["n"] / 2)
        row = halves.iloc[[3]].astype({"n": dtype})
        assert model(halves).impute(row)["n"].dtype == float
    less = frame.iloc[[0, 3]].astype({"word": pd.CategoricalDtype(["a"])})
    assert fitted.impute(less)["word"].dtype == frame["word"].dtype


def test_numbers_in_a_categorical_dtype_get_the_nearest_category():
    marks = pd.Categorical([2, 4, 8, 8, 4, 2], [2, 4, 8, 9], ordered=True)
    frame = pd.DataFrame({"x": np.arange(6.0), "mark": marks})
    fitted = model(frame, {"mark": "gaussian"})
    filled = fitted.impute(frame.mask([[False, True]] * 6))
    assert filled["mark"].dtype == frame["mark"].dtype
    assert filled["mark"].isin([2, 4, 8, 9]).all()
    alone = fitted.impute(pd.DataFrame({"x": [0.0], "mark": [None]}))
    assert alone["mark"].iloc[0] == filled["mark"].iloc[0]
    assert alone["mark"].dtype == frame["mark"].dtype


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_an_imputer_fills_each_row_as_all_rows(library):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 1)) * [1, 10, 5] + rng.normal(size=(30, 3)) + [0, 100, 9]
    X[rng.random(X.shape) < 0.3] = np.nan
    frame = pd.DataFrame(X, columns=list("abc"))
    if library == "polars":
        frame = pl.DataFrame(
            {c: X[:, j] for j, c in enumerate("abc")}, nan_to_null=True
        )
    imputer = MPTImputer(
        MPTLinearVAE(1, likelihood="from_dtype", random_state=0, max_iter=2)
    )
    together = np.asarray(imputer.fit(frame).transform(frame))
    alone = [np.asarray(imputer.transform(frame[i : i + 1])) for i in range(30)]
    np.testing.assert_allclose(np.concatenate(alone), together, rtol=1e-10)
