"""Training of nets: minibatches, and schedule-free Adam with validation rows.

Steps are those of Adam, whose iterates are averaged during training ("schedule-free",
[1]_). With AdamW of torch and an average of its steps most tables are 0.1 to 1 nats a
row less likely: benchmarks/RESULTS.rst, "Nets: AdamW".

References
----------
.. [1] A. Defazio et al., "The road less scheduled", NeurIPS 2024.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sklearn_mpt._optim.loop import (
    DIVERGENCE,
    Solver,
    fall_of_lowest,
    trend,
    trend_of_rows,
)
from sklearn_mpt._optim.weights import SampleWeights

TOWARDS_AVERAGE = 0.95  # from the iterate to the average, where gradients are taken
SQUARES_DECAY = 0.99  # of mean squares of gradients, in a step
WARM_UP = 150  # steps in which the step size grows
# In learning rates: a posterior that is far off has large gradients, and one step along
# them would undo hundreds of others.
MAX_MOVE = 2.0
EPSILON = 1e-8  # parameters without gradients do not move
CARRIED = "iterate", "squares"  # from one call of `partial_fit` to the next


class ScheduleFreeAdam:
    """Adam whose iterates are averaged during training; parameters are one vector."""

    def __init__(self, parameters, learning_rate):
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.learning_rate = learning_rate
        self.point = parameters_to_vector(self.parameters).detach()
        vector_to_parameters(self.point, self.parameters)  # views of it from now on
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        self.n_steps, self.weight = 0, 0.0

    @torch.no_grad()
    def resume(self):
        """Give the module the parameters at which gradients are taken."""
        torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def show_average(self):
        """Give the module the average, which is the result."""
        self.point.copy_(self.average)
        vector_to_parameters(self.point, self.parameters)

    @torch.no_grad()
    def move_to_module(self):
        """Put average and iterate at the module; keep the weight of the average."""
        self.point.copy_(parameters_to_vector(self.parameters))
        self.average.copy_(self.point)
        self.iterate.copy_(self.point)

    def step(self, loss, step_weight=1.0):
        """Take a step against the gradient of a loss; then `resume`."""
        # step_weight : part of a full step, by which move and weight in the average are
        # multiplied; a step counts as its number.
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in gradients])
        with torch.no_grad():
            self.n_steps += 1
            new = max(1 / self.n_steps, 1 - SQUARES_DECAY)
            self.squares.lerp_(gradient**2, new)
            move = gradient.div_(self.squares.sqrt().add_(EPSILON))
            move.clamp_(-MAX_MOVE, MAX_MOVE)
            size = min(1, self.n_steps / WARM_UP)
            self.iterate.sub_(move, alpha=step_weight * size * self.learning_rate)
            weight = step_weight * size**2 * self.n_steps
            self.weight += weight
            self.average.lerp_(self.iterate, weight / self.weight)
            torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)

    def _parts(self, kind):
        sizes = [parameter.numel() for parameter in self.parameters]
        return zip(self.names, getattr(self, kind).split(sizes), strict=True)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays by name."""
        arrays = {
            f"{kind}.{name}": part.cpu().numpy().copy()
            for kind in CARRIED
            for name, part in self._parts(kind)
        }
        return arrays | {"progress": np.array([self.n_steps, self.weight])}

    def load(self, arrays):
        """Restore what `state` returned; parameters that it lacks have no past."""
        for kind in CARRIED:
            for name, part in self._parts(kind):
                if f"{kind}.{name}" in arrays:
                    part.copy_(torch.from_numpy(arrays[f"{kind}.{name}"]))
        self.n_steps, self.weight = int(arrays["progress"][0]), arrays["progress"][1]


class TrainingRows(NamedTuple):
    """Standardised rows, NaN where missing, and their sample weights."""

    X: torch.Tensor
    weight: torch.Tensor  # shape: (n,)

    @classmethod
    def from_arrays(cls, X, weight=None):
        """Return the rows of a tensor, (n, d), with weights (n,); None is 1."""
        return cls(X, SampleWeights.from_array(weight, X).values.to(X.dtype))

    @property
    def relative_weight(self):
        """Weights over their mean."""
        return self.weight / self.weight.mean()

    def take(self, index):
        """Return some of the rows."""
        return TrainingRows(self.X[index], self.weight[index])

    def joined(self, others):
        """Return these rows and others."""
        return TrainingRows(*map(torch.cat, zip(self, others, strict=True)))

    def split(self, n_held_out, seed):
        """Return training rows and validation rows, drawn with this seed."""
        order = np.random.default_rng(seed).permutation(len(self.X))
        parts = order[n_held_out:], order[:n_held_out]
        return [self.take(np.sort(part)) for part in parts]


class MinibatchLoss(ABC):
    """Base of the losses of nets, as `NetSolver` takes them."""

    # min_steps : an epoch passes over few rows several times, to have about so many
    # steps. step_weight : part of a full step that a minibatch is worth.

    def __init__(self, rows, batch_size, min_steps=1):
        self.rows = rows
        self.batch_size, self.min_steps = int(batch_size), min_steps
        self.step_weight = 1.0

    def as_part(self):
        """Take the rows as a part of a stream; return self."""
        # Fewer rows than a minibatch has are worth so much less than a full step: they
        # would otherwise outweigh all that the model has learned.
        self.step_weight = min(1.0, len(self.rows.X) / self.batch_size)
        return self

    def join(self, validation):
        """Train on the rows of a validation loss, too."""
        self.rows = self.rows.joined(validation.rows)

    def count_passes(self, n_batches):
        """Return how often an epoch passes over the rows, in `n_batches` steps each."""
        # It is at most half as often as there are rows, so that very few cost little.
        n_passes = min(round(self.min_steps / n_batches), len(self.rows.X) // 2)
        return max(1, n_passes)

    @abstractmethod
    def batches(self):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return the losses of the rows of a minibatch, times their weights; (n,)."""


class NetSolver(Solver):
    """Minimise a loss by schedule-free Adam."""

    # objective : a `MinibatchLoss`.
    # validation : losses(module) and after_epoch(module) return the loss of each
    # validation row; the latter may set parameters that are not trained, as may
    # after_training(module). Mean losses decide when to stop, and which epoch is kept;
    # without validation the training loss decides.
    # log_scale : added to losses of standardised rows. tol : nats per row by which
    # losses must fall from one window of `n_iter_no_change` epochs to the next. joins :
    # whether training ends with some epochs on validation rows too, `joined_fraction`
    # of those before. plateau : whether the loss stopped improving.

    def __init__(
        self,
        module,
        objective,
        learning_rate,
        *,
        validation=None,
        log_scale=0.0,
        tol=0.0,
        n_iter_no_change=1,
        joins=False,
        joined_fraction=0.2,
    ):
        self.module, self.objective = module, objective
        self.learning_rate, self.validation = learning_rate, validation
        self.log_scale, self.tol = log_scale, tol
        self.n_iter_no_change = n_iter_no_change
        self.joins, self.joined_fraction = joins, joined_fraction
        self.plateau = False
        self._max_iter = 0
        self._n_joined = 0  # epochs left to train on validation rows, too
        self.optimizer = self._new_optimizer()
        self.best = self._state()
        self.lowest, self.lowest_losses = np.inf, None
        self.losses, self.validation_curve = [], []  # means, epoch by epoch

    def _new_optimizer(self):
        named = self.module.named_parameters()
        trained = {name: p for name, p in named if p.requires_grad}
        return ScheduleFreeAdam(trained, self.learning_rate)

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
        self._max_iter = max_iter
        if self.validation is not None:
            self.lowest_losses = self.validation.losses(self.module)
            self.lowest = self.lowest_losses.mean()

    def step(self):
        """Train for one epoch; leave the module at the average."""
        start = self._state() if self.validation is None else None
        optimizer, losses = self.optimizer, []
        optimizer.resume()
        for batch in self.objective.batches():
            loss = self.objective.losses(self.module, batch).mean()
            optimizer.step(loss, self.objective.step_weight)
            losses.append(loss.detach())
        optimizer.show_average()
        # losses are read back together, because a GPU waits for each read-back
        loss = float(np.mean(torch.stack(losses).tolist()))
        if not (math.isfinite(loss) and optimizer.average.isfinite().all()):
            raise FloatingPointError
        if self.validation is not None:
            self._validate()
        elif loss <= self.lowest:
            self.lowest, self.best = loss, start
        self.losses.append(loss)

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
        losses, window = self.losses, self.n_iter_no_change
        if self.validation is not None:
            curve = self.validation_curve
            self.plateau = validation_is_flat(curve, 2 * window, self.tol)
        else:  # by no more than noise
            has_two = len(losses) >= 2 * window
            self.plateau = has_two and trend(losses, window).is_flat(self.tol, 1.5)
        if not self.plateau:
            return False
        n_left = self._max_iter - len(losses)
        n_more = min(int(self.joined_fraction * len(losses)), n_left)
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


def validation_is_flat(losses, longest, tol):
    """Return whether the lowest mean loss has not fallen for long enough."""
    # That is two thirds of the epochs, and `longest` at most: losses may rise for twice
    # as long as they fell, before they fall again. The noise of validation losses is
    # the same in all epochs, so that the lowest can be compared.
    if len(losses) < 0.75 * longest:
        return False
    n_last = min(2 * len(losses) // 3, longest)
    return fall_of_lowest(losses, n_last) <= tol
