"""The evidence lower bound of rows under a linear model, and natural steps on it."""

import torch

from sklearn_mpt._latent.posterior import gaussian_around, precision_root_of
from sklearn_mpt._linear.integrated_sums import sums_of, with_one
from sklearn_mpt._linear.map import laplace


def bound_sums(rows, latent, grid):
    """Evidence lower bound of rows, each with its best Gaussian posterior.

    The gradient is that at fixed posteriors, which are best. By Stein's identity the
    mean of slope times z needs the means of slope and information alone.
    """
    posterior = variational_posterior(rows, latent, grid)
    points, weight = _location_points(posterior, latent, grid), grid[1].exp()
    slope, information = latent.likelihood.derivatives(rows.X[..., None], points)
    seen = rows.observed.to(points.dtype)
    slope, information = seen * (slope @ weight), seen * (information @ weight)
    covariance = posterior.root.mT @ posterior.root
    z = with_one(posterior.mean)
    pull = torch.einsum("nd,nkl,ld->dk", information, covariance, latent.components)
    gradient = slope.T @ z
    gradient[:, :-1] -= pull
    second = z[:, :, None] * z[:, None]
    second[:, :-1, :-1] += covariance
    full = (information.T @ second.flatten(1)).unflatten(1, second.shape[1:])
    value = evidence_lower_bound(rows, posterior, latent, grid)
    return sums_of(value, gradient, full)


def variational_posterior(rows, latent, grid, n_steps=4):
    """The Gaussian that maximises the evidence lower bound of each row.

    Newton's method on the expected log joint, from the Laplace approximation; the
    expectations of a location are sums over a one-dimensional grid.
    """
    W, weight = latent.components, grid[1].exp()
    observed = rows.observed.to(W.dtype)
    posterior = laplace(rows, latent)
    for _ in range(n_steps):
        points = _location_points(posterior, latent, grid)
        slope, information = latent.likelihood.derivatives(rows.X[..., None], points)
        gradient = (observed * (slope @ weight)) @ W.T - posterior.mean
        precision_root = precision_root_of(observed * (information @ weight), W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        posterior = gaussian_around(posterior.mean + step, precision_root)
    return posterior


def _location_points(posterior, latent, grid):
    """Values of the locations under the posterior, at the points; (n, d, t)."""
    mean = latent.location(posterior.mean)
    variance = ((posterior.root @ latent.components) ** 2).sum(1)
    # the square root has no gradient at zero
    std = variance.clamp(min=1e-20).sqrt()
    return mean[..., None] + std[..., None] * grid[0][:, 0]


def evidence_lower_bound(rows, posterior, latent, grid):
    """E_q log p(x | z) - KL(q, prior) of each row, of shape (n,)."""
    points = _location_points(posterior, latent, grid)
    log_prob = latent.likelihood.entry_log_prob(rows.X[..., None], points)
    expected = torch.where(rows.observed, log_prob @ grid[1].exp(), 0.0).sum(1)
    trace = (posterior.root**2).sum((1, 2)) + (posterior.mean**2).sum(1)
    log_det = 2 * posterior.root.diagonal(dim1=1, dim2=2).log().sum(1)
    return expected - 0.5 * (trace - posterior.mean.shape[1] - log_det)
