"""Standardised loadings of factor analysis, rotated, and their standard errors."""
# L_j = W_j / sqrt(psi_j + |W_j|^2) before rotation; psi is pi^2 / 3 for binary and
# ordinal features, whose latent response has logistic noise. With factor correlations
# Phi the communality is L_j Phi L_j', whatever the rotation.

import math

import numpy as np
import torch

from sklearn_mpt._factors.rotation import rotation_of
from sklearn_mpt._information.differences import central_differences
from sklearn_mpt._matrices import identity

# Step of differences, near the cube root of the errors of T: searches end where the
# criterion falls by no more than rounding, so these are near the root of rounding.
STEP = 2e-3
LOGISTIC_VARIANCE = math.pi**2 / 3


def solution(weights, noise_variance, rotation, start=None, axes=None):
    """Return the standardised solution as a dict of arrays."""
    # weights : (d, k). noise_variance : () or (d,). rotation : see `rotation_of`; None
    # takes `axes`, T, or leaves those of z. start : T near which that of the rotation
    # is.
    length = np.sqrt(noise_variance + (weights**2).sum(axis=1))
    loadings = weights / length[:, None]
    communality = (loadings**2).sum(axis=1)
    transform = np.eye(weights.shape[1]) if axes is None else axes
    if rotation is not None:
        unique_variance = 1 - communality[:, None]
        transform = rotation_of(loadings, rotation, start, unique_variance)
    loadings = loadings @ np.linalg.inv(transform).T
    correlation = transform.T @ transform
    structure = loadings @ correlation
    return {
        "loadings": loadings,
        "structure": structure,
        "factor_correlation": correlation,
        "communality": communality,
        "uniqueness": 1 - communality,
        "explained_variance": (structure * loadings).sum(axis=0),
        "rotation_matrix": transform,
    }


def solution_errors(coefs, log_noise, covariance, rotation, start):
    """Return standard errors of loadings, factor correlations and communalities."""
    # coefs : (d, k + 1). log_noise : () or (d,). covariance : of the estimates, (p, p),
    # coefficients first, row by row. start : T of the solution.
    coefs, log_noise = (torch.as_tensor(part) for part in (coefs, log_noise))
    names = "loadings", "factor_correlation", "communality"

    def reported(theta):
        moved, noise = theta[: coefs.numel()].view_as(coefs), theta[coefs.numel() :]
        noise_variance = noise.exp().view_as(log_noise).numpy()
        parts = solution(moved[:, :-1].numpy(), noise_variance, rotation, start)
        return torch.from_numpy(np.concatenate([parts[n].flatten() for n in names]))

    theta = torch.cat([coefs.flatten(), log_noise.flatten()])
    steps = STEP * identity(len(theta), theta)
    jacobian = (central_differences(reported, theta, steps) / STEP).numpy()
    variance = np.einsum("pr,pq,qr->r", jacobian, covariance, jacobian, optimize=True)
    deviation = np.sqrt(np.maximum(variance, 0))
    n_features, k = len(coefs), coefs.shape[1] - 1
    loadings, correlation, communality = np.split(
        deviation, [n_features * k, n_features * k + k**2]
    )
    return {
        "loadings_error": loadings.reshape(n_features, k),
        "factor_correlation_error": correlation.reshape(k, k),
        "communality_error": communality,
    }
