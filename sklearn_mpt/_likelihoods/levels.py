"""Base class of kinds of features with ordered levels."""

from abc import abstractmethod

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import ShapeLikelihood, check_values, totals


def check_codes(X, n_categories, kind):
    """Refuse rows with entries that are neither codes 0..C-1 nor NaN."""
    is_invalid = ~np.isin(X, np.arange(n_categories)) & ~np.isnan(X)
    check_values(X, kind, f"codes 0..{n_categories - 1}", is_invalid)


def smoothed_fractions(X, n_categories, weight=None):
    """Return the fraction of each category, (d, C)."""
    counts = np.stack([totals(X == c, weight)[0] for c in range(n_categories)], 1)
    return (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)


class Levels(ShapeLikelihood):
    """Base class of kinds whose features are codes 0..C-1 of ordered levels.

    A feature has one location, and C - 2 shape parameters for the distances between
    levels.

    Parameters
    ----------
    n_categories : int
        Number of levels C, the same for all features.
    shape_params : Tensor of shape (d * (C - 2),)
    n_features : int
    """

    measure = "probability"
    kind: str

    def __init__(self, n_categories, shape_params, n_features):
        super().__init__(shape_params)
        self.n_categories, self.n_features = n_categories, n_features

    @property
    def n_shape_params(self):
        return max(0, self.n_categories - 2)

    @property
    def n_means(self):
        return self.n_categories - 1

    @classmethod
    def of_columns(cls, n_categories, n_features):
        size = n_features * max(0, n_categories - 2)
        shape_params = torch.zeros(size, dtype=torch.float64, device="cpu")
        return cls(n_categories, shape_params, n_features)

    def _empty(self):
        return type(self)(self.n_categories, None, self.n_features)

    def values_of_each(self, n_features):
        return [range(self.n_categories)] * n_features

    def check_rows(self, X):
        check_codes(X, self.n_categories, self.kind)

    @staticmethod
    @abstractmethod
    def logits_of(fractions):
        """Return the location plus thresholds at which levels have these fractions."""

    @staticmethod
    @abstractmethod
    def split_logits(logits):
        """Return locations (d,) and thresholds (d, C - 1), whose sum the logits are."""

    @staticmethod
    @abstractmethod
    def shape_params_of(thresholds):
        """Return the shape parameters of thresholds, arrays (d, C - 1); (d, C - 2)."""

    def start_location(self, X, weight=None):
        """Return the locations at which levels have their fractions."""
        fractions = smoothed_fractions(X, self.n_categories, weight)
        return self.split_logits(self.logits_of(fractions))[0]

    def start_attributes(self, X, scale, weight=None):
        fractions = smoothed_fractions(X, self.n_categories, weight)
        return {"thresholds_": self.split_logits(self.logits_of(fractions))[1]}

    def from_attributes(self, fitted, scale):
        thresholds = np.asarray(fitted["thresholds_"], dtype=float)
        shape_params = self.shape_params_of(thresholds[:, : self.n_categories - 1])
        shape_params = torch.from_numpy(shape_params.ravel())
        return type(self)(self.n_categories, shape_params, len(thresholds))

    def _shape_params_by_feature(self):
        """Return the shape parameters of each feature, (..., d, C - 2)."""
        shape = self.shape_params.shape
        if not self.n_shape_params:
            return None
        return self.shape_params.reshape(*shape[:-1], -1, self.n_shape_params)

    def inputs(self, X):
        """Return codes scaled to -1..1."""
        return 2 * X / (self.n_categories - 1) - 1

    def net_inputs(self, X):
        """Return 1 or -1 for each level c >= 1: whether the entry is at least c."""
        levels = torch.arange(1, self.n_categories, device=X.device)
        return torch.where(X[..., None] >= levels, 1.0, -1.0).to(X.dtype).flatten(-2)

    def pair_log_prob(self, X, observed, location):
        levels = self._codes(location)[:, None]
        log_probs = self.entry_log_prob(levels, location[:, None])  # (m, C, d)
        is_level = (X[:, None] == levels) * observed[:, None]
        return is_level.flatten(1) @ log_probs.flatten(1).T

    def _codes(self, like):
        return torch.arange(self.n_categories, device=like.device).to(like)

    def draw(self, location, uniform):
        above = self.mean(location).unflatten(-1, (-1, self.n_means))
        return (uniform[..., None] < above).sum(-1).to(location.dtype)

    def fill(self, mean):
        """Return medians, computed from the probabilities P(x >= c) for c >= 1."""
        above = mean.unflatten(-1, (-1, self.n_means))
        return (above > 0.5).sum(-1).to(mean.dtype)
