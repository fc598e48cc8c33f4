"""What a filled value may be: limits and grids of numbers, and values rows share."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from scipy.special import softmax

from sklearn_mpt._checks import listed, plain, seed_from
from sklearn_mpt._imputation.coding import MAX_DECIMALS, Coding
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._measure.contract import measures_of_columns
from sklearn_mpt._measure.rows import missing_entries, take
from sklearn_mpt._numbers import CHUNK_ENTRIES, ROUNDING, chunk_slices
from sklearn_mpt._tables.filling import INTEGERS
from sklearn_mpt._tables.frames import by_column, labels_of
from sklearn_mpt._tables.kinds import CATEGORIES
from sklearn_mpt._tables.reader import TableReader

N_CELLS = 48  # of the conditionals of a user's estimator


def read_bounds(min_value, max_value, reader: TableReader, names):
    """Return lower and upper bounds of columns, (2, d), NaN where none is set."""
    is_number = np.array(
        [
            kind not in (None, "bernoulli", *CATEGORIES) and not storage["days"]
            for kind, storage in zip(reader.kinds, reader.storage, strict=True)
        ]
    )
    bounds, problems = np.full((2, len(names)), np.nan), []
    given = ("min_value", min_value, -np.inf), ("max_value", max_value, np.inf)
    for bound, (parameter, values, no_bound) in zip(bounds, given, strict=True):
        try:
            of_columns = _by_column(values, names, is_number, parameter)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
            continue
        for j, (name, value) in of_columns.items():
            try:
                number = np.nan if isinstance(value, bool | str) else float(value)
            except (TypeError, ValueError):
                number = np.nan
            if not np.isfinite(number) and number != no_bound:
                problems.append(
                    f"{name} must be a finite number, got {plain(value)!r}."
                )
            elif np.isfinite(number) and not is_number[j]:
                problems.append(f"{name}: the column holds no numbers.")
            bound[j] = number
    low, high = bounds
    above = np.flatnonzero(low > high)
    if len(above) and not problems:
        problems.append(
            f"min_value {low[above[0]]} is above max_value {high[above[0]]} in "
            f"column(s) {listed([names[j] for j in above])}."
        )
    if problems:
        raise ValueError(" ".join(dict.fromkeys(problems)))
    return bounds


def _by_column(values, names, is_number, parameter):
    """Return what a parameter gives for columns: dict of j to its name and value."""
    if values is None:
        return {}
    is_dict = isinstance(values, Mapping)
    if np.ndim(values) == 0 and not is_dict:
        return dict.fromkeys(np.flatnonzero(is_number).tolist(), (parameter, values))
    labels = labels_of(values)
    is_numbered = labels is None or labels == list(range(len(labels)))
    has_all = np.shape(values) == (len(names),)
    if is_dict or (np.ndim(values) == 1 and not is_numbered):
        given = by_column(values, names, parameter)
    elif has_all and labels is not None:  # numbers may be names, in another order
        given = by_column(values, names, parameter)
    elif has_all:
        given = dict(enumerate(np.asarray(values).tolist()))
    else:
        raise ValueError(
            f"{parameter} must have a number for each of {len(names)} columns, got "
            f"shape {tuple(map(int, np.shape(values)))}. Bounds of single entries are "
            "for MPTLinearVAE, whose tables hold intervals."
        )
    named = {j: f"{parameter} of column {names[j]!r}" for j in given}
    return {j: (named[j], value) for j, value in given.items()}


class Limits(NamedTuple):
    """Smallest and largest numbers of columns, and the values that they may have."""

    # low, high : infinite without limit. least, largest : of what was seen. spread :
    # deviation of what was seen. step : of the grid through `least`; 0 without.
    # levels : the values of columns of few.

    low: np.ndarray
    high: np.ndarray
    least: np.ndarray
    largest: np.ndarray
    spread: np.ndarray
    step: np.ndarray
    levels: dict[int, np.ndarray]

    @classmethod
    def seen(cls, coding: Coding, numbers, is_date) -> Self:
        """Return limits a deviation outside of what is seen, of dates at that."""
        # Not below zero where nothing is, and at least half of the least number seen
        # where that is above zero.
        least, largest = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
        margin = np.where(is_date, 0.0, coding.spreads)
        floor = np.where(least >= 0, least / 2, -np.inf)
        low = np.where(coding.is_number, np.maximum(least - margin, floor), -np.inf)
        high = np.where(coding.is_number, largest + margin, np.inf)
        return cls(
            low, high, least, largest, coding.spreads, coding.steps, coding.levels
        )

    @classmethod
    def of_estimator(cls, X, reader: TableReader) -> Self:
        """Return infinite limits, for estimators of users; whole numbers are whole."""
        numbers, n = reader.encode(X), len(reader.kinds)
        is_number = np.array([kind not in (None, *CATEGORIES) for kind in reader.kinds])
        least, largest, spread = np.zeros((3, n))
        present = is_number & ~np.isnan(numbers).all(axis=0)
        for of, function in (
            (least, np.nanmin),
            (largest, np.nanmax),
            (spread, np.nanstd),
        ):
            of[present] = function(numbers[:, present], axis=0)
        step = [float(storage["numbers"] == INTEGERS) for storage in reader.storage]
        ends = np.full(n, np.inf)
        return cls(-ends, ends, least, largest, spread, np.array(step), {})

    def finite(self, j, is_draw, *, n_deviations=10):
        """Return ends of column j beyond which no estimator has any mass."""
        low, high = self.of_draws(j) if is_draw else (self.low[j], self.high[j])
        width = n_deviations * self.spread[j]
        return (
            max(low, min(self.least[j] - width, high - width)),
            min(high, max(self.largest[j] + width, low + width)),
        )

    def with_bounds(self, low, high):
        """Return limits that a user's bounds replace where they are not NaN."""
        # A limit that stays is as far from a bound as from what was seen, if the bound
        # is outside of that: numbers above zero that lie below a detection limit may be
        # anywhere between zero and it.
        floor = np.fmin(self.step, high) / 2  # the grid of numbers above zero lacks 0
        floor = np.where(self.least > 0, floor, -np.inf)
        floor = np.where(self.least == 0, 0.0, floor)
        below = np.fmin(np.fmax(high - self.spread, floor), high)
        lower = np.where(high <= self.least, below, self.low)
        upper = np.where(low >= self.largest, low + self.spread, self.high)
        lower = np.where(np.isnan(low), lower, low)
        return self._replace(low=lower, high=np.where(np.isnan(high), upper, high))

    def clip(self, rows):
        return np.clip(rows, self.low, self.high)

    def _grid(self, j):
        """Return the first and last values of column j within limits, or None."""
        # As indices of its levels, or in steps from the least number seen.
        if j in self.levels:
            levels = self.levels[j]
            ends = np.flatnonzero((levels >= self.low[j]) & (levels <= self.high[j]))
            return (ends[0], ends[-1]) if len(ends) else None
        if self.step[j] == 0:
            return None
        first = np.ceil((self.low[j] - self.least[j]) / self.step[j])
        last = np.floor((self.high[j] - self.least[j]) / self.step[j])
        return (first, last) if first <= last else None

    def nearest(self, j, numbers):
        """Return the values of column j that are nearest to numbers; (n,)."""
        grid, numbers = self._grid(j), np.clip(numbers, self.low[j], self.high[j])
        if grid is None:
            return numbers
        first, last = grid
        if j in self.levels:
            levels = self.levels[j][first : last + 1]
            return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)]
        index = np.rint((numbers - self.least[j]) / self.step[j]).clip(first, last)
        return (self.least[j] + index * self.step[j]).round(MAX_DECIMALS)

    def of_draws(self, j):
        """Return the ends of draws of column j, which `nearest` rounds."""
        # Half a step beyond the first and the last value, so that these are as probable
        # as others.
        grid = self._grid(j)
        if grid is None:
            return self.low[j], self.high[j]
        first, last = grid
        if j in self.levels:
            levels = self.levels[j]
            middles = (levels[1:] + levels[:-1]) / 2
            edges = np.concatenate([[-np.inf], middles, [np.inf]])
            return edges[first], edges[last + 1]
        ends = np.array([first - 0.5, last + 0.5])
        return self.least[j] + ends * self.step[j]


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
    def found(
        cls, rows, weight, expected, numbers, entry_weight, *, min_share=0.1
    ) -> Self | None:
        """Return the most frequent number of a column, if it is frequent."""
        # Intervals that hold nine tenths of the draws hardly depend on a number of
        # fewer rows. One that a single row has is not, however few the rows are.
        present = ~np.isnan(rows)
        values, index = np.unique(rows[present], return_inverse=True)
        count = np.bincount(index, weight[present])
        is_frequent = count.max(initial=0.0) >= max(2, min_share * count.sum())
        if not is_frequent or not len(numbers):
            return None
        return cls(float(values[count.argmax()]), expected, numbers, entry_weight)

    def calibrated(self, rows, weight):
        """Return the entries, weighted so that their share of the value is of rows."""
        is_value, present = self.numbers == self.value, ~np.isnan(rows)
        found = np.average(is_value, weights=self.weight)
        if not 0 < found < 1 or not present.any():
            return self
        share = np.average(rows[present] == self.value, weights=weight[present])
        share = share.clip(0.01, 0.99)
        factor = np.where(is_value, share / found, (1 - share) / (1 - found))
        return self._replace(weight=self.weight * factor)

    def draw(self, expected, rng, *, n_nearest=20):
        """Draw numbers of these expectations, (m,), by the entries nearest to them.

        Of entries equally near some are chosen at random.
        """
        # One more number like k others lies between their least and largest with
        # probability (k - 1) / (k + 1), here 0.90: of fewer, intervals cover too little
        drawn, errors = np.empty(len(expected)), self.numbers - self.expected
        rounding, n = ROUNDING * np.abs(errors).max(), min(n_nearest, len(errors))
        for chunk in chunk_slices(len(drawn), len(errors), CHUNK_ENTRIES):
            distance = np.abs(np.subtract.outer(expected[chunk], self.expected))
            distance += rounding * rng.random(distance.shape)
            nearest = distance.argpartition(n - 1, axis=1)[:, :n]
            codes = drawn_codes(self.weight[nearest], rng.random((len(nearest), 1)))
            entry = np.take_along_axis(nearest, codes[:, None], axis=1)[:, 0]
            is_value = self.numbers[entry] == self.value
            moved = expected[chunk] + errors[entry]
            drawn[chunk] = np.where(is_value, self.value, moved)
        return drawn


def filled_within(estimator, X, filled, reader, limits, is_draw, rng):
    """Return a table that a user's estimator filled in, within limits."""
    # Columns with bounds are drawn, or expected, anew by the conditionals of the
    # estimator, if it has any; draws each given those before. Others move to the
    # nearest bound.
    is_bound = np.isfinite(limits.low) | np.isfinite(limits.high)
    rows, missing, columns = reader.encode(X), missing_entries(X), []
    if hasattr(estimator, "conditional_log_prob"):
        measures = measures_of_columns(estimator, len(is_bound))
        has_density = np.array([measure in (None, "density") for measure in measures])
        columns = np.flatnonzero(is_bound & has_density & missing.any(axis=0)).tolist()
    expected = reader.encode(filled)
    for j in columns:
        index = np.flatnonzero(missing[:, j])

        def log_prob(points, j=j, index=index):
            rows_of = np.repeat(index, N_CELLS)
            asked = rows[rows_of]
            asked[:, j] = points.ravel()
            gaps = missing[rows_of] & ~np.isnan(asked)
            mask, found = np.arange(len(is_bound)) == j, np.empty(len(rows_of))
            for chunk in chunk_slices(len(rows_of), len(is_bound), CHUNK_ENTRIES):
                of_rows = take(X, rows_of[chunk])
                table = reader.fill(of_rows, asked[chunk], gaps[chunk])
                found[chunk] = estimator.conditional_log_prob(table, mask)[:, j]
            return found.reshape(points.shape)

        ends = np.repeat([limits.finite(j, is_draw)], len(index), axis=0)
        points, probs, width = law_on_cells(log_prob, *ends.T[..., None])
        if is_draw:
            cell = drawn_codes(probs, rng.random((len(index), 1)))
            drawn = np.take_along_axis(points, cell[:, None], axis=1)
            drawn += (rng.random(drawn.shape) - 0.5) * width
            rows[index, j] = limits.nearest(j, drawn[:, 0])
        else:
            expected[index, j] = (points * probs).sum(axis=1)
    if is_draw and columns:
        again = reader.fill(X, rows, missing & ~np.isnan(rows))
        seed = seed_from(rng)
        filled = estimator.impute(again, method="sample", random_state=seed)
        expected = reader.encode(filled)
    within = limits.clip(expected)
    return reader.fill(filled, within, missing & is_bound & ~np.isnan(within))


def law_on_cells(log_prob, low, high, *, n_zooms=2, min_mass=1e-4):
    """Return middles of cells, (n, k), their probabilities, and widths, (n, 1).

    log_prob : function of points, (n, k). low, high : (n, 1). n_zooms : with two, cells
    are 1 / 48^2 of the interval, or wider. min_mass : of cells that are divided again,
    relative to the largest.
    """
    for _ in range(n_zooms):
        width = (high - low) / N_CELLS
        points = low + width * (np.arange(N_CELLS) + 0.5)
        log_probs = log_prob(points)
        is_empty = ~np.isfinite(log_probs).any(axis=1, keepdims=True)
        probs = softmax(np.where(is_empty, 0.0, log_probs), axis=1)
        has_mass = probs > min_mass * probs.max(axis=1, keepdims=True)
        first = has_mass.argmax(axis=1, keepdims=True)
        last = N_CELLS - has_mass[:, ::-1].argmax(axis=1, keepdims=True)
        low, high = low + first * width, low + last * width
    return points, probs, width
