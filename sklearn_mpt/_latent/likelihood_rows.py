"""Objectives of linear models that are integrated over z, items among them."""

import copy
import functools
import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._latent.answers import MAX_CATEGORIES, CodedRows
from sklearn_mpt._latent.grids import PAIR_RADII, PriorGrids, count_nodes
from sklearn_mpt._latent.integrals import (
    FINE_POINTS,
    TRAINING_POINTS,
    integrate_conditionals,
    rows_of,
)
from sklearn_mpt._latent.linear_map import MODE_TOLERANCE, LinearMap, spacing
from sklearn_mpt._latent.modes import laplace
from sklearn_mpt._latent.quadrature import (
    MAX_GRID_DIMS,
    Nodes,
    grids,
    mixtures,
    row_grid,
)
from sklearn_mpt._latent.sums import (
    SHARED_COST,
    SPACING,
    BoundedRows,
    NodesOfRows,
    SharedGrid,
    TrainingRows,
    row_node_sums,
    varies_in_rows,
)
from sklearn_mpt._likelihoods.base import shape_blocks
from sklearn_mpt._numbers import FLOAT_BYTES
from sklearn_mpt._optim.natural import Objective, Point
from sklearn_mpt._optim.weights import UNSEEN_COUNT, slope_penalty


class TrainingDensity(NamedTuple):
    """Conditionals of a point by one rule; row_bytes : memory of those of a row."""

    joint: LinearMap
    rule: object
    row_bytes: int

    def conditional_log_prob(self, X, mask):
        rows = rows_of(X, mask)
        if not self.rule.is_shared:
            with torch.no_grad():  # nodes are constants, not just where they are best
                posterior, _ = laplace(rows, self.joint, tol=MODE_TOLERANCE)
            rows = rows._replace(posteriors=[posterior])
        return integrate_conditionals(rows, self.rule, self.joint)[0]


class LikelihoodRows(Objective):
    """Log marginal likelihood of rows, or its evidence lower bound; NaN where missing.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Rows in single or double precision; blocks are converted to double.
    likelihood : Likelihood
    n_dims : int
    objective, batch_size, slope_prior
        Parameters of the estimator.
    seed : tuple of int
        Of nodes that are sampled.
    weight : array of shape (n,), default=None
        None is 1.
    group : array of int of shape (n,), default=None
        Number of the group of each row; None is one group.
    units : Units, default=None
        None if the rows are standardised.
    log_scale : float
        Mean over rows of the logarithm that the units add to the objective.
    is_all : bool
        Whether these are all rows, so that a feature that is constant in them is.
    """

    max_step = 1.0  # of a coefficient; the quadratic model fails beyond

    def __init__(
        self,
        X,
        likelihood,
        n_dims,
        *,
        objective="lml",
        batch_size="auto",
        slope_prior=None,
        seed=(0,),
        weight=None,
        group=None,
        units=None,
        log_scale=0.0,
        is_all=True,
    ):
        # a number of rows in each step, if the user gives one, counts equal rows
        merges = batch_size == "auto" or batch_size >= len(X)
        self.table = TrainingRows(X, weight, group, units, merges)
        self.rows, self.weights = self.table.take, self.table.weights
        self.X = X = self.table.X
        self.n_rows = len(X)
        self.likelihood = likelihood.to(X.device)
        self.objective, self.slope_prior, self.seed = objective, slope_prior, seed
        self.n_dims, self.log_scale = n_dims, log_scale
        self.floor = likelihood.shape_floor.to(X.device)
        count = 2**16 if batch_size == "auto" else batch_size
        self.n_batches = math.ceil(self.n_rows / count)
        self.is_noisy = self.n_batches > 1
        unseen = likelihood.unseen(X.cpu().numpy()) if is_all else ()
        self.unseen = torch.tensor(unseen, device=X.device) if len(unseen) else None
        self.varies = likelihood.to_locations(varies_in_rows(X, is_all))
        self.n_locations = len(self.varies)
        self.blocks = shape_blocks(likelihood, self.n_locations)
        self._is_coarse = n_dims > MAX_GRID_DIMS and objective != "elbo"
        if self._is_coarse and not self.is_noisy:
            # Smaller gains may be errors of nodes, and an ascent with more nodes
            # follows. Fits take twice the time without it (benchmarks/RESULTS.rst).
            self.stop_gain = 1.0

    @functools.cached_property
    def integrals(self):
        """How rows are integrated over z: each way leaves some rows to the next."""
        n_dims, device = self.n_dims, self.X.device
        if self.objective == "elbo":
            return [BoundedRows(self.table, self.blocks, self.seed)]
        if n_dims > MAX_GRID_DIMS:
            return [self._sampled(TRAINING_POINTS)]
        rule = grids((row_grid(n_dims),), n_dims, device)
        max_nodes, number = SHARED_COST * rule.n_nodes, self.likelihood.n_shape_params
        ways = [
            SharedGrid(self.table, self.blocks, number + 2, max_nodes),
            NodesOfRows(self.table, self.blocks, rule),
        ]
        codes = self.codes
        if codes is None:
            return ways
        # of a table of codes 0, 1, 2, ... with about as many of all features
        n_codes = max(map(len, codes))
        is_even = len(codes) * n_codes <= 2 * sum(map(len, codes))
        if 0 < n_codes <= MAX_CATEGORIES and is_even:
            if all(list(v) == list(range(len(v))) for v in codes):
                ways.insert(0, CodedRows(self.table, self.blocks, codes, max_nodes))
        return ways

    @property
    def codes(self):
        """The values of each feature; None if some take any number."""
        return self.likelihood.values_of_each(self.X.shape[1])

    def _sampled(self, counts):
        rule = mixtures(counts, self.n_dims, self.X.device, self.seed, 1)
        return NodesOfRows(self.table, self.blocks, rule)

    def exact_objective(self):
        """Return the objective with more sampled nodes; None if these are many."""
        if not self._is_coarse:
            return None
        finer = copy.copy(self)
        finer._is_coarse, finer.integrals = False, [self._sampled(FINE_POINTS)]
        return finer

    def batches(self, rng):
        """Yield the numbers of rows of each batch, in random order."""
        order = np.arange(self.n_rows)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order).to(self.X.device)
        return order.tensor_split(self.n_batches)

    def joint(self, point):
        coefs = point.coefs[: self.n_locations]
        likelihood = self.likelihood.at(point.shape_params)
        return LinearMap(coefs[:, :-1].T, coefs[:, -1], likelihood)

    def density(self, coefs, shape_params):
        """Return the density of a point with few nodes, which have no gradient."""
        n_dims, device = self.n_dims, self.X.device
        if n_dims > MAX_GRID_DIMS:
            rule = mixtures(TRAINING_POINTS, n_dims, device, self.seed, 2)
            n_nodes = 2 * rule.n_nodes
        else:
            # all rows share a pair of grids, whose nodes are between those of the
            # other, or each has its own if that costs less
            at = Point(coefs.detach(), shape_params.detach())
            steps = spacing(self.joint(at), SPACING * 2 ** (1 / n_dims))
            n_nodes = int(2 * count_nodes(steps, PAIR_RADII[:1] * n_dims))
            rule = grids((1, row_grid(n_dims)), n_dims, device)
            if n_nodes <= 12 * rule.n_nodes:  # nodes of a row cost more
                rule = PriorGrids.of_steps(steps, at.coefs)
            else:
                n_nodes = rule.n_nodes
        joint = self.joint(Point(coefs, shape_params))
        return TrainingDensity(joint, rule, FLOAT_BYTES * 3 * n_nodes * joint.width)

    def all_sums(self, point):
        """Return the sums of all rows, completed."""
        rows = torch.arange(self.n_rows, device=self.X.device)
        return self.completed(self.sums(point, rows), point)

    def sums(self, point, batch):
        joint, total = self.joint(point), None
        for integral in self.integrals:
            sums, batch = integral.sums(point, joint, batch)
            if sums is not None:
                total = sums if total is None else total + sums
            if len(batch) == 0:
                return total

    def completed(self, sums, point):
        """Add what concerns no single row: blocks of shape parameters, and priors."""
        if self.unseen is not None:  # observations of these levels at z = 0
            rows = rows_of(self.unseen)
            z = point.coefs.new_zeros(len(rows.X), 1, self.n_dims)
            count = UNSEEN_COUNT * sums.n_rows / self.weights.total
            nodes, weight = Nodes(z, z[0, :, 0]), z.new_full((len(z),), count)
            more = row_node_sums(rows, nodes, self.joint(point), weight, self.blocks)
            sums = sums._replace(
                value=sums.value + more.value,
                gradient=sums.gradient.plus(more.gradient),
                information=sums.information.plus(more.information),
            )
        gradient, curvature, penalty = self.priors(point)
        fraction = sums.n_rows / self.weights.total
        sums.information.coefs.diagonal(dim1=1, dim2=2).add_(fraction * curvature.coefs)
        gradient = sums.gradient.plus(gradient, -fraction)
        # features that are constant keep their coefficients
        gradient.coefs[: self.n_locations] *= self.varies[:, None]
        information = sums.information._replace(blocks=self.blocks)
        sums = sums.lowered(penalty / self.weights.total)
        return sums._replace(gradient=gradient, information=information)

    def priors(self, point):
        """Return gradient, curvature and value of minus the log priors."""
        # Points, and a float in nats. The curvature is the diagonal of the Hessian.
        slopes = point.coefs[: self.n_locations, :-1]
        *parts, penalty = slope_penalty(slopes, self.slope_prior)
        gradient, curvature = (Point(*map(torch.zeros_like, point)) for _ in range(2))
        for whole, part in zip((gradient, curvature), parts, strict=True):
            whole.coefs[: self.n_locations, :-1] = part
        return gradient, curvature, penalty

    @torch.enable_grad()
    def observed_information(self, point, accuracy):
        """Return minus the second derivatives of the LML of all rows, (p, p)."""
        # Without priors. accuracy : of nodes around each row, where rows share none.
        point = Point(*(part.detach() for part in point))
        scale = self.weights.total / float(self.weights.values.sum())
        for integral in self.integrals:
            matrix = integral.information(point, self.joint(point), accuracy)
            if matrix is not None:
                return scale * matrix
