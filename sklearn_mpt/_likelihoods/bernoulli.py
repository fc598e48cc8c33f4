"""Features that are 0 or 1; their locations are logits."""

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import Likelihood, check_values, totals


class Bernoulli(Likelihood):
    """Features that are 0 or 1, given their logits."""

    bounds = (0.0, 1.0)
    measure = "probability"

    def values_of_each(self, n_features):
        return [(0.0, 1.0)] * n_features

    @staticmethod
    def check_rows(X):
        is_invalid = (X != 0) & (X != 1) & ~np.isnan(X)
        advice = " Binarize X, or use likelihood='gaussian'."
        check_values(X, "bernoulli", "rows of 0, 1", is_invalid, advice)

    @staticmethod
    def start_location(X, weight=None):
        """Return the log odds of 1, with half an observation of each value added."""
        ones, present = totals(X, weight)
        return logit((ones + 0.5) / (present + 1))

    def entry_log_prob(self, X, location):
        return logsigmoid((2 * X - 1) * location)

    def pair_log_prob(self, X, observed, location):
        # All terms are at most 0, so large logits cause no cancellation.
        log_probs = torch.cat([logsigmoid(location), logsigmoid(-location)], 1)
        return torch.cat([X, observed - X], 1) @ log_probs.T

    def derivatives(self, X, location):
        prob = torch.sigmoid(location)
        return X - prob, prob * (1 - prob)

    def net_inputs(self, X):
        return 2 * X - 1

    def mean(self, location):
        return torch.sigmoid(location)

    def draw(self, location, uniform):
        return (uniform < torch.sigmoid(location)).to(location.dtype)
