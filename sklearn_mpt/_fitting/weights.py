"""Sample weights of rows, of mean 1."""

from typing import NamedTuple

import numpy as np
import torch


def relative_weights(weight, n_rows):
    """Return sample weights over their mean, an array (n,); None is 1 for each."""
    if weight is None:
        return np.ones(n_rows)
    relative = weight / weight.max()  # exactly 1 where all are equal
    return relative / relative.mean()


class SampleWeights(NamedTuple):
    """The sample weights of rows, and their sum."""

    values: torch.Tensor  # shape: (n,), of mean 1
    total: float

    @classmethod
    def from_array(cls, weight, X):
        """Return the weights of the rows X; None is 1 for each."""
        total = float(len(X) if weight is None else weight.sum())
        relative = torch.from_numpy(relative_weights(weight, len(X)))
        return cls(relative.to(X.device), total)
