"""The training loop: follow a noisy objective down, and average on the way.

A torch module is trained on an `Objective`. Neither knows about scikit-learn.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters

from sklearn_mpt._latent.fitting import warn_diverged, warn_unconverged
from sklearn_mpt._latent.schedule_free import ScheduleFreeAdam

_DIVERGENCE = (FloatingPointError, torch.linalg.LinAlgError)
SLOWER = 0.2  # what steps are multiplied by once losses do not improve
TRIAL_STEPS, TRIAL_SHARE = 160, 0.1  # of each start; the share is one of max_iter


class Objective(ABC):
    """What is minimised in training."""

    @abstractmethod
    def batches(self, rng):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return losses that are to be averaged."""

    def validate(self, module):
        """Return the losses of held-out rows; None if none are held out."""
        return None

    def finish(self, module):
        """Set what other rows than those trained on tell; called after training."""


class Stopping(NamedTuple):
    """When held-out losses end training."""

    patience: int = 2  # windows of epochs in which they must improve, at most
    slows_down: bool = True  # whether training then goes on by smaller steps, once


PATIENT = Stopping()


class Descent:
    """A way down from where a module stands, and the losses along it."""

    def __init__(self, module, objective, optimizer, stopping=PATIENT):
        self.module = module
        self.objective = objective
        self.optimizer = optimizer
        self.stopping = stopping
        self.loss_curve: list[float] = []
        self.validation_curve: list[float] = []
        self.n_fast = 0  # epochs before steps got smaller
        self.best = optimizer.average.clone()
        losses = objective.validate(module)
        self.lowest = np.inf if losses is None else float(losses.mean())
        self.validates = losses is not None

    def epoch(self, rng):
        """Take one pass over the minibatches; leave the module at the average."""
        start = self.optimizer.average.clone()
        self.optimizer.resume()
        loss = float(np.mean([self._step(b) for b in self.objective.batches(rng)]))
        self.optimizer.show_average()
        if not self.optimizer.average.isfinite().all():
            raise FloatingPointError
        if self.validates:
            self._validate()
        elif loss <= self.lowest:
            self.lowest, self.best = loss, start
        self.loss_curve.append(loss)

    def _step(self, batch):
        loss = self.objective.losses(self.module, batch).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError
        gradients = torch.autograd.grad(
            loss, self.optimizer.parameters, materialize_grads=True
        )
        self.optimizer.step(torch.cat([gradient.flatten() for gradient in gradients]))
        return loss.item()

    @torch.no_grad()
    def check(self, rng):
        """Raise if the very last step diverged; held-out rows have shown it."""
        if self.validates:
            return
        batch = next(iter(self.objective.batches(rng)))
        if not self.objective.losses(self.module, batch).isfinite().all():
            raise FloatingPointError

    def _validate(self):
        loss = float(self.objective.validate(self.module).mean())
        if not np.isfinite(loss):
            raise FloatingPointError
        if loss <= self.lowest:
            self.lowest, self.best = loss, self.optimizer.average.clone()
        self.validation_curve.append(loss)

    def settle(self, rng):
        """Leave the module at the average of an interrupted epoch, if it is finite."""
        self.optimizer.show_average()
        try:
            self.check(rng)
        except _DIVERGENCE:
            self.show_best()

    def show_best(self):
        """Give the module the best parameters: of all epochs, if rows are held out."""
        self.optimizer.point.copy_(self.best)
        vector_to_parameters(self.optimizer.point, self.optimizer.parameters)

    @property
    def can_slow_down(self):
        """Whether steps may still get smaller; held-out losses tell what that gains."""
        return self.validates and self.stopping.slows_down and self.n_fast == 0

    def slow_down(self):
        """Go on from the best parameters so far by smaller steps."""
        self.optimizer.restart(self.best, SLOWER * self.optimizer.learning_rate)
        self.n_fast = len(self.loss_curve)

    def is_flat(self, window, tol):
        """Whether the last epochs improve on those before by no more than noise."""
        if self.validates:
            return self._held_out_is_flat(window, tol)
        if len(self.loss_curve) < 2 * window:
            return False
        before, last = np.reshape(self.loss_curve[-2 * window :], (2, window))
        noise = np.sqrt((before.var() + last.var()) / window)
        return before.mean() - last.mean() <= max(tol, 1.5 * noise)

    def _held_out_is_flat(self, window, tol):
        """Held-out losses share their noise, and only the best will count.

        They may rise for as long as they fell, and longer, before they fall again.
        """
        n_epochs = len(self.validation_curve) - self.n_fast
        longest = self.stopping.patience * window
        if n_epochs < 0.75 * longest:
            return False
        n_last = min(2 * n_epochs // 3, longest)
        before, last = self.validation_curve[:-n_last], self.validation_curve[-n_last:]
        return min(before) - min(last) <= tol


class Trainer:
    """Minimise an objective: try several starts, then go on from the best of them.

    Parameters
    ----------
    module : torch.nn.Module
        Trained in place.
    objective : Objective
        What is minimised. Where it has held-out losses, their mean decides which start
        is best, when to stop, and the parameters of which epoch are kept.
    rng : numpy.random.Generator
        Source of minibatches and masks.
    others : sequence of dict
        States of the module, to start from instead of its own.
    log_scale : float
        What losses lack for the units of the rows.
    stopping : Stopping
        When held-out losses end training.
    **steps
        Parameters of `ScheduleFreeAdam`.

    Attributes
    ----------
    plateau : bool
        Whether the loss stopped improving.
    """

    def __init__(
        self,
        module,
        objective,
        *,
        rng,
        others=(),
        log_scale=0.0,
        stopping=PATIENT,
        **steps,
    ):
        self.module = module
        self.objective = objective
        self.rng = rng
        self.others = others
        self.log_scale = log_scale
        self.stopping = stopping
        self.steps = steps
        self.plateau = False
        self._descent = self._descend()

    def _descend(self):
        optimizer = ScheduleFreeAdam(self.module, **self.steps)
        return Descent(self.module, self.objective, optimizer, self.stopping)

    @property
    def result(self):
        return self.module

    @property
    def loss_curve(self):
        """Mean loss of each epoch, in the units of the rows."""
        return [loss + self.log_scale for loss in self._descent.loss_curve]

    @property
    def validation_curve(self):
        """Mean held-out loss after each epoch, if rows are held out."""
        return self._descent.validation_curve

    def run(self, *, max_iter, tol, n_iter_no_change, around_epoch):
        """Train to convergence; on divergence keep the best so far.

        around_epoch : callable
            Called with `epoch`, which it must call; returns True to stop training.
        """
        try:
            self._follow(max_iter, tol, n_iter_no_change, around_epoch)
            self._descent.check(self.rng)
        except _DIVERGENCE:
            self._restore()
        except KeyboardInterrupt:
            self._descent.settle(self.rng)
            raise
        finally:
            if self._descent.validates:
                self._descent.show_best()
                self.objective.finish(self.module)

    def run_once(self):
        """Train for one epoch, or undo it if it diverges."""
        try:
            self.epoch()
            self._descent.check(self.rng)
        except _DIVERGENCE:
            self._restore()

    def epoch(self):
        self._descent.epoch(self.rng)

    def _follow(self, max_iter, tol, window, around_epoch):
        self._choose_start(max_iter)
        for _ in range(max_iter):
            if around_epoch(self.epoch):
                return
            if not self._descent.is_flat(window, tol):
                continue
            if not self._descent.can_slow_down:
                self.plateau = True
                return
            self._descent.slow_down()
        warn_unconverged(max_iter)

    def _choose_start(self, max_iter):
        """Go down from every start for a while, and from the best one on."""
        n_epochs = int(TRIAL_SHARE * max_iter)
        if not self.others or n_epochs == 0:
            return
        tried = [self._tried(self._descent, n_epochs)]
        for state in self.others:
            self.module.load_state_dict(state)
            tried.append(self._tried(self._descend(), n_epochs))
        self._descent = min(tried, key=lambda descent: descent.lowest)
        self._descent.optimizer.show_average()
        self._descent.loss_curve.clear()
        self._descent.validation_curve.clear()

    def _tried(self, descent, n_epochs):
        try:
            while len(descent.loss_curve) < n_epochs:
                descent.epoch(self.rng)
                if descent.optimizer.n_steps >= TRIAL_STEPS:
                    break
        except _DIVERGENCE:
            descent.lowest = np.inf
        return descent

    def _restore(self):
        warn_diverged(len(self.loss_curve))
        descent = self._descent
        descent.show_best()
        descent.optimizer = ScheduleFreeAdam(self.module, **self.steps)

    def state(self):
        """Return the state of the optimizer as NumPy arrays."""
        return self._descent.optimizer.state()

    def load(self, arrays):
        """Restore what `state` returned."""
        if arrays:
            self._descent.optimizer.load(arrays)
