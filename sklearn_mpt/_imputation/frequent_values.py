"""Values that many rows share, in columns of numbers that have a density."""
# A density has no such value, an amount of 0 for example. So draws come from hidden
# entries for which the models expected nearly the same: a draw is the value if such an
# entry is, and else has its error. These are local residual draws (Schenker and Taylor,
# Computational Statistics & Data Analysis 22, 1996). The entries are weighted so that
# the value is as frequent among them as in all rows.

from typing import NamedTuple, Self

import numpy as np

from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import CHUNK_ENTRIES, ROUNDING, chunk_slices

# Share of the rows that have the value, at least: intervals that hold nine tenths of
# the draws hardly depend on a rarer one.
MIN_SHARE = 0.1
# Hidden entries from which a number is drawn. One more number like k others lies
# between their least and largest with probability (k - 1) / (k + 1), here 0.90:
# intervals of draws from fewer cover too little. What the draws gain is in
# benchmarks/RESULTS.rst, "Mechanisms".
N_NEAREST = 20


class FrequentValue(NamedTuple):
    """A value of one column, and the hidden entries of the column."""

    # expected, numbers, weight : what models expected of hidden entries, what they are
    # and count; (n,).

    value: float
    expected: np.ndarray
    numbers: np.ndarray
    weight: np.ndarray

    @classmethod
    def found(cls, rows, weight, expected, numbers, entry_weight) -> Self | None:
        """Return the most frequent number of a column, if it is frequent."""
        # A number that a single row has is not, however few the rows are.
        present = ~np.isnan(rows)
        values, index = np.unique(rows[present], return_inverse=True)
        count = np.bincount(index, weight[present])
        is_frequent = count.max(initial=0.0) >= max(2, MIN_SHARE * count.sum())
        if not is_frequent or not len(numbers):
            return None
        return cls(float(values[count.argmax()]), expected, numbers, entry_weight)

    def calibrated(self, numbers, weight):
        """Return the entries, weighted so that their share of the value is of rows."""
        is_value, present = self.numbers == self.value, ~np.isnan(numbers)
        found = np.average(is_value, weights=self.weight)
        if 0 < found < 1 and present.any():
            of_rows = numbers[present] == self.value
            share = np.average(of_rows, weights=weight[present]).clip(0.01, 0.99)
            factor = np.where(is_value, share / found, (1 - share) / (1 - found))
            return self._replace(weight=self.weight * factor)
        return self

    def draw(self, expected, rng):
        """Draw numbers of these expectations, (m,)."""
        # Each is the value, if an entry drawn from the nearest ones is; else the
        # expectation and the error of that entry. Of entries equally near some are
        # chosen at random.
        drawn, errors = np.empty(len(expected)), self.numbers - self.expected
        rounding, n_nearest = (
            ROUNDING * np.abs(errors).max(),
            min(N_NEAREST, len(errors)),
        )
        for chunk in chunk_slices(len(drawn), len(self.expected), CHUNK_ENTRIES):
            distance = np.abs(np.subtract.outer(expected[chunk], self.expected))
            distance += rounding * rng.random(distance.shape)
            nearest = distance.argpartition(n_nearest - 1, axis=1)[:, :n_nearest]
            codes = drawn_codes(self.weight[nearest], rng.random((len(nearest), 1)))
            entry = np.take_along_axis(nearest, codes[:, None], axis=1)[:, 0]
            is_value = self.numbers[entry] == self.value
            drawn[chunk] = np.where(
                is_value, self.value, expected[chunk] + errors[entry]
            )
        return drawn
