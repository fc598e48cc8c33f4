"""The loop of a fit: epochs, callbacks, interruption, divergence and stopping."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt._checks import warn_caller

DIVERGENCE = (FloatingPointError, torch.linalg.LinAlgError)


class Solver(ABC):
    """One way to maximise an objective."""

    # `fit` calls `init`, then `step` and `terminate` in turn, and `close` at the end,
    # after an exception too. Each call of `partial_fit` has a solver of its own, and
    # calls `load`, `step_on_part` and `state`. loss_curve : minus the mean objective of
    # each epoch, in nats per row.

    loss_curve: list[float]
    losses_before: list[float] | tuple = ()  # of the solvers that this one follows

    @property
    def all_losses(self):
        """The losses of all epochs."""
        return [*self.losses_before, *self.loss_curve]

    def init(self, max_iter):
        """Choose where to start, before at most `max_iter` epochs."""

    @abstractmethod
    def step(self):
        """Train for one epoch; raise one of `DIVERGENCE` if it diverges."""

    def step_on_part(self):
        """Train for one epoch on a part of a stream."""
        self.step()

    @abstractmethod
    def terminate(self):
        """Return whether training is over; called after each epoch."""

    def following(self):
        """Return the solver that goes on after this one terminated, or None."""
        return None

    @property
    @abstractmethod
    def result(self):
        """The best parameters so far."""

    def check(self):
        """Undo the very last step if it lost, or raise one of `DIVERGENCE`."""

    def recover(self):
        """Go back to the best parameters, after an epoch that diverged."""

    def interrupt(self):
        """Leave finite parameters, after an epoch that was interrupted."""

    def close(self):
        """Set the final result, after the last epoch."""

    def state(self):
        """Return arrays from which `load` goes on; empty if the result is enough."""
        return {}

    def load(self, state):
        """Restore what `state` returned."""


def fit_loop(solver, max_iter, epochs, n_required=1):
    """Take steps of a solver, and those that follow it; return the last solver."""
    # epochs : its `begin` is called before each epoch, and `end` after each, which
    # returns True to end training; it has the `solver` that takes the steps.
    # n_required : number of epochs from which on an interruption ends training, and
    # does not raise.
    try:
        solver.init(max_iter)
        for _ in range(max_iter):
            epochs.solver = solver
            epochs.begin()
            solver.step()
            if epochs.end():
                break
            if solver.terminate():
                following = solver.following()
                if following is None:
                    break
                following.losses_before, solver = solver.all_losses, following
        else:
            warn_caller(
                f"Maximum iterations (max_iter={max_iter}) reached and the "
                "optimization hasn't converged yet.",
                ConvergenceWarning,
            )
        solver.check()
    except DIVERGENCE:
        warn_diverged(len(solver.all_losses))
        solver.recover()
    except KeyboardInterrupt:
        solver.interrupt()
        if len(solver.all_losses) < n_required:
            raise
        warn_caller("Training interrupted by user.")
    finally:
        solver.close()
    return solver


def run(solver, max_iter):
    """Take steps until a solver terminates, at most `max_iter`; return its result."""
    solver.init(max_iter)
    for _ in range(max_iter):
        solver.step()
        if solver.terminate():
            break
    solver.check()
    return solver.result


def fit_part(solver):
    """Take one step on a part of a stream; undo it if it diverges."""
    try:
        solver.step_on_part()
        solver.check()
    except DIVERGENCE:
        warn_diverged(len(solver.loss_curve))
        solver.recover()


def warn_diverged(n_epochs):
    warn_caller(
        f"Training diverged after {n_epochs} epochs: the objective is not finite. The "
        "best parameters so far are kept; try a smaller learning_rate.",
        ConvergenceWarning,
    )


def ends_without_masks(mask_rate, n_masks):
    """Return whether the last epochs draw no masks, given an estimator's parameters."""
    # Not with a number of masks, because the user asks for it, nor with a fixed rate,
    # because the sum over all sizes is another objective.
    return n_masks == "auto" and mask_rate == "uniform"


def best_of_runs(solvers, max_iter):
    """Run each of several solvers, and return the one with the least loss."""
    # Losses are those of the last epochs, with no noise, or all the same. Runs that
    # diverge are left out; if all do, that of the last one is raised.
    finished, divergence = [], None
    for solver in solvers:
        try:
            run(solver, max_iter)
        except DIVERGENCE as error:
            divergence = error
        else:
            finished.append(solver)
    if divergence is not None and not finished:
        raise divergence
    return min(finished, key=lambda solver: solver.loss_curve[-1])


class Trend(NamedTuple):
    """Fall of the mean loss from one window to the next, and its standard error."""

    fall: float
    noise: float

    def is_flat(self, tol=0.0, n_errors=1.0):
        """Return whether the fall is no more than noise, or than `tol`."""
        # n_errors : standard errors of the fall that count as noise.
        return self.fall <= max(tol, n_errors * self.noise)


def trend(losses, window):
    """Return the trend of the last `window` losses, against as many before."""
    # If fewer came before, these are taken; the variance of a single one is that of the
    # last window. With windows of one loss, its noise is taken as 0.
    losses = np.asarray(losses)
    before, last = losses[-2 * window : -window], losses[-window:]
    variance = last.var(ddof=1) if window > 1 else 0.0
    variance_before = before.var(ddof=1) if len(before) > 1 else variance
    noise = math.sqrt(variance_before / len(before) + variance / len(last))
    return Trend(before.mean() - last.mean(), noise)


def fall_of_lowest(losses, window):
    """Return how far the last `window` losses fell below the lowest one before."""
    # The losses must have the same noise, such as those of validation rows.
    return min(losses[:-window]) - min(losses[-window:])


def trend_of_rows(before, now):
    """Return the trend of the mean loss from losses of the same rows, (n,) each."""
    falls = before - now
    return Trend(falls.mean(), falls.std() / math.sqrt(len(falls)))


def gain_to_come(before, now):
    """Return the gain of all later steps, given those of the last two."""
    # Near a maximum gains fall by the same factor from step to step. Infinite unless
    # they fall.
    fall = before - now
    return now**2 / fall if fall > 0 else math.inf
