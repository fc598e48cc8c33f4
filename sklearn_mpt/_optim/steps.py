"""Fits: what they have reached, steps with a memory, and steps with noise."""

import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._optim.natural import Curvature, Point, as_arrays, corrected

DIVERGENCE = (FloatingPointError, torch.linalg.LinAlgError)


@dataclass
class Training:
    """A fit: how many epochs it may have, and what it has reached.

    Ways to train are generators that change it, and yield after each epoch whether
    training is over. If an epoch raises one of `DIVERGENCE`, or is interrupted, they
    leave parameters whose objective is finite.

    params : the best so far. loss_curve : minus the mean objective of each epoch, in
    nats per row. state : arrays from which the next part of a stream goes on.
    """

    max_iter: int
    params: Any = None
    loss_curve: list[float] = field(default_factory=list)
    state: dict = field(default_factory=dict)

    @property
    def is_last(self):
        """Whether there is no epoch after this one."""
        return len(self.loss_curve) >= self.max_iter


def run(training, epochs):
    """Train until it is over; return the parameters."""
    for is_over in itertools.islice(epochs, training.max_iter):
        if is_over:
            break
    return training.params


def best_of_runs(runs):
    """Train in each of several ways; return the parameters with the least loss."""
    # runs : pairs of a training and its epochs. Losses are those of the last epochs,
    # with no noise, or all the same. Runs that diverge are left out; if all do, that of
    # the last one is raised.
    finished, divergence = [], None
    for training, epochs in runs:
        try:
            run(training, epochs)
        except DIVERGENCE as error:
            divergence = error
        else:
            finished.append(training)
    if divergence is not None and not finished:
        raise divergence
    return min(finished, key=lambda training: training.loss_curve[-1]).params


def best_of_points(objective, points, n_epochs):
    """Return the end of the best of several short runs, from points."""
    runs = [Training(n_epochs, point) for point in points]
    return best_of_runs([(t, ascent(t, objective, escapes=False)) for t in runs])


def warn_diverged(n_epochs):
    warn_caller(
        f"Training diverged after {n_epochs} epochs: the objective is not finite. The "
        "best parameters so far are kept; try a smaller learning_rate.",
        ConvergenceWarning,
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


# The information of the full step takes z as known. Where entries leave z uncertain it
# is too large, and full steps converge slowly. Limited-memory BFGS (Nocedal,
# Mathematics of Computation 35, 1980) corrects it: moved by s, the gradient falls by y,
# and the corrected information maps s to y; that of the full step takes the place of
# the identity (Jamshidian and Jennrich, Journal of the Royal Statistical Society B 59,
# 1997). Full steps are multiplied by the ratio by which the last step says that they
# are too short, if it is above 1. On a ray where the gradient hardly falls, such as
# slopes of features that separate the rows, y is mixed with the expected fall (Powell,
# Mathematical Programming 14, 1978), so that the information falls to no less than a
# fifth of itself at once.


class QuasiNewton:
    """The last steps of an ascent, and the falls of the gradient along them."""

    # Points, gradients and steps are flat, (p,).

    def __init__(self):
        self.pairs = []

    def add(self, displacement, gradient_before, gradient):
        """Add a step, and the gradients before and after it."""
        fall, expected = gradient_before - gradient, displacement @ gradient_before
        product, least = float(displacement @ fall), 0.2 * float(expected)
        if least <= 0:  # the step was not in a direction of ascent
            return
        if product < least:
            factor = (expected - least) / (expected - product)
            fall = torch.lerp(gradient_before, fall, factor)
        self.pairs = [*self.pairs[-9:], (displacement, fall)]

    def direction(self, objective, point, now):
        """Return the corrected step from a point, where the full step is `now`."""
        divide = partial(objective.divided, point=point, information=now.information)
        gradient, factors = now.gradient.flat(), []
        for displacement, fall in reversed(self.pairs):
            factors.append((displacement @ gradient) / (displacement @ fall))
            gradient = gradient - factors[-1] * fall
        step = divide(gradient)
        if self.pairs:
            displacement, fall = self.pairs[-1]
            ratio = float(displacement @ fall) / float(fall @ divide(fall))
            step = max(1.0, ratio) * step
        for (displacement, fall), factor in zip(
            self.pairs, reversed(factors), strict=True
        ):
            correction = factor - (fall @ step) / (displacement @ fall)
            step = step + correction * displacement
        return step


# Steps of an ascent end when all later ones may gain less than this part of `tol`.
REMAINING_GAIN = 0.005
EPS = float(np.finfo(float).eps)  # relative error of values: no smaller gain is seen


def ascent(training, objective, *, learning_rate=1.0, tol=0.0, escapes=True):
    """Maximise an objective without noise by natural steps with a memory.

    A full step divides the gradient by the information of complete data, as the M-step
    of EM does; those before correct it. If a corrected step loses, they are forgotten,
    and the full step is halved until it gains. Half of the product of gradient and next
    step is the gain to expect of all later ones.

    learning_rate : 1 is a full step. tol : in nats per row. escapes : whether to go on
    from a better point where the end is a saddle.
    """
    memory = QuasiNewton()
    while objective is not None:
        objective.place_nodes(training.params)
        (batch,) = objective.batches(np.random.default_rng(0))
        now, is_over = objective.full_step(training.params, batch), False
        if not now.is_finite:
            raise FloatingPointError
        direction = memory.direction(objective, training.params, now)
        while not is_over:
            point, before = training.params, now
            for candidate, is_corrected in _candidates(
                objective, point, now, memory, direction, learning_rate, tol
            ):
                there = objective.full_step(candidate, batch)
                if there.is_finite and there.value >= before.value:
                    move = candidate.plus(point, -1).flat()
                    memory.add(move, before.gradient.flat(), there.gradient.flat())
                    training.params, now = candidate, there
                    if objective.place_nodes(candidate):
                        now = objective.full_step(candidate, batch)
                    direction = memory.direction(objective, candidate, now)
                    gain = _gain(now, direction)
                    is_error = there.value - before.value < objective.stop_gain * tol
                    is_over = is_error or gain < _least_gain(now, tol)
                    break
                if is_corrected:
                    memory = QuasiNewton()
            else:
                is_over = True
            training.loss_curve.append(objective.log_scale - now.value)
            is_end = is_over and escapes
            trials = objective.escapes(training.params, tol) if is_end else ()
            for candidate, n_epochs in trials:
                if n_epochs:
                    candidate = best_of_points(objective, [candidate], n_epochs)
                there = objective.full_step(candidate, batch)
                if there.is_finite and there.value > now.value + tol:
                    training.params, now, is_over = candidate, there, False
                    memory = QuasiNewton()
                    break
            finer = objective.exact_objective() if is_over else objective
            yield finer is None
        objective = finer


def _candidates(objective, point, now, memory, direction, learning_rate, tol):
    """Yield points after steps, until their gain is too small to be seen."""
    if memory.pairs:
        step = point.with_flat(min(1.0, learning_rate) * direction)
        # it may be some times as long as the bound on a full step
        move = corrected(now, step, 5 * objective.max_step)
        yield objective.moved(point, move, 1.0), True
    size = learning_rate
    gain = _gain(now, objective.divided(now.gradient.flat(), point, now.information))
    if not math.isfinite(gain):
        raise FloatingPointError
    while size * gain > _least_gain(now, tol):
        yield objective.moved(point, now, size), False
        size /= 2


def _gain(now, step):
    return 0.5 * float(now.gradient.flat() @ step)


def _least_gain(now, tol):
    return max(REMAINING_GAIN * tol, EPS * (1 + abs(now.value)))


def ascent_of(training, objective, *, learning_rate, rng, tol, n_iter_no_change):
    """Return the ascent of an objective with noise, or of one without."""
    params = {"learning_rate": learning_rate, "tol": tol}
    if not objective.is_noisy:
        return ascent(training, objective, **params)
    params["rng"], exact = rng, objective.exact_objective()
    more = {"n_iter_no_change": n_iter_no_change}
    if exact is None:
        return averaged_ascent(training, objective, **params, **more)
    following = ascent_of(training, exact, **params, **more)
    return ascent_to_noise(training, objective, following, **params)


def ascent_to_noise(training, objective, following, *, learning_rate, rng, tol):
    """Take full steps until an epoch gains no more than its noise, then `following`.

    They take ten epochs at most, never the last one, and none of two: what they gain
    shows in the second one.
    """
    n_epochs = min(10, training.max_iter - len(training.loss_curve) - 1)
    values, errors, before, is_over = [], [], training.params, n_epochs < 2
    try:
        while not is_over:
            start, moves = training.params, []
            for batch in objective.batches(rng):
                move = objective.full_step(training.params, batch)
                moves.append(move)
                if not move.is_finite:
                    break
                training.params = objective.moved(training.params, move, learning_rate)
            values.append(float(np.mean([move.value for move in moves])))
            errors.append(math.hypot(*(move.error for move in moves)) / len(moves))
            training.loss_curve.append(objective.log_scale - values[-1])
            gain = values[-1] - values[-2] if len(values) > 1 else math.inf
            noise = math.hypot(*errors[-2:])
            # of one feature all masks are alike, without noise
            least = max(tol, EPS * (1 + abs(values[-1])), noise)
            # noise may never end steps of a discrete mixture
            is_noise = not (move.is_finite and gain > least)
            if is_noise:  # the last point whose value is known, or a better one
                training.params = start if move.is_finite and gain > 0 else before
            is_over, before = is_noise or len(values) == n_epochs, start
            yield False
    except (*DIVERGENCE, KeyboardInterrupt):
        training.params = before
        raise
    yield from following


def falling_size(n_steps, delay=10):
    """Return the size of a step after `n_steps` others, as a fraction of the first."""
    # Sizes add up to infinity, and their squares do not, and averages of points are
    # efficient (Polyak and Juditsky, SIAM Journal on Control and Optimization 30,
    # 1992). delay : number of steps in which the size hardly falls.
    return (1 + n_steps / delay) ** -0.6


# Points count in averages as this power of their number, the first ones little.
AVERAGE_POWER = 3


class AveragedSteps:
    """Steps of falling sizes on noisy gradients, and the average of their points."""

    # known : the average before the last point, whose value is not known yet.

    def __init__(self, objective, point, learning_rate, n_steps=0):
        self.objective, self.learning_rate = objective, learning_rate
        self.point = self.average = self.known = point
        self.n_steps, self.information = n_steps, None

    def take(self, batch):
        """Take a step; return it, and the weight of its point in the average."""
        objective, n_steps = self.objective, self.n_steps
        if n_steps:
            self.point = objective.aligned(self.point, self.average)
        weight = max(0.05, 1 / (n_steps + 1))
        move = objective.full_step(self.point, batch, self.information, weight)
        if not move.is_finite:
            raise FloatingPointError
        self.information, self.known = move.information, self.average
        size = self.learning_rate * falling_size(n_steps)
        self.point, self.n_steps = objective.moved(self.point, move, size), n_steps + 1
        weight = (AVERAGE_POWER + 1) / (self.n_steps + AVERAGE_POWER)
        self.average = objective.mixed(self.average, self.point, weight)
        return move, weight


def averaged_ascent(training, objective, *, learning_rate, rng, tol, n_iter_no_change):
    """Take steps until more would lower the noise of their average by little.

    Training ends when `n_iter_no_change` more epochs are expected to gain less than
    `tol`.
    """
    steps = AveragedSteps(objective, training.params, learning_rate)
    gain, mean_pair = 0.0, 0.0  # half of gradient times step; both
    try:
        while True:
            values = []
            for batch in objective.batches(rng):
                move, weight = steps.take(batch)
                values.append(move.value)
                pair = torch.stack(move.gradient_and_step)
                gain += weight * (0.5 * float(pair[0] @ pair[1]) - gain)
                mean_pair += weight * (pair - mean_pair)
            training.params = steps.average
            training.loss_curve.append(objective.log_scale - float(np.mean(values)))
            # noise alone causes the gain that full steps promise at the maximum
            cost = max(0.0, gain) / steps.n_steps
            cost *= (AVERAGE_POWER + 1) ** 2 / (2 * AVERAGE_POWER + 1)
            # the gain of a full step along the mean gradient, less its noise
            promise = max(0.0, 0.5 * float(mean_pair[0] @ mean_pair[1]) - cost)
            n_more = n_iter_no_change * len(values)
            yield cost * n_more / (steps.n_steps + n_more) + promise < 0.5 * tol
    except (*DIVERGENCE, KeyboardInterrupt):
        training.params = steps.known
        raise


def ascent_on_part(training, objective, *, learning_rate, rng, n_steps):
    """Take one step for each batch of a part of a stream, after `n_steps` others.

    Step sizes fall, and points are averaged, from part to part.
    """
    steps = AveragedSteps(objective, training.params, learning_rate, n_steps)
    if training.state:
        like, state = steps.point.coefs.new_tensor, training.state
        steps.n_steps = state["n_steps"]
        steps.point, steps.average = (
            Point(*map(like, state[name])) for name in ("point", "average")
        )
        steps.information = Curvature(*map(like, state["information"]))
    training.params = steps.average
    values = [steps.take(batch)[0].value for batch in objective.batches(rng)]
    training.params = steps.average
    training.loss_curve.append(objective.log_scale - float(np.mean(values)))
    training.state = {
        "n_steps": steps.n_steps,
        "point": as_arrays(steps.point),
        "average": as_arrays(steps.average),
        "information": as_arrays(steps.information.of_each()),
    }
    yield True
