"""Steps of item parameters, in the metric of complete data."""

import math
from abc import abstractmethod
from typing import NamedTuple

import torch

from sklearn_mpt._optim.loop import Solver
from sklearn_mpt._optim.steps import EPS, QuasiNewton, backtrack, falling_size

# Largest change of a parameter, in logits, in a step that is not halved until it gains:
# on masks, or on a part of a stream. With 2.0 streams of 20 and 100 rows of four
# models ended 0.005 to 0.05 nats per row lower.
MAX_STEP = 0.5
# Added to the diagonal of an item's information for each row. It bounds steps in flat
# directions.
MIN_INFORMATION = 1e-4


class Move(NamedTuple):
    """Value and gradient at a point, in nats per row, and the full step from there."""

    # step : what a model needs to take the step.

    value: float
    gradient: torch.Tensor  # shape: (p,)
    step: object
    is_finite: bool


class ExactSteps(Solver):
    """Take full steps, corrected by those before, until little is left to gain."""

    # A full step divides the gradient by the information of complete data, as the
    # M-step of EM does. If a corrected step loses, the steps before are forgotten, and
    # the full step is halved until it gains. Half of the product of gradient and next
    # step is the gain to expect of all later ones; steps end when it is below
    # `min_gain`, in nats per row. log_scale : added to losses, as in `Objective`.

    log_scale = 0.0

    def __init__(self, point, *, learning_rate=1.0, min_gain=0.0):
        self.point, self.learning_rate, self.min_gain = point, learning_rate, min_gain
        self.loss_curve: list[float] = []
        self.converged = False
        self._memory, self._now = QuasiNewton(), None

    @abstractmethod
    def move(self, point):
        """Return the `Move` at a point."""

    @abstractmethod
    def divide(self, gradient):
        """Return the full step for a gradient at the last point, (p,) each; linear."""

    @abstractmethod
    def moved(self, size):
        """Return the point after a full step of some size."""

    @abstractmethod
    def moved_by(self, step):
        """Return the point after a corrected step, (p,)."""

    @abstractmethod
    def displacement(self, point):
        """Return the difference of a point from the last one, (p,)."""

    def place_nodes(self):
        """Move the nodes of integrals, if it is time; return whether values changed."""
        return False

    @property
    def result(self):
        """The last point."""
        return self.point

    def terminate(self):
        return self.converged

    def start_at(self, point):
        """Go on from a point, without the steps before."""
        self.point, self._now = point, None
        self._memory, self.converged = QuasiNewton(), False

    def begin(self):
        """Evaluate the point from which steps start."""
        self.place_nodes()
        self._now = self.move(self.point)
        if not self._now.is_finite:
            raise FloatingPointError

    def step(self):
        if self._now is None:
            self.begin()
        before = self._now
        point, now = self._better_point()
        if point is None:
            self.converged = True
        else:
            self._memory.add(self.displacement(point), before.gradient, now.gradient)
            self.point, self._now = point, now
            if self.place_nodes():
                self._now = self.move(point)
            self.converged = self._is_at_maximum(now.value - before.value)
        self.loss_curve.append(self.log_scale - self._now.value)

    def _is_at_maximum(self, last_gain):
        """Return whether later steps gain nothing, given the gain of the last one."""
        return self._expected_gain(self._corrected_step()) < self._least_gain

    def _corrected_step(self):
        return self._memory.direction(self._now.gradient, self.divide)

    def _expected_gain(self, step):
        return 0.5 * float(self._now.gradient @ step)

    @property
    def _least_gain(self):
        return max(self.min_gain, EPS * (1 + abs(self._now.value)))

    def _better_point(self):
        """Return a better point and the move there; None twice if there is none."""
        if self._memory:
            step = min(1.0, self.learning_rate) * self._corrected_step()
            found = self._if_better(self.moved_by(step))
            if found:
                return found
            self._memory = QuasiNewton()
        size = self.learning_rate
        gain = self._expected_gain(self.divide(self._now.gradient))
        if not math.isfinite(gain):
            raise FloatingPointError
        while size * gain > self._least_gain:
            found = self._if_better(self.moved(size))
            if found:
                return found
            size /= 2
        return None, None

    def _if_better(self, point):
        """Return a point and the move there; None if it is worse than the last one."""
        move = self.move(point)
        is_better = move.is_finite and move.value >= self._now.value
        return (point, move) if is_better else None


class ItemSolver(ExactSteps):
    """Maximise the log marginal likelihood of items.

    Parameters
    ----------
    objective : ItemObjective
    point : Tensor of shape (p,)
        Parameters at the start.
    tol : float
        Gain of later steps, in nats of the whole log-likelihood for each parameter,
        below which training ends.
    n_before : int
        Number of steps on earlier parts of a stream.

    Attributes
    ----------
    max_tries : int
        Number of sizes of a step on a part that are tried until the value is finite.
    """

    max_tries = 20

    def __init__(self, objective, point, tol=1e-7, n_before=0):
        self.objective = objective
        self._n_rows, self._n_steps = objective.answers.total, n_before
        super().__init__(point, min_gain=tol * len(point) / self._n_rows)

    def place_nodes(self):
        return self.objective.place_nodes(self.point)

    def move(self, point):
        evaluation = self.objective(point)
        if evaluation is None:
            return Move(-math.inf, None, None, is_finite=False)
        n = self._n_rows
        return Move(evaluation.value / n, evaluation.gradient / n, evaluation, True)

    def divide(self, gradient):
        return solve_metric(self.objective, self._now.step, self._n_rows * gradient)

    def moved(self, size):
        return self.point + size * self.divide(self._now.gradient)

    def moved_by(self, step):
        return self.point + step

    def displacement(self, point):
        return point - self.point

    def step_on_part(self):
        """Take one step of EM on a part of a stream; step sizes fall."""
        self.begin()
        direction = self.divide(self._now.gradient)
        direction = shortened(self.objective.layout.items, direction)
        size, _ = backtrack(
            lambda size: self.objective(self.point + size * direction),
            self.max_tries,
            falling_size(self._n_steps),
        )
        self.point = self.point + size * direction
        self.loss_curve.append(-self._now.value)


def shortened(items, direction):
    """Shorten the step of each item: no parameter changes by more than `MAX_STEP`."""
    # Each item is shortened alone: if a parameter has no maximum, such as the logit of
    # guessing where nobody guesses, the steps of other items stay long.
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
