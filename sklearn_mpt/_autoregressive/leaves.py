"""What the leaves of a forest hold: means, variances and the numbers themselves."""

import numpy as np

from sklearn_mpt._autoregressive.packing import narrowed
from sklearn_mpt._numbers import ROUNDING


class LeafMoments:
    """Means and variances of the rows in the leaves of a forest.

    Parameters
    ----------
    forest : RandomForestRegressor or ExtraTreesRegressor
    """

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
        """Collect the numbers of rows.

        leaves : of each row and tree, (n, n_trees). counts : how often a tree has each
        row, n_trees arrays (n,). y : (n,).
        """
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
        """Return the parameters as small arrays, by name."""
        return {
            "values": self.values,
            "key": narrowed(self.key),
            "count": narrowed(self.count),
        }

    def _first_pairs(self, leaves, code):
        """Return the first pair of a leaf whose number has at least this code."""
        width = len(self.values) + 1
        return np.searchsorted(self.key, leaves * width + code)

    def fraction(self, leaves, low, high):
        """Return the fractions of numbers in [low, high); (n, n_trees).

        low, high : (n,).
        """
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
