r"""Marginal maximum likelihood of item parameters, by quasi-Newton steps.

Let :math:`r_{is}` be the posterior weights of nodes :math:`z_s` given the answers of
row i. The gradient of the log marginal likelihood is that of the expected
log-likelihood of complete data (Fisher's identity): the derivatives of the item curves,
weighted by the expected numbers of answers
:math:`n_{jcs} = \sum_{i: x_{ij} = c} r_{is}` [1]_. The metric of the steps is the
Fisher information of complete data, one block for each item, as in the M-step of EM.
Limited-memory BFGS estimates from the steps how much smaller the information is because
z is not observed [2]_.

References
----------
.. [1] R. D. Bock and M. Aitkin, "Marginal maximum likelihood estimation of item
   parameters: application of an EM algorithm", Psychometrika 46, 1981.
.. [2] K. Lange, "A quasi-Newton acceleration of the EM algorithm", Statistica Sinica 5,
   1995.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.priors import UNSEEN_COUNT, slope_penalty
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import fall_of_lowest, gains_are_below
from sklearn_mpt._integration.prior_grid import WIDE_RADIUS, Population, PriorGrid
from sklearn_mpt._integration.quadrature import total_and_shares
from sklearn_mpt._items.spacing import TRAINING, spacing
from sklearn_mpt._numbers import TINY


@dataclass(frozen=True)
class ItemSteps:
    """Sizes of the steps of item models, when they end, and when grids change.

    Attributes
    ----------
    max_step, max_masked_step : float
        Largest change of a parameter in a step, and in a step by masks, in logits.
    armijo : float
        Least share of the gain that the slope promises which a step must have.
    max_tries : int
        Number of sizes of a step that are tried.
    max_scale : float
        Largest factor of full steps by the last one; see `QuasiNewton`.
    ridge : float
        Added to the diagonal of an item's information, relative to it.
    min_information : float
        Added too, for each row: it bounds steps in flat directions.
    moves_without_gain : int
        Number of moves of the nodes of rows whose gain is compared with the next.
    gain_over_moves : float
        Gain over these moves, in nats per row, below which training ends: the noise of
        nodes hides smaller ones.
    max_ratio, min_ratio : float
        Ratios of the grid's spacing to the needed one beyond which the grid changes.
    radius : float
        How far grids must reach, in standard deviations of z. If mean or variance of z
        are free, grids reach as far as those of scores, so that the population may
        move a little before they change.
    window : int
        Number of steps by masks whose mean loss is compared with that of the next.
    min_masked_steps, max_masked_steps : int
        Least and largest number of steps by masks.
    """

    max_step: float = 2.0
    max_masked_step: float = 0.5
    armijo: float = 1e-4
    max_tries: int = 20
    max_scale: float = 10.0
    ridge: float = 1e-6
    min_information: float = 1e-4
    moves_without_gain: int = 3
    gain_over_moves: float = 1e-4
    max_ratio: float = 1.15
    min_ratio: float = 0.6
    radius: float = 6.0
    window: int = 5
    min_masked_steps: int = 20
    max_masked_steps: int = 200


STEPS = ItemSteps()


class Priors(NamedTuple):
    """Normal priors of slopes and of logits of guessing.

    slope : standard deviation, or None. guessing : mean and standard deviation of the
    logit, or None.
    """

    slope: float | None = None
    guessing: tuple[float, float] | None = None


NO_PRIORS = Priors()


class ParameterLayout(NamedTuple):
    """Layout of the flat parameters: those of items, then the free ones of z.

    free_mean, free_variance : whether mean and variance of z are free, bool (g,).
    """

    items: object
    free_mean: np.ndarray
    free_variance: np.ndarray

    @property
    def n_parameters(self):
        return self.items.n_parameters + int(
            self.free_mean.sum() + self.free_variance.sum()
        )

    @property
    def places(self):
        """Places of the free means and of the free log deviations."""
        first = self.items.n_parameters
        middle = first + int(self.free_mean.sum())
        return slice(first, middle), slice(middle, self.n_parameters)

    def population(self, point):
        n_dims, n_groups = self.items.n_dims, len(self.free_mean)
        mean, deviation = point.new_zeros(n_groups), point.new_ones(n_groups)
        mean_places, deviation_places = self.places
        mean[torch.from_numpy(self.free_mean)] = point[mean_places]
        deviation[torch.from_numpy(self.free_variance)] = point[deviation_places].exp()
        return Population(
            mean[:, None].repeat(1, n_dims), deviation[:, None].repeat(1, n_dims)
        )

    def free(self, means, log_deviations):
        """Return what belongs to the free means and log deviations, of (g,) each."""
        parts = (means, self.free_mean), (log_deviations, self.free_variance)
        return torch.cat([part[torch.from_numpy(is_free)] for part, is_free in parts])

    def population_params(self, mean, variance):
        """Return the end of the flat parameters, given means and variances (g,)."""
        return np.concatenate(
            [mean[self.free_mean], 0.5 * np.log(variance[self.free_variance])]
        )


class ExpectedCounts(NamedTuple):
    """Log-likelihood of rows, and expected numbers at nodes.

    counts : expected numbers of answers, (d, c, s). groups : of rows, (g, s).
    """

    value: float
    counts: torch.Tensor
    groups: torch.Tensor


def expectations(answers, table, log_weight):
    """Compute the E-step of EM."""
    n_nodes = table.shape[2]
    sums = table.new_zeros(answers.columns, n_nodes)
    groups = table.new_zeros(log_weight.shape)
    differences, base = answers.coefficients(table)
    value = 0.0
    for rows in answers.blocks(n_nodes):
        indicators, group = answers.indicators(rows), answers.group[rows]
        start = (
            (base + log_weight)[group] if len(log_weight) > 1 else base + log_weight[0]
        )
        total, share = total_and_shares(torch.addmm(start, indicators, differences))
        weight = answers.weight[rows]
        value += float(weight @ total)
        share *= weight[:, None]
        sums.addmm_(indicators.T, share)
        if len(log_weight) > 1:
            groups.index_add_(0, group, share)
        else:
            groups[0] += share.sum(0)
    return ExpectedCounts(value, answers.counts(sums, groups.sum(0)), groups)


class Evaluation(NamedTuple):
    """The objective at given parameters: value, gradient (p,) and metric.

    metric : for each block of items, (j, q, q). population_metric : metric of the means
    and log deviations of z, (f,).
    """

    value: float
    gradient: torch.Tensor
    metric: list
    population_metric: torch.Tensor


class ItemObjective:
    """The log marginal likelihood of answers, with priors.

    Parameters
    ----------
    answers : Answers
    layout : ParameterLayout
    priors : Priors
    unseen : Tensor of bool, of shape (d, c)
        Categories that nobody chose.
    """

    has_node_noise = False  # whether values change where nodes move

    def __init__(self, answers, layout, priors=NO_PRIORS, unseen=None):
        self.answers = answers
        self.layout = layout
        self.priors = priors
        self.unseen = None if unseen is None or not bool(unseen.any()) else unseen
        self.grid = None

    def place_nodes(self, point):
        """Change the grid if the parameters need it; return whether it changed."""
        layout = self.layout
        population = layout.population(point)
        steps = spacing(layout.items, point, population, TRAINING)
        if self.grid is not None:
            ratio = [old / new for old, new in zip(self.grid.steps, steps, strict=True)]
            if (
                max(ratio) < STEPS.max_ratio
                and min(ratio) > STEPS.min_ratio
                and self.grid.covers(population, STEPS.radius)
            ):
                return False
        may_move = layout.n_parameters > layout.items.n_parameters
        radius = WIDE_RADIUS if may_move else STEPS.radius
        self.grid = PriorGrid.over(population, steps, radius)
        return True

    def expect(self, point):
        """Return curves and expected numbers at given parameters."""
        items = self.layout.items
        curves = items.curves(point, self.grid.z)
        log_weight = self.grid.log_weight(self.layout.population(point))
        expected = expectations(self.answers, items.table(curves), log_weight)
        if self.unseen is not None:
            table, weight = items.table(curves), UNSEEN_COUNT * log_weight[0].exp()
            added = self.unseen[:, :, None] * weight
            value = expected.value + float((added * table).sum())
            expected = expected._replace(value=value, counts=expected.counts + added)
        return curves, expected

    def __call__(self, point):
        if not self.layout.items.is_valid(point):
            return None
        value, sums, groups = self._sums(point)
        gradient, metric = torch.zeros_like(point), []
        for block, part in zip(self.layout.items.blocks, sums, strict=True):
            slope, information = part
            value -= self._add_priors(block, point, slope, information)
            gradient[block.parameters] = slope.flatten()
            metric.append(information)
        first = self.layout.items.n_parameters
        gradient[first:] = self._population_gradient(point, groups)
        population_metric = self._population_metric(point, groups.sum(1))
        if not math.isfinite(value):
            return None
        return Evaluation(value, gradient, metric, population_metric)

    def _sums(self, point):
        """Return the log-likelihood, gradient and information of each block, groups.

        groups : expected numbers of rows at nodes, (g, s).
        """
        curves, expected = self.expect(point)
        sums = []
        for block, curve in zip(self.layout.items.blocks, curves, strict=True):
            counts = expected.counts[block.items, : block.kind.n_categories]
            sums.append(block_sums(block, curve, counts, self.grid.z))
        return expected.value, sums, expected.groups

    def refine(self):
        """Add nodes, if errors of integration can fall so; return whether it did."""
        return False

    def _add_priors(self, block, point, slope, information):
        values = point[block.parameters].reshape(slope.shape)
        steep = values[:, block.steep]
        diagonal = information.diagonal(dim1=1, dim2=2)
        penalty = 0.0
        if steep.shape[1]:
            pull, curvature, penalty = slope_penalty(steep, self.priors.slope)
            slope[:, block.steep] -= pull
            diagonal[:, block.steep] += curvature
        if self.priors.guessing is not None and block.kind.is_guessed:
            mean, deviation = self.priors.guessing
            deviation_of_slopes = (values[:, -1] - mean) / deviation
            slope[:, -1] -= deviation_of_slopes / deviation
            diagonal[:, -1] += deviation**-2
            penalty += 0.5 * float((deviation_of_slopes**2).sum())
        return penalty

    def prior_curvature(self, block, point):
        """Return the diagonal of minus the Hessian of the log prior; (j, q)."""
        values = point[block.parameters].reshape(len(block.items), block.width)
        curvature = torch.zeros_like(values)
        steep = values[:, block.steep]
        if steep.shape[1]:
            curvature[:, block.steep] += slope_penalty(steep, self.priors.slope)[1]
        if self.priors.guessing is not None and block.kind.is_guessed:
            curvature[:, -1] += self.priors.guessing[1] ** -2
        return curvature

    def _population_gradient(self, point, groups):
        """Return the gradient in the free means and log deviations; (f,).

        groups : derivatives in the log weights of nodes, (g, s).
        """
        population = self.layout.population(point)
        mean, deviation = population.mean[:, 0], population.deviation[:, 0]
        difference = self.grid.z[:, 0] - mean[:, None]
        means = (groups * difference).sum(1) / deviation**2
        squares = (groups * difference**2).sum(1) / deviation**2
        return self.layout.free(means, squares - groups.sum(1))

    def _population_metric(self, point, n_rows):
        """Return the metric of the free means and log deviations; (f,).

        n_rows : in each group, (g,).
        """
        deviation = self.layout.population(point).deviation[:, 0]
        return self.layout.free(n_rows / deviation**2, 2 * n_rows)


def block_sums(block, curve, counts, z):
    """Return the gradient (j, p) of expected log-probabilities, and the information.

    The information, (j, p, p), is that of complete data.
    """
    n_rows = counts.sum(1)  # shape: (j, s)
    if block.kind.is_logistic:
        return _of_logits(block, curve, counts[:, 1], n_rows, z)
    prob = curve.log_prob.exp()
    scores = block.scores(curve, z)
    gradient = torch.einsum("jpcs,jcs->jp", scores, counts)
    weighted = scores * (n_rows[:, None] * prob)[:, None]
    information = weighted.flatten(2) @ scores.flatten(2).mT
    return gradient, information


def _of_logits(block, curve, n_ones, n_rows, z):
    """Compute `block_sums` for two categories whose logit is linear in z."""
    ones = torch.ones_like(z[:, :1])
    z1 = torch.cat([z, ones], 1) if block.kind.has_slope else ones
    wrong, right = curve.eta[:, 1], -curve.eta[:, 0]  # probabilities
    expected = n_rows * right
    gradient = (n_ones - expected) @ z1
    outer = (z1[:, :, None] * z1[:, None]).flatten(1)
    information = (expected * wrong) @ outer
    return gradient, information.unflatten(1, (z1.shape[1], -1))


class ItemSolver(Solver):
    """Limited-memory BFGS in the metric of complete data.

    Parameters
    ----------
    objective : ItemObjective
    point : Tensor of shape (p,)
        Parameters at the start.
    tol : float
        Gain, in nats of the whole log-likelihood for each parameter, below which
        training ends.
    n_before : int
        Number of steps on earlier parts of a stream.
    """

    def __init__(self, objective, point, tol=1e-7, n_before=0):
        self.objective = objective
        self.point = point
        self.tol = tol * len(point)
        self.loss_curve = []
        self._memory = QuasiNewton(STEPS.max_scale)
        self._n_steps = n_before
        self._is_over = False
        self._now = None
        self._losses_at_new_nodes, self._best = [], point

    @property
    def result(self):
        """The last point; with noise of nodes, the best one at nodes that had moved."""
        return self._best if self.objective.has_node_noise else self.point

    def init(self, max_iter):
        self._evaluate()

    def _evaluate(self):
        self.objective.place_nodes(self.point)
        self._now = self.objective(self.point)
        if self._now is None:
            raise FloatingPointError
        self._losses_at_new_nodes, self._best = [-self._now.value], self.point

    def step(self):
        now = self._now
        items = self.objective.layout.items
        direction = shortened(items, self._direction(now))
        slope = float(now.gradient @ direction)
        if not slope > 0:
            self._memory = QuasiNewton(STEPS.max_scale)
            direction = solve_metric(self.objective, now, now.gradient)
            direction = shortened(items, direction)
            slope = float(now.gradient @ direction)
            if not math.isfinite(slope):
                raise FloatingPointError

        def gaining(size):
            evaluation = self.objective(self.point + size * direction)
            least = now.value + STEPS.armijo * size * slope
            is_gain = evaluation is not None and evaluation.value >= least
            return evaluation if is_gain else None

        # smaller gains are rounding errors
        min_size = 0.01 * self.tol / max(slope, TINY)
        size, evaluation = backtrack(gaining, STEPS.max_tries, min_size=min_size)
        n_rows = self.objective.answers.total
        if evaluation is None:
            self._is_over = not self._memory
            self._memory = QuasiNewton(STEPS.max_scale)
            self.loss_curve.append(-now.value / n_rows)
            return
        moved = size * direction
        self._memory.add(moved, now.gradient, evaluation.gradient)
        self.point = self.point + moved
        gained = evaluation.value - now.value
        self._now = evaluation
        self.loss_curve.append(-evaluation.value / n_rows)
        if self.objective.place_nodes(self.point):
            self._now = self.objective(self.point)
            if self.objective.has_node_noise:
                self._is_over = self._is_at_noise()
                return
        remaining_gain = 0.5 * float(self._now.gradient @ self._direction(self._now))
        self._is_over = gains_are_below(self.tol, gained, remaining_gain, patience=10)

    def terminate(self):
        if self._is_over and self.objective.refine():
            self._is_over, self._memory = False, QuasiNewton(STEPS.max_scale)
            self._evaluate()
        return self._is_over

    def _is_at_noise(self):
        """Return whether values at nodes that moved have not risen for some moves."""
        losses = self._losses_at_new_nodes
        losses.append(-self._now.value)
        if losses[-1] <= min(losses):
            self._best = self.point
        n, n_rows = STEPS.moves_without_gain, self.objective.answers.total
        min_gain = max(self.tol, STEPS.gain_over_moves * n_rows)
        return len(losses) > n and fall_of_lowest(losses, n) <= min_gain

    def _direction(self, now):
        """Return the full step, corrected by the last ones."""
        return self._memory.direction(
            now.gradient, lambda gradient: solve_metric(self.objective, now, gradient)
        )

    def step_on_part(self):
        """Take one step of EM on a part of a stream; step sizes fall."""
        self._evaluate()
        now = self._now
        direction = solve_metric(self.objective, now, now.gradient)
        direction = shortened(self.objective.layout.items, direction)
        size, _ = backtrack(
            lambda size: self.objective(self.point + size * direction),
            STEPS.max_tries,
            falling_size(self._n_steps),
        )
        self.point = self.point + size * direction
        self.loss_curve.append(-now.value / self.objective.answers.total)


def shortened(items, direction):
    """Shorten the step of each item: no parameter changes by more than `max_step`.

    Each item is shortened alone: if a parameter has no maximum, such as the logit of
    guessing where nobody guesses, the steps of other items stay long.
    """
    direction = direction.clone()
    for block in items.blocks:
        part = direction[block.parameters].view(len(block.items), -1)
        part *= (STEPS.max_step / part.abs().amax(1, keepdim=True)).clamp(max=1.0)
    rest = direction[items.n_parameters :]
    rest.clamp_(-STEPS.max_step, STEPS.max_step)
    return direction


def solve_metric(objective, now, vector):
    """Multiply a flat vector by the inverse of the metric."""
    solution = torch.empty_like(vector)
    least = STEPS.min_information * objective.answers.total
    for block, information in zip(
        objective.layout.items.blocks, now.metric, strict=True
    ):
        damped = information.clone()
        diagonal = damped.diagonal(dim1=1, dim2=2)
        diagonal += STEPS.ridge * diagonal + least
        part = vector[block.parameters].reshape(len(block.items), -1, 1)
        solution[block.parameters] = torch.linalg.solve(damped, part).flatten()
    first = objective.layout.items.n_parameters
    solution[first:] = vector[first:] / now.population_metric
    return solution


def maximise(objective, point, tol=1e-7, max_iter=500):
    """Return the parameters at the maximum, and the value there."""
    solver = ItemSolver(objective, point, tol)
    solver.init(max_iter)
    for _ in range(max_iter):
        solver.step()
        if solver.terminate():
            break
    return solver.point, solver._now.value
