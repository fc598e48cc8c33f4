"""The net: from the visible entries of a row to the parameters of every column."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from sklearn_mpt._base.nets import UserModuleWrapper, seeded


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
        return h * _dropout_scale(h, self.dropout, generator)


def _dropout_scale(h, dropout, generator):
    """Return 0 for values of h that are dropped, and the inverse of the fraction kept.

    The dropout of torch takes no generator. Here four values share 64 random bits, so
    the fraction is a multiple of 2 ** -16.
    """
    n_dropped = min(round(dropout * 2**16), 2**16 - 1)
    bits = torch.empty(-(-h.numel() // 4), dtype=torch.int64, device=h.device)
    bits.random_(-(2**63), None, generator=generator)
    level = bits.view(torch.int16)[: h.numel()].view(h.shape)
    scale = torch.empty_like(h)
    torch.ge(level, n_dropped - 2**15, out=scale)  # a third of the time of a conversion
    return scale.div_(1 - n_dropped / 2**16)


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
