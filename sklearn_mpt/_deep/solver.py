"""A solver for nets: schedule-free Adam, from the best of several starts."""

from operator import itemgetter

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from sklearn_mpt._deep.early_stopping import (
    newton_step,
    shrunk_minimum,
    training_is_flat,
    validation_is_flat,
)
from sklearn_mpt._deep.schedule_free import ScheduleFreeAdam
from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver
from sklearn_mpt._fitting.nets import flat_gradient, mean_of_epoch
from sklearn_mpt._fitting.stopping import trend_of_rows


class NetSolver(Solver):
    """Minimise a loss by schedule-free Adam, from the best of several starts.

    Parameters
    ----------
    module : torch.nn.Module
        Trained in place.
    objective : object
        ``batches(rng)`` yields the minibatches of an epoch, ``losses(module, batch)``
        returns losses to be averaged, ``share`` is the part of a full step that a
        minibatch is worth, and ``join(rows)`` adds validation rows.
    rng : numpy.random.Generator
        Source of minibatches and masks.
    validation : ValidationRows, default=None
        Rows whose mean loss decides which start is best, when to stop, and the
        parameters of which epoch are kept. None: the training loss decides.
    other_starts : sequence of dict
        States of the module, to start from instead of its own.
    log_scale : float
        Added to losses of standardised rows, for the units of the rows as given.
    tol : float
        By how much losses must fall, in nats per row, for training to go on.
    n_iter_no_change : int
        Number of epochs of a window, from one to the next of which they must fall.
    sets_noise : bool
        Whether validation rows set the noise variance after every epoch.
    joins : bool
        Whether training ends with some epochs on validation rows, too.
    joined_share : float
        Number of these epochs, as a share of those before.
    trial_steps : int
        Largest number of steps from each start, of which the best goes on.
    trial_share : float
        Largest number of epochs from each start, as a share of the largest number of
        epochs.
    **adam
        Parameters of `ScheduleFreeAdam`.

    Attributes
    ----------
    plateau : bool
        Whether the loss stopped improving.
    validation_curve : list of float
        Mean loss of the validation rows after each epoch.
    """

    def __init__(
        self,
        module,
        objective,
        *,
        rng,
        validation=None,
        other_starts=(),
        log_scale=0.0,
        tol=0.0,
        n_iter_no_change=1,
        sets_noise=False,
        joins=False,
        joined_share=0.2,
        trial_steps=160,
        trial_share=0.1,
        **adam,
    ):
        self.module = module
        self.objective = objective
        self.rng = rng
        self.validation = validation
        self.other_starts = other_starts
        self.log_scale = log_scale
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.sets_noise = sets_noise
        self.joins = joins
        self.joined_share = joined_share
        self.trial_steps = trial_steps
        self.trial_share = trial_share
        self.adam = adam
        self.plateau = False
        self._max_iter = 0
        self._n_joined = 0  # epochs left to train on validation rows, too
        self._begin()

    def _begin(self):
        """Start from the parameters of the module."""
        self.optimizer = ScheduleFreeAdam(self.module, **self.adam)
        self.best = self.optimizer.average.clone()
        self.lowest, self.lowest_losses = np.inf, None
        self.losses, self.validation_curve = [], []  # means, epoch by epoch

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
        n_epochs = int(self.trial_share * max_iter) if self.other_starts else 0
        trials = [self._try(n_epochs)]
        for state in self.other_starts if n_epochs else ():
            self.module.load_state_dict(state)
            self._begin()
            trials.append(self._try(n_epochs))
        best = min(trials, key=itemgetter(0))
        self.lowest, self.lowest_losses, self.best, self.optimizer = best
        self.optimizer.show(self.optimizer.average)
        self.losses.clear()
        self.validation_curve.clear()

    def _try(self, n_epochs):
        """Train for some epochs, of `trial_steps` steps at most; return what counts."""
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
        return self.lowest, self.lowest_losses, self.best, self.optimizer

    def step(self):
        """Train for one epoch; leave the module at the average."""
        start = self.optimizer.average.clone()
        self.optimizer.resume()
        losses = [self._step(batch) for batch in self.objective.batches(self.rng)]
        self.optimizer.show(self.optimizer.average)
        loss = mean_of_epoch(losses, self.optimizer.average)
        if self.validation is not None:
            self._validate()
        elif loss <= self.lowest:
            self.lowest, self.best = loss, start
        self.losses.append(loss)

    def _step(self, batch):
        """Take a step on a minibatch; return its loss, as a tensor."""
        loss = self.objective.losses(self.module, batch).mean()
        gradient = flat_gradient(loss, self.optimizer.parameters)
        self.optimizer.step(gradient, self.objective.share)
        return loss.detach()

    def _validate(self):
        """Keep the last parameters that are no worse than the best by a standard error.

        The lowest of noisy losses comes too early: averages over more steps are better.
        """
        if self.sets_noise:
            losses = self.validation.set_noise(self.module, newton_step)
            self.optimizer.read_delayed()
        else:
            losses = self.validation.losses(self.module)
        if not np.isfinite(losses).all():
            raise FloatingPointError
        self.validation_curve.append(float(losses.mean()))
        if losses.mean() <= self.lowest:
            self.lowest, self.lowest_losses = float(losses.mean()), losses
        rise = trend_of_rows(losses, self.lowest_losses)
        if rise.is_flat():
            self.best = self.optimizer.average.clone()

    def terminate(self):
        """Return whether losses stopped falling.

        Then training goes on for some epochs on validation rows, too, if they join.
        """
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
        n_more = min(int(self.joined_share * n_epochs), self._max_iter - n_epochs)
        if self.joins and n_more > 0:
            self._n_joined = n_more
            self._join_validation_rows()
        return self._n_joined == 0

    def _join_validation_rows(self):
        """Go on from the best parameters, on validation rows, too."""
        self._load_best()
        self.optimizer.move_to(self.optimizer.point)
        self.optimizer.delay = np.inf  # the noise stays as validation rows set it
        self.best = self.optimizer.average.clone()
        self.objective.join(self.validation)
        self.validation, self.lowest = None, np.inf

    def _load_best(self):
        self.optimizer.show(self.best)
        if self.validation is not None:
            self.validation.set_noise(self.module, shrunk_minimum)

    @torch.no_grad()
    def check(self):
        """Raise if the very last step diverged; validation losses have shown it."""
        if self.validation is not None:
            return
        batch = next(iter(self.objective.batches(self.rng)))
        if not self.objective.losses(self.module, batch).isfinite().all():
            raise FloatingPointError

    def recover(self):
        """Go back to the best parameters, with a new optimizer."""
        self.optimizer.show(self.best)
        self.optimizer = ScheduleFreeAdam(self.module, **self.adam)

    def interrupt(self):
        """Leave the module at the average of the steps, if that is finite."""
        self.optimizer.show(self.optimizer.average)
        try:
            self.check()
        except DIVERGENCE:
            self.optimizer.show(self.best)

    def close(self):
        """Leave the module at its best parameters, and the optimizer at the module.

        The optimizer keeps its averages of squared gradients and its number of steps,
        so that later steps on more rows are small.
        """
        if self.validation is not None:
            self._load_best()
        point = parameters_to_vector(self.module.parameters()).detach()
        self.optimizer.move_to(point)

    def state(self):
        return self.optimizer.state()

    def load(self, arrays):
        if arrays:
            self.optimizer.load(arrays)
