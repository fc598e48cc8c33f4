"""Masks of training, by the parameter `mask_rate` of an estimator."""
# With a uniform rate all sizes are equally likely, and spread evenly over the masks of
# a step. `shared_masks` are few masks, each for many rows, where the cost of a step
# grows with their number; `RowMasks` one for each row; `training_sets` observed sets
# whose bounds, or differences of bounds, are trained.

import math

import numpy as np
import torch

from sklearn_mpt._measure.masks import (
    block_keys,
    draw_masks,
    fixed_size,
)

# Masks in each step, if the parameter `n_masks` is "auto".
AUTO_MASKS = 32


def number_of_masks(n_masks):
    """Return the number of masks in each step, given the parameter of an estimator."""
    return AUTO_MASKS if n_masks == "auto" else n_masks


def shared_masks(mask_rate, n_masks, n_features, rng, smallest=1, is_systematic=False):
    """Draw the masks of one step, each for many rows; (n_masks, n_features)."""
    sizes = draw_sizes(mask_rate, n_masks, n_features, rng, smallest, is_systematic)
    return draw_masks(sizes, n_features, rng)


def draw_sizes(mask_rate, n_masks, n_features, rng, smallest=1, is_systematic=False):
    """Draw the mask sizes of one step of training, of shape (n_masks,)."""
    # With a uniform rate, one size is drawn from each of `n_masks` equal slices of
    # smallest..n_features, in random order, so that any part of them is unbiased too.
    # is_systematic : all slices share one random position, and sizes increase; only all
    # sizes together are unbiased.
    if mask_rate != "uniform":
        return np.full(n_masks, fixed_size(mask_rate, n_features))
    position = rng.random() if is_systematic else rng.random(n_masks)
    quantiles = (np.arange(n_masks) + position) / n_masks
    if not is_systematic:
        quantiles = rng.permutation(quantiles)
    n_sizes = n_features + 1 - smallest
    return smallest + np.floor(quantiles * n_sizes).astype(int)


class RowMasks:
    """Draw a mask for each row, with the sizes that `mask_rate` defines."""

    # For a uniform rate, sizes are drawn from 1 to the number of present entries of
    # each row, and only these are hidden: missing entries contribute 0. blocks :
    # features that are hidden together.

    def __init__(self, mask_rate, n_features, blocks=None):
        self.size, self.blocks = None, blocks
        if mask_rate != "uniform":
            self.size = fixed_size(mask_rate, n_features)

    def draw(self, present, generator, n_batches=1):
        """Draw a mask for each row; return masks and weights of hidden entries."""
        # present : bool (n, d). n_batches : each of as many neighbouring rows, over
        # which sizes are stratified. With a uniform rate, the mean over masks of minus
        # the weighted sum of hidden log-probabilities is minus the log-density.
        n, d = present.shape
        where = {
            "generator": generator,
            "device": present.device,
            "dtype": torch.float32,
        }
        keys = self._keys(n, d, where)
        if self.size is not None:
            highest = keys.kthvalue(self.size, 1, keepdim=True).values
            weight = torch.full((n,), d / self.size, device=present.device)
            return keys <= highest, weight.to(torch.float32)
        keys = torch.where(present, keys, math.inf)
        count = present.sum(1).clamp(min=1)
        n_in_batch = n // n_batches
        positions = [
            torch.randperm(n_in_batch, generator=generator, device=present.device)
            for _ in range(n_batches)
        ]
        level = (torch.cat(positions) + torch.rand(n, **where)) / n_in_batch
        size = torch.minimum((level * count).long() + 1, count)
        highest = _sorted(keys).gather(1, size[:, None] - 1)
        return keys <= highest, count.to(torch.float32) / size

    def _keys(self, n, d, where):
        """Draw keys (n, d); the smallest ones of each row are hidden."""
        if self.blocks is None:
            return torch.rand(n, d, **where)
        # single precision has ties between the keys of a block
        where = where | {"dtype": torch.float64}
        numbers = torch.as_tensor(self.blocks.numbers).to(where["device"])
        blocks = self.blocks._replace(numbers=numbers)
        return block_keys(lambda *shape: torch.rand(shape, **where), n, blocks)


def _sorted(keys):
    """Sort rows; NumPy is ten times as fast as torch on the CPU."""
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=1))
    return keys.sort(1).values


def training_sets(mask_rate, n_masks, n_features, rng):
    """Draw observed sets, bool (n_sets, n_masks, d), and weights of their bounds."""
    # The score of feature j given R is the difference L(R and j) - L(R) of two bounds.
    # With a uniform rate they add up to L(all), up to a constant, along any order; a
    # random set with weight 0 trains the posteriors on rows with gaps. With a fixed
    # size m, the objective is the score of features revealed after R: of a run of them
    # if there are many, with scores of the sizes m - h..m + h, which lowers the
    # variance.
    keys = rng.random((n_masks, n_features), dtype=np.float32)
    if mask_rate != "uniform":
        # argsort of random keys is a random permutation, as good as ranks
        return _fixed_sets(fixed_size(mask_rate, n_features), keys.argsort(1))
    n_observed = (rng.permutation(n_masks) + rng.random()) * n_features // n_masks
    limits = np.sort(keys)[np.arange(n_masks), n_observed.astype(int)]
    before = keys < limits[:, None]
    return np.stack([before, np.ones_like(before)]), [0, 1]


def _fixed_sets(size, ranks, max_runs=4):
    n_features = ranks.shape[1]
    half = min(n_features // 16, size - 1, n_features - size)
    n_observed, length = n_features - size - half, 2 * half + 1
    n_runs = min(max_runs, (size + half) // length)
    run_of = (ranks - n_observed) // length
    revealed = run_of == np.array([-n_features, *range(n_runs)])[:, None, None]
    weight = n_features / length
    return (ranks < n_observed) | revealed, [-weight] + [weight / n_runs] * n_runs
