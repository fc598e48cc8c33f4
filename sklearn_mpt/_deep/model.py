"""A deep latent variable model: its nets as a torch module, and its integrals.

A net maps z, standard normal, to the location of every feature, of shape (..., d). Rows
are standardised.
"""

import torch

from sklearn_mpt._deep.mode import laplace
from sklearn_mpt._latent.model import IntegratedModel
from sklearn_mpt._latent.rules import importance

# In each replicate: around the encoder's posterior, around the mode, from the prior.
# Rows share the points: their errors do not average out.
POINTS = [(2**power, 2**power, 2 ** (power - 2)) for power in range(6, 10)]
CONDITIONAL_POINTS = [(2**power, 2**power, 2 ** (power - 2)) for power in range(5, 8)]


class DeepModule(torch.nn.Module):
    """A decoder, an encoder and the distribution of features between them."""

    def __init__(self, decoder, encoder, likelihood):
        super().__init__()
        self.decoder = decoder
        self.encoder = encoder
        self.likelihood = likelihood

    @property
    def n_dims(self):
        return len(self.encoder.precision)

    @property
    def width(self):
        return max(len(intercept) for intercept in self.decoder.intercepts)

    def location(self, z):
        return self.decoder(z)

    def entry_log_prob(self, X, z):
        """log p(x_j | z) of rows X, of shape (n, d), at z (n, s, k); (n, s, d)."""
        return self.likelihood.entry_log_prob(X[:, None], self.decoder(z))

    def propose(self, rows):
        """The encoder's posteriors, and those around the modes nearest to them."""
        encoded = self.encoder(rows.X, rows.observed)
        return [encoded, laplace(rows, encoded.mean, self)]


class DeepModel(IntegratedModel):
    """A fitted model; its integrals are by importance sampling."""

    def __init__(self, module, units, device, seed):
        scoring = importance(POINTS, module.n_dims, device, seed)
        predicting = importance(CONDITIONAL_POINTS, module.n_dims, device, seed)
        super().__init__(module, units, scoring, predicting, seed)
