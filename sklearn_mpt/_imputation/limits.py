"""Which numbers may be filled in: limits of columns, and the grid of their values."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._tables.kinds import step_of

MAX_DECIMALS = 6  # numbers with more are on no grid
REACH = 10.0  # standard deviations outside of what was seen where models have mass


class Limits(NamedTuple):
    """Smallest and largest numbers of columns, and the grids that they are on."""

    # low, high : infinite without limit. least, largest, spread : of what was seen, and
    # its deviation; NaN for other columns. step : of the grid through `least`; 0
    # without.

    low: np.ndarray
    high: np.ndarray
    least: np.ndarray
    largest: np.ndarray
    spread: np.ndarray
    step: np.ndarray

    @classmethod
    def from_rows(cls, rows, weight, is_number, has_margin=True):
        """Learn the limits and grids of columns of numbers."""
        # Limits lie a deviation outside of what is seen; not below zero where nothing
        # is, and at least half of the least number seen where that is above zero. rows
        # : (n, d), NaN where missing. has_margin : False for limits at what is seen, as
        # of dates.
        least, largest, spread = np.full((3, rows.shape[1]), np.nan)
        step = np.zeros(rows.shape[1])
        for j in np.flatnonzero(is_number):
            present = ~np.isnan(rows[:, j])
            numbers = rows[present, j]
            if len(numbers):
                least[j], largest[j] = numbers.min(), numbers.max()
                mean = np.average(numbers, weights=weight[present])
                square = np.average((numbers - mean) ** 2, weights=weight[present])
                spread[j], step[j] = np.sqrt(square), decimal_step(numbers)
        margin = np.where(has_margin, spread, 0.0)
        floor = np.where(least >= 0, least / 2, -np.inf)
        low, high = np.fmax(least - margin, floor), largest + margin
        is_known = ~np.isnan(least)
        low, high = np.where(is_known, low, -np.inf), np.where(is_known, high, np.inf)
        return cls(low, high, least, largest, spread, step)

    def with_bounds(self, low, high):
        """Return limits that a user's bounds replace where they are not NaN."""
        # A limit that stays is as far from a bound as from what was seen, if the bound
        # is outside of that: numbers above zero that lie below a detection limit may be
        # anywhere between zero and it.
        is_low, is_high = ~np.isnan(low), ~np.isnan(high)
        floor = np.fmin(self.step, high) / 2  # the grid of numbers above zero lacks 0
        floor = np.where(self.least > 0, floor, -np.inf)
        floor = np.where(self.least == 0, 0.0, floor)
        below = np.fmin(np.fmax(high - self.spread, floor), high)
        above = low + self.spread
        has_low, has_high = np.isfinite(self.low), np.isfinite(self.high)
        lower = np.where(has_low & (high <= self.least), below, self.low)
        upper = np.where(has_high & (low >= self.largest), above, self.high)
        lower, upper = np.where(is_low, low, lower), np.where(is_high, high, upper)
        return self._replace(low=lower, high=upper)

    def clip(self, rows):
        return np.clip(rows, self.low, self.high)

    def _grid(self):
        """Return the step, and the first and last numbers on the grid within limits."""
        step = np.where(self.step > 0, self.step, 1.0)
        first = np.ceil((self.low - self.least) / step)
        return step, first, np.floor((self.high - self.least) / step)

    def nearest_existing(self, rows):
        """Return the nearest numbers within limits and on the grid of their column."""
        # Where no number of the grid is within the limits, it is not on the grid.
        rows = self.clip(rows)
        step, first, last = self._grid()
        index = np.rint((rows - self.least) / step).clip(first, last)
        grid = (self.least + index * step).round(MAX_DECIMALS)
        return np.where((self.step > 0) & (first <= last), grid, rows)

    def nearest_existing_of(self, j, numbers):
        """Return `nearest_existing` of numbers of column j, (n,)."""
        of_column = Limits(*(array[[j]] for array in self))
        return of_column.nearest_existing(numbers[:, None])[:, 0]

    def of_draws(self):
        """Return the limits of draws that `nearest_existing` rounds."""
        # Half a step beyond the first and the last number of a grid, so that these are
        # as probable as others.
        step, first, last = self._grid()
        is_grid = (self.step > 0) & (first <= last)
        low = np.where(is_grid, self.least + (first - 0.5) * step, self.low)
        high = np.where(is_grid, self.least + (last + 0.5) * step, self.high)
        return self._replace(low=low, high=high)

    def reached(self):
        """Return finite limits, beyond which no number is expected; two of (d,)."""
        width = REACH * self.spread
        lowest, highest = self.least - width, self.largest + width
        low = np.fmax(self.low, np.fmin(lowest, self.high - width))
        high = np.fmin(self.high, np.fmax(highest, self.low + width))
        return low, high


def decimal_step(numbers):
    """Return the step, 1, .1, .01, ..., between numbers of few decimals, or 0."""
    for decimals in range(MAX_DECIMALS + 1):
        scaled = numbers * 10.0**decimals
        rounded = np.rint(scaled)
        if np.allclose(scaled, rounded, rtol=1e-12, atol=1e-6):
            return step_of(rounded) / 10.0**decimals
    return 0.0
