r"""Counts that vary more than Poisson counts; locations are logarithms of means.

With the mean m and the dispersion :math:`\phi = 1 / r`, the variance is
:math:`m + \phi m^2`, and with :math:`t = \log m - \log r`

.. math:: \log P(x) = \log \frac{\Gamma(x + r)}{\Gamma(r) \, x!}
    + x \log \sigma(t) + r \log \sigma(-t).
"""

import numpy as np
import torch
from scipy.stats import gamma, nbinom
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import DispersionLikelihood, totals
from sklearn_mpt._likelihoods.poisson import amounts_of, check_counts, mean_counts

MIN_DISPERSION = 1e-6  # nearly Poisson: a smaller one changes log-probabilities less
# Larger draws are those of a gamma distribution of the same mean and variance, whose
# quantiles differ by less than .001 standard deviations there. Those of scipy take
# time that grows with the count, and are NaN or wrong beyond the precision of floats.
MAX_COUNT_OF_QUANTILES = 1e6


class NegativeBinomial(DispersionLikelihood):
    """Counts, given the logarithms of their means.

    Parameters
    ----------
    dispersion : Tensor of shape (d,)
        Variance minus mean, divided by the squared mean.
    """

    measure = "probability"
    bounds = (0.0, np.inf)
    floor = MIN_DISPERSION
    attribute = "dispersion_"

    @staticmethod
    def check_rows(X):
        check_counts(X, "negative_binomial")

    @staticmethod
    def start_location(X, weight=None):
        return np.log(mean_counts(X, weight))

    def start_attributes(self, X, scale, weight=None):
        mean = mean_counts(X, weight)
        square, count = totals((X - mean) ** 2, weight)
        variance = square / count
        # neither so small nor so large that log-probabilities hardly depend on it
        return {self.attribute: ((variance - mean) / mean**2).clip(1e-2, 1e2)}

    @property
    def _size(self):
        """The parameter r of each feature."""
        return 1 / self.dispersion

    def _constant(self, X, size):
        return torch.lgamma(X + size) - torch.lgamma(size) - torch.lgamma(X + 1)

    def entry_log_prob(self, X, location):
        # Double precision, because large terms cancel.
        counts, size = X.double(), self._size.double()
        t = location.double() - size.log()
        log_prob = counts * logsigmoid(t) + size * logsigmoid(-t)
        return (log_prob + self._constant(counts, size)).to(location.dtype)

    def pair_log_prob(self, X, observed, location):
        counts, size, is_observed = X.double(), self._size.double(), observed.double()
        t = location.double() - size.log()
        constant = (is_observed * self._constant(counts, size)).sum(1, keepdim=True)
        log_prob = (counts * is_observed) @ logsigmoid(t).T + is_observed @ (
            size * logsigmoid(-t)
        ).T
        return (log_prob + constant).to(location.dtype)

    def derivatives(self, X, location):
        """Return the first derivative, and minus the second."""
        size = self._size
        fraction = torch.sigmoid(location - size.log())
        return X - (X + size) * fraction, (X + size) * fraction * (1 - fraction)

    def shape_derivatives(self, X, location):
        """Return derivatives in the log dispersion; information is their squares."""
        size = self._size
        t = location - size.log()
        location_derivative = X - (X + size) * torch.sigmoid(t)
        digammas = torch.digamma(X + size) - torch.digamma(size)
        derivative = location_derivative - size * (digammas + logsigmoid(-t))
        return derivative, derivative**2

    def inputs(self, X):
        """Return log(1 + count)."""
        return torch.log1p(X)

    def mean(self, location):
        return amounts_of(location)

    def draw(self, location, uniform):
        uniform = uniform.double().cpu().numpy()
        size = self._size.detach().double().cpu().numpy()
        mean = self.mean(location.detach().double()).cpu().numpy()
        uniform, size, mean = np.broadcast_arrays(uniform, size, mean)
        ratio = mean / size
        drawn = np.round((1 + ratio) * gamma.ppf(uniform, mean / (1 + ratio)))
        is_small = drawn < MAX_COUNT_OF_QUANTILES
        chance = 1 / (1 + ratio[is_small])
        drawn[is_small] = nbinom.ppf(uniform[is_small], size[is_small], chance)
        return location.new_tensor(drawn)
