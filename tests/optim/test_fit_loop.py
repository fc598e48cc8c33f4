"""What the fit loop asks of a solver, and when."""

from contextlib import nullcontext

import pytest
from epochs import SILENCE, Silence
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._optim.loop import Solver, best_of_runs, fit_loop, fit_part


class Scripted(Solver):
    """Notes what it is asked; terminates or fails at the n-th epoch."""

    def __init__(self, n_epochs, error=None):
        self.n_epochs = n_epochs
        self.error = error
        self.loss_curve = []
        self.asked = []

    def init(self, max_iter):
        self.asked.append(f"init {max_iter}")

    def step(self):
        self.asked.append("step")
        if self.error is not None and len(self.loss_curve) == self.n_epochs:
            raise self.error
        self.loss_curve.append(0.0)

    def terminate(self):
        self.asked.append("terminate")
        return self.error is None and len(self.loss_curve) == self.n_epochs

    @property
    def result(self):
        return len(self.loss_curve)

    def check(self):
        self.asked.append("check")

    def recover(self):
        self.asked.append("recover")

    def interrupt(self):
        self.asked.append("interrupt")

    def close(self):
        self.asked.append("close")


class Ending(Silence):
    """Ends training after the n-th epoch."""

    def __init__(self, solver, n_epochs):
        self.solver = solver
        self.n_epochs = n_epochs

    def begin(self):
        self.solver.asked.append("begin")

    def end(self):
        self.solver.asked.append("end")
        return len(self.solver.loss_curve) == self.n_epochs


ONE_EPOCH = ["step", "terminate"]


def test_steps_are_taken_until_the_solver_terminates():
    solver = Scripted(3)
    fit_loop(solver, 5, SILENCE)
    assert solver.asked == ["init 5", *3 * ONE_EPOCH, "check", "close"]


def test_max_iter_that_are_too_few_warn():
    solver = Scripted(3)
    with pytest.warns(ConvergenceWarning, match=r"max_iter=2\) reached"):
        fit_loop(solver, 2, SILENCE)
    assert solver.asked == ["init 2", *2 * ONE_EPOCH, "check", "close"]


def test_a_callback_ends_training_before_the_solver_is_asked():
    solver = Scripted(3)
    fit_loop(solver, 5, Ending(solver, 2))
    epoch = ["begin", "step", "end", "terminate"]
    last = ["begin", "step", "end"]
    assert solver.asked == ["init 5", *epoch, *last, "check", "close"]


def test_a_solver_that_diverges_recovers():
    solver = Scripted(1, FloatingPointError)
    with pytest.warns(ConvergenceWarning, match="diverged after 1 epochs"):
        fit_loop(solver, 5, SILENCE)
    assert solver.asked == ["init 5", *ONE_EPOCH, "step", "recover", "close"]


@pytest.mark.parametrize("n_required", [1, 2, 3])
def test_an_interruption_raises_only_before_the_epochs_that_are_required(n_required):
    solver = Scripted(2, KeyboardInterrupt)
    if n_required == 3:
        with pytest.raises(KeyboardInterrupt):
            fit_loop(solver, 5, SILENCE, n_required=n_required)
    else:
        with pytest.warns(UserWarning, match="Training interrupted by user"):
            fit_loop(solver, 5, SILENCE, n_required=n_required)
    assert solver.asked == ["init 5", *2 * ONE_EPOCH, "step", "interrupt", "close"]


def test_other_errors_are_passed_on_and_the_solver_is_closed():
    solver = Scripted(0, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        fit_loop(solver, 5, SILENCE)
    assert solver.asked == ["init 5", "step", "close"]


def test_a_part_that_diverges_is_undone():
    solver = Scripted(0, FloatingPointError)
    with pytest.warns(ConvergenceWarning, match="diverged after 0 epochs"):
        fit_part(solver)
    assert solver.asked == ["step", "recover"]


class Followed(Scripted):
    """Another solver goes on where it terminates."""

    def __init__(self, n_epochs, next_solver):
        super().__init__(n_epochs)
        self.next_solver = next_solver

    def following(self):
        return self.next_solver


@pytest.mark.parametrize("max_iter", [2, 4, 9])
def test_solvers_follow_each_other_until_none_follows(max_iter):
    last = Scripted(3)
    first = Followed(2, last)
    is_over = max_iter > 5
    with nullcontext() if is_over else pytest.warns(ConvergenceWarning):
        ended = fit_loop(first, max_iter, SILENCE)
    n_last = min(3, max_iter - 2)
    assert len(ended.all_losses) == 2 + n_last
    assert first.asked.count("step") == 2
    assert last.asked.count("step") == n_last
    assert ended.result == n_last
    # only the solver of the last epoch, or one that would follow, sets the result
    assert "close" in last.asked
    assert "close" not in first.asked
    assert "init 3" not in last.asked


class Run(Scripted):
    """A run with a given loss; it diverges without one."""

    def __init__(self, loss):
        super().__init__(2)
        self.loss = loss

    def step(self):
        if self.loss is None:
            raise FloatingPointError
        self.loss_curve.append(self.loss)


def test_short_runs_that_diverge_are_left_out():
    runs = [Run(3.0), Run(None), Run(1.0), Run(2.0)]
    assert best_of_runs(runs, 2) is runs[2]
    with pytest.raises(FloatingPointError):
        best_of_runs([Run(None), Run(None)], 1)
