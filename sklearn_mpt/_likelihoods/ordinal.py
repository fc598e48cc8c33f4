r"""Features with ordered levels, by cumulative logits: proportional odds [2]_.

With the location l and thresholds :math:`t_1 = 0 > t_2 > \dots > t_{C-1}`,

.. math:: P(x \geq c) = \sigma(l + t_c), \qquad t_c = -\sum_{i < c} g_i,

the log-probability of a level is jointly concave in the location and the gaps g [1]_:

.. math:: \log P(x = c) = \log \sigma(l + t_c) + \log \sigma(-l - t_{c+1})
    + \log(1 - e^{-g_c}).

References
----------
.. [1] J. W. Pratt, "Concavity of the log likelihood", JASA 76, 1981.
.. [2] F. Samejima, "Estimation of latent ability using a response pattern of graded
   scores", Psychometrika Monograph 17, 1969.
"""

import math

import numpy as np
import torch
from scipy.special import logit
from torch.nn.functional import logsigmoid

from sklearn_mpt._likelihoods.base import at_codes
from sklearn_mpt._likelihoods.levels import Levels

MIN_GAP = 1e-6  # least gap between thresholds, whose logarithm is a parameter
# Threshold below the first level, and minus that above the last. It is finite, as the
# gradients of infinite ones are NaN.
OUTER_THRESHOLD = 1e30


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

    def _around(self, X, location):
        """Return the logits of P(x >= c) and P(x > c), for the level c of entries."""
        inner = self._thresholds().to(location.dtype)
        table = torch.nn.functional.pad(inner, (1, 0), value=OUTER_THRESHOLD)
        table = torch.nn.functional.pad(table, (0, 1), value=-OUTER_THRESHOLD)
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

    def shape_scores(self, X, location):
        if not self.n_shape_params:
            return super().shape_scores(X, location)
        above, beyond = self._around(X, location)
        below, over = torch.sigmoid(-above)[..., None], torch.sigmoid(beyond)[..., None]
        gaps, is_past, is_at = self._gaps(X)
        derivative = gaps * (is_past * (over - below) + is_at * over) + is_at * _at_gap(
            gaps
        )
        return derivative.flatten(-2)

    def _gaps(self, X):
        """Return the gaps, and whether codes are above and just below each of them."""
        inner = torch.arange(1, self.n_shape_params + 1, device=X.device)
        code, gaps = X[..., None], self._shape_params_by_feature().exp()
        return gaps, (code > inner).to(X.dtype), (code == inner).to(X.dtype)

    def shape_sums(self, X, location, weight, information_weight, z):
        """Use second derivatives in the gaps, where the log-probability is concave."""
        if not self.n_shape_params:
            return super().shape_sums(X, location, weight, information_weight, z)
        above, beyond = self._around(X, location)
        below, over = torch.sigmoid(-above), torch.sigmoid(beyond)
        gaps, is_past, is_at = self._gaps(X[:, 0])
        reaches = is_past + is_at  # shape: (n, d, q)
        derivative = (
            is_past * (weight * (over - below)).sum(1)[..., None]
            + is_at * (weight * over).sum(1)[..., None]
        ).sum(0) * gaps + (is_at * weight.sum(1)[..., None]).sum(0) * _at_gap(gaps)
        first, last = (
            information_weight * below * (1 - below),
            information_weight * over * (1 - over),
        )
        blocks = _nested(is_past, first.sum(1)) + _nested(reaches, last.sum(1))
        blocks = blocks * gaps[:, :, None] * gaps[:, None]
        half = (gaps / 2).clamp(max=300)  # a larger one has an infinite sinh
        curvature = (gaps / (2 * torch.sinh(half))) ** 2
        n_at = (is_at * information_weight.sum(1)[..., None]).sum(0)
        blocks += torch.diag_embed(n_at * curvature)
        cross = -gaps[..., None] * (
            torch.einsum("ndq,ndk->dqk", is_past, first.mT @ z)
            + torch.einsum("ndq,ndk->dqk", reaches, last.mT @ z)
        )
        rows = torch.cat([blocks, cross], -1)
        return derivative.flatten(), rows.flatten(0, 1)

    def mean(self, location):
        """Return the probabilities P(x >= c) for c >= 1."""
        return torch.sigmoid(location[..., None] + self._thresholds()).flatten(-2)


def _at_gap(gaps):
    """Return the derivative of log(1 - exp(-gap)) in the logarithm of the gap."""
    return gaps / torch.expm1(gaps)


def _nested(indicators, weight):
    """Return the sum over rows of weighted products of indicators; (d, q, q)."""
    weighted = indicators * weight[..., None]
    return torch.einsum("ndq,ndp->dqp", weighted, indicators)
