"""How many masks of each size to draw, given how many in total.

A rule is a function of ``score(counts, stage)``, which scores counts[i] random masks
of the i-th size, from fresh draws in each of the stages 0 and 1; of the weight of each
size in the sum; and of whether a size has more than one mask to draw.
"""

import numpy as np


def equal(score, weights, is_random, n_masks):
    """Draw as many masks of each size."""
    return score(np.full(len(weights), n_masks), 0)


def neyman(score, weights, is_random, n_masks):
    """Draw masks in proportion to the spread of their scores, after a pilot."""
    n_sizes, n_pilot = len(weights), max(2, n_masks // 3)
    if n_pilot >= n_masks or n_sizes < 2:
        return equal(score, weights, is_random, n_masks)
    pilot = score(np.full(n_sizes, n_pilot), 0)
    spread = weights * _smooth_std(pilot, is_random)
    main = score(_share(n_sizes * (n_masks - n_pilot), spread), 1)
    return [np.concatenate(pair) for pair in zip(pilot, main, strict=True)]


ALLOCATIONS = {"equal": equal, "neyman": neyman}


def _smooth_std(pilot, is_random, bandwidth=3.0):
    """Standard deviation over masks at each size, from the pilots of its neighbours.

    A size's own pilot is left out: it also enters the size's mean, and a number of
    masks that depends on it would bias that mean. Where there is only one mask to
    draw (everything hidden), the deviation is zero.
    """
    variance = np.array([sample.var(ddof=1) for sample in pilot])
    index = np.arange(len(pilot))
    kernel = np.exp(-np.abs(index[:, None] - index) / bandwidth) * is_random
    np.fill_diagonal(kernel, 0.0)
    smooth = kernel @ variance / np.maximum(kernel.sum(axis=1), np.finfo(float).tiny)
    return np.sqrt(smooth) * is_random


def _share(total, weights):
    """Split an integer total in proportion to the weights, by largest remainders."""
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    ideal = total * weights / weights.sum()
    shares = np.floor(ideal).astype(int)
    order = np.argsort(shares - ideal, kind="stable")
    shares[order[: total - shares.sum()]] += 1
    return shares
