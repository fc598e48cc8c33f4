"""The training loop: follow a noisy objective down from the best of several starts."""

import numpy as np
from torch.nn.utils import parameters_to_vector

from sklearn_mpt._deep.descent import DIVERGENCE, PATIENT, Descent
from sklearn_mpt._latent.fitting import warn_diverged, warn_unconverged
from sklearn_mpt._latent.schedule_free import ScheduleFreeAdam

TRIAL_STEPS, TRIAL_SHARE = 160, 0.1  # of each start; the share is one of max_iter
JOINED_SHARE = 0.2  # of the epochs so far: so many more, once held-out rows join


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
    joins : bool
        Whether held-out rows, once they have ended it, are trained on for a while.
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
        joins=False,
        **steps,
    ):
        self.module = module
        self.objective = objective
        self.rng = rng
        self.others = others
        self.log_scale = log_scale
        self.stopping = stopping
        self.joins = joins
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
        except DIVERGENCE:
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
        except DIVERGENCE:
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
                self._follow_all(max_iter, around_epoch)
                return
            self._descent.slow_down()
        warn_unconverged(max_iter)

    def _follow_all(self, max_iter, around_epoch):
        """Train on all rows, those that were held out too, if there is time for it."""
        n_epochs = len(self.loss_curve)
        n_more = min(int(JOINED_SHARE * n_epochs), max_iter - n_epochs)
        if not self.joins or n_more == 0:
            return
        self._descent.join()
        for _ in range(n_more):
            if around_epoch(self.epoch):
                return

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
        self._descent.row_losses.clear()

    def _tried(self, descent, n_epochs):
        try:
            while len(descent.loss_curve) < n_epochs:
                descent.epoch(self.rng)
                if descent.optimizer.n_steps >= TRIAL_STEPS:
                    break
        except DIVERGENCE:
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

    def settled_state(self):
        """Return the state of an optimizer that goes on from the result of training.

        Its averages of squared gradients and its number of steps say how much was
        learned, so that steps on more rows are small beside it.
        """
        point = parameters_to_vector(self.module.parameters()).detach()
        self._descent.optimizer.move_to(point)
        return self.state()

    def load(self, arrays):
        """Restore what `state` returned."""
        if arrays:
            self._descent.optimizer.load(arrays)
