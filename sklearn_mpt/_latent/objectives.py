"""What is minimised in training: losses of minibatches of rows, by masks or without."""

import numpy as np
import torch

from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._measure.masks import draw_masks, training_sizes


class LatentVariableModel(torch.nn.Module):
    """What the training loop and its objectives ask of a model."""

    def conditional_log_prob(self, X, mask):
        """Return log p(x_j | x_R) at hidden and present entries, 0.0 elsewhere."""
        raise NotImplementedError

    def fold(self):
        """Absorb a gradient step, where the step is taken in local coordinates."""


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


class MaskedRows:
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

    def losses(self, model, batch):
        X, mask = batch
        return -X.shape[1] * masked_score(model.conditional_log_prob(X, mask), mask)


class LeaveOneOutRows(MaskedRows):
    r"""Minus an unbiased estimate of the log marginal likelihood, by uniform masks.

    Every feature is a target, given the others that are seen: with sets R of uniform
    size in 0..D,

    .. math:: \log p(x) = E_R \sum_{j=1}^D \log p(x_j \mid x_{R \setminus j}),

    since R without j is a set of uniform size among the D - 1 others. It has the
    expectation of the masked score and a far smaller variance: no small set of targets
    stands for all. Masks are thus drawn with sizes from 0.
    """

    def losses(self, model, batch):
        return -model.leave_one_out_log_prob(*batch).sum(1)


class LikelihoodRows:
    """Minus the log marginal likelihood or a bound on it, over minibatches of rows.

    log_prob : callable
        From the model and rows (n, d) to values (n,).
    """

    def __init__(self, X, batch_size, log_prob):
        self.X = X
        self.batch_size = batch_size
        self.log_prob = log_prob

    def batches(self, rng):
        for rows in shuffled_batches(len(self.X), self.batch_size, rng):
            yield self.X[rows]

    def losses(self, model, batch):
        return -self.log_prob(model, batch)


def shuffled_batches(n_rows, batch_size, rng):
    n_batches = int(np.ceil(n_rows / batch_size))
    return np.array_split(rng.permutation(n_rows), n_batches)
