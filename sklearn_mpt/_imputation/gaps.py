"""Which entries of a table are to be filled in, and columns of what is filled in."""

from numbers import Real

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from sklearn.utils import check_array

from sklearn_mpt._checks import joined, plain
from sklearn_mpt._tables.filling import ColumnStorage
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
    strings = with_strings(X)
    check_params = shape | {"ensure_all_finite": False, "input_name": "X"}
    if strings is None and _holds_other_objects(X):
        strings = X
    if strings is not None:
        return check_array(strings, dtype=object, **check_params)
    return check_array(
        readable_numbers(X), dtype=[np.float64, np.float32], **check_params
    )


def _holds_other_objects(X):
    is_object = isinstance(X, np.ndarray) and X.dtype == object
    return is_object and bool(no_numbers(X[~missing_in_array(X)]))


def with_gaps(X, missing_values):
    """Return a table in which entries that equal `missing_values` are missing."""
    if is_missing(missing_values):
        return X
    columns = columns_of(X)
    return with_missing(
        X,
        {
            j: gaps
            for j, column in enumerate(columns)
            if (gaps := _equal(column, missing_values)).any()
        },
    )


def _equal(column, value):
    """Return where a column has the value; True is not 1, and False not 0."""
    types = next(t for t in (str, bool, Real) if isinstance(value, t))
    equal = [
        isinstance(v, types) and isinstance(v, bool) == (types is bool) and v == value
        for v in column.values.tolist()
    ]
    return np.array(equal, dtype=bool) & ~column.missing


def without_unknown(X, categories):
    """Replace unknown categories by gaps; return what they were, too."""
    # categories : the known ones of each column, or None for columns of other kinds.
    coded = [j for j, known in enumerate(categories) if known is not None]
    gaps, unknown = {}, {}
    for j, column in columns_at(X, coded):
        known = set(categories[j].tolist())
        is_known = [_is_in(value, known) for value in column.values.tolist()]
        is_unknown = ~np.array(is_known, dtype=bool) & ~column.missing
        if is_unknown.any():
            gaps[j] = is_unknown
            unknown[j] = sorted({str(plain(v)) for v in column.values[is_unknown]})
    return with_missing(X, gaps), unknown


def _is_in(value, known):
    try:
        return value in known
    except TypeError:  # it cannot be hashed, so it is no category
        return False


def with_missing(X, gaps):
    """Return a table with more missing entries."""
    # gaps : dict from indices of columns to arrays of bool.
    if not gaps:
        return X
    if not is_into_dataframe(X):
        X = np.array(X)
        for j, rows in gaps.items():
            X[rows, j] = np.nan
        return X
    series = []
    for j, column in columns_at(X, gaps):
        values = column.values.astype(object)
        values[gaps[j] | column.missing] = None
        series.append(column.series_of(values.tolist(), _nullable(column.dtype)))
    return with_columns(X, series)


def _nullable(dtype):
    """Return the dtype of pandas that is like a dtype and has gaps, or the dtype."""
    if not isinstance(dtype, np.dtype):
        return dtype
    if dtype.kind == "b":
        return "boolean"
    if dtype.kind in "iu":
        return str(dtype).replace("int", "Int").replace("u", "U")
    return dtype


def with_dtypes_of(X, filled):
    """Return a filled table with the dtypes of X where gaps were marked."""
    # Columns of pandas with gaps have got dtypes that have gaps, such as Int64.
    if not hasattr(filled, "isetitem"):
        return filled
    dtypes, current = list(X.dtypes), list(filled.dtypes)
    changed = [
        j
        for j, dtype in enumerate(dtypes)
        if dtype != current[j] and _nullable(dtype) == current[j]
    ]
    series = [
        column.series_of(column.values.tolist(), dtypes[j])
        for j, column in columns_at(filled, changed)
        if not column.missing.any()
    ]
    return with_columns(filled, series)


def check_kind_of_table(X, reader, names):
    """Refuse an array of numbers where `fit` saw columns of other values."""
    if is_into_dataframe(X) or X.dtype == object:
        return
    others = [
        names[j]
        for j, storage in enumerate(reader.storage)
        if storage["library"] and _holds_other_values(reader, j)
    ]
    if others:
        raise ValueError(
            "X is an array of numbers, but MPTImputer was fitted to a DataFrame whose "
            f"column(s) {joined(others)} hold other values. Give it "
            "a DataFrame with the columns of fit."
        )


def _holds_other_values(reader, j):
    if reader.kinds[j] is None:
        return False
    known = reader.categories[j]
    return bool(reader.storage[j]["days"]) or (
        known is not None and known.dtype.kind not in "fiub"
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


def keep_columns(X, kept):
    """Return the columns of a table that are True in `kept`, (d,)."""
    if all(kept):
        return X
    if hasattr(X, "iloc"):
        return X.iloc[:, np.flatnonzero(kept)]
    if not is_into_dataframe(X):
        return X[:, kept]
    frame = nw.from_native(X, eager_only=True)
    names = [name for name, is_kept in zip(frame.columns, kept, strict=True) if is_kept]
    return frame.select(names).to_native()


def with_zeros(reader: TableReader, empty) -> TableReader:
    """Return a reader that fills empty columns of numbers with 0."""
    categories = list(reader.categories)
    for j in empty:
        storage = ColumnStorage(**reader.storage[j])
        if storage.numbers in ("numbers", "integers") and not storage.days:
            categories[j] = array_of_objects([0])
    return reader._replace(categories=categories)
