"""The maths of a deep latent variable model, on tensors.

A net maps z, standard normal, to the location of every feature: the mean of a Gaussian
whose variance the features share, or the logit of a Bernoulli. Locations have shape
(..., d). Rows are standardised.
"""

import math

import torch
from torch.nn.functional import logsigmoid, softplus

from sklearn_mpt._deep.mode import laplace
from sklearn_mpt._latent.objectives import LatentVariableModel

LOG_2PI = math.log(2 * math.pi)
NOISE_FLOOR = 1e-5  # of the noise variance of standardised rows: single precision
LOG_NOISE_STEP = 10.0  # the noise variance has further to go than a coefficient


class BernoulliLikelihood(torch.nn.Module):
    """Features that are 0 or 1, given their logits."""

    def log_prob(self, X, logits):
        """Log probability of each entry; (..., d)."""
        return logsigmoid((2 * X - 1) * logits)

    def log_prob_of_all(self, X, observed, logits):
        """Log probability of the observed entries, at points that all rows share.

        X, observed : shape (n, d), 0.0 where not observed; logits : (m, d) -> (n, m).
        """
        return X @ logits.T - observed @ softplus(logits).T

    def derivatives(self, X, logits):
        """Slope of `log_prob` in the logit, and Fisher information; (..., d) each."""
        prob = torch.sigmoid(logits)
        return X - prob, prob * (1 - prob)

    def mean(self, logits):
        return torch.sigmoid(logits)

    def draw(self, logits, uniform):
        """Draw entries from uniform noise."""
        return (uniform < torch.sigmoid(logits)).to(logits.dtype)


class GaussianLikelihood(torch.nn.Module):
    """Features with Gaussian noise of one variance, given their means."""

    def __init__(self, noise_variance):
        super().__init__()
        excess = torch.clamp(noise_variance - NOISE_FLOOR, min=0.1 * NOISE_FLOOR)
        self.log_noise = torch.nn.Parameter(excess.log() / LOG_NOISE_STEP)

    @property
    def noise_variance(self):
        return (LOG_NOISE_STEP * self.log_noise).exp() + NOISE_FLOOR

    def log_prob(self, X, means):
        """Log density of each entry; (..., d)."""
        variance = self.noise_variance
        return -0.5 * (LOG_2PI + variance.log() + (X - means) ** 2 / variance)

    def log_prob_of_all(self, X, observed, means):
        """Log density of the observed entries, at points that all rows share.

        X, observed : shape (n, d), 0.0 where not observed; means : (m, d) -> (n, m).
        """
        variance = self.noise_variance
        fit = X @ means.T - 0.5 * (observed @ (means**2).T)
        size = 0.5 * (X**2).sum(1) / variance
        log_scale = 0.5 * observed.sum(1) * (LOG_2PI + variance.log())
        return fit / variance - (size + log_scale)[:, None]

    def derivatives(self, X, means):
        """Slope of `log_prob` in the mean, and Fisher information; (..., d) each."""
        precision = 1 / self.noise_variance
        return (X - means) * precision, precision.expand_as(means)

    def mean(self, means):
        return means

    def draw(self, means, uniform):
        """Draw entries from uniform noise."""
        return means + self.noise_variance.sqrt() * torch.special.ndtri(uniform)


class DeepModel(LatentVariableModel):
    """A decoder, an encoder and the distribution of features between them."""

    def __init__(self, decoder, encoder, likelihood):
        super().__init__()
        self.decoder = decoder
        self.encoder = encoder
        self.likelihood = likelihood

    def entry_log_prob(self, X, z):
        """log p(x_j | z) of rows X, of shape (n, d), at z (n, s, k); (n, s, d)."""
        return self.likelihood.log_prob(X[:, None], self.decoder(z))

    def propose(self, rows):
        """The encoder's posteriors, and those around the modes nearest to them."""
        encoded = self.encoder(rows.X, rows.observed)
        return [encoded, laplace(rows, encoded.mean, self)]
