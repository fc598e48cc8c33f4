"""Conditional distributions of a column, given the results of predictors.

Each distribution is mixed with a little of one that does not depend on the other
columns, so that no value is impossible. Arguments `inputs` are `PredictorInputs` of n
rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from sklearn_mpt._autoregressive.calibration import (
    SCALES,
    NumberComponents,
    cell,
    forest_components,
    interpolated,
    limited,
    resolution,
    values_log_prob,
)
from sklearn_mpt._autoregressive.category_calibration import calibrated_prob
from sklearn_mpt._autoregressive.families import FAMILIES, WideComponent
from sklearn_mpt._autoregressive.leaves import LeafMoments, LeafValues
from sklearn_mpt._autoregressive.predictors import (
    has_std,
    means,
    probabilities,
    with_std,
)
from sklearn_mpt._likelihoods.columns import ORDERED_KINDS
from sklearn_mpt._probabilities import drawn_codes, median_codes


class ColumnConditional(ABC):
    """The distribution of a column given others.

    Parameters
    ----------
    predictors : list of estimators
        Those of the column; empty if it has one value.
    learned : dict
        What else `learn` functions of `training` return.
    marginal_weight : float
        Weight of the distribution that does not depend on the other columns.
    """

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
        if "shape_weights" in self.learned:
            weights = interpolated(
                self.learned["shape_weights"], inputs.fraction_visible
            )
            predicted = calibrated_prob(predicted, self.marginal, weights)
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

    def log_probs(self, inputs):
        """Return the log-probability of each code; (n, C)."""
        return np.log(self.prob(inputs))

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
    """A mixture of components of one family, and a wide one."""

    def __init__(self, predictors, learned, marginal_weight):
        super().__init__(predictors, learned, marginal_weight)
        self.family = FAMILIES[learned["kind"]]
        self.wide = WideComponent.from_column(learned, marginal_weight)
        self.limits = learned["min_mean"], learned["min_variance"]

    def _components(self, inputs):
        """Return the components of rows, with means and variances within limits."""
        mean, variance = self._predicted(inputs)
        components = NumberComponents(mean, variance, np.ones_like(mean))
        return limited(components, self.limits)

    def _predicted(self, inputs):
        """Return means and variances; (n, 1) each."""
        learned, predictor = self.learned, self.predictor
        if predictor is None:
            ones = np.ones((len(inputs), 1))
            return learned["mean"] * ones, learned["variance"] * ones
        Z = inputs.given_to(predictor)
        if has_std(predictor):
            return with_std(predictor, Z)
        return means(predictor, Z), learned["residual_variance"][inputs.n_visible][
            :, None
        ]

    def log_prob(self, inputs, x):
        return self.wide.add_to_log_prob(self._mixture_log_prob(inputs, x), x)

    def _mixture_log_prob(self, inputs, x):
        return self._components(inputs).log_prob(self.family, x)

    def mean(self, inputs):
        return self.wide.add_to_mean(self._mixture_mean(inputs))

    def _mixture_mean(self, inputs):
        return self._components(inputs).mean_of(self.family)

    def draw(self, inputs, uniform):
        rest = np.maximum(
            (uniform[:, 0] - self.marginal_weight) / (1 - self.marginal_weight), 0
        )
        drawn = self._draw_mixture(inputs, rest, uniform[:, 1])
        wide = self.wide.draw(uniform[:, 1])
        return np.where(uniform[:, 0] < self.marginal_weight, wide, drawn)

    def _draw_mixture(self, inputs, choice, uniform):
        """Draw from the mixture, given noise for the component and for the number."""
        return self._components(inputs).draw(self.family, choice, uniform)


class ForestConditional(NumberConditional):
    """Shapes of the distribution of a number given a forest; see `calibration`."""

    def __init__(self, predictors, learned, marginal_weight):
        super().__init__(predictors, learned, marginal_weight)
        self.moments = LeafMoments(self.predictor)
        self.values = None
        if learned["values"] is not None:
            self.values = LeafValues(**learned["values"])

    def _leaves_and_components(self, inputs):
        """Return leaves, components within limits, and the weight of the values."""
        leaves = self.moments.leaves(inputs.given_to(self.predictor))
        visible = inputs.fraction_visible
        weights = interpolated(self.learned["shape_weights"], visible)
        components = forest_components(
            *self.moments.moments(leaves),
            np.ones(leaves.shape),
            weights[:, : 1 + len(SCALES)],
        )
        values_weight = weights[:, 1 + len(SCALES) :].sum(axis=1)
        return leaves, limited(components, self.limits), values_weight

    def _mixture_log_prob(self, inputs, x):
        leaves, components, weight = self._leaves_and_components(inputs)
        log_prob = components.log_prob(self.family, x)
        if self.values is None:
            return log_prob
        below, above = cell(self.family, x, self.limits[1])
        near = self.values.fraction(leaves, below, above).mean(axis=1)
        values = values_log_prob(self.family, x, weight * near, self.limits[1])
        return np.logaddexp(log_prob, values)

    def _mixture_mean(self, inputs):
        leaves, components, weight = self._leaves_and_components(inputs)
        mean = components.mean_of(self.family)
        if self.values is None:
            return mean
        value_means = self.values.mean(
            leaves, lambda y: self.family.expect(y, self.limits[1])
        )
        return mean + weight * value_means.mean(axis=1)

    def _draw_mixture(self, inputs, choice, uniform):
        leaves, components, weight = self._leaves_and_components(inputs)
        is_value = choice < weight
        rest = (choice - weight) / np.where(is_value, 1.0, 1 - weight)
        drawn = components.draw(self.family, np.maximum(rest, 0), uniform)
        if self.values is None:
            return drawn
        position = choice / np.where(is_value, weight, 1.0) * leaves.shape[1]
        tree = np.minimum(position.astype(int), leaves.shape[1] - 1)
        leaf = leaves[np.arange(len(leaves)), tree]
        value = self.values.draw(leaf, position - tree)
        value = value + (uniform - 0.5) * resolution(self.limits[1])
        return np.where(is_value, self.family.inverse_target(value), drawn)


def conditional_of(predictors, learned, marginal_weight):
    """Return the conditional of a column from what was learned of it."""
    kind = learned["kind"]
    if kind in FAMILIES:
        return number_conditional(predictors, learned, marginal_weight)
    return CategoryConditional(predictors, learned, marginal_weight)


def number_conditional(predictors, learned, marginal_weight):
    """Return the conditional of a column of numbers."""
    is_forest = "shape_weights" in learned
    conditional = ForestConditional if is_forest else NumberConditional
    return conditional(predictors, learned, marginal_weight)
