"""What is minimised, and a way down: epochs of steps, and when they bring no more.

Neither knows about scikit-learn.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import sem
from torch.nn.utils import vector_to_parameters

from sklearn_mpt._latent.fit_loop import DIVERGENCE

SURE = 4.0  # standard errors of what rows tell
LIMIT, DIFFERENCE = 1.0, 0.1  # of a number that held-out rows set, and its steps
LONGEST_STEP = 0.5
RECENT = 10  # one in so many epochs is recent
SLOWER = 0.2  # what steps are multiplied by once losses do not improve


class Objective(ABC):
    """What is minimised in training."""

    share = 1.0  # of a full step, that a minibatch is worth

    @abstractmethod
    def batches(self, rng):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return losses that are to be averaged."""

    def validate(self, module):
        """Return the losses of held-out rows; None if none are held out."""
        return None

    @property
    def tunes(self):
        """Whether held-out rows set what no step changes, after every epoch."""
        return False

    def tune(self, module):
        """Set it, and return the losses of held-out rows; called if `tunes`."""

    def finish(self, module):
        """Set what held-out rows tell; called before they join, or after training."""

    def join(self):
        """Train on held-out rows, too, and let no rows tell anything from then on."""


class Stopping(NamedTuple):
    """When held-out losses end training."""

    patience: float = 2  # windows of epochs in which they must improve, at most
    slows_down: bool = True  # whether training then goes on by smaller steps, once
    by_rows: bool = False  # whether it is means of windows that must, as rows tell


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
        self.row_losses: list[np.ndarray] = []  # of held-out rows, if they end it
        self.n_fast = 0  # epochs before steps got smaller
        self.best = optimizer.average.clone()
        self.lowest_losses = self._held_out_losses()
        self.validates = self.lowest_losses is not None
        self.lowest = self.lowest_losses.mean() if self.validates else np.inf

    def epoch(self, rng):
        """Take one pass over the minibatches; leave the module at the average."""
        start = self.optimizer.average.clone()
        self.optimizer.resume()
        loss = float(np.mean([self._step(b) for b in self.objective.batches(rng)]))
        self.optimizer.show_average()
        if not self.optimizer.average.isfinite().all():
            raise FloatingPointError
        if self.validates:
            self._keep_best(self._tuned_losses())
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
        gradient = torch.cat([part.flatten() for part in gradients])
        self.optimizer.step(gradient, self.objective.share)
        return loss.item()

    @torch.no_grad()
    def check(self, rng):
        """Raise if the very last step diverged; held-out rows have shown it."""
        if self.validates:
            return
        batch = next(iter(self.objective.batches(rng)))
        if not self.objective.losses(self.module, batch).isfinite().all():
            raise FloatingPointError

    def _keep_best(self, losses):
        """Keep the last average that held-out rows do not tell from the best one.

        The lowest of noisy losses comes too early: averages over more steps are better.
        """
        if not np.isfinite(losses).all():
            raise FloatingPointError
        self.validation_curve.append(float(losses.mean()))
        if self.stopping.by_rows:
            self.row_losses.append(losses)
            losses = recent_mean(self.row_losses)
        if losses.mean() <= self.lowest:
            self.lowest, self.lowest_losses = float(losses.mean()), losses
        rise = losses - self.lowest_losses
        if rise.mean() <= standard_error(rise):
            self.best = self.optimizer.average.clone()

    def _tuned_losses(self):
        """Those of held-out rows, once they have set what they tell."""
        if not self.objective.tunes:
            return self._held_out_losses()
        losses = self.objective.tune(self.module)
        self.optimizer.keep_resting()
        return losses.double().cpu().numpy()

    def _held_out_losses(self):
        losses = self.objective.validate(self.module)
        return None if losses is None else losses.double().cpu().numpy()

    def settle(self, rng):
        """Leave the module at the average of an interrupted epoch, if it is finite."""
        self.optimizer.show_average()
        try:
            self.check(rng)
        except DIVERGENCE:
            self.show_best()

    def show_best(self):
        """Give the module the best parameters, by held-out rows if there are any."""
        self.optimizer.point.copy_(self.best)
        vector_to_parameters(self.optimizer.point, self.optimizer.parameters)

    def join(self):
        """Go on from the best parameters, on all rows: none tell when to end."""
        self.show_best()
        self.objective.finish(self.module)
        self.optimizer.move_to(self.optimizer.point)
        self.best = self.optimizer.average.clone()
        self.objective.join()
        self.validates, self.lowest = False, np.inf

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
        if not self.validates:
            return self._trained_is_flat(window, tol)
        longest = int(self.stopping.patience * window)
        if self.stopping.by_rows:
            return levels_off(self.row_losses[self.n_fast :], longest, tol)
        return self._held_out_is_flat(longest, tol)

    def _trained_is_flat(self, window, tol):
        if len(self.loss_curve) < 2 * window:
            return False
        before, last = np.reshape(self.loss_curve[-2 * window :], (2, window))
        noise = np.sqrt((before.var() + last.var()) / window)
        return before.mean() - last.mean() <= max(tol, 1.5 * noise)

    def _held_out_is_flat(self, longest, tol):
        """Held-out losses share their noise, and only the best will count.

        They may rise for as long as they fell, and longer, before they fall again.
        """
        n_epochs = len(self.validation_curve) - self.n_fast
        if n_epochs < 0.75 * longest:
            return False
        n_last = min(2 * n_epochs // 3, longest)
        before, last = self.validation_curve[:-n_last], self.validation_curve[-n_last:]
        return min(before) - min(last) <= tol


def levels_off(losses, window, tol):
    """Whether a window of epochs improves on the one before by no more than chance.

    losses : arrays (n,) of the same rows, epoch by epoch.
    """
    if len(losses) < 2 * window:
        return False
    before, last = np.reshape(losses[-2 * window :], (2, window, -1)).mean(1)
    fall = before - last
    return fall.mean() <= max(tol, SURE * standard_error(fall))


def recent_mean(losses):
    """Mean over the last epochs, a tenth of all, as encoders make single ones noisy."""
    return np.mean(losses[-max(1, len(losses) // RECENT) :], 0)


def standard_error(values):
    """That of the mean, as the spread tells; 0 of a single value, where SciPy warns."""
    return values.std() / np.sqrt(len(values))


def least_shrunk(losses):
    """Where the mean of losses of one number is least, drawn to 0 by its error.

    losses : callable; its results have shape (n,).
    """
    best = minimize_scalar(
        lambda number: losses(number).mean(), bounds=(-LIMIT, LIMIT), method="bounded"
    ).x
    slope, curvature = _derivatives(losses, best)
    if len(slope) == 1 or not curvature > 0:
        return 0.0
    error = sem(slope) / curvature
    return best * max(0.0, 1 - error**2 / max(best**2, 1e-12))


def step_to_least(losses):
    """Newton's step from 0 to where the mean of losses of one number is least."""
    slope, curvature = _derivatives(losses, 0.0)
    if not curvature > 0:
        return 0.0
    return np.clip(-slope.mean() / curvature, -LONGEST_STEP, LONGEST_STEP)


def _derivatives(losses, number):
    """The slope of each loss, and the curvature of their mean."""
    below, here, above = (losses(number + h) for h in (-DIFFERENCE, 0, DIFFERENCE))
    slope = (above - below) / (2 * DIFFERENCE)
    return slope, (above - 2 * here + below).mean() / DIFFERENCE**2
