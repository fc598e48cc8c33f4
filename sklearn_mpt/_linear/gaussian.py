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

from sklearn_mpt._latent.objectives import LatentVariableModel

LOG_2PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Parameters of the model."""

    components: torch.Tensor  # shape: (k, d)
    mean: torch.Tensor  # shape: (d,)
    noise_variance: torch.Tensor  # shape: ()


class Moments(NamedTuple):
    """First and second moments of complete rows."""

    mean: torch.Tensor  # shape: (d,)
    variance: torch.Tensor  # shape: (d,)
    covariance_factors: tuple[torch.Tensor, ...]  # their product has shape (d, d)


def moments(X):
    """Return the moments of complete rows X, of shape (n, d)."""
    mean = X.mean(0)
    centred = (X - mean) / math.sqrt(len(X))
    few_rows = 2 * len(X) < X.shape[1]
    factors = (centred.T, centred) if few_rows else (centred.T @ centred,)
    return Moments(mean, (centred**2).sum(0), factors)


def _second_moment_about(mean, moments, V):
    """V C and the diagonal of C = E (x - mean)(x - mean)', for V of shape (..., d)."""
    offset = moments.mean - mean
    product = functools.reduce(torch.matmul, moments.covariance_factors, V)
    if offset.any():
        product = product + (V @ offset)[..., None] * offset
    return product, moments.variance + offset**2


def _posterior_root(observed, parameters):
    """F with F' F the covariance of z given each set of observed features; (n, k, k).

    observed : shape (n, d), 1.0 where observed.
    """
    W = parameters.components.T
    eye = torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
    outer = (W[:, :, None] * W[:, None, :]).flatten(1)
    gram = (observed @ outer).unflatten(1, eye.shape)
    factor = torch.linalg.cholesky(eye + gram / parameters.noise_variance)
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


def posterior(X, observed, parameters):
    """Mean (n, k) and root F (n or 1, k, k) of z given the observed entries."""
    root = _posterior_root(observed, parameters)
    projection = _residual(X, observed, parameters.mean) @ parameters.components.T
    scaled = root @ (projection / parameters.noise_variance)[..., None]
    return (root.mT @ scaled)[..., 0], root


def posterior_mean(X, parameters):
    """Mean of z given the present entries; (n, k)."""
    return posterior(X, _observed(X), parameters)[0]


def draw(X, parameters, latent_noise, noise):
    """Draw rows given their present entries, from standard normal noise; (n, d)."""
    z, root = posterior(X, _observed(X), parameters)
    z = z + (root.mT @ latent_noise[..., None])[..., 0]
    decoded = z @ parameters.components + parameters.mean
    return decoded + parameters.noise_variance.sqrt() * noise


def conditional_log_prob(X, mask, parameters):
    """log p(x_j | x_R) at hidden and present entries, 0.0 elsewhere; (n, d).

    mask : bool of shape (1, d) or (n, d), True where hidden.
    """
    z, root = posterior(X, _observed(X, mask), parameters)
    # no NaN even where it is not selected: it would spoil the gradient
    residual = torch.nan_to_num(X) - parameters.mean - z @ parameters.components
    variance = parameters.noise_variance + _column_norms(root @ parameters.components)
    log_prob = -0.5 * (LOG_2PI + variance.log() + residual**2 / variance)
    return torch.where(mask & ~torch.isnan(X), log_prob, 0.0)


def log_prob(X, parameters):
    """Log density of the present entries of each row; (n,)."""
    observed = _observed(X)
    z, root = posterior(X, observed, parameters)
    # |x - Wz|^2 / s2 + |z|^2 equals the Mahalanobis distance without cancellation
    noise = _residual(X, observed, parameters.mean + z @ parameters.components)
    distance = (noise**2).sum(1) / parameters.noise_variance + (z**2).sum(1)
    log_scale = observed.sum(1) * (LOG_2PI + parameters.noise_variance.log())
    return -0.5 * (log_scale - _log_determinant(root) + distance)


def _column_norms(matrices):
    """Squared length of each column; (n, k, d) -> (n, d)."""
    return (matrices**2).sum(1)


def mean_log_prob(moments, parameters):
    """Average of `log_prob` over complete rows, from their moments."""
    W, noise_variance = parameters.components, parameters.noise_variance
    root = _posterior_root(torch.ones_like(parameters.mean)[None], parameters)[0]
    V = root @ W
    product, variance = _second_moment_about(parameters.mean, moments, V)
    explained = torch.sum(product * V) / noise_variance
    distance = (variance.sum() - explained) / noise_variance
    log_scale = W.shape[1] * (LOG_2PI + noise_variance.log())
    return -0.5 * (log_scale - _log_determinant(root) + distance)


def mean_masked_scores(moments, masks, parameters):
    """Masked score averaged over complete rows, from their moments; (n_masks,).

    O(d^2 k) per mask whatever the number of rows. With u = F^-T z, whose posterior
    covariance is the identity, and V = F W, the expected squared error of feature j is
    C_jj - 2 v_j' E[u x_j] + v_j' E[u u'] v_j.
    """
    W, noise_variance = parameters.components, parameters.noise_variance
    observed = (~masks).to(W.dtype)
    V = _posterior_root(observed, parameters) @ W
    V_seen = V * (observed / noise_variance)[:, None, :]
    u_x, second = _second_moment_about(parameters.mean, moments, V_seen)
    u_u = u_x @ V_seen.mT
    error = second + (V * (u_u @ V - 2 * u_x)).sum(1)
    variance = noise_variance + _column_norms(V)
    log_prob = -0.5 * (LOG_2PI + variance.log() + error / variance)
    return (log_prob * masks).sum(1) / masks.sum(1)


class GaussianModel(LatentVariableModel):
    r"""A linear Gaussian model, moved in coordinates local to where it stands.

    A gradient step changes the model to

    .. math:: W \leftarrow (I + L) (W + \sigma \, \delta W), \quad
              \mu \leftarrow \mu + \sigma \, \delta\mu + W^\top a, \quad
              \log \sigma^2 \leftarrow \log \sigma^2 + \delta_\sigma,

    and `fold` makes the result the new origin. Steps thus shrink with the noise they
    have to resolve; L, of shape (K, K), and a correct the scale and the mean of the
    latent variables at once, where steps on W and the mean alone would take very long:
    the idea of parameter expansion [1]_.

    References
    ----------
    .. [1] C. Liu, D. B. Rubin and Y. N. Wu, "Parameter expansion to accelerate EM: the
       PX-EM algorithm", Biometrika 85, 1998.
    """

    def __init__(self, components, mean, noise_variance, noise_floor):
        super().__init__()
        self.register_buffer("components", components)
        self.register_buffer("mean", mean)
        excess = torch.clamp(noise_variance - noise_floor, min=noise_floor)
        self.register_buffer("log_noise", excess.log())
        self.noise_floor = noise_floor
        self.components_step = torch.nn.Parameter(torch.zeros_like(components))
        self.mean_step = torch.nn.Parameter(torch.zeros_like(mean))
        self.log_noise_step = torch.nn.Parameter(torch.zeros_like(self.log_noise))
        self.latent_scale_step = torch.nn.Parameter(
            components.new_zeros(len(components), len(components))
        )
        self.latent_mean_step = torch.nn.Parameter(
            components.new_zeros(len(components))
        )

    def fix_mean(self, mean):
        """Put the mean where it stays."""
        self.mean.copy_(mean)
        self.mean_step.requires_grad_(False)
        self.latent_mean_step.requires_grad_(False)

    @property
    def parameters_now(self):
        """The parameters after the step taken so far, as a `Gaussian`."""
        unit = (0.5 * self.log_noise).exp()
        moved = self.components + unit * self.components_step
        return Gaussian(
            moved + self.latent_scale_step @ moved,
            self.mean + unit * self.mean_step + self.latent_mean_step @ moved,
            (self.log_noise + self.log_noise_step).exp() + self.noise_floor,
        )

    @torch.no_grad()
    def fold(self):
        now = self.parameters_now
        self.components.copy_(now.components)
        self.mean.copy_(now.mean)
        self.log_noise.add_(self.log_noise_step)
        for step in self.parameters():
            step.zero_()

    def conditional_log_prob(self, X, mask):
        return conditional_log_prob(X, mask, self.parameters_now)

    def log_prob(self, X):
        return log_prob(X, self.parameters_now)


class MaskedMoments:
    """Minus D times the masked score over all rows, from their moments."""

    def __init__(self, moments, draw_step_masks):
        self.moments = moments
        self.draw_step_masks = draw_step_masks

    def batches(self, rng):
        yield self.draw_step_masks(rng)

    def losses(self, model, masks):
        return -masks.shape[1] * mean_masked_scores(
            self.moments, masks, model.parameters_now
        )


class LikelihoodMoments:
    """Minus the log marginal likelihood over all rows, from their moments."""

    def __init__(self, moments):
        self.moments = moments

    def batches(self, rng):
        yield self.moments

    def losses(self, model, moments):
        return -mean_log_prob(moments, model.parameters_now)[None]
