"""A deep latent variable model: its nets as a torch module, and its integrals.

A net maps z, standard normal, to the location of every feature, of shape (..., d). Rows
are standardised.
"""

import torch

from sklearn_mpt._deep.mode import N_MODES, posteriors_around_modes
from sklearn_mpt._latent.model import IntegratedModel
from sklearn_mpt._latent.rules import importance


def _points(power):
    """Points in a replicate: of the encoder's posterior, of each mode, of the prior.

    Where many are needed, modes do not say where; the prior knows all places.
    """
    of_prior = 2**power if power > 7 else 2 ** (power - 2)
    return (*[2**power] * (1 + N_MODES), of_prior)


# Rows share the points: their errors do not average out.
POINTS = [_points(power) for power in range(5, 11)]
CONDITIONAL_POINTS = [_points(power) for power in range(5, 9)]
CONDITIONAL_TOLERANCE = 0.01  # nats: curves sum many of them


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
        """The encoder's posteriors, and those around modes."""
        encoded = self.encoder(rows.X, rows.observed)
        return [encoded, *posteriors_around_modes(rows, encoded.mean, self)]


class DeepModel(IntegratedModel):
    """A fitted model; its integrals are by importance sampling."""

    def __init__(self, module, units, device, seed):
        scoring = importance(POINTS, module.n_dims, device, seed)
        predicting = importance(
            CONDITIONAL_POINTS, module.n_dims, device, seed, CONDITIONAL_TOLERANCE
        )
        super().__init__(module, units, scoring, predicting, seed)
