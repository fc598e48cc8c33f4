"""Training of nets by random masks: loss, steps, and stopping."""

import copy
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch

from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.nets import (
    flat_gradient,
    flattened,
    mean_of_epoch,
    passes_of_epoch,
)
from sklearn_mpt._fitting.schedules import falling_size, share_of_last
from sklearn_mpt._fitting.stopping import trend_of_rows


@dataclass(frozen=True)
class NetSteps:
    """Sizes and numbers of the steps of training.

    Attributes
    ----------
    warm_up : int
        Number of steps in which the step size grows.
    averaged_steps : int
        Approximate number of steps whose weights are averaged.
    average_power : int
        In the first steps, weights count in the average as the number of their step to
        this power.
    falling_share : float
        Share of the epochs in which the step size falls to 0.
    max_gradient : float
        Largest norm of the gradient of the loss per feature; longer ones are shortened.
    weight_decay : float
        As in AdamW.
    epoch_rows, epoch_steps : int
        An epoch passes over few rows several times: until it has taken about as many
        rows, or as many steps, whichever comes first. It passes over them at most half
        as often as there are rows, so that very few cost little.
    validation_pairs : int
        Approximate number of pairs of a validation row and a mask.
    chunk : int
        Number of pairs of a row and a mask that are computed at a time.
    decay_steps : int
        Number of steps of `partial_fit` in which their sizes hardly fall; see
        `falling_size`.
    """

    warm_up: int = 50
    averaged_steps: int = 200
    average_power: int = 9
    falling_share: float = 0.4
    max_gradient: float = 1.0
    weight_decay: float = 0.01
    epoch_rows: int = 2048
    epoch_steps: int = 64
    validation_pairs: int = 1024
    chunk: int = 1024
    decay_steps: int = 2000


STEPS = NetSteps()


def masked_losses(module, X, present, hidden, weight, generator=None, moments=None):
    """Return minus the weighted sum of the hidden log-probabilities of rows; (n,).

    X : standardised, finite. present, hidden : bool (n, d). weight : (n,)
    """
    conditionals = module(X, present & ~hidden, generator, moments)
    log_prob = torch.where(hidden & present, conditionals.log_prob(X), 0.0)
    return -log_prob.sum(1) * weight


class StandardisedRows:
    """Standardised rows with 0 in gaps, their present entries, and their weights.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    weight : Tensor of shape (n,)
        Weights of the rows, with mean 1.
    """

    def __init__(self, X, weight):
        self.present = ~X.isnan()
        self.X = torch.where(self.present, X, 0.0)
        self.weight = weight

    def __len__(self):
        return len(self.X)


class ValidationLosses:
    """Losses of validation rows, with the same masks in all epochs.

    The moments of the linear model, which is not trained, are computed once.
    """

    def __init__(self, module, rows, sizes, generator):
        self.n_rows = len(rows)
        n_masks = max(1, round(STEPS.validation_pairs / len(rows)))
        row_index = torch.arange(len(rows), device=rows.X.device).repeat(n_masks)
        X, present = rows.X[row_index], rows.present[row_index]
        hidden, scale = sizes.draw(present, generator)
        self.weight = rows.weight[row_index] / rows.weight.mean()
        tensors = (tensor.split(STEPS.chunk) for tensor in (X, present, hidden, scale))
        self.parts = [
            (*part, None, module.moments(part[0], part[1] & ~part[2]))
            for part in zip(*tensors, strict=True)
        ]

    @torch.no_grad()
    def losses(self, module):
        """Return the mean loss of each row over its masks; (n,)."""
        losses = torch.cat([masked_losses(module, *part) for part in self.parts])
        losses = losses.double() * self.weight.double()
        return losses.view(-1, self.n_rows).mean(0).cpu().numpy()


class MaskedSolver(Solver):
    """Minimise minus the masked scores of rows by AdamW, and average the weights.

    The trained parameters are views of one vector, so that a step is few operations.

    The step size is constant until the falling part begins: for the last
    `falling_share` of the epochs, or when the loss of the validation rows no longer
    falls. In the last `n_iter_no_change` epochs it must fall by more than `tol`, and
    by more than the standard error of the fall over the rows. Training then goes on
    from the best average so far, and the step size falls to 0.

    Parameters
    ----------
    module : MaskedModule
        Trained in place.
    rows : StandardisedRows
    held_out : StandardisedRows or None
    sizes : RowMasks
    generator : torch.Generator
        Source of minibatches, masks and dropout, on the device of the rows.
    batch_size : int
    n_masks : int or None
        Number of masks in a step; None is one for each row.
    learning_rate : float
    log_scale : float
        Constant that converts losses to the units of the rows.
    tol : float
        Smallest fall of the loss of the validation rows, in nats per row.
    n_iter_no_change : int
        Number of epochs in which it must fall.
    is_part : bool
        Whether the rows are a part of a stream.

    Attributes
    ----------
    loss_curve, validation_curve : list of float
        Mean loss of each epoch, in the units of the rows.
    """

    def __init__(
        self,
        module,
        rows,
        held_out,
        *,
        sizes,
        generator,
        batch_size,
        n_masks,
        learning_rate,
        log_scale,
        tol=0.0,
        n_iter_no_change=1,
        is_part=False,
    ):
        self.module, self.rows, self.sizes = module, rows, sizes
        self.generator = generator
        self.batch_size, self.n_masks = min(int(batch_size), len(rows)), n_masks
        self.learning_rate, self.log_scale = learning_rate, log_scale
        self.is_part = is_part
        self.tol, self.n_iter_no_change = tol, n_iter_no_change
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.average = copy.deepcopy(module)
        self.point = flattened(self.parameters)
        self.optimizer = torch.optim.AdamW(
            [self.point],
            lr=learning_rate,
            weight_decay=STEPS.weight_decay,
            betas=(0.9, 0.99),
            fused=True,
        )
        self._mean = flattened(
            [p for p in self.average.parameters() if p.requires_grad]
        )
        self._has_buffers = any(True for _ in module.net.buffers())
        self.best = self._snapshot()
        # losses of validation rows at the lowest mean so far, epoch by epoch
        self.lowest: list[np.ndarray] = []
        self.n_steps = 0
        # first step and length of the part in which step sizes fall
        self._fall: tuple[int, int] | None = None
        self.loss_curve: list[float] = []
        self.validation_curve: list[float] = []
        self._held_out = (
            None
            if held_out is None
            else ValidationLosses(module, held_out, sizes, generator)
        )

    @property
    def result(self):
        """The module with averaged weights, the best ones with validation rows."""
        return self.average

    def init(self, max_iter):
        """Divide the epochs into those with constant and with falling step size."""
        self._n_falling = max(1, math.ceil(STEPS.falling_share * max_iter))
        self._n_level = max_iter - self._n_falling
        if self._n_level == 0:
            self._start_decay()

    def terminate(self):
        """Return whether step sizes are 0; begin their fall if losses are flat."""
        n_epochs = len(self.loss_curve)
        if self._fall is not None:
            return n_epochs >= self._last_epoch
        is_flat = self._is_flat()
        if is_flat and n_epochs < self._n_level:
            ratio = self._n_falling / self._n_level
            self._restart_from_best()
            self._n_falling = math.ceil(ratio * n_epochs)
            self._start_decay()
        elif n_epochs == self._n_level:
            self._start_decay()
        return False

    def _start_decay(self):
        self._fall = self.n_steps, self._n_falling * self._steps_of_epoch
        self._last_epoch = len(self.loss_curve) + self._n_falling

    def recover(self):
        """Set the weights of the result to the best ones."""
        self.average.load_state_dict(self.best)

    def interrupt(self):
        """Recover if steps of the epoch that was interrupted have diverged."""
        if not all(p.isfinite().all() for p in self.average.parameters()):
            self.recover()

    def close(self):
        """Set the weights of the result and of the module to the best ones."""
        if self._held_out is not None:
            self.average.load_state_dict(self.best)
        self._count_floor_entries()
        self.module.load_state_dict(self.average.state_dict())

    @torch.no_grad()
    def _count_floor_entries(self):
        """Store in the result the share of conditionals with the least width."""
        X, present = self.rows.X[: STEPS.chunk], self.rows.present[: STEPS.chunk]
        hidden, _ = self.sizes.draw(present, self.generator)
        is_target = hidden & present
        has_reached_floor = (
            self.average(X, present & ~hidden).is_at_floor(X) & is_target
        )
        share = has_reached_floor.sum(0) / is_target.sum(0).clamp(min=1)
        self.average.at_floor = share.double().cpu().numpy()

    def step(self):
        """Pass over the rows in minibatches, several times if there are few rows."""
        losses = []
        for _ in range(self._passes):
            order = torch.randperm(
                len(self.rows), generator=self.generator, device=self.generator.device
            )
            losses += [self._step(*batch) for batch in self._prepared(order)]
        loss = mean_of_epoch(losses, self.point)
        self.loss_curve.append(loss + self.log_scale)
        self._check_convergence()

    def _batches(self, order):
        """Yield minibatches of equal size; rows left over come in other epochs."""
        return order[: self._n_batches * self.batch_size].split(self.batch_size)

    @property
    def _passes(self):
        if self.is_part:
            return 1
        n_steps = min(STEPS.epoch_steps, STEPS.epoch_rows / self.batch_size)
        limit = max(1, len(self.rows) // 2)
        return min(limit, passes_of_epoch(self._n_batches, n_steps))

    @property
    def _n_batches(self):
        return len(self.rows) // self.batch_size

    @property
    def _steps_of_epoch(self):
        return self._passes * self._n_batches

    @torch.no_grad()
    def _prepared(self, order):
        """Yield the parts of the rows that `masked_losses` takes, batch after batch.

        Masks are drawn for several batches at once, as are the moments of the linear
        model, which is not trained: operations on a single one would take longer.
        """
        batches = self._batches(order)
        n_at_once = max(1, STEPS.chunk // max(self.batch_size, self.n_masks or 0))
        for first in range(0, len(batches), n_at_once):
            row_sets = [
                self._repeated(rows) for rows in batches[first : first + n_at_once]
            ]
            chosen = torch.cat(row_sets)
            X, present = self.rows.X[chosen], self.rows.present[chosen]
            hidden, scale = self._masks(present, len(row_sets))
            moments = self.module.moments(X, present & ~hidden)
            parts = X, present, hidden, scale * self.rows.weight[chosen]
            yield from zip(
                *(part.chunk(len(row_sets)) for part in parts),
                itertools.repeat(None)
                if moments is None
                else zip(*(part.chunk(len(row_sets)) for part in moments), strict=True),
                strict=False,
            )

    def _repeated(self, chosen):
        """Return rows several times if there are more masks than rows in a batch."""
        if self.n_masks is None or self.n_masks <= len(chosen):
            return chosen
        return chosen.repeat(math.ceil(self.n_masks / len(chosen)))[: self.n_masks]

    def _step(self, X, present, hidden, weight, moments):
        loss = masked_losses(
            self.module, X, present, hidden, weight, self.generator, moments
        ).mean()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * self._step_size()
        self.point.grad = flat_gradient(loss / X.shape[1], self.parameters)
        torch.nn.utils.clip_grad_norm_([self.point], STEPS.max_gradient, foreach=False)
        self.optimizer.step()
        self.n_steps += 1
        self._average_weights()
        return loss.detach()

    def _masks(self, present, n_batches):
        """Return a mask for each row; with fewer masks than rows, they are repeated."""
        n_rows = len(present) // n_batches
        if self.n_masks is None or self.n_masks >= n_rows:
            return self.sizes.draw(present, self.generator, n_batches)
        shared = torch.ones_like(present[: self.n_masks * n_batches])
        hidden, scale = self.sizes.draw(shared, self.generator, n_batches)
        row = torch.arange(len(present), device=present.device)
        mask_of_row = row // n_rows * self.n_masks + row % n_rows % self.n_masks
        return hidden[mask_of_row], scale[mask_of_row]

    def _step_size(self):
        size = min(1.0, (self.n_steps + 1) / STEPS.warm_up)
        if self.is_part:
            return size * falling_size(self.n_steps, STEPS.decay_steps)
        if self._fall is None:
            return size
        first, length = self._fall
        return size * max(0.0, 1 - (self.n_steps - first) / length)

    @torch.no_grad()
    def _average_weights(self):
        # the weights at the start count as a point
        share = share_of_last(self.n_steps + 1, STEPS.average_power)
        self._mean.lerp_(self.point, max(1 / STEPS.averaged_steps, share))
        if not self._has_buffers:
            return
        # those of nets of users, which may be moving averages already
        for mean, value in zip(
            self.average.net.buffers(), self.module.net.buffers(), strict=True
        ):
            mean.copy_(value)

    def _check_convergence(self):
        """Keep the averaged weights with the lowest loss of the validation rows."""
        if self._held_out is None:
            self.best = self._snapshot()
            return
        losses = self._held_out.losses(self.average)
        if not np.isfinite(losses).all():
            raise FloatingPointError
        self.validation_curve.append(float(losses.mean()) + self.log_scale)
        if not self.lowest or losses.mean() < self.lowest[-1].mean():
            self.best = self._snapshot()
        else:
            losses = self.lowest[-1]
        self.lowest.append(losses)

    def _is_flat(self):
        """Return whether the lowest loss fell by no more than noise, or than `tol`."""
        if len(self.lowest) <= self.n_iter_no_change:
            return False
        before = self.lowest[-1 - self.n_iter_no_change]
        return trend_of_rows(before, self.lowest[-1]).is_flat(self.tol)

    @torch.no_grad()
    def _restart_from_best(self):
        for module in (self.module, self.average):
            module.load_state_dict(self.best)

    def _snapshot(self):
        """Return a copy of all parameters and buffers of the averaged module."""
        state = self.average.state_dict()
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def state(self):
        """Return the state that `load` restores, as NumPy arrays."""
        state = self.optimizer.state[self.point]
        moments = {k: state[k] for k in ("exp_avg", "exp_avg_sq") if k in state}
        vectors = {"iterate": self.point, **moments}
        arrays = {name: vector.cpu().numpy().copy() for name, vector in vectors.items()}
        return arrays | {"n_steps": np.array(self.n_steps)}

    def load(self, arrays):
        """Restore a result of `state`."""
        if not arrays:
            return
        self.n_steps = int(arrays["n_steps"])
        names = {"iterate", "exp_avg", "exp_avg_sq"} & set(arrays)
        device = self.point.device
        tensors = {k: torch.tensor(arrays[k], device=device) for k in names}
        self.point.copy_(tensors.pop("iterate"))
        if tensors:
            # fused steps take their number where the parameters are
            n_steps = torch.tensor(self.n_steps, dtype=torch.float32, device=device)
            self.optimizer.state[self.point] = {"step": n_steps, **tensors}
