"""Predictions of rows by trees that have not seen them."""

from typing import Any, NamedTuple

import numpy as np

from sklearn_mpt._dependency.calibration import HeldOut, cell
from sklearn_mpt._dependency.inputs import MaskedCopies
from sklearn_mpt._dependency.leaves import LeafMoments, LeafValues, draws_of_trees


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
        rows, n_rows = self.copies.rows, len(self.x)
        is_seen = [np.bincount(rows, count > 0, n_rows) > 0 for count in counts]
        is_unseen = ~np.column_stack(is_seen)[rows[index]]
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
