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

from sklearn_mpt._optim.steps import DIVERGENCE
from sklearn_mpt._optim.weights import SampleWeights

TOWARDS_AVERAGE = 0.95  # from the iterate to the average, where gradients are taken
# In learning rates: a posterior that is far off has large gradients, and one step along
# them would undo hundreds of others.
MAX_MOVE = 2.0


class ScheduleFreeAdam:
    """Adam whose iterates are averaged during training; parameters are one vector."""

    def __init__(self, module, learning_rate):
        named = {k: p for k, p in module.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(named), list(named.values())
        self.learning_rate = learning_rate
        self.point = parameters_to_vector(self.parameters).detach()
        vector_to_parameters(self.point, self.parameters)  # views of it from now on
        self.average, self.iterate = self.point.clone(), self.point.clone()
        self.squares = torch.zeros_like(self.point)
        self.n_steps, self.weight = 0, 0.0

    def epoch(self, module, objective):
        """Take steps on the minibatches of an epoch, and `show_average`.

        Return the mean loss.
        """
        losses = []
        with torch.no_grad():
            torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)
        for batch in objective.batches():
            loss = objective.losses(module, batch).mean()
            self.step(loss, objective.step_weight)
            losses.append(loss.detach())
        self.show_average()
        # losses are read back together, because a GPU waits for each read-back
        loss = float(np.mean(torch.stack(losses).tolist()))
        if not (math.isfinite(loss) and self.average.isfinite().all()):
            raise FloatingPointError
        return loss

    @torch.no_grad()
    def show_average(self):
        """Give the module the average, which is the result."""
        self.point.copy_(self.average)

    @torch.no_grad()
    def move_to_module(self):
        """Put average and iterate at the module; keep the weight of the average."""
        self.average.copy_(self.point)
        self.iterate.copy_(self.point)

    def step(self, loss, step_weight=1.0, *, squares_decay=0.99):
        """Take a step against the gradient of a loss."""
        # step_weight : part of a full step, by which move and weight in the average are
        # multiplied; a step counts as its number. squares_decay : of mean squares of
        # gradients.
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in gradients])
        with torch.no_grad():
            self.n_steps += 1
            new = max(1 / self.n_steps, 1 - squares_decay)
            self.squares.lerp_(gradient**2, new)
            # parameters without gradients do not move
            move = gradient.div_(self.squares.sqrt().add_(1e-8))
            move.clamp_(-MAX_MOVE, MAX_MOVE)
            size = min(1, self.n_steps / 150)  # grows in the first steps
            self.iterate.sub_(move, alpha=step_weight * size * self.learning_rate)
            weight = step_weight * size**2 * self.n_steps
            self.weight += weight
            self.average.lerp_(self.iterate, weight / self.weight)
            torch.lerp(self.iterate, self.average, TOWARDS_AVERAGE, out=self.point)

    def _carried(self):
        """Yield what goes on in the next call of `partial_fit`, by name."""
        sizes = [parameter.numel() for parameter in self.parameters]
        for kind in ("iterate", "squares"):
            parts = getattr(self, kind).split(sizes)
            yield from zip([f"{kind}.{n}" for n in self.names], parts, strict=True)

    def state(self):
        """Return what a later optimizer needs to go on, as NumPy arrays by name."""
        arrays = {name: part.cpu().numpy().copy() for name, part in self._carried()}
        return arrays | {"progress": np.array([self.n_steps, self.weight])}

    def load(self, arrays):
        """Restore what `state` returned; parameters that it lacks have no past."""
        for name, part in self._carried():
            if name in arrays:
                part.copy_(torch.from_numpy(arrays[name]))
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
    """Base of the losses of nets, as `train_net` takes them."""

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

    def after_training(self, module):
        """Set what is no parameter, at the end."""

    @abstractmethod
    def batches(self):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return the losses of the rows of a minibatch, times their weights; (n,)."""


def train_net(
    training,
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
    """Minimise a loss by schedule-free Adam, for a `Training`.

    objective : a `MinibatchLoss`. log_scale : added to losses of standardised rows. tol
    : nats per row by which losses must fall from one window of `n_iter_no_change`
    epochs to the next.

    validation : losses(module) and after_epoch(module) return the loss of each
    validation row; the latter may set parameters that are not trained, as may
    after_training(module). Mean losses decide when to stop, and which epoch is kept;
    without validation the training loss decides. joins : whether training ends with
    some epochs on validation rows too, `joined_fraction` of those before.
    """
    training.params, optimizer = module, ScheduleFreeAdam(module, learning_rate)
    best, lowest = _copy_of(module), math.inf
    if validation is not None:
        lowest_losses = validation.losses(module)
        lowest = lowest_losses.mean()
    losses, means = [], []  # means : of validation losses
    n_joined = None  # epochs that are left on validation rows, too
    try:
        while True:
            start = _copy_of(module) if validation is None else None
            loss = optimizer.epoch(module, objective)
            losses.append(loss)
            if validation is not None:
                of_rows = validation.after_epoch(module)
                if not np.isfinite(of_rows).all():
                    raise FloatingPointError
                means.append(float(of_rows.mean()))
                if means[-1] <= lowest:
                    lowest, lowest_losses = means[-1], of_rows
                # the lowest of noisy losses comes too early: averages over more steps
                # are better, and kept if they are no worse by a standard error
                rises = of_rows - lowest_losses
                if rises.mean() <= rises.std() / math.sqrt(len(rises)):
                    best = _copy_of(module)
            elif loss <= lowest:
                lowest, best = loss, start
            training.loss_curve.append(loss + log_scale)
            is_over = False
            if n_joined is not None:
                n_joined -= 1
                is_over = n_joined == 0
            elif _is_flat(losses, means, n_iter_no_change, tol):
                n_left = training.max_iter - len(losses)
                n_joined = min(int(joined_fraction * len(losses)), n_left)
                is_over = not joins or n_joined <= 0
                if not is_over:  # go on from the best parameters
                    module.load_state_dict(best)
                    validation.after_training(module)
                    progress = optimizer.state()
                    # of what is still trained
                    optimizer = ScheduleFreeAdam(module, learning_rate)
                    optimizer.load(progress)
                    optimizer.move_to_module()
                    objective.join(validation)
                    best, lowest, validation = _copy_of(module), math.inf, None
            if training.is_last and validation is None:
                _check(module, objective)
            yield is_over
    except DIVERGENCE:
        module.load_state_dict(best)
        optimizer = ScheduleFreeAdam(module, learning_rate)
        raise
    except KeyboardInterrupt:
        optimizer.show_average()
        if not optimizer.average.isfinite().all():
            module.load_state_dict(best)
        raise
    finally:
        if validation is not None:
            module.load_state_dict(best)
            validation.after_training(module)
        # It keeps its averages of squared gradients and its number of steps, so that
        # later steps on more rows are small.
        optimizer.move_to_module()
        objective.after_training(module)
        training.state = optimizer.state()


def train_net_on_part(training, module, objective, learning_rate, log_scale=0.0):
    """Train for one epoch on a part of a stream."""
    training.params, optimizer = module, ScheduleFreeAdam(module, learning_rate)
    if training.state:
        optimizer.load(training.state)
    start = _copy_of(module)
    try:
        loss = optimizer.epoch(module, objective)
        training.loss_curve.append(loss + log_scale)
        _check(module, objective)
    except DIVERGENCE:
        module.load_state_dict(start)
        optimizer = ScheduleFreeAdam(module, learning_rate)
        raise
    finally:
        training.state = optimizer.state()
    yield True


@torch.no_grad()
def _check(module, objective):
    """Refuse parameters after the very last step whose losses are not finite."""
    batch = next(iter(objective.batches()))
    if not objective.losses(module, batch).isfinite().all():
        raise FloatingPointError


def _copy_of(module):
    """Return copies of the parameters and buffers of a module."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def _is_flat(losses, means, window, tol):
    """Return whether losses stopped falling, or the means of validation losses."""
    if means:
        # The lowest mean has not fallen in two thirds of the epochs, and `2 * window`
        # at most: losses may rise for twice as long as they fell, before they fall
        # again. The noise of means is the same in all epochs.
        if len(means) < 1.5 * window:
            return False
        n_last = min(2 * len(means) // 3, 2 * window)
        return min(means[:-n_last]) - min(means[-n_last:]) <= tol
    if len(losses) < 2 * window:
        return False
    before, last = np.reshape(losses[-2 * window :], (2, window))
    noise = 0.0  # standard error of the fall; that of windows of one loss is not known
    if window > 1:
        noise = math.sqrt((before.var(ddof=1) + last.var(ddof=1)) / window)
    return before.mean() - last.mean() <= max(tol, 1.5 * noise)
