"""The net, from the visible entries of a row to all columns, and its loss."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from sklearn_mpt._autoregressive.heads import LikelihoodHead, MixtureHead, NumberMoments
from sklearn_mpt._autoregressive.order_mixture import OrderMixture
from sklearn_mpt._base.nets import UserModuleWrapper, seeded
from sklearn_mpt._numbers import FLOAT_BYTES
from sklearn_mpt._optim.nets import MinibatchLoss


class Layer(torch.nn.Linear):
    """A linear layer without values, which draws none from torch's generator."""

    def reset_parameters(self):
        pass


class ResidualNet(torch.nn.Module):
    """A residual net with normalised blocks; parameters are drawn by NumPy.

    A linear layer maps the inputs to the first width. Each width is that of one block,

    .. math:: h \\leftarrow P h + W_2 \\, \\mathrm{relu}(W_1 \\, \\mathrm{norm}(h)),

    where P is the identity between blocks of the same width, and otherwise a learned
    linear map. The last linear layer maps the normalised hidden values to the outputs.
    """

    def __init__(self, n_inputs, n_outputs, widths, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        sizes = [widths[0] if widths else n_inputs, *widths]
        layer = partial(Layer, device="cpu", dtype=torch.float32)
        self.first = layer(n_inputs, widths[0]) if widths else None
        self.enter = torch.nn.ModuleList(layer(*pair) for pair in pairwise(sizes))
        self.leave = torch.nn.ModuleList(layer(width, width) for width in widths)
        self.project = torch.nn.ModuleDict(
            {
                str(i): layer(a, b, bias=False)
                for i, (a, b) in enumerate(pairwise(sizes))
                if a != b
            }
        )
        self.last = layer(sizes[-1], n_outputs)
        self.width = max(sizes)
        self.n_hidden = sizes[-1]

    @torch.no_grad()
    def initialise(self, rng, intercept):
        """Draw all weights so that the first outputs are the same for all rows."""
        for name, parameter in self.named_parameters():
            if name == "last.bias":
                value = np.asarray(intercept)
            elif parameter.ndim == 1 or name == "last.weight":
                value = np.zeros(tuple(parameter.shape))
            else:
                deviation = 1 / np.sqrt(parameter.shape[1])
                if name.startswith("enter"):
                    deviation *= np.sqrt(2)  # half of the values of relu are 0
                value = deviation * rng.normal(size=tuple(parameter.shape))
                if name.startswith("leave"):
                    value /= np.sqrt(len(self.leave))
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        return self

    def forward(self, inputs, generator=None):
        """Return the outputs; with a generator some hidden values are dropped."""
        return self.last(self.last_hidden(inputs, generator))

    def outputs_from(self, inputs, start, n_outputs):
        """Return some neighbouring outputs of each row; (n, n_outputs)."""
        weight, bias = self.last.weight, self.last.bias
        starts, counts = start.unique_consecutive(return_counts=True)
        parts = self.last_hidden(inputs).split(counts.tolist())
        ends = [slice(first, first + n_outputs) for first in starts.tolist()]
        columns = zip(parts, ends, strict=True)
        return torch.cat([h @ weight[part].T + bias[part] for h, part in columns])

    def last_hidden(self, inputs, generator=None):
        """Return the values of the last hidden layer; (n, width)."""
        if self.first is None:
            return inputs
        h = self.first(inputs)
        for i, (enter, leave) in enumerate(zip(self.enter, self.leave, strict=True)):
            inner = functional.relu(enter(_normalised(h)))
            inner = leave(self._apply_dropout(inner, generator))
            h = (self.project[str(i)](h) if str(i) in self.project else h) + inner
        return self._apply_dropout(_normalised(h), generator)

    def _apply_dropout(self, h, generator):
        if generator is None or self.dropout == 0:
            return h
        # the dropout of torch takes no generator
        like = {"dtype": h.dtype, "device": h.device}
        level = torch.rand(h.shape, generator=generator, **like)
        return h * (level >= self.dropout) / (1 - self.dropout)


class UserNet(UserModuleWrapper):
    """A net of a user, between the inputs and the outputs of a `MaskedModule`.

    If a generator is given, the net is in training mode, and torch's own generators,
    which its layers may use, are seeded during the call.
    """

    def forward(self, inputs, generator=None):
        """Return the outputs; (n, n_outputs)."""
        if generator is None:
            self.module.eval()
            return super().forward(inputs)
        seed = torch.randint(2**31, (), generator=generator, device=generator.device)
        self.module.train()
        with seeded(int(seed), inputs.device):
            return super().forward(inputs)

    def outputs_from(self, inputs, start, n_outputs):
        """Return some neighbouring outputs of each row; (n, n_outputs)."""
        at = start[:, None] + torch.arange(n_outputs, device=start.device)
        return self(inputs).gather(1, at)

    def last_hidden(self, inputs, generator=None):
        """Return the result of the net's own `last_hidden`, if any, or the outputs."""
        self.module.eval()
        return getattr(self.module, "last_hidden", self.module)(inputs)

    @property
    def n_hidden(self):
        """Number of values that `last_hidden` returns for each row."""
        n_inputs = self.n_inputs
        with torch.no_grad():
            return self.last_hidden(self.intercept.new_zeros(1, n_inputs)).shape[1]


def _normalised(h):
    return functional.layer_norm(h, h.shape[-1:])


NUMBERS = "gaussian"


class MaskedModule(torch.nn.Module):
    """Conditionals of every column of rows, given their visible entries."""

    def __init__(self, kinds, n_categories, n_mixtures, linear, input_units=None):
        super().__init__()
        column_kinds = list(zip(kinds, n_categories, strict=True))
        self.n_features = len(column_kinds)
        self.heads, columns_of = torch.nn.ModuleList(), []
        for kind, count in sorted(set(column_kinds)):
            columns = np.flatnonzero([pair == (kind, count) for pair in column_kinds])
            columns_of.append(columns)
            if kind == NUMBERS:
                self.heads.append(MixtureHead(n_mixtures))
            else:
                self.heads.append(LikelihoodHead(kind, count, len(columns)))
        self.linear = NumberMoments(*linear) if NUMBERS in kinds else None
        # where the outputs of heads end, and those of each column begin
        head_of, index_of, start_of = np.empty((3, self.n_features), dtype=np.int64)
        self._ends = [0]
        for i, (head, columns) in enumerate(zip(self.heads, columns_of, strict=True)):
            self.register_buffer(f"columns_{i}", torch.from_numpy(columns))
            head_of[columns], index_of[columns] = i, np.arange(len(columns))
            start_of[columns] = self._ends[-1] + head.width * index_of[columns]
            self._ends.append(self._ends[-1] + head.width * len(columns))
        n_read = sum(
            head.n_inputs * len(columns)
            for head, columns in zip(self.heads, columns_of, strict=True)
        )
        self.n_outputs, self.n_inputs = self._ends[-1], n_read + self.n_features
        shift, scale = input_units or (np.zeros(n_read), np.ones(n_read))
        for name, array in {
            "back": np.concatenate(columns_of).argsort(),
            "head_of": head_of,
            "index_of": index_of,
            "start_of": start_of,
            "input_shift": np.asarray(shift, dtype=np.float64),
            "input_scale": np.asarray(scale, dtype=np.float64),
        }.items():
            self.register_buffer(name, torch.tensor(array, device="cpu"))
        self.net: torch.nn.Module = torch.nn.Identity()
        # fraction of the hidden entries of each column, in the last check in training,
        # that have conditionals of the least width
        self.at_floor = np.zeros(self.n_features)

    def groups(self):
        """Yield each head, its columns, and the slice of its outputs."""
        ends = pairwise(self._ends)
        for i, (head, (low, high)) in enumerate(zip(self.heads, ends, strict=True)):
            yield head, getattr(self, f"columns_{i}"), slice(low, high)

    def units_of_inputs(self, X, weight):
        """Return `input_units` for rows whose numbers are standardised."""
        parts = [
            head.units_of_inputs(X[:, columns.cpu().numpy()], weight)
            for head, columns, _ in self.groups()
        ]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def start(self, X, weight, rng):
        """Return the outputs from which training starts; ndarray (n_outputs,)."""
        parts = [
            head.start(X[:, columns.cpu().numpy()], weight, self.linear, rng)
            for head, columns, _ in self.groups()
        ]
        return np.concatenate(parts)

    def _select(self, X, columns):
        return X if len(self.heads) == 1 else X[:, columns]

    def moments(self, X, visible):
        """Return moments of the numbers by the linear model; None without numbers."""
        if self.linear is None:
            return None
        (columns,) = (
            columns for head, columns, _ in self.groups() if head.uses_moments
        )
        return self.linear(self._select(X, columns), self._select(visible, columns))

    def inputs(self, X, visible, moments):
        """Return the inputs of the net; (n, n_inputs).

        Hidden numbers are replaced by their means under the linear model, and other
        hidden entries by zeros. Indicators of visible entries are inputs too.
        """
        parts, end = [], 0
        for head, columns, _ in self.groups():
            read = head.inputs(self._select(X, columns))
            start, end = end, end + read.shape[1]
            shift, scale = self.input_shift[start:end], self.input_scale[start:end]
            read = (read - shift.to(read.dtype)) / scale.to(read.dtype)
            read = read.nan_to_num(0.0)  # as the mean, in any unit
            visible_part = self._select(visible, columns)
            parts.append(head.hide(read, visible_part, moments))
        return torch.cat([*parts, visible.to(X.dtype)], 1)

    def read(self, X, visible):
        """Return what is not trained: inputs of the net, and moments of the numbers."""
        X = torch.where(visible, X, 0.0)
        moments = self.moments(X, visible)
        return self.inputs(X, visible, moments), moments

    def forward(self, X, visible):
        """Return outputs of the net, and moments of the numbers, given visible ones."""
        inputs, moments = self.read(X, visible)
        return self.net(inputs), moments

    def of_columns(self, method, outputs, moments, *values):
        """Return what a method of heads returns for the entries of rows; (n, d).

        values : of the entries, if the method takes them.
        """
        parts = []
        for head, columns, part in self.groups():
            of_head = (self._select(value, columns) for value in values)
            parts.append(getattr(head, method)(*of_head, outputs[:, part], moments))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)[:, self.back]

    def of_entries(self, method, X, visible, column, values):
        """Return what a method of heads returns for one entry of each row; (n,)."""
        inputs, moments = self.read(X, visible)
        result = inputs.new_empty(len(inputs))
        order = column.argsort(stable=True)
        head_of = self.head_of[column[order]]
        for i, head in enumerate(self.heads):
            row = order[head_of == i]
            if not len(row):
                continue
            at = column[row]
            outputs = self.net.outputs_from(inputs[row], self.start_of[at], head.width)
            of_head = None
            if head.uses_moments:
                index = self.index_of[at, None]
                of_head = [part[row].gather(1, index) for part in moments]
            ask = getattr(head.single, method)
            result[row] = ask(values[row, at, None], outputs, of_head)[:, 0]
        return result


class MaskedDensity(OrderMixture):
    """The mixture of the orders of a net, and its conditionals."""

    def __init__(self, module, units, orders):
        super().__init__(units, orders)
        self.module = module

    @property
    def row_bytes(self):
        """Approximate memory for scoring a row along all orders."""
        module = self.module
        width = 2 * module.n_inputs + 4 * module.n_outputs + 4 * module.net.width
        return FLOAT_BYTES * width * len(self.orders)

    def log_prob(self, rows, visible, hidden):
        return self.module.of_columns("log_prob", *self.module(rows, visible), rows)

    def log_prob_of_entries(self, rows, visible, column):
        return self.module.of_entries("log_prob", rows, visible, column, rows)

    def mean(self, rows, visible):
        return self.module.of_columns("expect", *self.module(rows, visible))

    def draw_entries(self, rows, visible, column, uniform):
        return self.module.of_entries("draw", rows, visible, column, uniform)

    def last_hidden(self, X):
        """Return the last hidden layer given the present entries; (n, width)."""
        rows, present = self._read(X)
        inputs, _ = self.module.read(rows, present)
        return self.module.net.last_hidden(inputs)


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
            several = batches[first : first + n_at_once]
            # rows come several times if there are more masks than rows in a batch
            rows = torch.cat(
                [b.repeat(math.ceil(size / len(b)))[:size] for b in several]
            )
            rows = weighted.take(rows)
            masks = self._masks(~rows.X.isnan(), len(several))
            yield from batches_of(self.module, rows, masks, size)

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
