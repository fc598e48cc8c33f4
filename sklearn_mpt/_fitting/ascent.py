"""Natural gradient ascent: full steps until noise dominates, then averages of points.

`objective` says what is maximised, and `stream` has the ascent on parts of a stream.
"""

import math

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._fitting.acceleration import QuasiNewton
from sklearn_mpt._fitting.averages import PointAverage, StepHistory
from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver
from sklearn_mpt._fitting.natural_gradient import (
    align,
    apply,
    corrected,
    full_step,
    gain_at,
    with_rescaling,
)
from sklearn_mpt._fitting.phases import best_of_short_runs
from sklearn_mpt._fitting.saddles import with_missing_components
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import gain_to_come, gains_are_below
from sklearn_mpt._numbers import ROUNDING


def best_of_points(objective, points, n_epochs):
    """Return the end of the best of several short runs, from points.

    All runs have the same batches, so that noise of batches does not decide.
    """
    runs = [
        Ascent(
            objective,
            point,
            learning_rate=1.0,
            rng=np.random.default_rng(0),
            makes_trials=False,
        )
        for point in points
    ]
    best = best_of_short_runs(runs, n_epochs)
    best.check()
    return best.point


class Ascent(Solver):
    """Maximise an objective by natural steps.

    With noise, steps have the size `learning_rate` until the directions of successive
    steps disagree. Then step sizes fall, and points are averaged [1]_, until
    `n_iter_no_change` more epochs would gain no more than `tol`. If the average drifts
    far more than noise explains, as along a ridge, full steps start again. Without
    noise, a step that overshoots is halved.

    Parameters
    ----------
    objective : Objective
    point : Point
        Parameters at the start.
    learning_rate : float
        Size of the first steps; 1 is a full one.
    rng : numpy.random.Generator
        Source of batches.
    tol : float
        Training ends when later epochs would gain less, in nats per row.
    n_iter_no_change : int
        Number of epochs whose gain is compared with `tol`, with noise.
    makes_trials : bool
        Whether to test components, before the end and at it, and to try to train
        another one instead of the weakest one. Short runs do not: the best goes on.

    Attributes
    ----------
    loss_curve : list of float
        Minus the mean value of each epoch.
    converged : bool
    remaining_gain_share : float
        Steps without noise end when all later ones gain a smaller share of `tol`.
    warn_gain_factor : float
        A warning is given if later steps gain more, in units of `tol`.
    min_size : float
        A step is halved until its size, 1 for a full step, is smaller.
    overshoot_in_noise : float
        A step is halved if the value after it is so many standard errors below the one
        before.
    corrected_step_factor : float
        Bound on corrected steps, as a multiple of that on full steps.
    min_signal : float
        Steps with masks that the exact objective follows end if a smaller share of
        their expected gains is not noise.
    resolution : float
        Averages end when they lose a smaller share of what sampling rows loses, which
        is (number of parameters) / (2 n_rows).
    min_points : int
        An average of fewer points is not used.
    points_between_checks : int
        Number of points of an average between checks whether values rise.
    drift_ratio : float
        Full steps start again if the drift of an average is larger than so many times
        its noise.
    first_test : int
        Number of epochs before components are tested for saddles, and then as many
        again after each test.
    trial_share : float
        A component is tried if its approximate gain is a larger share of the loss by
        removing the one that it replaces.
    trial_epochs : int
        Number of epochs of such a trial.

    References
    ----------
    .. [1] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation
       by averaging", SIAM Journal on Control and Optimization 30, 1992.
    """

    remaining_gain_share = 0.005
    warn_gain_factor = 30.0
    min_size = 1e-6
    overshoot_in_noise = 4.0
    corrected_step_factor = 5.0
    min_signal = 0.5
    resolution = 5e-4
    min_points = 4
    points_between_checks = 12
    drift_ratio = 10.0
    first_test = 2
    trial_share = 0.25
    trial_epochs = 16

    def __init__(
        self,
        objective,
        point,
        *,
        learning_rate,
        rng,
        tol=0.0,
        n_iter_no_change=1,
        makes_trials=True,
    ):
        self.objective = objective
        self.point = point
        self.learning_rate = self._full_rate = learning_rate
        self.rng = rng
        self.loss_curve: list[float] = []
        self.converged = False
        self._tol, self._patience = tol, n_iter_no_change
        self._information_share = 1 / objective.n_batches
        self._average = None
        self._record = StepHistory(point)
        self._n_idle_steps = 0
        self._last = None  # point, move and size of the last step
        self._batch = None
        self._n_steps = self._n_epochs = 0
        self._step_share = 1.0
        self._memory = QuasiNewton()
        self._information = None
        self._next_test = self.first_test if makes_trials else math.inf
        # Gain of the last step without noise, and of all later steps.
        self._last_gain, self._remaining_gain = 0.0, 0.0
        self._makes_trials = makes_trials

    @property
    def result(self):
        """The best point so far."""
        average = self._average
        if average is not None and average.count > self.min_points:
            return average.point
        return self.point

    def terminate(self):
        return self.converged

    def following(self):
        """Return the ascent of the exact objective, from the result; None if none is.

        It goes on with the information and the memory of this one, because both
        objectives have about the same curvature.
        """
        objective = self.objective.exact_objective()
        if objective is None:
            return None
        if not self.objective.is_noisy:
            self.check()
        following = Ascent(
            objective,
            self.result,
            learning_rate=self._full_rate,  # noise may have halved the last one
            rng=self.rng,
            tol=self._tol,
            n_iter_no_change=self._patience,
            makes_trials=self._makes_trials,
        )
        following._memory, following._information = self._memory, self._information
        following._n_steps, following._n_epochs = self._n_steps, self._n_epochs
        following._next_test = self._next_test
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
        if self._last is None or self.result is not self.point:
            return
        if self.converged or self._has_lost():
            self.recover()
        self._last = None

    def _has_lost(self):
        try:
            move = full_step(
                self.objective, self.point, self._batch, self._information, 0.0
            )
        except DIVERGENCE:
            return True
        return self._has_overshot(move)

    def recover(self):
        """Go back to the last point whose value and step are finite."""
        if self._last is not None:
            self.point = self._last[0]

    def interrupt(self):
        self.recover()

    def step(self):
        """Take one pass over the batches."""
        batches = list(self.objective.batches(self.rng))
        rules, n_epochs = self.objective.rules, self._n_epochs
        self._n_epochs += 1
        may_test = self._average is None and not rules.tests_at_noise
        if n_epochs >= self._next_test and may_test:
            has_replaced = self._replace_weak_components(self.point, batches[0])
            self._next_test = n_epochs + 2 if has_replaced else 2 * n_epochs
        values = [self._step(batch) for batch in batches]
        self.loss_curve.append(-float(np.mean(values)))
        may_test = self._makes_trials and not rules.tests_at_noise
        if not self.converged or not may_test:
            return
        if self._replace_weak_components(self.result, batches[0]):
            return
        if rules.tries_components and not self.objective.is_noisy:
            self._replace_weak_components(self.point, batches[0], is_trial=True)

    def _replace_weak_components(self, point, batch, is_trial=False):
        """Replace weak components by missing ones; return whether any was replaced.

        is_trial : whether to replace the weakest one by a direction that may explain
        less, and to take a few epochs before the gain is measured. With gaps, two
        directions that explain about as much can each be part of a local maximum.
        """
        share = self.trial_share if is_trial else 1.0
        slopes = self.objective.slopes(point)
        candidate = with_missing_components(point, *slopes, self._tol, share=share)
        if candidate is not None and is_trial:
            candidate = best_of_points(self.objective, [candidate], self.trial_epochs)
        if candidate is None:
            return False
        # a point after a step that overshot is worse than the one before
        others = [point] if self._last is None else [point, self._last[0]]
        gains = (gain_at(candidate, other, self.objective, batch) for other in others)
        if not all(gain > self._tol for gain in gains):
            return False
        self._start_again(candidate)
        return True

    def _start_again(self, point):
        self.point, self._last = point, None
        self._memory = QuasiNewton()
        self.converged = False
        self._forget_average()

    def _step(self, batch):
        if self._average is not None and self._average.count:
            self.point = align(self.point, self._average.reference)
        share = max(self._information_share, 1 / (self._n_steps + 1))
        self._batch = batch
        move = full_step(self.objective, self.point, batch, self._information, share)
        self._information = move.information
        if self._has_overshot(move):
            self._halve_step(move)
            return move.value if self._last is None else self._last[1].value
        if self.objective.is_noisy and self._record.has_fallen(move, self.point):
            # go back to the point of the best values, with half the step size
            self.learning_rate /= 2
            self.point, self._last = self._record.best_point, None
            self._forget_average()
            return move.value
        if self.objective.rules.corrects_steps and self._last is not None:
            self._add_to_memory(move)
        self._step_share = min(1.0, 2 * self._step_share)
        self._check_convergence(move)
        if self.converged and self._average is not None:
            self._verify_average(move, batch)
        self._advance(move)
        return move.value

    def _add_to_memory(self, move):
        """Add the last step to those that correct the information."""
        before, last, _ = self._last
        moved = self.point.flat() - before.flat()
        self._memory.add(moved, last.gradient.flat(), move.gradient.flat())

    def _advance(self, move):
        """Take a step; correct it by the last ones if there is no noise."""
        falling = 0 if self._average is None else self._average.count
        decay = falling_size(falling)
        size = self.learning_rate * self._step_share * decay
        floor, before = self.objective.floor, self.point
        self.point = apply(before, move, size, floor)
        self._last = before, move, size
        self._n_steps += 1
        if self.objective.rules.corrects_steps and size == 1 and self._memory:

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
        if not move.is_finite:
            return True
        before = self._last[1]
        noise = math.hypot(before.error, move.error) if self.objective.is_noisy else 0.0
        rounding = ROUNDING * (1 + abs(before.value))
        least = max(rounding, self.objective.rules.node_noise * self._tol)
        least += self.overshoot_in_noise * noise
        return move.value < before.value - least

    def _halve_step(self, overshot):
        point, move, size = self._last
        self._memory = QuasiNewton()
        fall = move.value - overshot.value
        # full steps rise, but for errors of nodes: these exceed the gains now
        is_error = (
            size <= 1 and self.objective.rules.node_noise > 0 and fall < self._tol
        )
        if size < self.min_size or is_error:
            if self.objective.is_noisy and not overshot.is_finite:
                raise FloatingPointError
            # no step gains: the value before was high by chance, or is the maximum
            self.point, self._last = point, None
            self.converged = not self.objective.is_noisy
            return
        if size > 1:  # longer than a full step: keep it shorter from now on
            self.learning_rate = size / 2
        else:
            self._step_share *= 0.5
        self._last = point, move, size / 2
        self.point = apply(point, move, size / 2, self.objective.floor)

    def _check_convergence(self, move):
        """Decide whether the ascent has converged, and whether to average."""
        if not self.objective.is_noisy:
            self._check_exact_convergence(move)
        elif self._average is not None:
            self._check_average(move)
        else:
            self._record.add(move)
            is_idle = move.gain < self.objective.rules.stop_gain * self._tol
            self._n_idle_steps = self._n_idle_steps + 1 if is_idle else 0
            self.converged = self._n_idle_steps > 1
            rules, stops = self.objective.rules, self.objective.rules.stops_at_noise
            min_signal = self.min_signal if stops else 0.0
            if not self.converged and self._record.is_noise(rules.window, min_signal):
                self.converged = stops
                self._average = None if stops else PointAverage()

    def _check_exact_convergence(self, move):
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
        is_idle = gains_are_below(limit, self._last_gain, self._remaining_gain)
        stop_gain = max(self.objective.rules.stop_gain * self._tol, 0.1 * rounding)
        is_idle = is_idle or self._last_gain < stop_gain
        self._n_idle_steps = self._n_idle_steps + 1 if is_idle else 0
        self.converged = self._n_idle_steps > 1

    def _check_average(self, move):
        average, n_more = self._average, self._patience * self.objective.n_batches
        average.add(self.point, move)
        is_time = average.count % self.points_between_checks == 0
        if is_time and self._record.rise(self.points_between_checks // 2) > move.gain:
            self._forget_average()
        elif average.count >= max(n_more, self.objective.rules.min_averaged_steps):
            less_noise = average.noise * n_more / (average.count + n_more)
            drift = average.drift(move.information)
            n_parameters = sum(part.numel() for part in self.point)
            # a small share of P / (2 n), the loss by estimating P parameters
            resolution = self.resolution * n_parameters / (2 * self.objective.n_rows)
            self.converged = less_noise + drift < max(self._tol, resolution)
            if not self.converged and drift > self.drift_ratio * less_noise:
                self._forget_average()

    def _verify_average(self, move, batch):
        """Continue if the average is worse than its points, which lie on a curve."""
        sums = self.objective.sums(self._average.point, batch)
        noise = 2 * move.gain  # noise of the batch in the difference of both values
        if float(sums.value / sums.n_rows) < move.value - noise - self._tol:
            self.converged = False
            self._forget_average()

    def _forget_average(self):
        """Take full steps again, until their directions disagree."""
        self._average = None
        self._record.clear()
