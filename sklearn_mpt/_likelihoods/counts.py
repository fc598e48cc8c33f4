r"""Counts; their locations are the logarithms of means.

Those of `NegativeBinomial` vary more than Poisson counts: with the mean m and the
dispersion :math:`\phi = 1 / r`, the variance is :math:`m + \phi m^2`, and with
:math:`t = \log m - \log r`

.. math:: \log P(x) = \log \frac{\Gamma(x + r)}{\Gamma(r) \, x!}
    + x \log \sigma(t) + r \log \sigma(-t).
"""

import math

import numpy as np
import torch
from scipy.stats import gamma, nbinom, poisson
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import (
    DispersionLikelihood,
    Likelihood,
    check_values,
    totals,
)
from sklearn_mpt._likelihoods.gaussian import LOG_2PI

# Largest log of an expected amount: sums of some of their exponentials are finite in
# single precision, too.
MAX_LOG = 80.0
# Largest exponent in log-densities, which are linear beyond it. So products of their
# derivatives are finite.
MAX_EXPONENT = 50.0
MAX_RATE = math.exp(MAX_EXPONENT)  # beyond it log-probabilities are linear


def check_counts(X, kind):
    """Refuse rows with entries that are neither counts nor NaN."""
    check_values(X, kind, "counts 0, 1, 2, ...", (X < 0) | (X % 1 > 0))


def mean_counts(X, weight=None):
    """Return the mean count of each column; that of zeros alone is of half a count."""
    total, present = totals(X, weight)
    return np.maximum(total, 0.5) / np.maximum(present, 0.5)


def amounts_of(logs):
    """Return amounts, given a tensor of their logarithms."""
    return logs.clamp(max=MAX_LOG).exp()


class Poisson(Likelihood):
    """Counts, given the logarithms of their rates."""

    bounds = (0.0, np.inf)
    measure = "probability"

    @staticmethod
    def check_rows(X):
        check_counts(X, "poisson")

    @staticmethod
    def start_location(X, weight=None):
        return np.log(mean_counts(X, weight))

    def entry_log_prob(self, X, location):
        """Return -(rate - X + X log(X / rate)) - c(X)."""
        # For large counts X log(rate), the rate and log X! nearly cancel. The two terms
        # here have the same sign; -c(X) is the log-probability at rate X.
        capped = location.clamp(max=MAX_EXPONENT)
        excess = capped - torch.where(X > 0, X, 1.0).log()
        distance = X * (torch.expm1(excess) - excess).clamp(min=0)
        distance = torch.where(X > 0, distance, capped.exp())
        beyond = (location - MAX_EXPONENT).clamp(min=0)
        line = beyond * (X - MAX_RATE).clamp(max=0)
        return line - distance - _least_cost(X)

    def pair_log_prob(self, X, observed, location):
        # Double precision, because large terms cancel.
        counts, at, is_observed = X.double(), location.double(), observed.double()
        constant = torch.lgamma(counts + 1).sum(1, keepdim=True)
        log_prob = counts @ at.T - is_observed @ _cumulant(at).T - constant
        # Counts from which on the rounding errors of products exceed 1e-4 nats.
        large = (X >= 2**32).any(1)
        if large.any():
            entries = self.entry_log_prob(counts[large][:, None], at)
            is_observed = is_observed.expand_as(counts)[large]
            log_prob = log_prob.index_put(
                (large.nonzero()[:, 0],), (entries @ is_observed[..., None])[..., 0]
            )
        return log_prob.to(location.dtype)

    def derivatives(self, X, location):
        rate = _rate(location)
        derivative = X - rate
        is_line = location > MAX_EXPONENT
        return torch.where(is_line, derivative.clamp(max=0), derivative), rate

    def net_inputs(self, X):
        return torch.log1p(X)

    def mean(self, location):
        return _rate(location)

    def draw(self, location, uniform):
        # Larger rates are drawn by an expansion of the quantiles, whose error is below
        # .01 standard deviations. Those of scipy take time like the root of the rate,
        # and are NaN from rates of 1e11 on.
        rate, most = _rate(location.detach().double()), 1e4
        small = rate.clamp(max=most).cpu().numpy()
        exact = rate.new_tensor(poisson.ppf(uniform.cpu().numpy(), small))
        is_small = rate <= most
        return torch.where(is_small, exact, _large_quantiles(uniform, rate)).to(
            location.dtype
        )


def _large_quantiles(uniform, rate):
    """Return quantiles of Poisson distributions of large rates [1]_.

    References
    ----------
    .. [1] E. A. Cornish and R. A. Fisher, "Moments and cumulants in the specification
       of distributions", Revue de l'Institut International de Statistique 5, 1938.
    """
    z = torch.special.ndtri(uniform.double())
    return (rate + rate.sqrt() * z + (z**2 - 1) / 6).clamp(min=0).round()


def _rate(location):
    return location.clamp(max=MAX_EXPONENT).exp()


def _cumulant(location):
    """Return the rate; beyond the largest rate, its linear continuation."""
    return _rate(location) + MAX_RATE * (location - MAX_EXPONENT).clamp(min=0)


def _least_cost(X):
    """Return log X! + X - X log X without cancellation; 0 for X = 0."""
    least = 16.0  # for larger counts Stirling's series has errors below 1e-11
    large = X.clamp(min=least)
    u = 1 / large
    series = u * (1 / 12 - u**2 * (1 / 360 - u**2 / 1260))
    by_series = 0.5 * (LOG_2PI + large.log()) + series
    small = X.clamp(max=least)
    exact = torch.lgamma(small + 1) + small - torch.xlogy(small, small)
    return torch.where(X < least, exact, by_series)


class NegativeBinomial(DispersionLikelihood):
    """Counts, given the logarithms of their means.

    Parameters
    ----------
    dispersion : Tensor of shape (d,)
        Variance minus mean, divided by the squared mean.
    """

    measure = "probability"
    bounds = (0.0, np.inf)
    floor = 1e-6  # nearly Poisson: a smaller one changes log-probabilities less
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
        # Larger draws are those of a gamma distribution of the same mean and variance,
        # whose quantiles differ by less than .001 standard deviations there. Those of
        # scipy take time that grows with the count, and are wrong for the largest.
        is_small = drawn < 1e6
        chance = 1 / (1 + ratio[is_small])
        drawn[is_small] = nbinom.ppf(uniform[is_small], size[is_small], chance)
        return location.new_tensor(drawn)
