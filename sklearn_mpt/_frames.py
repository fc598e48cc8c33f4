"""Rows as users hold them: DataFrames and arrays, read column by column.

A DataFrame is one of pandas, of polars or of another library that narwhals reads. An
entry is missing where it is NaN, None, NA or null.
"""

import datetime
from decimal import Decimal
from numbers import Real
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

# What float() or a cast of NumPy may turn into a number, though it is none.
NO_NUMBERS = (
    ((datetime.date, np.datetime64), "dates"),
    ((datetime.time,), "times of day"),
    ((datetime.timedelta, np.timedelta64), "durations"),
    ((complex, np.complexfloating), "complex numbers"),
    ((bytes, bytearray), "bytes"),
    ((Decimal,), "decimals"),
    ((str,), "strings"),
)
WORDS = {word for _, word in NO_NUMBERS}
ADVICE = "Convert them to floats (dates to days since one of them, say), or drop them."
KINDS_OF_ARRAYS = {
    "M": "dates",
    "m": "durations",
    "S": "bytes",
    "V": "records",
}


def plain(value):
    """Return a value as Python prints it: 3 for ``np.int64(3)``."""
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def column_names(X):
    """Names of the columns of a DataFrame, or numbers of those of an array."""
    if not is_into_dataframe(X):
        return list(range(np.shape(X)[1]))
    return [plain(name) for name in X.columns] if _is_pandas(X) else _frame(X).columns


def with_distinct_names(X):
    """Return rows in which no two columns have the same name.

    A name that comes again gets a number, as `pandas.read_csv` does it: "a", "a.1".
    Where names are no strings, the columns are numbered instead. Rows whose names are
    distinct, and arrays, are returned as they are.
    """
    if not _is_pandas(X) or X.columns.is_unique:
        return X
    names = column_names(X)
    if not all(isinstance(name, str) for name in names):
        return X.set_axis(range(len(names)), axis=1)
    taken, distinct = set(names), {}
    for name in names:
        other, count = name, 0
        while other in distinct or (count and other in taken):
            count += 1
            other = f"{name}.{count}"
        distinct[other] = None
    return X.set_axis(list(distinct), axis=1)


def _is_pandas(X):
    """Whether X is a DataFrame like those of pandas, whose names may be anything."""
    return is_into_dataframe(X) and hasattr(X, "set_axis")


def _frame(X):
    return nw.from_native(X, eager_only=True)


class Column(NamedTuple):
    """A column of rows.

    name : of the column, or its number. values : array of objects, or of numbers if the
    rows are an array of these; any where missing. missing : array of bool. series : of
    the DataFrame, None if the rows are an array.
    """

    name: object
    values: np.ndarray
    missing: np.ndarray
    series: nw.Series | None

    @property
    def present(self):
        return self.values[~self.missing]

    def numbers(self, of_strings=ADVICE):
        """Return the values as floats, NaN where missing.

        Raises
        ------
        ValueError
            If some are no numbers; `of_strings` says what to do if these are strings.
        """
        strange = "" if self._is_of_numbers else no_numbers(self.present)
        if strange:
            advice = of_strings if strange == "strings" else ADVICE
            raise ValueError(
                f"Column {self.name!r} holds {strange}{self._dtype}, not numbers. "
                f"{advice}"
            )
        return np.where(self.missing, np.nan, self.values).astype(np.float64)

    @property
    def _is_of_numbers(self):
        if self.series is None:
            return self.values.dtype.kind in "fiub"
        return _is_of_numbers(self.series.dtype)

    @property
    def _dtype(self):
        return "" if self.series is None else f" (dtype {self.dtype})"

    @property
    def dtype(self):
        """The dtype of the series, as `series_of` takes it."""
        native = nw.to_native(self.series)
        return native.dtype if self.is_pandas else self.series.dtype

    @property
    def backend(self):
        """The module that the series is of: pandas, polars, ..."""
        return nw.get_native_namespace(self.series)

    @property
    def is_pandas(self):
        """Whether the series is like those of pandas, with an index and own dtypes."""
        return self.series.implementation.is_pandas_like()

    def series_of(self, values, dtype):
        """Return a series of other values in the place of this one.

        values : list. dtype : of pandas, or of narwhals if the series is of another
        library; None finds one for the values.
        """
        if not self.is_pandas:
            name = self.series.name
            return nw.new_series(name, values, dtype, backend=self.backend)
        index, name = nw.to_native(self.series).index, self.series.name
        made = self.backend.Series(values, index=index, dtype=dtype, name=name)
        return nw.from_native(made, series_only=True)


def columns_of(X, is_wanted=lambda dtype: True):
    """Return the columns of a DataFrame or of an array.

    is_wanted : callable
        Of the dtype that narwhals gives a column of a DataFrame: whether to read it.
    """
    if is_into_dataframe(X):
        series = _frame(with_distinct_names(X)).iter_columns()
        named = zip(column_names(X), series, strict=True)
        return [_of_series(*column) for column in named if is_wanted(column[1].dtype)]
    X = np.asarray(X, dtype=None if np.asarray(X).dtype.kind in "fiub" else object)
    missing = X != X
    return [Column(j, X[:, j], missing[:, j], None) for j in range(X.shape[1])]


def _of_series(name, series):
    missing = series.is_null()
    if series.dtype.is_float():
        missing = missing | series.is_nan().fill_null(False)
    values = array_of_objects(series.to_list())
    return Column(name, values, missing.to_numpy().astype(bool), series)


def array_of_objects(values):
    """Return a list as an array of one dimension, tuples as single values."""
    return np.fromiter(values, dtype=object, count=len(values))


def no_numbers(values):
    """Say what those values are that are no numbers; "" if all are numbers."""
    return " and ".join(sorted(words_for(values)))


def words_for(values):
    """Words for what those values are that are neither numbers nor booleans."""
    return {_word(value) for value in {type(v): v for v in values}.values()} - {""}


def _word(value):
    for types, word in NO_NUMBERS:
        if isinstance(value, types):
            return word
    is_number = isinstance(value, Real | np.bool_)
    return "" if is_number else f"objects of type {type(value).__name__}"


def _is_of_numbers(dtype):
    """Whether a dtype leaves no doubt that values are numbers or booleans."""
    is_number = dtype.is_numeric() and not isinstance(dtype, nw.Decimal)
    return is_number or dtype == nw.Boolean


def readable_numbers(X, of_strings=ADVICE):
    """Return rows of numbers in a form that scikit-learn reads as they are meant.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_samples, n_features)
    of_strings : str
        What to do with a column of strings, for the message that refuses it.

    Returns
    -------
    X : array-like or DataFrame
        What was given; but columns of a DataFrame have distinct names, and are floats
        where their dtype does not say that they are numbers.

    Raises
    ------
    ValueError
        If a column is of dates, strings or anything else that is no number. Arrays with
        what cannot be converted to floats at all are left to scikit-learn to refuse.
    """
    if not is_into_dataframe(X):
        _check_array_of_numbers(X)
        return X
    X = with_distinct_names(X)
    converted = [
        column.series_of(
            column.numbers(of_strings).tolist(),
            "float64" if column.is_pandas else nw.Float64,
        )
        for column in columns_of(X, lambda dtype: not _is_of_numbers(dtype))
    ]
    return with_columns(X, converted)


def with_columns(X, series):
    """Return a DataFrame in which `series_of` some columns replace these."""
    if not series:
        return X
    native = _frame(with_distinct_names(X)).with_columns(*series).to_native()
    return native.set_axis(X.columns, axis=1) if _is_pandas(X) else native


def _check_array_of_numbers(X):
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except (ValueError, TypeError):  # such as rows of several lengths
            return
    if not isinstance(X, np.ndarray):
        return
    found = {KINDS_OF_ARRAYS.get(X.dtype.kind, "")}
    if X.dtype == object:
        found = {
            word
            for value in {type(v): v for v in X.ravel()}.values()
            for types, word in NO_NUMBERS
            if isinstance(value, types) and word != "strings"
        }
    if found - {""}:
        raise ValueError(
            f"X holds {' and '.join(sorted(found - {''}))} (dtype {X.dtype}), not "
            f"numbers. {ADVICE}"
        )
