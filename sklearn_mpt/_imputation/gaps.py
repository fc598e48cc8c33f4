"""Which entries of a table are to be filled in, and columns of what is filled in."""

from numbers import Real

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from sklearn.utils import check_array

from sklearn_mpt._checks import joined
from sklearn_mpt._tables.frames import (
    array_of_objects,
    columns_at,
    columns_of,
    is_missing,
    missing_in_array,
    no_numbers,
    readable_numbers,
    with_columns,
    with_strings,
)
from sklearn_mpt._tables.reader import TableReader


def as_table(X, estimator, min_samples=1):
    """Return X as a DataFrame, an array of floats, or an array of objects."""
    shape = {"ensure_min_samples": min_samples, "estimator": estimator}
    if is_into_dataframe(X):
        check_array(np.broadcast_to(0.0, np.shape(X)), **shape)
        return X
    objects, dtype = with_strings(X), object
    if objects is None and isinstance(X, np.ndarray) and X.dtype == object:
        objects = X if no_numbers(X[~missing_in_array(X)]) else None
    if objects is None:
        objects, dtype = readable_numbers(X), [np.float64, np.float32]
    return check_array(
        objects, dtype=dtype, ensure_all_finite=False, input_name="X", **shape
    )


def equal_entries(X, value):
    """Return where entries equal a value, which may be missing; bool (n, d)."""
    is_equal = np.zeros(np.shape(X), dtype=bool)
    if is_missing(value):
        return is_equal
    kind = next(kind for kind in (str, bool, Real) if isinstance(value, kind))
    for j, column in enumerate(columns_of(X)):
        is_equal[~column.missing, j] = [
            isinstance(v, kind) and isinstance(v, bool) == (kind is bool) and v == value
            for v in column.values[~column.missing].tolist()
        ]
    return is_equal


def unknown_entries(X, categories):
    """Return where entries are none of the categories of their column; bool (n, d)."""
    # categories : of each column, or None for columns of other kinds.
    unknown = np.zeros(np.shape(X), dtype=bool)
    coded = [j for j, known in enumerate(categories) if known is not None]
    for j, column in columns_at(X, coded):
        known = set(categories[j].tolist())
        unknown[:, j] = [not _is_in(value, known) for value in column.values.tolist()]
        unknown[:, j] &= ~column.missing
    return unknown


def _is_in(value, known):
    try:
        return value in known
    except TypeError:  # it cannot be hashed, so it is no category
        return False


def with_missing(X, gaps):
    """Return a table that has more missing entries, bool (n, d)."""
    if not gaps.any():
        return X
    if not is_into_dataframe(X):
        return np.where(gaps, np.nan, X)
    series = []
    for j, column in columns_at(X, np.flatnonzero(gaps.any(axis=0)).tolist()):
        values = column.values.astype(object)
        values[gaps[:, j] | column.missing] = None
        dtype = column.dtype
        if _lacks_gaps(dtype):
            dtype = nw.to_native(column.series).convert_dtypes().dtype
        series.append(column.series_of(values.tolist(), dtype))
    return with_columns(X, series)


def _lacks_gaps(dtype):
    """Return whether a dtype of a DataFrame is NumPy's of integers or booleans."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biu"


def with_dtypes_of(X, filled):
    """Return a filled table with the dtypes of X where gaps were marked."""
    if not hasattr(filled, "isetitem"):
        return filled
    filled = filled.copy(deep=False)
    for j, dtype in enumerate(X.dtypes):
        column = filled.iloc[:, j]
        if _lacks_gaps(dtype) and not column.isna().any():
            if X.iloc[:, j].convert_dtypes().dtype == column.dtype:
                filled.isetitem(j, column.astype(dtype))
    return filled


def check_kind_of_table(X, reader: TableReader, names):
    """Refuse an array of numbers where `fit` saw columns of other values."""
    if is_into_dataframe(X) or X.dtype == object:
        return
    others = [
        names[j]
        for j in reader.modelled
        if reader.storage[j]["days"]
        or getattr(reader.categories[j], "dtype", X.dtype).kind not in "fiub"
    ]
    if others:
        raise ValueError(
            "X is an array of numbers, but MPTImputer was fitted to a table whose "
            f"column(s) {joined(others)} hold other values. Give it "
            "a table with the columns of fit."
        )


def with_indicators(X, indicators, names):
    """Return a table with columns of booleans added on its right."""
    if not is_into_dataframe(X):
        return np.hstack([X, indicators])
    if hasattr(X, "assign"):
        return X.assign(**dict(zip(names, indicators.T, strict=True)))
    frame = nw.from_native(X, eager_only=True)
    made = [
        nw.new_series(name, values.tolist(), nw.Boolean, backend=frame.implementation)
        for name, values in zip(names, indicators.T, strict=True)
    ]
    return frame.with_columns(*made).to_native()


def with_zeros(reader: TableReader, empty) -> TableReader:
    """Return a reader that fills empty columns of numbers with 0."""
    categories = list(reader.categories)
    for j in empty:
        storage = reader.storage_of(j)
        if storage.numbers in ("numbers", "integers") and not storage.days:
            categories[j] = array_of_objects([0])
    return reader._replace(categories=categories)
