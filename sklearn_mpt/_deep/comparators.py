"""For comparison: bounds by each row's own samples, and chains.

A chain draws z from the encoder given the observed features, then the hidden features
given z, then z given all features, and so on: appendix F of [1]_.

References
----------
.. [1] D. J. Rezende, S. Mohamed and D. Wierstra, "Stochastic backpropagation and
   approximate inference in deep generative models", ICML 2014.
"""

import numpy as np
import torch

from sklearn_mpt._deep.density import DeepDensity
from sklearn_mpt._deep.objectives import MaskedLoss, RowLoss
from sklearn_mpt._latent.quadrature import log_mean_exp, normal_points
from sklearn_mpt._matrices import log_determinant
from sklearn_mpt._measure.contract import masked_score


def row_sample_bound(module, X, noise):
    """Return the importance-weighted bound by each row's own samples; (n,)."""
    observed, filled = ~torch.isnan(X), torch.nan_to_num(X)
    posterior = module.posterior(filled, observed)
    z = posterior.mean[:, None] + noise @ posterior.root
    log_prob = module.entry_log_prob(filled, z)
    log_likelihood = (log_prob @ observed.to(X.dtype)[..., None])[..., 0]
    log_det = 0.5 * log_determinant(posterior.precision_root)
    log_ratio = 0.5 * ((noise**2).sum(-1) - (z**2).sum(-1)) - log_det[:, None]
    return log_mean_exp(log_likelihood + log_ratio, 1)


class BoundLoss(RowLoss):
    """Minus the importance-weighted bound: ELBO with one sample per row, else IWAE."""

    def row_losses(self, module, batch):
        X, counts, noise, _ = batch
        return -counts * row_sample_bound(module, X, noise)


def encode_decode_log_prob(module, X, observed, noise):
    """Return log p(x_j | x_R) by averages over the last z of chains; (n, d).

    noise : standard normal, (n or 1, n_steps + 1, s, k), and uniform, (n or 1, n_steps,
    s, d).
    """
    normal, uniform = noise
    n_chains = normal.shape[2]
    rows, is_observed = (t.repeat_interleave(n_chains, 0) for t in (X, observed))
    with torch.no_grad():
        filled, known = rows, is_observed
        for step in range(uniform.shape[1]):
            z = _draw(module, filled, known, normal[:, step])
            draws = module.likelihood.draw(
                module.decoder(z.unflatten(0, (-1, n_chains))), uniform[:, step]
            )
            filled = torch.where(is_observed, rows, draws.flatten(0, 1))
            known = torch.ones_like(is_observed)
    z = _draw(module, filled, known, normal[:, -1]).unflatten(0, (-1, n_chains))
    log_prob = module.likelihood.entry_log_prob(X[:, None], module.decoder(z))
    return log_mean_exp(log_prob, 1)


def _draw(module, X, observed, normal):
    """Draw z from the encoder for every row of every chain; (n * s, k)."""
    posterior = module.posterior(X, observed)
    noise = normal.expand(len(X) // normal.shape[1], -1, -1).flatten(0, 1)
    return posterior.mean + (noise[:, None] @ posterior.root)[:, 0]


class EncodeDecodeDensity(DeepDensity):
    """A density whose conditionals are those of the chains."""

    n_chains, n_steps = 64, 5

    def _conditionals(self, rows, accuracy):
        shape = (self.n_steps, self.n_chains, rows.X.shape[1])
        n_dims = self.joint.n_dims
        normal = normal_points(self.n_chains, n_dims, self.seed, self.n_steps + 1)
        uniform = np.random.default_rng(self.seed).random(shape)
        noise = tuple(
            torch.tensor(u, device=rows.X.device)[None] for u in (normal, uniform)
        )
        return encode_decode_log_prob(self.joint, rows.X, rows.observed, noise)


class EncodeDecodeLoss(MaskedLoss):
    """Minus D times the masked score by chains, over minibatches of rows."""

    def batches(self):
        n_features = self.rows.X.shape[1]
        n_chains, _, n_dims = self.samples
        n_steps = EncodeDecodeDensity.n_steps
        for X, counts, *_ in super().batches():
            normal = self.rng.standard_normal((len(X), n_steps + 1, n_chains, n_dims))
            uniform = self.rng.random((len(X), n_steps, n_chains, n_features))
            noise = [
                torch.tensor(u, dtype=X.dtype, device=X.device)
                for u in (normal, uniform)
            ]
            yield X, counts, self.draw(X), noise

    def row_losses(self, module, batch):
        X, counts, mask, noise = batch
        present = ~torch.isnan(X)
        log_prob = encode_decode_log_prob(
            module, torch.nan_to_num(X), present & ~mask, noise
        )
        log_prob = torch.where(mask & present, log_prob, 0.0)
        return -X.shape[1] * counts * masked_score(log_prob, mask)
