"""What users add to numbers that are filled in, and the bounds that they set."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._frames import (
    by_column,
    column_names,
    columns_of,
    is_missing,
    plain,
)
from sklearn_mpt._labels import indices_of, labels_of
from sklearn_mpt._messages import listed
from sklearn_mpt._tables.kinds import CATEGORIES
from sklearn_mpt._tables.reader import TableReader

KINDS_WITHOUT_NUMBERS = {None, "bernoulli", *CATEGORIES}
ADVICE_ON_ENTRIES = (
    "Bounds of entries belong to the rows of one table: call fit_transform with it. In "
    "cross-validation, whose folds have other rows, give bounds of columns."
)


class Adjustments(NamedTuple):
    """What is added to numbers that are filled in, and their bounds.

    shift : of each column, (d,). low, high : of each column, (d,), or of each entry,
    (n, d). NaN stands for the limits of what `fit` saw, an infinite number for no
    limit.
    """

    shift: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def none(cls, n_columns) -> Self:
        """Return no shifts, and no bounds but the limits of what `fit` saw."""
        return cls(np.zeros(n_columns), *np.full((2, n_columns), np.nan))

    @classmethod
    def from_parameters(
        cls, delta, min_value, max_value, reader: TableReader, X, given=None
    ) -> Self:
        """Read the parameters; the error lists all problems.

        X : the table that is filled in. given : the table to whose rows the bounds of
        entries belong; by default X.
        """
        names, problems, values = column_names(X), [], []
        given = X if given is None else given
        for parameter, value, default in (
            ("delta", delta, 0.0),
            ("min_value", min_value, np.nan),
            ("max_value", max_value, np.nan),
        ):
            is_delta = parameter == "delta"
            columns = _Columns(parameter, reader, names, None if is_delta else given)
            values.append(columns.read(value, default))
            problems += columns.problems
        if not problems:
            is_above = values[1] > values[2]
            columns = np.flatnonzero(is_above.reshape(-1, len(names)).any(axis=0))
            if len(columns):
                low, high = np.broadcast_arrays(*values[1:])
                first = tuple(np.argwhere(is_above)[0])
                problems = [
                    f"min_value {low[first]} is above max_value {high[first]} in "
                    f"column(s) {listed([names[j] for j in columns])}."
                ]
        if problems:
            raise ValueError(" ".join(problems))
        return cls(*values)

    @property
    def of_entries(self):
        """Names of the parameters that have bounds of entries."""
        bounds = {"min_value": self.low, "max_value": self.high}
        return [name for name, values in bounds.items() if values.ndim == 2]

    @property
    def bounds(self):
        """The bounds of missing numbers; low and high."""
        return self.low, self.high

    def shifted(self, filled, gaps, reader: TableReader):
        """Return a table that was filled in, with the shift added to its former gaps.

        A sum outside of a bound becomes that bound. gaps : bool, shape (n, d).
        """
        is_shifted = self.shift != 0
        columns = np.flatnonzero(is_shifted & gaps.any(axis=0)).tolist()
        if not columns:
            return filled
        rows = reader.encode(filled, columns) + self.shift
        rows = np.fmin(np.fmax(rows, self.low), self.high)  # NaN is no bound
        return reader.fill(filled, rows, gaps & is_shifted)


class _Columns:
    """The columns of a parameter that has a number for each, or one for each entry.

    parameter : its name. table : the table, if it takes numbers for entries. problems :
    what is wrong with it, after `read`.
    """

    def __init__(self, parameter, reader, names, table=None):
        self.parameter, self.reader, self.names = parameter, reader, names
        self.table, self.problems = table, []
        self.n_rows = None if table is None else len(table)

    def read(self, value, default):
        """Return the numbers of columns, (d,), or of entries, (n, d).

        `default` stands where there are none.
        """
        if value is None:
            return np.full(len(self.names), default)
        try:
            if np.ndim(value) == 0 and not isinstance(value, Mapping):
                return self._of_all(value, default)
            given = self._given(value)
        except (TypeError, ValueError) as error:
            self.problems.append(str(error))
            return np.full(len(self.names), default)
        numbers = {j: self._numbers(j, number) for j, number in given.items()}
        values = np.full(len(self.names), default)
        if any(map(np.ndim, numbers.values())):
            values = np.tile(values, (self.n_rows, 1))
        for j, of_column in numbers.items():
            values[..., j] = np.where(np.isnan(of_column), default, of_column)
        return values

    def _of_all(self, value, default):
        number = _number(value, self.parameter, self.parameter)
        is_number = [_is_of_numbers(self.reader, j) for j in range(len(self.names))]
        return np.where(is_number, number, default)

    def _given(self, value):
        """Return a number, or numbers of entries, for the columns that have any."""
        labels, is_dict = labels_of(value), isinstance(value, Mapping)
        is_series = np.ndim(value) == 1 and labels is not None
        is_numbered = is_series and labels == list(range(len(labels)))
        if is_numbered or not (is_dict or is_series):
            self._check_shape(tuple(map(int, np.shape(value))))
        if is_dict or is_series:
            return by_column(value, self.names, self.parameter)
        if np.ndim(value) == 2:
            return self._of_entries(value)
        return dict(enumerate(np.asarray(value).tolist()))

    def _check_shape(self, shape):
        """Refuse an array that is not of columns, nor of entries if there are some."""
        allowed = [(len(self.names),)]
        if self.n_rows is not None:
            allowed.append((self.n_rows, len(self.names)))
        if shape not in allowed:
            of_entries = " or one for each entry, of shape {}, the shape of X,"
            of_entries = of_entries.format(allowed[-1]) if len(allowed) > 1 else ""
            raise ValueError(
                f"{self.parameter} must have a number for each of {len(self.names)} "
                f"columns,{of_entries} got shape {shape}."
                f"{self._advice if len(shape) == 2 else ''}"
            )

    def _of_entries(self, value):
        """Return the numbers of a table of entries, by their columns."""
        columns = columns_of(value)
        names = [column.name for column in columns]
        has_names = is_into_dataframe(value) and (
            set(names) == set(self.names)
            or all(isinstance(name, str) for name in self.names)
        )
        if has_names and set(names) != set(self.names):
            others = sorted(set(names) ^ set(self.names), key=str)
            raise ValueError(
                f"{self.parameter} must have the columns of X; these are only in one "
                f"of them: {listed(others)}."
            )
        rows = self._rows(value, self.parameter)
        numbers = {
            column.name if has_names else j: column.values[rows].astype(object).tolist()
            for j, column in enumerate(columns)
            if len(column.present)
        }
        return by_column(numbers, self.names, self.parameter) if has_names else numbers

    def _rows(self, value, name):
        """Return the indices of the rows of the table among entries of a value."""
        labels = labels_of(value)
        if labels is None:
            return slice(None)
        names = labels_of(self.table)
        names = range(self.n_rows) if names is None else names
        return indices_of(names, labels, name, "rows of X")

    @property
    def _advice(self):
        return "" if self.table is None else f" {ADVICE_ON_ENTRIES}"

    def _numbers(self, j, value):
        """Return the number of column j, or those of its entries; NaN where none is."""
        name = f"{self.parameter} of column {self.names[j]!r}"
        is_of_entries = np.ndim(value) > 0
        try:
            if not is_of_entries:
                numbers = _number(value, name, self.parameter)
            elif self.n_rows is None or np.shape(value) != (self.n_rows,):
                of_entries = "" if self.n_rows is None else f" or {self.n_rows} of them"
                raise ValueError(
                    f"{name} must be a number{of_entries}, got shape {np.shape(value)}."
                    f"{self._advice}"
                )
            else:
                entries = np.asarray(value, dtype=object)[self._rows(value, name)]
                numbers = np.array(
                    [
                        np.nan if is_missing(x) else _number(x, name, self.parameter)
                        for x in entries.tolist()
                    ]
                )
        except ValueError as error:
            self.problems.append(str(error))
            return np.nan
        is_delta = self.parameter == "delta"
        is_idle = np.equal(numbers, 0) if is_delta else ~np.isfinite(numbers)
        if not is_idle.all() and not _takes_number(self.reader, j, self.parameter):
            self.problems.append(f"{name}: the column holds no numbers.")
        return numbers


def _takes_number(reader, j, parameter):
    is_shift_of_days = parameter == "delta" and reader.storage[j]["days"]
    return is_shift_of_days or _is_of_numbers(reader, j)


def _is_of_numbers(reader, j):
    is_number = reader.kinds[j] not in KINDS_WITHOUT_NUMBERS
    return is_number and not reader.storage[j]["days"]


def _number(value, name, parameter):
    """Return a finite number, or an infinite bound, which is none."""
    try:
        number = np.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    no_bound = {"min_value": -np.inf, "max_value": np.inf}.get(parameter)
    if not np.isfinite(number) and number != no_bound:
        raise ValueError(f"{name} must be a finite number, got {plain(value)!r}.")
    return number


def rows_of(bounds, index):
    """Return the bounds of some rows, by their indices; those of columns stay."""
    return bounds[index] if bounds.ndim == 2 else bounds
