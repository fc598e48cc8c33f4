"""What training takes from the numbers of rows and columns, unless it is told."""

from typing import NamedTuple

import numpy as np

WIDTH_STEP, LEAST_WIDTH, LARGEST_WIDTH = 16, 64, 512
LEAST_DROPOUT, LARGEST_DROPOUT = 0.02, 0.5
LEAST_BATCH, LARGEST_BATCH = 32, 256


class Recipe(NamedTuple):
    """Sizes of a net, and how it is trained.

    widths : of the residual blocks.
    dropout : share of hidden values left out in a step.
    batch_size : rows of a step.
    """

    widths: tuple[int, ...]
    dropout: float
    batch_size: int


def recipe_for(n_samples, n_features, n_numbers=0):
    """Return the recipe for so many rows and columns, of which some are numbers.

    The net grows with the fourth root of both, from 64 to 512 units: more of them learn
    no more from so many rows. What is left out grows with the columns for each row, as
    few long rows are learned by heart: half of the values where rows are ten times as
    many as columns, a tenth where they are ninety times as many. Numbers need a third
    of that, as their conditionals start from a linear model.
    """
    size = 5 * (n_samples / 1000) ** 0.25 * (n_features / 16) ** 0.25
    width = int(np.clip(WIDTH_STEP * round(size), LEAST_WIDTH, LARGEST_WIDTH))
    relief = 1 + 2 * n_numbers / n_features
    dropout = n_features / (n_features + relief * n_samples / 10)
    return Recipe(
        widths=(width, width),
        dropout=float(np.clip(dropout, LEAST_DROPOUT, LARGEST_DROPOUT)),
        batch_size=int(np.clip(n_samples // 64, LEAST_BATCH, LARGEST_BATCH)),
    )
