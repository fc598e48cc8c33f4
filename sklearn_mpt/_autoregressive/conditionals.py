r"""Conditional distributions of a column, given the results of predictors.

Each distribution is mixed with a little of one that does not depend on the other
columns, so that no value is impossible. Arguments `inputs` are `PredictorInputs` of n
rows.

Given a forest, a number has a mixture of shapes: the normal distributions, or others of
its family, of the leaves of all trees; one with the mean of the forest and the
deviation of this mixture times each of `SCALES`; and, if numbers repeat, the numbers in
the leaves themselves [2]_, uniform within the resolution. The mixture over trees is
wider than the errors of the forest, because a mean of trees is better than one tree:
linear pools of calibrated distributions are too wide [1]_. Probabilities of categories
are mixed with the frequencies of all rows.

The weights are fitted to rows out of the bags of trees or, without bootstrap, to those
of folds: for rows of which nothing is visible and for those of which all is. They are
linear in the fraction of visible columns between these.

.. [1] R. Ranjan and T. Gneiting, "Combining probability forecasts", Journal of the
   Royal Statistical Society B 72, 2010.
.. [2] N. Meinshausen, "Quantile regression forests", Journal of Machine Learning
   Research 7, 2006.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp

from sklearn_mpt._autoregressive.order_mixture import OrderMixture
from sklearn_mpt._autoregressive.predictors import (
    PredictorInputs,
    checked,
    columns_read,
    has_std,
    means,
    named,
    probabilities,
)
from sklearn_mpt._likelihoods import LIKELIHOODS
from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._likelihoods.counts import MAX_LOG, NegativeBinomial
from sklearn_mpt._matrices import drawn_codes, median_codes
from sklearn_mpt._numbers import FLOAT_BYTES, ROUNDING

# Factors of standard deviations. What one factor would lose is in
# benchmarks/RESULTS.rst, "Dependency networks: calibration of forests".
SCALES = np.array([0.5, 1.0, 1.5])


class ColumnConditional(ABC):
    """The distribution of a column given others."""

    n_outputs = 1  # how many numbers `predict` returns

    def __init__(
        self, predictors: list, learned: Mapping[str, Any], marginal_weight: float
    ):
        self.predictor = predictors[0] if predictors else None
        self.learned, self.marginal_weight = learned, marginal_weight

    @abstractmethod
    def log_prob(self, inputs, x):
        """Return log-probabilities or log-densities of the entries x; (n,)."""

    @abstractmethod
    def mean(self, inputs):
        """Return expectations, medians of levels or most probable categories; (n,)."""

    @abstractmethod
    def draw(self, inputs, uniform):
        """Draw entries from uniform noise (n, 2); (n,)."""

    def predict(self, inputs):
        """Return expectations of numbers, or probabilities of categories; (n, q)."""
        return self.mean(inputs)[:, None]


class CategoryConditional(ColumnConditional):
    """Probabilities of the codes 0..C-1."""

    def __init__(self, predictors, learned, marginal_weight):
        super().__init__(predictors, learned, marginal_weight)
        self.marginal = learned["marginal"]
        self.n_outputs = 1 if len(self.marginal) == 2 else len(self.marginal)

    def prob(self, inputs):
        """Return the probability of each code; (n, C)."""
        if self.predictor is None:
            return np.tile(self.marginal, (len(inputs), 1))
        Z = inputs.given_to(self.predictor)
        predicted = probabilities(self.predictor, Z, len(self.marginal))
        if "marginal_weight" in self.learned:
            ends, visible = self.learned["marginal_weight"], inputs.fraction_visible
            weight = interpolated(ends, visible)[:, None]
            predicted = (1 - weight) * predicted + weight * self.marginal
        prob = (1 - self.marginal_weight) * predicted
        prob += self.marginal_weight * self.marginal
        unseen = np.setdiff1d(np.arange(prob.shape[1]), self.predictor.classes_)
        if len(unseen):
            prob[:, unseen] = 0.0
            prob *= (1 - self.marginal[unseen].sum()) / prob.sum(axis=1, keepdims=True)
            prob[:, unseen] = self.marginal[unseen]
        return prob

    def log_prob(self, inputs, x):
        return np.log(self.prob(inputs)[np.arange(len(x)), x.astype(int)])

    def mean(self, inputs):
        prob, kind = self.prob(inputs), self.learned["kind"]
        if kind == "bernoulli":
            return prob[:, 1]
        if kind in ORDERED_KINDS:
            return median_codes(prob).astype(float)
        return prob.argmax(axis=1).astype(float)

    def draw(self, inputs, uniform):
        return drawn_codes(self.prob(inputs), uniform[:, :1]).astype(float)

    def predict(self, inputs):
        prob = self.prob(inputs)
        return prob[:, 1:] if self.n_outputs == 1 else prob


class NumberConditional(ColumnConditional):
    """A distribution of a family with a mean and a variance, and a wide one."""

    def __init__(self, predictors, learned, marginal_weight):
        super().__init__(predictors, learned, marginal_weight)
        self.family = FAMILIES[learned["kind"]]
        self.wide_family = WIDE_FAMILIES[learned["kind"]]
        # moments of a component that does not depend on other columns
        wide_variance = self.wide_family.wide_scale**2 * learned["variance"]
        self.wide = learned["mean"], wide_variance
        self.min_mean, self.min_variance = learned["min_mean"], learned["min_variance"]

    def _predicted(self, inputs):
        """Return means and variances; (n,) each."""
        learned, predictor = self.learned, self.predictor
        if predictor is None:
            ones = np.ones(len(inputs))
            return learned["mean"] * ones, learned["variance"] * ones
        Z = inputs.given_to(predictor)
        if has_std(predictor):
            answers = predictor.predict(Z, return_std=True)
            shape = len(Z), 1
            mean, std = (checked("predict", answer, shape)[:, 0] for answer in answers)
            return mean, std**2
        variance = learned["residual_variance"][inputs.n_visible]
        return means(predictor, Z)[:, 0], variance

    def _within(self, mean, variance):
        """Return means and variances that are not less than the least ones."""
        return np.maximum(mean, self.min_mean), np.maximum(variance, self.min_variance)

    def log_prob(self, inputs, x):
        return self.add_wide(self._narrow_log_prob(inputs, x), x)

    def add_wide(self, log_prob, x):
        """Return log-densities of the mixture with the wide component, (..., n)."""
        weight, wide = self.marginal_weight, self.wide_family.log_prob(x, *self.wide)
        return np.logaddexp(np.log1p(-weight) + log_prob, np.log(weight) + wide)

    def _narrow_log_prob(self, inputs, x):
        return self.family.log_prob(x, *self._within(*self._predicted(inputs)))

    def mean(self, inputs):
        weight, wide = self.marginal_weight, self.wide_family.expect(*self.wide)
        return (1 - weight) * self._narrow_mean(inputs) + weight * wide

    def _narrow_mean(self, inputs):
        return self.family.expect(*self._within(*self._predicted(inputs)))

    def draw(self, inputs, uniform):
        choice, uniform = uniform.T
        rest = (choice - self.marginal_weight) / (1 - self.marginal_weight)
        drawn = self._draw_narrow(inputs, np.maximum(rest, 0), uniform)
        wide = self.wide_family.draw(uniform, *self.wide)
        return np.where(choice < self.marginal_weight, wide, drawn)

    def _draw_narrow(self, inputs, choice, uniform):
        return self.family.draw(uniform, *self._within(*self._predicted(inputs)))


class ForestConditional(NumberConditional):
    """The mixture of the shapes of a number given a forest."""

    def __init__(self, predictors, learned, marginal_weight):
        super().__init__(predictors, learned, marginal_weight)
        self.leaves, self.values = Leaves(self.predictor), None
        if learned["values"] is not None:
            self.values = LeafValues(**learned["values"])

    def _shapes(self, inputs):
        """Return leaves, normal components, and weights of shapes (n_shapes, n)."""
        leaves = self.leaves.of(inputs.given_to(self.predictor))
        normals = self.leaves.shapes(leaves, (self.min_mean, self.min_variance))
        weights = interpolated(self.learned["shape_weights"], inputs.fraction_visible)
        return leaves, normals, weights

    def _narrow_log_prob(self, inputs, x):
        leaves, normals, weights = self._shapes(inputs)
        log_prob = normal_log_prob(self.family, x, normals)
        if self.values is not None:
            args = self.family, x, leaves, self.min_variance
            log_prob = np.vstack([log_prob, self.values.log_prob(*args)])
        with np.errstate(divide="ignore"):  # weights without calibration
            return np.logaddexp.reduce(log_prob + np.log(weights), axis=0)

    def _narrow_mean(self, inputs):
        leaves, normals, weights = self._shapes(inputs)
        each = self.family.expect(*normals)
        means = [each[:, : leaves.shape[1]].mean(axis=1), *each[:, leaves.shape[1] :].T]
        if self.values is not None:
            of_values = self.values.mean(
                leaves, lambda y: self.family.expect(y, self.min_variance)
            )
            means.append(of_values.mean(axis=1))
        return (weights * means).sum(axis=0)

    def _draw_narrow(self, inputs, choice, uniform):
        leaves, (means, variances), weights = self._shapes(inputs)
        shape, row = drawn_codes(weights.T, choice[:, None]), np.arange(len(leaves))
        # what the choice of a shape leaves chooses a tree, and a number in its leaf
        before = weights.cumsum(axis=0)[shape, row] - weights[shape, row]
        position = np.clip((choice - before) / weights[shape, row], 0, 1)
        position = position * leaves.shape[1]
        tree = np.minimum(position.astype(int), leaves.shape[1] - 1)
        of_scale = np.minimum(leaves.shape[1] - 1 + shape, means.shape[1] - 1)
        at = row, np.where(shape == 0, tree, of_scale)
        drawn = self.family.draw(uniform, means[at], variances[at])
        if self.values is None:
            return drawn
        value = self.values.draw(leaves[row, tree], position - tree)
        value = value + (uniform - 0.5) * resolution(self.min_variance)
        is_value = shape == len(weights) - 1
        return np.where(is_value, self.family.inverse_target(value), drawn)


class ResidualFamily(NamedTuple):
    """A likelihood by means and variances, which are those of `target` of x."""

    kind: str  # name of the likelihood
    is_log: bool = False  # whether the target is the logarithm of x
    is_count: bool = False  # whose means are positive
    # Width of the wide component, in standard deviations of the target. It is wider
    # than the column, because a number that is predicted badly may lie beyond those
    # seen.
    wide_scale: float = 2.0

    def target(self, x):
        """Return the number that a predictor learns."""
        return np.log(x) if self.is_log else x

    def inverse_target(self, y):
        """Return x, given its target."""
        return np.exp(np.minimum(y, MAX_LOG)) if self.is_log else y

    def log_jacobian(self, x):
        """Return the logarithm of the derivative of the target."""
        return -np.log(x) if self.is_log else np.zeros_like(x)

    def log_prob(self, x, mean, variance):
        """Return log-densities or log-probabilities of x."""
        likelihood, location = self._at(mean, variance)
        return likelihood.entry_log_prob(_tensor(x), location).numpy()

    def expect(self, mean, variance):
        """Return the expectation of x."""
        likelihood, location = self._at(mean, variance)
        return likelihood.mean(location).numpy()

    def draw(self, uniform, mean, variance):
        """Return the quantiles of x at uniform noise."""
        likelihood, location = self._at(mean, variance)
        return likelihood.draw(location, _tensor(uniform)).numpy()

    def _at(self, mean, variance):
        """Return a likelihood and its locations with these means and variances."""
        location, dispersion = mean, variance
        if self.is_count:
            dispersion = np.maximum((variance - mean) / mean**2, NegativeBinomial.floor)
            location = np.log(mean)
        if self.kind == "poisson":
            dispersion = 1.0  # it has none
        likelihood = LIKELIHOODS[self.kind].of_columns(1, 0)
        return likelihood.at(_tensor(np.log(dispersion))), _tensor(location)


def _tensor(array):
    return torch.from_numpy(np.asarray(array, dtype=np.float64))


FAMILIES: dict[str, ResidualFamily] = {
    "gaussian": ResidualFamily("gaussian"),
    # twice as wide has an expectation far beyond what was seen
    "lognormal": ResidualFamily("lognormal", is_log=True, wide_scale=1.0),
    "poisson": ResidualFamily("poisson", is_count=True),
    "negative_binomial": ResidualFamily("negative_binomial", is_count=True),
}
"""Families by the kinds of columns."""

WIDE_FAMILIES: dict[str, ResidualFamily] = FAMILIES | {
    "poisson": FAMILIES["negative_binomial"]
}
"""Families of the wide component of each kind, whose variance is free."""


def resolution(min_variance):
    """Return the width of the uniform distribution of this variance."""
    return np.sqrt(12 * min_variance)


def interpolated(ends, visible):
    """Return what is linear in the fraction of visible columns; (..., n)."""
    return ends[0][..., None] * (1 - visible) + ends[1][..., None] * visible


class Leaves:
    """Means and variances of the rows in the leaves of a forest."""

    def __init__(self, forest):
        self.trees = [tree.tree_ for tree in forest.estimators_]
        self.first = np.cumsum([0, *(tree.node_count for tree in self.trees[:-1])])
        self.mean = np.concatenate([tree.value[:, 0, 0] for tree in self.trees])
        self.variance = np.concatenate([tree.impurity for tree in self.trees])

    def of(self, Z):
        """Return the leaf of each tree, counted through all trees; (n, n_trees)."""
        Z = np.asarray(Z, dtype=np.float32)  # as trees take them without checks
        # tree by tree, since few rows take less time than the start of jobs
        return np.column_stack([tree.apply(Z) for tree in self.trees]) + self.first

    def shapes(self, leaves, limits, counts=None):
        """Return means and variances of components, (n, n_trees + n_scales) each.

        They are those of the leaves of trees, and those of the mixture of the trees
        that count, by `SCALES`. limits : least mean and variance.
        """
        mean, variance = self.mean[leaves], self.variance[leaves]
        center = np.average(mean, 1, weights=counts)[:, None]
        squares = variance + (mean - center) ** 2
        total = np.average(squares, 1, weights=counts)[:, None]
        means = np.hstack([mean, center.repeat(len(SCALES), 1)])
        variances = np.hstack([variance, total * SCALES**2])
        return np.maximum(means, limits[0]), np.maximum(variances, limits[1])


def normal_log_prob(family, x, shapes, counts=None):
    """Return log-densities in the mixture of leaves, and by `SCALES`; (n_shapes, n)."""
    log_prob = family.log_prob(x[:, None], *shapes)
    of_trees, of_scales = np.split(log_prob, [-len(SCALES)], axis=1)
    counts = np.ones_like(of_trees) if counts is None else counts
    of_trees = logsumexp(of_trees, axis=1, b=counts / counts.sum(1, keepdims=True))
    return np.vstack([of_trees, of_scales.T])


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
        """Collect the numbers of rows; `counts` are those of `draws_of_trees`."""
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
        return {"values": self.values, "key": self.key, "count": self.count}

    def _first_pairs(self, leaves, code):
        """Return the first pair of a leaf whose number has at least this code."""
        width = len(self.values) + 1
        return np.searchsorted(self.key, leaves * width + code)

    def log_prob(self, family, x, leaves, min_variance, counts=None):
        """Return log-densities of the mixture over trees that count; (n,)."""
        y, width = family.target(x), resolution(min_variance)
        first, last = (
            self._first_pairs(leaves, np.searchsorted(self.values, end)[:, None])
            for end in (y - width / 2, y + width / 2)
        )
        near = np.average(self.total[last] - self.total[first], 1, weights=counts)
        with np.errstate(divide="ignore"):
            return np.log(near / width) + family.log_jacobian(x)

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


class NetworkDensity(OrderMixture):
    """The mixture of a few orders of columns, and the conditionals of predictors."""

    def __init__(
        self, columns, predictors, learned, read, marginal_weight, units, orders, names
    ):
        super().__init__(units, orders)
        self.names, self.predictors, self.read = names, predictors, read
        self.columns = [columns_read(columns, of_column) for of_column in read]
        self.conditionals: list[ColumnConditional] = []
        for of_column, fitted in zip(predictors, learned, strict=True):
            kind = CategoryConditional
            if fitted["kind"] in FAMILIES:
                has_shapes = "shape_weights" in fitted
                kind = ForestConditional if has_shapes else NumberConditional
            self.conditionals.append(kind(of_column, fitted, marginal_weight))
        # results of the trees of a forest, or of categories, and what is made of them
        n_values = 10 * max(60, max(columns.n_categories))
        self.n_values = len(columns.feature_of) + n_values

    @property
    def row_bytes(self):
        """Approximate memory for scoring a row along all orders."""
        return FLOAT_BYTES * self.n_values * len(self.orders)

    def _call(self, method, rows, visible, row, column, *args):
        """Return what a method of the conditional of a column returns, as a tensor."""
        at = np.ix_(row.numpy(), self.read[column])
        of_read = (array.numpy()[at] for array in (rows, visible))
        inputs = PredictorInputs(self.columns[column], *of_read)
        args = (arg.numpy() for arg in args)
        with named(self.predictors[column], self.names[column], "predict"):
            result = getattr(self.conditionals[column], method)(inputs, *args)
        return torch.from_numpy(np.ascontiguousarray(result, dtype=np.float64))

    def _call_at(self, method, rows, visible, row, column, *args):
        """Return what a method of conditionals returns for entries; (n_entries,)."""
        results = rows.new_empty(len(row))
        for j in column.unique().tolist():
            at = (column == j).nonzero()[:, 0]
            i = row[at]
            of_column = (arg[i, j] for arg in args)
            results[at] = self._call(method, rows, visible, i, j, *of_column)
        return results

    def log_prob(self, rows, visible, hidden):
        log_prob, (row, column) = torch.zeros_like(rows), hidden.nonzero().T
        log_prob[row, column] = self._call_at(
            "log_prob", rows, visible, row, column, rows
        )
        return log_prob

    def log_prob_of_entries(self, rows, visible, column):
        row = torch.arange(len(rows), device=rows.device)
        return self._call_at("log_prob", rows, visible, row, column, rows)

    def mean(self, rows, visible, hidden=None):
        """Return expectations where hidden; None is wherever not visible."""
        hidden = ~visible if hidden is None else hidden
        means, (row, column) = rows.clone(), hidden.nonzero().T
        means[row, column] = self._call_at("mean", rows, visible, row, column)
        return means

    def draw_entries(self, rows, visible, column, uniform):
        row = torch.arange(len(rows), device=rows.device)
        return self._call_at("draw", rows, visible, row, column, uniform)

    def predict(self, X):
        """Return the predictions of all columns from the others; (n, n_outputs)."""
        rows, present = self._read(X)
        every = torch.arange(len(rows), device=rows.device)
        outputs = [
            self._call("predict", rows, present, every, j)
            for j in range(len(self.conditionals))
        ]
        shift, scale = (
            unit.expand(len(outputs)) for unit in (self.units.shift, self.units.scale)
        )
        pairs = zip(outputs, shift, scale, strict=True)
        return torch.cat(
            [output * factor + start for output, start, factor in pairs], 1
        )

    @property
    def n_outputs(self):
        return sum(conditional.n_outputs for conditional in self.conditionals)
