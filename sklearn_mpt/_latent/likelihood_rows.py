"""Objectives of linear models that are integrated over z.

If one grid over the prior resolves every posterior, all rows share its nodes, and sums
are products of two matrices. Otherwise each row has nodes around its posterior.
"""

import functools
import math
import operator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import Units
from sklearn_mpt._latent.answers import MAX_CATEGORIES, MISSING, Answers, expectations
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.grids import (
    MAX_SPACING,
    PAIR_RADII,
    RADIUS,
    PriorGrids,
    coarsen,
    count_nodes,
    prior_grid,
)
from sklearn_mpt._latent.integrals import Accuracy, rows_of
from sklearn_mpt._latent.linear_map import (
    LinearMap,
    TrainingMap,
    bound_grid,
    spacing,
)
from sklearn_mpt._latent.quadrature import (
    MAX_GRID_DIMS,
    ROW_GRID,
    TRAINING_POINTS,
    Nodes,
    RowNodes,
    grids,
    mixtures,
)
from sklearn_mpt._latent.sums import (
    NO_CONTEXT,
    RepresentativeValues,
    bound_sums,
    row_node_sums,
    shared_likelihood_sums,
    sums_of_counts,
    varies_in_rows,
)
from sklearn_mpt._likelihoods.base import common_values, shape_blocks
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices
from sklearn_mpt._optim.natural import (
    AscentRules,
    Objective,
    Point,
)
from sklearn_mpt._optim.weights import (
    UNSEEN_COUNT,
    SampleWeights,
    distinct_rows,
    slope_penalty,
)


@dataclass(frozen=True)
class TrainingSizes:
    """Numbers of nodes and rows in a step of training.

    Attributes
    ----------
    row_node_cost, number_cost, shared_cost : float
        Cost of a node of a single row, in nodes that rows share: with masks where
        features have few values, with masks elsewhere, and without masks.
    spacing : float
        Spacing of shared grids, in standard deviations of the narrowest posterior, of
        which there is a bound, where rows that these do not resolve have other nodes.
    block, row_node_block : int
        Entries of a tensor over rows, nodes and features, where rows share nodes and
        where they do not.
    batch : int
        Largest number of rows in a step, if `batch_size` is "auto".
    """

    row_node_cost: float = 12
    number_cost: float = 8
    shared_cost: float = 40
    spacing: float = 1.5
    block: int = CACHE_ENTRIES
    row_node_block: int = CACHE_ENTRIES // 2
    batch: int = 2**16


SIZES = TrainingSizes()
# The same where all rows use the grid, by the number of dimensions. The relative errors
# are 2e-7, 2e-5 and 9e-4: nodes in more dimensions cost more.
SPACINGS = {1: 1.1, 2: 1.3, 3: 1.6}
# Fraction of tol. With sampled nodes, an ascent ends when steps gain less than that:
# smaller gains may be errors of nodes, and an ascent with more nodes follows. Fits take
# twice the time without it (benchmarks/RESULTS.rst).
STOP_GAIN_IF_SAMPLED = 1.0
MAX_STEP = 1.0  # largest step of a coefficient; the quadratic model fails beyond


class ObjectiveParams(NamedTuple):
    """Parameters of the estimator that determine the objective."""

    objective: str
    batch_size: int | str
    slope_prior: float | None = None


class LikelihoodRows(Objective):
    """Log marginal likelihood of rows, or its evidence lower bound; NaN where missing.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Rows in single or double precision; blocks are converted to double.
    likelihood : Likelihood
    params : ObjectiveParams
    n_dims : int
    context : RowContext
    is_fine : bool
        Whether sampled nodes are many, for the last epochs.
    """

    rules = AscentRules(max_step=MAX_STEP)

    def __init__(
        self, X, likelihood, params, n_dims, context=NO_CONTEXT, is_fine=False
    ):
        X, context = _merged(X, params, context)
        self.X = X
        self.context, self.log_scale = context, context.log_scale
        self.weights = SampleWeights.from_array(context.weight, X, context.n_rows)
        self.likelihood = likelihood
        self.floor = likelihood.shape_floor.to(X.device)
        self.n_dims = n_dims
        self.n_rows, self.n_features = X.shape
        self.values = common_values(likelihood, self.n_features)
        self.has_codes = likelihood.values_of_each(self.n_features) is not None
        self.params, self.is_fine = params, is_fine
        count = SIZES.batch if params.batch_size == "auto" else params.batch_size
        self.n_batches = math.ceil(self.n_rows / count)
        self.is_noisy = self.n_batches > 1
        unseen_levels = likelihood.unseen(X.cpu().numpy()) if context.is_all else ()
        self.unseen = (
            rows_of(torch.tensor(unseen_levels).to(X.device))
            if len(unseen_levels)
            else None
        )
        self.varies = likelihood.to_locations(varies_in_rows(X, context.is_all))
        node_params = context.seed, is_fine
        self.row_nodes = RowNodes(self.n_rows, n_dims, X.device, *node_params)
        self.bounds = params.objective == "elbo"
        is_sampled = self.row_nodes.is_sampled and not self.bounds
        self._is_coarse = is_sampled and not is_fine
        if is_sampled and not self.is_noisy:
            self.rules = replace(self.rules, stop_gain=STOP_GAIN_IF_SAMPLED)
        self.representative = None
        if n_dims <= MAX_GRID_DIMS and not self.bounds:
            # with fewer values the information of shape parameters would be singular
            number = likelihood.n_shape_params + 2
            entries = context.standardise(X).cpu().numpy()
            self.representative = RepresentativeValues.from_rows(entries, number).to(
                X.device
            )
        self.answers = None
        if self.representative is not None and self._are_codes:
            codes = likelihood.values_of_each(self.n_features)
            n_codes = max(map(len, codes))
            codes = [[v[min(c, len(v) - 1)] for v in codes] for c in range(n_codes)]
            self.codes = torch.tensor(codes, dtype=torch.float64, device=X.device)
            answers = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
            self.answers = Answers(answers, n_codes, self.weights.values)

    @property
    def _are_codes(self):
        """Whether entries are codes 0, 1, 2, ..., about as many of all features."""
        values = self.likelihood.values_of_each(self.n_features)
        if values is None:
            return False
        counts = [len(v) for v in values]
        is_even = self.n_features * max(counts) <= 2 * sum(counts)
        return (
            is_even
            and max(counts) <= MAX_CATEGORIES
            and all(list(v) == list(range(len(v))) for v in values)
        )

    def exact_objective(self):
        """Return the objective with more sampled nodes; None if these are many."""
        if not self._is_coarse:
            return None
        args = self.X, self.likelihood, self.params, self.n_dims, self.context
        return LikelihoodRows(*args, is_fine=True)

    def batches(self, rng):
        """Yield the numbers of rows of each batch, in random order."""
        order = np.arange(self.n_rows)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order).to(self.X.device)
        return order.tensor_split(self.n_batches)

    def rows(self, index):
        """Return some rows, standardised, and their weights."""
        return self.context.standardise(self.X[index]), self.weights.values[index]

    def joint(self, point, kind=LinearMap):
        W, b = point.coefs[:, :-1].T, point.coefs[:, -1]
        return kind(W, b, self.likelihood.at(point.shape_params))

    def density(self, coefs, shape_params):
        """Return the density of a point with few nodes, which have no gradient."""
        joint = self.joint(Point(coefs, shape_params), TrainingMap)
        rule, n_nodes = self._rule(Point(coefs.detach(), shape_params.detach()))
        accuracy = Accuracy(lambda: iter([rule]), math.inf, n_nodes, is_quadrature=True)
        zero = coefs.new_zeros(self.n_features)
        units = Units(zero, torch.ones_like(zero))
        return IntegratedDensity(joint, units, accuracy, accuracy, self.context.seed)

    def _rule(self, point):
        """Return a rule that all rows share, or if that costs less one around each."""
        # Also the number of its nodes.
        n_dims, device = self.n_dims, self.X.device
        if n_dims > MAX_GRID_DIMS:
            rule = mixtures(TRAINING_POINTS, n_dims, device, self.context.seed, 2)
            return rule, 2 * sum(TRAINING_POINTS)
        n_per_dim = ROW_GRID[n_dims]
        # the nodes of each of two grids are between those of the other
        steps = spacing(self.joint(point), SIZES.spacing * 2 ** (1 / n_dims))
        n_shared = 2 * count_nodes(steps, PAIR_RADII[:1] * n_dims)
        cost = SIZES.row_node_cost if self.values is not None else SIZES.number_cost
        if n_shared <= cost * n_per_dim**n_dims:
            return PriorGrids.of_steps(steps, point.coefs), int(n_shared)
        return grids((1, n_per_dim), n_dims, device), n_per_dim**n_dims

    def sums(self, point, batch):
        return self.completed(self.likelihood_sums(point, batch), point)

    def likelihood_sums(self, point, batch):
        parts = self._parts(batch, point, self.joint(point))
        return functools.reduce(operator.add, parts)

    def completed(self, sums, point):
        """Add what concerns no single row: blocks of shape parameters, and priors."""
        sums = self._add_priors(sums, point)
        blocks = shape_blocks(self.likelihood.at(point.shape_params), len(point.coefs))
        return sums._replace(information=sums.information._replace(blocks=blocks))

    def _add_priors(self, sums, point):
        """Add the priors of slopes and of levels that no row has."""
        # Gradients of constant features are set to 0, so that they keep their
        # coefficients.
        if self.unseen is not None:
            sums = self._with_unseen(sums, point)
        slopes = point.coefs[:, :-1]
        gradient, curvature, penalty = slope_penalty(slopes, self.params.slope_prior)
        fraction = sums.n_rows / self.weights.total
        diagonal = sums.information.coefs.diagonal(dim1=1, dim2=2)
        diagonal[:, :-1] += fraction * curvature
        coefs = sums.gradient.coefs.clone()
        coefs[:, :-1] -= fraction * gradient
        sums = sums.lowered(penalty / self.weights.total)
        coefs *= self.varies[:, None]
        return sums._replace(gradient=sums.gradient._replace(coefs=coefs))

    def _with_unseen(self, sums, point):
        """Add `UNSEEN_COUNT` observations, at z = 0, of each level that no row has."""
        size = len(self.unseen.X)
        z = point.coefs.new_zeros(size, 1, self.n_dims)
        nodes = Nodes(z, z[0, :, 0])
        weight = z.new_full((size,), UNSEEN_COUNT * sums.n_rows / self.weights.total)
        likelihood = self.likelihood.at(point.shape_params)
        more = row_node_sums(self.unseen, nodes, point, likelihood, weight)
        return sums._replace(
            value=sums.value + more.value,
            gradient=sums.gradient.plus(more.gradient),
            information=sums.information.plus(more.information),
        )

    def _parts(self, index, point, joint):
        """Return sums whose total is that of a batch."""
        if self.representative is None:
            return self._row_node_parts(index, point, joint)
        if self.answers is not None and len(index) == self.n_rows:
            ratio = min(SIZES.spacing, SPACINGS[self.n_dims])
            steps = spacing(joint, ratio, self.codes)
            n_nodes = count_nodes(steps, [RADIUS] * self.n_dims)
            if n_nodes <= SIZES.shared_cost * self.row_nodes.n_nodes:
                return [self._sums_of_answers(point, joint, steps)]
        steps = spacing(joint, SIZES.spacing, self.representative.values)
        max_nodes = SIZES.shared_cost * self.row_nodes.n_nodes
        steps = coarsen(steps, max_nodes, [RADIUS] * self.n_dims, MAX_SPACING)
        grid = prior_grid(steps, point.coefs)
        blocks = self._shared_blocks(index, len(grid[0]))
        shared = grid, steps, point, joint.likelihood, self.representative.values
        sums, unresolved = shared_likelihood_sums(blocks, *shared)
        left = index[torch.cat(unresolved)]
        return [sums, *self._row_node_parts(left, point, joint)]

    def _sums_of_answers(self, point, joint, steps):
        """Return the sums of all rows, by a grid that resolves all posteriors."""
        z, log_weight = prior_grid(steps, point.coefs)
        table = joint.likelihood.entry_log_prob(self.codes[:, None], joint.location(z))
        table = table.permute(2, 0, 1).contiguous()
        expected = expectations(self.answers, table, log_weight[None])
        total = self.answers.total
        return sums_of_counts(expected, total, z, point, joint.likelihood, self.codes)

    def _shared_blocks(self, index, n_nodes):
        """Yield rows, their weights and indicators, block by block."""
        for part in index.tensor_split(math.ceil(len(index) * n_nodes / SIZES.block)):
            X, weight = self.rows(part)
            yield rows_of(X), weight, self.representative.indicators(part, X)

    def _row_node_parts(self, index, point, joint):
        """Yield sums of blocks of rows that have nodes of their own."""
        # Posteriors are found for more rows at a time than there are in a block.
        if self.bounds:
            yield from self._bound_parts(index, point, joint)
            return
        likelihood, row_nodes = joint.likelihood, self.row_nodes
        for part in chunk_slices(len(index), joint.components.numel(), SIZES.block):
            X, weight = self.rows(index[part])
            rows = rows_of(X)
            posterior = row_nodes.posterior(rows, joint, index[part])
            n_entries = len(joint.intercept) * row_nodes.n_nodes
            for block in chunk_slices(len(X), n_entries, SIZES.row_node_block):
                taken = rows.take(block)
                nodes = row_nodes.place(taken, posterior.take(block), 0)
                yield row_node_sums(taken, nodes, point, likelihood, weight[block])

    def _bound_parts(self, index, point, joint):
        grid = bound_grid(joint, self.context.seed)
        n_entries = len(point.coefs) * len(grid[1])
        for part in chunk_slices(len(index), n_entries, SIZES.block):
            X, weight = self.rows(index[part])
            yield bound_sums(rows_of(X), joint, grid, weight)


def _merged(X, params, context):
    """Return rows of which none are equal, and the context with their weights."""
    # A number of rows in each step, if the user gives one, counts equal rows.
    if params.batch_size != "auto" and params.batch_size < len(X):
        return X, context
    kept, weight = distinct_rows(X.cpu().numpy(), context.weight)
    if len(kept) == len(X):
        return X, context
    context = context._replace(weight=weight, n_rows=context.n_rows or len(X))
    return X[torch.from_numpy(kept)], context
