"""The rows that nets are trained on, and losses of minibatches of them."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._optim.weights import (
    SampleWeights,
)


class TrainingRows(NamedTuple):
    """Standardised rows, NaN where missing, and their sample weights."""

    X: torch.Tensor
    weight: torch.Tensor  # shape: (n,)

    @classmethod
    def from_arrays(cls, X, weight=None):
        """Return the rows of a tensor, (n, d), with weights (n,); None is 1."""
        return cls(X, SampleWeights.from_array(weight, X).values.to(X.dtype))

    @property
    def relative_weight(self):
        """Weights over their mean."""
        return self.weight / self.weight.mean()

    def take(self, index):
        """Return some of the rows."""
        return TrainingRows(self.X[index], self.weight[index])

    def joined(self, others):
        """Return these rows and others."""
        return TrainingRows(*map(torch.cat, zip(self, others, strict=True)))

    def split(self, n_held_out, seed):
        """Return training rows and validation rows, drawn with this seed."""
        order = np.random.default_rng(seed).permutation(len(self.X))
        parts = order[n_held_out:], order[:n_held_out]
        return [self.take(np.sort(part)) for part in parts]


class MinibatchLoss(ABC):
    """Base of the losses of nets, as `NetSolver` takes them."""

    # min_steps : an epoch passes over few rows several times, to have about so many
    # steps. step_weight : part of a full step that a minibatch is worth.

    def __init__(self, rows, batch_size, min_steps=1):
        self.rows = rows
        self.batch_size, self.min_steps = int(batch_size), min_steps
        self.step_weight = 1.0

    def as_part(self):
        """Take the rows as a part of a stream; return self."""
        # Fewer rows than a minibatch has are worth so much less than a full step: they
        # would otherwise outweigh all that the model has learned.
        self.step_weight = min(1.0, len(self.rows.X) / self.batch_size)
        return self

    def join(self, validation):
        """Train on the rows of a validation loss, too."""
        self.rows = self.rows.joined(validation.rows)

    def count_passes(self, n_batches):
        """Return how often an epoch passes over the rows, in `n_batches` steps each."""
        # It is at most half as often as there are rows, so that very few cost little.
        n_passes = min(round(self.min_steps / n_batches), len(self.rows.X) // 2)
        return max(1, n_passes)

    @abstractmethod
    def batches(self):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return the losses of the rows of a minibatch, times their weights; (n,)."""
