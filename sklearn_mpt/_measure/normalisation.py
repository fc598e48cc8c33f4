"""Check that probabilities of discrete columns add up to one."""

from numbers import Number
from typing import NamedTuple

import numpy as np

from sklearn_mpt._measure.contract import describe_mask
from sklearn_mpt._measure.rows import Rows, as_objects, with_entries
from sklearn_mpt._messages import listed, plain

MAX_VALUES = 20  # largest number of values of a discrete column
# Largest range of integers whose probabilities are added up, and number of those beyond
# the ones seen that are tried for counts.
MAX_INTEGERS = 200
SUM_TOLERANCE = 1e-3  # of sums of probabilities, which can be integrals
GRID_TOLERANCE = 0.02  # relative error of an integral on a grid
ROWS_TO_SUM = 10  # rows for which probabilities are added up
# Points of the grids on which a density of whole numbers is integrated: nearly five for
# each number if a column has `MAX_VALUES` of them without gaps.
INTEGER_GRID_POINTS = 2001


def discrete_columns(rows, measures):
    """Return, for each discrete feature, rows that contain each of its values."""
    entries, columns = as_objects(rows.values), {}
    for j, measure in enumerate(measures):
        present = range(len(rows))
        if rows.missing is not None:
            present = np.flatnonzero(~rows.missing[:, j]).tolist()
        first = {}  # row of each value
        for i in present:
            first.setdefault(entries[i, j], i)
        is_integer = all(isinstance(v, str) or v == int(v) for v in _numbers_of(first))
        if (
            measure in (None, "probability")
            and is_integer
            and 2 <= len(first) <= MAX_VALUES
        ):
            columns[j] = _DiscreteColumn(list(first.values()), list(first), measure)
    return columns


def _numbers_of(values):
    """Return the values that are numbers and not booleans."""
    kinds = (bool, np.bool_)
    return [
        v
        for v in values
        if isinstance(v, Number) and not isinstance(v, kinds) and np.isfinite(v)
    ]


class _DiscreteColumn(NamedTuple):
    """Rows that contain each value of a column, these values, and its measure."""

    rows: list[int]
    values: list
    measure: str | None

    @property
    def is_of_numbers(self):
        return len(_numbers_of(self.values)) == len(self.values)

    @property
    def is_of_booleans(self):
        return all(isinstance(v, bool | np.bool_) for v in self.values)

    @property
    def is_binary(self):
        """Whether the values are 0 and 1, or booleans."""
        numbers_only = self.is_of_numbers or self.is_of_booleans
        return numbers_only and {*self.values} == {0, 1}


def check_sums(ask, rows, mask, discrete):
    """Check that the probabilities of discrete features add up to one over values.

    All hidden ones change their values at the same time: the log-probability of a
    feature does not depend on the hidden values of others, as `check_reading` has
    checked.
    """
    hidden = [j for j in discrete if mask[j]]
    few = rows.slice(0, min(ROWS_TO_SUM, len(rows)))
    totals = np.zeros(few.shape)
    for k in range(max((len(discrete[j].rows) for j in hidden), default=0)):
        row_of = {j: discrete[j].rows[k] for j in hidden if k < len(discrete[j].rows)}
        features, indices = list(row_of), np.full(few.shape, -1)
        indices[:, features] = list(row_of.values())
        moved = Rows.from_table(with_entries(few.values, rows.values, indices))
        log_prob = ask(moved, mask)
        if log_prob is None:
            return
        totals[:, features] += _exp(log_prob[:, features])
    for j in hidden:
        _check_total(ask, rows, mask, j, discrete[j], totals[:, j])


def _exp(log_prob):
    with np.errstate(over="ignore"):  # those that are not normalised may be large
        return np.exp(log_prob)


def _check_total(ask, rows, mask, j, column, total):
    """Check the sums of the probabilities of a column over its values, (n_rows,)."""
    i = int(np.abs(total - 1).argmax())
    is_less = total[i] < 1 - SUM_TOLERANCE
    if abs(total[i] - 1) <= SUM_TOLERANCE:
        return
    if is_less and not (column.is_of_numbers or column.is_of_booleans):
        return  # there can be other categories
    if column.is_of_numbers and not isinstance(rows.values, np.ndarray):
        return  # numbers in a table of other things
    if column.is_of_numbers and _is_explained(ask, rows, mask, i, j, column):
        return
    values = sorted(column.values) if column.is_of_numbers else column.values
    cause = "" if is_less else " They may be computed from the hidden value."
    raise ValueError(
        "Log-probabilities must be normalised: the probabilities of feature "
        f"{j} of row {i} add up to {total[i]:.6g} over its values "
        f"{listed([plain(value) for value in values])}, for the mask "
        f"{describe_mask(mask)}.{cause}"
    )


def _is_explained(ask, rows, mask, i, j, column):
    """Return whether a feature has a density, or probabilities of unseen integers."""
    low, high = int(min(column.values)), int(max(column.values))

    def densities(values):
        repeated = np.repeat(np.array(rows.values[[i]], dtype=float), len(values), 0)
        repeated[:, j] = values
        try:
            log_prob = ask(Rows.from_table(repeated), mask)[:, j]
        except Exception:  # the user's function may refuse other values
            return np.full(len(values), np.nan)
        return _exp(log_prob)

    if column.measure is None and _is_density(densities, low, high):
        return True
    least = max(0, low - MAX_INTEGERS) if low >= 0 else low - MAX_INTEGERS
    ranges = [
        (low, high),
        (low, high + 1),
        (low, high + 2),
        (least, high + MAX_INTEGERS),
    ]
    return any(
        abs(densities(np.arange(a, b + 1)).sum() - 1) <= SUM_TOLERANCE
        for a, b in ranges
    )


def _is_density(densities, low, high):
    """Return whether densities integrate to one, with a probability of zero if any."""
    margin = 10 * (high - low + 1)
    grids = [np.linspace(low - margin, high + margin, INTEGER_GRID_POINTS)]
    if low >= 0:  # amounts: the model may refuse negative values
        grids.append(np.geomspace(1e-6, 1e3, INTEGER_GRID_POINTS) * (high + 1))
    integrals = np.array([np.trapezoid(densities(grid), grid) for grid in grids])
    totals = [*integrals, integrals[-1] + densities(np.zeros(1))[0]]
    return bool((np.abs(np.array(totals) - 1) < GRID_TOLERANCE).any())
