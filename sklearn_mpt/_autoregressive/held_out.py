"""Predictions of rows by trees that have not seen them."""

from typing import Any, NamedTuple

import numpy as np

from sklearn_mpt._autoregressive.calibration import HeldOut, cell
from sklearn_mpt._autoregressive.category_calibration import HeldOutCategories
from sklearn_mpt._autoregressive.inputs import MaskedCopies
from sklearn_mpt._autoregressive.leaves import LeafMoments, LeafValues, draws_of_trees
from sklearn_mpt._autoregressive.predictors import mean_of_trees, probabilities


def _out_of_bag(copies, counts, index):
    """Return the copies whose rows some trees have not seen, and these trees.

    copies : to which the trees are fitted. counts : what each of them counts in each
    tree, n_trees arrays. index : the copies among which these are looked for.

    Returns an index of m copies, and bool (m, n_trees).
    """
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

    def leaf_values(self, forest, index):
        """Return the numbers in the leaves of a forest, and counts of copies.

        index : the copies to which the forest is fitted. counts : what each of these
        copies counts in each tree, n_trees arrays. The numbers are None if they are no
        shape.
        """
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
        """Predict copies by all trees of a forest, or by those that count.

        counts : bool (n, n_trees), at least one for each copy.
        """
        copies, moments = self.copies.at(index), LeafMoments(forest)
        x = self.x[copies.rows]
        leaves = moments.leaves(copies.inputs.given_to(forest))
        if counts is None:
            counts = np.ones(leaves.shape, dtype=bool)
        near = np.zeros(len(x))
        if values is not None:
            fraction = values.fraction(leaves, *cell(self.family, x, self.min_variance))
            near = np.average(fraction, axis=1, weights=counts)
        return HeldOut(
            x,
            *moments.moments(leaves),
            counts,
            near,
            copies.inputs.fraction_visible,
            _weight_of(copies.rows, self.weight),
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
        weight = _weight_of(self.copies.rows, self.weight)
        counts = draws_of_trees(forest, weight)
        return self.predicted(forest, *_out_of_bag(self.copies, counts, index))

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
        weight = _weight_of(copies.rows, self.weight)
        code = self.code[copies.rows].astype(int)
        return HeldOutCategories(code, prob, copies.inputs.fraction_visible, weight)
