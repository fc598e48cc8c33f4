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

from sklearn_mpt._fitting.masks import number_of_masks, shared_masks
from sklearn_mpt._fitting.objective import AscentRules, Objective
from sklearn_mpt._fitting.phases import ends_without_masks
from sklearn_mpt._fitting.priors import UNSEEN_COUNT, slope_penalty
from sklearn_mpt._fitting.weights import SampleWeights, distinct_rows
from sklearn_mpt._integration.integrals import rows_of
from sklearn_mpt._integration.prior_grid import (
    MAX_SPACING,
    RADIUS,
    coarsen,
    count_nodes,
    prior_grid,
)
from sklearn_mpt._integration.quadrature import MAX_GRID_DIMS, Nodes
from sklearn_mpt._integration.row_nodes import RowNodes
from sklearn_mpt._likelihoods.base import common_values, shape_blocks
from sklearn_mpt._linear.integrated_sums import (
    NO_CONTEXT,
    RepresentativeValues,
    TargetWeights,
    bound_sums,
    indicators,
    row_node_sums,
    shared_likelihood_sums,
    shared_masked_sums,
    table_of,
    varies_in_rows,
)
from sklearn_mpt._linear.linear_map import (
    LinearMap,
    bound_grid,
    spacing,
)
from sklearn_mpt._measure.masks import enumerate_masks, fixed_size
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices


@dataclass(frozen=True)
class TrainingSizes:
    """Numbers of nodes and rows in a step of training.

    Attributes
    ----------
    row_node_cost, shared_cost : float
        Cost of a node of a single row, in nodes that rows share, with masks and
        without.
    spacing : float
        Spacing of shared grids, in standard deviations of the narrowest posterior, of
        which there is a bound.
    block, row_node_block : int
        Entries of a tensor over rows, nodes and features, where rows share nodes and
        where they do not.
    step, step_if_slow : int
        Such entries in a step, where the values of features are few and where they are
        not. A few rows are repeated.
    batch : int
        Largest number of rows in a step, if `batch_size` is "auto".
    copies : int
        Largest number of repetitions of rows.
    """

    row_node_cost: float = 12
    shared_cost: float = 40
    spacing: float = 1.5
    block: int = CACHE_ENTRIES
    row_node_block: int = CACHE_ENTRIES // 2
    step: int = 2**21
    step_if_slow: int = 2**19
    batch: int = 2**16
    copies: int = 32


SIZES = TrainingSizes()
# Fraction of tol. With sampled nodes, an ascent ends when steps gain less than that:
# smaller gains may be errors of nodes, and an ascent with more nodes follows. Fits take
# twice the time without it (benchmarks/RESULTS.rst).
STOP_GAIN_IF_SAMPLED = 1.0
MAX_STEP = 1.0  # largest step of a coefficient; the quadratic model fails beyond


class ObjectiveParams(NamedTuple):
    """Parameters of the estimator that determine the objective and the masks."""

    objective: str
    mask_rate: str | float
    n_masks: int | str
    batch_size: int | str
    slope_prior: float | None = None


class RowBatch(NamedTuple):
    """Rows of a step, and the masks among which they are divided."""

    rows: np.ndarray
    masks: np.ndarray | None
    iteration: int


class IntegratedRows(Objective):
    """Masked objective of rows with any likelihood, NaN where missing; see `ascent`.

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

    is_noisy = True
    rules = AscentRules(max_step=MAX_STEP)

    def __init__(
        self, X, likelihood, params, n_dims, context=NO_CONTEXT, is_fine=False
    ):
        self.X = X
        self.is_complete = not bool(X.isnan().any())
        self.context, self.log_scale = context, context.log_scale
        self.weights = SampleWeights.from_array(context.weight, X, context.n_rows)
        self.likelihood = likelihood
        self.floor = likelihood.shape_floor.to(X.device)
        self.n_dims = n_dims
        self.n_rows, self.n_features = X.shape
        self.values = common_values(likelihood, self.n_features)
        self.params, self.is_fine = params, is_fine
        self.n_masks = number_of_masks(params.n_masks)
        self.mask_rate = params.mask_rate
        uniform = params.mask_rate == "uniform"
        size = 1 if uniform else fixed_size(params.mask_rate, self.n_features)
        weight = self.n_features / size
        self.targets = (
            TargetWeights(1.0, 1.0) if uniform else TargetWeights(weight, 0.0)
        )
        count = SIZES.batch if params.batch_size == "auto" else params.batch_size
        self.n_batches = math.ceil(self.n_rows / count)
        unseen_levels = likelihood.unseen(X.cpu().numpy()) if context.is_all else ()
        self.unseen = (
            rows_of(torch.tensor(unseen_levels).to(X.device))
            if len(unseen_levels)
            else None
        )
        self.varies = likelihood.to_locations(varies_in_rows(X, context.is_all))
        node_params = context.seed, is_fine
        self.row_nodes = RowNodes(self.n_rows, n_dims, X.device, *node_params)
        self._iteration = 0

    def batches(self, rng):
        """Yield batches of rows in random order."""
        order = [rng.permutation(self.n_rows) for _ in range(self._n_copies)]
        for rows in np.array_split(np.concatenate(order), self.n_batches):
            yield RowBatch(rows, self._draw(rng), self._iteration)
        self._iteration += 1

    @property
    def _n_copies(self):
        numbers = self.n_rows * len(self.varies) * self.row_nodes.n_nodes
        largest = SIZES.step if self.values else SIZES.step_if_slow
        fitting = max(1, min(SIZES.copies, largest // numbers))
        return fitting if self.n_batches == 1 else 1

    @property
    def _nothing_hidden(self):
        """The only mask of whole rows; (1, d)."""
        return np.zeros((1, self.n_features), dtype=bool)

    def _draw(self, rng):
        count, n_features = self.n_masks, self.n_features
        if self.mask_rate != "uniform":
            size = fixed_size(self.mask_rate, n_features)
            if math.comb(n_features, size) <= count:
                return rng.permutation(enumerate_masks(n_features, size))
        return shared_masks(self.mask_rate, count, n_features, rng, smallest=0)

    def sums(self, point, batch):
        joint = self.joint(point)
        parts = self._parts(batch, point, joint)
        return self._completed(functools.reduce(operator.add, parts), joint, point)

    def _completed(self, sums, joint, point):
        """Add what concerns no single row: blocks of shape parameters, and priors."""
        sums = self._add_priors(sums, point)
        blocks = shape_blocks(joint.likelihood, len(point.coefs))
        return sums._replace(information=sums.information._replace(blocks=blocks))

    def _parts(self, batch, point, joint):
        """Return sums whose total is that of the batch."""
        steps = spacing(joint, SIZES.spacing) if self._may_share else []
        if steps and self._shared_grid_is_cheaper(steps):
            grid = prior_grid(steps, point.coefs)
            table = table_of(*grid, point, joint.likelihood, self.values)
            return self._shared_parts(batch, table)
        return self._row_node_parts(batch, point, joint)

    def _add_priors(self, sums, point):
        """Add the priors of slopes and of levels that no row has.

        Gradients of constant features are set to 0, so that they keep their
        coefficients.
        """
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

    def _shared_grid_is_cheaper(self, steps):
        """Return whether a shared grid costs no more than nodes around each row."""
        n_nodes = count_nodes(steps, [RADIUS] * self.n_dims)
        return n_nodes <= SIZES.row_node_cost * self.row_nodes.n_nodes

    def _with_unseen(self, sums, point):
        """Add `UNSEEN_COUNT` observations, at z = 0, of each level that no row has."""
        size = len(self.unseen.X)
        z = point.coefs.new_zeros(size, 1, self.n_dims)
        nodes = Nodes(z, z[0, :, 0])
        weight = z.new_full((size,), UNSEEN_COUNT * sums.n_rows / self.weights.total)
        likelihood = self.likelihood.at(point.shape_params)
        more = row_node_sums(self.unseen, nodes, point, likelihood, None, weight)
        return sums._replace(
            value=sums.value + more.value,
            gradient=sums.gradient.plus(more.gradient),
            information=sums.information.plus(more.information),
        )

    @property
    def _may_share(self):
        return self.values is not None and self.n_dims <= MAX_GRID_DIMS

    def joint(self, point):
        W, b = point.coefs[:, :-1].T, point.coefs[:, -1]
        return LinearMap(W, b, self.likelihood.at(point.shape_params))

    def _shared_parts(self, batch, table):
        """Yield sums of groups of rows; each group has a mask."""
        n_groups = len(batch.masks)
        size = math.ceil(len(batch.rows) / n_groups)
        n_parts = math.ceil(size * len(table.z) / SIZES.block)
        groups = np.array_split(batch.rows, n_groups)
        for i, (group, mask) in enumerate(zip(groups, batch.masks, strict=True)):
            for rows in np.array_split(group, n_parts):
                indicator, weight = self._taken(rows)
                sums = shared_masked_sums(
                    indicator, mask, table, self.targets, weight, self.is_complete
                )
                by_mask = weight.new_zeros(2, n_groups)
                by_mask[:, i] = torch.stack([sums.value, sums.n_rows])
                yield sums._replace(by_mask=by_mask)

    def _taken(self, rows):
        """Return indicators and weights of some rows."""
        X, weight = self._standardised_rows(rows)
        return indicators(X, self.values), weight

    def _standardised_rows(self, rows):
        """Return some rows, standardised, and their weights."""
        index = torch.from_numpy(rows)
        return self.context.standardise(self.X[index]), self.weights.values[index]

    def _row_node_parts(self, batch, point, joint):
        """Yield sums of blocks of rows that have nodes of their own."""
        parts = self._row_node_blocks(batch, joint, self.row_nodes)
        args = point, joint.likelihood, self.targets
        for rows, nodes, weight, mask_index in parts:
            masks = None if self.targets is None else (mask_index, len(batch.masks))
            yield row_node_sums(rows, nodes, *args, weight, masks)

    def _row_node_blocks(self, batch, joint, row_nodes):
        """Yield rows, their nodes, weights and the indices of their masks, in blocks.

        Posteriors are found for more rows at a time than there are in a block.

        row_nodes : RowNodes
            Places the nodes.
        """
        width = joint.components.numel()
        for index, rows, weight, mask_index in self._blocks(batch, width):
            posterior = row_nodes.posterior(rows, joint, index)
            n_entries = len(joint.intercept) * row_nodes.n_nodes
            for part in chunk_slices(len(index), n_entries, SIZES.row_node_block):
                block, block_posterior = rows.take(part), posterior.take(part)
                nodes = row_nodes.place(block, block_posterior, batch.iteration)
                yield block, nodes, weight[part], mask_index[part]

    def _blocks(self, batch, width):
        """Yield indices of rows, the rows, their weights and the indices of masks.

        width : entries that a row takes.
        """
        for part in chunk_slices(len(batch.rows), width, SIZES.block):
            X, weight = self._standardised_rows(batch.rows[part])
            mask_index = np.arange(len(batch.rows))[part] % len(batch.masks)
            masks, mask_index = (
                torch.from_numpy(array).to(self.X.device)
                for array in (batch.masks[mask_index], mask_index)
            )
            yield batch.rows[part], rows_of(X, masks), weight, mask_index


class InitialMaskedRows(IntegratedRows):
    """Masked objective for the first epochs, while masks lead to the optimum.

    The scores of all sizes along an order add up to the LML of a row, which is the
    objective of the epochs that follow.
    """

    _n_copies = 1

    def exact_objective(self):
        """Return the sum over all sizes, without masks."""
        args = self.X, self.likelihood, self.params, self.n_dims, self.context
        return LikelihoodRows(*args)


class LikelihoodRows(IntegratedRows):
    """Log marginal likelihood of rows, or its evidence lower bound, as objective."""

    _n_copies = 1

    def __init__(
        self, X, likelihood, params, n_dims, context=NO_CONTEXT, is_fine=False
    ):
        X, context = _merged(X, params, context)
        super().__init__(X, likelihood, params, n_dims, context, is_fine)
        self.is_noisy = self.n_batches > 1
        self.bounds = params.objective == "elbo"
        is_sampled = self.row_nodes.is_sampled and not self.bounds
        self._is_coarse = is_sampled and not is_fine
        if is_sampled and not self.is_noisy:
            self.rules = replace(self.rules, stop_gain=STOP_GAIN_IF_SAMPLED)
        self.targets, self.representative = None, None
        if n_dims <= MAX_GRID_DIMS and not self.bounds:
            # with fewer values the information of shape parameters would be singular
            number = likelihood.n_shape_params + 2
            entries = context.standardise(X).cpu().numpy()
            self.representative = RepresentativeValues.from_rows(entries, number).to(
                X.device
            )

    def exact_objective(self):
        """Return the objective with more sampled nodes; None if these are many."""
        if not self._is_coarse:
            return None
        args = self.X, self.likelihood, self.params, self.n_dims, self.context
        return LikelihoodRows(*args, is_fine=True)

    def _draw(self, rng):
        return self._nothing_hidden

    def batches(self, rng):
        for batch in super().batches(rng):
            yield batch._replace(masks=self._nothing_hidden, iteration=0)

    def _parts(self, batch, point, joint):
        if self.representative is None:
            return self._row_node_parts(batch, point, joint)
        steps = spacing(joint, SIZES.spacing, self.representative.values)
        max_nodes = SIZES.shared_cost * self.row_nodes.n_nodes
        steps = coarsen(steps, max_nodes, [RADIUS] * self.n_dims, MAX_SPACING)
        grid = prior_grid(steps, point.coefs)
        blocks = self._shared_blocks(batch.rows, len(grid[0]))
        shared = grid, steps, point, joint.likelihood, self.representative.values
        sums, unresolved = shared_likelihood_sums(blocks, *shared)
        left = batch._replace(rows=batch.rows[torch.cat(unresolved).cpu().numpy()])
        return [sums, *self._row_node_parts(left, point, joint)]

    def _shared_blocks(self, rows, n_nodes):
        """Yield rows, their weights and indicators, block by block."""
        for block in np.array_split(rows, math.ceil(len(rows) * n_nodes / SIZES.block)):
            X, weight = self._standardised_rows(block)
            yield rows_of(X), weight, self.representative.indicators(block, X)

    def _row_node_parts(self, batch, point, joint):
        if not self.bounds:
            yield from super()._row_node_parts(batch, point, joint)
            return
        grid = bound_grid(joint, self.context.seed)
        n_entries = len(point.coefs) * len(grid[1])
        for _, rows, weight, _ in self._blocks(batch, n_entries):
            yield bound_sums(rows, joint, grid, weight)


def _merged(X, params, context):
    """Return rows of which none are equal, and the context with their weights.

    A number of rows in each step, if the user gives one, counts equal rows.
    """
    if params.batch_size != "auto" and params.batch_size < len(X):
        return X, context
    kept, weight = distinct_rows(X.cpu().numpy(), context.weight)
    if len(kept) == len(X):
        return X, context
    context = context._replace(weight=weight, n_rows=context.n_rows or len(X))
    return X[torch.from_numpy(kept)], context


def objective_of(X, likelihood, params, n_dims, context=NO_CONTEXT):
    """Return the objective for these rows."""
    arguments = X, likelihood, params, n_dims, context
    if params.objective != "mpt":
        return LikelihoodRows(*arguments)
    # Nodes for the posterior given some entries are too coarse for an entry that
    # determines z more closely. So steps with masks end near the optimum, and steps by
    # the sum of the scores of all sizes lead to it.
    exact_follows = ends_without_masks(params.mask_rate, params.n_masks)
    if exact_follows and context.is_all:
        return InitialMaskedRows(*arguments)
    has_numbers = likelihood.values_of_each(X.shape[1]) is None
    if exact_follows or (params.mask_rate == "uniform" and has_numbers):
        return LikelihoodRows(*arguments)
    return IntegratedRows(*arguments)
