"""The loss of a masked net, for minibatches and for validation rows."""

import copy
import math

import torch

from sklearn_mpt._fitting.net_solver import NetSolver
from sklearn_mpt._fitting.nets import passes_of_epoch
from sklearn_mpt._fitting.schedule_free import AdamSteps

# Half as many steps as those of deep models, on twice the rows.
STEPS = AdamSteps(squares_decay=0.98, warm_up=75)
CHUNK = 1024  # number of pairs of a row and a mask that are computed at a time


def batches_of(module, rows, masks, size):
    """Return parts of rows with masks, as `masked_losses` takes them.

    The inputs of the net and the moments of the linear model, which are not trained,
    are computed for all rows at once: operations on single parts would take longer.

    rows : StandardisedRows. masks : bool (n, d), and weights, as `RowMasks` returns
    them. size : of a part.
    """
    hidden, weight = masks
    inputs, moments = module.read(rows.X, rows.present & ~hidden)
    target = hidden & rows.present
    tensors = rows.X, target, weight * rows.weight, inputs, *(moments or ())
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def masked_losses(module, batch, generator=None):
    """Return minus the weighted sum of the hidden log-probabilities of rows; (n,)."""
    X, target, weight, inputs, *moments = batch
    conditionals = module.conditionals(inputs, moments or None, generator)
    log_prob = torch.where(target, conditionals.log_prob(X), 0.0)
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

    def __getitem__(self, index):
        """Return some of the rows."""
        return self._with(*(tensor[index] for tensor in self._tensors))

    def __add__(self, others):
        """Return these rows and others."""
        pairs = zip(self._tensors, others._tensors, strict=True)
        return self._with(*(torch.cat(pair) for pair in pairs))

    @property
    def _tensors(self):
        return self.X, self.present, self.weight

    def _with(self, X, present, weight):
        rows = copy.copy(self)
        rows.X, rows.present, rows.weight = X, present, weight
        return rows


class ValidationLosses:
    """Losses of validation rows, with the same masks in all epochs.

    n_pairs : approximate number of pairs of a row and a mask.
    """

    @torch.no_grad()
    def __init__(self, module, rows, sizes, generator, n_pairs=1024):
        self.rows = rows
        n_masks = max(1, round(n_pairs / len(rows)))
        pairs = rows[torch.arange(len(rows), device=rows.X.device).repeat(n_masks)]
        masks = sizes.draw(pairs.present, generator)
        self.batches = list(batches_of(module, pairs, masks, CHUNK))

    @torch.no_grad()
    def losses(self, module):
        """Return the mean loss of each row over its masks; (n,)."""
        losses = torch.cat([masked_losses(module, batch) for batch in self.batches])
        losses = losses.double().view(-1, len(self.rows)).mean(0)
        return (losses / self.rows.weight.double().mean()).cpu().numpy()

    after_epoch = losses

    def after_training(self, module):
        pass


class MaskedLoss:
    """Minus the masked scores of minibatches of rows.

    Parameters
    ----------
    module : MaskedModule
    rows : StandardisedRows
    sizes : RowMasks
    generator : torch.Generator
        Source of minibatches, masks and dropout, on the device of the rows.
    batch_size : int
    n_masks : int or None
        Number of masks in a step; None is one for each row.
    min_steps : int
        An epoch passes over few rows several times, to have about so many steps.
    """

    def __init__(
        self, module, rows, sizes, generator, batch_size, n_masks, min_steps=8
    ):
        self.module, self.rows, self.sizes = module, rows, sizes
        self.generator, self.n_masks = generator, n_masks
        self.full_size, self.min_steps = int(batch_size), min_steps
        self.step_weight = 1.0

    def as_part(self):
        """Take the rows as a part of a stream, which come once; return self."""
        self.min_steps = 1
        size = len(self.rows) // math.ceil(len(self.rows) / self.full_size)
        self.step_weight, self.full_size = size / self.full_size, size
        return self

    def join(self, validation):
        """Train on validation rows, too."""
        self.rows = self.rows + validation.rows

    @property
    def batch_size(self):
        return min(self.full_size, len(self.rows))

    def batches(self):
        """Yield the minibatches of one epoch, of equal size.

        Rows left over come in other epochs.
        """
        n_batches = len(self.rows) // self.batch_size
        n_passes = passes_of_epoch(len(self.rows), n_batches, self.min_steps)
        for _ in range(n_passes):
            order = torch.randperm(
                len(self.rows), generator=self.generator, device=self.generator.device
            )
            yield from self._with_masks(
                order[: n_batches * self.batch_size].split(self.batch_size)
            )

    def losses(self, module, batch):
        return masked_losses(module, batch, self.generator)

    @torch.no_grad()
    def _with_masks(self, batches):
        """Yield batches with masks, which are drawn for several batches at once."""
        size = max(self.batch_size, self.n_masks or 0)
        n_at_once = max(1, CHUNK // size)
        for first in range(0, len(batches), n_at_once):
            several = [self._repeated(b) for b in batches[first : first + n_at_once]]
            rows = self.rows[torch.cat(several)]
            masks = self._masks(rows.present, len(several))
            yield from batches_of(self.module, rows, masks, size)

    def _repeated(self, chosen):
        """Return rows several times if there are more masks than rows in a batch."""
        if self.n_masks is None or self.n_masks <= len(chosen):
            return chosen
        return chosen.repeat(math.ceil(self.n_masks / len(chosen)))[: self.n_masks]

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


class MaskedSolver(NetSolver):
    """A solver that counts, at the end, where conditionals have the least width."""

    @torch.no_grad()
    def close(self):
        super().close()
        rows, sizes = self.objective.rows, self.objective.sizes
        X, present = rows.X[:CHUNK], rows.present[:CHUNK]
        hidden, _ = sizes.draw(present, self.objective.generator)
        is_target = hidden & present
        conditionals = self.module(X, present & ~hidden)
        at_floor = conditionals.is_at_floor(X) & is_target
        fraction = at_floor.sum(0) / is_target.sum(0).clamp(min=1)
        self.module.at_floor = fraction.double().cpu().numpy()
