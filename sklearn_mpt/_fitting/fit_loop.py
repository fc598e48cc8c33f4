"""The fit loop: epochs of a solver, callbacks, interruption and divergence."""

from abc import ABC, abstractmethod

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
    """Take steps of a solver until it terminates, or `max_iter` are taken."""
    # epochs : its `begin` is called before each epoch, and `end` after each, which
    # returns True to end training. n_required : number of epochs from which on an
    # interruption ends training, and does not raise.
    try:
        solver.init(max_iter)
        for _ in range(max_iter):
            epochs.begin()
            solver.step()
            if epochs.end() or solver.terminate():
                break
        else:
            warn_caller(
                f"Maximum iterations (max_iter={max_iter}) reached and the "
                "optimization hasn't converged yet.",
                ConvergenceWarning,
            )
        solver.check()
    except DIVERGENCE:
        warn_diverged(len(solver.loss_curve))
        solver.recover()
    except KeyboardInterrupt:
        solver.interrupt()
        if len(solver.loss_curve) < n_required:
            raise
        warn_caller("Training interrupted by user.")
    finally:
        solver.close()


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
