"""The loss of a masked net, for minibatches and for validation rows."""

import math

import torch

from sklearn_mpt._optim.nets import MinibatchLoss

CHUNK = 1024  # number of pairs of a row and a mask that are computed at a time


def batches_of(module, rows, masks, size):
    """Return parts of rows with masks, as `masked_losses` takes them.

    The inputs of the net and the moments of the linear model, which are not trained,
    are computed for all rows at once: operations on single parts would take longer.
    """
    (hidden, weight), present = masks, ~rows.X.isnan()
    X, target = torch.where(present, rows.X, 0.0), hidden & present
    inputs, moments = module.read(X, present & ~hidden)
    tensors = X, target, weight * rows.weight, inputs, *(moments or ())
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def masked_losses(module, batch, generator=None, unseen=(), unseen_weight=0.0):
    """Return minus the weighted sum of the hidden log-probabilities of rows; (n,)."""
    X, target, weight, inputs, *moments = batch
    conditionals = module.net(inputs, generator), moments or None
    log_prob = module.of_columns("log_prob", *conditionals, X)
    log_prob = torch.where(target, log_prob, 0.0)
    for levels in unseen:
        is_level = target & ~levels.isnan()
        levels = levels.nan_to_num(1.0).expand_as(X)
        more = module.of_columns("log_prob", *conditionals, levels)
        log_prob = log_prob + unseen_weight * torch.where(is_level, more, 0.0)
    return -log_prob.sum(1) * weight


class ValidationLosses:
    """Losses of validation rows, with the same masks in all epochs."""

    @torch.no_grad()
    def __init__(self, module, rows, sizes, generator):
        self.rows, n_rows = rows, len(rows.X)
        n_masks = max(1, round(CHUNK / n_rows))
        index = torch.arange(n_rows, device=rows.X.device).repeat(n_masks)
        pairs = rows._replace(weight=rows.relative_weight).take(index)
        masks = sizes.draw(~pairs.X.isnan(), generator)
        self.batches = list(batches_of(module, pairs, masks, CHUNK))

    @torch.no_grad()
    def losses(self, module):
        """Return the mean loss of each row over its masks; (n,)."""
        losses = torch.cat([masked_losses(module, batch) for batch in self.batches])
        return losses.double().view(-1, len(self.rows.X)).mean(0).cpu().numpy()

    after_epoch = losses

    def after_training(self, module):
        pass


class MaskedLoss(MinibatchLoss):
    """Minus the masked scores of minibatches of rows."""

    def __init__(
        self, module, rows, sizes, generator, batch_size, n_masks, min_steps=8
    ):
        super().__init__(rows, batch_size, min_steps)
        self.module, self.sizes = module, sizes
        self.generator, self.n_masks = generator, n_masks

    unseen, unseen_weight = (), 0.0  # of levels that no row has, as in `masked_losses`

    def as_part(self):
        """Take the rows as a part of a stream: all of them, once."""
        super().as_part()
        n_rows, self.min_steps = len(self.rows.X), 1
        self.batch_size = n_rows // math.ceil(n_rows / self.batch_size)
        return self

    def batches(self):
        """Yield the minibatches of one epoch, of equal size."""
        n_rows, device = len(self.rows.X), self.generator.device
        size = min(self.batch_size, n_rows)
        n_batches = n_rows // size
        for _ in range(self.count_passes(n_batches)):
            order = torch.randperm(n_rows, generator=self.generator, device=device)
            yield from self._with_masks(order[: n_batches * size].split(size))

    def losses(self, module, batch):
        unseen = self.unseen, self.unseen_weight
        return masked_losses(module, batch, self.generator, *unseen)

    @torch.no_grad()
    def _with_masks(self, batches):
        """Yield batches with masks, which are drawn for several batches at once."""
        weighted = self.rows._replace(weight=self.rows.relative_weight)
        size = max(len(batches[0]), self.n_masks or 0)
        n_at_once = max(1, CHUNK // size)
        for first in range(0, len(batches), n_at_once):
            several = [self._repeated(b) for b in batches[first : first + n_at_once]]
            rows = weighted.take(torch.cat(several))
            masks = self._masks(~rows.X.isnan(), len(several))
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

    @torch.no_grad()
    def after_training(self, module):
        """Count where conditionals have the least width."""
        X = self.rows.X[:CHUNK]
        present = ~X.isnan()
        hidden, _ = self.sizes.draw(present, self.generator)
        is_target = hidden & present
        conditionals = module(X, present & ~hidden)
        at_floor = module.of_columns("is_at_floor", *conditionals, X) & is_target
        fraction = at_floor.sum(0) / is_target.sum(0).clamp(min=1)
        module.at_floor = fraction.double().cpu().numpy()
