r"""Features with ordered levels.

By cumulative logits, or proportional odds [2]_: with the location l and thresholds
:math:`t_1 = 0 > t_2 > \dots > t_{C-1}`,

.. math:: P(x \geq c) = \sigma(l + t_c), \qquad t_c = -\sum_{i < c} g_i,

the log-probability of a level is jointly concave in the location and the gaps g [1]_:

.. math:: \log P(x = c) = \log \sigma(l + t_c) + \log \sigma(-l - t_{c+1})
    + \log(1 - e^{-g_c}).

By adjacent categories, or partial credit [3]_: with the location l and thresholds
:math:`t_1, \dots, t_{C-1}` of mean zero,

.. math:: \log \frac{P(x = c)}{P(x = c - 1)} = l + t_c, \qquad
    P(x = c) \propto \exp(c \, l + b_c), \quad b_c = \sum_{i \leq c} t_i.

References
----------
.. [1] J. W. Pratt, "Concavity of the log likelihood", JASA 76, 1981.
.. [2] F. Samejima, "Estimation of latent ability using a response pattern of graded
   scores", Psychometrika Monograph 17, 1969.
.. [3] E. Muraki, "A generalized partial credit model: application of an EM algorithm",
   Applied Psychological Measurement 16, 1992.
"""

import math
from abc import abstractmethod

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import (
    ShapeLikelihood,
    at_codes,
    check_values,
    log_softmax,
    totals,
)
from sklearn_mpt._numbers import MAX_GIVEN_ERROR


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


MIN_GAP = 1e-6  # least gap between thresholds, whose logarithm is a parameter


class Ordinal(Levels):
    """Features that are codes 0..C-1, given the logits of P(x >= 1).

    Shape parameters are the logarithms of the gaps between thresholds.
    """

    kind = "ordinal"

    @staticmethod
    def logits_of(fractions):
        """Return the logits of P(x >= c)."""
        return logit(fractions[:, ::-1].cumsum(1)[:, -2::-1])

    @staticmethod
    def split_logits(logits):
        return logits[:, 0], logits - logits[:, :1]

    @staticmethod
    def shape_params_of(thresholds):
        """Return the logarithms of the gaps; infinite or NaN where there are none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(-np.diff(thresholds))

    def from_attributes(self, fitted, scale):
        likelihood = super().from_attributes(fitted, scale)
        likelihood.raw.data.clamp_(min=math.log(2 * MIN_GAP))
        return likelihood

    def check_attributes(self, fitted, columns=(), names=()):
        for j, name in zip(columns, names, strict=True):
            thresholds = fitted["thresholds_"][j, : self.n_categories - 1]
            if thresholds[0] != 0 or (np.diff(thresholds) >= 0).any():
                raise ValueError(
                    f"init['thresholds'] of column {name!r}, which is 'ordinal', must "
                    f"start with 0 and fall, got {thresholds.tolist()}."
                )

    def shape_attributes(self, scale):
        return {"thresholds_": self._thresholds()}

    @property
    def shape_floor(self):
        return torch.full_like(self.shape_params.detach(), math.log(MIN_GAP))

    def _thresholds(self):
        """Return the thresholds of each feature, (..., d, C - 1)."""
        if not self.n_shape_params:
            return self.shape_params.new_zeros(self.n_features, 1)
        return torch.nn.functional.pad(
            -self._shape_params_by_feature().exp().cumsum(-1), (1, 0)
        )

    def _around(self, X, location, outer=1e30):
        """Return the logits of P(x >= c) and P(x > c), for the level c of entries."""
        # outer : threshold below the first level; gradients of infinite ones are NaN
        inner = self._thresholds().to(location.dtype)
        table = torch.nn.functional.pad(inner, (1, 0), value=outer)
        table = torch.nn.functional.pad(table, (0, 1), value=-outer)
        upper, lower = table[..., :-1], table[..., 1:]
        return location + at_codes(upper, X), location + at_codes(lower, X)

    def entry_log_prob(self, X, location):
        above, beyond = self._around(X, location)
        log_prob = logsigmoid(above) + logsigmoid(-beyond)
        if not self.n_shape_params:
            return log_prob
        between = torch.log(-torch.expm1(-self._shape_params_by_feature().exp()))
        table = torch.nn.functional.pad(between, (1, 1)).to(above.dtype)
        return log_prob + at_codes(table, X)

    def derivatives(self, X, location):
        """Return the first derivative, and minus the second."""
        above, beyond = self._around(X, location)
        below, over = torch.sigmoid(-above), torch.sigmoid(beyond)
        return below - over, below * (1 - below) + over * (1 - over)

    def mean(self, location):
        """Return the probabilities P(x >= c) for c >= 1."""
        return torch.sigmoid(location[..., None] + self._thresholds()).flatten(-2)


class PartialCredit(Levels):
    """Features that are codes 0..C-1, given the mean logit of neighbouring levels.

    Shape parameters are the constants b of the levels between the first and the last,
    where b is zero.
    """

    kind = "partial_credit"

    @staticmethod
    def logits_of(fractions):
        """Return the logits of neighbouring levels."""
        return np.diff(np.log(fractions))

    @staticmethod
    def split_logits(logits):
        location = logits.mean(axis=1)
        return location, logits - location[:, None]

    @staticmethod
    def shape_params_of(thresholds):
        return thresholds.cumsum(axis=1)[:, :-1]

    def check_attributes(self, fitted, columns=(), names=()):
        for j, name in zip(columns, names, strict=True):
            thresholds = fitted["thresholds_"][j, : self.n_categories - 1]
            if abs(thresholds.sum()) > MAX_GIVEN_ERROR * (1 + np.abs(thresholds).max()):
                raise ValueError(
                    f"init['thresholds'] of column {name!r}, which is "
                    "'partial_credit', must have the sum 0, got "
                    f"{thresholds.tolist()}."
                )

    def shape_attributes(self, scale):
        constants = self._constants()
        return {"thresholds_": constants.diff(dim=-1)}

    def _constants(self):
        """Return the constants b of all levels, (..., d, C)."""
        if not self.n_shape_params:
            return self.shape_params.new_zeros(self.n_features, 2)
        return torch.nn.functional.pad(self._shape_params_by_feature(), (1, 1))

    def _log_prob(self, location):
        """Return the log-probability of each level, (..., d, C)."""
        constants = self._constants().to(location.dtype)
        return log_softmax(location[..., None] * self._codes(location) + constants)

    def entry_log_prob(self, X, location):
        return at_codes(self._log_prob(location), X)

    def derivatives(self, X, location):
        prob, codes = self._log_prob(location).exp(), self._codes(location)
        mean = prob @ codes
        return X - mean, (prob * (codes - mean[..., None]) ** 2).sum(-1)

    def mean(self, location):
        """Return the probabilities P(x >= c) for c >= 1."""
        prob = self._log_prob(location).exp()
        return prob.flip(-1).cumsum(-1).flip(-1)[..., 1:].flatten(-2)
