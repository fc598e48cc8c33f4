r"""Positive amounts with gamma distributions; locations are logarithms of means.

With the mean m and the dispersion :math:`\phi`, the variance is :math:`\phi m^2`; the
shape is :math:`\alpha = 1 / \phi`:

.. math:: \log p(x) = c(\alpha) - \log x - \alpha (e^\delta - 1 - \delta), \qquad
    \delta = \log x - \log m.
"""

import math

import numpy as np
import torch
from scipy.stats import gamma

from sklearn_mpt._likelihoods.amounts import (
    MAX_EXPONENT,
    Amounts,
    amounts_of,
    log_moments,
    log_of,
)
from sklearn_mpt._likelihoods.base import totals
from sklearn_mpt._numbers import TINY


class Gamma(Amounts):
    """Positive amounts, given the logarithms of their means.

    Parameters
    ----------
    dispersion : Tensor of shape (d,)
        Variance divided by the squared mean.
    """

    kind = "gamma"
    attribute = "dispersion_"

    @staticmethod
    def start_location(X, weight=None):
        total, count = totals(X, weight)
        return np.log(total / count)

    def start_attributes(self, X, scale, weight=None):
        """Return nearly the maximum likelihood dispersion of each column [1]_.

        It is computed from the mean and the mean logarithm.

        References
        ----------
        .. [1] T. P. Minka, "Estimating a gamma distribution", 2002.
        """
        mean_log, _, _ = log_moments(X, weight)
        s = np.maximum(self.start_location(X, weight) - mean_log, TINY)
        dispersion = 12 * s / (3 - s + np.sqrt((s - 3) ** 2 + 24 * s))
        return self.attributes_at_start(dispersion)

    @property
    def _shape(self):
        return 1 / self.dispersion

    def _constant(self, like):
        """Return c(alpha) of each feature, computed in double precision.

        Large terms cancel in it.
        """
        shape = self._shape.double()
        return (shape * shape.log() - shape - torch.lgamma(shape)).to(like.dtype)

    def entry_log_prob(self, X, location):
        logs = log_of(X)
        excess = logs - location
        capped = excess.clamp(max=MAX_EXPONENT)
        beyond = (excess - MAX_EXPONENT).clamp(min=0) * math.expm1(MAX_EXPONENT)
        cost = torch.expm1(capped) - capped + beyond
        return self._constant(location) - logs - self._shape * cost

    def pair_log_prob(self, X, observed, location):
        # Double precision, because large terms cancel.
        is_observed = observed.double()
        at = location.double()
        shape = self._shape.double()
        logs = log_of(X.double())
        centre = at.detach().mean(0)
        amounts = torch.where(is_observed > 0, (logs - centre).exp(), 0.0)
        ratio = amounts @ (shape * (centre - at).clamp(max=MAX_EXPONENT).exp()).T
        offset = is_observed @ (shape * (1 + centre - at)).T
        log_prob = self._constant(at) - logs + shape * (logs - centre)
        return (offset - ratio + (is_observed * log_prob).sum(1, keepdim=True)).to(
            location.dtype
        )

    def shape_derivatives(self, X, location):
        """Return derivatives in the log dispersion, which is minus the log shape."""
        shape, excess = self._shape, log_of(X) - location
        capped = excess.clamp(max=MAX_EXPONENT)
        derivative = shape.log() - torch.digamma(shape) - (torch.expm1(capped) - capped)
        information = shape**2 * torch.polygamma(1, shape) - shape
        return -shape * derivative, information.expand_as(derivative)

    def inputs(self, X):
        """Return logarithms."""
        return log_of(X)

    def mean(self, location):
        return amounts_of(location)

    def draw(self, location, uniform):
        shape = self._shape.detach().cpu().numpy()
        drawn = gamma.ppf(uniform.cpu().numpy(), shape) / shape
        mean = self.mean(location).detach()
        tiny = torch.finfo(mean.dtype).tiny
        return (mean * location.new_tensor(drawn)).clamp(min=tiny)
