"""Sizes of memory, slices that fit it, and floors, that all subpackages share."""

import numpy as np

FLOAT_BYTES = np.dtype(np.float64).itemsize
# A tensor of this size fits the caches beside a few others; passes over larger ones
# wait for memory.
CACHE_ENTRIES = 2**19
# Memory of what is computed for a chunk of rows. Larger chunks are no faster.
CHUNK_BYTES = 2**25
CHUNK_ENTRIES = CHUNK_BYTES // FLOAT_BYTES
# Largest table that is kept from one pass to the next.
KEPT_ENTRIES = 2**24
# Whole numbers up to this are exact in double precision.
MAX_EXACT_INTEGER = int(2 / np.finfo(np.float64).eps)
# Smallest mean Fisher information of a location. It may be 0, as where all amounts are.
MIN_INFORMATION = 1e-12
# Floor of divisors that are zero only where the dividend is.
TINY = 1e-300
# Relative differences of numbers, or of sums over rows, that may be rounding errors.
ROUNDING = 1e-9
# Relative error of numbers that users give, such as weights that add up to 1: they may
# have been printed.
MAX_GIVEN_ERROR = 1e-6
# Least width of a component of numbers, in standard deviations of the column. Narrower
# components would be fitted to single values, and their densities have no bound. With
# it a density is at most 4.9 nats above 1 over the standard deviation.
MIN_WIDTH = 3e-3


def chunk_slices(n_items, item_entries, max_entries):
    """Yield slices of items whose tensors have at most `max_entries` entries."""
    size = max(1, max_entries // item_entries)
    for start in range(0, n_items, size):
        yield slice(start, min(start + size, n_items))
