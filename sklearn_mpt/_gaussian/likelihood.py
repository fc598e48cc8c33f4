"""The likelihood of linear Gaussian models, and fits to it."""

import functools
import math
import operator

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from sklearn_mpt._gaussian.density import LinearGaussian
from sklearn_mpt._gaussian.moments import moments_of, principal_factors
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._matrices import explained_fractions, identity, log_determinant
from sklearn_mpt._numbers import CHUNK_ENTRIES, KEPT_ENTRIES, TINY
from sklearn_mpt._optim.natural import (
    Curvature,
    Objective,
    Point,
    Sums,
    axes_of,
    latent_rescaling,
)
from sklearn_mpt._optim.steps import Training, ascent, run
from sklearn_mpt._optim.weights import SampleWeights, relative_weights

# Symmetric (k, k) matrices of rows are packed into k (k + 1) / 2 numbers.


def likelihood_sums(X, present, point, weight=None):
    """Return sums of log-densities of rows; a natural gradient step is a step of EM."""
    # X : any number where not present. present : 1.0 where present, (n, d), or (1, d)
    # if all rows are complete.
    weight = X.new_ones(len(X)) if weight is None else weight
    is_complete, is_shared = len(present) < len(X), point.shape_params.ndim == 0
    entry_weight = weight[:, None] if is_complete else present * weight[:, None]
    density = GaussianRows.density(*point)
    scale, V, k = density.scale, density.scaled.T, len(density.scaled)
    root = density.posterior_root(present)
    z = density.posterior_mean(X, present, root)
    C, error = root.mT @ root, density.errors(X, z) * present
    log_scale = present @ (LOG_2PI + 2 * scale.log()) - log_determinant(root)
    value = -0.5 * (log_scale + (error**2).sum(1) + (z**2).sum(1))
    covered = entry_weight.T @ C.flatten(1).expand(len(X), -1)
    uncertain = (covered.unflatten(1, (k, k)) @ V[..., None])[..., 0]
    squares = weight @ error**2 + (uncertain * V).sum(1)
    n_present = entry_weight.sum(0).expand(len(V))
    noise_gradient, count = 0.5 * (squares - n_present), 0.5 * n_present
    if is_shared:
        # EM's count, which takes z as known, is much too large if components explain
        # nearly all of a feature: this is sigma^4 tr(S^-2) / 2, with the covariance S
        # of the present entries.
        trace = present.sum(1) - k + (C**2).sum((1, 2))
        noise_gradient, count = noise_gradient.sum(), 0.5 * (weight * trace).sum()
    z_1 = torch.nn.functional.pad(z, (0, 1), value=1.0)
    coef_gradient = error.T @ (weight[:, None] * z_1)
    coef_gradient[:, :k] -= uncertain
    gradient = Point(coef_gradient / scale[:, None], noise_gradient)
    second = z_1[:, :, None] * z_1[:, None]  # with C, E (z, 1)(z, 1)'
    second[:, :k, :k] += C
    second = second.flatten(1)
    of_entries = (entry_weight.T @ second).unflatten(1, (k + 1, k + 1))
    sizes = scale**-2
    if is_complete:
        information = Curvature(of_entries, count, sizes=sizes)
    else:
        information = Curvature(sizes[:, None, None] * of_entries, count)
    total = (weight @ second).reshape(k + 1, k + 1)
    rescaling = latent_rescaling(
        0.5 * (total[:k, :k] - weight.sum() * identity(k, total)), total[:k, k]
    )
    return Sums.from_rows(value, weight, gradient, information, rescaling)


# A component weaker than the noise of the first steps shrinks, then grows so slowly
# that training looks converged. With s_i the gradient of row i in the locations,
# averaged over the posterior, a new component along v changes the log-likelihood by v'
# M v / 2, M = mean of s_i s_i' - E_model[s s'], to second order. In the units h of the
# roots of the information (t = s / h, U = h W) the second term is inv(I + U U') for
# complete rows, and close to it for others. An eigenvalue b of M is a component of
# squared length b, which gains (b - log(1 + b)) / 2 nats per row; removing one loses as
# much. Exact for Gaussian noise and complete rows (Tipping and Bishop, Journal of the
# Royal Statistical Society B 61, 1999, section 3 and appendix A).


def with_missing_components(point, gradients, information, min_gain, fraction=1.0):
    """Replace weak components by directions that explain more; None if none are."""
    # gradients : rows whose products add up to the mean of s s', (n, d). information :
    # of locations, per row, (d,). min_gain : nats per row. fraction : least gain of the
    # new component, as a fraction of the loss by removing the old one.
    n_dims = point.coefs.shape[1] - 1
    size = information.sqrt()
    unit = torch.where(size > 0, 1 / size.clamp(min=TINY), 0.0)
    axes, lengths, rotation = torch.linalg.svd(
        size[:, None] * point.coefs[:, :n_dims], full_matrices=False
    )
    # M = t' t + Q diag(f) Q' - I, with the axes Q and explained fractions f
    explained = explained_fractions(lengths).sqrt()[:, None] * axes.T
    rows = torch.cat([gradients * unit, explained]).cpu().numpy()
    _, values, directions = randomized_svd(rows, len(lengths), random_state=0)
    strengths = unit.new_tensor(values**2 - 1)
    gains, costs = gain_of(strengths), gain_of(lengths**2).flip(0)
    is_worth_it = gains - fraction * costs > min_gain
    n_new = int(is_worth_it.to(torch.int64).cumprod(0).sum())
    if n_new == 0:
        return None
    loadings = axes * lengths
    new = strengths[:n_new].sqrt() * unit.new_tensor(directions[:n_new].T)
    loadings[:, loadings.shape[1] - n_new :] = new.flip(1)
    weights = (unit[:, None] * loadings) @ rotation
    return point._replace(coefs=torch.cat([weights, point.coefs[:, n_dims:]], 1))


def gain_of(strengths):
    """Return the largest gain of components of these squared lengths, nats per row."""
    strengths = strengths.clamp(min=0)
    return 0.5 * (strengths - strengths.log1p())


class GaussianRows(Objective):
    """Log marginal likelihood of a linear Gaussian model of rows, NaN where missing."""

    # X : (n, d), in single or double precision. max_batch : rows in a step, if
    # `batch_size` is "auto". noise_rows : from which the information of the noise is
    # estimated. joins_noises : whether the information of up to `max_joint_noises`
    # noise variances is inverted as a matrix, which enlarges the noise of gradients of
    # a part of the rows. trial : least gain of a direction that is tried, as a fraction
    # of the loss by removing the component, and number of epochs.

    max_batch = 2**17
    noise_rows = 1000
    max_joint_noises = 500
    trial = 0.25, 16

    def __init__(
        self, X, n_dims, batch_size, floor, weight=None, units=None, is_all=True
    ):
        self.log_scale = 0.0 if units is None else units.mean_log_scale(X, weight)
        self.floor = floor
        self.X, self.units = X, units
        self.weights = SampleWeights.from_array(weight, X)
        self.n_rows, n_features = X.shape
        size = min(len(X), self.max_batch) if batch_size == "auto" else batch_size
        self.n_batches = math.ceil(len(X) / size)
        self.n_block = max(64, CHUNK_ENTRIES // (8 * n_features + 4 * int(n_dims) ** 2))
        self.is_noisy = self.n_batches > 1
        self.joins_noises = is_all and not self.is_noisy
        self.has_gaps = bool(torch.isnan(X.min()))

    @classmethod
    def of_moments(cls, moments, n_dims, floor, log_scale=0.0):
        """Return the likelihood of complete rows, by few rows of the same moments."""
        X = moments.rows()
        objective = cls(X, n_dims, len(X), floor)
        objective.moments, objective.log_scale = moments, log_scale
        return objective

    @staticmethod
    def density(coefs, log_noise):
        """Return the density of a point."""
        return LinearGaussian(coefs[:, :-1].T, coefs[:, -1], log_noise.exp())

    def rows(self, index):
        """Return some rows, standardised, and their weights."""
        X, weight = self.X[index].double(), self.weights.values[index]
        return X if self.units is None else self.units.standardise(X), weight

    def batches(self, rng):
        order = np.arange(self.n_rows)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order).to(self.X.device)
        return torch.tensor_split(order, self.n_batches)

    def sums(self, point, batch):
        # Orthogonal axes make precisions nearly diagonal. Otherwise rounding errors of
        # strong components would affect weak ones.
        rotation = axes_of(point)
        rotated = point._replace(coefs=point.coefs @ rotation)
        parts = []
        for index in batch.split(self.n_block):
            X, weight = self.rows(index)
            present = (~torch.isnan(X)).to(X.dtype)
            if present.all():
                present = present[:1]  # rows have one posterior covariance
            parts.append(likelihood_sums(X, present, rotated, weight))
        sums = functools.reduce(operator.add, parts)
        is_shared, n_features = point.shape_params.ndim == 0, len(point.coefs)
        if not is_shared and self.joins_noises and n_features <= self.max_joint_noises:
            # the entrywise square of Psi^(1/2) S^-1 Psi^(1/2), with the covariance S,
            # times 1/2 and the fraction of rows that have both features
            V = self.density(*rotated).scaled.T
            axes, lengths, _ = torch.linalg.svd(V, full_matrices=False)
            product = (axes * explained_fractions(lengths)) @ axes.T
            precision = identity(n_features, axes) - product
            of_noise = 0.5 * sums.n_rows * self._present_pairs * precision**2
            information = sums.information._replace(shape_params=of_noise)
            sums = sums._replace(information=information)
        return sums.rotated(rotation.T)

    @functools.cached_property
    def _present_pairs(self):
        """Fractions of rows in which two features are both present; (d, d)."""
        rows = self._spaced_rows(min(len(self.X), self.noise_rows))
        present, weight = (~torch.isnan(self.X[rows])).double(), self.weights.values
        fraction = weight[rows] / weight[rows].sum()
        return present.T @ (fraction[:, None] * present)

    def _spaced_rows(self, n_rows):
        """Return the indices of evenly spaced rows."""
        rows = np.linspace(0, len(self.X) - 1, n_rows).astype(np.int64)
        return torch.from_numpy(rows).to(self.X.device)

    def escapes(self, point, min_gain):
        """Yield points with directions that explain more than weak components."""
        # With gaps, gains are approximate, and two directions that explain about as
        # much can each be part of a local maximum: one that may explain less is tried
        # for some epochs.
        gradients = self.location_gradients(point)
        trials = ((1.0, 0), self.trial) if self.has_gaps else ((1.0, 0),)
        for fraction, n_epochs in trials:
            candidate = with_missing_components(point, *gradients, min_gain, fraction)
            if candidate is not None:
                yield candidate, n_epochs

    def location_gradients(self, point):
        """Return rows whose products add up to the mean of s s', and information."""
        # s : posterior means of the gradient of a row in its locations. The information
        # is that of the locations.
        n_rows = max(1, min(len(self.X), KEPT_ENTRIES // self.X.shape[1]))
        X, weight = self.rows(self._spaced_rows(n_rows))
        present = (~torch.isnan(X)).to(X.dtype)
        rotated = point._replace(coefs=point.coefs @ axes_of(point))
        density = self.density(*rotated)
        z = density.posterior_mean(X, present, density.posterior_root(present))
        error, scale = density.errors(X, z) * present, density.scale
        fraction = weight[:, None] / weight.sum()
        information = (fraction * present).sum(0) / scale**2
        return fraction.sqrt() * error / scale, information


# Rubin and Thayer, "EM algorithms for ML factor analysis", Psychometrika 47, 1982.


def em_step(covariances, loadings, noise):
    """Return loadings and noise variances after a step of EM for K covariances."""
    # covariances : (K, g, g). loadings : (K, g, q). noise : (K, g).
    eye = identity(loadings.shape[2], noise)
    scaled = loadings / noise[..., None]
    inner = eye + loadings.mT @ scaled
    beta = torch.linalg.solve(inner, scaled.mT)  # E[z | x] = beta x; (K, q, g)
    cross = covariances @ beta.mT
    second = eye - beta @ loadings + beta @ cross
    loadings = torch.linalg.solve(second, cross.mT).mT
    variance = (covariances - loadings @ cross.mT).diagonal(dim1=1, dim2=2)
    return loadings, variance.clamp(min=0)


def fit_factors(X, weight, n_factors, *, noise_floor=1e-3, tol=1e-3, max_iter=60):
    """Fit factor analysis to standardised rows with gaps, by corrected steps of EM."""
    # X : (n, d), NaN where missing; present entries have mean 0 and variance 1. The
    # information of each noise variance is that of complete data: the joint information
    # of rows with gaps is nearly 0 near the floor, where steps by it are far too long.
    rows = torch.from_numpy(X)
    weight = relative_weights(weight, len(X))
    mean = rows.new_zeros(rows.shape[1])
    moments = moments_of(rows, torch.from_numpy(weight), mean)
    components, noise = principal_factors(moments, n_factors, noise_floor)
    coefs = torch.from_numpy(np.column_stack([components.T, mean]))
    start = Point(coefs, torch.from_numpy(np.log(noise)))
    floor = rows.new_tensor(math.log(noise_floor))
    objective = GaussianRows(rows, n_factors, len(rows), floor, weight)
    objective.joins_noises = False
    training = Training(max_iter, start)
    return run(training, ascent(training, objective, tol=tol, escapes=False))
