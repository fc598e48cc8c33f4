r"""What a deep model is trained on: masked scores, by points that rows share.

Points of all rows of a minibatch, drawn from their approximate posteriors, are shared,
and so are points of the prior: weighted by the mixture that they come from [1]_, each
serves every row. One product of matrices gives the log-probabilities of any subset of
any row at all of them,

.. math:: L(R) = \log \frac{1}{M} \sum_s
          \frac{p(x_R \mid z_s) \, p(z_s)}{\sum_n w_n q_n(z_s) + w_0 p(z_s)},

and :math:`\log p(x_B \mid x_R)` is estimated by L(R and B) - L(R). At fixed points that
is exact for a finite mixture, so the masked scores of all sizes add up to L(all) less L
of no features, which does not depend on the decoder. Where points come from posteriors
given what a mask leaves visible, they depend on the mask: the mean over masks then
differs a little from the sum at points of the whole rows.

References
----------
.. [1] E. Veach and L. J. Guibas, "Optimally combining sampling techniques for Monte
   Carlo rendering", SIGGRAPH 1995.
.. [2] J. Bornschein and Y. Bengio, "Reweighted wake-sleep", ICLR 2015.
"""

import math
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from sklearn_mpt._deep.early_stopping import Objective, least_shrunk, step_to_least
from sklearn_mpt._deep.recipe import MANY_FEATURES
from sklearn_mpt._latent.natural_gradient import Weights
from sklearn_mpt._latent.quadrature import (
    LogMeanExp,
    moments,
    natural_parameters,
    standard_normal_log_prob,
    total_and_shares,
)
from sklearn_mpt._likelihoods.base import LOG_NOISE_STEP
from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._measure.masks import draw_masks, training_sets, training_sizes

PRIOR_POINTS, PRIOR_POINTS_IF_MANY = 256, 64  # in one and two dimensions
MANY_POINTS = 8  # of each row: half of them serve sets that are not scored
FARTHEST = 30.0  # deviations of the prior: nothing is beyond
SHORTEST_EPOCH = 16  # steps
DRAWN_MASKS = 128  # in a step, if n_masks is "auto"
BLOCK = 2**22  # numbers in a tensor over rows, points and features


def shared_bounds(module, X, observed, noise, prior_points, scored=None):
    """Lower bounds on log p(x_R), and what trains the posteriors that they stand on.

    Parameters
    ----------
    X : Tensor of shape (n, d)
    observed : bool Tensor of shape (n_sets, n, d)
        Sets R of features of each row.
    noise : Tensor of shape (n, s, k)
        Standard normal.
    prior_points : Tensor of shape (m, k)
        Points of the prior.
    scored : sequence of bool, of length n_sets
        Of which sets the bounds have gradients; None is all. Others take half of the
        points, if there are MANY_POINTS of each row.

    Returns
    -------
    bounds : Tensor of shape (n_sets, n)
    posterior_fit : Tensor of shape (n_sets, n)
        Expected log density of the approximate posterior under the points' weights,
        which is largest at the true posterior [2]_.
    """
    rows, densities, pool = _share_points(module, X, observed, noise, prior_points)
    locations, trains = module.decoder.locations(pool.z), torch.is_grad_enabled()
    scored = [True] * len(rows) if scored is None else scored
    found = []
    for *of_set, is_scored in zip(rows, observed, scored, strict=True):
        step = 2 if noise.shape[1] >= MANY_POINTS and not is_scored else 1
        with torch.set_grad_enabled(trains and is_scored):
            points = pool.every(step)
            bound, weight = points.bounds(module, locations.every(step), of_set)
            found.append((bound, weight.double() @ points.moments))
    bounds, expected = map(torch.stack, zip(*found, strict=True))
    return bounds, _posterior_fit(densities, expected)


def shared_scores(module, X, mask, noise, prior_points):
    r"""Estimate log p(x_j | x_R) of every hidden feature, given the visible ones.

    The points and their weights are those of `shared_bounds`, for the visible features
    and for all that are present. The estimate is :math:`\log \sum_s r_s p(x_j \mid
    z_s)` with the normalised weights r of the visible features, which is the difference
    of bounds L(R and j) - L(R).

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    mask : bool Tensor of shape (n, d)
        True where hidden.
    noise, prior_points : Tensor
        As `shared_bounds` takes them.

    Returns
    -------
    log_prob : Tensor of shape (n, d)
        0 where a feature is visible or missing.
    posterior_fit : Tensor of shape (2, n)
        As `shared_bounds` returns it, of the visible features and of all present ones.
    """
    present = ~torch.isnan(X)
    observed = torch.stack([present & ~mask, present])
    rows, densities, pool = _share_points(module, X, observed, noise, prior_points)
    locations, kind = module.decoder.locations(pool.z), module.likelihood
    log_likelihood = kind.shared_log_prob(rows[0], observed[0], locations)
    share = (pool.log_weight + log_likelihood).log_softmax(1)
    with torch.no_grad():
        _, of_all = pool.bounds(module, locations, (rows[1], observed[1]))
        weights = torch.stack([share.exp(), of_all])
    log_prob = _expected_log_prob(kind, rows[1], share, locations.product)
    log_prob = torch.where(mask & present, log_prob, 0.0)
    return log_prob, _posterior_fit(densities, weights.double() @ pool.moments)


def _expected_log_prob(likelihood, X, share, location):
    """Log of the mean probability of each entry over shared locations; (n, d).

    share : logarithms of the weights of the locations, (n, m). location : (m, l).
    """
    if likelihood.values is not None:
        prob = likelihood.expected_prob(X, share.exp(), location)
        return prob.clamp(min=torch.finfo(prob.dtype).tiny).log()

    def of_rows(X, share):
        entries = likelihood.entry_log_prob(X[:, None], location)
        return torch.logsumexp(share[..., None] + entries, 1)

    size = max(1, BLOCK // (len(location) * location.shape[1]))
    if len(X) <= size:
        return of_rows(X, share)
    parts = zip(X.split(size), share.split(size), strict=True)
    # what the gradient needs of a block is computed again, not kept
    return torch.cat([checkpoint(of_rows, *p, use_reentrant=False) for p in parts])


def _share_points(module, X, observed, noise, prior_points):
    """Draw points from the posteriors of sets of features, for all rows to share.

    Returns the rows of each set, 0.0 where not in it, the natural parameters of the
    posteriors, of shapes (n_sets, n, p) and (n_sets, n), and the points.
    """
    shape, seen = observed.shape[:2], observed.to(X.dtype)
    rows = torch.nan_to_num(X) * seen
    posterior = module.posterior(rows.flatten(0, 1), seen.flatten(0, 1))
    densities = natural_parameters(posterior)
    pool = Pool.of(posterior, densities, shape, noise, prior_points)
    return rows, [part.unflatten(0, shape) for part in densities], pool


def _posterior_fit(densities, expected):
    """Mean log densities of posteriors, given the means of `moments`, (..., p)."""
    coefs, constant = densities
    return constant + (coefs * expected).sum(-1)


class Pool(NamedTuple):
    """Points that all rows share, weighted by the mixture that they come from."""

    z: torch.Tensor  # shape: (m, k)
    moments: torch.Tensor  # shape: (m, p)
    log_weight: torch.Tensor  # shape: (m,), to average over the prior

    @classmethod
    @torch.no_grad()
    def of(cls, posterior, densities, shape, noise, prior_points):
        """Draw points from posteriors of rows, of each set of features alike.

        If there are more sets than points for each row, the first ones are used.

        posterior : of shape[0] * shape[1] sets and rows; densities : its parameters, as
        `natural_parameters` has them. noise : (n, s, k). prior_points : (m, k).
        """
        n_sets = min(shape[0], noise.shape[1])
        n_used = n_sets * shape[1]
        parts = noise[:, : noise.shape[1] // n_sets * n_sets].unflatten(1, (n_sets, -1))
        parts = parts.transpose(0, 1).flatten(0, 1)
        z = posterior.mean[:n_used, None] + parts @ posterior.root[:n_used]
        # an untrained posterior may be of any width
        drawn = z.flatten(0, 1).nan_to_num(0.0).clamp(-FARTHEST, FARTHEST)
        z = torch.cat([drawn, prior_points])
        z_moments = moments(z.double())
        coefs, constant = (parameters[:n_used] for parameters in densities)
        density, _ = total_and_shares(torch.addmm(constant, z_moments, coefs.T))
        log_prior = standard_normal_log_prob(z)
        share = len(drawn) / len(z)
        log_mixture = (density - math.log(n_used)).to(z.dtype)
        if share < 1:
            log_mixture = torch.logaddexp(
                log_mixture + math.log(share), log_prior + math.log1p(-share)
            )
        return cls(z, z_moments, log_prior - log_mixture)

    def every(self, step):
        """One in so many of the points."""
        return self if step == 1 else Pool(*(part[::step] for part in self))

    def bounds(self, module, locations, rows):
        """Bounds of rows, (n,), and the weights of the points, (n, m).

        locations : of the features, at the points. rows : X and what is observed.
        """
        log_prob = module.likelihood.shared_log_prob(*rows, locations)
        return LogMeanExp.apply(self.log_weight + log_prob)


class Points(NamedTuple):
    """How many points there are, and in how many dimensions."""

    per_row: int
    of_prior: int
    n_dims: int

    def draw(self, n_rows, device, rng):
        """Standard normal: shapes (n_rows, per_row, n_dims), (of_prior, n_dims)."""
        shapes = (n_rows, self.per_row, self.n_dims), (self.of_prior, self.n_dims)
        return tuple(
            torch.tensor(rng.standard_normal(shape, dtype=np.float32), device=device)
            for shape in shapes
        )


def n_prior_points(n_dims, n_features):
    """Number of points of the prior: they serve only where there are few dimensions."""
    number = PRIOR_POINTS_IF_MANY if n_features >= MANY_FEATURES else PRIOR_POINTS
    return number // 2 ** max(0, n_dims - 2)


class SampledRows(Objective):
    """Minibatches of rows with standard normal noise for their points.

    In an epoch, rows are passed over until there are at least SHORTEST_EPOCH steps.

    held_out : HeldOutRows or None
        Rows whose losses `validate` returns.
    weight : ndarray of shape (n,), or None
        What each row counts; None is 1. Losses are multiplied by it over its mean.
    """

    def __init__(self, X, batch_size, points, held_out=None, weight=None):
        self.X, self.weights = X, Weights.of(weight, X)
        self.batch_size = batch_size
        self.points = points
        self.held_out = held_out

    def as_part(self):
        """Take the rows as a part of a stream; return self.

        Fewer rows than a minibatch has are worth so much less than a full step: they
        would otherwise outweigh all that the model has learned.
        """
        self.share = min(1.0, len(self.X) / self.batch_size)
        return self

    def validate(self, module):
        return None if self.held_out is None else self.held_out.losses(module)

    @property
    def tunes(self):
        return self.held_out is not None and self.held_out.tunes

    def tune(self, module):
        return self.held_out.set_noise(module, step_to_least)

    def finish(self, module):
        if self.held_out is not None:
            self.held_out.set_noise(module)

    def join(self):
        others, self.held_out = self.held_out, None
        parts = self.weights, others.weights  # each of a mean of its own
        weight = torch.cat([each * (total / len(each)) for each, total in parts])
        self.X = torch.cat([self.X, others.X])
        self.weights = Weights.of(weight.cpu().numpy(), self.X)

    def batches(self, rng):
        n_batches = math.ceil(len(self.X) / self.batch_size)
        for _ in range(max(1, round(SHORTEST_EPOCH / n_batches))):
            for rows in np.array_split(rng.permutation(len(self.X)), n_batches):
                points = self.points.draw(len(rows), self.X.device, rng)
                yield self.X[rows], self.weights.each[rows], *points


class MaskedRows(SampledRows):
    """Minibatches of rows that are to be trained on by masks.

    masks : tuple
        Mask rate, and number of masks in a step. Rows get them in turn.
    """

    def __init__(self, X, batch_size, points, held_out, masks, weight=None):
        super().__init__(X, batch_size, points, held_out, weight)
        self.masks = masks

    def draw(self, X, rng):
        """Draw a mask for each of some rows; bool Tensor of shape (n, d)."""
        mask_rate, n_masks = self.masks
        n_masks = min(n_masks, len(X))
        sizes = training_sizes(mask_rate, n_masks, X.shape[1], rng)
        masks = draw_masks(sizes, X.shape[1], rng)[np.arange(len(X)) % n_masks]
        return torch.from_numpy(masks).to(X.device)


class DrawnMasks(MaskedRows):
    """Minus D times the masked score: all features that a drawn mask hides."""

    def batches(self, rng):
        """Minibatches whose rows come again where more masks are to be drawn."""
        for X, counts, *_ in super().batches(rng):
            rows = np.arange(max(len(X), self.masks[1])) % len(X)
            X, counts = X[rows], counts[rows]
            points = self.points.draw(len(X), X.device, rng)
            yield X, counts, self.draw(X, rng), points

    def losses(self, module, batch):
        X, counts, mask, points = batch
        log_prob, posterior_fit = shared_scores(module, X, mask, *points)
        posterior_fit = posterior_fit.sum(0)
        # the value is that of the masked scores alone
        gain = X.shape[1] * masked_score(log_prob, mask)
        return counts * (posterior_fit.detach() - posterior_fit - gain)


class MaskedGains(MaskedRows):
    """Minus D times the masked score, by gains of shared bounds.

    Those of all mask sizes at once, if the rate is uniform: see `training_sets`.
    """

    def batches(self, rng):
        for X, counts, *points in super().batches(rng):
            sets, weights = training_sets(*self.masks, X.shape[1], rng)
            sets = torch.from_numpy(sets[:, np.arange(len(X)) % sets.shape[1]])
            yield X, counts, sets.to(X.device), weights, points

    def losses(self, module, batch):
        X, counts, sets, weights, points = batch
        observed = sets & ~torch.isnan(X)
        scored = [weight != 0 for weight in weights]
        bounds, posterior_fit = shared_bounds(module, X, observed, *points, scored)
        gain = sum(w * bound for w, bound in zip(weights, bounds, strict=True) if w)
        posterior_fit = posterior_fit.sum(0)
        # the value is that of the masked scores alone
        return counts * (posterior_fit.detach() - posterior_fit - gain)


class HeldOutRows:
    """Minus the log marginal likelihood of held-out rows, always at the same points.

    tunes : bool
        Whether noise is theirs after every epoch, and not trained.
    """

    def __init__(self, X, batch_size, points, seed, weight=None, tunes=False):
        self.X, self.weights, self.tunes = X, Weights.of(weight, X), tunes
        rng = np.random.default_rng(seed)
        self.rows = [(part.nan_to_num(), ~part.isnan()) for part in X.split(batch_size)]
        self.points = [points.draw(len(X), X.device, rng) for X, _ in self.rows]

    def losses(self, module):
        return self._losses_at(self._pools(module), module)

    @torch.no_grad()
    def _pools(self, module):
        """Pool and locations of each batch; the noise variances do not matter."""
        pools = []
        for rows, points in zip(self.rows, self.points, strict=True):
            posterior = module.posterior(*rows)
            densities = natural_parameters(posterior)
            pool = Pool.of(posterior, densities, (1, len(rows[0])), *points)
            pools.append((pool, module.decoder.locations(pool.z)))
        return pools

    @torch.no_grad()
    def _losses_at(self, pools, module):
        bounds = [  # of copies, which take their products with them
            pool.bounds(module, copy(locations), rows)[0]
            for (pool, locations), rows in zip(pools, self.rows, strict=True)
        ]
        return -self.weights.each * torch.cat(bounds)

    @torch.no_grad()
    def set_noise(self, module, least=least_shrunk):
        """Multiply noise variances by what suits these rows best; return the losses.

        Rows trained on suit the decoder better than others do, and have less noise.

        least : callable
            Finds the logarithm of the factor, given the losses as a function of it.
        """
        noises, pools = module.likelihood.noises(), self._pools(module)
        start = [noise.clone() for noise in noises]

        def multiply(log_factor):
            for noise, log_noise in zip(noises, start, strict=True):
                noise.copy_(log_noise + log_factor / LOG_NOISE_STEP)

        def losses(log_factor):
            multiply(log_factor)
            return self._losses_at(pools, module).double().cpu().numpy()

        chosen = 0.0
        try:
            if noises:
                chosen = least(losses)
        finally:  # if interrupted, too
            multiply(chosen)
        return self._losses_at(pools, module)
