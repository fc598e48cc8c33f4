import warnings

import numpy as np
import pytest
from epochs import SILENCE, Silence
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._optim.loop import fit_loop, fit_part
from sklearn_mpt._optim.nets import NetSolver

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


class NoisyParabola:
    """(x - 1)^2 plus a random slope: minimised at 1 in expectation."""

    step_weight = 1.0

    def __init__(self, noise):
        self.noise = noise
        self.rng = np.random.default_rng(0)

    def batches(self):
        yield torch.tensor(self.noise * self.rng.normal(size=8))

    def losses(self, module, batch):
        return (module.x - 1) ** 2 + batch * (module.x - 1)


class Cliff(NoisyParabola):
    """Falls steadily until x passes 4.5, and is infinite from there on."""

    def losses(self, module, batch):
        return torch.where(module.x > 4.5, module.x, torch.inf) + 0 * batch


def solver_of(objective, **until):
    return NetSolver(Point(), objective, **{"learning_rate": 0.1} | until)


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

    solver = solver_of(LastStep(0.0))
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


@pytest.mark.parametrize("stop_after", [3, 15])
def test_a_callback_stops_without_a_warning(stop_after):
    ends = iter([False] * (stop_after - 1) + [True])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver = run(NoisyParabola(noise=1.0), epochs=After(lambda: next(ends)))
    assert len(solver.loss_curve) == stop_after


def test_optimizer_state_survives_as_arrays():
    straight, resumed = (solver_of(NoisyParabola(0.0)) for _ in range(2))
    for solver in (straight, resumed):
        fit_part(solver)
    again = NetSolver(resumed.module, resumed.objective, 0.1)
    again.load(resumed.state())
    fit_part(straight)
    fit_part(again)
    assert again.module.x.item() == straight.module.x.item()


class ValidationParabola:
    """Validation rows whose losses are lowest where x is 3 or another number."""

    def __init__(self, best=3.0, spread=0.0):
        self.best = best
        self.slopes = np.random.default_rng(1).normal(size=50) * spread

    def losses(self, module):
        x = module.x.item()
        return (x - self.best) ** 2 + self.slopes * x

    def after_epoch(self, module):
        return self.losses(module)

    def after_training(self, module):
        """There is no noise to set."""


def validated(objective=None, validation=None, **until):
    """A solver that trains towards 1, where the best for validation rows is 3."""
    objective = NoisyParabola(noise=0.3) if objective is None else objective
    validation = ValidationParabola() if validation is None else validation
    return solver_of(objective, validation=validation, **until)


def test_the_best_held_out_parameters_are_kept():
    solver = validated(tol=1e-4, n_iter_no_change=10)
    fit_loop(solver, 3000, SILENCE)
    reached = (solver.module.x.item() - 3) ** 2
    assert np.isclose(reached, min(solver.validation_curve))
    assert reached < 0.1 < max(solver.validation_curve)
    assert reached < solver.validation_curve[-1]


class TwoPoints(Point):
    """A second parameter, which validation rows set and no step changes."""

    def __init__(self):
        super().__init__()
        start = torch.tensor(5.0, dtype=torch.float64)
        self.noise = torch.nn.Parameter(start, requires_grad=False)


def test_validation_rows_set_what_no_step_changes():
    class Halving(ValidationParabola):
        def losses(self, module):
            return np.full(2, (module.noise.item() - self.best) ** 2)

        def after_epoch(self, module):
            module.noise.copy_(module.noise / 2 + self.best / 2)
            return self.losses(module)

    module = TwoPoints()
    solver = NetSolver(module, NoisyParabola(0.3), 0.1, validation=Halving())
    solver.init(4)
    for _ in range(4):
        solver.step()
    assert module.noise.item() == 3 + 2 / 2**4  # halfway from 5 every time
    assert_allclose(solver.validation_curve, [1, 1 / 4, 1 / 16, 1 / 64])
    module.noise.fill_(9.0)
    solver.close()
    assert module.noise.item() == 3 + 2 / 2**4


def test_a_parameter_without_a_past_starts_at_its_value():
    """Validation rows set it in `fit`; a later `partial_fit` trains it."""
    module = TwoPoints()
    first = NetSolver(module, NoisyParabola(0.3), 0.1)
    fit_part(first)
    module.noise.requires_grad_()
    later = NetSolver(module, NoisyParabola(0.3), 0.1)
    later.load(first.state())
    fit_part(later)  # no loss depends on it
    assert module.noise.item() == 5
    assert module.x.item() != 5


class Joining(NoisyParabola):
    """Rows whose best is 3 join those whose best is 1, which moves it to 2."""

    centre = 1.0

    def losses(self, module, batch):
        return (module.x - self.centre) ** 2 + batch * (module.x - self.centre)

    def join(self, rows):
        assert rows.n_set == 1  # noise is theirs
        self.centre = 2.0


class Counting(ValidationParabola):
    n_set = 0

    def after_training(self, module):
        self.n_set += 1


def joining(joins):
    until = {"tol": 1e-4, "n_iter_no_change": 100, "joined_fraction": 0.2}
    return validated(Joining(0.3), Counting(), joins=joins, **until)


def run_joining(solver, max_iter=3000, epochs=SILENCE):
    fit_loop(solver, max_iter, epochs)
    return solver


def test_rows_that_ended_training_join_it_for_a_while():
    apart, joined = (run_joining(joining(joins)) for joins in (False, True))
    n_epochs = len(apart.loss_curve)
    assert joined.loss_curve[:n_epochs] == apart.loss_curve
    assert joined.validation_curve == apart.validation_curve
    assert len(joined.loss_curve) == int(1.2 * n_epochs)
    assert apart.module.x.item() == pytest.approx(3, abs=0.1)
    assert 2 < joined.module.x.item() < apart.module.x.item() - 0.05  # on the way to 2
    assert apart.validation.n_set == 1
    assert joined.validation is None
    assert apart.plateau
    assert joined.plateau


def test_what_validation_rows_set_last_stays_while_they_are_trained_on():
    class Setting(ValidationParabola):
        @torch.no_grad()
        def after_training(self, module):
            module.noise.fill_(2.5)
            module.noise.requires_grad_(False)

    class BothParabolas(Joining):
        def losses(self, module, batch):
            return super().losses(module, batch) + (module.noise - 1) ** 2

        def join(self, rows):
            """Train on the same parabolas."""

    module = TwoPoints()
    module.noise.requires_grad_()
    until = {"tol": 1e-4, "n_iter_no_change": 20, "joins": True}
    solver = NetSolver(module, BothParabolas(0.3), 0.1, validation=Setting(), **until)
    fit_loop(solver, 3000, SILENCE)
    assert solver.validation is None
    assert module.noise.item() == 2.5


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


class Scripted(ValidationParabola):
    """Losses of two rows, epoch by epoch; before, they are 9."""

    def __init__(self, *script):
        self.script = iter([(9.0, 9.0), *script])

    def losses(self, module):
        return np.array(next(self.script))


def test_the_last_parameters_that_are_no_worse_than_the_best_are_kept():
    script = [(1.0, 3.0), (2.0, 2.6), (2.0, 4.0), (2.5, 3.0)]  # errors 0.5, 0, 0.5
    solver = validated(validation=Scripted(*script))
    solver.init(4)
    averages = []
    for _ in script:
        solver.step()
        averages.append(solver.module.x.item())
    assert solver.lowest == 2.0
    solver.close()
    assert solver.module.x.item() == averages[1]
    assert len(set(averages)) == 4


def test_interruption_after_a_step_that_diverged_keeps_finite_parameters():
    """Only the next loss would have shown it."""
    solver = solver_of(NoisyParabola(noise=0.0))

    def spoil():
        if len(solver.loss_curve) == 7:
            solver.optimizer.average[:] = torch.nan
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        fit_loop(solver, 3000, After(spoil))
    assert 1 < solver.module.x.item() < 5
