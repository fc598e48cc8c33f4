"""Groups of people: their labels, and the code of the group of each row."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_sample_weight, counted_rows, warn_of_row_labels
from sklearn_mpt._frames import missing_in_array
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._messages import listed

# Codes are integers of 8 bits; more labels are likely to be those of rows.
MAX_GROUPS = 100


class Groups(NamedTuple):
    """Labels of groups, sorted, and the index of the label of each row.

    labels : (g,). codes : (n,).
    """

    labels: np.ndarray
    codes: np.ndarray

    @classmethod
    def of_rows(cls, groups, X):
        """Return the groups of rows, given the label of each."""
        groups = _checked(groups, X)
        made = cls(*np.unique(groups, return_inverse=True))
        if len(made.labels) > MAX_GROUPS:
            raise ValueError(
                f"groups has {len(made.labels)} different labels; at most {MAX_GROUPS} "
                "are allowed."
            )
        return made

    @classmethod
    def that_count(cls, groups, X, sample_weight):
        """Return the groups of the rows whose weight is not 0.

        A group without such rows has no label.
        """
        made = cls.of_rows(groups, X)
        if sample_weight is None:
            return made
        counts = counted_rows(check_sample_weight(sample_weight, X))
        kept, codes = np.unique(made.codes[counts], return_inverse=True)
        return cls(made.labels[kept], codes)


def codes_of(groups, X, known, index=slice(None)):
    """Return what `codes_among` does; None without groups, where one is known."""
    if groups is not None:
        return codes_among(groups, X, known, index)
    if len(known) > 1:
        raise ValueError(
            f"The model has {len(known)} groups: the parameter groups must give the "
            "group of each row."
        )
    return None


def codes_among(groups, X, known, index=slice(None)):
    """Return the index of the group of each row among known labels, sorted; (n,).

    index : of the rows of X whose groups are wanted.
    """
    groups = _checked(groups, X)[index]
    unknown = np.setdiff1d(groups, known)
    if len(unknown):
        raise ValueError(
            f"groups must be among those of fit, {listed(known)}, got "
            f"{listed(unknown)}."
        )
    return np.searchsorted(known, groups)


def far_groups(items, point, X, codes, n_groups):
    """Return where no answer speaks against a higher z, or against a lower; bool (g,).

    The likelihood of the mean of z in such a group has no maximum.

    X : codes of answers, NaN where missing. codes : of the groups of the rows, (n,).
    """
    ranks = ranks_of(X, items.answer_order(point))
    rises = items.slopes(point)[:, 0].numpy(force=True) > 0
    is_least, is_most = ranks == 0, ranks == items.n_categories - 1
    missing = np.isnan(X)
    ends = [
        missing | np.where(rises == is_high, is_most, is_least)
        for is_high in (True, False)
    ]
    return np.array(
        [any(end[codes == g].all() for end in ends) for g in range(n_groups)]
    )


def _checked(groups, X):
    """Return the labels of rows as an array."""
    warn_of_row_labels(X, groups, "groups")
    groups = np.asarray(groups)
    n_rows = len(X) if hasattr(X, "__len__") else np.shape(X)[0]
    if groups.shape != (n_rows,):
        raise ValueError(
            f"groups must have shape (n_samples,) = ({n_rows},), got {groups.shape}."
        )
    missing = missing_in_array(groups)
    if missing.any():
        raise ValueError(
            "groups must not contain missing labels, such as NaN or None, got "
            f"{np.count_nonzero(missing)} of them."
        )
    return groups
