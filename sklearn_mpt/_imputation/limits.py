"""What a filled value may be: limits and grids of numbers, and values rows share."""

from collections.abc import Mapping
from numbers import Real
from typing import NamedTuple, Self

import numpy as np

from sklearn_mpt._checks import listed, plain, seed_from
from sklearn_mpt._imputation.coding import Coding, Scales
from sklearn_mpt._imputation.laws import NumberLaws
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._measure.rows import missing_entries, take
from sklearn_mpt._numbers import CACHE_ENTRIES, CHUNK_ENTRIES, ROUNDING, chunk_slices
from sklearn_mpt._tables.frames import by_column
from sklearn_mpt._tables.reader import TableReader

N_COPIES = 100  # of a row, drawn by a user's estimator


def read_bounds(min_value, max_value, reader: TableReader, names):
    """Return lower and upper bounds of columns, (2, d), and what is wrong with them."""
    # NaN where there is none
    is_number = [
        kind == "gaussian" and not storage["days"]
        for kind, storage in zip(reader.kinds, reader.storage, strict=True)
    ]
    bounds, problems = np.full((2, len(names)), np.nan), []
    given = ("min_value", min_value, -np.inf), ("max_value", max_value, np.inf)
    for bound, (parameter, values, no_bound) in zip(bounds, given, strict=True):
        is_one = np.ndim(values) == 0 and not isinstance(values, Mapping)
        if is_one:  # or None
            columns = [] if values is None else np.flatnonzero(is_number).tolist()
            of_columns = dict.fromkeys(columns, values)
        else:
            try:
                of_columns = by_column(values, names, parameter)
            except ValueError as error:
                problems.append(str(error))
                continue
        for j, value in of_columns.items():
            name = parameter if is_one else f"{parameter} of column {names[j]!r}"
            is_real = isinstance(value, Real) and not isinstance(value, bool)
            if not is_real or not (np.isfinite(value) or value == no_bound):
                problems.append(
                    f"{name} must be a finite number, got {plain(value)!r}."
                )
            elif np.isfinite(value) and not is_number[j]:
                problems.append(f"{name}: the column holds no numbers.")
            else:
                bound[j] = value
    low, high = bounds
    above = np.flatnonzero(low > high)
    if len(above) and not problems:
        problems.append(
            f"min_value {low[above[0]]} is above max_value {high[above[0]]} in "
            f"column(s) {listed([names[j] for j in above])}."
        )
    return bounds, list(dict.fromkeys(problems))


def limits_of(coding: Coding, is_date, bounds):
    """Return the least and largest numbers that fill columns in, (d,) each.

    Returned is also which columns have a grid, some of which is within.
    """
    # A deviation outside of what was seen, but dates end where they ended, numbers are
    # not below zero where none was, and at least half of the least one where all were
    # above zero. Bounds of a user, (2, d), replace these where they are not NaN. A
    # limit beside a bound outside of what was seen is as far from it, or at zero:
    # numbers below a detection limit may be anywhere between zero and it.
    low, high = bounds
    least, largest, step = coding.least, coding.largest, coding.steps
    margin = np.where(is_date, 0.0, coding.spreads)
    floor = np.where(least >= 0, least / 2, -np.inf)
    seen_low, seen_high = np.maximum(least - margin, floor), largest + margin
    # the grid of numbers above zero lacks 0
    floor = np.where(least > 0, np.fmin(step, high) / 2, floor)
    below = np.minimum(np.maximum(high - coding.spreads, floor), high)
    seen_low = np.where(high <= least, below, seen_low)
    seen_high = np.where(low >= largest, low + coding.spreads, seen_high)
    low = np.where(np.isnan(low), seen_low, low)
    high = np.where(np.isnan(high), seen_high, high)
    # on the grid of columns that have one, if any of it is within
    unit = np.where(step > 0, step, 1.0)
    first = least + unit * np.ceil((low - least) / unit)
    last = least + unit * np.floor((high - least) / unit)
    for j, levels in coding.levels.items():
        within = levels[(low[j] <= levels) & (levels <= high[j])]
        first[j], last[j] = within[[0, -1]] if len(within) else (np.inf, -np.inf)
    has_grid = (step > 0) & (first <= last)
    limits = np.where(has_grid, first, low), np.where(has_grid, last, high)
    return limits, has_grid


class FrequentValue(NamedTuple):
    """A value that many rows of a column share, and hidden entries of the column."""

    # A density has no such value, an amount of 0 for example. So draws come from hidden
    # entries for which the models expected nearly the same: a draw is the value if such
    # an entry is, and else has its error. These are local residual draws (Schenker and
    # Taylor, Computational Statistics & Data Analysis 22, 1996).

    # expected, numbers, weight : what models expected of hidden entries, what they are
    # and count; (n,).

    value: float
    expected: np.ndarray
    numbers: np.ndarray
    weight: np.ndarray

    @classmethod
    def found(cls, rows, weight, expected, numbers, entry_weight) -> Self | None:
        """Return the most frequent number of a column, if a tenth of rows have it."""
        # Intervals that hold nine tenths of the draws hardly depend on a rarer one, and
        # draws from less than ten entries are no better than those from a density. One
        # that a single row has is not frequent, however few the rows are.
        present = ~np.isnan(rows)
        values, index = np.unique(rows[present], return_inverse=True)
        if len(values) == len(index) or len(numbers) < 10:
            return None
        count = np.bincount(index, weight[present])
        share = count.max() / count.sum()
        if share < 0.1 or (index == count.argmax()).sum() < 2:
            return None
        # entries have the value as often as rows
        value = values[count.argmax()]
        is_value, share = numbers == value, min(share, 0.99)
        found = np.average(is_value, weights=entry_weight)
        if 0 < found < 1:
            factor = np.where(is_value, share / found, (1 - share) / (1 - found))
            entry_weight = entry_weight * factor
        return cls(value, expected, numbers, entry_weight)

    def draw(self, expected, rng, *, n_nearest=20):
        """Draw numbers of these expectations, (m,), by the entries nearest to them."""
        # One more number like k others lies between their least and largest with
        # probability (k - 1) / (k + 1), here 0.90: of fewer, intervals cover too
        # little. Entries equally near are chosen at random, for each number anew.
        drawn, errors = np.empty(len(expected)), self.numbers - self.expected
        rounding, n = ROUNDING * np.abs(errors).max(), min(n_nearest, len(errors))
        for chunk in chunk_slices(len(drawn), len(errors), CACHE_ENTRIES):
            distance = np.abs(np.subtract.outer(expected[chunk], self.expected))
            distance += rounding * rng.random(distance.shape)
            nearest = distance.argpartition(n - 1, axis=1)[:, :n]
            codes = drawn_codes(self.weight[nearest], rng.random((len(nearest), 1)))
            entry = np.take_along_axis(nearest, codes[:, None], axis=1)[:, 0]
            is_value = self.numbers[entry] == self.value
            moved = expected[chunk] + errors[entry]
            drawn[chunk] = np.where(is_value, self.value, moved)
        return drawn


def filled_within(estimator, X, filled, reader: TableReader, bounds, is_draw, seed):
    """Return a table that a user's estimator filled in, within bounds."""
    # The first of several draws of a row that is within bounds is one of the joint
    # truncated distribution. Beyond, and for means, normal distributions are truncated.
    low, high = np.where(np.isnan(bounds), [[-np.inf], [np.inf]], bounds)
    missing, numbers = missing_entries(X), reader.encode(filled)
    rng = np.random.default_rng(seed)
    is_bound = missing & np.isfinite(bounds).any(axis=0)
    is_outside = is_bound & ((numbers < low) | (numbers > high))
    rows = np.flatnonzero((is_outside if is_draw else is_bound).any(axis=1))
    for chunk in chunk_slices(len(rows), N_COPIES * len(low), CHUNK_ENTRIES):
        chunk = rows[chunk]
        copies, seed = take(X, np.repeat(chunk, N_COPIES)), seed_from(rng)
        drawn = estimator.impute(copies, method="sample", random_state=seed)
        drawn = reader.encode(drawn).reshape(len(chunk), N_COPIES, -1)
        i, j = np.nonzero(is_bound[chunk])
        mean = drawn.mean(axis=1)[i, j] if is_draw else numbers[chunk[i], j]
        std = drawn.std(axis=1)[i, j] + ROUNDING
        unit = np.ones((len(i), 1))
        scales = Scales(0 * unit, unit, unit, 0 * unit, unit)
        law = NumberLaws(scales, unit, mean[:, None], std[:, None])
        if not is_draw:
            numbers[chunk[i], j] = law.truncated_mean(low[j], high[j])
            continue
        numbers[chunk[i], j] = law.draw(low[j], high[j], rng)
        is_within = (low <= drawn) & (drawn <= high) | ~is_bound[chunk, None]
        is_within = is_within.all(axis=2)
        found = np.flatnonzero(is_within.any(axis=1))
        numbers[chunk[found]] = drawn[found, is_within[found].argmax(axis=1)]
    gaps = missing & ~np.isnan(numbers)
    return reader.fill(filled, np.clip(numbers, low, high), gaps)
