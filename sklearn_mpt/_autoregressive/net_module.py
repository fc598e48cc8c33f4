"""A module that codes columns as inputs of a net, and its outputs as conditionals."""

from itertools import pairwise

import numpy as np
import torch

from sklearn_mpt._autoregressive.net_columns import LikelihoodHead, MixtureHead
from sklearn_mpt._autoregressive.net_start import NumberMoments

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
        self._register_columns(columns_of)
        self.n_outputs = self._ends[-1]
        n_read = sum(
            head.n_inputs * len(columns)
            for head, columns in zip(self.heads, columns_of, strict=True)
        )
        self.n_inputs = n_read + self.n_features
        self._register_units(input_units or (np.zeros(n_read), np.ones(n_read)))
        self.net: torch.nn.Module = torch.nn.Identity()
        # fraction of the hidden entries of each column, in the last check in training,
        # that have conditionals of the least width
        self.at_floor = np.zeros(self.n_features)

    def _register_columns(self, columns_of):
        """Store where the outputs of heads end, and those of each column begin."""
        head_of, index_of, start_of = np.empty((3, self.n_features), dtype=np.int64)
        self._ends = [0]
        for i, (head, columns) in enumerate(zip(self.heads, columns_of, strict=True)):
            self.register_buffer(f"columns_{i}", torch.from_numpy(columns))
            head_of[columns], index_of[columns] = i, np.arange(len(columns))
            start_of[columns] = self._ends[-1] + head.width * index_of[columns]
            self._ends.append(self._ends[-1] + head.width * len(columns))
        for name, array in (
            ("back", np.concatenate(columns_of).argsort()),
            ("head_of", head_of),
            ("index_of", index_of),
            ("start_of", start_of),
        ):
            self.register_buffer(name, torch.from_numpy(array))

    def _register_units(self, input_units):
        for name, array in zip(("shift", "scale"), input_units, strict=True):
            tensor = torch.tensor(array, dtype=torch.float64, device="cpu")
            self.register_buffer(f"input_{name}", tensor)

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
        for head, columns, _ in self.groups():
            if head.uses_moments:
                return self.linear(
                    self._select(X, columns), self._select(visible, columns)
                )
        return None

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
        """Return the conditionals of all columns given the visible entries."""
        return self.conditionals(*self.read(X, visible))

    def conditionals(self, inputs, moments, generator=None):
        """Return the conditionals given what `read` returns."""
        return ConditionalDistributions(self, self.net(inputs, generator), moments)

    def entries(self, X, visible, column):
        """Return the conditionals of one column of each row, given visible entries."""
        return EntryConditionals(self, *self.read(X, visible), column)

    def last_hidden(self, X, visible):
        """Return the values of the last hidden layer; (n, width)."""
        inputs, _ = self.read(X, visible)
        return self.net.last_hidden(inputs)


class ConditionalDistributions:
    """The conditional distributions of all columns, for a batch of rows."""

    def __init__(self, module, outputs, moments):
        self.module, self.outputs, self.moments = module, outputs, moments

    def _map_heads(self, ask):
        parts = [
            ask(head, columns, self.outputs[:, part])
            for head, columns, part in self.module.groups()
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, 1)[:, self.module.back]

    def log_prob(self, X):
        """Return the log-probability of each entry of finite rows; (n, d)."""
        select = self.module._select
        return self._map_heads(
            lambda head, columns, parameters: head.log_prob(
                select(X, columns), parameters, self.moments
            )
        )

    def expect(self):
        """Return the expected value or most probable category of each; (n, d)."""
        return self._map_heads(
            lambda head, columns, parameters: head.expect(parameters, self.moments)
        )

    def draw(self, uniform):
        """Draw each entry, from uniform noise of shape (n, d, 2); (n, d)."""
        select = self.module._select
        return self._map_heads(
            lambda head, columns, parameters: head.draw(
                parameters, self.moments, select(uniform, columns)
            )
        )

    def is_at_floor(self, X):
        """Return whether conditionals of numbers have the least width; (n, d)."""
        select = self.module._select
        return self._map_heads(
            lambda head, columns, parameters: head.is_at_floor(
                select(X, columns), parameters, self.moments
            )
        )


class EntryConditionals:
    """The conditional distributions of one column of each row of a batch."""

    def __init__(self, module, inputs, moments, column):
        self.module, self.inputs, self.column = module, inputs, column
        self.moments = moments

    def _map_heads(self, ask):
        """Return what `ask` returns for the rows of each head; (n,)."""
        module, result = self.module, self.inputs.new_empty(len(self.inputs))
        order = self.column.argsort(stable=True)
        head_of = module.head_of[self.column[order]]
        for i, head in enumerate(module.heads):
            index = order[head_of == i]
            if not len(index):
                continue
            start = module.start_of[self.column[index]]
            parameters = module.net.outputs_from(self.inputs[index], start, head.width)
            moments = None
            if head.uses_moments:
                at = module.index_of[self.column[index], None]
                moments = [part[index].gather(1, at) for part in self.moments]
            result[index] = ask(index, head.single, parameters, moments)[:, 0]
        return result

    def log_prob(self, X):
        """Return the log-probability of the entries of finite rows; (n,)."""
        return self._map_heads(
            lambda index, head, *args: head.log_prob(
                X[index, self.column[index], None], *args
            )
        )

    def draw(self, uniform):
        """Draw the entries from uniform noise of shape (n, d, 2); (n,)."""
        return self._map_heads(
            lambda index, head, *args: head.draw(
                *args, uniform[index, self.column[index], None]
            )
        )
