"""Steps with noise, of masks or of parts of a stream, and averages of their points."""

import math
from abc import abstractmethod

import numpy as np
import torch

from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver
from sklearn_mpt._fitting.schedules import falling_size, weight_of_last
from sklearn_mpt._fitting.stopping import Trend


class NoisySteps(Solver):
    """Take steps on noisy gradients until an epoch gains no more than its noise."""

    # Then steps that have less noise follow, if `is_followed`. Otherwise step sizes
    # fall and points are averaged (Polyak and Juditsky, SIAM Journal on Control and
    # Optimization 30, 1992), until `n_iter_no_change` more epochs would lower the noise
    # of the average by less than `tol`. If the mean gradient promises more than noise
    # costs, as along a ridge, full steps start again.
    # average_power : points count as this power of their number, so that the first ones
    # count little. max_fall : standard errors by which a step may lower the value, or
    # it is halved. max_first : epochs that are followed by steps with less noise.
    # min_size : a step that is shorter, as a fraction of those around it, is not
    # halved, so that training ends where no value is finite.

    log_scale = 0.0
    average_power = 3
    max_fall = 4.0
    min_size = 1e-3
    max_first = 10

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
        moves = [self._step(batch) for batch in self.batches()]
        value = float(np.mean([move.value for move in moves]))
        self.loss_curve.append(self.log_scale - value)
        self._errors.append(math.hypot(*(move.error for move in moves)) / len(moves))
        # a step that was taken back gains nothing
        if self._n_kept >= 2 * len(moves):
            self._is_noise = self._is_noise or self._gain_is_noise()

    def _step(self, batch):
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
        if not move.is_finite:  # masks are too noisy for a step, others follow
            return move
        size = self.learning_rate * self._step_fraction * falling_size(self._n_falling)
        self.point = self.moved(self.point, move, size)
        self._n_steps += 1
        self._n_falling += self._is_noise
        self._add_to_average(move)
        return move

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
        weight = weight_of_last(max(1, self._n_falling), self.average_power)
        self._average = self.mixed(self._average, self.point, weight)
        self._gain += weight * (move.gain - self._gain)
        gradient_and_step = torch.stack(self.flat(move))
        if self._mean_move is None:
            self._mean_move = gradient_and_step
        self._mean_move = torch.lerp(self._mean_move, gradient_and_step, weight)

    def _gain_is_noise(self):
        if len(self.loss_curve) < 2:
            return False
        before, last = self.loss_curve[-2:]
        return Trend(before - last, math.hypot(*self._errors[-2:])).is_flat()

    def terminate(self):
        if self.is_followed:
            return self._is_noise or len(self.loss_curve) >= self.max_first
        if not self._n_falling:
            return False
        n, power = self._n_falling, self.average_power
        n_more = self.n_iter_no_change * self._n_steps / len(self.loss_curve)
        # noise alone causes the gain that full steps promise at the maximum
        loss = self._gain * (power + 1) ** 2 / (2 * power + 1) / n
        promise = self._promise(loss)
        if n >= n_more and promise > max(loss, self.tol):
            self._n_falling, self._is_noise = 0, False  # averages begin again, too
            return False
        return loss * n_more / (n + n_more) + promise < self.tol

    def _promise(self, loss):
        """Return the gain of a full step along the mean gradient, less its noise."""
        gradient, step = self._mean_move
        return max(0.0, 0.5 * float(gradient @ step) - loss)

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
