"""Conditionals by a chain that encodes and decodes in turn, kept for comparison.

From the observed features alone the first z is drawn; then the hidden features are
drawn given z, and z given all of them, and so on: appendix F of [1]_.

References
----------
.. [1] D. J. Rezende, S. Mohamed and D. Wierstra, "Stochastic backpropagation and
   approximate inference in deep generative models", ICML 2014.
"""

import numpy as np
import torch

from sklearn_mpt._deep.objectives import SampledRows
from sklearn_mpt._latent.importance import log_mean_exp, normal_points
from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._measure.masks import draw_masks, training_sizes

N_STEPS = 5  # from one z to the next
N_CHAINS = 64  # when scoring


def conditional_log_prob(model, X, observed, noise):
    """log p(x_j | x_R) by averages over the last z of several chains; (n, d).

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Any number where missing.
    observed : bool Tensor of shape (n, d)
    noise : pair of Tensors
        Standard normal (n or 1, n_steps + 1, s, k); uniform (n or 1, n_steps, s, d).
    """
    normal, uniform = noise
    n_chains = normal.shape[2]
    rows, seen = (t.repeat_interleave(n_chains, 0) for t in (X, observed))
    with torch.no_grad():
        filled, known = rows, seen
        for step in range(uniform.shape[1]):
            z = _draw(model, filled, known, normal[:, step])
            draws = model.likelihood.draw(
                model.decoder(z.unflatten(0, (-1, n_chains))), uniform[:, step]
            )
            filled = torch.where(seen, rows, draws.flatten(0, 1))
            known = torch.ones_like(seen)
    z = _draw(model, filled, known, normal[:, -1]).unflatten(0, (-1, n_chains))
    log_prob = model.likelihood.log_prob(X[:, None], model.decoder(z))
    return log_mean_exp(log_prob, 1)


def _draw(model, X, observed, normal):
    """Draw z from the encoder for every row of every chain; (n * s, k)."""
    posterior = model.encoder(X, observed)
    each = normal.expand(len(X) // normal.shape[1], -1, -1).flatten(0, 1)
    return posterior.mean + (each[:, None] @ posterior.root)[:, 0]


def chain_log_prob(rows, model, seed):
    """The conditional for scoring: the noise of the chains is the same for all rows."""
    n_dims, n_features = len(model.encoder.precision), rows.X.shape[1]
    normal = normal_points(N_CHAINS, n_dims, seed.tolist(), N_STEPS + 1)
    uniform = np.random.default_rng(seed).random((N_STEPS, N_CHAINS, n_features))
    noise = tuple(
        torch.tensor(array, device=rows.X.device)[None] for array in (normal, uniform)
    )
    return conditional_log_prob(model, rows.X, rows.observed, noise)


class ChainRows(SampledRows):
    """Minus D times the masked score by chains, over minibatches of rows."""

    def __init__(self, X, batch_size, noise_shape, masks):
        super().__init__(X, batch_size, noise_shape)
        self.masks = masks

    def batches(self, rng):
        mask_rate, n_masks = self.masks
        n_features = self.X.shape[1]
        n_chains, n_dims = self.noise_shape
        for X, _ in super().batches(rng):
            sizes = training_sizes(mask_rate, n_masks, n_features, rng)
            masks = draw_masks(sizes, n_features, rng)[np.arange(len(X)) % n_masks]
            normal = rng.standard_normal((len(X), N_STEPS + 1, n_chains, n_dims))
            uniform = rng.random((len(X), N_STEPS, n_chains, n_features))
            noise = [
                torch.tensor(u, dtype=X.dtype, device=X.device)
                for u in (normal, uniform)
            ]
            yield X, torch.tensor(masks, device=X.device), noise

    def losses(self, model, batch):
        X, mask, noise = batch
        present = ~torch.isnan(X)
        log_prob = conditional_log_prob(
            model, torch.nan_to_num(X), present & ~mask, noise
        )
        log_prob = torch.where(mask & present, log_prob, 0.0)
        return -X.shape[1] * masked_score(log_prob, mask)
