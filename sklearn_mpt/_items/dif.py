"""Differential item functioning: likelihood-ratio tests of models of several groups."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2

from sklearn_mpt._fitting.fit_loop import run
from sklearn_mpt._items.answers import merged_answers
from sklearn_mpt._items.curves import Items
from sklearn_mpt._items.objective import ItemObjective, ParameterLayout
from sklearn_mpt._items.solver import ItemSolver

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
    """Test items; see `MPTItemResponse.dif`.

    An item that differs between groups is replaced by one item for each group, whose
    answers are missing in the rows of the other groups.
    """
    d, n_groups = X.shape[1], int(group.max()) + 1
    fits = _DifFits(model, X, weight, group, n_groups, device)
    tested = np.arange(d) if anchors is None else np.setdiff1d(np.arange(d), anchors)
    statistic, df = np.full(d, np.nan), np.zeros(d, dtype=int)
    base = frozenset() if anchors is None else frozenset(tested.tolist())
    value, start = fits.fit(base, fits.first(base))
    for j in tested.tolist():
        n_answering = len(np.unique(group[~np.isnan(X[:, j])]))
        if n_answering < 2:
            continue
        other = base ^ {j}
        free_value, _ = fits.fit(other, fits.map_parameters(start, base, other))
        statistic[j] = 2 * abs(free_value - value)
        if (free_value < value) == (j in other):  # the larger model is no better
            statistic[j] = 0.0
        df[j] = (n_answering - 1) * len(model.items.parameter_index(j))
    return DifferentialFunctioning(statistic, chi2.sf(statistic, df), df)


class _DifFits:
    """Fits to the likelihood in which some items differ between groups."""

    def __init__(self, model, X, weight, group, n_groups, device):
        self.model, self.device = model, device
        self.X, self.weight, self.group, self.n_groups = X, weight, group, n_groups

    def split(self, free):
        """Replace items that differ by one for each group; return rows and items.

        Also returns the index of the original item of each item.
        """
        d, items = self.X.shape[1], self.model.items
        columns, sources = [], []
        for j in range(d):
            for g in range(self.n_groups) if j in free else [None]:
                column = self.X[:, j]
                if g is not None:
                    column = np.where(self.group == g, column, np.nan)
                columns.append(column)
                sources.append(j)
        sources = np.array(sources)
        names = [items.names[j] for j in sources]
        split = Items(names, items.n_categories[sources], items.n_dims)
        return np.stack(columns, 1), split, sources

    def layout(self, items):
        later = np.arange(self.n_groups) > 0
        return ParameterLayout(items, later, later | items.has_fixed_scale)

    def first(self, free):
        """Return the start of the first fit: the items of the fitted model."""
        _, items, sources = self.split(free)
        point = _taken(self.model.items, self.model.point, items, sources)
        layout = self.layout(items)
        variance = np.full(self.n_groups, self.model.variance[0, 0])
        end = layout.population_params(np.zeros(self.n_groups), variance)
        return np.concatenate([point, end])

    def map_parameters(self, start, before, after):
        """Convert parameters of a fit to the start of one with other items free."""
        _, items, sources = self.split(before)
        _, others, other_sources = self.split(after)
        copied = np.searchsorted(sources, other_sources)  # the first copy
        n_before = np.array([np.count_nonzero(sources == j) for j in other_sources])
        for j in np.unique(other_sources):
            copies = np.flatnonzero(other_sources == j)
            if n_before[copies[0]] == len(copies):
                copied[copies] = np.flatnonzero(sources == j)
        point = _taken(items, start[: items.n_parameters], others, copied)
        return np.concatenate([point, start[items.n_parameters :]])

    def fit(self, free, start):
        X, items, _ = self.split(free)
        answers = merged_answers(
            X, items.max_categories, self.weight, self.group, self.device
        )
        unseen = torch.from_numpy(items.unseen(X)).to(self.device)
        objective = ItemObjective(answers, self.layout(items), unseen=unseen)
        point = torch.from_numpy(start).to(self.device)
        point = run(ItemSolver(objective, point), MAX_STEPS)
        _, expected = objective.expect(point)
        return expected.value, point.cpu().numpy()


def _taken(items, point, others, copied):
    """Return flat parameters of `others`; item j is a copy of item ``copied[j]``."""
    values = np.empty(others.n_parameters)
    for j, k in enumerate(copied):
        values[others.parameter_index(j)] = point[items.parameter_index(int(k))]
    return values
