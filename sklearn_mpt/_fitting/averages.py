"""Records of noisy steps, and averages of their points."""

import math

import numpy as np

from sklearn_mpt._fitting.natural_gradient import NaturalStep, divide, mix
from sklearn_mpt._fitting.schedules import share_of_last
from sklearn_mpt._fitting.stopping import trend
from sklearn_mpt._numbers import TINY


def agreement(before, now):
    """Return the cosine of a step and a later gradient, in the information metric."""
    norm = 2 * math.sqrt(max(before.gain, 0) * max(now.gain, 0))
    return before.step.dot(now.gradient) / max(norm, TINY)


class StepHistory:
    """Values, expected gains, and agreement of directions, of the steps so far.

    Attributes
    ----------
    lag : int
        Steps so far apart have independent masks: those between are complements.
    window : int
        Number of steps whose mean value is compared with the best one.
    flat_gain_ratio : float
        Steps do not shrink if their expected gains fall to a larger share of those in
        the window before.
    fall_in_noise : float
        Values have fallen if they are so many standard errors below the best.
    rise_in_noise : float
        Values rise if they are so many standard errors above those before.
    """

    lag = 2
    window = 4
    flat_gain_ratio = 0.9
    fall_in_noise = 3.0
    rise_in_noise = 2.0

    def __init__(self, point):
        self.best_point = point
        self._best = -math.inf, 0.0  # mean of a window of values, and its noise
        self._values: list[float] = []
        self.clear()

    def clear(self):
        """Forget everything except the values."""
        self._agreements: list[float] = []
        self._gains: list[float] = []
        self._moves: list[NaturalStep] = []

    def add(self, move):
        self._moves = [*self._moves, move][-self.lag - 1 :]
        self._gains.append(move.gain)
        if len(self._moves) > self.lag:
            self._agreements.append(agreement(self._moves[0], move))

    def is_noise(self, window, min_agreement=0.0):
        """Return whether directions disagree, or steps neither gain nor shrink.

        window : number of steps. min_agreement : of directions. It is the share of
        expected gains that is not noise: 0.5 if the gain that is left equals the noise.
        """
        n, recent = window, self._agreements[-window:]
        if len(recent) == n and np.mean(recent) < min_agreement:
            return True
        before, last = self._gains[-2 * n : -n], self._gains[-n:]
        if len(before) < n or sum(last) < self.flat_gain_ratio * sum(before):
            return False
        return self.rise(n) <= 0

    def rise(self, window):
        """Return the rise of the last values over those before, less its noise."""
        fall, noise = trend(self._values, window)
        return -fall - self.rise_in_noise * noise

    def has_fallen(self, move, point):
        """Return whether the last values are below the best ones, beyond noise."""
        self._values.append(move.value)
        if len(self._values) % self.window:
            return False
        last = np.array(self._values[-self.window :])
        mean = last.mean()
        # successive masks are correlated: a window underestimates their noise
        noise = math.hypot(last.std(ddof=1) / math.sqrt(self.window), move.error)
        best, best_noise = self._best
        if mean > best:
            self._best, self.best_point = (mean, noise), point
        fall = self.fall_in_noise * math.hypot(noise, best_noise)
        return mean < best - fall - move.gain


class PointAverage:
    """Means of points, gradients and gains, weighted by the number of the step.

    Attributes
    ----------
    drift_cost : float
        Gain that slow directions promise, at least, in gains of a full step.
    """

    drift_cost = 4.0

    def __init__(self):
        self.count = 0
        self.point = self.gradient = self.gain = None

    def add(self, point, move):
        self.count += 1
        if self.count == 1:
            self.reference = self.point = point
            self.gradient, self.gain = move.gradient, move.gain
            return
        share = share_of_last(self.count, power=1)
        self.point = mix(self.point, point, share)
        self.gradient = mix(self.gradient, move.gradient, share)
        self.gain += share * (move.gain - self.gain)

    @property
    def noise(self):
        """Return the loss of the average by noise, in nats per row.

        At the maximum, the expected gain of a full step is caused by noise alone, and
        equals the loss by this noise. The loss of an average of steps is that of one
        step divided by the number of steps, times 4 / 3 for the weights.
        """
        return self.gain * 4 / 3 / self.count

    def drift(self, information):
        """Return the expected gain along the mean gradient, less noise, nats per row.

        It is the gain of one full step. Several steps gain more in slow directions.
        """
        expected_gain = 0.5 * self.gradient.dot(divide(self.gradient, information))
        return self.drift_cost * max(0.0, expected_gain - self.noise)
