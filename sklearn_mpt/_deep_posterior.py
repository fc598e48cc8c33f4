"""Gaussians around which the posterior of z is integrated, and points from them."""

import math

import torch

from sklearn_mpt._bernoulli import gaussian_around
from sklearn_mpt._encoder import gaussian_log_prob, standard_normal_log_prob
from sklearn_mpt._importance import normal_points
from sklearn_mpt._nodes import LaplaceMixture, Nodes

MAX_STEPS = 10
TOLERANCE = 0.01  # nats, of the log joint density
STEP_SIZES = (1.0, 0.3, 0.1, 0.03)


class PosteriorMixture(LaplaceMixture):
    """Quasi-random points of two approximate posteriors (4/9 each) and the prior (1/9).

    n_points : points of each posterior in each group, a power of 2, at least 4.
    """

    def __init__(self, n_points, n_dims, device, seed):
        counts = (n_points, n_points, n_points // 4)
        parts = [
            normal_points(count, n_dims, [*seed, part])
            for part, count in enumerate(counts)
        ]
        self.groups = [
            tuple(torch.tensor(points, device=device) for points in group)
            for group in zip(*parts, strict=True)
        ]

    def place(self, group, posteriors):
        """Return the nodes of a group for each row."""
        return mixture_nodes([points[None] for points in group], posteriors)


def mixture_nodes(normal, posteriors):
    """Move standard normal points to the posteriors, the last ones to the prior.

    normal : Tensors of shape (1 or n, s_i, k), one more than there are posteriors.
    """
    *near, far = normal
    moved = [
        posterior.mean[:, None] + points @ posterior.root
        for points, posterior in zip(near, posteriors, strict=True)
    ]
    z = torch.cat([*moved, far.expand(len(moved[0]), -1, -1)], 1)
    log_prior = standard_normal_log_prob(z)
    densities = [gaussian_log_prob(z, posterior) for posterior in posteriors]
    log_mixture = torch.stack(
        [
            math.log(points.shape[1]) + density
            for points, density in zip(normal, [*densities, log_prior], strict=True)
        ]
    )
    return Nodes(z, log_prior - torch.logsumexp(log_mixture, 0))


def laplace(rows, z, model):
    """Mode and curvature of the posterior near z, by damped Gauss-Newton steps.

    Each row takes the step size that is best for it, and rests when none gains more
    than TOLERANCE: a row at rest stays there, whatever the others need.
    """
    sizes = torch.tensor([0.0, *STEP_SIZES], dtype=z.dtype, device=z.device)
    for _ in range(MAX_STEPS):
        step, root = _gauss_newton(rows, z, model)
        candidates = z[:, None] + sizes[:, None] * step[:, None]
        gain = log_joint(rows, candidates, model)
        best_gain, best = (gain - gain[:, :1]).max(1)
        best = torch.where(best_gain > TOLERANCE, best, 0)
        if not best.any():
            break
        z = candidates[torch.arange(len(z), device=z.device), best]
    return gaussian_around(z, root)


def log_joint(rows, z, model):
    """Log p(observed entries, z), up to a constant, at points (n, s, k); (n, s)."""
    observed = rows.observed.to(z.dtype)[..., None]
    log_prob = model.likelihood.log_prob(rows.X[:, None], model.decoder(z))
    return (log_prob @ observed)[..., 0] - 0.5 * (z**2).sum(-1)


def _gauss_newton(rows, z, model):
    """Full step to the mode, and the root of the precision, at z (n, k)."""
    location, jacobian = model.decoder.value_and_jacobian(z)
    slope, curvature = model.likelihood.derivatives(rows.X, location)
    slope, curvature = (
        torch.where(rows.observed, term, 0.0) for term in (slope, curvature)
    )
    gradient = (jacobian @ slope[..., None])[..., 0] - z
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    precision = eye + (jacobian * curvature[:, None]) @ jacobian.mT
    root = torch.linalg.cholesky(precision)
    return torch.cholesky_solve(gradient[..., None], root)[..., 0], root
