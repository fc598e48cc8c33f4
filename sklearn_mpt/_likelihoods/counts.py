"""Counts; their locations are the logarithms of rates."""

import math

import numpy as np
import torch
from scipy.stats import poisson

from sklearn_mpt._likelihoods.base import Likelihood, check_values, totals
from sklearn_mpt._likelihoods.gaussian import LOG_2PI

# Largest log of an expected amount: sums of some of their exponentials are finite in
# single precision, too.
MAX_LOG = 80.0
# Largest exponent in log-densities, which are linear beyond it. So products of their
# derivatives are finite.
MAX_EXPONENT = 50.0
MAX_RATE = math.exp(MAX_EXPONENT)  # beyond it log-probabilities are linear
# Larger counts are scored one by one, because a product of matrices would have rounding
# errors of more than 1e-4 nats.
MAX_COUNT_IN_PRODUCT = 2.0**32
MIN_COUNT_BY_SERIES = 16.0  # for larger counts Stirling's series has errors below 1e-11
# Larger rates are drawn by an expansion of the quantiles, whose error is below .01
# standard deviations. Those of scipy take time like the root of the rate, and are NaN
# from rates of 1e11 on.
MAX_RATE_OF_QUANTILES = 1e4


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
        large = (X >= MAX_COUNT_IN_PRODUCT).any(1)
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
        rate = _rate(location.detach().double())
        small = rate.clamp(max=MAX_RATE_OF_QUANTILES).cpu().numpy()
        exact = rate.new_tensor(poisson.ppf(uniform.cpu().numpy(), small))
        is_small = rate <= MAX_RATE_OF_QUANTILES
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
    large = X.clamp(min=MIN_COUNT_BY_SERIES)
    u = 1 / large
    series = u * (1 / 12 - u**2 * (1 / 360 - u**2 / 1260))
    by_series = 0.5 * (LOG_2PI + large.log()) + series
    small = X.clamp(max=MIN_COUNT_BY_SERIES)
    exact = torch.lgamma(small + 1) + small - torch.xlogy(small, small)
    return torch.where(X < MIN_COUNT_BY_SERIES, exact, by_series)
