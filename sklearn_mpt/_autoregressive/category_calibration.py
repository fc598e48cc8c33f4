r"""Probabilities of categories given a forest, fitted to rows left out of trees.

The mean of the probabilities of trees is too close to even where columns say much, as
trees err in different rows, and too far from the frequencies of all rows where they say
little. So probabilities are a mixture of several shapes: powers of the mean over trees,
divided by their sum, and the frequencies of all rows. The weights maximise the
log-probability of rows that the trees have not seen, as in `calibration`, and are
linear in the fraction of visible columns.
"""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._autoregressive.calibration import end_weights
from sklearn_mpt._fitting.mixture_weights import stacking_weights

# Exponents, from the root of 1/2 to 2. What the shapes gain, and how little others
# change, is in benchmarks/RESULTS.rst, "Probabilities of categories" and "Numbers of
# the calibration".
POWERS = 2.0 ** (np.arange(-1, 3) / 2)


class HeldOutCategories(NamedTuple):
    """Rows, and what trees that have not seen them predict.

    code : (n,). prob : means over trees, (n, n_categories). visible : fraction of
    visible columns, (n,). weight : (n,).
    """

    code: np.ndarray
    prob: np.ndarray
    visible: np.ndarray
    weight: np.ndarray


def _shapes(prob, marginal):
    """Return the shapes of probabilities; (n_shapes, n, n_categories)."""
    powers = prob ** POWERS[:, None, None]
    powers /= powers.sum(axis=2, keepdims=True)
    return np.concatenate([powers, np.broadcast_to(marginal, (1, *prob.shape))])


def category_weights(held_out, marginal, marginal_weight):
    """Return the weights of shapes, with nothing and with all visible; (2, n_shapes).

    marginal : frequencies of all rows, (n_categories,). marginal_weight : weight that
    these have in the mixture beside the shapes.
    """
    row = np.arange(len(held_out.code))
    of_shapes = _shapes(held_out.prob, marginal)[:, row, held_out.code]
    prob = (1 - marginal_weight) * of_shapes + marginal_weight * marginal[held_out.code]
    ends = end_weights(held_out.visible)
    return stacking_weights(np.log(prob), held_out.weight, ends)


def calibrated_prob(prob, marginal, shape_weights):
    """Return the mixture of the shapes of probabilities; (n, n_categories).

    shape_weights : of each row, (n, n_shapes).
    """
    return np.einsum("snc,ns->nc", _shapes(prob, marginal), shape_weights)
