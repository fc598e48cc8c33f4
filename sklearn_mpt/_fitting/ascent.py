"""Natural gradient ascent of an objective without noise."""

import numpy as np

from sklearn_mpt._fitting.exact_steps import ExactSteps, Move
from sklearn_mpt._fitting.natural_gradient import (
    apply,
    corrected,
    divide,
    full_step,
    with_rescaling,
)
from sklearn_mpt._fitting.phases import best_of_runs


def best_of_points(objective, points, n_epochs):
    """Return the end of the best of several short runs, from points."""
    runs = [Ascent(objective, point, escapes=False) for point in points]
    return best_of_runs(runs, n_epochs).point


class Ascent(ExactSteps):
    """Maximise an objective by natural steps, corrected by those before."""

    # Ends when later epochs would gain less than `tol`, in nats per row. learning_rate
    # : 1 is a full step. escapes : whether to go on from a better point where the end
    # is a saddle. remaining_gain_fraction : of `tol`, below which all later steps may
    # gain. corrected_step_factor : times the bound on full steps is that on corrected
    # ones.

    remaining_gain_fraction = 0.005
    corrected_step_factor = 5.0

    def __init__(self, objective, point, *, learning_rate=1.0, tol=0.0, escapes=True):
        super().__init__(
            point,
            learning_rate=learning_rate,
            min_gain=self.remaining_gain_fraction * tol,
        )
        self.objective, self.log_scale = objective, objective.log_scale
        self.tol, self._escapes = tol, escapes
        self._information = None
        self._rng = np.random.default_rng(0)  # of the order of rows

    def following(self):
        """Return the ascent of the finer objective, from the result, or None."""
        # It goes on with the memory of this one: both objectives have about the same
        # curvature.
        objective = self.objective.exact_objective()
        if objective is None:
            return None
        following = Ascent(
            objective, self.point, learning_rate=self.learning_rate, tol=self.tol
        )
        following._memory, following._information = self._memory, self._information
        return following

    def step(self):
        super().step()
        if self.converged and self._escapes:
            self._escape()

    def _escape(self):
        """Go on from a better point, if this one is a saddle."""
        for candidate, n_epochs in self.objective.escapes(self.point, self.tol):
            if n_epochs:
                candidate = best_of_points(self.objective, [candidate], n_epochs)
            move = self.move(candidate)
            if move.is_finite and move.value > self._now.value + self.tol:
                self.start_at(candidate)
                return

    def move(self, point):
        (batch,) = self.objective.batches(self._rng)
        step = full_step(self.objective, point, batch, self._information, 1.0)
        self._information = step.information
        return Move(step.value, step.gradient.flat(), step, step.is_finite)

    def divide(self, gradient):
        gradient = self.point.with_flat(gradient)
        information = self._now.step.information
        if not getattr(self.objective, "moves_axes", True):
            return divide(gradient, information).flat()
        return with_rescaling(gradient, self.point, information).flat()

    def moved(self, size):
        return apply(self.point, self._now.step, size, self.objective.floor)

    def moved_by(self, step):
        max_step = self.corrected_step_factor * self.objective.rules.max_step
        step = corrected(self._now.step, self.point.with_flat(step), max_step)
        return apply(self.point, step, 1.0, self.objective.floor)

    def displacement(self, point):
        return point.flat() - self.point.flat()

    def _is_at_maximum(self, last_gain):
        is_error = last_gain < self.objective.rules.stop_gain * self.tol
        return is_error or super()._is_at_maximum(last_gain)
