"""Defaults of the net and of its training, by numbers of rows and columns."""

from typing import NamedTuple

import numpy as np


class NetRecipe(NamedTuple):
    """Sizes of a net, its dropout, and the steps of its training."""

    widths: tuple[int, ...]
    dropout: float
    batch_size: int
    learning_rate: float


def recipe_for(
    n_samples,
    n_features,
    *,
    width_limits=(64, 512),
    width_step=16,
    dropout_limits=(0.02, 0.5),
    batch_limits=(64, 256),
    learning_rate=0.01,
):
    """Return the recipe for given numbers of rows and columns.

    The width grows with the fourth root of rows times columns, in steps of `width_step`
    units between `width_limits`; more units do not improve the net. Dropout grows with
    the root of the ratio of columns to rows, because a net overfits few long rows: it
    is 0.5 with as many rows as columns, and 0.1 with 25 times as many. A batch has two
    thirds of the rows, between `batch_limits`: how far a net comes depends on the
    number of rows that it has seen, and large batches take less time for each. What
    other batches and step sizes do is in benchmarks/RESULTS.rst, "Masked autoencoder:
    batches".
    """
    size = 5 * (n_samples / 1000) ** 0.25 * (n_features / 16) ** 0.25
    width = int(np.clip(width_step * round(size), *width_limits))
    dropout = 0.5 * np.sqrt(n_features / n_samples)
    return NetRecipe(
        widths=(width, width),
        dropout=float(np.clip(dropout, *dropout_limits)),
        batch_size=int(np.clip(2 * n_samples // 3, *batch_limits)),
        learning_rate=learning_rate,
    )
