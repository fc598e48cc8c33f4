"""Predictions of rows by trees that have not seen them."""

from typing import Any, NamedTuple

import numpy as np

from sklearn_mpt._dependency.calibration import HeldOut, cell
from sklearn_mpt._dependency.category_calibration import HeldOutCategories
from sklearn_mpt._dependency.inputs import MaskedCopies
from sklearn_mpt._dependency.leaves import LeafMoments, LeafValues, draws_of_trees
from sklearn_mpt._dependency.predictors import mean_of_trees, probabilities


def _unseen(copies, counts, index):
    """Return whether a tree has no copy of the rows of some copies; (n, n_trees).

    counts : what each copy counts in each tree, n_trees arrays.
    """
    n_rows = copies.rows.max() + 1
    is_seen = [np.bincount(copies.rows, count > 0, n_rows) > 0 for count in counts]
    return ~np.column_stack(is_seen)[copies.rows[index]]


class ForestRows(NamedTuple):
    """Copies of rows to which forests are fitted.

    copies : MaskedCopies. x : numbers of the rows, (n,). weight : (n,) or None.
    family : ResidualFamily. min_variance : that of rounding. has_values : whether the
    numbers in leaves are one of the shapes.
    """

    copies: MaskedCopies
    x: np.ndarray
    weight: np.ndarray | None
    family: Any
    min_variance: float
    has_values: bool

    def _weight(self, rows):
        return np.ones(len(rows)) if self.weight is None else self.weight[rows]

    def leaf_values(self, forest, index):
        """Return the numbers in the leaves of a forest, and counts of copies.

        index : the copies to which the forest is fitted. counts : what each of these
        copies counts in each tree, n_trees arrays. The numbers are None if they are no
        shape.
        """
        copies = self.copies.at(index)
        weight = None if self.weight is None else self.weight[copies.rows]
        counts = list(draws_of_trees(forest, len(copies.rows), weight))
        if not self.has_values:
            return None, counts
        leaves = LeafMoments(forest).leaves(copies.inputs.given_to(forest))
        y = self.family.target(self.x[copies.rows])
        return LeafValues.from_rows(leaves, counts, y), counts

    def out_of_bag(self, forest, values, counts, index):
        """Predict copies by the trees that have no copy of the row in their bags."""
        is_unseen = _unseen(self.copies, counts, index)
        is_predicted = is_unseen.any(axis=1)
        return self.predicted(
            forest, values, index[is_predicted], is_unseen[is_predicted]
        )

    def predicted(self, forest, values, index, counts=None):
        """Predict copies by all trees of a forest, or by those that count.

        counts : bool (n, n_trees), at least one for each copy.
        """
        copies, moments = self.copies.at(index), LeafMoments(forest)
        x = self.x[copies.rows]
        leaves = moments.leaves(copies.inputs.given_to(forest))
        if counts is None:
            counts = np.ones(leaves.shape, dtype=bool)
        below = near = np.zeros(len(x))
        if values is not None:
            low, high = cell(self.family, x, self.min_variance)
            below, near = (
                np.average(values.share(leaves, *ends), axis=1, weights=counts)
                for ends in ((np.full_like(low, -np.inf), low), (low, high))
            )
        return HeldOut(
            x,
            *moments.moments(leaves),
            counts,
            below,
            near,
            copies.inputs.share_visible,
            self._weight(copies.rows),
        )


class CategoryRows(NamedTuple):
    """Copies of rows to which forests of a column of categories are fitted.

    copies : MaskedCopies. code : of the rows, (n,). n_categories : int. weight : (n,)
    or None.
    """

    copies: MaskedCopies
    code: np.ndarray
    n_categories: int
    weight: np.ndarray | None

    def out_of_bag(self, forest, index):
        """Predict copies by the trees that have no copy of the row in their bags."""
        rows = self.copies.rows
        weight = None if self.weight is None else self.weight[rows]
        counts = draws_of_trees(forest, len(rows), weight)
        is_unseen = _unseen(self.copies, counts, index)
        is_predicted = is_unseen.any(axis=1)
        return self.predicted(forest, index[is_predicted], is_unseen[is_predicted])

    def predicted(self, forest, index, counts=None):
        """Predict copies by all trees of a forest, or by those that count.

        counts : bool (n, n_trees), at least one for each copy.
        """
        copies = self.copies.at(index)
        Z = copies.inputs.given_to(forest)
        if counts is None:
            prob = probabilities(forest, Z, self.n_categories)
        else:
            prob = mean_of_trees(forest, Z, counts, self.n_categories)
        weight = np.ones(len(Z)) if self.weight is None else self.weight[copies.rows]
        code = self.code[copies.rows].astype(int)
        return HeldOutCategories(code, prob, copies.inputs.share_visible, weight)
