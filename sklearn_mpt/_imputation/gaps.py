"""Shifts of values that are filled in, and categories that did not occur in `fit`."""

from collections.abc import Mapping
from numbers import Integral
from typing import NamedTuple

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from numpy.typing import ArrayLike

from sklearn_mpt._frames import column_names, columns_of, plain, with_columns
from sklearn_mpt._measure.rows import missing_entries


class Shift(NamedTuple):
    """Shifts that are added to numbers that are filled in.

    by_column : dict from indices of columns to shifts other than 0.
    """

    by_column: dict[int, float]

    @classmethod
    def of(cls, delta: Mapping | ArrayLike | None, X):
        """Read the parameter `delta`, for rows X."""
        if delta is None:
            return cls({})
        names = column_names(X)
        if isinstance(delta, Mapping):
            shifts = {_place_of(name, names): by for name, by in delta.items()}
        else:
            array = np.asarray(delta)
            if array.shape != (len(names),):
                raise ValueError(
                    f"delta must have a shift for each of {len(names)} columns, got "
                    f"shape {array.shape}."
                )
            shifts = dict(enumerate(array.tolist()))
        return cls({j: _number(by, names[j]) for j, by in shifts.items() if by != 0})

    def of_gaps(self, filled, X):
        """Return `filled` with the entries shifted that are missing in X."""
        if not self.by_column:
            return filled
        gaps = missing_entries(X)
        if not is_into_dataframe(filled):
            for j, by in self.by_column.items():
                filled[gaps[:, j], j] += by
            return filled
        columns = columns_of(filled)
        series = [
            _shifted(columns[j], gaps[:, j], by)
            for j, by in self.by_column.items()
            if gaps[:, j].any()
        ]
        return with_columns(filled, series)


def _shifted(column, gaps, by):
    dtype = column.series.dtype
    if not dtype.is_numeric():
        raise ValueError(
            f"delta shifts column {column.name!r}, which holds {column.dtype}, no "
            "numbers."
        )
    values = column.numbers()
    values[gaps] += by
    if dtype.is_integer():
        values = np.rint(values).astype(np.int64)
    return column.series_of(values.tolist(), column.dtype)


def _place_of(name, names):
    name = plain(name)
    places = [j for j, other in enumerate(names) if other == name]
    if not places and isinstance(name, Integral) and -1 < name < len(names):
        places = [int(name)]
    if len(places) != 1:
        raise ValueError(
            f"delta names a column {name!r}, which X does not have, or more than once. "
            f"Its columns are {names[:20]}."
        )
    return places[0]


def _number(by, name):
    try:
        by = float(by)
    except (TypeError, ValueError):
        by = np.nan
    if not np.isfinite(by):
        raise ValueError(f"delta of column {name!r} must be a finite number.")
    return by


def without_unknown(X, categories):
    """Return rows in which unknown categories are replaced by missing entries.

    categories : list with the known categories of each column, or None for columns of
    other kinds; None if there are no categories.
    """
    if categories is None:
        return X
    if not is_into_dataframe(X):
        return _array_without_unknown(X, categories)
    series = []
    for column, known in zip(columns_of(X), categories, strict=True):
        unknown = _unknown(column, known)
        if unknown.any():
            values = column.values.copy()
            values[unknown | column.missing] = None
            series.append(column.series_of(values.tolist(), column.dtype))
    return with_columns(X, series)


def _array_without_unknown(X, categories):
    X = np.array(X)
    for j, (column, known) in enumerate(zip(columns_of(X), categories, strict=True)):
        unknown = _unknown(column, known)
        if unknown.any():
            if X.dtype.kind in "iub":
                X = X.astype(np.float64)
            X[unknown, j] = np.nan
    return X


def _unknown(column, known):
    if known is None:
        return np.zeros(len(column.values), dtype=bool)
    levels = set(known.tolist())
    strange = [value not in levels for value in column.values.tolist()]
    return np.array(strange, dtype=bool) & ~column.missing
