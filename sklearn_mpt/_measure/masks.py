"""Which sets of features are hidden, in which order, and how many of each size.

A mask is a boolean array of shape (n_features,), True where a feature is hidden.
"""

from itertools import combinations, permutations
from math import comb, factorial

import numpy as np

MAX_ENUMERATED = 1000  # masks of one size
MAX_ENUMERATED_ORDERS = 24
ROWS_TOGETHER = 2**16  # that keys are drawn for
RUNS = 4  # scored given each mask of a fixed size


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


def training_sets(mask_rate, n_masks, n_features, rng):
    """Draw sets of features, the weighted sum of whose bounds is the objective.

    With a uniform rate, the scores of all sizes along an order of the features are
    gains L(R and j) - L(R). At given points they add up to L(all), less a constant,
    whatever the order, and L(all) is the objective. What a mask of any size leaves, R,
    trains the posteriors alone. A fixed size m reveals single features or, if there are
    many, a run with scores of the sizes m - h..m + h, for a smaller variance.

    Returns bool (n_sets, n_masks, d), and the weight of each set.
    """
    keys = rng.random((n_masks, n_features), dtype=np.float32)
    if mask_rate != "uniform":
        # the order of random keys is a random order, too
        return _fixed_sets(fixed_size(mask_rate, n_features), keys.argsort(1))
    n_observed = (rng.permutation(n_masks) + rng.random()) * n_features // n_masks
    limits = np.sort(keys)[np.arange(n_masks), n_observed.astype(int)]
    before = keys < limits[:, None]
    return np.stack([before, np.ones_like(before)]), [0, 1]


def _fixed_sets(size, ranks):
    n_features = ranks.shape[1]
    half = min(n_features // 16, size - 1, n_features - size)
    n_observed, length = n_features - size - half, 2 * half + 1
    n_runs = min(RUNS, (size + half) // length)
    run_of = (ranks - n_observed) // length
    revealed = run_of == np.array([-n_features, *range(n_runs)])[:, None, None]
    weight = n_features / length
    return (ranks < n_observed) | revealed, [-weight] + [weight / n_runs] * n_runs


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


def count_masks(size, n_features):
    """Return the number of masks of one size, or a very large one if there are more."""
    return min(comb(n_features, int(size)), 2**53)


def draw_distinct(size, n_masks, n_features, rng):
    """Draw masks of one size without repetition, all of them if there are no more.

    Fewer masks from the same generator are the first of these.
    """
    if comb(n_features, size) <= MAX_ENUMERATED:
        return rng.permutation(enumerate_masks(n_features, size))[:n_masks]
    masks = np.empty((0, n_features), dtype=bool)
    while len(masks) < n_masks:
        drawn = draw_masks([size] * (n_masks - len(masks)), n_features, rng)
        masks = np.concatenate([masks, drawn])
        _, first = np.unique(np.packbits(masks, axis=1), axis=0, return_index=True)
        masks = masks[np.sort(first)]
    return masks


def draw_distinct_per_row(size, n_masks, n_rows, n_features, rng):
    """Yield masks of shape (n_rows, n_features), each row's without repetition."""
    masks = enumerate_masks(n_features, size)
    chosen = rng.random((n_rows, len(masks))).argsort(axis=1)
    for index in chosen.T[:n_masks]:
        yield masks[index]


def draw_partitions(size, n_masks, n_rows, n_features, rng):
    """Yield masks of shape (n_rows, n_features) that together hide each feature alike.

    Sets of size `size`, or where most is hidden the visible sets, are cut from one
    random order in each row until it is used up, and then from another.
    """
    n_cut = min(size, n_features - size)
    n_sets = n_features // n_cut
    for i in range(n_masks):
        if i % n_sets == 0:
            keys = rng.random((n_rows, n_features))
            place = keys.argsort(axis=1).argsort(axis=1)
        cut = place // n_cut == i % n_sets
        yield cut if n_cut == size else ~cut


def count_orders(n_features):
    """Return the number of orders of the features, infinity unless they are few."""
    n_all = factorial(min(n_features, 20))
    return n_all if n_all <= MAX_ENUMERATED_ORDERS else np.inf


def draw_order(index, seed, n_rows, n_features):
    """Draw one of several orders of the features for each row; (n_rows, n_features).

    Where few orders exist, those of different index differ in every row.
    """
    features = np.arange(n_features)
    if count_orders(n_features) == np.inf:
        rng = child_generator(seed, index)
        orders = np.tile(features, (n_rows, 1))
        return rng.permuted(orders, axis=1, out=orders)
    orders = np.array(list(permutations(features)))
    rng, starts = np.random.default_rng(seed), range(0, n_rows, ROWS_TOGETHER)
    counts = (min(ROWS_TOGETHER, n_rows - start) for start in starts)
    keys = (rng.random((count, len(orders))) for count in counts)
    return np.concatenate([orders[key.argsort(axis=1)[:, index]] for key in keys])


def child_generator(seed, *key):
    """Return the generator of a key, the same whatever else was drawn."""
    spawn_key = (*seed.spawn_key, *key)
    return np.random.default_rng(
        np.random.SeedSequence(seed.entropy, spawn_key=spawn_key)
    )


def neighbouring_std(pilot, bandwidth=3.0):
    """Standard deviation over masks at each size, from sizes of the other parity."""
    is_known = np.array([len(s) > 1 and np.isfinite(s).all() for s in pilot])
    variance = np.zeros(len(pilot))
    variance[is_known] = [pilot[i].var(ddof=1) for i in np.flatnonzero(is_known)]
    index = np.arange(len(pilot))
    distance = np.abs(index[:, None] - index)
    kernel = np.exp(-distance / bandwidth) * (distance % 2) * is_known
    total = np.maximum(kernel.sum(axis=1), np.finfo(float).tiny)
    return np.sqrt(kernel @ variance / total)


def share_out(total, weights):
    """Split an integer total in proportion to the weights, by largest remainders."""
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    ideal = total * weights / weights.sum()
    shares = np.floor(ideal).astype(int)
    order = np.argsort(shares - ideal, kind="stable")
    shares[order[: total - shares.sum()]] += 1
    return shares


def all_masks(mask_rate, n_features):
    """Return all masks of the sizes that a rate stands for, and their probabilities.

    A uniform rate draws sizes from 0 on, as `training_sizes` does if asked.
    """
    sizes = range(n_features + 1)
    if mask_rate != "uniform":
        sizes = [fixed_size(mask_rate, n_features)]
    masks = [enumerate_masks(n_features, size) for size in sizes]
    weight = [np.full(len(part), 1 / (len(masks) * len(part))) for part in masks]
    return np.concatenate(masks), np.concatenate(weight)
