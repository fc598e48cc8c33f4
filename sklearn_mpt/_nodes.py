"""Where integrals over the latent variables are evaluated: nodes and their weights.

Nodes are placed around a Gaussian approximation N(m, V) of the posterior of z. A rule
holds them in groups, each of which gives every integral on its own: the groups tell
how large the error is.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import roots_hermitenorm

from sklearn_mpt._importance import N_REPLICATES, normal_points, pool


class Posterior(NamedTuple):
    """A Gaussian for each row."""

    mean: torch.Tensor  # shape: (n, k)
    root: torch.Tensor  # F, shape (n, k, k): F' F is the covariance
    precision_root: torch.Tensor  # L, shape (n, k, k): L L' is its inverse


class Nodes(NamedTuple):
    z: torch.Tensor  # shape: (n, s, k)
    log_weight: torch.Tensor  # shape: (n, s), to integrate over the prior


def _log_determinant(posterior):
    """log |F|, of shape (n, 1)."""
    return posterior.root.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)


class GaussHermite:
    """Product Gauss-Hermite nodes around the posterior [1]_.

    n_per_dim : number of nodes in each dimension, one grid for each number given. The
        last is the finest; its difference to the one before bounds the error.

    References
    ----------
    .. [1] J. C. Naylor and A. F. M. Smith, "Applications of a method for the efficient
       computation of posterior distributions", Applied Statistics 31, 1982.
    """

    def __init__(self, n_per_dim, n_dims, device):
        self.groups = [
            tuple(torch.tensor(array, device=device) for array in _grid(n, n_dims))
            for n in n_per_dim
        ]

    def place(self, group, posterior):
        """Return the nodes of a group for each row."""
        u, log_weight = group
        z = posterior.mean[:, None] + u @ posterior.root
        to_prior = 0.5 * ((u**2).sum(-1) - (z**2).sum(-1)) + _log_determinant(posterior)
        return Nodes(z, log_weight + to_prior)

    def combine_logs(self, logs):
        """Log integrals of the groups, of shape (n_groups, n): value and error."""
        return logs[-1], (logs[-1] - logs[-2]).abs()

    def combine(self, averages, logs):
        """Posterior averages of the groups, of shape (n_groups, n, d), and error."""
        return averages[-1], (averages[-1] - averages[-2]).abs()


def _grid(n_per_dim, n_dims):
    u, weight = roots_hermitenorm(n_per_dim)
    log_weight = np.log(weight / math.sqrt(2 * math.pi))
    axes = np.meshgrid(*[u] * n_dims, indexing="ij")
    weights = np.meshgrid(*[log_weight] * n_dims, indexing="ij")
    return np.stack(axes, -1).reshape(-1, n_dims), np.sum(weights, 0).ravel()


class LaplaceMixture:
    """Quasi-random points of a mixture of the posterior (8/9) and the prior (1/9).

    Weights are bounded as the prior takes part [1]_.

    n_points : points of the posterior in each group, a power of 2, at least 8.

    References
    ----------
    .. [1] T. Hesterberg, "Weighted average importance sampling and defensive mixture
       distributions", Technometrics 37, 1995.
    """

    def __init__(self, n_points, n_dims, device, seed, n_replicates=N_REPLICATES):
        self.groups = [
            tuple(torch.tensor(points, device=device) for points in pair)
            for pair in zip(
                normal_points(n_points, n_dims, [*seed, 0], n_replicates),
                normal_points(n_points // 8, n_dims, [*seed, 1], n_replicates),
                strict=True,
            )
        ]

    def place(self, group, posterior):
        """Return the nodes of a group for each row."""
        return mixture_nodes(*(points[None] for points in group), posterior)

    def combine_logs(self, logs):
        """Log integrals of the groups, of shape (n_groups, n): value and error."""
        return pool(logs)

    def combine(self, averages, logs):
        """Posterior averages of the groups, of shape (n_groups, n, d), and error."""
        share = torch.softmax(logs, 0)[..., None]
        pooled = (share * averages).sum(0)
        spread = (len(logs) * share * (averages - pooled)).std(0, correction=1)
        return pooled, spread / math.sqrt(len(logs))


def mixture_nodes(from_posterior, from_prior, posterior):
    """Weigh standard normal points, some moved to the posterior, others as they are.

    from_posterior, from_prior : shape (1 or n, s, k)
    """
    near = posterior.mean[:, None] + from_posterior @ posterior.root
    z = torch.cat([near, from_prior.expand(len(near), -1, -1)], 1)
    u = (z - posterior.mean[:, None]) @ posterior.precision_root
    # log density of the posterior over that of the prior
    log_ratio = 0.5 * ((z**2).sum(-1) - (u**2).sum(-1)) - _log_determinant(posterior)
    n_near, n_all = near.shape[1], z.shape[1]
    from_near = log_ratio + math.log(n_near)
    log_mixture = torch.logaddexp(
        from_near, torch.full_like(from_near, math.log(n_all - n_near))
    )
    return Nodes(z, -log_mixture)


def refine(estimate, rules, tolerance):
    """Estimate rows by the first rule, those not yet accurate by the next, and so on.

    An entry keeps the first estimate that is accurate, so that it does not depend on
    other rows, nor on other entries of its row.

    estimate : callable
        From a rule and the indices of rows to value and error, of shape (n, ...).
    rules : iterable
    tolerance : float
    """
    rules = iter(rules)
    values, errors = estimate(next(rules), slice(None))
    for rule in rules:
        inaccurate = errors > tolerance
        rows = inaccurate.reshape(len(values), -1).any(1).nonzero()[:, 0]
        if len(rows) == 0:
            break
        value, error = estimate(rule, rows)
        values[rows] = torch.where(inaccurate[rows], value, values[rows])
        errors[rows] = torch.where(inaccurate[rows], error, errors[rows])
    return values, errors
