"""A solver for nets: schedule-free Adam from the best of several starts."""

import numpy as np
from torch.nn.utils import parameters_to_vector

from sklearn_mpt._deep.early_stopping import PATIENT, Descent
from sklearn_mpt._latent.fit_loop import DIVERGENCE, Solver
from sklearn_mpt._latent.schedule_free import ScheduleFreeAdam

TRIAL_STEPS, TRIAL_SHARE = 160, 0.1  # of each start; the share is one of max_iter
JOINED_SHARE = 0.2  # of the epochs so far: so many more, once held-out rows join


class DescentSolver(Solver):
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
    tol : float
        By how much losses must fall, in nats per row, for training to go on.
    n_iter_no_change : int
        Number of epochs of a window, from one to the next of which they must fall.
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
        tol=0.0,
        n_iter_no_change=1,
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
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.plateau = False
        self._max_iter = 0
        self._n_joined = 0  # epochs to come on all rows, those that were held out too
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

    def init(self, max_iter):
        """Go down from every start for a while, and from the best one on."""
        self._max_iter = max_iter
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

    def step(self):
        self._descent.epoch(self.rng)

    def check(self):
        self._descent.check(self.rng)

    def terminate(self):
        """Return whether losses stopped falling; by smaller steps too, if they help.

        Then rows that were held out join the others for a while.
        """
        if self.plateau:
            self._n_joined -= 1
        elif not self._descent.is_flat(self.n_iter_no_change, self.tol):
            return False
        elif self._descent.can_slow_down:
            self._descent.slow_down()
            return False
        else:
            self.plateau = True
            self._join()
        return self._n_joined == 0

    def _join(self):
        n_epochs = len(self.loss_curve)
        n_more = min(int(JOINED_SHARE * n_epochs), self._max_iter - n_epochs)
        if self.joins and n_more > 0:
            self._n_joined = n_more
            self._descent.join()

    def _tried(self, descent, n_epochs):
        try:
            while len(descent.loss_curve) < n_epochs:
                descent.epoch(self.rng)
                if descent.optimizer.n_steps >= TRIAL_STEPS:
                    break
        except DIVERGENCE:
            descent.lowest = np.inf
        return descent

    def recover(self):
        """Give the module the best parameters, and forget what steps have learned."""
        self._descent.show_best()
        self._descent.optimizer = ScheduleFreeAdam(self.module, **self.steps)

    def interrupt(self):
        """Leave the module at the average of steps, if that is finite."""
        self._descent.settle(self.rng)

    def close(self):
        """Leave the module at its best, and the optimizer at the module.

        The optimizer's averages of squared gradients and its number of steps say how
        much was learned, so that later steps on more rows are small beside it.
        """
        if self._descent.validates:
            self._descent.show_best()
            self.objective.finish(self.module)
        point = parameters_to_vector(self.module.parameters()).detach()
        self._descent.optimizer.move_to(point)

    def state(self):
        """Return the state of the optimizer as NumPy arrays."""
        return self._descent.optimizer.state()

    def load(self, arrays):
        """Restore what `state` returned."""
        if arrays:
            self._descent.optimizer.load(arrays)
