r"""Quasi-Newton steps of item parameters.

Full steps divide the gradient by the information of complete data, as the M-step of EM
does. Limited-memory BFGS estimates from the steps how much smaller the information is
because z is not observed [1]_.

References
----------
.. [1] K. Lange, "A quasi-Newton acceleration of the EM algorithm", Statistica Sinica 5,
   1995.
"""

import math

import torch

from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._fitting.fit_loop import Solver, run
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import fall_of_lowest

# Largest change of a parameter, in logits, in a step that is not halved until it gains:
# on masks, or on a part of a stream. With 2.0 streams of 20 and 100 rows of four
# models ended 0.005 to 0.05 nats per row lower.
MAX_STEP = 0.5
# Added to the diagonal of an item's information for each row. It bounds steps in flat
# directions.
MIN_INFORMATION = 1e-4


class ItemSolver(Solver):
    """Limited-memory BFGS in the metric of complete data.

    Parameters
    ----------
    objective : ItemObjective
    point : Tensor of shape (p,)
        Parameters at the start.
    tol : float
        Gain of later steps, in nats of the whole log-likelihood for each parameter,
        below which training ends: half of the last step times the gradient.
    n_before : int
        Number of steps on earlier parts of a stream.

    Attributes
    ----------
    max_tries : int
        Number of sizes of a step that are tried.
    moves_without_gain : int
        Number of moves of the nodes of rows whose gain is compared with the next.
    gain_over_moves : float
        Gain over these moves, in nats per row, below which training ends: the noise of
        nodes hides smaller ones.
    """

    max_tries = 20
    moves_without_gain, gain_over_moves = 3, 1e-4

    def __init__(self, objective, point, tol=1e-7, n_before=0):
        self.objective = objective
        self.point = point
        self.tol = tol * len(point)
        self.loss_curve = []
        self._memory = QuasiNewton(lengthens=True)
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
        direction = self._direction(now)
        slope = float(now.gradient @ direction)
        if not slope > 0:
            self._memory = QuasiNewton(lengthens=True)
            direction = solve_metric(self.objective, now, now.gradient)
            slope = float(now.gradient @ direction)
            if not math.isfinite(slope):
                raise FloatingPointError

        def gaining(size):
            evaluation = self.objective(self.point + size * direction)
            is_gain = evaluation is not None and evaluation.value >= now.value
            return evaluation if is_gain else None

        size, evaluation = backtrack(gaining, self.max_tries)
        n_rows = self.objective.answers.total
        if evaluation is None:
            self._is_over = not self._memory
            self._memory = QuasiNewton(lengthens=True)
            self.loss_curve.append(-now.value / n_rows)
            return
        moved = size * direction
        self._memory.add(moved, now.gradient, evaluation.gradient)
        self.point = self.point + moved
        self._now = evaluation
        self.loss_curve.append(-evaluation.value / n_rows)
        if self.objective.place_nodes(self.point):
            self._now = self.objective(self.point)
            if self.objective.has_node_noise:
                self._is_over = self._is_at_noise()
                return
        remaining_gain = 0.5 * float(self._now.gradient @ self._direction(self._now))
        self._is_over = remaining_gain < self.tol

    def terminate(self):
        if self._is_over and self.objective.refine():
            self._is_over, self._memory = False, QuasiNewton(lengthens=True)
            self._evaluate()
        return self._is_over

    def _is_at_noise(self):
        """Return whether values at nodes that moved have not risen for some moves."""
        losses = self._losses_at_new_nodes
        losses.append(-self._now.value)
        if losses[-1] <= min(losses):
            self._best = self.point
        n, n_rows = self.moves_without_gain, self.objective.answers.total
        min_gain = max(self.tol, self.gain_over_moves * n_rows)
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
            self.max_tries,
            falling_size(self._n_steps),
        )
        self.point = self.point + size * direction
        self.loss_curve.append(-now.value / self.objective.answers.total)


def shortened(items, direction):
    """Shorten the step of each item: no parameter changes by more than `MAX_STEP`.

    Each item is shortened alone: if a parameter has no maximum, such as the logit of
    guessing where nobody guesses, the steps of other items stay long.
    """
    direction = direction.clone()
    for block in items.blocks:
        part = direction[block.parameters].view(len(block.items), -1)
        part *= (MAX_STEP / part.abs().amax(1, keepdim=True)).clamp(max=1.0)
    rest = direction[items.n_parameters :]
    rest.clamp_(-MAX_STEP, MAX_STEP)
    return direction


def solve_metric(objective, now, vector):
    """Multiply a flat vector by the inverse of the metric."""
    solution = torch.empty_like(vector)
    least = MIN_INFORMATION * objective.answers.total
    for block, information in zip(
        objective.layout.items.blocks, now.metric, strict=True
    ):
        damped = information.clone()
        damped.diagonal(dim1=1, dim2=2).add_(least)
        part = vector[block.parameters].reshape(len(block.items), -1, 1)
        solution[block.parameters] = torch.linalg.solve(damped, part).flatten()
    first = objective.layout.items.n_parameters
    solution[first:] = vector[first:] / now.population_metric
    return solution


def maximise(objective, point, tol=1e-7, max_iter=500):
    """Return the parameters at the maximum, and the value there."""
    solver = ItemSolver(objective, point, tol)
    run(solver, max_iter)
    return solver.point, solver._now.value
