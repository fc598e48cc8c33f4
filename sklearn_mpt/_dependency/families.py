"""Distributions of numbers with given means and variances.

A predictor gives the mean and the variance of an entry, and the kind of its column the
distribution that has them. Arrays broadcast.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import betainc, gammainc, gammaln, ndtr, ndtri, pdtr

from sklearn_mpt._likelihoods.amounts import MAX_LOG
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._likelihoods.negative_binomial import MIN_DISPERSION

# Width of the wide component, in standard deviations of the column. It is wider than
# the column, because a number that is predicted badly may lie beyond those seen.
WIDE_SCALE = 2.0


class ResidualFamily(ABC):
    """A family of distributions. Means and variances are those of `target` of x."""

    is_positive = False  # whether means must be positive
    has_values = False  # whether numbers that were seen may have probabilities

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
    def log_prob(self, x, mean, variance):
        """Return log-densities or log-probabilities of x."""

    @abstractmethod
    def cdf(self, y, mean, variance):
        """Return the probabilities of targets of at most y."""

    def expect(self, mean, variance):
        """Return the expectation of x."""
        return mean

    @abstractmethod
    def draw(self, uniform, mean, variance):
        """Return the quantiles of x at uniform noise."""


class NormalResiduals(ResidualFamily):
    has_values = True

    def log_prob(self, x, mean, variance):
        return -0.5 * (LOG_2PI + np.log(variance) + (x - mean) ** 2 / variance)

    def cdf(self, y, mean, variance):
        return ndtr((y - mean) / np.sqrt(variance))

    def draw(self, uniform, mean, variance):
        return mean + np.sqrt(variance) * ndtri(uniform)


class LognormalResiduals(NormalResiduals):
    def target(self, x):
        return np.log(x)

    def inverse_target(self, y):
        return np.exp(np.minimum(y, MAX_LOG))

    def log_jacobian(self, x):
        return -np.log(x)

    def log_prob(self, x, mean, variance):
        return super().log_prob(np.log(x), mean, variance) - np.log(x)

    def expect(self, mean, variance):
        return self.inverse_target(mean + variance / 2)

    def draw(self, uniform, mean, variance):
        return self.inverse_target(super().draw(uniform, mean, variance))


class GammaResiduals(ResidualFamily):
    is_positive = True

    def log_prob(self, x, mean, variance):
        shape, scale = mean**2 / variance, variance / mean
        log_power = (shape - 1) * np.log(x) - x / scale
        return log_power - gammaln(shape) - shape * np.log(scale)

    def cdf(self, y, mean, variance):
        return gammainc(mean**2 / variance, np.maximum(y, 0) * mean / variance)

    def draw(self, uniform, mean, variance):
        # a quantile of a small shape may be 0, which is no amount
        drawn = stats.gamma.ppf(uniform, mean**2 / variance, scale=variance / mean)
        return np.maximum(drawn, np.finfo(np.float64).tiny)


class PoissonResiduals(ResidualFamily):
    is_positive = True

    def log_prob(self, x, mean, variance):
        return x * np.log(mean) - mean - gammaln(x + 1)

    def cdf(self, y, mean, variance):
        return np.where(y < 0, 0.0, pdtr(np.maximum(np.floor(y), 0), mean))

    def draw(self, uniform, mean, variance):
        return stats.poisson.ppf(uniform, mean)


class NegativeBinomialResiduals(ResidualFamily):
    is_positive = True

    @staticmethod
    def _size(mean, variance):
        dispersion = (variance - mean) / mean**2
        return 1 / np.maximum(dispersion, MIN_DISPERSION)

    def log_prob(self, x, mean, variance):
        size = self._size(mean, variance)
        log_binomial = gammaln(x + size) - gammaln(size) - gammaln(x + 1)
        return log_binomial - size * np.log1p(mean / size) - x * np.log1p(size / mean)

    def cdf(self, y, mean, variance):
        size, count = self._size(mean, variance), np.maximum(np.floor(y), 0)
        return np.where(y < 0, 0.0, betainc(size, count + 1, size / (size + mean)))

    def draw(self, uniform, mean, variance):
        size = self._size(mean, variance)
        return stats.nbinom.ppf(uniform, size, size / (size + mean))


FAMILIES: dict[str, ResidualFamily] = {
    "gaussian": NormalResiduals(),
    "lognormal": LognormalResiduals(),
    "gamma": GammaResiduals(),
    "poisson": PoissonResiduals(),
    "negative_binomial": NegativeBinomialResiduals(),
}
"""Families by the kinds of columns."""

WIDE_FAMILIES: dict[str, ResidualFamily] = FAMILIES | {
    "poisson": NegativeBinomialResiduals()
}
"""Families of the wide component of each kind, whose variance is free."""


class WideComponent(NamedTuple):
    """A part of a distribution that does not depend on other columns.

    share : its weight, in (0, 1). mean, variance : of the target.
    """

    family: ResidualFamily
    share: float
    mean: float
    variance: float

    @classmethod
    def from_column(cls, learned, share):
        """Return that of a column, `WIDE_SCALE` times as wide as the column."""
        variance = WIDE_SCALE**2 * learned["variance"]
        return cls(WIDE_FAMILIES[learned["kind"]], share, learned["mean"], variance)

    def add_to_log_prob(self, log_prob, x):
        """Return log-densities of the mixture with others, (..., n)."""
        wide = self.family.log_prob(x, self.mean, self.variance)
        return np.logaddexp(np.log1p(-self.share) + log_prob, np.log(self.share) + wide)

    def add_to_cdf(self, prob, y):
        """Return probabilities of targets of at most y under the mixture, (n,)."""
        wide = self.family.cdf(y, self.mean, self.variance)
        return (1 - self.share) * prob + self.share * wide

    def draw(self, uniform):
        return self.family.draw(uniform, self.mean, self.variance)
