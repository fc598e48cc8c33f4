"""Values that many rows share, in columns of numbers that have a density."""
# A density has no such value, an amount of 0 for example. So draws come from hidden
# entries for which the models expected nearly the same: a draw is the value if such an
# entry is, and else has its error. These are local residual draws (Schenker and Taylor,
# Computational Statistics & Data Analysis 22, 1996). The weights of the entries are
# calibrated (Deville and Särndal, Journal of the American Statistical Association 87,
# 1992): with them the value is as frequent as in all rows, and the mean is the same.

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import CHUNK_ENTRIES, ROUNDING, TINY, chunk_slices

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

    def calibrated(self, numbers, weight):
        """Return the entries, weighted so that they are like all rows of a column."""
        # Weights are multiplied by the exponential of a linear function of the value
        # and the number. What is left of the differences is about one over the number
        # of entries; so weights are finite where no entries have such a mean.
        present = ~np.isnan(numbers)
        if not present.any():
            return self
        log_weight = np.log(self.weight / self.weight.sum())
        of_entries, of_rows = (
            np.column_stack([x == self.value, x])
            for x in (self.numbers, numbers[present])
        )
        target = np.average(of_rows, axis=0, weights=weight[present])
        spread = np.vstack([of_entries, of_rows]).std(axis=0)
        features = (of_entries - target) / np.where(spread > 0, spread, 1.0)

        def loss(slopes):
            log_weights = log_weight + features @ slopes
            total = logsumexp(log_weights)
            gradient = np.exp(log_weights - total) @ features + slopes / len(features)
            return total + 0.5 * slopes @ slopes / len(features), gradient

        slopes = minimize(loss, np.zeros(2), jac=True).x
        logs = log_weight + features @ slopes
        return self._replace(weight=np.maximum(np.exp(logs - logs.max()), TINY))

    def draw(self, expected, rng):
        """Draw numbers of these expectations, (m,)."""
        # Each is the value, if an entry drawn from the nearest ones is; else the
        # expectation and the error of that entry. Of entries equally near some are
        # chosen at random.
        drawn = np.empty(len(expected))
        for chunk in chunk_slices(len(drawn), len(self.expected), CHUNK_ENTRIES):
            entry = self._near(expected[chunk], rng)
            error = self.numbers[entry] - self.expected[entry]
            is_value = self.numbers[entry] == self.value
            drawn[chunk] = np.where(is_value, self.value, expected[chunk] + error)
        return drawn

    def _near(self, expected, rng):
        """Return the index of one of the nearest entries for each expectation."""
        distance = np.abs(np.subtract.outer(expected, self.expected))
        rounding = ROUNDING * np.abs(self.numbers - self.expected).max()
        distance += rounding * rng.random(distance.shape)  # equal ones at random
        n_nearest = min(N_NEAREST, len(self.expected))
        nearest = distance.argpartition(n_nearest - 1, axis=1)[:, :n_nearest]
        drawn = drawn_codes(self.weight[nearest], rng.random((len(nearest), 1)))
        return np.take_along_axis(nearest, drawn[:, None], axis=1)[:, 0]


def frequent_value(numbers, weight):
    """Return the most frequent of some numbers, (n,), or None if it is not frequent."""
    # A number that a single row has is not, however few the rows are.
    present = ~np.isnan(numbers)
    values, index = np.unique(numbers[present], return_inverse=True)
    count = np.bincount(index, weight[present])
    if count.max(initial=0.0) < max(2, MIN_SHARE * count.sum()):
        return None
    return float(values[count.argmax()])
