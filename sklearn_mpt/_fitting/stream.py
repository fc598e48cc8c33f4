"""Natural gradient ascent on the parts of a stream, and the average of its points."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.natural_gradient import (
    Curvature,
    Point,
    align,
    apply,
    as_arrays,
    full_step,
    gain_at,
    mix,
)
from sklearn_mpt._fitting.saddles import DENSE_FEATURES, with_missing_components
from sklearn_mpt._fitting.schedules import falling_size, share_of_last
from sklearn_mpt._matrices import identity


class StreamAscent(Solver):
    """Maximise the objective of a stream, one part after the other.

    Step sizes fall with the number of steps before, in all parts, and points are
    averaged, with larger weights for later ones. Each part has a solver;
    `load` gives it the state of the one before.

    Parameters
    ----------
    objective : Objective
        As in `ascent`, for the rows of the part.
    point : Point
        Parameters at the start.
    learning_rate : float
        Factor of all step sizes.
    rng : numpy.random.Generator
        Source of batches.
    n_before : int
        Number of steps that led to `point`.

    Attributes
    ----------
    first_size : float
        Size of the first step; sizes fall as those of `ascent`.
    average_power : int
        Points are averaged with this power of the number of their step as weight, so
        that the first ones count little.
    min_share : float
        Least weight of a batch in the average of the information.
    min_gain : float
        Least gain, in nats per row, for which a component is replaced.
    first_test : int
        Number of steps before components are tested for saddles, and then as many again
        after each test.
    """

    first_size = 0.5
    average_power = 3
    min_share = 0.05
    min_gain = 1e-3
    first_test = 2

    def __init__(self, objective, point, *, learning_rate, rng, n_before=0):
        self.objective = objective
        self.point = self._average = point  # after the last step, and of all
        self.learning_rate = learning_rate
        self.rng = rng
        self.loss_curve: list[float] = []
        self._n_steps = n_before
        self._information = None
        self._next_test = self.first_test
        self._unexplained = None  # in the parts since the last test

    @property
    def result(self):
        """The average of the points."""
        return self._average

    def step(self):
        """Take one pass over the part."""
        batches = list(self.objective.batches(self.rng))
        self._replace_weak_components(batches[0])
        values = [self._step(batch) for batch in batches]
        self.loss_curve.append(-float(np.mean(values)))

    def terminate(self):
        return False

    def _replace_weak_components(self, batch):
        """Replace components by directions that are missing in all recent parts.

        All parts since the last test are used, because the rows of a single part have
        strong directions by chance, which hide weak components.
        """
        point = self.point
        part = UnexplainedSlopes(*self.objective.slopes(point), self.objective.n_rows)
        self._unexplained = unexplained = part.averaged_with(self._unexplained)
        if self._n_steps < self._next_test:
            return
        self._unexplained, self._next_test = None, 2 * self._n_steps
        product, information, n_rows = unexplained
        candidate = with_missing_components(
            point, product, information, self.min_gain, n_rows
        )
        if (
            candidate is None
            or gain_at(candidate, point, self.objective, batch) <= self.min_gain
        ):
            return
        self.point = self._average = candidate
        self._n_steps, self._next_test = 0, self.first_test

    def _step(self, batch):
        """Take a step, whose size falls with the number of steps, and average."""
        point = align(self.point, self._average)
        share = max(self.min_share, 1 / (self._n_steps + 1))
        move = full_step(self.objective, point, batch, self._information, share)
        self._information = move.information
        if not move.is_finite:
            raise FloatingPointError
        size = self.first_size * falling_size(self._n_steps)
        self._n_steps += 1
        size *= self.learning_rate
        self.point = apply(point, move, size, self.objective.floor)
        share = share_of_last(self._n_steps, self.average_power)
        self._average = mix(self._average, self.point, share)
        return move.value

    def state(self):
        return {
            "n_steps": self._n_steps,
            "point": as_arrays(self.point),
            "average": as_arrays(self._average),
            "information": as_arrays(self._information or ()),
            "next_test": self._next_test,
            "unexplained": self._unexplained.as_arrays() if self._unexplained else [],
        }

    def load(self, state):
        if not state:
            return
        tensor = self.point.coefs.new_tensor
        self.point = Point(*map(tensor, state["point"]))
        self._average = Point(*map(tensor, state["average"]))
        if state["information"]:
            self._information = Curvature(*map(tensor, state["information"]))
        self._n_steps, self._next_test = state["n_steps"], state["next_test"]
        if state["unexplained"]:
            self._unexplained = UnexplainedSlopes.from_arrays(
                state["unexplained"], tensor
            )


class UnexplainedSlopes(NamedTuple):
    """The mean of s s' over the parts of a stream since the last test.

    With more than `DENSE_FEATURES` features only the last part is kept, because the
    mean over parts needs a matrix (d, d).
    """

    product: Callable  # from V, (d, q), to the mean of s s' V over rows
    information: torch.Tensor  # of each location, (d,)
    n_rows: float

    def averaged_with(self, before):
        """Return the average of this part and those before, which may be None."""
        if before is None or not self._is_narrow:
            return self
        n_rows = self.n_rows + before.n_rows
        share = before.n_rows / n_rows
        matrix = torch.lerp(self._matrix, before._matrix, share)
        information = torch.lerp(self.information, before.information, share)
        return UnexplainedSlopes(matrix.matmul, information, n_rows)

    @property
    def _is_narrow(self):
        return len(self.information) <= DENSE_FEATURES

    @property
    def _matrix(self):
        return self.product(identity(len(self.information), self.information))

    def as_arrays(self):
        """Return the arrays for `from_arrays`; empty if there are many features."""
        if not self._is_narrow:
            return []
        return [self._matrix.cpu().numpy(), self.information.cpu().numpy(), self.n_rows]

    @classmethod
    def from_arrays(cls, arrays, tensor):
        matrix, information, n_rows = arrays
        return cls(tensor(matrix).matmul, tensor(information), n_rows)
