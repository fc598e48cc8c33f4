r"""The maths of a linear Gaussian latent variable model, on tensors.

The model is :math:`x = W^\top z + \mu + \sigma \epsilon` with standard normal z and
epsilon; `components` is W, of shape (K, D). Everything goes through the K x K posterior
precision :math:`I + W_R W_R^\top / \sigma^2` of z given the observed features R, so no
D x D matrix is ever built for a mask.
"""

import functools
import math
from typing import NamedTuple

import torch

from sklearn_mpt._latent.model import FLOAT_BYTES, Model

LOG_2PI = math.log(2 * math.pi)


class Moments(NamedTuple):
    """First and second moments of complete rows."""

    mean: torch.Tensor  # shape: (d,)
    variance: torch.Tensor  # shape: (d,)
    covariance_factors: tuple[torch.Tensor, ...]  # their product has shape (d, d)

    def product(self, V):
        """V C, for V of shape (..., d)."""
        flat = functools.reduce(torch.matmul, self.covariance_factors, V.flatten(0, -2))
        return flat.reshape(V.shape)


def moments_of(X):
    """Return the moments of complete rows X, of shape (n, d)."""
    mean = X.mean(0)
    centred = (X - mean) / math.sqrt(len(X))
    few_rows = 2 * len(X) < X.shape[1]
    factors = (centred.T, centred) if few_rows else (centred.T @ centred,)
    return Moments(mean, (centred**2).sum(0), factors)


def _second_moment_about(mean, moments, V):
    """V C and the diagonal of C = E (x - mean)(x - mean)', for V of shape (..., d)."""
    offset = moments.mean - mean
    product = moments.product(V)
    if offset.any():
        product = product + (V @ offset)[..., None] * offset
    return product, moments.variance + offset**2


def _posterior_root(observed, components, noise_variance):
    """F with F' F the covariance of z given each set of observed features; (n, k, k).

    observed : shape (n, d), 1.0 where observed.
    """
    W = components.T
    eye = torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
    outer = (W[:, :, None] * W[:, None, :]).flatten(1)
    gram = (observed @ outer).unflatten(1, eye.shape)
    factor = torch.linalg.cholesky(eye + gram / noise_variance)
    return torch.linalg.solve_triangular(factor, eye, upper=False)


def _log_determinant(root):
    """log det F' F."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _observed(X, hidden=None):
    """Which entries are seen, as numbers: one row if all rows see the same."""
    present = ~torch.isnan(X)
    if present.all():
        present = present[:1]
    seen = present if hidden is None else present & ~hidden
    return seen.to(X.dtype)


def _residual(X, observed, mean):
    return torch.nan_to_num(X - mean) * observed


def _column_norms(matrices):
    """Squared length of each column; (n, k, d) -> (n, d)."""
    return (matrices**2).sum(1)


class LinearGaussian(Model):
    """A fitted model.

    Parameters
    ----------
    components : Tensor of shape (k, d)
    mean : Tensor of shape (d,)
    noise_variance : Tensor of shape ()
    """

    def __init__(self, components, mean, noise_variance):
        self.components = components
        self.mean = mean
        self.noise_variance = noise_variance

    @property
    def row_bytes(self):
        n_dims, n_features = self.components.shape
        return FLOAT_BYTES * (6 * n_features * n_dims + 4 * n_dims**2)

    def lml(self, X):
        log_prob = self.log_prob(X)
        return log_prob, torch.zeros_like(log_prob)

    def log_prob(self, X):
        """Log density of the present entries of each row; (n,)."""
        observed = _observed(X)
        z, root = self.posterior(X, observed)
        # |x - Wz|^2 / s2 + |z|^2 equals the Mahalanobis distance without cancellation
        noise = _residual(X, observed, self.decode(z))
        distance = (noise**2).sum(1) / self.noise_variance + (z**2).sum(1)
        log_scale = observed.sum(1) * (LOG_2PI + self.noise_variance.log())
        return -0.5 * (log_scale - _log_determinant(root) + distance)

    def conditional_log_prob(self, X, mask):
        z, root = self.posterior(X, _observed(X, mask))
        # no NaN even where it is not selected: it would spoil the gradient
        residual = torch.nan_to_num(X) - self.mean - z @ self.components
        variance = self.noise_variance + _column_norms(root @ self.components)
        log_prob = -0.5 * (LOG_2PI + variance.log() + residual**2 / variance)
        return torch.where(mask & ~torch.isnan(X), log_prob, 0.0)

    def latent_mean(self, X):
        return self.posterior(X, _observed(X))[0]

    def expect(self, X):
        return self.decode(self.latent_mean(X))

    def decode(self, Z):
        return Z @ self.components + self.mean

    def draw(self, X, rng):
        latent_noise = X.new_tensor(rng.normal(size=(len(X), len(self.components))))
        noise = X.new_tensor(rng.normal(size=tuple(X.shape)))
        z, root = self.posterior(X, _observed(X))
        z = z + (root.mT @ latent_noise[..., None])[..., 0]
        return self.decode(z) + self.noise_variance.sqrt() * noise

    def mean_masked_scores(self, X, masks, n_rows):
        if torch.isnan(X).any():
            return super().mean_masked_scores(X, masks, n_rows)
        moments = moments_of(X)
        parts = [self.moment_scores(moments, part) for part in masks.split(n_rows)]
        return torch.cat(parts)

    def posterior(self, X, observed):
        """Mean (n, k) and root F (n or 1, k, k) of z given the observed entries."""
        root = self._root(observed)
        projection = _residual(X, observed, self.mean) @ self.components.T
        scaled = root @ (projection / self.noise_variance)[..., None]
        return (root.mT @ scaled)[..., 0], root

    def _root(self, observed):
        return _posterior_root(observed, self.components, self.noise_variance)

    def mean_log_prob(self, moments):
        """Average of `log_prob` over complete rows, from their moments."""
        root = self._root(torch.ones_like(self.mean)[None])[0]
        V = root @ self.components
        product, variance = _second_moment_about(self.mean, moments, V)
        explained = torch.sum(product * V) / self.noise_variance
        distance = (variance.sum() - explained) / self.noise_variance
        log_scale = len(self.mean) * (LOG_2PI + self.noise_variance.log())
        return -0.5 * (log_scale - _log_determinant(root) + distance)

    def moment_scores(self, moments, masks):
        """Masked score averaged over complete rows, from their moments; (n_masks,).

        O(d^2 k) per mask whatever the number of rows. With u = F^-T z, whose posterior
        covariance is the identity, and V = F W, the expected squared error of feature j
        is C_jj - 2 v_j' E[u x_j] + v_j' E[u u'] v_j.
        """
        observed = (~masks).to(self.components.dtype)
        V = self._root(observed) @ self.components
        V_seen = V * (observed / self.noise_variance)[:, None, :]
        u_x, second = _second_moment_about(self.mean, moments, V_seen)
        u_u = u_x @ V_seen.mT
        error = second + (V * (u_u @ V - 2 * u_x)).sum(1)
        variance = self.noise_variance + _column_norms(V)
        log_prob = -0.5 * (LOG_2PI + variance.log() + error / variance)
        return (log_prob * masks).sum(1) / masks.sum(1)
