"""From tables to arrays of numbers, and back.

A table is a DataFrame, or an array. Categories become codes 0..C-1, in the order of
their values; True and False become 1 and 0.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import check_choice
from sklearn_mpt._likelihoods import LIKELIHOODS

FROM_DTYPE = "from_dtype"


def kinds_of(likelihood, X):
    """Return the kind of each column of X, as the parameter `likelihood` says."""
    names = column_names(X)
    if isinstance(likelihood, str):
        if likelihood == FROM_DTYPE:
            return _kinds_from_dtypes(X)
        check_choice(likelihood, "likelihood", [*LIKELIHOODS, FROM_DTYPE])
        return [likelihood] * len(names)
    if isinstance(likelihood, Mapping):
        return _kinds_from_mapping(likelihood, names)
    if not isinstance(likelihood, Sequence):
        raise TypeError(
            "likelihood must be a name, a sequence of names, a dict or 'from_dtype', "
            f"got {likelihood!r}."
        )
    if len(likelihood) != len(names):
        raise ValueError(
            f"likelihood has {len(likelihood)} names, for {len(names)} columns of X."
        )
    for name, kind in zip(names, likelihood, strict=True):
        check_choice(kind, f"likelihood of column {name!r}", list(LIKELIHOODS))
    return [str(kind) for kind in likelihood]


def column_names(X):
    """Names of the columns of a DataFrame, or numbers of those of an array."""
    return _frame(X).columns if is_into_dataframe(X) else list(range(np.shape(X)[1]))


def _kinds_from_mapping(likelihood, names):
    kinds = dict.fromkeys(names, "gaussian")
    for key, kind in likelihood.items():
        by_number = isinstance(key, Integral) and key not in kinds
        name = names[key] if by_number and -1 < key < len(names) else key
        if name not in kinds or isinstance(key, bool):
            raise ValueError(
                f"likelihood names a column {key!r}, which X does not have. Its "
                f"columns are {names[:20]}."
            )
        check_choice(kind, f"likelihood of column {name!r}", list(LIKELIHOODS))
        kinds[name] = str(kind)
    return list(kinds.values())


def _kinds_from_dtypes(X):
    if not is_into_dataframe(X):
        raise TypeError(
            "likelihood='from_dtype' takes a DataFrame, whose columns have dtypes, got "
            f"{type(X).__name__}. Give the names of the kinds instead."
        )
    return [_kind_from_dtype(series) for series in _frame(X).iter_columns()]


def _kind_from_dtype(series):
    if series.dtype == nw.Boolean:
        return "bernoulli"
    if series.dtype.is_numeric():
        return "gaussian"
    if isinstance(series.dtype, nw.Categorical | nw.Enum | nw.String | nw.Object):
        return "categorical"
    raise TypeError(
        f"Column {series.name!r} has dtype {series.dtype}, for which "
        "likelihood='from_dtype' has no kind."
    )


class Coding(NamedTuple):
    """How a table becomes an array of numbers.

    kinds : of each column. categories : array of those of each column, or None.
    """

    kinds: list
    categories: list

    @classmethod
    def of(cls, kinds, X):
        """Learn the categories of a table."""
        categories = [
            _categories(column) if kind == "categorical" else None
            for kind, column in zip(kinds, _columns(X), strict=True)
        ]
        return cls(kinds, categories)

    @property
    def n_categories(self):
        return [1 if known is None else len(known) for known in self.categories]

    def encode(self, X):
        """Return an array of floats, NaN where missing."""
        columns = [
            _numbers(column) if known is None else _codes(column, known)
            for known, column in zip(self.categories, _columns(X), strict=True)
        ]
        return np.column_stack(columns)

    def decode(self, codes):
        """Return an array of values: of objects, if categories are no numbers."""
        columns = [
            codes[:, j] if known is None else known[codes[:, j].astype(int)]
            for j, known in enumerate(self.categories)
        ]
        if all(column.dtype.kind in "fiub" for column in columns):
            return np.column_stack(columns).astype(codes.dtype)
        return np.column_stack([column.astype(object) for column in columns])


class Column(NamedTuple):
    """Values of a column, any where missing."""

    name: object
    values: np.ndarray
    missing: np.ndarray  # bool
    is_frame: bool  # of a DataFrame, not of an array


def _frame(X):
    return nw.from_native(X, eager_only=True)


def _columns(X):
    if is_into_dataframe(X):
        return [_of_series(series) for series in _frame(X).iter_columns()]
    X = np.asarray(X, dtype=None if np.asarray(X).dtype.kind in "fiub" else object)
    missing = X != X
    return [Column(j, X[:, j], missing[:, j], False) for j in range(X.shape[1])]


def _of_series(series):
    missing = series.is_null()
    if series.dtype.is_float():
        missing = missing | series.is_nan().fill_null(False)
    values = np.empty(len(series), dtype=object)
    values[:] = series.to_list()
    return Column(series.name, values, missing.to_numpy().astype(bool), True)


def _numbers(column):
    try:
        with_gaps = np.where(column.missing, np.nan, column.values)
        return with_gaps.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Column {column.name!r} holds values that are no numbers ({error}). Its "
            "likelihood could be 'categorical'."
        ) from error


def _categories(column):
    """Return the distinct values of a column, in order."""
    present = column.values[~column.missing]
    if not column.is_frame:
        _check_codes(column, present)
    kinds = {_kind_of_value(value) for value in present}
    if len(kinds) > 1:
        raise TypeError(
            f"Column {column.name!r} mixes {' and '.join(sorted(kinds))}: categories "
            "must be of one type."
        )
    try:
        categories = np.array(sorted(set(present.tolist())))
    except TypeError as error:
        raise TypeError(
            f"Column {column.name!r} holds objects that are no categories: {error}."
        ) from error
    if len(categories) == 1:
        raise ValueError(
            f"Column {column.name!r} has one category, {categories.tolist()[0]!r}; "
            "drop the column."
        )
    return categories


def _check_codes(column, present):
    codes = present.astype(np.float64)
    strange = codes[(codes < 0) | (codes % 1 != 0)]
    if len(strange):
        raise ValueError(
            f"Column {column.name!r}: categories of an array are codes 0, 1, 2, ... "
            f"and NaN (missing); found {np.unique(strange)[:3].tolist()}."
        )


def _kind_of_value(value):
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, str):
        return "strings"
    return "numbers" if isinstance(value, int | float | np.number) else "objects"


def _codes(column, categories):
    place = {value: code for code, value in enumerate(categories.tolist())}
    values = column.values.tolist()
    try:
        codes = np.array([place.get(value, -1) for value in values], dtype=np.float64)
    except TypeError as error:
        raise TypeError(
            f"Column {column.name!r} holds objects that are no categories: {error}."
        ) from error
    codes[column.missing] = np.nan
    unseen = {value for value, code in zip(values, codes, strict=True) if code == -1}
    if unseen:
        raise ValueError(
            f"Column {column.name!r} has categories that it did not have in fit: "
            f"{sorted(unseen, key=str)[:5]}; it had {categories[:20].tolist()}."
        )
    return codes


def check_numeric(X):
    """Refuse a DataFrame with a column that is neither numbers nor booleans."""
    for series in _frame(X).iter_columns():
        dtype = series.dtype
        if isinstance(dtype, nw.Categorical | nw.Enum | nw.String):
            raise ValueError(
                f"Column {series.name!r} holds {dtype}, not numbers; "
                "likelihood='from_dtype' takes it as categories."
            )


def filled_like(X, values):
    """Fill the gaps of a DataFrame in with values, an array.

    Dtypes are kept: numbers are rounded where a column holds integers alone, and
    probabilities to the nearer of False and True.
    """
    frame = _frame(X)
    filled = [
        _filled(series, column, values[:, j])
        for j, (series, column) in enumerate(
            zip(frame.iter_columns(), _columns(X), strict=True)
        )
    ]
    return frame.with_columns(*filled).to_native()


def _filled(series, column, values):
    if not column.missing.any():
        return series
    entries, fill = column.values.copy(), values[column.missing]
    if all(isinstance(value, bool) for value in column.values[~column.missing]):
        fill = fill.astype(float) >= 0.5
    elif series.dtype.is_integer():
        fill = np.rint(fill.astype(float)).astype(int)
    entries[column.missing] = fill.tolist()
    return _series_like(series, entries.tolist())


def _series_like(series, entries):
    """A series of the entries, with the name, dtype and index of another."""
    native = nw.to_native(series)
    backend = nw.get_native_namespace(series)
    if hasattr(native, "index"):  # pandas, whose dtypes are more than those of narwhals
        made = backend.Series(
            entries, index=native.index, dtype=native.dtype, name=native.name
        )
        return nw.from_native(made, series_only=True)
    return nw.new_series(series.name, entries, series.dtype, backend=backend)
