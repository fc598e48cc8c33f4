"""The training loop: follow a noisy objective down, then average.

A torch module is trained on an `Objective`. Neither knows about scikit-learn.
"""

import warnings
from abc import ABC, abstractmethod

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

_DIVERGENCE = (FloatingPointError, torch.linalg.LinAlgError)


class _StoppedByCallback(Exception):
    pass


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


def shuffled_batches(n_rows, batch_size, rng):
    n_batches = int(np.ceil(n_rows / batch_size))
    return np.array_split(rng.permutation(n_rows), n_batches)


def _average(averages, values, count):
    """Update averages; an integer count would be divided by in the default dtype."""
    get_swa_multi_avg_fn()(averages, values, count.float())


def warn_unconverged(max_iter, stacklevel):
    warnings.warn(
        f"Maximum iterations (max_iter={max_iter}) reached and the optimization hasn't "
        "converged yet.",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )


def warn_diverged(n_epochs, stacklevel):
    warnings.warn(
        f"Training diverged after {n_epochs} epochs: the objective is not finite. The "
        "best parameters so far are kept; try a smaller learning_rate.",
        ConvergenceWarning,
        stacklevel=stacklevel,
    )


class Trainer:
    """Minimise an objective with Adam: hold the step size, decay it, average.

    The step size is held until the mean loss of the last `n_iter_no_change` epochs is
    no better than that of as many before, beyond its noise and `tol`. It then falls to
    zero along a cosine, over half as many epochs again as were held (but at least
    ``5 * n_iter_no_change``), and the models on the way are averaged, which is what
    removes the noise of the masks [1]_.

    Parameters
    ----------
    module : torch.nn.Module
        Trained in place.
    objective : Objective
        What is minimised. Where it has held-out losses, their mean decides when to
        decay, and which parameters are kept: the average, or the best of all epochs.
    learning_rate : float
        Step size of Adam until the plateau.
    rng : numpy.random.Generator
        Source of minibatches and masks.

    Attributes
    ----------
    loss_curve : list of float
        Mean loss of each epoch.
    validation_curve : list of float
        Mean held-out loss after each epoch, if there are held-out rows.
    plateau : bool
        Whether the loss stopped improving before half of `max_iter`.

    References
    ----------
    .. [1] B. T. Polyak and A. B. Juditsky, "Acceleration of stochastic approximation
       by averaging", SIAM Journal on Control and Optimization 30, 1992.
    """

    def __init__(self, module, objective, *, learning_rate, rng):
        self.module = module
        self.objective = objective
        self.learning_rate = learning_rate
        self.rng = rng
        self.optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
        self.loss_curve = []
        self.validation_curve = []
        self.plateau = False
        self._average = None
        self._safe = self._best = self._snapshot()

    @property
    def result(self):
        return self.module

    def run(self, *, max_iter, tol, n_iter_no_change, around_epoch):
        """Train to convergence; on interruption or divergence keep the best so far.

        around_epoch : callable
            Called with `epoch`, which it must call; returns True to stop training.
        """
        try:
            self._follow(max_iter, tol, n_iter_no_change, around_epoch)
            self._keep_better()
        except _DIVERGENCE:
            self._restore()

    def run_once(self):
        """Train for one epoch, or undo it if it diverges."""
        try:
            self.epoch()
            self._keep_better()
        except _DIVERGENCE:
            self._restore()

    def _follow(self, max_iter, tol, n_iter_no_change, around_epoch):
        try:
            n_held = self._hold(max_iter, tol, n_iter_no_change, around_epoch)
            n_decay = max(3 * n_held // 2, 5 * n_iter_no_change)
            self._decay(min(max_iter - n_held, n_decay), around_epoch)
            self._warn_unless_converged(max_iter)
        except KeyboardInterrupt:
            warnings.warn("Training interrupted by user.", stacklevel=6)
        except _StoppedByCallback:
            pass

    def epoch(self):
        """Take one pass over the minibatches."""
        start = self._snapshot()
        losses = [self._step(batch) for batch in self.objective.batches(self.rng)]
        if not self.loss_curve or np.mean(losses) <= min(self.loss_curve):
            self._safe = start
        self.loss_curve.append(float(np.mean(losses)))
        self._follow_validation()

    def _follow_validation(self):
        losses = self.objective.validate(self.module)
        if losses is None:
            return
        loss = float(losses.mean())
        if not np.isfinite(loss):
            raise FloatingPointError
        if loss <= min(self.validation_curve, default=np.inf):
            self._best, self._best_losses = self._snapshot(), losses
        self.validation_curve.append(loss)

    def _snapshot(self):
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def _step(self, batch):
        loss = self.objective.losses(self.module, batch).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _hold(self, max_iter, tol, window, around_epoch):
        """Train at the full step size up to the plateau; return the epochs spent."""
        for n_iter in range(1, (max_iter + 1) // 2 + 1):
            self._run_epoch(around_epoch)
            if n_iter % window == 0 and self._is_flat(window, tol):
                self.plateau = True
                break
        return len(self.loss_curve)

    def _decay(self, n_epochs, around_epoch):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, max(1, n_epochs)
        )
        self._average = AveragedModel(
            self.module,
            device=next(self.module.parameters()).device,
            multi_avg_fn=_average,
            use_buffers=True,
        )
        for _ in range(n_epochs):
            self._run_epoch(around_epoch)
            self._average.update_parameters(self.module)
            schedule.step()

    def _run_epoch(self, around_epoch):
        if around_epoch(self.epoch):
            raise _StoppedByCallback

    def _is_flat(self, window, tol):
        """Whether the last window improves on the one before by no more than noise.

        Held-out losses share their noise, and only the best will count: there, neither
        the mean nor the best must improve.
        """
        curve = self.validation_curve or self.loss_curve
        if len(curve) < 2 * window:
            return False
        before, last = np.reshape(curve[-2 * window :], (2, window))
        gain = before.mean() - last.mean()
        if self.validation_curve:
            return max(gain, min(curve[:-window]) - last.min()) <= tol
        noise = np.sqrt((before.var() + last.var()) / window)
        return gain <= max(tol, 1.5 * noise)

    @torch.no_grad()
    def _keep_better(self):
        """Keep the averaged model, unless the last one is better beyond noise."""
        average = self.module if self._average is None else self._average.module
        if self.validation_curve:
            self._keep_best_validated(average)
            return
        loss = self.objective.losses
        gains = torch.cat(
            [
                loss(average, batch) - loss(self.module, batch)
                for batch in self.objective.batches(self.rng)
            ]
        )
        if not gains.isfinite().all():
            raise FloatingPointError
        if gains.mean() <= 3 * gains.std(correction=0) / len(gains) ** 0.5:
            self.module.load_state_dict(average.state_dict())

    def _keep_best_validated(self, average):
        """Keep the average, unless the best epoch is better beyond noise.

        Three standard errors: the best of many noisy epochs is so by chance, too.
        """
        gains = self.objective.validate(average) - self._best_losses
        if gains.mean() <= 3 * gains.std(correction=0) / len(gains) ** 0.5:
            self.module.load_state_dict(average.state_dict())
        else:
            self.module.load_state_dict(self._best)

    def _restore(self):
        warn_diverged(len(self.loss_curve), stacklevel=8)
        self.module.load_state_dict(self._best if self.validation_curve else self._safe)
        self.optimizer.state.clear()

    def _warn_unless_converged(self, max_iter):
        if not self.plateau:
            warn_unconverged(max_iter, stacklevel=9)

    def state(self):
        """Return the state of the optimizer as NumPy arrays."""
        return {
            index: {name: value.cpu().numpy() for name, value in slots.items()}
            for index, slots in self.optimizer.state_dict()["state"].items()
        }

    def load(self, arrays):
        """Restore what `state` returned."""
        state = {
            index: {k: torch.tensor(a, device="cpu") for k, a in slots.items()}
            for index, slots in arrays.items()
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
