import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._deep.early_stopping import Descent, Objective, Stopping, recent_mean
from sklearn_mpt._deep.solver import JOINED_SHARE, DescentSolver
from sklearn_mpt._latent.fit_loop import SILENCE, Silence, fit_loop, fit_part
from sklearn_mpt._latent.schedule_free import MEMORY, REST, ScheduleFreeAdam

torch = pytest.importorskip("torch")


class After(Silence):
    """Calls a function after each epoch, which says whether training ends."""

    def __init__(self, function):
        self.end = function


class Point(torch.nn.Module):
    """One parameter, so that what the loop does with it is plain to see."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(5.0, dtype=torch.float64))


class NoisyParabola(Objective):
    """(x - 1)^2 plus a random slope: minimised at 1 in expectation."""

    def __init__(self, noise):
        self.noise = noise

    def batches(self, rng):
        yield torch.tensor(self.noise * rng.normal(size=8))

    def losses(self, module, batch):
        return (module.x - 1) ** 2 + batch * (module.x - 1)


class Cliff(NoisyParabola):
    """Falls steadily until x passes 4.5, and is infinite from there on."""

    def losses(self, module, batch):
        return torch.where(module.x > 4.5, module.x, torch.inf) + 0 * batch


def solver_of(objective, **until):
    rng = np.random.default_rng(0)
    return DescentSolver(Point(), objective, learning_rate=0.1, rng=rng, **until)


def run(objective, max_iter=3000, window=10, epochs=SILENCE):
    solver = solver_of(objective, tol=1e-4, n_iter_no_change=window)
    fit_loop(solver, max_iter, epochs)
    return solver


def test_stops_at_the_minimum_of_a_deterministic_objective():
    solver = run(NoisyParabola(noise=0.0), window=200)  # an epoch is but one step
    assert (solver.module.x.item() - 1) ** 2 < 1e-4  # tol
    assert solver.plateau
    assert len(solver.loss_curve) < 3000


def test_averaging_removes_the_noise():
    solver = run(NoisyParabola(noise=3.0), window=200)
    # one step sees a slope of standard deviation 3 / sqrt(8)
    assert abs(solver.module.x.item() - 1) < 0.15


def test_running_out_of_epochs_warns():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=20\) reached"):
        solver = run(NoisyParabola(noise=0.0), max_iter=20)
    assert len(solver.loss_curve) == 20


def test_divergence_restores_the_best_finite_state():
    with pytest.warns(ConvergenceWarning, match=r"diverged after \d+ epochs"):
        solver = run(Cliff(noise=0.0))
    assert 4.5 < solver.module.x.item() < 5
    assert np.isfinite(solver.loss_curve).all()


def test_divergence_in_the_very_last_step_is_noticed():
    class LastStep(Cliff):
        def losses(self, module, batch):
            return torch.where(module.x == 5, module.x, torch.nan) + 0 * batch

    solver = DescentSolver(
        Point(), LastStep(0.0), learning_rate=0.1, rng=np.random.default_rng(0)
    )
    with pytest.warns(ConvergenceWarning, match="diverged after 1 epochs"):
        fit_part(solver)
    assert solver.module.x.item() == 5
    assert solver.state()["progress"][0] == 0


def test_interruption_keeps_the_model():
    solver = solver_of(NoisyParabola(noise=0.0))

    def interrupt():
        if len(solver.loss_curve) == 7:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        fit_loop(solver, 3000, After(interrupt))
    assert len(solver.loss_curve) == 7
    assert 1 < solver.module.x.item() < 5


@pytest.mark.parametrize("stop_after", [3, 60])
def test_a_callback_stops_without_a_warning(stop_after):
    ends = iter([False] * (stop_after - 1) + [True])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver = run(NoisyParabola(noise=1.0), epochs=After(lambda: next(ends)))
    assert len(solver.loss_curve) == stop_after


def test_optimizer_state_survives_as_arrays():
    straight, resumed = (
        DescentSolver(Point(), NoisyParabola(0.0), learning_rate=0.1, rng=None)
        for _ in range(2)
    )
    for solver in (straight, resumed):
        solver.rng = np.random.default_rng(0)
        fit_part(solver)
    again = DescentSolver(
        resumed.module, resumed.objective, learning_rate=0.1, rng=resumed.rng
    )
    again.load(resumed.state())
    fit_part(straight)
    fit_part(again)
    assert again.module.x.item() == straight.module.x.item()


class HeldOut(NoisyParabola):
    """Trained towards 1; held-out rows are best at `best`."""

    def __init__(self, best, spread):
        super().__init__(noise=0.3)
        self.best = best
        self.spread = torch.tensor(np.random.default_rng(1).normal(size=50) * spread)

    def validate(self, module):
        return (module.x - self.best).detach() ** 2 + self.spread * module.x.detach()


def test_the_best_held_out_parameters_are_kept():
    solver = run(HeldOut(best=3.0, spread=0.0))
    reached = (solver.module.x.item() - 3) ** 2
    assert np.isclose(reached, min(solver.validation_curve))
    assert reached < 0.1 < max(solver.validation_curve)
    assert reached < solver.validation_curve[-1]


def test_training_goes_on_from_the_best_start():
    """From 9 it is far to the best of held-out rows, 3; from 3.5 it is near."""
    module = Point()
    solver = DescentSolver(
        module,
        HeldOut(best=3.0, spread=0.0),
        learning_rate=0.01,
        rng=np.random.default_rng(0),
        others=[{"x": torch.tensor(9.0)}, {"x": torch.tensor(3.5)}],
        n_iter_no_change=90,
    )
    with pytest.warns(ConvergenceWarning, match="Maximum iterations"):
        fit_loop(solver, 100)
    assert abs(module.x.item() - 3) < 0.05
    assert len(solver.loss_curve) == 100  # those of other starts do not count


def test_a_start_that_diverges_is_left():
    module, objective = Point(), HeldOut(best=3.0, spread=0.0)
    solver = DescentSolver(
        module,
        objective,
        learning_rate=0.01,
        rng=np.random.default_rng(0),
        others=[{"x": torch.tensor(torch.nan)}],
    )
    fit_loop(solver, 20, After(lambda: True))
    assert 4.5 < module.x.item() < 5


def test_resting_parameters_wait():
    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1, [module.x])
    optimizer.resume()
    for _ in range(REST):
        optimizer.step(torch.ones(1).double())
    assert module.x.item() == 5
    optimizer.step(torch.ones(1).double())
    assert module.x.item() < 5


def test_recent_losses_are_those_of_a_tenth_of_the_epochs():
    losses = list(np.arange(40.0).reshape(20, 2))
    assert_allclose(recent_mean(losses[:7]), losses[6])
    assert_allclose(recent_mean(losses), [37, 38])


def test_what_rests_is_what_the_module_is_told():
    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1, [module.x], rest=np.inf)
    optimizer.resume()
    optimizer.step(torch.ones(1).double())
    with torch.no_grad():
        module.x.fill_(3.0)
    optimizer.keep_resting()
    optimizer.resume()
    assert module.x.item() == 3
    for _ in range(2 * REST):
        optimizer.step(torch.ones(1).double())
    optimizer.show_average()
    assert module.x.item() == 3


def test_held_out_rows_set_what_no_step_changes():
    class Tuned(HeldOut):
        tunes = True

        def tune(self, module):
            with torch.no_grad():
                module.x.copy_(module.x / 2 + self.best / 2)
            return self.validate(module)

    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1, [module.x], rest=np.inf)
    descent = Descent(module, Tuned(3.0, 0.0), optimizer)
    for _ in range(4):
        descent.epoch(np.random.default_rng(0))
    assert module.x.item() == 3 + 2 / 2**4  # halfway from 5 every time
    assert_allclose(descent.validation_curve, [1, 1 / 4, 1 / 16, 1 / 64])


def test_a_gradient_that_is_large_once_moves_no_further_than_two_rates():
    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1)
    optimizer.resume()
    for _ in range(200):
        optimizer.step(torch.full_like(optimizer.iterate, 1e-3))
    before = optimizer.iterate.clone()
    optimizer.step(torch.full_like(before, 1e6))
    assert_allclose(before - optimizer.iterate, 0.2)


@pytest.mark.parametrize(
    ("curve", "is_flat"),
    [
        ([3.0] * 14, False),  # too few to tell
        ([3.0] * 15, True),
        ([*range(15, 0, -1)], False),
        ([*range(10, 0, -1), *[5.0] * 17], False),  # as long as it fell, and longer
        ([*range(10, 0, -1), *[5.0] * 20], True),
        ([*range(50, 0, -1), *[5.0] * 20], True),
    ],
)
def test_held_out_losses_may_rise_before_they_fall_again(curve, is_flat):
    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1)
    descent = Descent(module, HeldOut(best=3.0, spread=0.0), optimizer)
    descent.validation_curve = curve
    assert descent.is_flat(10, 0.0) == is_flat


def test_patience_is_how_long_held_out_losses_may_stay_flat():
    module = Point()
    of = module, HeldOut(best=3.0, spread=0.0), ScheduleFreeAdam(module, 0.1)
    for patience in (1, 2):
        descent = Descent(*of, Stopping(patience))
        descent.validation_curve = [*range(50, 0, -1), *[5.0] * (10 * patience - 1)]
        assert not descent.is_flat(10, 0.0)
        descent.validation_curve.append(5.0)
        assert descent.is_flat(10, 0.0)


def test_windows_of_held_out_losses_must_fall_by_more_than_rows_tell_by_chance():
    module = Point()
    of = module, HeldOut(best=3.0, spread=0.0), ScheduleFreeAdam(module, 0.1)
    descent = Descent(*of, Stopping(2, by_rows=True))
    spread = np.tile([-1.0, 1.0], 50)  # of mean falls: error 0.1
    for fall, is_flat in ((0.39, True), (0.41, False)):
        steps = [np.zeros(100), *[-fall - spread] * 20]
        descent.row_losses = [steps[0]] * 20 + steps[1:]
        assert descent.is_flat(10, 0.0) == is_flat
        assert descent.is_flat(10, 0.5)
        assert not descent.is_flat(11, 0.5)  # too few to tell


class Joining(HeldOut):
    """Rows whose best is 3 join those whose best is 1, which moves it to 2."""

    centre, noise_of = 1.0, ""

    def losses(self, module, batch):
        return (module.x - self.centre) ** 2 + batch * (module.x - self.centre)

    def validate(self, module):
        return super().validate(module) if self.centre == 1 else None

    def finish(self, module):
        self.noise_of += "held-out" if self.centre == 1 else "all"

    def join(self):
        self.centre = 2.0


def joining(joins):
    until = {"tol": 1e-4, "n_iter_no_change": 100}
    return solver_of(Joining(best=3.0, spread=0.0), joins=joins, **until)


def run_joining(solver, max_iter=3000, epochs=SILENCE):
    fit_loop(solver, max_iter, epochs)
    return solver


def test_rows_that_ended_training_join_it_for_a_while():
    apart, joined = (run_joining(joining(joins)) for joins in (False, True))
    n_epochs = len(apart.loss_curve)
    assert joined.loss_curve[:n_epochs] == apart.loss_curve
    assert joined.validation_curve == apart.validation_curve
    assert len(joined.loss_curve) == int((1 + JOINED_SHARE) * n_epochs)
    assert apart.module.x.item() == pytest.approx(3, abs=0.1)
    assert 2 < joined.module.x.item() < apart.module.x.item() - 0.05  # on the way to 2
    assert apart.objective.noise_of == joined.objective.noise_of == "held-out"
    assert apart.plateau
    assert joined.plateau


def test_joined_rows_have_the_epochs_that_are_left():
    n_epochs = len(run_joining(joining(False)).loss_curve)
    for n_left in (0, 3):
        solver = run_joining(joining(True), max_iter=n_epochs + n_left)
        assert len(solver.loss_curve) == n_epochs + n_left


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt, FloatingPointError])
def test_what_ends_training_with_joined_rows_keeps_the_model(ending):
    apart, solver = run_joining(joining(False)), joining(True)
    n_last = len(apart.loss_curve) + 5

    class Epochs(Silence):
        def begin(self):
            if ending is not None and len(solver.loss_curve) == n_last:
                solver.module.x.data.fill_(100.0)
                raise ending

        def end(self):
            return ending is None and len(solver.loss_curve) == n_last

    if ending is None:
        run_joining(solver, epochs=Epochs())
    elif ending is KeyboardInterrupt:
        with pytest.warns(UserWarning, match="interrupted"):
            run_joining(solver, epochs=Epochs())
    else:
        with pytest.warns(ConvergenceWarning, match=f"after {n_last} epochs"):
            run_joining(solver, epochs=Epochs())
    assert len(solver.loss_curve) == n_last
    assert 2 < solver.module.x.item() <= apart.module.x.item()
    assert solver.objective.noise_of == "held-out"


class Scripted(Objective):
    """Held-out losses of two rows, epoch by epoch; before, they are 9."""

    def __init__(self, *script):
        self.script = iter([(9.0, 9.0), *script])

    def batches(self, rng):
        yield None

    def losses(self, module, batch):
        return module.x.flatten()

    def validate(self, module):
        return torch.tensor(next(self.script))


def test_the_last_parameters_that_held_out_rows_tell_from_none_are_kept():
    module, rng = Point(), np.random.default_rng(0)
    optimizer = ScheduleFreeAdam(module, 0.1)
    script = [(1.0, 3.0), (2.0, 2.6), (2.0, 4.0), (2.5, 3.0)]  # errors 0.5, 0, 0.5
    descent = Descent(module, Scripted(*script), optimizer)
    averages = []
    for _ in script:
        descent.epoch(rng)
        averages.append(module.x.item())
    assert descent.lowest == 2.0
    assert descent.best.item() == averages[1]
    assert len(set(averages)) == 4


def test_steps_get_smaller_once_where_held_out_losses_are_flat():
    solver = solver_of(HeldOut(best=3.0, spread=0.0), n_iter_no_change=10)
    sizes, best = [], []

    def note():
        descent = solver._descent
        sizes.append(descent.optimizer.learning_rate)
        best.append(descent.lowest)

    fit_loop(solver, 1000, After(note))
    assert solver.plateau
    n_fast = sizes.count(0.1)
    assert_allclose(sizes[n_fast:], 0.02)
    assert len(sizes) >= n_fast + 15
    # what was best before steps got smaller is where they start
    assert best[n_fast] <= best[n_fast - 1]
    assert min(best) == best[-1]


def test_an_average_that_starts_anew_forgets_all_but_its_point():
    module = Point()
    optimizer = ScheduleFreeAdam(module, 0.1)
    optimizer.resume()
    for sign in (1.0, -1.0) * 100:
        optimizer.step(torch.full_like(optimizer.iterate, sign))
    optimizer.restart(torch.full_like(optimizer.iterate, 7.0), 0.01)
    optimizer.resume()
    assert_allclose(module.x.detach(), 7.0)
    for _ in range(MEMORY):
        optimizer.step(torch.ones_like(optimizer.iterate))
    # steps n, from M + 1 to 2 M, weigh n, the point as much as 1 to M: the mean of
    # n - M is 5/12 M
    moved = (7 - optimizer.average) / (7 - optimizer.iterate)
    assert_allclose(moved, 5 / 12, rtol=0.01)


def test_interruption_after_a_step_that_diverged_keeps_finite_parameters():
    """Only the next loss would have shown it."""
    solver = solver_of(NoisyParabola(noise=0.0))

    def spoil():
        if len(solver.loss_curve) == 7:
            solver._descent.optimizer.average[:] = torch.nan
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        fit_loop(solver, 3000, After(spoil))
    assert 1 < solver.module.x.item() < 5
