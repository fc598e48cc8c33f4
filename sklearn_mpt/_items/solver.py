"""Steps of item parameters, in the metric of complete data."""

import math

import torch

from sklearn_mpt._optim.steps import (
    ExactSteps,
    Move,
    backtrack,
    falling_size,
)

# Largest change of a parameter, in logits, in a step that is not halved until it gains:
# on masks, or on a part of a stream. With 2.0 streams of 20 and 100 rows of four
# models ended 0.005 to 0.05 nats per row lower.
MAX_STEP = 0.5
# Added to the diagonal of an item's information for each row. It bounds steps in flat
# directions.
MIN_INFORMATION = 1e-4


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
