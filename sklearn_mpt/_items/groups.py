"""Groups of people: labels, codes of rows, and differential item functioning."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2

from sklearn_mpt._items.curves import Items
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._items.objective import ItemObjective, ParameterLayout
from sklearn_mpt._items.solver import ItemSolver
from sklearn_mpt._latent.answers import merged_answers
from sklearn_mpt._messages import listed
from sklearn_mpt._optim.loop import (
    run,
)
from sklearn_mpt._tables.frames import missing_in_array
from sklearn_mpt._tables.weights import (
    check_sample_weight,
    counted_rows,
    warn_of_row_labels,
)

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
        """Return the groups of the rows whose weight is not 0."""
        # A group without such rows has no label.
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
    """Return the index of the group of each row among known labels, sorted; (n,)."""
    # index : of the rows of X whose groups are wanted.
    groups = _checked(groups, X)[index]
    unknown = np.setdiff1d(groups, known)
    if len(unknown):
        raise ValueError(
            f"groups must be among those of fit, {listed(known)}, got "
            f"{listed(unknown)}."
        )
    return np.searchsorted(known, groups)


def far_groups(items, point, X, codes, n_groups):
    """Return where no answer speaks against a higher, or a lower, z; bool (g,)."""
    # The likelihood of the mean of z in such a group has no maximum. X : codes of
    # answers, NaN where missing. codes : of the groups of the rows, (n,).
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


MAX_STEPS = 1000  # of a fit, as `max_iter` of `MPTItemResponse` by default


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
    d = X.shape[1]
    fits = _DifFits(model, X, weight, group, device)
    tested = np.arange(d) if anchors is None else np.setdiff1d(np.arange(d), anchors)
    statistic, df = np.full(d, np.nan), np.zeros(d, dtype=int)
    base = frozenset() if anchors is None else frozenset(tested.tolist())
    first = fits.first()
    value, start = fits.fit(base, first)
    for j in tested.tolist():
        n_answering = len(np.unique(group[~np.isnan(X[:, j])]))
        if n_answering < 2:
            continue
        other = base ^ {j}
        other_value = max(fits.fit(other, one)[0] for one in (start, first))
        statistic[j] = 2 * abs(other_value - value)
        if (other_value < value) == (j in other):  # the larger model is no better
            statistic[j] = 0.0
        df[j] = (n_answering - 1) * len(model.items.parameter_index(j))
    return DifferentialFunctioning(statistic, chi2.sf(statistic, df), df)


class _DifFits:
    """Fits to the likelihood in which some items differ between groups.

    Parameters go from one fit to the next as those of the copies of each item, a list
    of arrays (n_copies, q), and those of z.
    """

    def __init__(self, model, X, weight, group, device):
        self.model, self.device = model, device
        self.X, self.weight, self.group = X, weight, group
        self.n_groups = int(group.max()) + 1

    def first(self):
        """Return parameters at which fits start: the fitted ones."""
        items, point = self.model.items, self.model.point
        of_items = [point[items.parameter_index(j)][None] for j in range(len(items))]
        variance = np.full(self.n_groups, self.model.variance[0, 0])
        return of_items, self._layout(items).population_params(
            np.zeros(self.n_groups), variance
        )

    def fit(self, free, start):
        """Return the largest log-likelihood if items `free` differ, and where it is."""
        # A copy of an item starts from the parameters of this copy, or of the only one.
        copies = [
            (j, g)
            for j in range(len(self.model.items))
            for g in range(self.n_groups if j in free else 1)
        ]
        X, items = self._split(copies, free)
        index = [items.parameter_index(i) for i in range(len(items))]
        of_items, population = start
        point = np.concatenate([np.empty(items.n_parameters), population])
        for at, (j, g) in zip(index, copies, strict=True):
            point[at] = of_items[j][min(g, len(of_items[j]) - 1)]
        answers = merged_answers(
            X, items.max_categories, self.weight, self.group, self.device
        )
        objective = ItemObjective(answers, self._layout(items))
        solver = ItemSolver(objective, torch.from_numpy(point).to(self.device))
        point = run(solver, MAX_STEPS)
        _, expected = objective.expect(point)
        point = point.cpu().numpy()
        of_items = [[] for _ in of_items]
        for at, (j, _) in zip(index, copies, strict=True):
            of_items[j].append(point[at])
        return expected.value, (of_items, point[items.n_parameters :])

    def _split(self, copies, free):
        """Return rows and items; those that are free have a copy for each group."""
        columns = [
            np.where((self.group == g) | (j not in free), self.X[:, j], np.nan)
            for j, g in copies
        ]
        sources, items = [j for j, _ in copies], self.model.items
        names, counts = [items.names[j] for j in sources], items.n_categories[sources]
        return np.stack(columns, 1), Items(names, counts, items.n_dims)

    def _layout(self, items):
        later = np.arange(self.n_groups) > 0
        return ParameterLayout(items, later, later | items.has_fixed_scale)
