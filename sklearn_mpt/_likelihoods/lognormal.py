"""Positive amounts whose logarithms have Gaussian noise; their locations are means."""

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import (
    DispersionLikelihood,
    check_values,
    column_moments,
)
from sklearn_mpt._likelihoods.counts import amounts_of
from sklearn_mpt._likelihoods.gaussian import (
    EQUAL_ROUNDING_ERRORS,
    normal_log_prob,
    normal_pairs,
)


def log_of(X):
    """Return logarithms of amounts, a tensor; 0 where not positive."""
    return torch.where(X > 0, X, 1.0).log()


def log_moments(X, weight=None):
    """Return mean, variance and count of the logarithms of the amounts of columns."""
    return column_moments(np.log(X), weight)


class Lognormal(DispersionLikelihood):
    """Positive amounts, given the means of their logarithms.

    Parameters
    ----------
    noise_variance : Tensor of shape (d,)
        Noise variances of the logarithms.
    """

    kind = "lognormal"
    measure = "density"
    bounds = (0.0, np.inf)
    floor = 1e-7  # a rounding error of single precision
    attribute = "noise_variance_"

    @classmethod
    def check_rows(cls, X):
        check_values(X, cls.kind, "numbers above 0", X <= 0)

    def units(self, X, weight=None, by_column=False):
        """Columns are constant if all amounts, if there are any, are equal."""
        low = np.fmin.reduce(np.log(X), axis=0, initial=np.inf)
        high = np.fmax.reduce(np.log(X), axis=0, initial=-np.inf)
        error = EQUAL_ROUNDING_ERRORS * np.finfo(np.float64).eps * (1 + np.abs(high))
        constant = (low <= high) & (high - low <= error)
        return super().units(X, weight)._replace(constant=constant)

    @staticmethod
    def start_location(X, weight=None):
        return log_moments(X, weight)[0]

    def start_attributes(self, X, scale, weight=None):
        _, variance, _ = log_moments(X, weight)
        return {self.attribute: np.maximum(variance, 2 * self.floor)}

    def entry_log_prob(self, X, location):
        logs = log_of(X)
        return normal_log_prob((logs - location) ** 2, self.dispersion) - logs

    def pair_log_prob(self, X, observed, location):
        logs = log_of(X)
        # centred, values of any size do not cancel
        centre = location.detach().mean(0)
        near = torch.where(observed > 0, logs - centre, 0.0)
        pairs = normal_pairs(near, observed, location - centre, self.dispersion)
        return pairs - (observed * logs).sum(1, keepdim=True)

    def derivatives(self, X, location):
        precision = 1 / self.dispersion
        return (log_of(X) - location) * precision, precision.expand_as(location)

    def shape_derivatives(self, X, location):
        square = (log_of(X) - location) ** 2 / self.dispersion
        return 0.5 * (square - 1), torch.full_like(square, 0.5)

    def inputs(self, X):
        """Return logarithms."""
        return log_of(X)

    def mean(self, location):
        return amounts_of(location + self.dispersion / 2)

    def draw(self, location, uniform):
        noise = self.dispersion.sqrt() * torch.special.ndtri(uniform)
        return amounts_of(location + noise)
