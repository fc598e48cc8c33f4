"""Gaussian approximations of the posterior of z, one for each row."""

import math
from typing import NamedTuple

import torch


class Posterior(NamedTuple):
    """A Gaussian for each row."""

    mean: torch.Tensor  # shape: (n, k)
    root: torch.Tensor  # F, shape (n, k, k): F' F is the covariance
    precision_root: torch.Tensor  # L, shape (n, k, k): L L' is its inverse


def gaussian_around(mean, precision_root):
    eye = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
    root = torch.linalg.solve_triangular(precision_root, eye, upper=False)
    return Posterior(mean, root, precision_root)


def precision_root_of(curvature, W):
    """Cholesky factors of I + sum_j c_j w_j w_j', of shape (n, k, k)."""
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    outer = (W[:, None] * W[None]).flatten(0, 1)
    return torch.linalg.cholesky(eye + (curvature @ outer.T).unflatten(1, eye.shape))


def standard_normal_log_prob(z):
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)


def gaussian_log_prob(z, posterior):
    """Log density of each row's points (n, s, k) under its posterior; (n, s)."""
    u = (z - posterior.mean[:, None]) @ posterior.precision_root
    return log_peak(posterior)[:, None] - 0.5 * (u**2).sum(-1)


def log_peak(posterior):
    """Log density at the mean; (n,)."""
    log_det = posterior.precision_root.diagonal(dim1=1, dim2=2).log().sum(1)
    return log_det - 0.5 * posterior.mean.shape[1] * math.log(2 * math.pi)


def moments(z):
    """z and its products, of which every Gaussian log density is linear; (m, p)."""
    return torch.cat([z, (z[:, :, None] * z[:, None]).flatten(1)], 1)


def natural_parameters(posterior):
    """What the log density adds up: coefficients of `moments` and a constant.

    In double precision, as large terms cancel; (n, p), (n,).
    """
    mean, root = posterior.mean.double(), posterior.precision_root.double()
    precision = root @ root.mT
    linear = (precision @ mean[..., None])[..., 0]
    coefs = torch.cat([linear, -0.5 * precision.flatten(1)], 1)
    return coefs, log_peak(posterior).double() - 0.5 * (linear * mean).sum(1)
