"""Laws of missing entries: mixtures of normal numbers, and probabilities."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri_exp, softmax

from sklearn_mpt._imputation.coding import Coding, Scales
from sklearn_mpt._matrices import drawn_codes, hermite_nodes, median_codes
from sklearn_mpt._numbers import TINY

N_NODES = 15  # of averages over normal numbers, and over quantiles of truncated laws
NODES, NODE_WEIGHTS = hermite_nodes(N_NODES)


class Prediction(NamedTuple):
    """What a member tells of the missing entries of rows."""

    # Coded numbers are mixtures of normal numbers: weight (n, k); mean, std (n, k, d),
    # NaN where it tells nothing. probs : dict from columns to (n, C).

    weight: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    probs: dict


def cell_probs(weight, mean, std, edges):
    """Return probabilities of the cells between edges; (m, n_edges + 1)."""
    # Of mixtures of normal numbers, whose parameters are (m, k).
    below = ndtr((edges - mean[..., None]) / std[..., None])
    below = (weight[..., None] * below).sum(axis=1)
    cells = np.maximum(np.diff(below, axis=1, prepend=0, append=1), 1e-12)
    return cells / cells.sum(axis=1, keepdims=True)


class NumberLaws(NamedTuple):
    """Mixtures of normal coded numbers, of one entry each."""

    scales: Scales  # shape of all: (m, 1)
    weight: np.ndarray  # (m, k), as the mean and standard deviation
    mean: np.ndarray
    std: np.ndarray

    def of(self, index):
        return NumberLaws(self.scales.of(index), *(part[index] for part in self[1:]))

    def log_prob(self, numbers):
        """Return log-densities in the units of the table, (m,)."""
        numbers = numbers[:, None]
        z = (self.scales.code(numbers) - self.mean) / self.std
        log_prob = -0.5 * z**2 - np.log(self.std * np.sqrt(2 * np.pi))
        log_prob = log_prob + self.scales.log_derivative(numbers)
        return logsumexp(log_prob, b=np.maximum(self.weight, TINY), axis=1)

    def expected(self, low, high):
        """Return expected numbers, between limits; (m,)."""
        found = self.scales.restore(self.mean)
        powers = np.flatnonzero((self.scales.power != 1)[:, 0])
        if len(powers):
            law = self.of(powers)
            scales = Scales(*(part[..., None] for part in law.scales))
            z = law.mean[..., None] + law.std[..., None] * NODES
            ends = low[powers, None, None], high[powers, None, None]
            found[powers] = np.clip(scales.restore(z), *ends) @ NODE_WEIGHTS
        return np.clip((self.weight * found).sum(axis=1), low, high)

    def _within(self, low, high):
        """Return shares of components within limits, (m, k), and quantiles there."""
        low, high = low[:, None], high[:, None]
        a, b = ((self.scales.code(end) - self.mean) / self.std for end in (low, high))
        is_upper = a > 0  # the mirror image is more accurate
        a, b = np.where(is_upper, -b, a), np.where(is_upper, -a, b)
        top = log_ndtr(b)
        ratio = np.exp(log_ndtr(a) - top)
        log_mass = top + np.log1p(-np.minimum(ratio, 1 - 1e-15))
        shares = softmax(log_mass + np.log(np.maximum(self.weight, TINY)), axis=1)

        def numbers(level):  # (m, k)
            z = ndtri_exp(top + np.log(np.maximum(ratio + level * (1 - ratio), TINY)))
            z = np.where(is_upper, -z, z)
            return np.clip(self.scales.restore(self.mean + self.std * z), low, high)

        return shares, numbers

    def truncated_mean(self, low, high):
        shares, numbers = self._within(low, high)
        levels = (np.arange(N_NODES) + 0.5) / N_NODES
        means = np.mean([numbers(level) for level in levels], axis=0)
        return np.clip((shares * means).sum(axis=1), low, high)

    def draw(self, low, high, rng):
        """Draw one number of each law between limits, by the quantile function."""
        shares, numbers = self._within(low, high)
        k = drawn_codes(shares, rng.random((len(shares), 1)))
        drawn = numbers(rng.random((len(shares), 1)))
        return np.take_along_axis(drawn, k[:, None], axis=1)[:, 0]


class Laws:
    """Laws of the missing entries of rows, mixed from those of members."""

    # weights : of members in columns, (n_members, d).

    def __init__(self, coding: Coding, predictions, weights):
        self.coding, self.predictions, self.weights = coding, predictions, weights

    def numbers(self, rows, columns):
        """Return the laws of numbers at some rows and columns, (m,) each."""
        weight, mean, std = [], [], []
        for of, weights in zip(self.predictions, self.weights[:, columns], strict=True):
            if weights.any() or not len(columns):
                weight.append(weights[:, None] * of.weight[rows])
                mean.append(of.mean[rows, :, columns])
                std.append(of.std[rows, :, columns])
        weight, mean, std = map(np.hstack, (weight, mean, std))
        mean, std = np.where(weight == 0, 0.0, mean), np.where(weight == 0, 1.0, std)
        return NumberLaws(self.coding.scales.of(columns[:, None]), weight, mean, std)

    def probs(self, rows, j):
        """Return probabilities of the categories of a column; (m, C)."""
        return sum(
            weight * of.probs[j][rows]
            for of, weight in zip(self.predictions, self.weights[:, j], strict=True)
            if weight > 0
        )

    def expected(self, rows, columns, low, high):
        """Return expected numbers within limits, and codes of categories; (m,)."""
        # Codes are the medians of ordered categories, else the most probable.
        found, is_number = np.empty(len(rows)), self.coding.is_number[columns]
        of_numbers = columns[is_number]
        laws = self.numbers(rows[is_number], of_numbers)
        found[is_number] = laws.expected(low[of_numbers], high[of_numbers])
        for j in np.unique(columns[~is_number]).tolist():
            here = columns == j
            probs, is_ordered = self.probs(rows[here], j), self.coding.is_ordered[j]
            found[here] = median_codes(probs) if is_ordered else probs.argmax(axis=1)
        return found

    def log_prob(self, rows, columns, values):
        """Return log-probabilities of values at some rows and columns; (m,)."""
        log_prob, coding = np.zeros(len(rows)), self.coding
        is_number = coding.is_number[columns]
        laws = self.numbers(rows[is_number], columns[is_number])
        log_prob[is_number] = laws.log_prob(values[is_number])
        log_prob = np.minimum(log_prob, coding.most[columns])
        for j in np.unique(columns[~is_number]).tolist():
            here = np.flatnonzero(columns == j)
            code = values[here, None].astype(int)
            probs = np.take_along_axis(self.probs(rows[here], j), code, axis=1)
            log_prob[here] = np.log(probs[:, 0])
        return log_prob
