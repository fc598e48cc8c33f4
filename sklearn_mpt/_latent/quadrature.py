"""Nodes of integrals over the latent variables, and their weights.

A rule places nodes around Gaussian approximations of the posterior of z, in groups.
Each group estimates every integral, and their differences estimate the error.
"""

import functools
import inspect
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm, qmc

from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._matrices import hermite_nodes, inverse_of_lower, log_determinant
from sklearn_mpt._measure.curve import student_factor
from sklearn_mpt._numbers import TINY

MAX_GRID_DIMS = 3  # with more latent variables, nodes are sampled
# Independent scramblings of quasi-random points, whose spread estimates the error: with
# as many less one degrees of freedom.
N_REPLICATES = 8
STUDENT_FACTOR = float(student_factor(N_REPLICATES - 1))
N_BITS = 30  # of points
QMC_PARAMETERS = inspect.signature(qmc.MultivariateNormalQMC).parameters
RNG_PARAMETER = "rng" if "rng" in QMC_PARAMETERS else "seed"  # until scipy 1.14


class Posterior(NamedTuple):
    """A Gaussian for each row."""

    mean: torch.Tensor  # shape: (n, k)
    root: torch.Tensor  # F, shape (n, k, k): F' F is the covariance
    precision_root: torch.Tensor  # L, shape (n, k, k): L L' is its inverse

    def take(self, index):
        return Posterior(*(part[index] for part in self))


def gaussian_around(mean, precision_root):
    return Posterior(mean, inverse_of_lower(precision_root), precision_root)


def widened(posterior, excess=0.4):
    """Return wider Gaussians, from which importance sampling draws."""
    # They are 1 + excess / sqrt(n_dims) times as wide. If the Gaussian is exact, the
    # loss from widening is about the same in any number of dimensions.
    width = 1 + excess / math.sqrt(posterior.mean.shape[1])
    mean, root, precision_root = posterior
    return Posterior(mean, width * root, precision_root / width)


def standard_normal_log_prob(z):
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * LOG_2PI


def gaussian_log_prob(z, posterior):
    """Return the log density of each row's points (n, s, k); (n, s)."""
    u = (z - posterior.mean[:, None]) @ posterior.precision_root
    return log_peak(posterior)[:, None] - 0.5 * (u**2).sum(-1)


def log_peak(posterior):
    """Return the log density at the mean; (n,)."""
    log_det = log_determinant(posterior.precision_root)
    return 0.5 * (log_det - posterior.mean.shape[1] * LOG_2PI)


def moments(z):
    """Return z and its products, in which Gaussian log densities are linear."""
    # z : (..., k). Returns (..., p).
    return torch.cat([z, (z[..., None] * z[..., None, :]).flatten(-2)], -1)


def mean_and_covariance(averages, n_dims):
    """Return means (n, k) and covariances (n, k, k), given averages of `moments`."""
    mean, square = averages.tensor_split([n_dims], 1)
    square = square.unflatten(1, (n_dims, n_dims))
    return mean, square - mean[:, :, None] * mean[:, None]


def natural_parameters(posterior):
    """Return the coefficients of `moments` in the log density, and its constant."""
    # In double precision, as large terms cancel; (n, p), (n,).
    mean, root = posterior.mean.double(), posterior.precision_root.double()
    precision = root @ root.mT
    linear = (precision @ mean[..., None])[..., 0]
    coefs = torch.cat([linear, -0.5 * precision.flatten(1)], 1)
    return coefs, log_peak(posterior).double() - 0.5 * (linear * mean).sum(1)


class Nodes(NamedTuple):
    z: torch.Tensor  # shape: (n, s, k)
    log_weight: torch.Tensor  # shape: (n, s), to integrate over the prior
    log_components: torch.Tensor | None = None  # of a mixture's components, (c, n, s)


class GaussHermite:
    """Product Gauss-Hermite nodes around the posterior [1]_.

    n_per_dim : number of nodes in each dimension, one grid for each number given. The
        last is the finest; its largest difference to the others estimates the error.

    References
    ----------
    .. [1] J. C. Naylor and A. F. M. Smith, "Applications of a method for the efficient
       computation of posterior distributions", Applied Statistics 31, 1982.
    """

    is_shared = is_random = False

    def __init__(self, n_per_dim, n_dims, device):
        self.groups = [
            tuple(torch.tensor(array, device=device) for array in _grid(n, n_dims))
            for n in n_per_dim
        ]
        self.n_nodes = n_per_dim[-1] ** n_dims

    def place(self, group, posteriors, rows):
        """Return the nodes of a group for each row, around its only posterior."""
        u, log_weight = group
        (posterior,) = posteriors
        z = posterior.mean[:, None] + u @ posterior.root
        log_density = log_peak(posterior)[:, None] - 0.5 * (u**2).sum(-1)
        return Nodes(z, log_weight + standard_normal_log_prob(z) - log_density)

    def combine(self, values, logs=None):
        """Return one of the groups' integrals, (n_groups, n, ...), and its error."""
        return values[-1], (values[-1] - values[:-1]).abs().amax(0)

    combine_logs = combine_log_averages = combine


def row_grid(n_dims):
    """Return the number of nodes in each dimension, around a row in training."""
    # With more, fits score the same to .002 nats on six tables.
    return 15 if n_dims == 1 else 5


def _grid(n_per_dim, n_dims):
    u, weight = hermite_nodes(n_per_dim)
    log_weight = np.log(weight)
    axes = np.meshgrid(*[u] * n_dims, indexing="ij")
    weights = np.meshgrid(*[log_weight] * n_dims, indexing="ij")
    return np.stack(axes, -1).reshape(-1, n_dims), np.sum(weights, 0).ravel()


class PosteriorMixture:
    """Quasi-random points of a mixture of approximate posteriors and a wide one.

    Weights are bounded as the prior takes part [1]_. In few dimensions a distribution
    with heavy tails takes its place, because averages of amounts and counts may have
    their mass in the tails of the prior. Each row has another digital shift of the
    points [2]_, so that errors of rows average out.

    counts : points in each group from each approximate posterior, and from the last
        part; powers of 2.

    References
    ----------
    .. [1] T. Hesterberg, "Weighted average importance sampling and defensive mixture
       distributions", Technometrics 37, 1995.
    .. [2] P. L'Ecuyer and C. Lemieux, "Recent advances in randomized quasi-Monte Carlo
       methods", in: Modeling Uncertainty, Springer, 2002.
    """

    is_shared, is_random = False, True

    def __init__(self, counts, n_dims, device, seed, n_replicates=N_REPLICATES):
        self.n_dims, self.seed = n_dims, tuple(seed)
        self.n_nodes, parts = sum(counts), []
        for part, (count, same) in enumerate(itertools.groupby(counts)):
            # blocks of one sequence fill the gaps of each other where parts agree
            n_blocks = len(list(same))
            n_points = count * 2 ** math.ceil(math.log2(n_blocks))
            points = normal_points(n_points, n_dims, [*seed, part], n_replicates)
            digits = (norm.cdf(points) * 2**N_BITS).astype(np.int64)
            parts += np.split(digits, n_points // count, 1)[:n_blocks]
        self.groups = [
            tuple(torch.tensor(points, device=device) for points in group)
            for group in zip(*parts, strict=True)
        ]

    def place(self, group, posteriors, rows, *, n_shift_bits=16):
        """Return the nodes of a group for each row."""
        # pseudo-random shifts of the digits, which depend on observed entries: rounding
        # errors of rows hardly ever change the bits of shifts because they are few
        directions = _directions(2 * rows.X.shape[1], self.n_dims, self.seed)
        observed = rows.observed.to(rows.X.dtype)
        entries = torch.cat([rows.X * observed, observed], 1)
        shift = entries @ directions.to(entries) % 1 * 2**n_shift_bits
        shift = (shift.long() << (N_BITS - n_shift_bits))[:, None]
        points = [
            torch.special.ndtri(((digits ^ shift).double() + 0.5) / 2**N_BITS)
            for digits in group
        ]
        return mixture_nodes(points, posteriors, self.n_dims <= MAX_GRID_DIMS)

    def combine_logs(self, logs):
        """Log integrals of the groups, of shape (n_groups, n): value and error."""
        return pool(logs)

    def combine(self, averages, logs):
        """Posterior averages of the groups, of shape (n_groups, n, d), and error."""
        weight = torch.softmax(logs, 0)[..., None]
        pooled = (weight * averages).sum(0)
        spread = (len(logs) * weight * (averages - pooled)).std(0, correction=1)
        return pooled, STUDENT_FACTOR * spread / math.sqrt(len(logs))

    def combine_log_averages(self, log_averages, logs):
        """Logs of posterior averages, (n_groups, n, d), and error."""
        weight = torch.log_softmax(logs, 0)[..., None]
        pooled = torch.logsumexp(weight + log_averages, 0)
        term = (weight + log_averages - pooled).exp() - weight.exp()
        return pooled, STUDENT_FACTOR * math.sqrt(len(logs)) * term.std(0, correction=1)


def mixture_nodes(normal, posteriors, has_heavy_tails=False):
    """Move standard normal points to the posteriors, the last ones to the prior."""
    # normal : Tensors of shape (1 or n, s_i, k), one more than there are posteriors.
    # has_heavy_tails : whether the last ones go to `heavy_points` in place of the
    # prior.
    *posterior_points, last_points = normal
    moved = [
        posterior.mean[:, None] + points @ posterior.root
        for points, posterior in zip(posterior_points, posteriors, strict=True)
    ]
    if has_heavy_tails:
        last_points = heavy_points(last_points)
    z = torch.cat([*moved, last_points.expand(len(moved[0]), -1, -1)], 1)
    log_prior = standard_normal_log_prob(z)
    log_last = heavy_log_prob(z) if has_heavy_tails else log_prior
    log_components = torch.stack(
        [gaussian_log_prob(z, gaussian) for gaussian in posteriors]
    )
    log_mixture = torch.stack(
        [
            math.log(points.shape[1]) + density
            for points, density in zip(normal, [*log_components, log_last], strict=True)
        ]
    )
    return Nodes(z, log_prior - torch.logsumexp(log_mixture, 0), log_components)


def heavy_points(normal):
    """Move standard normal points (..., k) outwards, to tails as those of Cauchy's.

    The squared radius becomes exp(r^2) - 1. In two dimensions the result has the
    Cauchy distribution. Its density is nowhere less than a third of the prior's in up
    to three dimensions.
    """
    square = (normal**2).sum(-1, keepdim=True).clamp(min=TINY)
    return normal * (torch.expm1(square) / square).sqrt()


def heavy_log_prob(z):
    """Return the log density of `heavy_points`; (...)."""
    square, n_dims = (z**2).sum(-1).clamp(min=TINY), z.shape[-1]
    before = square.log1p()
    shrunk = 0.5 * (n_dims - 2) * (before.log() - square.log())
    return shrunk - 1.5 * before - 0.5 * n_dims * LOG_2PI


class ComponentMoments(NamedTuple):
    """Moments of weighted nodes around each part of a mixture except the wide one."""

    fraction: torch.Tensor  # shape: (c, n)
    mean: torch.Tensor  # shape: (c, n, k), less that of the part
    square: torch.Tensor  # shape: (c, n, k, k), about the mean of the part
    log_total: torch.Tensor  # shape: (n,), logarithms of the sum of weights
    log_squares: torch.Tensor  # shape: (n,), and of the sum of their squares

    @classmethod
    def from_nodes(cls, nodes, log_weight, posteriors):
        """Return the moments of nodes with logarithms of weights (n, s)."""
        weight = log_weight.softmax(1)
        component_weights = weight * nodes.log_components[:-1].softmax(0)
        means, squares = [], []
        for r, posterior in zip(component_weights, posteriors[:-1], strict=True):
            deviation = nodes.z - posterior.mean[:, None]
            means.append((r[:, None] @ deviation)[:, 0])
            squares.append((r[..., None] * deviation).mT @ deviation)
        log_total = torch.logsumexp(log_weight, 1)
        log_squares = torch.logsumexp(2 * log_weight, 1)
        parts = component_weights.sum(2), torch.stack(means), torch.stack(squares)
        return cls(*parts, log_total, log_squares)


def adapt(posteriors, moments, min_fraction=1e-3):
    """Return posteriors that are nearer to the true one, by the weights of nodes.

    It is a step of the EM algorithm [1]_. Few effective nodes change a part little.
    Parts whose fraction of the weight is below `min_fraction` become copies of the
    largest one. The last part becomes a Gaussian of the moments of all others, but
    wider.

    moments : ComponentMoments of groups of nodes.

    References
    ----------
    .. [1] O. Cappé, R. Douc, A. Guillin, J.-M. Marin and C. P. Robert, "Adaptive
       importance sampling in general mixture classes", Statistics and Computing 18,
       2008.
    """
    logs = torch.stack([group.log_total for group in moments])
    group_weights = logs.softmax(0)
    log_squares = torch.logsumexp(torch.stack([g.log_squares for g in moments]), 0)
    n_effective = (2 * torch.logsumexp(logs, 0) - log_squares).exp()
    fraction, mean, square = (
        sum(
            weight.reshape(1, -1, *[1] * (part.ndim - 2)) * part
            for weight, part in zip(group_weights, parts, strict=True)
        )
        for parts in list(zip(*moments, strict=True))[:3]
    )
    # The current mean has the weight of one node, the current covariance of k + 2.
    count = (n_effective * fraction)[..., None]
    known = fraction.clamp(min=TINY)[..., None]
    mean, square = mean / known, square / known[..., None]
    step, (*parts, _) = count / (count + 1) * mean, posteriors
    deviation = (mean - step)[..., None]
    spread = square - mean[..., None] * mean[..., None, :] + deviation @ deviation.mT
    root = torch.stack([part.root for part in parts])
    count, n_before = count[..., None], mean.shape[-1] + 2
    covariance = (count * spread + n_before * (root.mT @ root)) / (count + n_before)
    mean = torch.stack([part.mean for part in parts]) + step
    largest = fraction.argmax(0)
    rows = torch.arange(fraction.shape[1], device=fraction.device)
    empty = (fraction < min_fraction)[..., None]
    mean = torch.where(empty, mean[largest, rows], mean)
    covariance = torch.where(empty[..., None], covariance[largest, rows], covariance)
    parts = [_gaussian(*part) for part in zip(mean, covariance, strict=True)]
    fraction = torch.where(empty, 0.0, fraction[..., None])
    fraction = fraction / fraction.sum(0)
    centre = (fraction * mean).sum(0)
    deviation = (mean - centre)[..., None]
    total_covariance = (
        fraction[..., None] * (covariance + deviation @ deviation.mT)
    ).sum(0)
    return [
        *parts,
        _gaussian(centre, wide_component_scale(mean.shape[-1]) ** 2 * total_covariance),
    ]


def _gaussian(mean, covariance):
    precision = torch.linalg.inv(covariance)
    root = torch.linalg.cholesky(0.5 * (precision + precision.mT))
    return gaussian_around(mean, root)


def wide_component_scale(n_dims):
    """Return how much wider the last part is: the less, the more dimensions."""
    return 1 + 1.4 / math.sqrt(n_dims)


def normal_points(n_points, n_dims, seed, n_replicates=N_REPLICATES):
    """Scrambled Sobol points, 2^i, of the standard normal: (n_replicates, 2^i, k)."""
    engines = (
        qmc.MultivariateNormalQMC(
            np.zeros(n_dims), **{RNG_PARAMETER: np.random.default_rng(child)}
        )
        for child in np.random.SeedSequence(seed).spawn(n_replicates)
    )
    return np.stack([engine.random(n_points) for engine in engines])


def normal_nodes(n_points, n_dims, seed, like):
    """Return points of the standard normal, (n_points, k), and equal log weights."""
    z = torch.from_numpy(normal_points(n_points, n_dims, seed, 1)[0]).to(like)
    return z, torch.full_like(z[:, 0], -math.log(n_points))


@functools.lru_cache(maxsize=16)
def _directions(n_numbers, n_dims, seed, deviation=30.0):
    """Draw the coefficients of shifts as functions of the numbers of a row; (p, k)."""
    # A shift is the fractional part of their product with the numbers. deviation : that
    # of the coefficients. If it is large, rows that differ little have independent
    # shifts.
    rng = np.random.default_rng([*seed, n_numbers, n_dims])
    return torch.from_numpy(deviation * rng.normal(size=(n_numbers, n_dims)))


def log_mean_exp(log_values, axis):
    """Return the log of the mean of exponentials of a tensor."""
    return torch.logsumexp(log_values, axis) - math.log(log_values.shape[axis])


def logsumexp_and_softmax(log_values):
    """Return the log of the sum of exponentials along axis 1, and the softmax."""
    # Of finite values. Weights that no sum shows are 0: products of matrices with
    # numbers near the smallest ones of the dtype take up to ten times as long.
    weight = log_values.softmax(1)  # fast where most vanish, as exp is not
    least = torch.finfo(weight.dtype).eps ** 2
    weight = torch.nn.functional.threshold_(weight, least, 0.0)
    return log_values.amax(1) - weight.amax(1).log(), weight


class LogMeanExp(torch.autograd.Function):
    """Log of the mean of exponentials of each row; their softmax, without gradients."""

    @staticmethod
    def forward(ctx, log_values):
        total, weight = logsumexp_and_softmax(log_values)
        ctx.mark_non_differentiable(weight)
        ctx.save_for_backward(weight)
        return total - math.log(log_values.shape[1]), weight

    @staticmethod
    def backward(ctx, gradient, _):
        (weight,) = ctx.saved_tensors
        return gradient[:, None] * weight


def pool(log_means):
    """Return the log of the mean of replicates, and its standard error."""
    # The error is so large that intervals of 1.96 of it cover 95%. log_means : shape
    # (n_replicates, ...)
    pooled = log_mean_exp(log_means, 0)
    spread = (log_means - pooled).exp().std(0, correction=1)
    spread_of_logs = log_means.std(0, correction=1)  # is reliable where it is large
    return pooled, STUDENT_FACTOR * spread.maximum(spread_of_logs) / math.sqrt(
        len(log_means)
    )


@functools.lru_cache(maxsize=32)
def grids(sizes, n_dims, device):
    return GaussHermite(sizes, n_dims, device)


@functools.lru_cache(maxsize=16)
def mixtures(counts, n_dims, device, seed, n_replicates=N_REPLICATES):
    return PosteriorMixture(counts, n_dims, device, seed, n_replicates)
