"""Which numbers may be filled in: limits of columns, and the grid of their values."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._tables.kinds_of_values import step_of

MAX_DECIMALS = 6  # numbers with more are on no grid


class Limits(NamedTuple):
    """Smallest and largest numbers of columns, and the grids that they are on.

    low, high : of each column, infinite without limit. origin, step : of the grid of
    each column; 0 without a grid.
    """

    low: np.ndarray
    high: np.ndarray
    origin: np.ndarray
    step: np.ndarray

    @classmethod
    def from_rows(cls, rows, is_number):
        """Learn the limits and grids of columns of numbers.

        Limits lie a standard deviation outside of what is seen, but are not negative
        where nothing negative is.

        rows : shape (n, d), NaN where missing. is_number : bool, (d,).
        """
        n_columns = rows.shape[1]
        low, high = np.full(n_columns, -np.inf), np.full(n_columns, np.inf)
        origin, step = np.zeros((2, n_columns))
        for j in np.flatnonzero(is_number):
            numbers = rows[~np.isnan(rows[:, j]), j]
            if len(numbers):
                margin = numbers.std()
                floor = 0.0 if numbers.min() >= 0 else -np.inf
                low[j] = max(numbers.min() - margin, floor)
                high[j] = numbers.max() + margin
                origin[j], step[j] = numbers.min(), decimal_step(numbers)
        return cls(low, high, origin, step)

    def with_bounds(self, low, high):
        """Return limits that a user's bounds replace where they are not NaN."""
        is_low, is_high = ~np.isnan(low), ~np.isnan(high)
        lower = np.where(is_low, low, self.low)
        upper = np.where(is_high, high, self.high)
        lower = np.where(is_high & ~is_low, np.minimum(lower, upper), lower)
        upper = np.where(is_low & ~is_high, np.maximum(lower, upper), upper)
        return self._replace(low=lower, high=upper)

    def clip(self, rows):
        return np.clip(rows, self.low, self.high)

    def nearest_existing(self, rows):
        """Return the nearest numbers within limits and on the grid of their column."""
        rows, has_grid = self.clip(rows), self.step > 0
        step = np.where(has_grid, self.step, 1.0)
        lower, upper = (self.low - self.origin) / step, (self.high - self.origin) / step
        place = np.rint((rows - self.origin) / step)
        place = place.clip(np.ceil(lower), np.floor(upper))
        grid = self.origin + place * step
        return np.where(has_grid, grid.round(MAX_DECIMALS), rows)


def decimal_step(numbers):
    """Return the step between numbers of few decimals, or 0 if they have more.

    It is a whole number of ones, of tenths, of hundredths, ...
    """
    for decimals in range(MAX_DECIMALS + 1):
        scaled = numbers * 10.0**decimals
        rounded = np.rint(scaled)
        if np.allclose(scaled, rounded, rtol=1e-12, atol=1e-6):
            return step_of(rounded) / 10.0**decimals
    return 0.0


def largest_log_densities(rows, layout):
    """Return the largest log-density of numbers in each column, (d,).

    A number on a grid is an interval of the width of a step, whose probability is at
    most one. So a density that is narrower than the rounding of the numbers gains
    nothing.

    rows : in the units of the table, NaN where missing.
    """
    largest = np.full(rows.shape[1], np.inf)
    for j, kind in enumerate(layout.kinds):
        if kind == "gaussian" or j in layout.values:
            step = decimal_step(rows[~np.isnan(rows[:, j]), j])
            largest[j] = -np.log(step) if step else np.inf
    return largest
