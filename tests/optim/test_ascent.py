"""Ascent on a quadratic with noisy slopes, where what it should do is plain to see."""

import math
import warnings

import numpy as np
import pytest
from epochs import SILENCE, Silence
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

torch = pytest.importorskip("torch")

from sklearn_mpt._optim.loop import fit_loop, fit_part  # noqa: E402
from sklearn_mpt._optim.natural import Curvature, Objective, Point, Sums  # noqa: E402
from sklearn_mpt._optim.steps import (  # noqa: E402
    NoisyAscent,
    ascent_of,
    best_of_points,
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


def ascent_on(objective, learning_rate=1.0, rng=0, point=START, **until):
    rng = np.random.default_rng(rng)
    until = {"n_iter_no_change": 1} | until
    return ascent_of(objective, point, learning_rate=learning_rate, rng=rng, **until)


def run(objective, max_iter=5000, tol=1e-4, epochs=SILENCE, **settings):
    ascent = ascent_on(objective, tol=tol, n_iter_no_change=10, **settings)
    fit_loop(ascent, max_iter, epochs)
    return ascent


class Counted(Silence):
    """Calls `action` after the n-th epoch."""

    def __init__(self, action, n):
        self.action = action
        self.n = n
        self.count = 0

    def end(self):
        self.count += 1
        return self.action() if self.count == self.n else None


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("excess", [1.0, 1.5, 4.0])
def test_exact_problems_end_at_the_optimum(excess):
    ascent = run(Quadratic(excess=excess))
    assert ascent.terminate()
    assert loss(ascent.result) < 1e-6
    assert_allclose(ascent.result.coefs, BEST.coefs, atol=2e-3)


@pytest.mark.parametrize("excess", [0.45, 0.3])
def test_steps_that_overshoot_are_halved(excess):
    """Full steps move the gap by the factor 1 - 1 / excess: away from the optimum."""
    ascent = run(Quadratic(excess=excess))
    assert ascent.terminate()
    assert loss(ascent.result) < 1e-6
    assert (np.diff(ascent.loss_curve) < 1e-8).all()


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
    first = ascent_on(Coarse(), tol=1e-4)
    last = fit_loop(first, 5000, SILENCE)
    assert loss(first.result) > 1e-3
    assert loss(last.result) < 1e-6


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-5])
def test_what_an_exact_ascent_leaves_is_a_small_part_of_tol(tol):
    assert loss(run(Quadratic(excess=3.0), tol=tol).result) < 0.05 * tol


def test_steps_that_overshoot_amid_noise_are_halved():
    ascent = run(Quadratic(excess=0.3, noise=0.05), tol=1e-3)
    assert ascent.terminate()
    assert loss(ascent.result) < 1e-2


def test_averaging_removes_the_noise():
    """A full step has 7 parameters' noise, of (0.2 / sqrt(curvature))^2 / 2 nats each.

    Averaged, they cost less than a tenth of that.
    """
    ascent = run(Quadratic(noise=0.2, excess=1.0))
    variances = 0.2**2 * (3 * np.trace(np.linalg.inv(CURVATURE.coefs[0])) + 1 / 1.5)
    assert ascent.terminate()
    assert loss(ascent.result) < 0.1 * variances / 2


def test_what_is_left_to_gain_is_about_tol():
    losses = [loss(run(Quadratic(0.5), tol=1e-3, rng=r).result) for r in range(4)]
    # going on for 10 epochs would gain tol: the average of n >> 10 costs tol * n / 10
    n_epochs = len(run(Quadratic(0.5), tol=1e-3).loss_curve)
    assert np.mean(losses) < 2 * 1e-3 * n_epochs / 10


def test_training_stops_by_gain_not_by_a_share_of_epochs():
    few, many = (run(Quadratic(noise=0.3), max_iter=n) for n in (2000, 5000))
    assert few.terminate()
    assert len(few.loss_curve) == len(many.loss_curve)
    assert_array_equal(few.result.coefs, many.result.coefs)


def test_smaller_gains_take_longer():
    n_epochs = [
        len(run(Quadratic(noise=0.3), tol=tol).loss_curve) for tol in (1e-2, 1e-3, 1e-4)
    ]
    assert n_epochs[0] < n_epochs[1] < n_epochs[2]


def test_running_out_of_epochs_warns():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=3\) reached"):
        ascent = run(Quadratic(), max_iter=3)
    assert len(ascent.loss_curve) == 3
    assert not ascent.terminate()


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_last_step_that_lost_is_undone(noise):
    """Full steps overshoot, and are halved in the epoch after."""
    losses = [loss(START)]
    for max_iter in range(1, 6):
        with pytest.warns(ConvergenceWarning, match="reached"):
            ascent = run(Quadratic(excess=0.3, noise=noise), max_iter=max_iter)
        losses.append(loss(ascent.result))
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < 0.5 * losses[0]


def test_short_runs_do_not_end_where_the_last_step_lost():
    end = best_of_points(Quadratic(excess=0.3), [START], 1)
    assert loss(end) <= loss(START)


def test_an_interruption_leaves_a_point_whose_value_is_known():
    with pytest.warns(UserWarning, match="interrupted"):
        ascent = run(Quadratic(excess=0.3), epochs=Counted(interrupt, 1))
    assert loss(ascent.result) <= loss(START)


def test_noise_stays_above_its_floor():
    objective = Quadratic()
    objective.floor = -0.25
    ascent = ascent_on(objective)
    for _ in range(30):
        ascent.step()
    assert ascent.point.shape_params == -0.25
    assert_allclose(ascent.point.coefs, BEST.coefs, atol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("n_epochs", [3, 8])
def test_interruption_keeps_the_model(noise, n_epochs):
    ascent = ascent_on(Quadratic(noise=noise, excess=20.0), tol=1e-4)
    with pytest.warns(UserWarning, match="interrupted"):
        fit_loop(ascent, 5000, Counted(interrupt, n_epochs))
    assert len(ascent.loss_curve) == n_epochs
    assert loss(ascent.result) < loss(START)


@pytest.mark.parametrize("n_epochs", [3, 40])
def test_a_callback_stops_without_a_warning(n_epochs):
    epochs = Counted(lambda: True, n_epochs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ascent = run(Quadratic(noise=0.3), tol=0.0, epochs=epochs)
    assert len(ascent.loss_curve) == n_epochs


def test_divergence_at_the_start_keeps_the_start():
    with pytest.warns(ConvergenceWarning, match="diverged after 0 epochs"):
        ascent = run(Failing(0))
    assert_array_equal(ascent.result.coefs, START.coefs)


@pytest.mark.parametrize("n_good", [1, 3])
def test_divergence_keeps_the_last_finite_point(n_good):
    straight = ascent_on(Quadratic(noise=0.1))
    for _ in range(n_good):
        last = straight.result
        straight.step()
    with pytest.warns(ConvergenceWarning, match=r"diverged after \d+ epochs"):
        ascent = run(Failing(n_good, noise=0.1))
    assert_array_equal(ascent.result.coefs, last.coefs)
    assert np.isfinite(ascent.loss_curve).all()


def test_an_exact_ascent_stops_before_a_cliff():
    class Cliff(Quadratic):
        def sums(self, point, batch):
            sums = super().sums(point, batch)
            beyond = point.shape_params < 0
            return sums._replace(value=torch.where(beyond, torch.nan, sums.value))

    ascent = run(Cliff())
    assert 0 <= ascent.result.shape_params < 0.1


def stream(objective, n_parts, rng):
    """One ascent over all parts."""
    rng = np.random.default_rng(rng)
    ascent = NoisyAscent.of_part(objective, START, 0, learning_rate=1.0, rng=rng)
    for _ in range(n_parts):
        fit_part(ascent)
    return ascent


def assert_points_equal(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        assert_array_equal(a, b)


def test_a_stream_goes_on_where_its_state_says():
    """Each part by an ascent of its own, that knows arrays alone."""
    objective = Quadratic(noise=0.3)
    straight = stream(objective, 6, rng=3)
    state, result, rng = {}, START, np.random.default_rng(3)
    for _ in range(6):
        ascent = NoisyAscent.of_part(objective, result, 0, learning_rate=1.0, rng=rng)
        ascent.load(state)
        fit_part(ascent)
        state, result = ascent.state(), ascent.result
    assert_points_equal(result, straight.result)
    assert state["n_steps"] == straight.state()["n_steps"] == 6
    for name in ("point", "average", "information"):
        assert all(isinstance(array, np.ndarray) for array in state[name])
        assert_points_equal(state[name], straight.state()[name])


def test_a_stream_is_averaged_towards_the_optimum():
    losses = [
        np.mean([loss(stream(Quadratic(0.5), n, rng=r).result) for r in range(6)])
        for n in (3, 15, 100)
    ]
    assert losses[2] < losses[1] / 3 < losses[0] / 9


def test_the_average_of_a_stream_is_better_than_its_last_point():
    streams = [stream(Quadratic(0.5), 40, rng=r) for r in range(8)]
    average = np.mean([loss(ascent.result) for ascent in streams])
    last = np.mean([loss(ascent.point) for ascent in streams])
    assert average < 0.7 * last


def test_a_part_that_diverges_is_skipped():
    rng, before = np.random.default_rng(0), stream(Quadratic(noise=0.1), 2, rng=0)
    ascent = NoisyAscent.of_part(
        Failing(0), before.result, 2, learning_rate=1.0, rng=rng
    )
    ascent.load(before.state())
    with pytest.warns(ConvergenceWarning, match="diverged"):
        fit_part(ascent)
    assert_points_equal(ascent.result, before.result)


class Uneven(Quadratic):
    """Values have errors that depend on the point, as those of moving nodes do."""

    def sums(self, point, batch):
        sums = super().sums(point, batch)
        error = 1e-5 * math.sin(1e7 * float(point.coefs.sum()))
        return sums._replace(value=sums.value + N_ROWS * error)


def test_steps_end_where_errors_of_values_hide_gains():
    """Halving ends where the promised gain is less than that of convergence."""
    ascent = ascent_on(Uneven(), tol=1e-4)
    fit_loop(ascent, 30, SILENCE)
    assert ascent.terminate()
    assert loss(ascent.result) < 1e-4
