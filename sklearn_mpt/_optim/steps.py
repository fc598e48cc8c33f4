"""Steps with a memory of an objective without noise, and steps with noise."""

import math
from abc import abstractmethod

import numpy as np
import torch

from sklearn_mpt._optim.loop import DIVERGENCE, Solver, best_of_runs
from sklearn_mpt._optim.natural import (
    Curvature,
    Point,
    align,
    apply,
    as_arrays,
    corrected,
    divide,
    full_step,
    mix,
    with_rescaling,
)


def backtrack(attempt, max_tries, size=1.0):
    """Halve a step until it is accepted; return its size and result, or None."""
    # attempt : from the size of a step to what it leads to; None if it is not accepted.
    for _ in range(max_tries):
        result = attempt(size)
        if result is not None:
            return size, result
        size /= 2
    return size, None


def falling_size(n_steps, delay=10):
    """Return the size of a step after `n_steps` others, as a fraction of the first."""
    # Sizes add up to infinity, and their squares do not, and averages of points are
    # efficient (Polyak and Juditsky, SIAM Journal on Control and Optimization 30,
    # 1992). delay : number of steps in which the size hardly falls.
    return (1 + n_steps / delay) ** -0.6


# The information of the full step takes z as known. Where entries leave z uncertain it
# is too large, and full steps converge slowly. Limited-memory BFGS (Nocedal,
# Mathematics of Computation 35, 1980) corrects it: moved by s, the gradient falls by y,
# and the corrected information maps s to y; that of the full step takes the place of
# the identity (Jamshidian and Jennrich, Journal of the Royal Statistical Society B 59,
# 1997). Full steps are multiplied by the ratio by which the last step says that they
# are too short, if it is above 1. On a ray where the gradient hardly falls, such as
# slopes of features that separate the rows, y is mixed with the expected fall (Powell,
# Mathematical Programming 14, 1978), so that the information falls to no less than
# `min_fall` of itself at once.


class QuasiNewton:
    """The last steps of an ascent, and the falls of the gradient along them."""

    # Points, gradients and steps are flat, (p,). length : number of steps remembered.

    def __init__(self, length=10, min_fall=0.2):
        self.length, self.min_fall = length, min_fall
        self._pairs = []

    def __len__(self):
        return len(self._pairs)

    def add(self, displacement, gradient_before, gradient):
        """Add a step, and the gradients before and after it."""
        fall, expected = gradient_before - gradient, displacement @ gradient_before
        product, least = float(displacement @ fall), self.min_fall * float(expected)
        if least <= 0:  # the step was not in a direction of ascent
            return
        if product < least:
            factor = (expected - least) / (expected - product)
            fall = torch.lerp(gradient_before, fall, factor)
        self._pairs = [*self._pairs, (displacement, fall)][-self.length :]

    def direction(self, gradient, divide):
        """Return the corrected step for a gradient."""
        # divide : from a gradient to the full step.
        factors = []
        for displacement, fall in reversed(self._pairs):
            factors.append((displacement @ gradient) / (displacement @ fall))
            gradient = gradient - factors[-1] * fall
        step = divide(gradient)
        if self._pairs:
            displacement, fall = self._pairs[-1]
            ratio = float(displacement @ fall) / float(fall @ divide(fall))
            step = max(1.0, ratio) * step
        for (displacement, fall), factor in zip(
            self._pairs, reversed(factors), strict=True
        ):
            step = (
                step + (factor - (fall @ step) / (displacement @ fall)) * displacement
            )
        return step


# Relative error of values: no smaller gain is seen.
EPS = float(np.finfo(float).eps)


def best_of_points(objective, points, n_epochs):
    """Return the end of the best of several short runs, from points."""
    runs = [Ascent(objective, point, escapes=False) for point in points]
    return best_of_runs(runs, n_epochs).point


class Ascent(Solver):
    """Maximise an objective without noise by natural steps with a memory."""

    # A full step divides the gradient by the information of complete data, as the
    # M-step of EM does; those before correct it. If a corrected step loses, they are
    # forgotten, and the full step is halved until it gains. Half of the product of
    # gradient and next step is the gain to expect of all later ones; steps end when it
    # is a small part of `tol`, in nats per row. learning_rate : 1 is a full step.
    # escapes : whether to go on from a better point where the end is a saddle.
    # remaining_gain_fraction : of `tol`, below which all later steps may gain.
    # corrected_step_factor : times the bound on full steps is that on corrected ones.

    remaining_gain_fraction = 0.005
    corrected_step_factor = 5.0

    def __init__(self, objective, point, *, learning_rate=1.0, tol=0.0, escapes=True):
        self.objective, self.point, self.tol = objective, point, tol
        self.learning_rate, self._escapes = learning_rate, escapes
        self.loss_curve, self.converged = [], False
        self._memory, self._now, self._information = QuasiNewton(), None, None
        self._direction = None  # the corrected step from the last point
        self._rng = np.random.default_rng(0)  # of the order of rows

    @property
    def result(self):
        return self.point

    def terminate(self):
        return self.converged

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
        if self._now is None:
            self.objective.place_nodes(self.point)
            self._now = self._full_step(self.point)
            if not self._now.is_finite:
                raise FloatingPointError
        before = self._now
        for point, is_full in self._candidates():
            now = self._full_step(point)
            if now.is_finite and now.value >= before.value:
                move = point.plus(self.point, -1).flat()
                gradients = before.gradient.flat(), now.gradient.flat()
                self._memory.add(move, *gradients)
                self.point, self._now = point, now
                if self.objective.place_nodes(point):
                    self._now = self._full_step(point)
                is_error = now.value - before.value < (
                    self.objective.stop_gain * self.tol
                )
                self._direction = self._corrected_step()
                gain = self._expected_gain(self._direction)
                self.converged = is_error or gain < self._least_gain
                break
            if not is_full:
                self._memory = QuasiNewton()
        else:
            self.converged = True
        self.loss_curve.append(self.objective.log_scale - self._now.value)
        if self.converged and self._escapes:
            self._escape()

    def _candidates(self):
        """Yield points after steps, until their gain is too small to be seen."""
        objective = self.objective
        if self._memory:
            direction = self._direction
            if direction is None:  # the memory is that of another ascent
                direction = self._corrected_step()
            step = min(1.0, self.learning_rate) * direction
            max_step = self.corrected_step_factor * objective.max_step
            move = corrected(self._now, self.point.with_flat(step), max_step)
            yield apply(self.point, move, 1.0, objective.floor), False
        size = self.learning_rate
        gain = self._expected_gain(self._divide(self._now.gradient.flat()))
        if not math.isfinite(gain):
            raise FloatingPointError
        while size * gain > self._least_gain:
            yield apply(self.point, self._now, size, objective.floor), True
            size /= 2

    def _escape(self):
        """Go on from a better point, if this one is a saddle."""
        for candidate, n_epochs in self.objective.escapes(self.point, self.tol):
            if n_epochs:
                candidate = best_of_points(self.objective, [candidate], n_epochs)
            now = self._full_step(candidate)
            if now.is_finite and now.value > self._now.value + self.tol:
                self.point, self._now = candidate, None
                self._memory, self.converged = QuasiNewton(), False
                return

    def _full_step(self, point):
        (batch,) = self.objective.batches(self._rng)
        step = full_step(self.objective, point, batch, self._information, 1.0)
        self._information = step.information
        return step

    def _corrected_step(self):
        return self._memory.direction(self._now.gradient.flat(), self._divide)

    def _divide(self, gradient):
        """Return the full step for a gradient at the last point, (p,) each; linear."""
        gradient, information = self.point.with_flat(gradient), self._now.information
        if not getattr(self.objective, "moves_axes", True):
            return divide(gradient, information).flat()
        return with_rescaling(gradient, self.point, information).flat()

    def _expected_gain(self, step):
        return 0.5 * float(self._now.gradient.flat() @ step)

    @property
    def _least_gain(self):
        least = self.remaining_gain_fraction * self.tol
        return max(least, EPS * (1 + abs(self._now.value)))


class NoisySteps(Solver):
    """Take steps on noisy gradients until an epoch gains no more than its noise."""

    # Then steps that have less noise follow, if `is_followed`. Otherwise step sizes
    # fall and points are averaged (Polyak and Juditsky, SIAM Journal on Control and
    # Optimization 30, 1992), until `n_iter_no_change` more epochs would lower the noise
    # of the average by less than `tol`. If the mean gradient promises more than noise
    # costs, as along a ridge, full steps start again.
    # average_power : points count as this power of their number, so that the first ones
    # count little. max_fall : standard errors by which a step may lower the value, or
    # it is halved.
    # min_size : a step that is shorter, as a fraction of those around it, is not
    # halved, so that training ends where no value is finite.

    log_scale = 0.0
    average_power = 3
    max_fall = 4.0
    min_size = 1e-3
    max_first = 10  # epochs of masks that are followed by steps with less noise

    def __init__(
        self,
        point,
        *,
        learning_rate,
        rng,
        tol=0.0,
        n_iter_no_change=1,
        is_followed=False,
    ):
        self.point = self._average = point
        self.learning_rate, self.rng = learning_rate, rng
        self.tol, self.n_iter_no_change = tol, n_iter_no_change
        self.is_followed = is_followed
        self.loss_curve: list[float] = []
        self._errors: list[float] = []  # standard errors of the losses
        self._n_steps = self._n_falling = 0  # all steps, and those of falling size
        self._is_noise, self._step_fraction = False, 1.0
        self._n_kept = 0  # steps since one was taken back
        self._last = self._batch = None  # the last step, and its batch
        self._gain = 0.0  # average of the gains that full steps promise
        self._mean_move = None  # averages of gradients and full steps

    @abstractmethod
    def batches(self):
        """Return the batches of an epoch."""

    @abstractmethod
    def move(self, point, batch):
        """Return a full step: its `value`, `error`, `gain`, and whether `is_finite`."""
        # In nats per row; `error` is the standard error of the value.

    @abstractmethod
    def moved(self, point, move, size):
        """Return the point after a step of some size."""

    @abstractmethod
    def flat(self, move):
        """Return the gradient and the full step of a move, (p,) each."""

    @abstractmethod
    def mixed(self, point, other, weight):
        """Return the average of two points, given the weight of the other."""

    def aligned(self, point, reference):
        """Return the same model, as near to a reference as it can be."""
        return point

    @property
    def result(self):
        """The last point, or the average of points if nothing follows."""
        return self.point if self.is_followed else self._average

    def step(self):
        moves = []
        for batch in self.batches():
            if self._n_falling:
                self.point = self.aligned(self.point, self._average)
            self._batch = batch
            move = self.move(self.point, batch)
            if self._has_fallen(move):
                self.point, move, self._average = self._last
                self._step_fraction /= 2
                self._n_kept = 0
            else:
                self._step_fraction = min(1.0, 2 * self._step_fraction)
                self._n_kept += 1
            self._last = self.point, move, self._average
            moves.append(move)
            if not move.is_finite:  # masks are too noisy for a step, others follow
                continue
            size = self._step_fraction * falling_size(self._n_falling)
            self.point = self.moved(self.point, move, self.learning_rate * size)
            self._n_steps += 1
            self._n_falling += self._is_noise
            self._add_to_average(move)
        value = float(np.mean([move.value for move in moves]))
        self.loss_curve.append(self.log_scale - value)
        self._errors.append(math.hypot(*(move.error for move in moves)) / len(moves))
        # a step that was taken back gains nothing
        if self._n_kept >= 2 * len(moves) and len(self.loss_curve) > 1:
            before, last = self.loss_curve[-2:]
            # of one feature all masks are alike, without noise
            least = max(self.tol, EPS * (1 + abs(last))) if self.is_followed else 0.0
            if before - last <= max(least, math.hypot(*self._errors[-2:])):
                self._is_noise = True

    def _has_fallen(self, move):
        if self._last is None:
            if not move.is_finite and not self.is_followed:
                raise FloatingPointError
            self._is_noise = self._is_noise or not move.is_finite
            return False
        if self._step_fraction < self.min_size:  # the value before was high by chance
            if not move.is_finite:
                raise FloatingPointError
            return False
        before = self._last[1]
        noise = self.max_fall * math.hypot(before.error, move.error)
        return not (move.is_finite and move.value >= before.value - noise)

    def _add_to_average(self, move):
        n, power = max(1, self._n_falling), self.average_power
        weight = (power + 1) / (n + power)
        self._average = self.mixed(self._average, self.point, weight)
        self._gain += weight * (move.gain - self._gain)
        gradient_and_step = torch.stack(self.flat(move))
        if self._mean_move is None:
            self._mean_move = gradient_and_step
        self._mean_move = torch.lerp(self._mean_move, gradient_and_step, weight)

    def terminate(self):
        if self.is_followed:  # noise may never end steps of a discrete mixture
            return self._is_noise or len(self.loss_curve) >= self.max_first
        if not self._n_falling:
            return False
        n, power = self._n_falling, self.average_power
        n_more = self.n_iter_no_change * self._n_steps / len(self.loss_curve)
        # noise alone causes the gain that full steps promise at the maximum
        loss = self._gain * (power + 1) ** 2 / (2 * power + 1) / n
        # the gain of a full step along the mean gradient, less its noise
        gradient, step = self._mean_move
        promise = max(0.0, 0.5 * float(gradient @ step) - loss)
        if n >= n_more and promise > max(loss, self.tol):
            self._n_falling, self._is_noise = 0, False  # averages begin again, too
            return False
        return loss * n_more / (n + n_more) + promise < 0.5 * self.tol

    def check(self):
        """Undo the last step if the value after it, not known yet, is much lower."""
        if self._last is None or self._n_falling:
            return
        try:
            has_lost = self._has_fallen(self.move(self.point, self._batch))
        except DIVERGENCE:
            has_lost = True
        if has_lost:
            self.recover()

    def recover(self):
        """Go back to the last point whose value and step are finite."""
        if self._last is not None:
            self.point, _, self._average = self._last

    def interrupt(self):
        self.recover()


def ascent_of(objective, point, *, rng, n_iter_no_change, **params):
    """Return the ascent of an objective with noise, or of one without."""
    if not objective.is_noisy:
        return Ascent(objective, point, **params)
    params |= {"rng": rng, "n_iter_no_change": n_iter_no_change}
    return NoisyAscent(objective, point, objective.exact_objective(), **params)


class NoisyAscent(NoisySteps):
    """Maximise an objective whose batches differ."""

    # exact : objective that is maximised after that, from the last point. params : of
    # `NoisySteps`. min_weight : of a batch in the average of the information.

    min_weight = 0.05

    def __init__(self, objective, point, exact=None, **params):
        super().__init__(point, is_followed=exact is not None, **params)
        self.objective, self._exact = objective, exact
        self._information, self.log_scale = None, objective.log_scale
        self._is_part = False

    @classmethod
    def of_part(cls, objective, point, n_before, **params):
        """Return the ascent on a part of a stream, after so many steps."""
        ascent = cls(objective, point, **params)
        ascent._n_steps = ascent._n_falling = n_before
        ascent._is_noise = ascent._is_part = True
        return ascent

    def batches(self):
        return self.objective.batches(self.rng)

    def move(self, point, batch):
        weight = max(self.min_weight, 1 / (self._n_steps + 1))
        move = full_step(self.objective, point, batch, self._information, weight)
        self._information = move.information
        return move

    def moved(self, point, move, size):
        is_even = not self._is_part
        return apply(point, move, size, self.objective.floor, is_even)

    def flat(self, move):
        return move.gradient.flat(), move.step.flat()

    def mixed(self, point, other, weight):
        return mix(point, other, weight)

    def aligned(self, point, reference):
        return align(point, reference)

    def following(self):
        if self._exact is None:
            return None
        return ascent_of(
            self._exact,
            self.point,
            learning_rate=self.learning_rate,
            rng=self.rng,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
        )

    def state(self):
        information = self._information
        return {
            "n_steps": self._n_steps,
            "point": as_arrays(self.point),
            "average": as_arrays(self._average),
            "information": as_arrays(information.of_each() if information else ()),
        }

    def load(self, state):
        if not state:
            return
        tensor = self.point.coefs.new_tensor
        self.point = Point(*map(tensor, state["point"]))
        self._average = Point(*map(tensor, state["average"]))
        if state["information"]:
            self._information = Curvature(*map(tensor, state["information"]))
        self._n_steps = self._n_falling = state["n_steps"]
