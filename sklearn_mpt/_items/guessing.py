r"""Answers that are right or wrong, where some right ones are guessed.

With the location l and the probability g of guessing the answer [1]_,

.. math:: P(x = 1) = g + (1 - g) \, \sigma(l).

References
----------
.. [1] A. Birnbaum, "Some latent trait models and their use in inferring an examinee's
   ability", in: Lord and Novick, Statistical Theories of Mental Test Scores, 1968.
"""

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import ShapeLikelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.levels import smoothed_fractions
from sklearn_mpt._numbers import TINY

# Below the fraction of those who guess one of five or six answers.
GUESSING_START = 0.15
EPS = np.finfo(float).eps  # least distance of a given probability from 0 and from 1


class Guessing(ShapeLikelihood):
    """Features that are 0 or 1, given the logits of knowing the answer.

    Shape parameters are the logits of g. With any g above 0 the log-probability of 1 is
    not concave in the location, as that of other kinds is. So only item models, whose
    training does not need it, have this kind.

    Parameters
    ----------
    guessing_logits : Tensor of shape (d,)
    """

    bounds = Bernoulli.bounds
    measure = Bernoulli.measure
    n_shape_params = 1

    values_of_each = Bernoulli.values_of_each
    check_rows = staticmethod(Bernoulli.check_rows)

    @classmethod
    def of_columns(cls, n_categories, n_features):
        start = torch.full((n_features,), float(logit(GUESSING_START)), device="cpu")
        return cls(start.double())

    @staticmethod
    def start_location(X, weight=None):
        right = smoothed_fractions(X, 2, weight)[:, 1]
        known = (right - GUESSING_START) / (1 - GUESSING_START)
        # with few right answers guessing may explain all of them
        return logit(known.clip(0.05, 0.95))

    def start_attributes(self, X, scale, weight=None):
        return {"guessing_": np.full(X.shape[1], GUESSING_START)}

    def from_attributes(self, fitted, scale):
        guessing = np.asarray(fitted["guessing_"], float).clip(EPS, 1 - EPS)
        return type(self)(torch.from_numpy(logit(guessing)))

    def shape_attributes(self, scale):
        return {"guessing_": self.shape_params.sigmoid()}

    def _log_probs(self, location):
        """Return the log-probabilities of wrong and of right answers; (..., d) each."""
        logits = self.shape_params.to(location.dtype)
        right = logits.sigmoid() + (-logits).sigmoid() * location.sigmoid()
        return logsigmoid(-logits) + logsigmoid(-location), right.clamp(min=TINY).log()

    def entry_log_prob(self, X, location):
        wrong, right = self._log_probs(location)
        return torch.where(X > 0, right, wrong)

    def pair_log_prob(self, X, observed, location):
        wrong, right = self._log_probs(location)
        return X @ right.T + (observed - X) @ wrong.T

    def derivatives(self, X, location):
        """Return the derivative, and the Fisher information."""
        wrong, right = self._log_probs(location)
        odds, known = (wrong - right).exp(), torch.sigmoid(location)
        return torch.where(X > 0, odds, -1.0) * known, known**2 * odds

    def shape_scores(self, X, location):
        wrong, right = self._log_probs(location)
        guessed = torch.sigmoid(self.shape_params).to(location.dtype)
        return torch.where(X > 0, (wrong - right).exp(), -1.0) * guessed

    def shape_sums(self, X, location, weight, z):
        """Use the Fisher information, that of locations and logits being a product."""
        wrong, right = self._log_probs(location)
        guessed = torch.sigmoid(self.shape_params)
        information = weight * (wrong - right).exp() * guessed
        cross = information * torch.sigmoid(location)
        cross = torch.einsum("nsd,nsk->dk", cross, z.expand(*cross.shape[:2], -1))
        block = (information * guessed).sum((0, 1))[:, None]
        gradient = (weight * self.shape_scores(X, location)).sum((0, 1))
        return gradient, torch.cat([block, cross], 1)

    def mean(self, location):
        return self._log_probs(location)[1].exp()

    def draw(self, location, uniform):
        return (uniform < self.mean(location)).to(location.dtype)
