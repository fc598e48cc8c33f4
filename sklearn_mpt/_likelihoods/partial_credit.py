r"""Features with ordered levels, by adjacent categories: partial credit.

With the location l and thresholds :math:`t_1, \dots, t_{C-1}` of mean zero [1]_,

.. math:: \log \frac{P(x = c)}{P(x = c - 1)} = l + t_c, \qquad
    P(x = c) \propto \exp(c \, l + b_c), \quad b_c = \sum_{i \leq c} t_i.

References
----------
.. [1] E. Muraki, "A generalized partial credit model: application of an EM algorithm",
   Applied Psychological Measurement 16, 1992.
"""

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import at_codes, log_softmax
from sklearn_mpt._likelihoods.levels import Levels
from sklearn_mpt._numbers import MAX_GIVEN_ERROR


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

    def shape_scores(self, X, location):
        prob = self._log_prob(location).exp()
        inner = self._codes(prob)[1:-1]
        is_level = (X[..., None] == inner).to(prob.dtype)
        return (is_level - prob[..., 1:-1]).flatten(-2)

    def mean(self, location):
        """Return the probabilities P(x >= c) for c >= 1."""
        prob = self._log_prob(location).exp()
        return prob.flip(-1).cumsum(-1).flip(-1)[..., 1:].flatten(-2)
