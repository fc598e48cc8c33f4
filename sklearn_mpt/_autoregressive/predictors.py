r"""What predictors of scikit-learn read and give.

A classifier gives probabilities, a forest of regressors the mean and the variance of a
leaf for each of its trees, a regressor with ``predict(X, return_std=True)`` a mean and
a variance, and any other a mean.

A predictor of a column reads those that tell most of it, one by one: numbers and levels
are divided into four groups of as many rows, and the tables of the groups of two
columns are compared by Pearson's :math:`\phi^2` (chi-square divided by the number of
rows, of which Cramer's V is a multiple), less what chance gives. What only two columns
together tell of a third is not seen.
"""

import inspect
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import get_tags

from sklearn_mpt._checks import plain, seed_from
from sklearn_mpt._likelihoods.columns import Columns
from sklearn_mpt._numbers import CHUNK_ENTRIES, TINY, chunk_slices

# criteria for which the impurity of a leaf is the variance of its rows
SQUARED_CRITERIA = "squared_error", "friedman_mse"


def _forests():
    """Return the kinds of forests: classifiers, and regressors."""
    # here, as the import takes half as long as that of all else
    from sklearn import ensemble

    classifiers = ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier
    regressors = ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor
    return classifiers, regressors


def new_predictor(given, is_classifier, n_rows, rng):
    """Return a clone of a predictor, or a forest, in which `random_state` has seeds.

    Each tree of a forest draws as many copies as there are rows, so that few leaves
    hold copies of one row only.
    """
    classifiers, regressors = _forests()
    if given is None:
        forest = classifiers[0] if is_classifier else regressors[0]
        given = forest(60, min_samples_leaf=3)
        given.set_params(max_features="sqrt" if is_classifier else 0.5)
    predictor = clone(given)
    params = predictor.get_params(deep=True)
    if isinstance(predictor, classifiers + regressors) and predictor.bootstrap:
        if predictor.max_samples is None:
            predictor.set_params(max_samples=n_rows)
    names = [n for n in params if n == "random_state" or n.endswith("__random_state")]
    seeds = {n: seed_from(rng) for n in sorted(names) if params[n] is None}
    return predictor.set_params(**seeds) if seeds else predictor


def last_step(predictor):
    """Return the predictor at the end of pipelines, and the prefix of its parameters"""
    prefix = ""
    while hasattr(predictor, "steps"):
        name, predictor = predictor.steps[-1]
        prefix += f"{name}__"
    return predictor, prefix


def has_leaves(predictor):
    """Return whether a regressor is a forest with a mean and a variance in leaves."""
    _, regressors = _forests()
    return isinstance(predictor, regressors) and predictor.criterion in SQUARED_CRITERIA


def is_classifying_forest(predictor):
    """Return whether a predictor is a forest of classification trees."""
    classifiers, _ = _forests()
    return isinstance(predictor, classifiers)


def has_std(predictor):
    """Return whether ``predict`` of a regressor returns standard deviations."""
    last, _ = last_step(predictor)
    return "return_std" in inspect.signature(last.predict).parameters


def means(predictor, Z):
    """Return what ``predict`` of a regressor returns; (n, 1)."""
    return checked("predict", predictor.predict(Z), (len(Z), 1))


def probabilities(classifier, Z, n_categories):
    """Return the probabilities of the codes 0..C-1; 0 for codes it has not seen."""
    codes = np.asarray(classifier.classes_).astype(int)
    prob = np.zeros((len(Z), n_categories))
    predicted = classifier.predict_proba(Z)
    prob[:, codes] = checked("predict_proba", predicted, (len(Z), len(codes)))
    total = prob.sum(axis=1, keepdims=True)
    if (prob < 0).any() or np.abs(total - 1).max(initial=0) > 0.01:  # not rounding
        raise ValueError(
            "predict_proba must return probabilities that add up to 1, got "
            f"{prob[np.abs(total - 1).argmax(), codes].tolist()}"
        )
    return prob / total


def checked(method, returned, shape):
    """Return what a method of a predictor returned as numbers of a shape."""
    returned = np.asarray(returned, dtype=np.float64)
    if returned.size != np.prod(shape):
        raise ValueError(f"{method} returned shape {returned.shape}, expected {shape}")
    returned = returned.reshape(shape)
    n_bad = (~np.isfinite(returned)).any(axis=1).sum()
    if n_bad:
        raise ValueError(
            f"{method} must return finite numbers, got others in {n_bad} of "
            f"{shape[0]} rows"
        )
    return returned


def mean_of_trees(forest, Z, counts, n_categories):
    """Return the mean probabilities of the codes 0..C-1 by the trees that count."""
    codes = forest.classes_.astype(int)
    total, prob = np.zeros((len(Z), len(codes))), np.zeros((len(Z), n_categories))
    Z = Z.astype(np.float32)  # as in predict_proba of forests
    for tree, count in zip(forest.estimators_, counts.T, strict=True):
        if count.any():
            total[count] += tree.predict_proba(Z[count])
    prob[:, codes] = total / counts.sum(axis=1, keepdims=True)
    return prob


@contextmanager
def named(predictors, column, method):
    """Name the predictors and the column in errors that the block raises."""
    try:
        with np.errstate(all="warn", under="ignore"):
            yield
    except Exception as error:  # the predictor is the user's
        names = " or ".join(map(repr, predictors))
        raise ValueError(
            f"{names} failed to {method} column {plain(column)!r}: "
            f"{type(error).__name__}: {error}"
        ) from error


def columns_read(columns, read):
    """Return the columns that a predictor reads, None without any."""
    if not len(read):
        return None
    kinds, counts = columns.kinds, columns.n_categories
    return Columns([kinds[j] for j in read], [counts[j] for j in read])


class PredictorInputs:
    """The columns of rows that predictors read, coded as numbers where visible.

    A number is itself, levels are -1 to 1, amounts logarithms, and categories
    indicators.
    """

    def __init__(self, columns, rows, visible):
        self.columns, self.rows, self.visible = columns, rows, visible

    def __len__(self):
        return len(self.rows)

    @property
    def n_visible(self):
        """Numbers of visible columns, (n,)."""
        return self.visible.sum(axis=1)

    @property
    def fraction_visible(self):
        """Fractions of the columns that are visible, (n,)."""
        return self.n_visible / max(1, self.visible.shape[1])

    def given_to(self, predictor):
        """Return the inputs of a predictor, (n, p).

        Those that are not visible are NaN, if the predictor takes NaN. If not, they are
        0, and indicators of visible columns are inputs too. Without other columns there
        is one input, 0.
        """
        if not self.visible.shape[1]:
            return np.zeros((len(self), 1))
        seen = self.visible[:, self.columns.feature_of]
        has_tags = hasattr(predictor, "__sklearn_tags__")  # without them, no NaN
        if has_tags and get_tags(predictor).input_tags.allow_nan:
            return np.where(seen, self._coded, np.nan)
        coded = np.where(seen, np.nan_to_num(self._coded), 0.0)
        return np.column_stack([coded, self.visible])

    @cached_property
    def _coded(self):
        rows = torch.from_numpy(np.where(self.visible, self.rows, 0.0))
        return self.columns.inputs(rows).numpy()


def most_related(rows, weight, columns, n_related, rng):
    """Return the columns that tell most of each column, in the order of the table."""
    d = rows.shape[1]
    if n_related is None or n_related >= d - 1:
        return [np.delete(np.arange(d), j) for j in range(d)]
    if len(rows) > 2000:  # whose correlations have a standard error of 0.02
        kept = rng.choice(len(rows), 2000, replace=False)
        rows, weight = rows[kept], None if weight is None else weight[kept]
    related = []
    for association in associations(rows, weight, columns.kinds):
        best = np.argsort(-association, kind="stable")[:n_related]
        related.append(np.sort(best))
    return related


def associations(rows, weight, kinds):
    """Yield how much other columns tell of each column, -inf for itself; (d,).

    It is chi-square of the table of the groups of two columns, less its mean and a
    standard deviation under independence, divided by the number of rows.
    """
    weight = np.ones(len(rows)) if weight is None else weight
    # rows of which as many with equal weights have the same standard errors
    weight = weight * (weight.sum() / (weight**2).sum())
    groups = [_groups(x, weight, kind) for x, kind in zip(rows.T, kinds, strict=True)]
    n_groups = np.array([of_column.shape[1] for of_column in groups])
    first = np.cumsum([0, *n_groups])
    owner = np.repeat(np.arange(len(groups)), n_groups)
    groups = np.hstack(groups)
    weighted = weight[:, None].astype(np.float32) * groups
    for block in chunk_slices(len(kinds), len(owner) * n_groups.max(), CHUNK_ENTRIES):
        within = slice(first[block.start], first[block.stop])
        starts = first[block] - within.start
        table = (groups.T @ weighted[:, within]).astype(np.float64)
        # sums over the groups of one of two columns, of rows where both are present
        of_rows = np.add.reduceat(table, starts, axis=1)
        of_columns = np.add.reduceat(table, first[:-1], axis=0)
        n_rows = np.maximum(np.add.reduceat(of_rows, first[:-1], axis=0).T, 1.0)
        expected = of_rows[:, owner[within] - block.start] * of_columns[owner]
        terms = table**2 / np.maximum(expected, TINY)
        terms = np.add.reduceat(np.add.reduceat(terms, starts, axis=1), first[:-1]).T
        dof = (n_groups[block, None] - 1) * (n_groups - 1)
        association = terms - 1 - (dof + np.sqrt(2 * dof)) / n_rows
        association[dof == 0] = -np.inf
        association[np.arange(len(dof)), np.arange(len(kinds))[block]] = -np.inf
        yield from association


def _groups(x, weight, kind):
    """Return indicators of the groups of a column, 0 in gaps; float32, (n, C).

    Four groups of numbers and levels show trends, and extremes in the middle. Beyond
    the most frequent categories, the others are one group.
    """
    present = ~np.isnan(x)
    _, value = np.unique(x[present], return_inverse=True)
    count = np.bincount(value, weight[present])
    if kind == "categorical":
        group = np.minimum((-count).argsort(kind="stable").argsort(), 10)
    else:  # by ranks, so that each has as many rows
        group = (4 * (count.cumsum() - count / 2) / count.sum()).astype(int)
    _, group = np.unique(group, return_inverse=True)
    indicators = np.zeros((len(x), 1 + group.max(initial=0)), dtype=np.float32)
    indicators[present, group[value]] = 1.0
    return indicators
