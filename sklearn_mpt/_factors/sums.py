"""Log-densities of linear Gaussian models, with gradients and information."""
# Symmetric (k, k) matrices of rows are packed into k (k + 1) / 2 numbers.

import functools
from typing import NamedTuple

import torch

from sklearn_mpt._fitting.natural_gradient import (
    Curvature,
    Point,
    Sums,
    latent_rescaling,
)
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices


class Moments(NamedTuple):
    """First and second moments of complete rows."""

    mean: torch.Tensor  # shape: (d,)
    variance: torch.Tensor  # shape: (d,)
    covariance_factors: tuple[torch.Tensor, ...]  # their product has shape (d, d)

    def product(self, V):
        """Return V C, for V of shape (..., d)."""
        flat = functools.reduce(torch.matmul, self.covariance_factors, V.flatten(0, -2))
        return flat.reshape(V.shape)

    def divided(self, scale):
        """Return the moments of rows about their mean divided by `scale`, (d,)."""
        left, *right = self.covariance_factors
        factors = [left / scale[:, None], *right]
        factors[-1] = factors[-1] / scale
        zero = torch.zeros_like(self.mean)
        return Moments(zero, self.variance / scale**2, tuple(factors))


def double_slices(X):
    """Return slices of rows to convert to double precision; one slice if they are."""
    if X.dtype == torch.float64:
        return [slice(None)]
    return chunk_slices(*X.shape, CACHE_ENTRIES)


def moments_of(X, weight=None, mean=None):
    """Return the moments of rows X, (n, d)."""
    # mean : of present entries of each column, replaces gaps; None if rows are
    # complete.
    has_weights, has_gaps = weight is not None, mean is not None
    if not has_weights:
        weight = torch.ones(len(X), dtype=torch.float64, device=X.device)
    if not has_gaps:
        total = sum(weight[part] @ X[part].double() for part in double_slices(X))
        mean = total / len(X)

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


class SymmetricMatrices:
    """Symmetric k x k matrices as vectors of their upper triangles."""

    def __init__(self, n_dims, device):
        self.n_dims = n_dims
        rows, columns = self.indices = torch.triu_indices(n_dims, n_dims, device=device)
        self.upper = rows * n_dims + columns
        twice = torch.where(rows == columns, 1.0, 2.0)
        self.twice = twice.to(torch.float64)  # number of matrix entries of each number
        position = torch.zeros(n_dims, n_dims, dtype=torch.long, device=device)
        position[rows, columns] = torch.arange(len(twice), device=device)
        self.position = (position + position.T - position.diag().diag()).flatten()

    def pack(self, matrices):
        return matrices.flatten(1).index_select(1, self.upper)

    def unpack(self, vectors):
        full = vectors.index_select(1, self.position)
        return full.unflatten(1, (self.n_dims, self.n_dims))

    def outer(self, vectors):
        rows, columns = (vectors.index_select(1, i) for i in self.indices)
        return rows * columns

    def covariance(self, visible, scaled):
        """Return posterior covariances of z given the visible entries; (n, k, k)."""
        # visible : 1.0 where visible, (n, d). scaled : weights over noise deviations,
        # (d, k).
        precision = self.unpack(visible @ self.outer(scaled))
        precision.diagonal(dim1=1, dim2=2).add_(1)
        root, failed = torch.linalg.cholesky_ex(precision)
        root = torch.where(failed[:, None, None] > 0, torch.nan, root)
        return torch.cholesky_inverse(root)


@functools.lru_cache(maxsize=32)
def packing_of(n_dims, device):
    """Return the `SymmetricMatrices` of this size, made once for each device."""
    return SymmetricMatrices(n_dims, device)


class LinearGaussianParts:
    """The parts of a `Point`: weights (d, k), mean (d,), noise variances (d,)."""

    def __init__(self, point):
        self.W, self.mean = point.coefs[:, :-1], point.coefs[:, -1]
        self.is_shared = point.shape_params.ndim == 0
        self.log_noise = point.shape_params.expand(len(self.W))
        self.noise = self.log_noise.exp()
        self.scaled = self.W / self.noise.sqrt()[:, None]

    def noise_derivative(self, derivatives):
        """Add up derivatives over features if they share the noise variance."""
        return derivatives.sum() if self.is_shared else derivatives


def _posterior(residual, visible, m, symmetric):
    """Return covariances (n, k, k) and means (n, k) of z given the visible entries."""
    # residual : rows less the mean, any number where not visible, (n, d).
    C = symmetric.covariance(visible, m.scaled)
    projected = (residual * visible) @ (m.W / m.noise[:, None])
    return C, (C @ projected[..., None])[..., 0]


def conditional_moments(X, visible, point, symmetric):
    """Return mean and variance of each entry given the visible entries; (n, d) each."""
    # For an entry that is visible they are those of another draw of it.
    m = LinearGaussianParts(point)
    C, z = _posterior(X - m.mean, visible, m, symmetric)
    outer = symmetric.outer(m.scaled) * symmetric.twice
    return z @ m.W.T + m.mean, m.noise * (1 + symmetric.pack(C) @ outer.T)


def likelihood_sums(X, present, point, symmetric, weight=None):
    """Return sums of log-densities of rows; a natural gradient step is a step of EM."""
    # present : 1.0 where present, (n, d), or (1, d) if all rows are complete.
    m = LinearGaussianParts(point)
    weight = X.new_ones(len(X)) if weight is None else weight
    is_complete = len(present) < len(X)
    entry_weight = weight[:, None] if is_complete else present * weight[:, None]
    residual = (X - m.mean) * present
    C, z = _posterior(residual, present, m, symmetric)
    error = (residual - z @ m.W.T) * present
    packed = symmetric.pack(C).expand(len(X), -1)
    covered = symmetric.unpack(entry_weight.T @ packed)
    uncertain = (covered @ m.W[..., None])[..., 0]
    square, weighted_z = error**2, weight[:, None] * z
    distance = square @ (1 / m.noise) + (z**2).sum(1)
    log_scale = present @ (LOG_2PI + m.log_noise) - torch.linalg.slogdet(C)[1]
    value = -0.5 * (log_scale + distance)
    squares = weight @ square + (uncertain * m.W).sum(1)
    noise_gradient = m.noise_derivative(0.5 * (squares / m.noise - entry_weight.sum(0)))
    loading_gradient = error.T @ weighted_z - uncertain
    coef_gradient = torch.cat([loading_gradient, (weight @ error)[:, None]], 1)
    gradient = Point(coef_gradient / m.noise[:, None], noise_gradient)
    information = _information(C, z, entry_weight, m, symmetric)
    second = symmetric.unpack((weight @ packed)[None])[0] + weighted_z.T @ z
    eye = identity(len(second), second)
    scale = 0.5 * (second - weight.sum() * eye)
    rescaling = latent_rescaling(scale, weighted_z.sum(0))
    return Sums.from_rows(value, weight, gradient, information, rescaling)


def location_gradients(X, present, point, symmetric):
    """Return gradients of the log-density of rows in their locations; (n, d)."""
    m = LinearGaussianParts(point)
    residual = (X - m.mean) * present
    _, z = _posterior(residual, present, m, symmetric)
    return (residual - z @ m.W.T) * present / m.noise


def _information(C, z, entry_weight, m, symmetric):
    """Return the sum of E (z, 1)(z, 1)' / noise over the rows with each entry."""
    # entry_weight : (n, d), 0 where missing; of complete rows, (n, 1).
    second = entry_weight.T @ (symmetric.pack(C) + symmetric.outer(z))
    full = _bordered(symmetric.unpack(second), entry_weight.T @ z, entry_weight.sum(0))
    count = (entry_weight.sum(0) / 2).expand(len(m.noise))
    return _curvature(full, count, m)


def _bordered(second, first, count):
    top = torch.cat([second, first[..., None]], 2)
    bottom = torch.cat([first, count[:, None]], 1)
    return torch.cat([top, bottom[:, None]], 1)


def moment_likelihood_sums(product, variance, n_rows, point, symmetric):
    """Return `likelihood_sums` of complete rows from their second moments."""
    m, d = LinearGaussianParts(point), len(variance)
    C = symmetric.covariance(variance.new_ones(1, d), m.scaled)[0]
    V = (C @ m.W.T) / m.noise
    z_x = product(V)
    z_z = z_x @ V.T
    explained = (m.W.T * z_x).sum(0)
    e_x = variance - explained  # divided by the noise, it is x' C^-1 x
    log_scale = d * LOG_2PI + m.log_noise.sum() - torch.linalg.slogdet(C)[1]
    value = -0.5 * n_rows * (log_scale + (e_x / m.noise).sum())
    second = C + z_z
    loading_gradient = (z_x - second @ m.W.T).T / m.noise[:, None]
    squares = variance - 2 * explained + ((m.W @ second) * m.W).sum(1)
    noise_gradient = m.noise_derivative(0.5 * (squares / m.noise - 1))
    loading_gradient = torch.nn.functional.pad(loading_gradient, (0, 1))
    gradient = Point(n_rows * loading_gradient, n_rows * noise_gradient)
    information = _moment_information(second[None], d, m).times(n_rows)
    eye = identity(len(C), C)
    rescaling = latent_rescaling(0.5 * n_rows * (second - eye), torch.zeros_like(C[0]))
    return Sums(value, value**2 / n_rows, gradient, information, n_rows, rescaling)


def _moment_information(second, n_features, m):
    n_masks, n_dims = second.shape[:2]
    first, count = second.new_zeros(1, n_dims), second.new_full((1,), float(n_masks))
    full = _bordered(second.sum(0)[None], first, count)
    return _curvature(full, count.expand(n_features) / 2, m)


def _curvature(second, count, m):
    """Return sums of E (z, 1)(z, 1)' over the noise; one of `second` is that of all."""
    noise_information = m.noise_derivative(count)
    if len(second) == 1:
        return Curvature(second, noise_information, sizes=1 / m.noise)
    return Curvature(second / m.noise[:, None, None], noise_information)
