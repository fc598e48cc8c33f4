"""Counts; their locations are the logarithms of rates."""

import numpy as np
import torch
from scipy.stats import poisson

from sklearn_mpt._likelihoods.base import Likelihood, totals

LARGEST_LOG_RATE = 50.0  # beyond: a line, so that no rate is infinite


class Poisson(Likelihood):
    """Counts, given the logarithms of their rates."""

    bounds = (0.0, np.inf)
    is_sharp = True

    @staticmethod
    def check_rows(X):
        strange = X[(X < 0) | (X % 1 > 0)]
        if len(strange):
            found = ", ".join(f"{value:.6g}" for value in np.unique(strange)[:3])
            raise ValueError(
                "likelihood='poisson' takes counts 0, 1, 2, ... and NaN (missing); "
                f"found {len(strange)} other values, such as {found}."
            )

    @staticmethod
    def start_location(X, weight=None):
        """Log of the mean count, half a count added: always finite."""
        total, present = totals(X, weight)
        return np.log((total + 0.5) / (present + 0.5))

    def entry_log_prob(self, X, location):
        return X * location - _rate(location) - torch.lgamma(X + 1)

    def pair_log_prob(self, X, observed, location):
        constant = torch.lgamma(X + 1).sum(1, keepdim=True)
        return X @ location.T - observed @ _rate(location).T - constant

    def derivatives(self, X, location):
        rate = _rate(location)
        return X - rate, rate

    def mean(self, location):
        return _rate(location)

    def draw(self, location, uniform):
        rate = _rate(location).detach().cpu().numpy()
        return location.new_tensor(poisson.ppf(uniform.cpu().numpy(), rate))


def _rate(location):
    return location.clamp(max=LARGEST_LOG_RATE).exp()
