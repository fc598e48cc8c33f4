"""Ascent on a quadratic with noisy slopes, where what it should do is plain to see."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._optim.natural import Curvature, Objective, Point, Sums
from sklearn_mpt._optim.steps import (
    Training,
    ascent_of,
    ascent_on_part,
    best_of_points,
    run,
)

BEST = Point(
    torch.tensor([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0]], dtype=torch.float64),
    torch.tensor(-1.0, dtype=torch.float64),
)
START = Point(
    torch.full((3, 2), 0.1, dtype=torch.float64),
    torch.tensor(1.0, dtype=torch.float64),
)
CURVATURE = Curvature(
    torch.tensor([[[2.0, 0.5], [0.5, 1.0]]] * 3, dtype=torch.float64),
    torch.tensor(1.5, dtype=torch.float64),
)
N_ROWS = 50


class Quadratic(Objective):
    """Minus half the distance to BEST, in the metric of CURVATURE, in nats per row.

    noise : standard deviation of the slopes of a batch. excess : of the information
    over the curvature, as in EM, where steps are too short; below 0.5 they overshoot.
    """

    floor = -10.0
    n_rows = N_ROWS

    def __init__(self, noise=0.0, excess=1.5, n_batches=1):
        self.noise, self.excess, self.n_batches = noise, excess, n_batches
        self.is_noisy = noise > 0

    def batches(self, rng):
        for _ in range(self.n_batches):
            yield tuple(self.noise * torch.tensor(rng.normal(size=s)) for s in (6, 1))

    def sums(self, point, batch):
        gap = point.plus(BEST, -1)
        pull = self.pull(gap)
        noise = Point(batch[0].reshape(3, 2), batch[1][0])
        value = -0.5 * gap.dot(pull) + noise.dot(gap)
        variance = N_ROWS * self.noise**2 * gap.dot(gap)  # over rows
        return Sums(
            torch.tensor(N_ROWS * value),
            torch.tensor(N_ROWS * (value**2 + variance)),
            noise.plus(pull, -1).times(N_ROWS),
            CURVATURE.times(N_ROWS * self.excess),
            N_ROWS,
            rescaling=torch.zeros(2, 2, dtype=torch.float64),
        )

    @staticmethod
    def pull(gap):
        coefs = (CURVATURE.coefs @ gap.coefs[..., None])[..., 0]
        return Point(coefs, CURVATURE.shape_params * gap.shape_params)


class Failing(Quadratic):
    """Not a number once `n_good` sums have been asked for."""

    def __init__(self, n_good, **settings):
        super().__init__(**settings)
        self.n_left = n_good

    def sums(self, point, batch):
        self.n_left -= 1
        sums = super().sums(point, batch)
        return sums if self.n_left >= 0 else sums._replace(value=torch.tensor(math.nan))


def loss(point):
    gap = point.plus(BEST, -1)
    return 0.5 * gap.dot(Quadratic.pull(gap))


def trained(objective, max_iter=5000, tol=1e-4, rng=0):
    training = Training(max_iter, START)
    params = {"learning_rate": 1.0, "tol": tol, "n_iter_no_change": 10}
    rng = np.random.default_rng(rng)
    run(training, ascent_of(training, objective, rng=rng, **params))
    return training


def is_over(training):
    return len(training.loss_curve) < training.max_iter


@pytest.mark.parametrize("excess", [1.0, 1.5, 4.0, 0.45, 0.3])
def test_exact_problems_end_at_the_optimum(excess):
    """Below 0.5, full steps overshoot: they move away from the optimum."""
    training = trained(Quadratic(excess=excess))
    assert is_over(training)
    assert loss(training.params) < 1e-6
    assert_allclose(training.params.coefs, BEST.coefs, atol=2e-3)
    assert (np.diff(training.loss_curve) < 1e-8).all()


class Coarse(Quadratic):
    """The quadratic with another optimum, as an approximation with few nodes has.

    Values fall by 1e-7 nats per row from call to call.
    """

    n_calls = 0

    def sums(self, point, batch):
        self.n_calls += 1
        sums = super().sums(point.plus(BEST, 0.1), batch)
        return sums._replace(value=sums.value - 1e-7 * N_ROWS * self.n_calls)

    def exact_objective(self):
        return Quadratic()


def test_a_finer_form_of_the_objective_comes_last():
    assert loss(trained(Coarse()).params) < 1e-6


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-5])
def test_what_an_exact_ascent_leaves_is_a_small_part_of_tol(tol):
    assert loss(trained(Quadratic(excess=3.0), tol=tol).params) < 0.05 * tol


def test_steps_that_overshoot_amid_noise_end_near_the_optimum():
    training = trained(Quadratic(excess=0.3, noise=0.05), tol=1e-3)
    assert is_over(training)
    assert loss(training.params) < 1e-2


def test_averaging_removes_the_noise():
    """A full step has 7 parameters' noise, of (0.2 / sqrt(curvature))^2 / 2 nats each.

    Averaged, they cost less than a tenth of that.
    """
    training = trained(Quadratic(noise=0.2, excess=1.0))
    variances = 0.2**2 * (3 * np.trace(np.linalg.inv(CURVATURE.coefs[0])) + 1 / 1.5)
    assert is_over(training)
    assert loss(training.params) < 0.1 * variances / 2


def test_what_is_left_to_gain_is_about_tol():
    fits = [trained(Quadratic(0.5), tol=1e-3, rng=r) for r in range(4)]
    # going on for 10 epochs would gain tol: the average of n >> 10 costs tol * n / 10
    n_epochs = len(fits[0].loss_curve)
    assert np.mean([loss(fit.params) for fit in fits]) < 2 * 1e-3 * n_epochs / 10


def test_smaller_gains_take_longer():
    fits = [trained(Quadratic(noise=0.3), tol=tol) for tol in (1e-2, 1e-3, 1e-4)]
    n_epochs = [len(fit.loss_curve) for fit in fits]
    assert n_epochs[0] < n_epochs[1] < n_epochs[2]


def test_a_last_step_that_lost_is_undone():
    """Full steps overshoot, and are halved in the epoch after."""
    objective = Quadratic(excess=0.3)
    losses = [loss(trained(objective, max_iter=n).params) for n in range(1, 6)]
    assert (np.diff([loss(START), *losses]) <= 0).all()
    assert losses[-1] < 0.5 * losses[0]


def test_short_runs_do_not_end_where_the_last_step_lost():
    end = best_of_points(Quadratic(excess=0.3), [START], 1)
    assert loss(end) <= loss(START)


def test_short_runs_that_diverge_are_left_out():
    with pytest.raises(FloatingPointError):
        best_of_points(Failing(0), [START, START], 3)
    both = best_of_points(Failing(4), [BEST, START], 3)
    assert loss(both) < 1e-9


def test_noise_stays_above_its_floor():
    objective = Quadratic()
    objective.floor = -0.25
    end = trained(objective, tol=0.0, max_iter=50).params
    assert end.shape_params == -0.25
    assert_allclose(end.coefs, BEST.coefs, atol=1e-6)


@pytest.mark.parametrize("n_good", [0, 1, 3])
def test_divergence_keeps_the_last_point_whose_value_is_finite(n_good):
    training = Training(5000, START)
    params = {"learning_rate": 1.0, "tol": 0.0, "n_iter_no_change": 10}
    rng = np.random.default_rng(0)
    epochs = ascent_of(training, Failing(n_good, noise=0.1), rng=rng, **params)
    with pytest.raises(FloatingPointError):
        run(training, epochs)
    straight = trained(Quadratic(noise=0.1), tol=0.0, max_iter=max(1, n_good - 1))
    expected = START if n_good < 2 else straight.params
    assert_array_equal(training.params.coefs, expected.coefs)
    assert np.isfinite(training.loss_curve).all()


def test_an_exact_ascent_stops_before_a_cliff():
    class Cliff(Quadratic):
        def sums(self, point, batch):
            sums = super().sums(point, batch)
            beyond = point.shape_params < 0
            return sums._replace(value=torch.where(beyond, torch.nan, sums.value))

    assert 0 <= trained(Cliff()).params.shape_params < 0.1


def stream(objective, n_parts, rng=0, state=None, start=START):
    """The training on the last part; each knows the arrays of the one before alone."""
    rng, training = np.random.default_rng(rng), Training(1, start, state=state or {})
    for _ in range(n_parts):
        training = Training(1, start, state=training.state)
        params = {"learning_rate": 1.0, "rng": rng, "n_steps": 0}
        run(training, ascent_on_part(training, objective, **params))
    return training


def test_a_stream_is_averaged_towards_the_optimum():
    losses = [
        np.mean([loss(stream(Quadratic(0.5), n, rng=r).params) for r in range(6)])
        for n in (3, 15, 100)
    ]
    assert losses[2] < losses[1] / 3 < losses[0] / 9


def test_the_state_of_a_stream_is_arrays():
    training = stream(Quadratic(noise=0.3), 6)
    assert training.state["n_steps"] == 6
    for name in ("point", "average", "information"):
        assert all(isinstance(array, np.ndarray) for array in training.state[name])
    assert_array_equal(training.state["average"][0], training.params.coefs)


def test_the_average_of_a_stream_is_better_than_its_last_point():
    streams = [stream(Quadratic(0.5), 40, rng=r) for r in range(8)]
    average = np.mean([loss(training.params) for training in streams])
    points = [Point(*map(torch.tensor, fit.state["point"])) for fit in streams]
    assert average < 0.7 * np.mean([loss(point) for point in points])


def test_a_part_that_diverges_is_skipped():
    before = stream(Quadratic(noise=0.1), 2)
    training = Training(1, before.params, state=before.state)
    params = {"learning_rate": 1.0, "rng": np.random.default_rng(0), "n_steps": 2}
    with pytest.raises(FloatingPointError):
        run(training, ascent_on_part(training, Failing(0), **params))
    assert_array_equal(training.params.coefs, before.params.coefs)
    assert training.state is before.state


class Uneven(Quadratic):
    """Values have errors that depend on the point, as those of moving nodes do."""

    def sums(self, point, batch):
        sums = super().sums(point, batch)
        error = 1e-5 * math.sin(1e7 * float(point.coefs.sum()))
        return sums._replace(value=sums.value + N_ROWS * error)


def test_steps_end_where_errors_of_values_hide_gains():
    """Halving ends where the promised gain is less than that of convergence."""
    training = trained(Uneven(), max_iter=30)
    assert is_over(training)
    assert loss(training.params) < 1e-4
