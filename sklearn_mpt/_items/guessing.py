r"""Answers that are right or wrong, where some right ones are guessed.

With the location l and the probability g of guessing the answer [1]_,

.. math:: P(x = 1) = g + (1 - g) \, \sigma(l).

References
----------
.. [1] A. Birnbaum, "Some latent trait models and their use in inferring an examinee's
   ability", in: Lord and Novick, Statistical Theories of Mental Test Scores, 1968.
"""

import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import ShapeLikelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.levels import smoothed_fractions

GUESSING_START = (
    0.15  # below the fraction of those who guess one of five or six answers
)
# Least probability, and 1 less the largest, that a person of average ability knows the
# answer, at the start: with few right answers guessing may explain all of them.
MIN_KNOWN = 0.05


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

    def _empty(self):
        return type(self)(None)

    @staticmethod
    def location_of(proportion):
        """Return the locations at which these proportions of answers are right."""
        known = (proportion - GUESSING_START) / (1 - GUESSING_START)
        return logit(known.clip(MIN_KNOWN, 1 - MIN_KNOWN))

    @classmethod
    def start_location(cls, X, weight=None):
        return cls.location_of(smoothed_fractions(X, 2, weight)[:, 1])

    def _log_probs(self, location):
        """Return the log-probabilities of wrong and of right answers; (..., d) each."""
        logits = self.shape_params.to(location.dtype)
        unguessed = logsigmoid(-logits)
        right = torch.logaddexp(logsigmoid(logits), unguessed + logsigmoid(location))
        return unguessed + logsigmoid(-location), right

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

    def mean(self, location):
        return self._log_probs(location)[1].exp()

    def draw(self, location, uniform):
        return (uniform < self.mean(location)).to(location.dtype)
