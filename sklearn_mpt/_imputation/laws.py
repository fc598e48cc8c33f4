"""Laws of single missing entries: mixtures of normal numbers, and probabilities."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from sklearn_mpt._imputation.coding import Scale
from sklearn_mpt._matrices import drawn_codes

# Nodes of the quantile function, by which means of transformed numbers are computed.
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)
NODES, NODE_WEIGHTS = (NODES + 1) / 2, NODE_WEIGHTS / 2
TINY = 1e-300


class Normals(NamedTuple):
    """Mixtures of normal distributions of coded numbers, one for each row."""

    # weight, mean, std : (n, k).

    weight: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    scale: Scale

    def rows(self, index):
        return self._replace(
            weight=self.weight[index], mean=self.mean[index], std=self.std[index]
        )

    def log_prob(self, x):
        """Return log-densities of numbers, (n,), in the units of the table."""
        z = (self.scale.code(x)[:, None] - self.mean) / self.std
        log_prob = -0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)
        log_prob = logsumexp(log_prob, b=np.maximum(self.weight, TINY), axis=1)
        return log_prob + self.scale.log_derivative(x)

    def cell_probs(self, edges):
        """Return probabilities of the cells between edges; (n, len(edges) + 1)."""
        cells = np.zeros((len(self.mean), len(edges) + 1))
        edges = self.scale.code(edges)
        for k in range(self.mean.shape[1]):
            below = ndtr((edges - self.mean[:, [k]]) / self.std[:, [k]])
            cells += self.weight[:, [k]] * np.diff(below, axis=1, prepend=0, append=1)
        return np.maximum(cells, TINY)

    def expected(self, low, high):
        """Return expected numbers, between limits that broadcast to (n,)."""
        if self.scale.exponent is None:
            mean = (self.weight * self.mean).sum(axis=1)
            return np.clip(self.scale.restore(mean), low, high)
        return self.truncated(low, high)[1]

    def truncated(self, low, high):
        """Return log-masses of each component within limits, (n, k), and the mean."""
        below, above, log_mass = self._within(low, high)
        of_node = below[..., None] + (above - below)[..., None] * NODES
        z = self.mean[..., None] + self.std[..., None] * _quantile(of_node)
        numbers = self.scale.restore(z) @ NODE_WEIGHTS
        log_weight = log_mass + np.log(np.maximum(self.weight, TINY))
        share = np.exp(log_weight - logsumexp(log_weight, axis=1, keepdims=True))
        return log_weight, np.clip((share * numbers).sum(axis=1), low, high)

    def _within(self, low, high):
        """Return the levels of both limits, and the logarithms of masses between."""
        # Levels above 1/2 are negative: those of the upper tail, for its accuracy.
        shape = (len(self.mean), 1)
        low = np.broadcast_to(low, shape[:1])[:, None]
        high = np.broadcast_to(high, shape[:1])[:, None]
        a = (self.scale.code(low) - self.mean) / self.std
        b = (self.scale.code(high) - self.mean) / self.std
        return _levels(a, b)

    def draw(self, low, high, rng):
        """Draw one number of each row, between limits, by the quantile function."""
        below, above, log_mass = self._within(low, high)
        log_weight = log_mass + np.log(np.maximum(self.weight, TINY))
        weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        k = drawn_codes(weight, rng.random((len(weight), 1)))[:, None]
        below, above, mean, std = (
            np.take_along_axis(a, k, axis=1)[:, 0]
            for a in (below, above, self.mean, self.std)
        )
        level = below + (above - below) * rng.random(len(below))
        return np.clip(self.scale.restore(mean + std * _quantile(level)), low, high)


def _levels(a, b):
    """Return levels of the lower tail, or minus those of the upper one where a > 0."""
    is_upper = a > 0
    below = np.where(is_upper, -ndtr(-a), ndtr(a))
    above = np.where(is_upper, -ndtr(-b), ndtr(b))
    with np.errstate(divide="ignore", invalid="ignore"):
        top, bottom = (
            log_ndtr(np.where(is_upper, -a, b)),
            log_ndtr(np.where(is_upper, -b, a)),
        )
        log_mass = top + np.log1p(-np.exp(np.minimum(bottom - top, -1e-15)))
    return below, above, log_mass


def _quantile(levels):
    with np.errstate(divide="ignore"):
        upper = -ndtri(np.maximum(-levels, TINY))
        return np.where(levels < 0, upper, ndtri(np.maximum(levels, TINY)))
