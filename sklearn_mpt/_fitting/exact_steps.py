"""Quasi-Newton steps of an objective without noise."""

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._fitting.fit_loop import Solver

# Relative error of values: no smaller gain is seen.
EPS = float(np.finfo(float).eps)


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
