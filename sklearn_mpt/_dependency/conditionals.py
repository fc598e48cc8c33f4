"""Conditional distributions of a column, given the results of predictors.

All distributions have a little of one that does not depend on the other columns.
Arguments `inputs` are `PredictorInputs` of n rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from sklearn_mpt._dependency.families import FAMILIES, WIDE
from sklearn_mpt._dependency.predictors import (
    LeafMoments,
    has_leaves,
    has_std,
    probabilities,
    with_std,
)

WIDTH = 2.0  # of the wide component, in standard deviations of the column
LEVELS = "ordinal", "partial_credit"  # kinds with an order


class ColumnConditional(ABC):
    """The distribution of a column given others.

    Parameters
    ----------
    predictors : list of estimators
        Those of the column; empty if it has one value.
    learned : dict
        What else `learn` functions of `training` return.
    share : float
        Weight of the distribution that does not depend on the other columns.
    """

    n_outputs = 1  # how many numbers `predict` returns

    def __init__(self, predictors: list, learned: Mapping[str, Any], share: float):
        self.predictor = predictors[0] if predictors else None
        self.learned, self.share = learned, share

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

    def __init__(self, predictors, learned, share):
        super().__init__(predictors, learned, share)
        self.marginal = learned["marginal"]
        self.n_outputs = 1 if len(self.marginal) == 2 else len(self.marginal)

    def prob(self, inputs):
        """Return the probability of each code; (n, C)."""
        if self.predictor is None:
            return np.tile(self.marginal, (len(inputs), 1))
        Z = inputs.given_to(self.predictor)
        predicted = probabilities(self.predictor, Z, len(self.marginal))
        return (1 - self.share) * predicted + self.share * self.marginal

    def log_prob(self, inputs, x):
        return np.log(self.prob(inputs)[np.arange(len(x)), x.astype(int)])

    def log_probs(self, inputs):
        """Return the log-probability of each code; (n, C)."""
        return np.log(self.prob(inputs))

    def mean(self, inputs):
        prob, kind = self.prob(inputs), self.learned["kind"]
        if kind == "bernoulli":
            return prob[:, 1]
        if kind in LEVELS:
            return (prob.cumsum(axis=1)[:, :-1] < 0.5).sum(axis=1).astype(float)
        return prob.argmax(axis=1).astype(float)

    def draw(self, inputs, uniform):
        level = self.prob(inputs).cumsum(axis=1)[:, :-1]
        return (level <= uniform[:, :1]).sum(axis=1).astype(float)

    def predict(self, inputs):
        prob = self.prob(inputs)
        return prob[:, 1:] if self.n_outputs == 1 else prob


class NumberConditional(ColumnConditional):
    """A mixture of components of one family with equal weights, and a wide one."""

    def __init__(self, predictors, learned, share):
        super().__init__(predictors, learned, share)
        self.family, self.wide = FAMILIES[learned["kind"]], WIDE[learned["kind"]]
        self._leaves = None

    def _moments(self, inputs):
        """Return means and variances of the components; (n, n_components) each."""
        mean, variance = self._predicted(inputs)
        variance = np.maximum(variance, self.learned["least_variance"])
        return np.maximum(mean, self.learned["least_mean"]), variance

    def _predicted(self, inputs):
        learned, predictor = self.learned, self.predictor
        if predictor is None:
            prediction = np.ones((len(inputs), 1))
            return learned["mean"] * prediction, learned["variance"] * prediction
        Z = inputs.given_to(predictor)
        if has_leaves(predictor):
            if self._leaves is None:
                self._leaves = LeafMoments(predictor)
            return self._leaves.moments(Z)
        if has_std(predictor):
            return with_std(predictor, Z)
        mean = np.reshape(predictor.predict(Z), (-1, 1))
        return mean, learned["residual_variance"][inputs.n_visible][:, None]

    @property
    def _wide_moments(self):
        return self.learned["mean"], WIDTH**2 * self.learned["variance"]

    def log_prob(self, inputs, x):
        log_prob_by_predictor = self.family.log_prob(x[:, None], *self._moments(inputs))
        mixture = logsumexp(log_prob_by_predictor, axis=1) - np.log(
            log_prob_by_predictor.shape[1]
        )
        wide = self.wide.log_prob(x, *self._wide_moments)
        return np.logaddexp(np.log1p(-self.share) + mixture, np.log(self.share) + wide)

    def mean(self, inputs):
        """Return expectations, without the wide component."""
        return self.family.expect(*self._moments(inputs)).mean(axis=1)

    def draw(self, inputs, uniform):
        mean, variance = self._moments(inputs)
        place = (uniform[:, 0] - self.share) / (1 - self.share) * mean.shape[1]
        chosen = np.maximum(place, 0).astype(int)[:, None]
        mean, variance = (
            np.take_along_axis(part, chosen, axis=1)[:, 0] for part in (mean, variance)
        )
        drawn = self.family.draw(uniform[:, 1], mean, variance)
        wide = self.wide.draw(uniform[:, 1], *self._wide_moments)
        return np.where(place < 0, wide, drawn)


class AmountConditional(ColumnConditional):
    """Zero with some probability, or a positive amount."""

    def __init__(self, predictors, learned, share):
        super().__init__(predictors, learned, share)
        n_signs = int(learned["has_both_signs"])
        self.sign = CategoryConditional(predictors[:n_signs], learned["sign"], share)
        self.amount = NumberConditional(predictors[n_signs:], learned["amount"], share)

    def log_prob(self, inputs, x):
        log_prob = self.sign.log_prob(inputs, x > 0)
        is_positive = x > 0
        if is_positive.any():
            log_prob[is_positive] += self.amount.log_prob(
                inputs.take(is_positive), x[is_positive]
            )
        return log_prob

    def mean(self, inputs):
        return self.sign.prob(inputs)[:, 1] * self.amount.mean(inputs)

    def draw(self, inputs, uniform):
        zero = self.sign.prob(inputs)[:, 0]
        rest = np.clip((uniform[:, 0] - zero) / (1 - zero), 0, 1 - 1e-12)
        amount = self.amount.draw(inputs, np.stack([rest, uniform[:, 1]], 1))
        return np.where(uniform[:, 0] < zero, 0.0, amount)


def conditional_of(predictors, learned, share):
    """Return the conditional of a column from what was learned of it."""
    kind = learned["kind"]
    if kind == "zero_lognormal":
        return AmountConditional(predictors, learned, share)
    of_kind = NumberConditional if kind in FAMILIES else CategoryConditional
    return of_kind(predictors, learned, share)
