"""Patterns of observed columns, whose matrices are computed once for all their rows."""

from functools import cached_property

import numpy as np
import torch

from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import MAX_EXACT_INTEGER


def pattern_order(observed):
    """Return an order of rows in which equal rows are neighbours; (n,).

    Rows with few unobserved columns come first. Two patterns with the same key, which
    is most improbable, may be mixed.
    """
    # sums of keys differ between patterns, and are exact
    n_columns = max(1, observed.shape[1])
    largest = MAX_EXACT_INTEGER // n_columns
    keys = np.random.default_rng(0).integers(largest, size=observed.shape[1])
    observed = observed.double()
    order = (observed @ observed.new_tensor(keys.astype(float))).argsort(stable=True)
    count = observed.sum(1)
    return order[count[order].argsort(descending=True, stable=True)]


class Patterns:
    """The patterns of observed columns of some rows."""

    def __init__(self, observed):
        order = pattern_order(observed)
        by_pattern = observed[order]
        starts = observed.new_ones(len(observed))
        starts[1:] = (by_pattern[1:] != by_pattern[:-1]).any(1)
        self.distinct = by_pattern[starts]
        self.pattern_index = torch.empty_like(order)
        self.pattern_index[order] = starts.cumsum(0) - 1

    @cached_property
    def n_hidden(self):
        """Number of unobserved columns of each pattern, (u,)."""
        return (~self.distinct).sum(1)

    @cached_property
    def hidden(self):
        """Unobserved columns of each pattern, (u, h), h the largest number of them.

        Patterns that have fewer are filled up with observed columns.
        """
        largest = int(self.n_hidden.max()) if len(self.n_hidden) else 0
        order = self.distinct.to(torch.uint8).argsort(dim=1, stable=True)
        return order[:, :largest].contiguous()

    @cached_property
    def is_hidden(self):
        """Whether a column of `hidden` is unobserved; bool, (u, h)."""
        index = torch.arange(self.hidden.shape[1], device=self.hidden.device)
        return index < self.n_hidden[:, None]

    @cached_property
    def hidden_of_rows(self):
        """Unobserved columns of each row, (n, h)."""
        return self.hidden[self.pattern_index]

    @cached_property
    def block_indices(self):
        """Indices of the blocks of unobserved columns in flat matrices; (u, h, h)."""
        n_columns = self.distinct.shape[1]
        return self.hidden[:, :, None] * n_columns + self.hidden[:, None]

    def blocks(self, matrices):
        """Return the blocks of matrices (K, g, g) at unobserved columns; (K, u, h, h).

        They are those of the identity where `hidden` has observed columns.
        """
        blocks = matrices.flatten(1)[:, self.block_indices]
        eye = identity(blocks.shape[-1], blocks)
        return torch.where(self.is_in_block, blocks, eye)

    @cached_property
    def is_in_block(self):
        """Whether both columns of an entry of a block are unobserved; (u, h, h)."""
        return self.is_hidden[:, :, None] & self.is_hidden[:, None]

    def sum_of_blocks(self, blocks):
        """Add up blocks (K, u, h, h) to matrices (K, g, g)."""
        n_columns = self.distinct.shape[1]
        total = blocks.new_zeros(len(blocks), n_columns**2)
        indices = self.block_indices.flatten().expand(len(blocks), -1)
        total.scatter_add_(1, indices, blocks.flatten(1))
        return total.unflatten(1, (n_columns, n_columns))

    def at_hidden(self, vectors):
        """Return the entries of vectors (K, n, g) at unobserved columns, (K, n, h)."""
        columns = self.hidden_of_rows.expand(len(vectors), -1, -1)
        return vectors.gather(2, columns)

    def with_hidden(self, vectors, values):
        """Add values (K, n, h) at unobserved columns to vectors (K, n, g)."""
        columns = self.hidden_of_rows.expand(len(vectors), -1, -1)
        return vectors.scatter_add(2, columns, values)

    def totals(self, values):
        """Add up the values (K, n, ...) of the rows of each pattern, (K, u, ...)."""
        total = values.new_zeros(len(values), len(self.distinct), *values.shape[2:])
        return total.index_add(1, self.pattern_index, values)

    def multiply(self, matrices, vectors):
        """Multiply vectors (K, n, b) by matrices (K, u, a, b) of their patterns."""
        if len(self.distinct) == 1:
            return vectors @ matrices[:, 0].mT
        return (matrices[:, self.pattern_index] @ vectors[..., None])[..., 0]
