"""Objectives of linear models that are integrated over z, items among them.

If one grid over the prior resolves every posterior, all rows share its nodes, and sums
are products of two matrices. Otherwise each row has nodes around its posterior.
"""

import functools
import math
import operator
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._latent.answers import (
    MAX_CATEGORIES,
    MISSING,
    Answers,
    expectations,
    variance_of_scores,
)
from sklearn_mpt._latent.grids import (
    MAX_SPACING,
    PAIR_RADII,
    RADIUS,
    WIDE_RADIUS,
    Population,
    PriorGrid,
    PriorGrids,
    coarsen,
    count_nodes,
    prior_grid,
)
from sklearn_mpt._latent.integrals import (
    FINE_POINTS,
    TRAINING_POINTS,
    integrate_conditionals,
    rows_of,
)
from sklearn_mpt._latent.linear_map import (
    MODE_TOLERANCE,
    LinearMap,
    TrainingMap,
    bound_grid,
    laplace,
    shared_steps,
    spacing,
)
from sklearn_mpt._latent.quadrature import (
    MAX_GRID_DIMS,
    Nodes,
    grids,
    mixtures,
    row_grid,
)
from sklearn_mpt._latent.sums import (
    NO_CONTEXT,
    RepresentativeValues,
    bound_sums,
    information_by_nodes,
    row_node_sums,
    shared_likelihood_sums,
    sums_of_counts,
    varies_in_rows,
)
from sklearn_mpt._likelihoods.base import (
    features_of_locations,
    rank_among_equals,
    shape_blocks,
)
from sklearn_mpt._numbers import CACHE_ENTRIES, FLOAT_BYTES, chunk_slices
from sklearn_mpt._optim.information import information_by_hessian
from sklearn_mpt._optim.natural import Objective, Point
from sklearn_mpt._optim.weights import (
    UNSEEN_COUNT,
    SampleWeights,
    distinct_rows,
    slope_penalty,
)

# Spacing of shared grids, in standard deviations of the narrowest posterior, of which
# there is a bound, where rows that these do not resolve have other nodes.
SPACING = 1.5
# Cost of a node of a single row, in nodes that rows share.
SHARED_COST = 40


class ObjectiveParams(NamedTuple):
    """Parameters of the estimator that determine the objective.

    guessing_prior : mean and deviation of a normal prior of logits of guessing.
    """

    objective: str
    batch_size: int | str
    slope_prior: float | None = None
    guessing_prior: tuple[float, float] | None = None


class Layout(NamedTuple):
    """Which parameters move, of points with groups of people.

    After the rows of locations, the coefficients of a point with one latent variable
    can have a row for each group: logarithm of the deviation, and mean, of z. All rows
    of data share the nodes of one grid, in up to three dimensions.

    moves : which parameters move, bool tensors. moves_axes : whether z can be rescaled.
    guessing : which shape parameters are logits of guessing, int (q,). unseen :
    categories that no row has, of which `UNSEEN_COUNT` observations are added, bool
    (d, c).
    """

    moves: Point
    moves_axes: bool
    guessing: torch.Tensor
    unseen: torch.Tensor


class TrainingDensity(NamedTuple):
    """Conditionals of a point by one rule; row_bytes : memory of those of a row."""

    joint: TrainingMap
    rule: object
    row_bytes: int

    def conditional_log_prob(self, X, mask):
        return integrate_conditionals(rows_of(X, mask), self.rule, self.joint)[0]


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
    layout : Layout, default=None
        None moves all parameters.
    """

    max_step = 1.0  # of a coefficient; the quadratic model fails beyond

    def __init__(
        self,
        X,
        likelihood,
        params,
        n_dims,
        context=NO_CONTEXT,
        is_fine=False,
        layout=None,
    ):
        # a number of rows in each step, if the user gives one, counts equal rows
        if params.batch_size == "auto" or params.batch_size >= len(X):
            keys = X.cpu().numpy()
            if context.group is not None:
                keys = np.column_stack([keys, context.group])
            kept, weight = distinct_rows(keys, context.weight)
            group = None if context.group is None else context.group[kept]
            n_rows = context.n_rows or len(X)
            if len(kept) < len(X):
                context = context._replace(weight=weight, n_rows=n_rows, group=group)
                X = X[torch.from_numpy(kept)]
        self.X = X
        self.context, self.log_scale = context, context.log_scale
        self.weights = SampleWeights.from_array(context.weight, X, context.n_rows)
        self.likelihood = likelihood
        self.floor = likelihood.shape_floor.to(X.device)
        self.n_dims = n_dims
        self.n_rows, self.n_features = X.shape
        self.params, self.is_fine = params, is_fine
        count = 2**16 if params.batch_size == "auto" else params.batch_size
        self.n_batches = math.ceil(self.n_rows / count)
        self.is_noisy = self.n_batches > 1
        unseen_levels = likelihood.unseen(X.cpu().numpy()) if context.is_all else ()
        self.unseen = (
            rows_of(torch.tensor(unseen_levels, device=X.device))
            if len(unseen_levels)
            else None
        )
        self.varies = likelihood.to_locations(varies_in_rows(X, context.is_all))
        self.layout, self.n_locations = layout, len(self.varies)
        self.moves_axes = layout is None or layout.moves_axes
        self._modes = X.new_zeros(self.n_rows, n_dims, dtype=torch.float64)
        is_sampled = n_dims > MAX_GRID_DIMS
        if is_sampled:
            counts = FINE_POINTS if is_fine else TRAINING_POINTS
            self.row_rule = mixtures(counts, n_dims, X.device, context.seed, 1)
            self.n_row_nodes = sum(counts)
        else:
            self.row_rule = grids((row_grid(n_dims),), n_dims, X.device)
            self.n_row_nodes = row_grid(n_dims) ** n_dims
        self.bounds = params.objective == "elbo"
        is_sampled = is_sampled and not self.bounds
        self._is_coarse = is_sampled and not is_fine
        if is_sampled and not self.is_noisy:
            # Smaller gains may be errors of nodes, and an ascent with more nodes
            # follows. Fits take twice the time without it (benchmarks/RESULTS.rst).
            self.stop_gain = 1.0
        self.shares_nodes = n_dims <= MAX_GRID_DIMS and not self.bounds
        self.answers = self._grid = None
        if layout is not None and self.shares_nodes:
            self.unseen, self.varies = None, torch.ones_like(self.varies)
        codes = likelihood.values_of_each(self.n_features)
        self.has_codes = codes is not None
        n_codes = max(map(len, codes)) if self.has_codes else 0
        # of a table of codes 0, 1, 2, ... with about as many of all features
        is_table = (
            0 < n_codes <= MAX_CATEGORIES
            and all(list(v) == list(range(len(v))) for v in codes)
            and self.n_features * n_codes <= 2 * sum(map(len, codes))
        )
        if self.shares_nodes and (layout is not None or is_table):
            codes = [[v[min(c, len(v) - 1)] for v in codes] for c in range(n_codes)]
            self.codes = torch.tensor(codes, dtype=torch.float64, device=X.device)
            answers = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
            group = context.group
            if group is not None:
                group = torch.from_numpy(group).to(X.device)
            self.answers = Answers(answers, n_codes, self.weights.values, group)

    @functools.cached_property
    def representative(self):
        """Values at which the information is computed where rows share nodes."""
        # with fewer values the information of shape parameters would be singular
        number = self.likelihood.n_shape_params + 2
        entries = self.context.standardise(self.X).cpu().numpy()
        values = RepresentativeValues.from_rows(entries, number)
        return values.to(self.X.device)

    def exact_objective(self):
        """Return the objective with more sampled nodes; None if these are many."""
        if not self._is_coarse:
            return None
        args = self.X, self.likelihood, self.params, self.n_dims, self.context
        return LikelihoodRows(*args, is_fine=True, layout=self.layout)

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
        coefs = point.coefs[: self.n_locations]
        likelihood = self.likelihood.at(point.shape_params)
        return kind(coefs[:, :-1].T, coefs[:, -1], likelihood)

    def population(self, point):
        """Return the distribution of z in each group."""
        rows = point.coefs[self.n_locations :]
        if len(rows):
            return Population(rows[:, 1:], rows[:, :1].exp())
        return Population.standard(self.n_dims, point.coefs)

    def density(self, coefs, shape_params):
        """Return the density of a point with few nodes, which have no gradient."""
        n_dims, device = self.n_dims, self.X.device
        if n_dims > MAX_GRID_DIMS:
            rule = mixtures(TRAINING_POINTS, n_dims, device, self.context.seed, 2)
            n_nodes = 2 * sum(TRAINING_POINTS)
        else:
            # all rows share a pair of grids, whose nodes are between those of the
            # other, or each has its own if that costs less
            at = Point(coefs.detach(), shape_params.detach())
            steps = spacing(self.joint(at), SPACING * 2 ** (1 / n_dims))
            n_nodes = int(2 * count_nodes(steps, PAIR_RADII[:1] * n_dims))
            if n_nodes <= 12 * self.n_row_nodes:  # nodes of a row cost more
                rule = PriorGrids.of_steps(steps, at.coefs)
            else:
                rule = grids((1, row_grid(n_dims)), n_dims, device)
                n_nodes = self.n_row_nodes
        joint = self.joint(Point(coefs, shape_params), TrainingMap)
        return TrainingDensity(joint, rule, FLOAT_BYTES * 3 * n_nodes * joint.width)

    def sums(self, point, batch):
        return self.completed(self.likelihood_sums(point, batch), point)

    def all_sums(self, point):
        """Return the sums of all rows."""
        return self.sums(point, torch.arange(self.n_rows, device=self.X.device))

    def likelihood_sums(self, point, batch):
        parts = self._parts(batch, point, self.joint(point))
        return functools.reduce(operator.add, parts)

    def completed(self, sums, point):
        """Add what concerns no single row: blocks of shape parameters, and priors."""
        sums = self._add_priors(sums, point)
        information = sums.information._replace(blocks=self._shape_blocks)
        sums = sums._replace(information=information)
        return sums if self.layout is None else self._held(sums)

    def _held(self, sums):
        """Return sums in which parameters that do not move are apart from others."""
        moves, information = self.layout.moves, sums.information
        both = moves.coefs[:, None] & moves.coefs[..., None]
        diagonal = information.coefs.diagonal(dim1=1, dim2=2)
        apart = torch.diag_embed(torch.where(moves.coefs, 0.0, diagonal))
        coefs = torch.where(both, information.coefs, 0.0) + apart
        least = (
            1e-4 * sums.n_rows
        )  # bounds steps in flat directions, such as of guessing
        coefs.diagonal(dim1=1, dim2=2).add_(least)
        gradient = Point(
            *(torch.where(m, g, 0.0) for m, g in zip(moves, sums.gradient, strict=True))
        )
        shape_params, width = information.shape_params, coefs.shape[1]
        if shape_params.ndim > 1:  # with the cross information of their location
            features = self._features_of_locations, self._features_of_shape_params
            of_location = moves.coefs[torch.searchsorted(*features)]
            cross = of_location & moves.shape_params[:, None]
            shape_params = shape_params.clone()
            shape_params[:, -width:] *= cross
            rank = rank_among_equals(self._features_of_shape_params)
            shape_params[np.arange(len(rank)), rank] += least
        information = information._replace(coefs=coefs, shape_params=shape_params)
        rescaling = None if self.moves_axes else torch.zeros_like(coefs[0])
        return sums._replace(
            gradient=gradient, information=information, rescaling=rescaling
        )

    @functools.cached_property
    def _shape_blocks(self):
        return shape_blocks(self.likelihood.to(self.X.device), self.n_locations)

    @functools.cached_property
    def _features_of_shape_params(self):
        features = self.likelihood.shape_param_features
        return torch.as_tensor(features, device=self.X.device).long()

    @functools.cached_property
    def _features_of_locations(self):
        args = self.likelihood, self.n_locations, self.X.device
        return features_of_locations(*args)

    def _add_priors(self, sums, point):
        """Add the priors of slopes and of levels that no row has."""
        # Gradients of constant features are set to 0, so that they keep their
        # coefficients.
        if self.unseen is not None:  # observations of these levels at z = 0
            size = len(self.unseen.X)
            z = point.coefs.new_zeros(size, 1, self.n_dims)
            count = UNSEEN_COUNT * sums.n_rows / self.weights.total
            likelihood = self.likelihood.at(point.shape_params)
            args = likelihood, z.new_full((size,), count), self._shape_blocks
            more = row_node_sums(self.unseen, Nodes(z, z[0, :, 0]), point, *args)
            sums = sums._replace(
                value=sums.value + more.value,
                gradient=sums.gradient.plus(more.gradient),
                information=sums.information.plus(more.information),
            )
        gradient, curvature, penalty = self.priors(point)
        fraction = sums.n_rows / self.weights.total
        information = sums.information
        information.coefs.diagonal(dim1=1, dim2=2).add_(fraction * curvature.coefs)
        sums = sums.lowered(penalty / self.weights.total)
        shape_params = information.shape_params
        if len(self._guessing):
            shape_params = shape_params.clone()
            shape_params[:, 0] += fraction * curvature.shape_params
        gradient = sums.gradient.plus(gradient, -fraction)
        gradient.coefs[: self.n_locations] *= self.varies[:, None]
        information = information._replace(shape_params=shape_params)
        return sums._replace(gradient=gradient, information=information)

    @property
    def _guessing(self):
        """Shape parameters that have the prior of logits of guessing."""
        has_prior = self.layout is not None and self.params.guessing_prior is not None
        return self.layout.guessing if has_prior else ()

    def priors(self, point):
        """Return gradient, curvature and value of minus the log priors."""
        # Points, and a float in nats. The curvature is the diagonal of the Hessian.
        slopes = point.coefs[: self.n_locations, :-1]
        *parts, penalty = slope_penalty(slopes, self.params.slope_prior)
        gradient, curvature = (Point(*map(torch.zeros_like, point)) for _ in range(2))
        for whole, part in zip((gradient, curvature), parts, strict=True):
            whole.coefs[: self.n_locations, :-1] = part
        if len(self._guessing):
            mean, deviation = self.params.guessing_prior
            unit = (point.shape_params[self._guessing] - mean) / deviation
            gradient.shape_params[self._guessing] = unit / deviation
            curvature.shape_params[self._guessing] = deviation**-2
            penalty += 0.5 * float((unit**2).sum())
        return gradient, curvature, penalty

    def _parts(self, index, point, joint):
        """Return sums whose total is that of a batch."""
        if not self.shares_nodes:
            return self._row_node_parts(index, point, joint)
        if self.answers is not None and len(index) == self.n_rows:
            grid = self._grid or self.grid(point)
            if self._takes(grid):
                return [self._sums_of_answers(point, joint, grid)]
        steps = spacing(joint, SPACING, self.representative.values)
        max_nodes = SHARED_COST * self.n_row_nodes
        steps = coarsen(steps, max_nodes, [RADIUS] * self.n_dims, MAX_SPACING)
        grid = prior_grid(steps, point.coefs)
        n_blocks = math.ceil(len(index) * len(grid[0]) / CACHE_ENTRIES)

        def parts():
            for part in index.tensor_split(n_blocks):
                X, weight = self.rows(part)
                yield rows_of(X), weight, self.representative.indicators(part, X)

        args = joint.likelihood, self.representative.values, self._shape_blocks
        sums, unresolved = shared_likelihood_sums(parts(), grid, steps, point, *args)
        left = index[torch.cat(unresolved)]
        return [sums, *self._row_node_parts(left, point, joint)]

    def grid(self, point, last=None, max_ratio=1.15):
        """Return a grid that resolves posteriors, or the finest that memory allows."""
        # The last one, if its spacing is at most `max_ratio` times as wide as needed,
        # so that values of successive points have the same error. Where mean or
        # variance of z move the grid reaches as far as that of scores.
        population, joint = self.population(point), self.joint(point)
        # Spacing over the narrowest posterior, in one, two and three dimensions. The
        # relative errors are 2e-7, 2e-5 and 9e-4: nodes in more dimensions cost more.
        spacing_ratio = (1.1, 1.3, 1.6)[self.n_dims - 1]
        steps = shared_steps(joint, spacing_ratio, self.codes, population)
        if last is not None and last.covers(population, RADIUS):
            ratios = [a / b for a, b in zip(last.steps, steps, strict=True)]
            if max(ratios) < max_ratio:
                return last
        may_move = len(point.coefs) > self.n_locations
        return PriorGrid.over(population, steps, WIDE_RADIUS if may_move else RADIUS)

    def place_nodes(self, point):
        """Change the grid of a layout if the point needs it; return whether it did."""
        if self.layout is None or self.answers is None:
            return False
        last, self._grid = self._grid, self.grid(point, self._grid)
        return self._grid is not last

    def _sums_of_answers(self, point, joint, grid):
        """Return the sums of all rows, by a grid that resolves all posteriors."""
        population, z = self.population(point), grid.z
        log_weight = grid.log_weight(population)
        table = joint.table(self.codes, z)
        expected = expectations(self.answers, table, log_weight)
        if self.layout is not None and self.layout.unseen.any():
            count = UNSEEN_COUNT * self.answers.total / self.weights.total
            added = count * self.layout.unseen[..., None] * log_weight[0].exp()
            expected = expected._replace(
                value=expected.value + float((added * table).sum()),
                counts=expected.counts + added,
            )
        total, coefs = self.answers.total, point.coefs[: self.n_locations]
        at = point._replace(coefs=coefs)
        args = joint.likelihood, self.codes, self._shape_blocks
        sums = sums_of_counts(expected, total, z, at, *args)
        if len(point.coefs) == self.n_locations:
            return sums
        unit = (z[:, 0] - population.mean) / population.deviation
        deviation, groups = population.deviation[:, 0], expected.groups
        of_deviation = (groups * (unit**2 - 1)).sum(1)
        gradient = [of_deviation, (groups * unit).sum(1) / deviation]
        n = groups.sum(1)
        information = torch.diag_embed(torch.stack([2 * n, n / deviation**2], 1))
        gradient = torch.cat([sums.gradient.coefs, torch.stack(gradient, 1)])
        information = torch.cat([sums.information.coefs, information])
        return sums._replace(
            gradient=sums.gradient._replace(coefs=gradient),
            information=sums.information._replace(coefs=information),
        )

    @torch.enable_grad()
    def observed_information(self, point, accuracy):
        """Return minus the second derivatives of the LML of all rows, (p, p)."""
        # Without priors. accuracy : of nodes around each row, where rows share none.
        scale = self.weights.total / float(self.weights.values.sum())
        grid = None if self.answers is None else self.grid(point)
        if grid is None or not self._takes(grid):
            rows = rows_of(self.context.standardise(self.X))
            weight = scale * self.weights.values
            return information_by_nodes(rows, weight, self.joint(point), accuracy)

        point, answers = Point(*(part.detach() for part in point)), self.answers
        with torch.no_grad():
            log_weight = grid.log_weight(self.population(point))
            table = self.joint(point).table(self.codes, grid.z)
            _, counts, groups = expectations(answers, table, log_weight)
            variance = self._variance_of_scores(point, grid, table, log_weight)

        def expected(*parts):  # log-probability of answers and z
            at = Point(*parts)
            of_z = (groups * grid.log_weight(self.population(at))).sum()
            return of_z + (counts * self.joint(at).table(self.codes, grid.z)).sum()

        return scale * (information_by_hessian(expected, *point) - variance)

    def _variance_of_scores(self, point, grid, table, log_weight):
        """Return the sum over rows of the variance of scores at nodes, (p, p)."""
        z, population = grid.z, self.population(point)
        coefs, shapes = self.joint(point).scores(self.codes, z)
        n_of_z = point.coefs[self.n_locations :].numel()
        scores = torch.cat([coefs, coefs.new_zeros(n_of_z, *coefs.shape[1:]), shapes])
        features = self._features_of_locations.repeat_interleave(point.coefs.shape[1])
        features = torch.cat(
            [features, features.new_zeros(n_of_z), self._features_of_shape_params]
        )
        n_groups, first = len(population.mean), len(coefs)
        of_groups = z.new_zeros(n_groups, len(scores), len(z))
        if n_of_z:
            unit = (z[:, 0] - population.mean) / population.deviation
            of_z = torch.stack([unit**2 - 1, unit / population.deviation], 1)
            of_z -= (log_weight.exp()[:, None] * of_z).sum(2, keepdim=True)
            for i in range(n_groups):
                of_groups[i, first + 2 * i : first + 2 * i + 2] = of_z[i]
        args = table, log_weight, scores, features, of_groups
        return variance_of_scores(self.answers, *args)

    def _takes(self, grid):
        """Return whether rows of codes share a grid: always with a layout."""
        max_nodes = SHARED_COST * self.n_row_nodes
        return self.layout is not None or len(grid.z) <= max_nodes

    def _row_node_parts(self, index, point, joint):
        """Yield sums of blocks of rows that have nodes of their own."""
        # Posteriors are found for more rows at a time than there are in a block.
        if self.bounds:
            grid = bound_grid(joint, self.context.seed)
            n_entries = len(point.coefs) * len(grid[1])
            for part in chunk_slices(len(index), n_entries, CACHE_ENTRIES):
                X, weight = self.rows(index[part])
                yield bound_sums(rows_of(X), joint, grid, weight, self._shape_blocks)
            return
        rule, likelihood = self.row_rule, joint.likelihood
        for part in chunk_slices(len(index), joint.components.numel(), CACHE_ENTRIES):
            X, weight = self.rows(index[part])
            rows = rows_of(X)
            start = self._modes[index[part]]
            posterior = laplace(rows, joint, tol=MODE_TOLERANCE, start=start)
            self._modes[index[part]] = posterior.mean
            n_entries = len(joint.intercept) * self.n_row_nodes
            for block in chunk_slices(len(X), n_entries, CACHE_ENTRIES // 2):
                taken = rows.take(block)
                nodes = rule.place(rule.groups[0], [posterior.take(block)], taken)
                args = likelihood, weight[block], self._shape_blocks
                yield row_node_sums(taken, nodes, point, *args)
