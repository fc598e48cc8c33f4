"""Kinds and units of the columns of a table, and probabilities of their categories."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sklearn_mpt._imputation.power_transforms import NO_TRANSFORMS, PowerTransforms
from sklearn_mpt._integration.quadrature import NODES, WEIGHTS
from sklearn_mpt._likelihoods.base import column_moments
from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._numbers import ROUNDING
from sklearn_mpt._probabilities import median_codes
from sklearn_mpt._tables.kinds_of_values import MAX_LEVELS, ROWS_PER_LEVEL

# Standard deviation of equal numbers, relative to them, by rounding errors of sums.
MIN_SPREAD = 1e-12


class ColumnLayout(NamedTuple):
    """Kinds of the columns of coded rows.

    kinds : names of likelihoods. n_categories : number of categories of each column; 0
    for columns without codes. values : the numbers that codes stand for, in increasing
    order, of the columns of numbers that are coded; by the index of the column.
    """

    kinds: list[str]
    n_categories: np.ndarray
    values: Mapping[int, np.ndarray] = {}

    @classmethod
    def from_kinds(cls, kinds, categories):
        counts = [
            (2 if kind == "bernoulli" else 0) if known is None else len(known)
            for kind, known in zip(kinds, categories, strict=True)
        ]
        return cls(list(kinds), np.array(counts))

    def with_levels(self, rows):
        """Return the layout in which numbers of few values are ordered codes.

        rows : shape (n, d), NaN where missing.
        """
        kinds, counts, values = list(self.kinds), self.n_categories.copy(), {}
        for j in np.flatnonzero(np.array(kinds) == "gaussian"):
            levels = levels_of(rows[~np.isnan(rows[:, j]), j])
            if levels is not None:
                values[int(j)] = levels
                counts[j] = len(levels)
                kinds[j] = "bernoulli" if len(levels) == 2 else "ordinal"
        return ColumnLayout(kinds, counts, values)

    def without_levels(self):
        """Return the layout in which numbers are not coded."""
        kinds, counts = list(self.kinds), self.n_categories.copy()
        for j in self.values:
            kinds[j], counts[j] = "gaussian", 0
        return ColumnLayout(kinds, counts)

    def log_level_density(self, j):
        """Return the log-density of a level with probability 1; 0 for categories.

        It is one over the step between levels.
        """
        if j not in self.values:
            return 0.0
        return -np.log(np.diff(self.values[j]).min())

    @property
    def coded(self):
        """Indices of the columns that hold codes."""
        return np.flatnonzero(self.n_categories)

    @property
    def numbers(self):
        """Whether each column holds numbers, coded or not."""
        numbers = self.n_categories == 0
        numbers[list(self.values)] = True
        return numbers

    @property
    def ordered(self):
        """Whether the codes of each column are ordered."""
        return np.array([kind in ORDERED_KINDS for kind in self.kinds])

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
            "categorical" if kind in ORDERED_KINDS and kind not in allowed else kind
            for kind in likelihood
        ]


def levels_of(numbers):
    """Return the values of a column, if they are few and each is frequent, else None.

    There are then at least `ROWS_PER_LEVEL` rows for each value on average.
    """
    values = np.unique(numbers)
    if not 2 <= len(values) <= min(MAX_LEVELS, len(numbers) / ROWS_PER_LEVEL):
        return None
    if np.diff(values).min() < ROUNDING * np.ptp(values):
        return None
    return values


class NumberTransform(NamedTuple):
    """How numbers are coded: power transforms, less a shift, over a scale.

    shift, scale : of each column; 0 and 1 for columns of categories.
    """

    shift: np.ndarray
    scale: np.ndarray
    powers: PowerTransforms = NO_TRANSFORMS

    @classmethod
    def from_rows(cls, rows, layout, powers=NO_TRANSFORMS, weight=None):
        rows = powers.transform(rows)
        is_number = layout.numbers
        shift, scale = np.zeros(len(is_number)), np.ones(len(is_number))
        shift[is_number], scale[is_number] = means_and_spreads(
            rows[:, is_number], weight
        )
        return cls(shift, scale, powers)

    def transform(self, rows):
        return (self.powers.transform(rows) - self.shift) / self.scale

    def inverse_transform(self, rows):
        return self.powers.inverse_transform(self.shift + self.scale * rows)

    def inverse_power_transforms(self, numbers):
        """Restore the columns of power transforms alone, (..., m)."""
        columns = self.powers.columns
        transforms = self.shift[columns] + self.scale[columns] * numbers
        return self.powers.inverse(transforms)

    def log_derivatives(self, rows):
        """Return the logarithms of the derivatives of coded numbers, (n, d)."""
        return self.powers.log_derivatives(rows) - np.log(self.scale)

    def with_averages(self, mean, averages):
        """Return expectations of numbers, given those of coded numbers, (n, d).

        averages : expectations of the numbers of the columns of power transforms.
        """
        expected = self.shift + self.scale * mean
        expected[:, self.powers.columns] = averages
        return expected

    def expected(self, mean, std):
        """Return expectations of numbers that are normal when coded, (n, d)."""
        columns = self.powers.columns
        points = mean[:, columns] + std[:, columns] * NODES[:, None, None]
        averages = np.tensordot(WEIGHTS, self.inverse_power_transforms(points), 1)
        return self.with_averages(mean, averages)


def means_and_spreads(numbers, weight=None):
    """Return the mean of each column and its standard deviation; (d,) each.

    The standard deviation is 1 if the column is constant.
    """
    mean, variance, _ = column_moments(numbers, weight)
    spread = np.sqrt(variance)
    varies = spread > MIN_SPREAD * np.nanmax(np.abs(numbers), axis=0)
    return mean, np.where(varies, spread, 1.0)


def codes_of(probs, is_ordered):
    """Return the median of ordered categories, else the most probable one; (n,)."""
    if not is_ordered:
        return probs.argmax(axis=1)
    return median_codes(probs)
