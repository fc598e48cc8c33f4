"""Conversion of tables to arrays of numbers, and back into the form that came.

A table is a DataFrame or an array. Categories become codes 0..C-1, in the order of
their values; True and False become 1 and 0; dates and time differences become days.
"""

from typing import NamedTuple, Self

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import listed, plain
from sklearn_mpt._likelihoods import LIKELIHOODS
from sklearn_mpt._tables.filling import (
    ColumnStorage,
    drawn_series,
    filled_array,
    filled_series,
)
from sklearn_mpt._tables.frames import (
    array_of_objects,
    column_names,
    columns_at,
    columns_of,
    joined_frame,
    with_columns,
)
from sklearn_mpt._tables.kinds import (
    AS_CATEGORIES,
    CATEGORIES,
    FROM_DTYPE,
    INTERVAL,
    ONE_VALUE,
    codes_of_column,
    is_of_categories,
    kind_or_reason,
    requested_kinds,
)


class TableReader(NamedTuple):
    """How the columns of a table are read, and how their gaps are filled.

    All of it is learned from the table of `fit`.

    Parameters
    ----------
    kinds : list of (str or None)
        Name of the likelihood of each column. None for columns without one, which are
        read as gaps, and are not changed unless they have a constant in `categories`.
    categories : list of (ndarray or None)
        Categories of each column in the order of their codes; the value of a column
        without a kind that is constant; None for others.
    storage : list of dict
        Fields of the `ColumnStorage` of each column.
    """

    kinds: list[str | None]
    categories: list[np.ndarray | None]
    storage: list[dict]

    @classmethod
    def from_table(cls, X, kinds, categories_of=None) -> Self:
        """Learn the categories and dtypes of a table whose columns have these kinds."""
        columns = columns_of(X)
        categories = list(map(categories_of or _categories, kinds, columns))
        storage = [
            ColumnStorage()
            if kind == INTERVAL
            else ColumnStorage.from_column(column)._replace(days=())
            for kind, column in zip(kinds, columns, strict=True)
        ]
        return cls(list(kinds), categories, [args._asdict() for args in storage])

    @classmethod
    def learn(cls, X, likelihood, allowed) -> tuple[Self, dict]:
        """Learn a table; columns without a kind are left out, with the reason."""
        requested = requested_kinds(likelihood, column_names(X), allowed, FROM_DTYPE)
        columns, reader, reasons, problems = columns_of(X), cls([], [], []), {}, []
        for j, (request, column) in enumerate(zip(requested, columns, strict=True)):
            kind, reason = kind_or_reason(request, column, allowed)
            storage = ColumnStorage.from_column(column)
            try:
                categories = _categories(kind, column)
                if kind is not None and categories is None:
                    numbers = storage.encode(column, AS_CATEGORIES)
                    check_numbers(numbers, kind, column.name)
            except (TypeError, ValueError) as error:
                problems.append(str(error))
                continue
            if reason:
                reasons[j] = reason
            if reason == ONE_VALUE:
                categories = array_of_objects(column.present[:1].tolist())
            reader.kinds.append(kind)
            reader.categories.append(categories)
            reader.storage.append(storage._asdict())
        if problems:
            raise ValueError(" ".join(problems))
        return reader, reasons

    def storage_of(self, j):
        """Return how column j is stored."""
        return ColumnStorage(**self.storage[j])

    @property
    def n_categories(self):
        return [1 if known is None else len(known) for known in self.categories]

    @property
    def modelled(self):
        """Indices of the columns that have a kind."""
        return np.flatnonzero([kind is not None for kind in self.kinds])

    @property
    def constant(self):
        """Indices of the columns without a kind that have a constant."""
        return [
            j
            for j, kind in enumerate(self.kinds)
            if kind is None and self.categories[j] is not None
        ]

    def gaps(self, X, codes):
        """Return which entries of a table `fill` can fill in; bool (n, d)."""
        gaps = np.isnan(codes)
        gaps[:, [kind is None for kind in self.kinds]] = False
        for j, column in columns_at(X, self.constant):
            gaps[:, j] = column.missing
        return gaps

    def encode(self, X, indices=None):
        """Return floats, NaN where missing and in columns without a kind."""
        codes = np.full(np.shape(X), np.nan)
        indices = self.modelled.tolist() if indices is None else indices
        for j, column in columns_at(X, indices):
            known = self.categories[j]
            if self.kinds[j] == INTERVAL:
                codes[:, j] = codes_of_column(column)
            elif known is None:
                codes[:, j] = self.storage_of(j).encode(column, AS_CATEGORIES)
            else:
                codes[:, j] = _codes(column, known)
        infinite = np.flatnonzero(np.isinf(codes).any(axis=0))
        if len(infinite):
            names = column_names(X)
            raise ValueError(
                "X contains infinity in column(s) "
                f"{listed([names[j] for j in infinite])}. Replace infinite values, by "
                "NaN if they are missing."
            )
        return codes

    def check_values(self, codes, names):
        """Refuse numbers that the kind of their column does not take."""
        for j, kind in enumerate(self.kinds):
            if kind not in (None, "gaussian", *CATEGORIES):
                check_numbers(codes[:, j], kind, names[j])

    def decode(self, codes):
        """Return an array of values; of objects, if categories are not numbers."""
        columns = [
            codes[:, j] if known is None else known[codes[:, j].astype(int)]
            for j, known in enumerate(self.categories)
        ]
        if all(column.dtype.kind in "fiub" for column in columns):
            return np.column_stack(columns).astype(codes.dtype)
        return np.column_stack([column.astype(object) for column in columns])

    def frame(self, codes, names, backend):
        """Return a DataFrame of completed rows, with the dtypes of `fit`."""
        series = [
            drawn_series(name, codes[:, j], self.storage_of(j), known, backend)
            for j, (name, known) in enumerate(zip(names, self.categories, strict=True))
        ]
        return joined_frame(series, names, backend)

    def fill(self, X, rows, gaps):
        """Return a copy of a table with its gaps filled, in the form that it has."""
        constant = self.constant
        rows = np.array(rows)
        rows[:, constant] = np.where(gaps[:, constant], 0.0, np.nan)
        has_gaps = gaps.any(axis=0)
        indices = [j for j in sorted([*self.modelled, *constant]) if has_gaps[j]]
        storage = list(map(self.storage_of, indices))
        if not is_into_dataframe(X):
            X = np.array(X)
            for j, stored in zip(indices, storage, strict=True):
                filled_array(X, j, rows[:, j], gaps[:, j], stored, self.categories[j])
            return X
        filled = [
            filled_series(column, rows[:, j], gaps[:, j], stored, self.categories[j])
            for (j, column), stored in zip(columns_at(X, indices), storage, strict=True)
        ]
        return with_columns(X, filled)


def _categories(kind, column):
    return CATEGORIES[kind](column) if kind in CATEGORIES else None


def check_numbers(numbers, kind, name):
    """Raise an error that names the column if a kind does not take its numbers."""
    likelihood = LIKELIHOODS[kind].of_columns(1, 1)
    likelihood.check_columns(numbers[:, None], [name])


def _codes(column, categories):
    """Return the indices of values among categories, NaN where missing; (n,)."""
    values = column.values
    if values.dtype.kind in "fiub" and categories.dtype.kind in "fiub":
        order = np.argsort(categories)
        ranks = np.searchsorted(categories, values, sorter=order)
        codes = order[ranks.clip(max=len(categories) - 1)]
        codes = np.where(categories[codes] == values, codes, -1)
    else:
        known = {value: code for code, value in enumerate(categories.tolist())}
        try:
            codes = np.array([known.get(value, -1) for value in values.tolist()])
        except TypeError as error:
            raise TypeError(
                f"Column {column.name!r} holds objects that are no categories: {error}."
            ) from error
    unseen = set(map(plain, values[(codes == -1) & ~column.missing].tolist()))
    if unseen:
        raise ValueError(
            f"Column {column.name!r} has categories that were not in fit: "
            f"{listed(sorted(unseen, key=str))}; it had {listed(categories)}."
        )
    return np.where(column.missing, np.nan, codes)


def check_no_categories(X, advice):
    """Raise an error if a column of a DataFrame holds categories, even of numbers."""
    for column in columns_of(X, is_wanted=is_of_categories):
        if len(column.present):
            raise ValueError(
                f"Column {column.name!r} holds {column.kind}, not numbers; {advice}"
            )
