"""Rows of an array or a DataFrame, with the operations that generic code needs.

A model written by a user may keep or change the rows that it is given. It therefore
gets copies, never the caller's own rows: see `copy_of` and `readonly_view`.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from joblib import effective_n_jobs
from narwhals.stable.v2.dependencies import is_into_dataframe
from scipy.sparse import issparse
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._checks import check_n_jobs
from sklearn_mpt._tables.frames import (
    columns_at,
    columns_of,
    frame_of,
    is_of_numbers,
    missing_in_array,
    missing_in_series,
    with_columns,
    words_for,
)


def map_workers(function, rows, tasks, n_jobs):
    """Return the results of ``function(rows, some_tasks)``, one for each worker."""
    check_n_jobs(n_jobs)
    n_workers = max(1, min(len(tasks), effective_n_jobs(n_jobs)))
    # joblib sends a large array once, but only if it is an argument by itself.
    large = rows.values, rows.missing
    return Parallel(n_jobs=n_jobs)(
        delayed(_on_rows)(function, *large, tasks[i::n_workers])
        for i in range(n_workers)
    )


def map_tasks(function, rows, tasks, n_jobs):
    """Return a result for each task; ``function(rows, some_tasks)`` returns theirs."""
    results = [None] * len(tasks)
    of_workers = map_workers(function, rows, tasks, n_jobs)
    for i, of_worker in enumerate(of_workers):
        results[i :: len(of_workers)] = of_worker
    return results


def _on_rows(function, values, missing, tasks):
    return function(Rows(values, missing), tasks)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in the form that the model takes, and which entries are missing."""

    values: object
    missing: np.ndarray | None
    index: np.ndarray | None = None

    @classmethod
    def from_table(cls, X):
        """Return rows of an array or DataFrame."""
        missing = missing_entries(X)
        return cls(X, missing if missing.any() else None)

    @property
    def shape(self):
        return tuple(map(int, np.shape(self.values)))

    def __len__(self):
        return self.shape[0]

    def slice(self, start, stop):
        """Return the rows start..stop - 1."""
        if (start, stop) == (0, len(self)):
            return self
        return self.take(np.arange(start, stop))

    def take(self, indices):
        """Return the rows with these indices."""
        missing = None if self.missing is None else take(self.missing, indices)
        index = indices if self.index is None else self.index[indices]
        return Rows(take(self.values, indices), missing, index)

    def number(self, i):
        """Return the index in the user's X of row i."""
        return int(i if self.index is None else self.index[i])

    def targets(self, mask):
        """Return where entries are hidden and present, (n_samples, n_features)."""
        if self.missing is None:
            return np.broadcast_to(mask, self.shape)
        return mask & ~self.missing

    def readonly_view(self):
        """Return a read-only view of an array, or a copy of a DataFrame."""
        if not isinstance(self.values, np.ndarray):
            return copy_of(self.values)
        view = self.values.view()
        view.flags.writeable = False
        return view


def copy_of(X):
    """Return a copy of an array or a DataFrame, writable even if X is not."""
    if isinstance(X, np.ndarray):
        return np.array(X, subok=True)  # a masked array stays a masked array
    if hasattr(X, "iloc"):  # pandas; narwhals refuses repeated column names
        return X.copy()
    return frame_of(X).clone().to_native() if is_into_dataframe(X) else X


def take(X, indices):
    """Return the rows of an array or a DataFrame with these indices."""
    from sklearn.utils import _safe_indexing  # keeps the import of this module quick

    if isinstance(X, np.ndarray) and np.all(np.diff(indices) == 1):
        return X[indices[0] : indices[-1] + 1]  # a view
    return _safe_indexing(X, indices)


def missing_entries(X):
    """Return where entries are NaN, None or NA; bool (n_samples, n_features)."""
    if is_into_dataframe(X):
        columns = [missing_in_series(series) for series in frame_of(X).iter_columns()]
        return np.stack(columns, axis=1) if columns else np.zeros(np.shape(X), bool)
    return missing_in_array(np.asarray(X))


def holds_numbers(X):
    """Return whether all columns of a DataFrame hold numbers or booleans."""
    columns = columns_of(X, lambda dtype: not is_of_numbers(dtype))
    return all(words_for(column.present) <= {"decimals"} for column in columns)


def as_numbers(X):
    """Return the entries of a DataFrame of numbers, NaN where they are missing."""
    columns = [
        np.where(column.missing, np.nan, column.values).astype(np.float64)
        for column in columns_of(X)
    ]
    return np.column_stack(columns)


def as_objects(X):
    """Return a copy of the entries as an array, NaN where missing."""
    if not is_into_dataframe(X):
        return np.array(X)
    if holds_numbers(X):
        return as_numbers(X)
    entries = np.empty(np.shape(X), dtype=object)
    for j, column in enumerate(columns_of(X)):
        entries[:, j] = column.values
        entries[column.missing, j] = np.nan
    return entries


def digest_of(values):
    """Return a digest of numbers, rounded to single precision, or of other values.

    It is the same for an array, a sparse one and a DataFrame.
    """
    values = values.toarray() if issparse(values) else values
    values = as_objects(values) if is_into_dataframe(values) else np.asarray(values)
    try:
        numbers = np.where(missing_entries(values), np.nan, values)
        with np.errstate(over="ignore"):
            content = (numbers.astype(np.float32) + np.float32(0)).tobytes()
    except (ValueError, TypeError):  # not numbers
        content = repr(values.tolist()).encode()
    shape = values.shape if values.ndim > 1 else (len(values), 1)
    return hashlib.sha256(repr(shape).encode() + content).hexdigest()[:16]


def with_entries(X, sources):
    """Return a copy of X in which column j has its entries of the rows sources[j]."""
    if not is_into_dataframe(X):
        X = np.array(X)
        for j, rows in sources.items():
            X[:, j] = X[rows, j]
        return X
    columns = [
        column.series_of(column.series[sources[j].tolist()].to_list(), column.dtype)
        for j, column in columns_at(X, sources)
    ]
    return with_columns(X, columns)
