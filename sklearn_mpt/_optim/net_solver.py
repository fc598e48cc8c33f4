"""A solver for nets: schedule-free Adam, from the best of several starts."""

import math
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._optim.loop import (
    DIVERGENCE,
    Solver,
    fall_of_lowest,
    trend,
    trend_of_rows,
)
from sklearn_mpt._optim.schedule_free import (
    ScheduleFreeAdam,
)


class Trial(NamedTuple):
    """Where training from one start has come to."""

    lowest: float  # mean loss of the validation rows
    lowest_losses: np.ndarray | None
    best: dict  # state of the module
    state: dict
    optimizer: ScheduleFreeAdam


class NetSolver(Solver):
    """Minimise a loss by schedule-free Adam, from the best of several starts."""

    # objective : batches() yields the minibatches of an epoch, losses(module, batch)
    # returns losses to be averaged, `step_weight` is the part of a full step that a
    # minibatch is worth, and join(validation) adds validation rows.
    # validation : losses(module) and after_epoch(module) return the loss of each
    # validation row; the latter may set parameters that are not trained, as may
    # after_training(module). Mean losses decide which start is best, when to stop, and
    # which epoch is kept; without validation the training loss decides.
    # other_starts : states of the module. log_scale : added to losses of standardised
    # rows. tol : nats per row by which losses must fall from one window of
    # `n_iter_no_change` epochs to the next. joins : whether training ends with some
    # epochs on validation rows too, `joined_fraction` of those before. trial_steps,
    # trial_fraction : largest number of steps, and part of all epochs, from each start,
    # of which the best goes on. plateau : whether the loss stopped improving.

    def __init__(
        self,
        module,
        objective,
        learning_rate,
        *,
        validation=None,
        other_starts=(),
        log_scale=0.0,
        tol=0.0,
        n_iter_no_change=1,
        joins=False,
        joined_fraction=0.2,
        trial_steps=160,
        trial_fraction=0.1,
    ):
        self.module = module
        self.objective = objective
        self.learning_rate = learning_rate
        self.validation = validation
        self.other_starts = other_starts
        self.log_scale = log_scale
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.joins = joins
        self.joined_fraction = joined_fraction
        self.trial_steps = trial_steps
        self.trial_fraction = trial_fraction
        self.plateau = False
        self._max_iter = 0
        self._n_joined = 0  # epochs left to train on validation rows, too
        self._begin()

    def _begin(self):
        """Start from the parameters of the module."""
        self.optimizer = self._new_optimizer()
        self.best = self._state()
        self.lowest, self.lowest_losses = np.inf, None
        self.losses, self.validation_curve = [], []  # means, epoch by epoch

    def _new_optimizer(self):
        parameters = {
            k: p for k, p in self.module.named_parameters() if p.requires_grad
        }
        return ScheduleFreeAdam(parameters, self.learning_rate)

    def _state(self):
        """Return copies of the parameters and buffers of the module."""
        state = self.module.state_dict()
        return {name: tensor.clone() for name, tensor in state.items()}

    @property
    def result(self):
        return self.module

    @property
    def loss_curve(self):
        """Mean loss of each epoch, in the units of the rows."""
        return [loss + self.log_scale for loss in self.losses]

    def init(self, max_iter):
        """Train from every start for some steps; go on from the best."""
        self._max_iter = max_iter
        n_epochs = int(self.trial_fraction * max_iter) if self.other_starts else 0
        trials = [self._try(n_epochs)]
        for state in self.other_starts if n_epochs else ():
            self.module.load_state_dict(state)
            self._begin()
            trials.append(self._try(n_epochs))
        best = min(trials, key=itemgetter(0))
        self.lowest, self.lowest_losses, self.best, state, self.optimizer = best
        self.module.load_state_dict(state)
        self.losses.clear()
        self.validation_curve.clear()

    def _try(self, n_epochs):
        """Train for some epochs, of `trial_steps` steps at most."""
        if self.validation is not None:
            self.lowest_losses = self.validation.losses(self.module)
            self.lowest = self.lowest_losses.mean()
        try:
            while len(self.losses) < n_epochs:
                self.step()
                if self.optimizer.n_steps >= self.trial_steps:
                    break
        except DIVERGENCE:
            self.lowest = np.inf
        return Trial(
            self.lowest, self.lowest_losses, self.best, self._state(), self.optimizer
        )

    def step(self):
        """Train for one epoch; leave the module at the average."""
        start = self._state() if self.validation is None else None
        self.optimizer.resume()
        losses = [self._step(batch) for batch in self.objective.batches()]
        self.optimizer.show_average()
        loss = _mean_of_epoch(losses, self.optimizer.average)
        if self.validation is not None:
            self._validate()
        elif loss <= self.lowest:
            self.lowest, self.best = loss, start
        self.losses.append(loss)

    def _step(self, batch):
        """Take a step on a minibatch; return its loss, as a tensor."""
        loss = self.objective.losses(self.module, batch).mean()
        gradient = _flat_gradient(loss, self.optimizer.parameters)
        self.optimizer.step(gradient, self.objective.step_weight)
        return loss.detach()

    def _validate(self):
        """Keep the last parameters no worse than the best by a standard error."""
        # The lowest of noisy losses comes too early: averages over more steps are
        # better.
        losses = self.validation.after_epoch(self.module)
        if not np.isfinite(losses).all():
            raise FloatingPointError
        self.validation_curve.append(float(losses.mean()))
        if losses.mean() <= self.lowest:
            self.lowest, self.lowest_losses = float(losses.mean()), losses
        if trend_of_rows(losses, self.lowest_losses).is_flat():
            self.best = self._state()

    def terminate(self):
        """Return whether losses stopped falling."""
        # Then training goes on for some epochs on validation rows, too, if they join.
        if self.plateau:
            self._n_joined -= 1
            return self._n_joined == 0
        window = self.n_iter_no_change
        if self.validation is None:
            self.plateau = training_is_flat(self.losses, window, self.tol)
        else:
            curve = self.validation_curve
            self.plateau = validation_is_flat(curve, 2 * window, self.tol)
        if not self.plateau:
            return False
        n_epochs = len(self.losses)
        n_more = min(int(self.joined_fraction * n_epochs), self._max_iter - n_epochs)
        if self.joins and n_more > 0:
            self._n_joined = n_more
            self._join_validation_rows()
        return self._n_joined == 0

    def _join_validation_rows(self):
        """Go on from the best parameters, on validation rows, too."""
        self._load_best()
        progress = self.optimizer.state()
        self.optimizer = self._new_optimizer()  # of what is still trained
        self.optimizer.load(progress)
        self.optimizer.move_to_module()
        self.best = self._state()
        self.objective.join(self.validation)
        self.validation, self.lowest = None, np.inf

    def _load_best(self):
        self.module.load_state_dict(self.best)
        if self.validation is not None:
            self.validation.after_training(self.module)

    @torch.no_grad()
    def check(self):
        """Raise if the very last step diverged; validation losses have shown it."""
        if self.validation is not None:
            return
        batch = next(iter(self.objective.batches()))
        if not self.objective.losses(self.module, batch).isfinite().all():
            raise FloatingPointError

    def recover(self):
        """Go back to the best parameters, with a new optimizer."""
        self.module.load_state_dict(self.best)
        self.optimizer = self._new_optimizer()

    def interrupt(self):
        """Leave the module at the average of the steps, if that is finite."""
        self.optimizer.show_average()
        try:
            self.check()
        except DIVERGENCE:
            self.module.load_state_dict(self.best)

    def close(self):
        """Leave the module at its best parameters, and the optimizer at the module."""
        # It keeps its averages of squared gradients and its number of steps, so that
        # later steps on more rows are small.
        if self.validation is not None:
            self._load_best()
        self.optimizer.move_to_module()

    def state(self):
        return self.optimizer.state()

    def load(self, arrays):
        if arrays:
            self.optimizer.load(arrays)


def _flat_gradient(loss, parameters):
    """Return the gradient of a loss in parameters, as one vector."""
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([part.flatten() for part in gradients])


def _mean_of_epoch(losses, point):
    """Return the mean of losses; FloatingPointError if it is not finite."""
    # They are read back together, because a GPU waits for each read-back.
    loss = float(np.mean(torch.stack(losses).tolist()))
    if not (math.isfinite(loss) and point.isfinite().all()):
        raise FloatingPointError
    return loss


def training_is_flat(losses, window, tol):
    """Return whether mean losses of a window of epochs fell by no more than noise."""
    return len(losses) >= 2 * window and trend(losses, window).is_flat(tol, 1.5)


def validation_is_flat(losses, longest, tol):
    """Return whether the lowest mean loss has not fallen for long enough."""
    # That is two thirds of the epochs, and `longest` at most: losses may rise for twice
    # as long as they fell, before they fall again. The noise of validation losses is
    # the same in all epochs, so that the lowest can be compared.
    if len(losses) < 0.75 * longest:
        return False
    n_last = min(2 * len(losses) // 3, longest)
    return fall_of_lowest(losses, n_last) <= tol
