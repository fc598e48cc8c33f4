"""What is minimised in training: losses of minibatches of rows, by masks or without."""

from abc import ABC, abstractmethod

import numpy as np
import torch

from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._measure.masks import draw_masks, training_sizes


class Objective(ABC):
    """What is minimised in training."""

    @abstractmethod
    def batches(self, rng):
        """Yield the minibatches of one epoch."""

    @abstractmethod
    def losses(self, module, batch):
        """Return losses that are to be averaged."""

    def validate(self, module):
        """Return the losses of held-out rows; None if none are held out."""
        return None


class MaskDraw:
    """Draws the masks of one gradient step as a tensor of shape (n_masks, d)."""

    def __init__(self, mask_rate, n_masks, n_features, device, smallest=1):
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.n_features = n_features
        self.device = device
        self.smallest = smallest

    def __call__(self, rng):
        sizes = training_sizes(
            self.mask_rate, self.n_masks, self.n_features, rng, self.smallest
        )
        return torch.tensor(draw_masks(sizes, self.n_features, rng), device=self.device)


class MaskedRows(Objective):
    """Minus D times the masked score, over minibatches of rows.

    Each row of a minibatch gets one of the masks of the step, in turn.
    """

    def __init__(self, X, draw_step_masks, batch_size):
        self.X = X
        self.draw_step_masks = draw_step_masks
        self.batch_size = batch_size

    def batches(self, rng):
        for rows in shuffled_batches(len(self.X), self.batch_size, rng):
            masks = self.draw_step_masks(rng)
            yield self.X[rows], masks[torch.arange(len(rows)) % len(masks)]

    def losses(self, module, batch):
        X, mask = batch
        return -X.shape[1] * masked_score(module.conditional_log_prob(X, mask), mask)


class LMLRows(Objective):
    """Minus the log marginal likelihood or a bound on it, over minibatches of rows.

    log_prob : callable
        From the module and rows (n, d) to values (n,).
    """

    def __init__(self, X, batch_size, log_prob):
        self.X = X
        self.batch_size = batch_size
        self.log_prob = log_prob

    def batches(self, rng):
        for rows in shuffled_batches(len(self.X), self.batch_size, rng):
            yield self.X[rows]

    def losses(self, module, batch):
        return -self.log_prob(module, batch)


def shuffled_batches(n_rows, batch_size, rng):
    n_batches = int(np.ceil(n_rows / batch_size))
    return np.array_split(rng.permutation(n_rows), n_batches)
