"""Features that are one of C categories, with C locations each: a softmax.

The Fisher information of a feature on its locations is diag(p) - p p'. Steps use the
larger matrix diag(p) in its place, which gives the same step.
"""

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import Likelihood, at_codes, log_softmax, softmax
from sklearn_mpt._likelihoods.levels import check_codes, smoothed_fractions
from sklearn_mpt._matrices import drawn_codes


class Categorical(Likelihood):
    """Features that are codes 0..C-1, given the logits of all codes up to a constant.

    Parameters
    ----------
    n_categories : int
        Number of categories C, the same for all features. The C locations of a feature
        are neighbours.
    """

    measure = "probability"

    def __init__(self, n_categories):
        super().__init__()
        self.n_categories = self.n_locations = n_categories

    @classmethod
    def of_columns(cls, n_categories, n_features):
        return cls(n_categories)

    @property
    def n_means(self):
        return self.n_categories

    def from_attributes(self, fitted, scale):
        return type(self)(self.n_categories)

    def values_of_each(self, n_features):
        return [range(self.n_categories)] * n_features

    def check_rows(self, X):
        check_codes(X, self.n_categories, "categorical")

    def start_location(self, X, weight=None):
        """Return centred logs of fractions, half an entry of each category added."""
        logits = np.log(smoothed_fractions(X, self.n_categories, weight))
        return (logits - logits.mean(axis=1, keepdims=True)).ravel()

    def entry_log_prob(self, X, location):
        logits = self._by_feature(location)
        most = logits.amax(-1, keepdim=True).detach()
        total = (logits - most).exp_().sum(-1)
        return at_codes(logits, X) - most[..., 0] - total.log()

    def pair_log_prob(self, X, observed, location):
        is_category = self._indicators(X) * observed[..., None]
        log_probs = log_softmax(self._by_feature(location))
        return is_category.flatten(1) @ log_probs.flatten(1).T

    def derivatives(self, X, location):
        prob = self.mean(location)
        return self.inputs(X) - prob, prob

    def inputs(self, X):
        """Return 1.0 for the category of each entry, else 0.0."""
        return self._indicators(X).flatten(-2)

    def precision(self, information, observed, jacobian):
        full = super().precision(information, observed, jacobian)
        weighted = (self.to_locations(observed) * information)[:, None] * jacobian
        expected = self._by_feature(weighted).sum(-1)  # shape: (n, k, d)
        return full - expected @ expected.mT

    def centre(self, location):
        by_feature = self._by_feature(location)
        return (by_feature - by_feature.mean(-1, keepdim=True)).flatten(-2)

    def mean(self, location):
        """Return the probability of each category, (..., d * C)."""
        return softmax(self._by_feature(location)).flatten(-2)

    def fill(self, mean):
        """Return the most probable categories."""
        return self._by_feature(mean).argmax(-1).to(mean.dtype)

    def draw(self, location, uniform):
        prob = self._by_feature(self.mean(location))
        return drawn_codes(prob, uniform[..., None]).to(location.dtype)

    def _by_feature(self, location):
        return location.unflatten(-1, (-1, self.n_categories))

    def _indicators(self, X):
        codes = torch.arange(self.n_categories, device=X.device)
        return (X[..., None] == codes).to(X.dtype)
