r"""Distributions given a forest, fitted to rows that its trees have not seen.

A number has the normal distribution, or another of its family, with the mean of the
forest and the variance of the mixture over its trees times a scale. The mixture itself
is wider than the errors of the forest, because a mean of trees is better than one tree:
linear pools of calibrated distributions are too wide [1]_. If numbers repeat, this is
mixed with the numbers in the leaves themselves [2]_, uniform within the resolution.
Probabilities of categories are mixed with the frequencies of all rows.

The scale and the weights are fitted to rows out of the bags of trees or, without
bootstrap, to those of folds: for rows of which nothing is visible and for those of
which all is. They are linear in the fraction of visible columns between these.

.. [1] R. Ranjan and T. Gneiting, "Combining probability forecasts", Journal of the
   Royal Statistical Society B 72, 2010.
.. [2] N. Meinshausen, "Quantile regression forests", Journal of Machine Learning
   Research 7, 2006.
"""

from typing import Any, NamedTuple

import numpy as np

from sklearn_mpt._autoregressive.inputs import MaskedCopies
from sklearn_mpt._autoregressive.predictors import mean_of_trees, probabilities
from sklearn_mpt._numbers import ROUNDING
from sklearn_mpt._optim.weights import (
    stacking_weights,
)

# Copies of rows that are used: mean log-densities of as many have a standard error of
# some 0.03.
MAX_COPIES = 1000
# EM of the scale ends when a step changes it by less than its standard error, 0.04.
MAX_STEPS, SCALE_TOL = 100, 0.01


class HeldOut(NamedTuple):
    """What trees that have not seen some rows predict of their numbers x.

    mean, variance : of the mixture over trees, (n,). near : fraction of the numbers in
    leaves that are equal to x within the resolution, (n,). visible : fraction of
    visible columns, (n,). weight : (n,).
    """

    x: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    near: np.ndarray
    visible: np.ndarray
    weight: np.ndarray


class HeldOutCategories(NamedTuple):
    """What trees that have not seen some rows predict of their codes, (n,).

    prob : means over trees, (n, n_categories). visible, weight : as in `HeldOut`.
    """

    code: np.ndarray
    prob: np.ndarray
    visible: np.ndarray
    weight: np.ndarray


def mixture_moments(mean, variance, counts):
    """Return the mean and the variance of mixtures over trees; (n,) each."""
    center = np.average(mean, axis=1, weights=counts)
    spread = variance + (mean - center[:, None]) ** 2
    return center, np.average(spread, axis=1, weights=counts)


def resolution(min_variance):
    """Return the width of the uniform distribution of this variance."""
    return np.sqrt(12 * min_variance)


def cell(family, x, min_variance):
    """Return the ends of what is equal to x within the resolution, as targets."""
    y, half = family.target(x), resolution(min_variance) / 2
    return y - half, y + half


def values_log_prob(family, x, near, min_variance):
    """Return log-densities of the numbers in leaves; near : as in `HeldOut`."""
    with np.errstate(divide="ignore"):
        return np.log(near / resolution(min_variance)) + family.log_jacobian(x)


def interpolated(ends, visible):
    """Return what is linear in the fraction of visible columns; (n, ...)."""
    visible = visible.reshape(-1, *[1] * (ends.ndim - 1))
    return (1 - visible) * ends[0] + visible * ends[1]


def fitted_scale(family, held_out, limits, wide):
    """Return factors of variances, with nothing and with all visible; (2,).

    They maximise the likelihood of the normal and the wide distribution by EM, so that
    an error beyond trees that agree counts little. One row more has the factor 1.
    limits : least mean and variance.
    """
    x, visible, scale = held_out.x, held_out.visible, np.ones(2)
    mean = np.maximum(held_out.mean, limits[0])
    squares = (family.target(x) - held_out.mean) ** 2 / held_out.variance
    for _ in range(MAX_STEPS):
        before = scale
        variance = held_out.variance * interpolated(scale, visible)
        log_prob = family.log_prob(x, mean, np.maximum(variance, limits[1]))
        narrow = np.log1p(-wide.weight) + log_prob
        is_normal = np.exp(narrow - wide.add_to_log_prob(log_prob, x))
        shares = held_out.weight * is_normal * np.stack([1 - visible, visible])
        scale = (shares @ squares + 1) / (shares.sum(axis=1) + 1)
        if np.abs(scale / before - 1).max() < SCALE_TOL:
            break
    return scale


def fitted_values_weight(family, held_out, scale, limits, wide):
    """Return the weight of numbers in leaves, with nothing and all visible; (2,)."""
    x, visible = held_out.x, held_out.visible
    variance = np.maximum(held_out.variance * interpolated(scale, visible), limits[1])
    log_prob = family.log_prob(x, np.maximum(held_out.mean, limits[0]), variance)
    values = values_log_prob(family, x, held_out.near, limits[1])
    log_probs = wide.add_to_log_prob(np.stack([log_prob, values]), x)
    shares = np.stack([1 - visible, visible])
    return stacking_weights(log_probs, held_out.weight, shares)[:, 1]


def fitted_marginal_weight(held_out, marginal, least):
    """Return the weight of the frequencies of all rows, at the same two ends; (2,)."""
    prob = held_out.prob[np.arange(len(held_out.code)), held_out.code]
    of_all = marginal[held_out.code]
    prob = (1 - least) * np.stack([prob, of_all]) + least * of_all
    shares = np.stack([1 - held_out.visible, held_out.visible])
    return stacking_weights(np.log(prob), held_out.weight, shares)[:, 1]


class LeafMoments:
    """Means and variances of the rows in the leaves of a forest."""

    def __init__(self, forest):
        trees = [tree.tree_ for tree in forest.estimators_]
        sizes = [tree.node_count for tree in trees]
        self.trees = trees
        self.first = np.cumsum([0, *sizes[:-1]])
        self.mean = np.concatenate([tree.value[:, 0, 0] for tree in trees])
        self.variance = np.concatenate([tree.impurity for tree in trees])

    def leaves(self, Z):
        """Return the leaf of each tree, counted through all trees; (n, n_trees)."""
        Z = np.asarray(Z, dtype=np.float32)  # as trees take them without checks
        # tree by tree, since few rows take less time than the start of jobs
        return np.column_stack([tree.apply(Z) for tree in self.trees]) + self.first

    def moments(self, leaves):
        """Return means and variances of leaves, of their shape each."""
        return self.mean[leaves], self.variance[leaves]


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
        """Collect the numbers of rows."""
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
        return {
            "values": self.values,
            "key": self.key,
            "count": self.count,
        }

    def _first_pairs(self, leaves, code):
        """Return the first pair of a leaf whose number has at least this code."""
        width = len(self.values) + 1
        return np.searchsorted(self.key, leaves * width + code)

    def fraction(self, leaves, low, high):
        """Return the fractions of numbers in [low, high); (n, n_trees)."""
        first, last = (
            self._first_pairs(leaves, np.searchsorted(self.values, bound)[:, None])
            for bound in (low, high)
        )
        return self.total[last] - self.total[first]

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


def _out_of_bag(copies, counts, index):
    """Return the copies whose rows some trees have not seen, and these trees."""
    n_rows = copies.rows.max() + 1
    is_seen = [np.bincount(copies.rows, count > 0, n_rows) > 0 for count in counts]
    is_unseen = ~np.column_stack(is_seen)[copies.rows[index]]
    is_predicted = is_unseen.any(axis=1)
    return index[is_predicted], is_unseen[is_predicted]


def concatenated(predictions):
    """Return the predictions of all folds, `HeldOut` or `HeldOutCategories` each."""
    predictions = list(predictions)
    return type(predictions[0])(*map(np.concatenate, zip(*predictions, strict=True)))


def _weight_of(rows, weight):
    """Return the weights of rows; 1 if `weight` is None."""
    return np.ones(len(rows)) if weight is None else weight[rows]


class ForestRows(NamedTuple):
    """Copies of rows to which forests are fitted."""

    copies: MaskedCopies
    x: np.ndarray
    weight: np.ndarray | None
    family: Any
    min_variance: float
    has_values: bool

    def leaf_values(self, forest, index):
        """Return the numbers in the leaves of a forest, and counts of copies."""
        rows = self.copies.rows[index]
        counts = list(draws_of_trees(forest, _weight_of(rows, self.weight)))
        if not self.has_values:
            return None, counts
        Z = self.copies.inputs.given_to(forest)[index]  # coded once for all fits
        leaves, y = LeafMoments(forest).leaves(Z), self.family.target(self.x[rows])
        return LeafValues.from_rows(leaves, counts, y), counts

    def out_of_bag(self, forest, values, counts, index):
        """Predict copies by the trees that have no copy of the row in their bags."""
        out_of_bag = _out_of_bag(self.copies, counts, index)
        return self.predicted(forest, values, *out_of_bag)

    def predicted(self, forest, values, index, counts=None):
        """Predict copies by all trees of a forest, or by those that count."""
        copies, moments = self.copies.at(index), LeafMoments(forest)
        x = self.x[copies.rows]
        leaves = moments.leaves(copies.inputs.given_to(forest))
        if counts is None:
            counts = np.ones(leaves.shape, dtype=bool)
        near = np.zeros(len(x))
        if values is not None:
            fraction = values.fraction(leaves, *cell(self.family, x, self.min_variance))
            near = np.average(fraction, axis=1, weights=counts)
        mean, variance = mixture_moments(*moments.moments(leaves), counts)
        variance = np.maximum(variance, self.min_variance)
        visible = copies.inputs.fraction_visible
        weight = _weight_of(copies.rows, self.weight)
        return HeldOut(x, mean, variance, near, visible, weight)


class CategoryRows(NamedTuple):
    """Copies of rows to which forests of a column of categories are fitted."""

    copies: MaskedCopies
    code: np.ndarray
    n_categories: int
    weight: np.ndarray | None

    def out_of_bag(self, forest, index):
        """Predict copies by the trees that have no copy of the row in their bags."""
        weight = _weight_of(self.copies.rows, self.weight)
        counts = draws_of_trees(forest, weight)
        return self.predicted(forest, *_out_of_bag(self.copies, counts, index))

    def predicted(self, forest, index, counts=None):
        """Predict copies by all trees of a forest, or by those that count."""
        copies = self.copies.at(index)
        Z = copies.inputs.given_to(forest)
        if counts is None:
            prob = probabilities(forest, Z, self.n_categories)
        else:
            prob = mean_of_trees(forest, Z, counts, self.n_categories)
        weight = _weight_of(copies.rows, self.weight)
        code = self.code[copies.rows].astype(int)
        return HeldOutCategories(code, prob, copies.inputs.fraction_visible, weight)
