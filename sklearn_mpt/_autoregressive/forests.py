r"""Distributions given a forest, fitted to rows that its trees have not seen.

A number has a mixture of shapes: the normal distributions, or others of its family, of
the leaves of all trees; one with the mean of the forest and the deviation of this
mixture times each of `SCALES`; and, if numbers repeat, the numbers in the leaves
themselves [2]_, uniform within the resolution. The mixture over trees is wider than the
errors of the forest, because a mean of trees is better than one tree: linear pools of
calibrated distributions are too wide [1]_. Probabilities of categories are mixed with
the frequencies of all rows.

The weights are fitted to rows out of the bags of trees or, without bootstrap, to those
of folds: for rows of which nothing is visible and for those of which all is. They are
linear in the fraction of visible columns between these.

.. [1] R. Ranjan and T. Gneiting, "Combining probability forecasts", Journal of the
   Royal Statistical Society B 72, 2010.
.. [2] N. Meinshausen, "Quantile regression forests", Journal of Machine Learning
   Research 7, 2006.
"""

import numpy as np
from scipy.special import logsumexp

from sklearn_mpt._numbers import ROUNDING

# Factors of standard deviations. What one factor would lose is in
# benchmarks/RESULTS.rst, "Dependency networks: calibration of forests".
SCALES = np.array([0.5, 1.0, 1.5])


def resolution(min_variance):
    """Return the width of the uniform distribution of this variance."""
    return np.sqrt(12 * min_variance)


def interpolated(ends, visible):
    """Return what is linear in the fraction of visible columns; (..., n)."""
    return ends[0][..., None] * (1 - visible) + ends[1][..., None] * visible


class Leaves:
    """Means and variances of the rows in the leaves of a forest."""

    def __init__(self, forest):
        self.trees = [tree.tree_ for tree in forest.estimators_]
        self.first = np.cumsum([0, *(tree.node_count for tree in self.trees[:-1])])
        self.mean = np.concatenate([tree.value[:, 0, 0] for tree in self.trees])
        self.variance = np.concatenate([tree.impurity for tree in self.trees])

    def of(self, Z):
        """Return the leaf of each tree, counted through all trees; (n, n_trees)."""
        Z = np.asarray(Z, dtype=np.float32)  # as trees take them without checks
        # tree by tree, since few rows take less time than the start of jobs
        return np.column_stack([tree.apply(Z) for tree in self.trees]) + self.first

    def shapes(self, leaves, limits, counts=None):
        """Return means and variances of components, (n, n_trees + n_scales) each.

        They are those of the leaves of trees, and those of the mixture of the trees
        that count, by `SCALES`. limits : least mean and variance.
        """
        mean, variance = self.mean[leaves], self.variance[leaves]
        center = np.average(mean, 1, weights=counts)[:, None]
        squares = variance + (mean - center) ** 2
        total = np.average(squares, 1, weights=counts)[:, None]
        means = np.hstack([mean, center.repeat(len(SCALES), 1)])
        variances = np.hstack([variance, total * SCALES**2])
        return np.maximum(means, limits[0]), np.maximum(variances, limits[1])


def normal_log_prob(family, x, shapes, counts=None):
    """Return log-densities in the mixture of leaves, and by `SCALES`; (n_shapes, n)."""
    log_prob = family.log_prob(x[:, None], *shapes)
    of_trees, of_scales = np.split(log_prob, [-len(SCALES)], axis=1)
    counts = np.ones_like(of_trees) if counts is None else counts
    of_trees = logsumexp(of_trees, axis=1, b=counts / counts.sum(1, keepdims=True))
    return np.vstack([of_trees, of_scales.T])


class LeafValues:
    """The numbers that leaves hold, and their frequencies.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        The different numbers, sorted.
    key : int ndarray of shape (n_pairs,)
        Leaf and number of each pair, as one integer, sorted.
    count : ndarray of shape (n_pairs,)
        How often a leaf has the number.
    """

    def __init__(self, values, key, count):
        self.values, self.count = values, count
        self.key = np.asarray(key, dtype=np.int64)
        leaf = self.key // (len(values) + 1)
        frequency = count / np.bincount(leaf, count)[leaf]
        # sums of the frequencies of the pairs before each, and of all
        self.total = np.concatenate([[0.0], np.cumsum(frequency)])

    @classmethod
    def from_rows(cls, leaves, counts, y):
        """Collect the numbers of rows; `counts` are those of `draws_of_trees`."""
        values, code = np.unique(y, return_inverse=True)
        width = len(values) + 1
        pairs = []
        for leaf, count in zip(leaves.T, counts, strict=True):
            drawn = np.flatnonzero(count)
            key, pair = np.unique(
                leaf[drawn] * width + code[drawn], return_inverse=True
            )
            pairs.append((key, np.bincount(pair, count[drawn])))
        return cls(values, *map(np.concatenate, zip(*pairs, strict=True)))

    def arrays(self):
        """Return the parameters by name."""
        return {"values": self.values, "key": self.key, "count": self.count}

    def _first_pairs(self, leaves, code):
        """Return the first pair of a leaf whose number has at least this code."""
        width = len(self.values) + 1
        return np.searchsorted(self.key, leaves * width + code)

    def log_prob(self, family, x, leaves, min_variance, counts=None):
        """Return log-densities of the mixture over trees that count; (n,)."""
        y, width = family.target(x), resolution(min_variance)
        first, last = (
            self._first_pairs(leaves, np.searchsorted(self.values, end)[:, None])
            for end in (y - width / 2, y + width / 2)
        )
        near = np.average(self.total[last] - self.total[first], 1, weights=counts)
        with np.errstate(divide="ignore"):
            return np.log(near / width) + family.log_jacobian(x)

    def mean(self, leaves, function):
        """Return means of a function of the numbers; of the shape of leaves."""
        pair_values = function(self.values)[self.key % (len(self.values) + 1)]
        total = np.cumsum([0.0, *(np.diff(self.total) * pair_values)])
        first, last = (self._first_pairs(leaves, c) for c in (0, len(self.values)))
        return total[last] - total[first]

    def draw(self, leaves, uniform):
        """Draw a number from each leaf; (n,)."""
        first, last = (self._first_pairs(leaves, c) for c in (0, len(self.values)))
        pair = np.searchsorted(self.total, self.total[first] + uniform, side="right")
        pair = np.clip(pair - 1, first, last - 1)
        return self.values[self.key[pair] % (len(self.values) + 1)]


def draws_of_trees(forest, weight):
    """Yield what each row, of a weight (n,), counts in each tree; (n,)."""
    if not forest.bootstrap:
        for _ in forest.estimators_:
            yield weight
        return
    for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        count = np.bincount(drawn, minlength=len(weight)).astype(np.float64)
        # scikit-learn draws by weights from 1.9 on, and multiplies by them before
        is_drawn_by_weight = np.isclose(
            tree.tree_.weighted_n_node_samples[0], count.sum(), rtol=ROUNDING
        )
        yield count if is_drawn_by_weight else count * weight
