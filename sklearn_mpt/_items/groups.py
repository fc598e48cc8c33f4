"""Groups of people: labels, codes of rows, and differential item functioning."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2

from sklearn_mpt._checks import check_shape, listed
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._items.items import Items
from sklearn_mpt._items.model import ItemModel
from sklearn_mpt._items.objective import ItemRows
from sklearn_mpt._optim.steps import Training, run
from sklearn_mpt._tables.frames import aligned, missing_in_array
from sklearn_mpt._tables.weights import (
    check_sample_weight,
    counted_rows,
    warn_of_row_labels,
)


class Groups(NamedTuple):
    """Labels of groups, sorted, and the index of the label of each row.

    labels : (g,). codes : (n,).
    """

    labels: np.ndarray
    codes: np.ndarray

    @classmethod
    def of_rows(cls, groups, X, sample_weight=None, *, max_groups=100):
        """Return the groups of the rows that count, given the label of each row."""
        # max_groups : codes have 8 bits, and more labels are likely those of rows.
        groups = _checked(groups, X)
        if sample_weight is not None:
            groups = groups[counted_rows(check_sample_weight(sample_weight, X))]
        made = cls(*np.unique(groups, return_inverse=True))
        if len(made.labels) > max_groups:
            raise ValueError(
                f"groups has {len(made.labels)} different labels; at most {max_groups} "
                "are allowed."
            )
        return made


def codes_of(groups, X, known, index=slice(None)):
    """Return the index of the group of each row among known labels, sorted; (n,)."""
    # index : of the rows of X whose groups are wanted. Without groups they are all of
    # the only one.
    if groups is None:
        if len(known) == 1:
            return np.zeros(len(np.arange(_n_rows(X))[index]), dtype=int)
        raise ValueError(
            f"The model has {len(known)} groups: the parameter groups must give the "
            "group of each row."
        )
    groups = _checked(groups, X)[index]
    unknown = np.setdiff1d(groups, known)
    if len(unknown):
        raise ValueError(
            f"groups must be among those of fit, {listed(known)}, got "
            f"{listed(unknown)}."
        )
    return np.searchsorted(known, groups)


def far_groups(model, X, codes):
    """Return where no answer speaks against a higher, or a lower, z; bool (g,)."""
    # The likelihood of the mean of z in such a group has no maximum. X : codes of
    # answers, NaN where missing. codes : of the groups of the rows, (n,).
    items = model.items
    joint = items.joint(torch.from_numpy(model.flat))
    ranks = ranks_of(X, items.answer_order(joint))
    # nominal answers rise with their ranks
    rises = (joint.components[0, items.first].numpy() > 0) | (
        np.array(items.names) == "nominal"
    )
    last = items.n_categories - 1
    best = np.where(rises, last, 0)
    highest, lowest = (np.isnan(X) | (ranks == end) for end in (best, last - best))
    groups = [codes == g for g in range(len(model.mean))]
    return np.array([highest[g].all() or lowest[g].all() for g in groups])


def _checked(groups, X):
    """Return the labels of rows as an array."""
    warn_of_row_labels(X, groups, "groups")
    groups = np.asarray(groups)
    check_shape(groups, "groups", (_n_rows(X),), "(n_samples,)")
    missing = missing_in_array(groups)
    if missing.any():
        raise ValueError(
            "groups must not contain missing labels, such as NaN or None, got "
            f"{np.count_nonzero(missing)} of them."
        )
    return groups


def _n_rows(X):
    return len(X) if hasattr(X, "__len__") else np.shape(X)[0]


def anchor_items(anchors, names):
    """Return the indices of anchors, in order, given indices or a mask."""
    # names : of the items.
    given, n_items = np.asarray(anchors), len(names)
    if given.dtype == bool:
        given = np.asarray(aligned(anchors, [names], "anchors", "items"))
    if given.dtype == bool and given.shape == (n_items,):
        given = np.flatnonzero(given)
    is_some = given.dtype.kind in "iu" and given.ndim == 1 and 0 < len(given)
    if not is_some or given.min() < 0 or given.max() >= n_items:
        raise ValueError(
            f"anchors must be some of the items 0..{n_items - 1}, or a boolean mask of "
            f"shape ({n_items},), got {np.asarray(anchors).tolist()}."
        )
    anchor_items = np.unique(given)
    if len(anchor_items) == n_items:
        raise ValueError(
            f"anchors must leave items to test, but all {n_items} are anchors."
        )
    return anchor_items


class DifferentialFunctioning(NamedTuple):
    """Likelihood-ratio tests of the items; arrays of shape (n_items,).

    Attributes
    ----------
    statistic : ndarray
    p_value : ndarray
    df : ndarray
    """

    statistic: np.ndarray
    p_value: np.ndarray
    df: np.ndarray


def dif_by_likelihood_ratio(model, X, weight, group, anchors, device):
    """Test items; see `MPTItemResponse.dif`."""
    # An item that differs between groups is replaced by one item for each group, whose
    # answers are missing in the rows of the other groups. If all of a group gave the
    # same answer, parameters go on until its probability is 1. The likelihood can have
    # several maxima then, so the second model of a pair is fitted from two starts.
    d, n_groups, items = X.shape[1], int(group.max()) + 1, model.items

    def fit(free, start):
        """Return the largest log-likelihood if items `free` differ, and where it is."""
        # start : parameters of copies of items, a dict from (item, group) to arrays,
        # and the mean and the variance of z in each group. A copy that is not in the
        # dict starts from that of the first group.
        of_copies, mean, variance = start
        copies = [(j, g) for j in range(d) for g in range(n_groups if j in free else 1)]
        columns = [
            np.where((group == g) | (j not in free), X[:, j], np.nan) for j, g in copies
        ]
        sources = [j for j, _ in copies]
        names = [items.names[j] for j in sources]
        copied = Items(names, items.n_categories[sources], 1)
        index = {copy: copied.parameters(i) for i, copy in enumerate(copies)}
        flat = copied.zeros
        for (j, g), at in index.items():
            flat[at] = of_copies.get((j, g), of_copies[j, 0])
        equal, is_fixed = np.full(n_groups, 1 / n_groups), np.zeros(len(flat), bool)
        args = mean, variance, equal, 0, np.eye(1), (0,), is_fixed
        fitted = ItemModel(copied, flat, *args)
        args = np.column_stack(columns), weight, group, {}, device, False
        objective = ItemRows(fitted, *args)
        training = Training(1000)  # steps, and a tolerance, as fits by default
        point = run(training, fitted.ascent(training, objective, tol=1e-7))
        sums = objective.all_sums(point)
        value = objective.weights.total * float(sums.value / sums.n_rows)
        value += objective.priors(point)[2]  # without the prior of long slopes
        fitted = fitted.ended_at(point)
        of_copies = {copy: fitted.flat[at] for copy, at in index.items()}
        return value, (of_copies, fitted.mean, fitted.variance)

    variance = np.full((n_groups, 1), model.variance[0, 0])
    of_items = {(j, 0): model.flat[items.parameters(j)] for j in range(d)}
    first = of_items, np.zeros_like(variance), variance
    tested = np.arange(d) if anchors is None else np.setdiff1d(np.arange(d), anchors)
    statistic, df = np.full(d, np.nan), np.zeros(d, dtype=int)
    base = frozenset() if anchors is None else frozenset(tested.tolist())
    value, start = fit(base, first)
    for j in tested.tolist():
        n_answering = len(np.unique(group[~np.isnan(X[:, j])]))
        if n_answering < 2:
            continue
        other = base ^ {j}
        other_value = max(fit(other, one)[0] for one in (start, first))
        statistic[j] = 2 * abs(other_value - value)
        if (other_value < value) == (j in other):  # the larger model is no better
            statistic[j] = 0.0
        df[j] = (n_answering - 1) * len(items.parameters(j))
    return DifferentialFunctioning(statistic, chi2.sf(statistic, df), df)
