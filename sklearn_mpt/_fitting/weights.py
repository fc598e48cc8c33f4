"""Sample weights of rows, of mean 1, and those of equal rows together."""

from typing import NamedTuple

import numpy as np
import torch

# Equal rows are merged unless more than this fraction of a sample of rows is distinct:
# merging then saves less than a fifth of a step. The sample is sorted in a millisecond.
N_SAMPLED, MAX_DISTINCT_FRACTION = 4096, 0.8


def distinct_rows(X, weight=None):
    """Return the indices of distinct rows, and the weights of each and its equals."""
    # Of many rows that mostly differ all are returned. Missing entries are equal.
    weight = np.ones(len(X)) if weight is None else weight
    X = np.ascontiguousarray(X)
    keys = X.view(np.dtype((np.void, X.itemsize * X.shape[1])))[:, 0]
    if len(keys) > N_SAMPLED:
        sample = keys[:: len(keys) // N_SAMPLED]
        if len(np.unique(sample)) > MAX_DISTINCT_FRACTION * len(sample):
            return np.arange(len(keys)), weight
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    # in the order in which they come, which does not depend on units
    order = first.argsort()
    return first[order], np.bincount(inverse.ravel(), weight, len(first))[order]


def relative_weights(weight, n_rows):
    """Return sample weights that add up to `n_rows`, (n,); None is 1 for each."""
    if weight is None:
        return np.ones(n_rows)
    relative = weight / weight.max()  # exactly 1 where all are equal
    return relative / (relative.sum() / n_rows)


class SampleWeights(NamedTuple):
    """The sample weights of rows, and their sum."""

    values: torch.Tensor  # shape: (n,), of mean 1 before equal rows are merged
    total: float

    @classmethod
    def from_array(cls, weight, X, n_rows=None):
        """Return the weights of the rows X; None is 1 for each."""
        # n_rows : number of rows before equal ones were merged; None is that of X.
        total = float(len(X) if weight is None else weight.sum())
        relative = torch.from_numpy(relative_weights(weight, n_rows or len(X)))
        return cls(relative.to(X.device), total)
