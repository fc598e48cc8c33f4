r"""What a deep model is trained on: masked scores, by points that rows share.

Points of all rows of a minibatch, drawn from their approximate posteriors, are shared,
and so are points of the prior: weighted by the mixture that they come from [1]_, each
serves every row. One product of matrices gives the log-probabilities of any subset of
any row at all of them,

.. math:: L(R) = \log \frac{1}{M} \sum_s
          \frac{p(x_R \mid z_s) \, p(z_s)}{\sum_n w_n q_n(z_s) + w_0 p(z_s)},

and :math:`\log p(x_B \mid x_R)` is estimated by L(R and B) - L(R). At fixed points that
is exact for a finite mixture, so the masked scores of all sizes add up to L(all).

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

from sklearn_mpt._deep.descent import Objective, least_shrunk, step_to_least
from sklearn_mpt._deep.start import MANY_FEATURES
from sklearn_mpt._latent.rules import (
    LogMeanExp,
    moments,
    natural_parameters,
    standard_normal_log_prob,
    total_and_shares,
)
from sklearn_mpt._latent.steps import Weights
from sklearn_mpt._likelihoods.gaussian import LOG_NOISE_STEP
from sklearn_mpt._measure.masks import training_sets

PRIOR_POINTS, PRIOR_POINTS_IF_MANY = 256, 64  # in one and two dimensions
MANY_POINTS = 8  # of each row: half of them serve sets that are not scored
FARTHEST = 30.0  # deviations of the prior: nothing is beyond
SHORTEST_EPOCH = 16  # steps


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
    shape = observed.shape[:2]
    seen = observed.to(X.dtype)
    rows = torch.nan_to_num(X) * seen
    posterior = module.posterior(rows.flatten(0, 1), seen.flatten(0, 1))
    coefs, constant = densities = natural_parameters(posterior)
    pool = Pool.of(posterior, densities, shape, noise, prior_points)
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
    posterior_fit = constant + (coefs * expected.flatten(0, 1)).sum(1)
    return bounds, posterior_fit.unflatten(0, shape)


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


class MaskedGains(SampledRows):
    """Minus D times the masked score, by gains of shared bounds.

    masks : tuple
        Mask rate, and number of masks in a step. Rows get them in turn.
    """

    def __init__(self, X, batch_size, points, held_out, masks, weight=None):
        super().__init__(X, batch_size, points, held_out, weight)
        self.masks = masks

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
        noises, pools = list(module.likelihood.parameters()), self._pools(module)
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
