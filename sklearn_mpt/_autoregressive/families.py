"""Distributions of numbers with given means and variances.

A predictor gives the mean and the variance of an entry, and the kind of its column the
distribution that has them. Arrays broadcast.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._likelihoods import LIKELIHOODS
from sklearn_mpt._likelihoods.counts import MAX_LOG, MIN_DISPERSION


class ResidualFamily(ABC):
    """A likelihood by means and variances, which are those of `target` of x."""

    kind: str  # name of the likelihood
    is_positive = False  # whether means must be positive
    has_values = False  # whether numbers that were seen may have probabilities
    # Width of the wide component, in standard deviations of the target. It is wider
    # than the column, because a number that is predicted badly may lie beyond those
    # seen.
    wide_scale = 2.0

    def __init__(self):
        self._likelihood = LIKELIHOODS[self.kind].of_columns(1, 0)

    def target(self, x):
        """Return the number that a predictor learns."""
        return x

    def inverse_target(self, y):
        """Return x, given its target."""
        return y

    def log_jacobian(self, x):
        """Return the logarithm of the derivative of the target."""
        return np.zeros_like(x)

    @abstractmethod
    def location_and_dispersion(self, mean, variance):
        """Return the parameters of the likelihood with these means and variances."""

    def log_prob(self, x, mean, variance):
        """Return log-densities or log-probabilities of x."""
        likelihood, location = self._at(mean, variance)
        return likelihood.entry_log_prob(_tensor(x), location).numpy()

    def expect(self, mean, variance):
        """Return the expectation of x."""
        likelihood, location = self._at(mean, variance)
        return likelihood.mean(location).numpy()

    def draw(self, uniform, mean, variance):
        """Return the quantiles of x at uniform noise."""
        likelihood, location = self._at(mean, variance)
        return likelihood.draw(location, _tensor(uniform)).numpy()

    def _at(self, mean, variance):
        """Return a likelihood and its locations with these means and variances."""
        location, dispersion = self.location_and_dispersion(mean, variance)
        return self._likelihood.at(_tensor(np.log(dispersion))), _tensor(location)


def _tensor(array):
    return torch.from_numpy(np.asarray(array, dtype=np.float64))


class NormalResiduals(ResidualFamily):
    kind = "gaussian"
    has_values = True

    def location_and_dispersion(self, mean, variance):
        return mean, variance


class LognormalResiduals(NormalResiduals):
    kind = "lognormal"
    wide_scale = 1.0  # twice as wide has an expectation far beyond what was seen

    def target(self, x):
        return np.log(x)

    def inverse_target(self, y):
        return np.exp(np.minimum(y, MAX_LOG))

    def log_jacobian(self, x):
        return -np.log(x)


class PoissonResiduals(ResidualFamily):
    kind = "poisson"
    is_positive = True

    def location_and_dispersion(self, mean, variance):
        return np.log(mean), 1.0


class NegativeBinomialResiduals(ResidualFamily):
    kind = "negative_binomial"
    is_positive = True

    def location_and_dispersion(self, mean, variance):
        dispersion = (variance - mean) / mean**2
        return np.log(mean), np.maximum(dispersion, MIN_DISPERSION)


FAMILIES: dict[str, ResidualFamily] = {
    family.kind: family
    for family in (
        NormalResiduals(),
        LognormalResiduals(),
        PoissonResiduals(),
        NegativeBinomialResiduals(),
    )
}
"""Families by the kinds of columns."""

WIDE_FAMILIES: dict[str, ResidualFamily] = FAMILIES | {
    "poisson": FAMILIES["negative_binomial"]
}
"""Families of the wide component of each kind, whose variance is free."""


class WideComponent(NamedTuple):
    """A component of a distribution that does not depend on other columns."""

    family: ResidualFamily
    weight: float
    mean: float
    variance: float

    @classmethod
    def from_column(cls, learned, weight):
        """Return that of a column, as wide as its family says."""
        family = WIDE_FAMILIES[learned["kind"]]
        variance = family.wide_scale**2 * learned["variance"]
        return cls(family, weight, learned["mean"], variance)

    def add_to_log_prob(self, log_prob, x):
        """Return log-densities of the mixture with others, (..., n)."""
        wide = self.family.log_prob(x, self.mean, self.variance)
        return np.logaddexp(
            np.log1p(-self.weight) + log_prob, np.log(self.weight) + wide
        )

    def add_to_mean(self, mean):
        """Return expectations of the mixture with others, (n,)."""
        wide = self.family.expect(self.mean, self.variance)
        return (1 - self.weight) * mean + self.weight * wide

    def draw(self, uniform):
        return self.family.draw(uniform, self.mean, self.variance)
