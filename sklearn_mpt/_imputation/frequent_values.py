"""Values that many rows share, in columns of numbers that have a density.

A density has no such value, an amount of 0 for example. So draws of such a column come
from the entries that were hidden in the choice of models, and for which these expected
nearly the same: a draw is the value if such an entry is, and else has its error. These
are local residual draws [1]_, with errors of entries to which no model was fitted.

.. [1] N. Schenker and J. M. G. Taylor, "Partially parametric techniques for multiple
   imputation", Computational Statistics & Data Analysis 22, 1996.
"""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._numbers import CHUNK_ENTRIES, ROUNDING, chunk_slices
from sklearn_mpt._probabilities import drawn_codes

# Share of the rows that have the value, at least: intervals that hold nine tenths of
# the draws hardly depend on a rarer one.
MIN_SHARE = 0.1
# Hidden entries from which a number is drawn. One more number like k others lies
# between their least and largest with probability (k - 1) / (k + 1), here 0.90:
# intervals of draws from fewer cover too little. What the draws gain is in
# benchmarks/RESULTS.rst, "Mechanisms".
N_NEAREST = 20


class FrequentValue(NamedTuple):
    """A value of one column, and the hidden entries of the column.

    expected : what the models expected of the entries. numbers : what they are.
    weight : what they count. All of shape (n,).
    """

    value: float
    expected: np.ndarray
    numbers: np.ndarray
    weight: np.ndarray

    def draw(self, expected, rng):
        """Draw numbers of these expectations, (m,).

        Each is the value, if an entry drawn from the nearest ones is; otherwise it is
        the expectation and the error of that entry. Of entries that are equally near,
        some are chosen at random.
        """
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
    """Return the most frequent of some numbers, (n,), or None if it is not frequent.

    weight : what each of them counts, (n,).
    """
    present = ~np.isnan(numbers)
    values, index = np.unique(numbers[present], return_inverse=True)
    count = np.bincount(index, weight[present])
    if not count.sum() or count.max() < MIN_SHARE * count.sum():
        return None
    return float(values[count.argmax()])
