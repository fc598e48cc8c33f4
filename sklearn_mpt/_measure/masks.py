"""Draw, count and enumerate masks and orders of features.

A mask is a boolean array of shape (n_features,), True where a feature is hidden.

Masks of training are drawn in `_optim.masks`, those of texts in `_text.masks`.
"""

from functools import cache
from itertools import combinations, permutations
from math import comb, factorial
from typing import Any, NamedTuple

import numpy as np

from sklearn_mpt._tables.frames import aligned

MAX_ENUMERATED = 1000  # masks of one size, or orders; if there are more, some are drawn


def mask_size(rate, n_features):
    """Return the number of hidden features at a mask rate."""
    return max(1, int(np.floor(rate * n_features + 0.5)))


def fixed_size(mask_rate, n_features):
    """Return the size of a fixed `mask_rate`: an int is a size, a float a rate."""
    if isinstance(mask_rate, float | np.floating):
        return mask_size(mask_rate, n_features)
    return int(mask_rate)


def hide_smallest(keys, sizes):
    """Return masks that hide so many features of each row: those with least keys."""
    return keys.argsort(axis=1).argsort(axis=1) < np.reshape(sizes, (-1, 1))


def draw_masks(sizes, n_features, rng):
    """Draw one uniform mask of each size, independently; (len(sizes), n_features)."""
    return hide_smallest(rng.random((len(sizes), n_features)), sizes)


class MaskBlocks(NamedTuple):
    """Features that are hidden together.

    numbers : number 0, 1, ... of the block of each feature, array or tensor of shape
    (n_features,). is_span : whether hidden features are consecutive, in place of
    blocks.
    """

    numbers: Any
    is_span: bool


def read_blocks(mask_blocks, names):
    """Return the parameter `mask_blocks` as `MaskBlocks`, or None; check it."""
    if mask_blocks is None:
        return None
    n_features = len(names)
    if isinstance(mask_blocks, str) and mask_blocks == "span":
        return MaskBlocks(np.arange(n_features), True)
    labels = np.asarray(aligned(mask_blocks, [names], "mask_blocks"))
    if labels.shape != (n_features,):
        got = f"shape {labels.shape}" if labels.ndim else repr(mask_blocks)
        raise ValueError(
            "mask_blocks must be None, 'span', or an array of a label for each of the "
            f"{n_features} features, got {got}."
        )
    return MaskBlocks(np.unique(labels, return_inverse=True)[1], False)


def block_keys(rand, n, blocks):
    """Draw keys (n, n_features); a mask hides the features with the smallest keys.

    Blocks come in random order, and so do the features of each block. Keys of a span
    increase from a random feature to the last one, and on from the first.

    rand : callable, from numbers of rows and columns to an array or tensor in [0, 1).
    """
    n_features, n_blocks = len(blocks.numbers), int(blocks.numbers.max()) + 1
    if blocks.is_span:
        return (blocks.numbers - rand(n, 1) * n_features // 1) % n_features
    drawn = rand(n, n_blocks + n_features)
    rank = drawn[:, :n_blocks].argsort(1).argsort(1)
    return rank[:, blocks.numbers] + drawn[:, n_blocks:]


def enumerate_masks(n_features, size):
    """Return all masks of one size, of shape (comb(n_features, size), n_features)."""
    hidden = np.array(list(combinations(range(n_features), size)), dtype=int)
    masks = np.zeros((len(hidden), n_features), dtype=bool)
    np.put_along_axis(masks, hidden, True, axis=1)
    return masks


def draw_distinct(size, n_masks, n_features, rng):
    """Draw distinct masks of one size; all masks, if there are no more than `n_masks`.

    With a smaller `n_masks` and the same generator, the first of these are drawn.
    """
    if comb(n_features, size) <= MAX_ENUMERATED:
        return rng.permutation(enumerate_masks(n_features, size))[:n_masks]
    masks = np.empty((0, n_features), dtype=bool)
    while len(masks) < n_masks:
        drawn = draw_masks([size] * (n_masks - len(masks)), n_features, rng)
        masks = np.concatenate([masks, drawn])
        bits = np.packbits(masks, axis=1)
        first = {row.tobytes(): i for i, row in reversed([*enumerate(bits)])}
        masks = masks[sorted(first.values())]
    return masks


def draw_distinct_per_row(size, n_masks, n_rows, n_features, rng):
    """Yield masks of shape (n_rows, n_features); the masks of a row are distinct."""
    masks = enumerate_masks(n_features, size)
    chosen = rng.random((n_rows, len(masks))).argsort(axis=1)
    for index in chosen.T[:n_masks]:
        yield masks[index]


def draw_partitions(size, n_masks, n_rows, n_features, rng):
    """Yield masks (n_rows, n_features) that hide each feature about equally often."""
    n_cut = min(size, n_features - size)
    n_sets = n_features // n_cut
    for i in range(n_masks):
        if i % n_sets == 0:
            keys = rng.random((n_rows, n_features))
            rank = keys.argsort(axis=1).argsort(axis=1)
        cut = rank // n_cut == i % n_sets
        yield cut if n_cut == size else ~cut


def count_orders(n_features):
    """Return the number of orders of the features; infinity if it exceeds 720."""
    n_orders = factorial(n_features)
    return n_orders if n_orders <= MAX_ENUMERATED else np.inf


@cache
def all_orders(n_features):
    """Return all orders of the features, as a constant array (n_orders, n_features)."""
    orders = np.array(list(permutations(range(n_features))))
    orders.flags.writeable = False
    return orders


def draw_order(index, seed, per_row, n_rows, n_features):
    """Draw the order with this index for each row, or for all; (1, n or 1, d).

    If at most 720 orders exist, orders of different index differ in every row. They are
    then those of one list, in which each row has its own names of the features.
    """
    names = np.tile(np.arange(n_features), (n_rows if per_row else 1, 1))
    if count_orders(n_features) == np.inf:
        return child_generator(seed, index).permuted(names, axis=1)[None]
    rng = np.random.default_rng(seed)
    order = rng.permutation(all_orders(n_features))[index]
    return rng.permuted(names, axis=1)[None, :, order]


def child_generator(seed, *key):
    """Return a random generator that depends on the seed and the key only."""
    spawn_key = (*seed.spawn_key, *key)
    return np.random.default_rng(
        np.random.SeedSequence(seed.entropy, spawn_key=spawn_key)
    )


def neighbouring_std(pilot):
    """Estimate the standard deviation over masks at each size.

    Neighbouring sizes are smoothed; the estimate of an even size uses odd sizes only,
    and the other way round.
    """
    is_known = np.array([len(s) > 1 and np.isfinite(s).all() for s in pilot])
    variance = np.zeros(len(pilot))
    variance[is_known] = [pilot[i].var(ddof=1) for i in np.flatnonzero(is_known)]
    index = np.arange(len(pilot))
    distance = np.abs(index[:, None] - index)
    kernel = np.exp(-distance / 3) * (distance % 2) * is_known
    total = np.maximum(kernel.sum(axis=1), np.finfo(float).tiny)
    return np.sqrt(kernel @ variance / total)


def split_total(total, weights):
    """Split an integer total in proportion to the weights, by largest remainders."""
    weights = weights if weights.sum() > 0 else np.ones(len(weights))
    ideal = total * weights / weights.sum()
    parts = np.floor(ideal).astype(int)
    order = np.argsort(parts - ideal, kind="stable")
    parts[order[: total - parts.sum()]] += 1
    return parts
