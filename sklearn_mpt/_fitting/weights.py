"""Sample weights of rows, as tensors."""

from typing import NamedTuple

import numpy as np
import torch


class SampleWeights(NamedTuple):
    """The sample weights of rows, and their sum."""

    values: torch.Tensor  # shape: (n,), of mean 1
    total: float

    @classmethod
    def from_array(cls, weight, X):
        """Return the weights of the rows X; None is 1 for each."""
        weight = np.ones(len(X)) if weight is None else weight
        total = float(weight.sum())
        row_weight = torch.from_numpy(weight * (len(X) / total)).to(X.device)
        return cls(row_weight, total)
