r"""Amounts that are zero, or positive with a Gaussian logarithm.

A feature has two locations: the logit of the probability of a positive amount, and the
mean of its logarithm:

.. math:: P(x > 0) = \sigma(l_1), \qquad \log x \mid x > 0 \sim N(l_2, \sigma^2).
"""

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.amounts import (
    Amounts,
    amounts_of,
    log_moments,
    log_of,
)
from sklearn_mpt._likelihoods.base import check_values, totals
from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._likelihoods.lognormal import centred_pairs


class ZeroLognormal(Amounts):
    """Amounts that may be zero, given the logit and mean logarithm of positive ones.

    The two locations of a feature are neighbours.

    Parameters
    ----------
    noise_variance : Tensor of shape (d,)
        Noise variances of the logarithms of positive amounts.
    """

    kind = "zero_lognormal"
    measure = "density and probability"  # of zero
    n_locations = 2
    attribute = "noise_variance_"

    @classmethod
    def check_rows(cls, X):
        check_values(X, cls.kind, "numbers of 0 and above", X < 0)

    @staticmethod
    def start_location(X, weight=None):
        """Return the log odds of a positive amount, and the mean logarithm.

        Half an observation of zero and half of a positive amount are added.
        """
        positive, present = totals(np.where(np.isnan(X), np.nan, X > 0), weight)
        mean, _, _ = log_moments(X, weight)
        return np.stack([logit((positive + 0.5) / (present + 1)), mean], 1).ravel()

    def start_attributes(self, X, scale, weight=None):
        _, variance, count = log_moments(X, weight)
        variance = np.where(count < 2, 1.0, variance)  # one amount has no variance
        return self.attributes_at_start(variance)

    def entry_log_prob(self, X, location):
        chance, mean = _split_locations(location)
        logs, is_positive = log_of(X), X > 0
        normal = normal_log_prob((logs - mean) ** 2, self.dispersion)
        density = logsigmoid(chance) + normal - logs
        return torch.where(is_positive, density, logsigmoid(-chance))

    def pair_log_prob(self, X, observed, location):
        chance, mean = _split_locations(location)
        positive, logs = (X > 0).to(X.dtype) * observed, log_of(X)
        signs = positive @ logsigmoid(chance).T
        signs = signs + (observed - positive) @ logsigmoid(-chance).T
        pairs = centred_pairs(logs, positive, mean, self.dispersion)
        return signs + pairs - (positive * logs).sum(1, keepdim=True)

    def derivatives(self, X, location):
        """Return first derivatives, and minus the second derivatives."""
        chance, mean = _split_locations(location)
        prob, is_positive = torch.sigmoid(chance), (X > 0).to(location.dtype)
        mean_information = is_positive / self.dispersion
        derivatives = is_positive - prob, mean_information * (log_of(X) - mean)
        curvatures = prob * (1 - prob), mean_information
        shape = derivatives[0].shape
        return _interleave(*derivatives), _interleave(
            *(part.expand(shape) for part in curvatures)
        )

    def shape_derivatives(self, X, location):
        _, mean = _split_locations(location)
        is_positive = (X > 0).to(location.dtype)
        square = (log_of(X) - mean) ** 2 / self.dispersion
        return 0.5 * is_positive * (square - 1), 0.5 * is_positive.expand_as(square)

    def inputs(self, X):
        """Return 1.0 for positive amounts, and their logarithms; zero has none."""
        is_positive = X > 0
        logs = torch.where(is_positive, log_of(X), torch.nan)
        return _interleave(is_positive.to(X.dtype), logs)

    def mean(self, location):
        """Return the expected amount."""
        chance, mean = _split_locations(location)
        return torch.sigmoid(chance) * amounts_of(mean + self.dispersion / 2)

    def draw(self, location, uniform):
        chance, mean = _split_locations(location)
        zero = torch.sigmoid(-chance)
        level = (uniform - zero) / (1 - zero)
        eps = torch.finfo(level.dtype).eps
        level = level.clamp(eps, 1 - eps)  # so that quantiles are finite
        noise = self.dispersion.sqrt() * torch.special.ndtri(level)
        return torch.where(uniform < zero, 0.0, amounts_of(mean + noise))


def _split_locations(location):
    """Return the logit and the mean logarithm of each feature, (..., d) each."""
    return location.unflatten(-1, (-1, 2)).unbind(-1)


def _interleave(first, second):
    return torch.stack([first, second.expand_as(first)], -1).flatten(-2)
