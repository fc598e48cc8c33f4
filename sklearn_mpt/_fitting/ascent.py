"""Natural gradient ascent of an objective without noise.

`objective` says what is maximised, and `noisy_ascent` has the ascent with noise.
"""

import math

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver
from sklearn_mpt._fitting.natural_gradient import (
    apply,
    corrected,
    full_step,
    with_rescaling,
)
from sklearn_mpt._fitting.phases import best_of_short_runs
from sklearn_mpt._fitting.stopping import gain_to_come
from sklearn_mpt._numbers import ROUNDING


def best_of_points(objective, points, n_epochs):
    """Return the end of the best of several short runs, from points."""
    runs = [Ascent(objective, point, escapes=False) for point in points]
    best = best_of_short_runs(runs, n_epochs)
    best.check()
    return best.point


class Ascent(Solver):
    """Maximise an objective by natural steps, corrected by those before.

    A step after which the value is lower is halved.

    Parameters
    ----------
    objective : Objective
        Without noise.
    point : Point
        Parameters at the start.
    learning_rate : float
        Size of the first steps; 1 is a full one.
    tol : float
        Training ends when later epochs would gain less, in nats per row.
    escapes : bool
        Whether to go on from a better point where the end is a saddle.

    Attributes
    ----------
    loss_curve : list of float
        Minus the value of each epoch.
    converged : bool
    remaining_gain_share : float
        Steps end when all later ones gain a smaller share of `tol`.
    warn_gain_factor : float
        A warning is given if later steps gain more, in units of `tol`.
    min_size : float
        A step is halved until its size, 1 for a full step, is smaller.
    corrected_step_factor : float
        Bound on corrected steps, as a multiple of that on full steps.
    """

    remaining_gain_share = 0.005
    warn_gain_factor = 30.0
    min_size = 1e-6
    corrected_step_factor = 5.0

    def __init__(self, objective, point, *, learning_rate=1.0, tol=0.0, escapes=True):
        self.objective = objective
        self.point = point
        self.learning_rate = learning_rate
        self.loss_curve: list[float] = []
        self.converged = False
        self._tol, self._escapes = tol, escapes
        self._n_idle_steps = 0
        self._last = None  # point, move and size of the last step
        self._step_share = 1.0
        self._memory, self._information = QuasiNewton(), None
        self._rng = np.random.default_rng(0)  # of the order of rows
        # Gain of the last step, and of all later steps.
        self._last_gain, self._remaining_gain = 0.0, 0.0

    @property
    def result(self):
        """The last point."""
        return self.point

    def terminate(self):
        return self.converged

    def following(self):
        """Return the ascent of the finer objective, from the result; None if none is.

        It goes on with the memory of this one, because both objectives have about the
        same curvature.
        """
        objective = self.objective.exact_objective()
        if objective is None:
            return None
        self.check()
        following = Ascent(
            objective, self.point, learning_rate=self.learning_rate, tol=self._tol
        )
        following._memory, following._information = self._memory, self._information
        return following

    def close(self):
        """Warn if the ascent has converged and much gain is left."""
        least = self.warn_gain_factor * self._tol
        if self.converged and least < self._remaining_gain < math.inf:
            warn_caller(
                f"tol={self._tol} ended a fit whose objective still climbs, ever more "
                f"slowly: epochs to come would gain about {self._remaining_gain:.2g} "
                "nats per row in all. Set a smaller tol.",
                ConvergenceWarning,
            )

    def check(self):
        """Undo the last step if the value after it, not known yet, is lower.

        A step after convergence is undone in any case: it gains next to nothing.
        """
        if self._last is not None and (self.converged or self._has_lost()):
            self.recover()
        self._last = None

    def _has_lost(self):
        try:
            return self._has_overshot(self._move())
        except DIVERGENCE:
            return True

    def recover(self):
        """Go back to the last point whose value and step are finite."""
        if self._last is not None:
            self.point = self._last[0]

    def interrupt(self):
        self.recover()

    def step(self):
        """Take one step."""
        move = self._move()
        if self._has_overshot(move):
            value = self._last[1].value
            self._halve_step(move)
        else:
            value = move.value
            self._go_on(move)
        self.loss_curve.append(-value)
        if self.converged and self._escapes:
            self._escape(value)

    def _escape(self, value):
        """Go on from a better point, if this one is a saddle."""
        end = self.point, self._last
        for candidate, n_epochs in self.objective.escapes(self.point, self._tol):
            if n_epochs:
                candidate = best_of_points(self.objective, [candidate], n_epochs)
            self.point, self._last = candidate, None
            if self._move().value > value + self._tol:
                self._memory, self.converged = QuasiNewton(), False
                self._step_share, self._n_idle_steps = 1.0, 0
                return
            self.point, self._last = end

    def _move(self):
        (batch,) = self.objective.batches(self._rng)
        move = full_step(self.objective, self.point, batch, self._information, 1.0)
        self._information = move.information
        return move

    def _go_on(self, move):
        if self._last is not None:
            before, last, _ = self._last
            moved = self.point.flat() - before.flat()
            self._memory.add(moved, last.gradient.flat(), move.gradient.flat())
        self._step_share = min(1.0, 2 * self._step_share)
        self._check_convergence(move)
        self._advance(move)

    def _advance(self, move):
        """Take a step; correct it by the last ones if it is a full one."""
        size = self.learning_rate * self._step_share
        floor, before = self.objective.floor, self.point
        self.point = apply(before, move, size, floor)
        self._last = before, move, size
        if size == 1 and self._memory:

            def divided(gradient):
                gradient = before.with_flat(gradient)
                return with_rescaling(gradient, before, move.information).flat()

            step = self._memory.direction(move.gradient.flat(), divided)
            max_step = self.corrected_step_factor * self.objective.rules.max_step
            step = corrected(move, before.with_flat(step), max_step)
            self.point = apply(before, step, 1.0, floor)
            self._last = before, move, 2.0  # half of it is the full step

    def _has_overshot(self, move):
        if self._last is None:
            if not move.is_finite:
                raise FloatingPointError
            return False
        before = self._last[1].value
        rounding = ROUNDING * (1 + abs(before))
        least = max(rounding, self.objective.rules.node_noise * self._tol)
        return not (move.is_finite and move.value >= before - least)

    def _halve_step(self, overshot):
        point, move, size = self._last
        self._memory = QuasiNewton()
        fall = move.value - overshot.value
        # full steps rise, but for errors of nodes: these exceed the gains now
        is_error = (
            size <= 1 and self.objective.rules.node_noise > 0 and fall < self._tol
        )
        if size < self.min_size or is_error:  # no step gains
            self.point, self._last, self.converged = point, None, True
            return
        if size > 1:  # longer than a full step: keep it shorter from now on
            self.learning_rate = size / 2
        else:
            self._step_share *= 0.5
        self._last = point, move, size / 2
        self.point = apply(point, move, size / 2, self.objective.floor)

    def _check_convergence(self, move):
        """End the ascent when all later steps would gain only a small share of tol.

        Near the maximum, gains fall by the same factor from step to step. If they fall
        more and more slowly, the ascent ends when a step gains a share of tol.
        """
        if self._last is None:
            return
        before, self._last_gain = self._last_gain, move.value - self._last[1].value
        rounding = ROUNDING * (1 + abs(move.value))
        # if gains fell by less, rounding may be all of it
        self._remaining_gain = gain_to_come(before, self._last_gain, 0.01 * rounding)
        limit = max(self.remaining_gain_share * self._tol, rounding)
        is_idle = self._last_gain < limit and self._remaining_gain < limit
        stop_gain = max(self.objective.rules.stop_gain * self._tol, 0.1 * rounding)
        is_idle = is_idle or self._last_gain < stop_gain
        self._n_idle_steps = self._n_idle_steps + 1 if is_idle else 0
        self.converged = self._n_idle_steps > 1
