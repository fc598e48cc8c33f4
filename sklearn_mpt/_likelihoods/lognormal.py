"""Positive amounts whose logarithms have Gaussian noise; their locations are means."""

import torch

from sklearn_mpt._likelihoods.amounts import (
    Amounts,
    amounts_of,
    log_moments,
    log_of,
)
from sklearn_mpt._likelihoods.gaussian import normal_log_prob, normal_pairs


class Lognormal(Amounts):
    """Positive amounts, given the means of their logarithms.

    Parameters
    ----------
    noise_variance : Tensor of shape (d,)
        Noise variances of the logarithms.
    """

    kind = "lognormal"
    attribute = "noise_variance_"

    @staticmethod
    def start_location(X, weight=None):
        return log_moments(X, weight)[0]

    def start_attributes(self, X, scale, weight=None):
        _, variance, _ = log_moments(X, weight)
        return self.attributes_at_start(variance)

    def entry_log_prob(self, X, location):
        logs = log_of(X)
        return normal_log_prob((logs - location) ** 2, self.dispersion) - logs

    def pair_log_prob(self, X, observed, location):
        logs = log_of(X)
        pairs = centred_pairs(logs, observed, location, self.dispersion)
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


def centred_pairs(values, observed, location, variance):
    """Return `normal_pairs` of values of any size: centred, they do not cancel."""
    centre = location.detach().mean(0)
    values = torch.where(observed > 0, values - centre, 0.0)
    return normal_pairs(values, observed, location - centre, variance)
