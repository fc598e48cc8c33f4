"""Default sizes of the net, dropout and batch size, by numbers of rows and columns."""

from typing import NamedTuple

import numpy as np

WIDTH_STEP, LEAST_WIDTH, LARGEST_WIDTH = 16, 64, 512
LEAST_DROPOUT, LARGEST_DROPOUT = 0.02, 0.5
LEAST_BATCH, LARGEST_BATCH = 32, 256


class NetRecipe(NamedTuple):
    """Sizes of a net, its dropout, and the batch size of its training.

    widths : widths of the residual blocks.
    dropout : share of hidden values that are set to 0 in a step.
    batch_size : number of rows in a step.
    """

    widths: tuple[int, ...]
    dropout: float
    batch_size: int


def recipe_for(n_samples, n_features):
    """Return the recipe for given numbers of rows and columns.

    The width grows with the fourth root of rows times columns, from 64 to 512 units;
    more units do not improve the net. Dropout grows with the root of the ratio of
    columns to rows, because a net overfits few long rows: it is 0.5 with as many rows
    as columns, and 0.1 with 25 times as many.
    """
    size = 5 * (n_samples / 1000) ** 0.25 * (n_features / 16) ** 0.25
    width = int(np.clip(WIDTH_STEP * round(size), LEAST_WIDTH, LARGEST_WIDTH))
    dropout = 0.5 * np.sqrt(n_features / n_samples)
    return NetRecipe(
        widths=(width, width),
        dropout=float(np.clip(dropout, LEAST_DROPOUT, LARGEST_DROPOUT)),
        batch_size=int(np.clip(n_samples // 32, LEAST_BATCH, LARGEST_BATCH)),
    )
