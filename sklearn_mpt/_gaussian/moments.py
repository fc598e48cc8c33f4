"""Moments of rows, and where factors start: principal components."""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh, helmert, inv
from sklearn.utils.extmath import randomized_svd

from sklearn_mpt._gaussian.rotation import principal_axes
from sklearn_mpt._numbers import CACHE_ENTRIES, MIN_INFORMATION, TINY, chunk_slices


class Moments(NamedTuple):
    """First and second moments of complete rows."""

    mean: torch.Tensor  # shape: (d,)
    variance: torch.Tensor  # shape: (d,)
    covariance_factors: tuple[torch.Tensor, ...]  # their product has shape (d, d)

    def product(self, V):
        """Return V C, for V of shape (..., d)."""
        flat = functools.reduce(torch.matmul, self.covariance_factors, V.flatten(0, -2))
        return flat.reshape(V.shape)

    def rows(self):
        """Return at most d + 1 rows of these moments."""
        left, *right = self.covariance_factors
        if right:
            root = right[0]
        else:
            values, vectors = torch.linalg.eigh(left)
            root = values.clamp(min=0).sqrt()[:, None] * vectors.T
        centred = torch.from_numpy(helmert(len(root) + 1).T).to(root)
        return self.mean + math.sqrt(len(centred)) * (centred @ root)

    def divided(self, scale):
        """Return the moments of rows about their mean divided by `scale`, (d,)."""
        left, *right = self.covariance_factors
        factors = [left / scale[:, None], *right]
        factors[-1] = factors[-1] / scale
        zero = torch.zeros_like(self.mean)
        return Moments(zero, self.variance / scale**2, tuple(factors))


def moments_of(X, weight=None, mean=None):
    """Return the moments of rows X, (n, d)."""
    # mean : of present entries of each column, replaces gaps; None if rows are
    # complete.
    has_weights, has_gaps = weight is not None, mean is not None
    if not has_weights:
        weight = torch.ones(len(X), dtype=torch.float64, device=X.device)
    if not has_gaps:
        parts = [slice(None)]
        if X.dtype != torch.float64:  # rows are converted in parts
            parts = chunk_slices(*X.shape, CACHE_ENTRIES)
        mean = sum(weight[part] @ X[part].double() for part in parts) / len(X)

    def centred(block):
        block = block - mean
        return block.nan_to_num_() if has_gaps else block

    if 2 * len(X) < X.shape[1]:
        factor = (weight[:, None] / len(X)).sqrt() * centred(X)
        return Moments(mean, (factor**2).sum(0), (factor.T, factor))
    covariance = 0.0
    for part in chunk_slices(*X.shape, CACHE_ENTRIES):
        block = centred(X[part])
        weighted = weight[part, None] * block if has_weights else block
        covariance = covariance + block.T @ weighted
    covariance = covariance / len(X)
    return Moments(mean, covariance.diagonal(), (covariance,))


def closed_form(moments, n_components, noise_floor):
    """Return maximum likelihood components (k, d) and noise (Tipping, Bishop)."""
    values, axes = _axes_of_moments(moments, n_components)
    n_features = len(moments.mean)
    n_remaining = n_features - n_components
    remaining = (
        values[n_components:].sum() / n_remaining if n_remaining > 0 else values[-1]
    )
    noise_variance = max(float(remaining), noise_floor)
    lengths = _lengths(values[: len(axes)], noise_variance)
    components = np.zeros((n_components, n_features))
    components[: len(axes)] = lengths[:, None] * axes
    return principal_axes(components), noise_variance


def principal_factors(moments, n_factors, noise_floor, min_noise=0.05):
    """Return components (k, d) and noise variances (d,) of standardised features."""
    # min_noise : of a feature's variance; with less noise at the start, EM hardly
    # moves.
    components, _ = closed_form(moments, n_factors, noise_floor)
    return components, np.maximum(1 - (components**2).sum(axis=0), min_noise)


def regression_factors(moments, n_factors, ridge=1e-3):
    """Return the same as `principal_factors`, from noise that regressions leave."""
    # Joreskog, Psychometrika 32, 1967. The noise is a little less than what regressions
    # on all others leave; components are the best given it. ridge : variance added to
    # that of each feature, so that regressions do not explain all of it.
    n_features = len(moments.mean)
    left, *right = (factor.cpu().numpy() for factor in moments.covariance_factors)
    if right:
        inner = inv(right[0] @ left + ridge * np.eye(len(right[0])))
        precision = (1 - ((left @ inner) * left).sum(axis=1)) / ridge
    else:
        precision = np.diag(inv(left + ridge * np.eye(len(left))))
    noise = (1 - n_factors / (2 * n_features)) / precision
    in_noise = moments.divided(torch.from_numpy(np.sqrt(noise)))
    values, axes = _axes_of_moments(in_noise, n_factors)
    lengths = _lengths(values[: len(axes)], 1.0)
    components = np.zeros((n_factors, n_features))
    components[: len(axes)] = lengths[:, None] * axes * np.sqrt(noise)
    return principal_axes(components), noise  # signs of axes would be arbitrary


def closed_form_of_rows(X, n_components, noise_fraction=1e-3, noise_floor=1e-6):
    """Return components (k, d) and the noise variance of rows with mean 0."""
    # Leading singular vectors by random projections, at a cost proportional to
    # n_components; components beyond the rank are 0. noise_fraction, noise_floor :
    # least noise, relative to the variance of the first component, and absolute.
    n_samples, n_features = X.shape
    n_kept = min(n_components, n_samples, n_features)
    _, size, directions = randomized_svd(X, n_kept, random_state=0)
    values = size**2 / n_samples
    remaining = (X**2).sum() / n_samples - values.sum()
    remaining /= max(1, n_features - n_kept)
    noise = max(remaining, noise_fraction * values.max(), noise_floor)
    components = np.zeros((n_components, n_features))
    components[:n_kept] = _lengths(values, noise)[:, None] * directions
    return components, noise


def gradients_at(likelihood, X, location, weight=None):
    """Return gradients (n, l) at a location (l,), roots of information, presence."""
    # Divided by the roots, they are what standardised residuals are to a Gaussian.
    present = likelihood.to_locations(torch.from_numpy(~np.isnan(X))).numpy()
    entries = torch.from_numpy(np.nan_to_num(X))
    with torch.no_grad():
        gradient, information = likelihood.derivatives(
            entries, torch.from_numpy(location).expand(present.shape)
        )
    counts = present if weight is None else weight[:, None] * present
    total = (counts * information.numpy()).sum(0)
    mean = total / np.maximum(counts.sum(0), TINY)
    roots = np.sqrt(np.maximum(mean, MIN_INFORMATION))
    return present * gradient.numpy(), roots, present


def factors_of_covariances(covariances, n_factors, noise_floor):
    """Return loadings (K, g, q) and noise variances (K, g) of covariances (K, g, g)."""
    # Factors have half the variance along the leading axes. So noise starts above zero.
    values, vectors = torch.linalg.eigh(covariances)
    values, vectors = values[:, -n_factors:], vectors[:, :, -n_factors:]
    loadings = vectors * (0.5 * values).clamp(min=0).sqrt()[:, None]
    variance = covariances.diagonal(dim1=1, dim2=2)
    noise = (variance - (loadings**2).sum(2)).clamp(min=noise_floor + TINY)
    return loadings, noise


def _axes_of_moments(moments, n_axes):
    """Return variances along all principal axes, and the leading axes (q, d)."""
    # If the covariance is a product of fewer rows than features, the axes lie in the
    # span of the rows, and those without variance are 0.
    factors = [factor.cpu().numpy() for factor in moments.covariance_factors]
    values, vectors = eigh(factors[0] if len(factors) == 1 else factors[1] @ factors[0])
    values, axes = values[::-1], vectors[:, ::-1][:, :n_axes].T
    if len(factors) == 2:
        has_length = values[: len(axes), None] > 0
        size = np.sqrt(np.where(has_length, values[: len(axes), None], 1.0))
        axes = np.where(has_length, axes @ factors[0].T / size, 0.0)
    return values, axes


def _lengths(values, noise):
    """Return lengths of components, given variances of the rows along them."""
    return np.sqrt(np.maximum(values - noise, 0))
