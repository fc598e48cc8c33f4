"""Which sets of features are hidden: sizes, random masks and all masks of a size.

A mask is a boolean array of shape (n_features,), True where a feature is hidden.
"""

from itertools import combinations

import numpy as np


def mask_size(rate, n_features):
    """Return the number of hidden features that a mask rate stands for."""
    return max(1, int(np.floor(rate * n_features + 0.5)))


def training_sizes(mask_rate, n_masks, n_features, rng, smallest=1):
    """Draw the mask sizes of one gradient step, of shape (n_masks,).

    A uniform rate is stratified: one size from each of `n_masks` equal slices of
    smallest..n_features, so that every step sees small and large masks alike. The
    order is random, so that any part of them is unbiased too.
    """
    if mask_rate != "uniform":
        return np.full(n_masks, fixed_size(mask_rate, n_features))
    quantiles = (np.arange(n_masks) + rng.random(n_masks)) / n_masks
    n_sizes = n_features + 1 - smallest
    return smallest + np.floor(rng.permutation(quantiles) * n_sizes).astype(int)


def fixed_size(mask_rate, n_features):
    """Return the size of a fixed `mask_rate`: an int is a size, a float a rate."""
    if isinstance(mask_rate, float | np.floating):
        return mask_size(mask_rate, n_features)
    return int(mask_rate)


def draw_masks(sizes, n_features, rng):
    """Draw one uniform mask of each size, independently; (len(sizes), n_features)."""
    keys = rng.random((len(sizes), n_features))
    ranks = np.argsort(np.argsort(keys, axis=1), axis=1)
    return ranks < np.asarray(sizes)[:, None]


def enumerate_masks(n_features, size):
    """Return all masks of one size, of shape (comb(n_features, size), n_features)."""
    hidden = np.array(list(combinations(range(n_features), size)), dtype=int)
    masks = np.zeros((len(hidden), n_features), dtype=bool)
    np.put_along_axis(masks, hidden, True, axis=1)
    return masks
