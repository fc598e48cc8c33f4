"""Kinds and units of the columns of coded rows, and probabilities of their categories.

Coded rows are arrays of floats, NaN where missing. Categories are codes 0, 1, 2, ...;
numbers are power transforms where columns are skewed, and standardised.
"""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._imputation.powers import NO_POWERS, Powers
from sklearn_mpt._latent.quadrature import NODES, WEIGHTS

ORDERED = ("ordinal", "partial_credit")
LEAST_SPREAD = 1e-12  # smallest spread of a column, relative to its largest value


class Layout(NamedTuple):
    """Kinds of the columns of coded rows.

    kinds : names of likelihoods. n_categories : number of categories of each column; 0
    for columns without codes.
    """

    kinds: list[str]
    n_categories: np.ndarray

    @classmethod
    def of(cls, kinds, categories):
        counts = [
            (2 if kind == "bernoulli" else 0) if known is None else len(known)
            for kind, known in zip(kinds, categories, strict=True)
        ]
        return cls(list(kinds), np.array(counts))

    @property
    def coded(self):
        """Indices of the columns that hold codes."""
        return np.flatnonzero(self.n_categories)

    @property
    def ordered(self):
        """Whether the codes of each column are ordered."""
        return np.array([kind in ORDERED for kind in self.kinds])

    @property
    def likelihood(self):
        """The kinds, in the form of the parameter `likelihood`."""
        is_of_numbers = set(self.kinds) == {"gaussian"}
        return "gaussian" if is_of_numbers else list(self.kinds)

    def likelihood_among(self, allowed):
        """Return `likelihood`; ordered kinds not in `allowed` are "categorical"."""
        likelihood = self.likelihood
        if isinstance(likelihood, str):
            return likelihood
        return [
            "categorical" if kind in ORDERED and kind not in allowed else kind
            for kind in likelihood
        ]


class Units(NamedTuple):
    """How numbers are coded: power transforms, less a shift, over a scale.

    shift, scale : of each column; 0 and 1 for columns that are not Gaussian.
    """

    shift: np.ndarray
    scale: np.ndarray
    powers: Powers = NO_POWERS

    @classmethod
    def of(cls, rows, layout, powers=NO_POWERS):
        rows = powers.transformed(rows)
        is_number = np.array([kind == "gaussian" for kind in layout.kinds])
        shift, scale = np.zeros(len(is_number)), np.ones(len(is_number))
        numbers = np.asarray(rows[:, is_number], dtype=np.float64)
        shift[is_number] = np.nanmean(numbers, axis=0)
        spread = np.nanstd(numbers, axis=0)
        varies = spread > LEAST_SPREAD * np.nanmax(np.abs(numbers), axis=0)
        scale[is_number] = np.where(varies, spread, 1.0)
        return cls(shift, scale, powers)

    def without(self, rows):
        return (self.powers.transformed(rows) - self.shift) / self.scale

    def restored(self, rows):
        return self.powers.restored(self.shift + self.scale * rows)

    def restored_powers(self, numbers):
        """Restore the columns of power transforms alone, (..., m)."""
        columns = self.powers.columns
        transforms = self.shift[columns] + self.scale[columns] * numbers
        return self.powers.inverse(transforms)

    def log_slope(self, rows):
        """Return the logarithms of the derivatives of coded numbers, (n, d)."""
        return self.powers.log_slope(rows) - np.log(self.scale)

    def expected(self, mean, std):
        """Return expectations of numbers that are normal when coded, (n, d)."""
        expected, columns = self.restored(mean), self.powers.columns
        if len(columns):
            points = mean[:, columns] + std[:, columns] * NODES[:, None, None]
            expected[:, columns] = np.tensordot(
                WEIGHTS, self.restored_powers(points), 1
            )
        return expected


def codes_of(probs, is_ordered):
    """Return the median of ordered categories, else the most probable one; (n,)."""
    if not is_ordered:
        return probs.argmax(axis=1)
    below = probs.cumsum(axis=1) / probs.sum(axis=1, keepdims=True)
    return (below < 0.5 - 1e-12).sum(axis=1)
