r"""Weights of models for each column, from their predictions of hidden entries.

There are two kinds of weights: log-probabilities describe a table, and means fill it
in. The weights of log-probabilities maximise the log-probability of the hidden entries
of a column under the mixture of the models [1]_, [2]_. The weights of means minimise
the squared error of the mixture of their expectations of a column of numbers [3]_. In
both, the hidden entries of a column count beside a few pseudo-entries that are like
those of all columns, so that a column with few hidden entries has nearly the weights of
the whole table.

.. [1] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average Bayesian
   predictive distributions", Bayesian Analysis 13, 2018.
.. [2] Y. Yao, G. Pirš, A. Vehtari and A. Gelman, "Bayesian hierarchical stacking: some
   models are (somewhere) useful", Bayesian Analysis 17, 2022.
.. [3] J. M. Bates and C. W. J. Granger, "The combination of forecasts", Operational
   Research Quarterly 20, 1969.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from sklearn_mpt._fitting.mixture_weights import (
    stacking_weights,
    weights_by_em,
)

# Entries like those of all columns that are added to those of a column, for weights of
# log-probabilities and of means. Squared errors vary more, above all of skewed numbers.
PSEUDO_ENTRIES, PSEUDO_ERRORS = 10.0, 200.0
# Gain, in nats per hidden entry, that is worth the time of a model: below it, no larger
# one of its kind is tried, and none is added to the mixture.
MIN_GAIN = 3e-3
# EM of weights of log-probabilities ends when a step changes none by more. A tenth of
# it changes nothing: "weights to 1e-4" in benchmarks/RESULTS.rst.
WEIGHT_TOL = 1e-3


class ModelWeights(NamedTuple):
    """Weights of models for each column; each (n_models, d), columns add up to 1.

    log_prob : of conditionals. mean : of expectations, for columns of numbers.
    """

    log_prob: np.ndarray
    mean: np.ndarray


class HiddenEntries(NamedTuple):
    """The hidden entries, and what models predict of them.

    columns : the column of each entry, (n_entries,). log_prob : log-probabilities of
    entries, (n_models, n_entries). error : errors of expectations, in standard
    deviations of the column, 0 for entries that are not numbers. weight : what each
    entry counts, (n_entries,).
    """

    columns: np.ndarray
    is_number: np.ndarray  # whether each column holds numbers, (d,)
    log_prob: np.ndarray
    error: np.ndarray
    weight: np.ndarray

    def take(self, models):
        """Return what some of the models predict, by their indices."""
        return self._replace(log_prob=self.log_prob[models], error=self.error[models])

    def sum_by_column(self, entries):
        """Return the sums of (k, n_entries) over the entries of each column; (k, d)."""
        n = len(self.is_number)
        weighted = [self.weight * row for row in entries]
        return np.stack([np.bincount(self.columns, row, n) for row in weighted])

    @property
    def count(self):
        return np.bincount(self.columns, self.weight, len(self.is_number))

    def mean(self, values):
        """Return the weighted mean of values of the entries, (n_entries,)."""
        return np.average(values, weights=self.weight)

    def weights(self):
        """Return the best weights of both kinds."""
        return ModelWeights(log_prob_weights(self), mean_weights(self))

    def value(self, weights):
        """Return two values of weights, in nats per hidden entry; larger is better.

        They are the mean log-probability of the mixture, and, up to a constant, that of
        normal distributions whose variances are the squared errors of its expectations
        in the columns of numbers.
        """
        log_prob, error = self.mean_log_prob(weights.log_prob), self.mean_error(weights)
        fraction = np.where(self.is_number, self.count, 0) / self.count.sum()
        return log_prob, -0.5 * fraction @ np.log(self.mean_squares(error))

    def mean_log_prob(self, weights):
        """Return the mean log-probability of the mixture; weights : (n_models, d)."""
        return self.mean(mixed(self.log_prob, weights[:, self.columns]))

    def mean_error(self, weights):
        """Return the errors of the expectations of the mixture, (n_entries,)."""
        return (weights.mean[:, self.columns] * self.error).sum(axis=0)

    def mean_squares(self, error):
        """Return the mean squared error of each column, beside those of all; (d,)."""
        square = self.sum_by_column([error**2])[0] + PSEUDO_ERRORS * self.mean(error**2)
        return square / (self.count + PSEUDO_ERRORS) + np.finfo(float).tiny

    def gains(self):
        """Return what the second of two models gains on the first, and standard errors.

        Both are pairs: of log-probabilities, and of squared errors in nats, as in
        `value`; per hidden entry.
        """
        first, second = self.error
        squares = self.mean_squares(first)[self.columns]
        by_entry = (
            np.diff(self.log_prob, axis=0)[0],
            (first**2 - second**2) / squares / 2,
        )
        gains = np.array([self.mean(gain) for gain in by_entry])
        fraction = self.weight / self.weight.sum()
        variances = [
            fraction**2 @ (gain - mean) ** 2
            for gain, mean in zip(by_entry, gains, strict=True)
        ]
        return gains, np.sqrt(variances)


def log_prob_weights(hidden):
    """Return weights of log-probabilities for each column; (n_models, d)."""
    common = stacking_weights(hidden.log_prob, hidden.weight, tol=WEIGHT_TOL)[:, None]
    likelihood = np.exp(hidden.log_prob - hidden.log_prob.max(axis=0))

    def expected_counts(weights):
        responsibilities = weights[:, hidden.columns] * likelihood
        return hidden.sum_by_column(responsibilities / responsibilities.sum(axis=0))

    start = np.repeat(common, len(hidden.is_number), axis=1)
    prior = PSEUDO_ENTRIES * common
    return weights_by_em(start, expected_counts, prior, axis=0, tol=WEIGHT_TOL)


def mean_weights(hidden):
    """Return weights of expectations for each column of numbers; (n_models, d).

    A model whose squared error in a column is larger than that of the first one,
    independent columns, has no weight there.
    """
    error, n_models = hidden.error, len(hidden.error)
    count = hidden.count
    products = error[:, None] * error
    sums = hidden.sum_by_column(products.reshape(n_models**2, -1)).T
    n_numbers = max(1, count[hidden.is_number].sum())
    common = sums[hidden.is_number].sum(axis=0) / n_numbers
    weights = np.zeros((n_models, len(count)))
    weights[0] = 1.0
    for j in np.flatnonzero(hidden.is_number):
        matrix = (sums[j] + PSEUDO_ERRORS * common) / (count[j] + PSEUDO_ERRORS)
        matrix = matrix.reshape(n_models, n_models)
        is_no_worse = matrix.diagonal() <= matrix[0, 0]
        weights[is_no_worse, j] = _least_squares_weights(
            matrix[np.ix_(is_no_worse, is_no_worse)]
        )
    return weights


def _least_squares_weights(matrix):
    """Return weights w, not negative, with sum 1 and the smallest w' matrix w."""
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    # If w' A w is smallest among those with sum 1, then so is w' A w + (1' w - 1)^2
    # up to a factor of w.
    system = np.vstack([root, np.ones(len(matrix))])
    solution, _ = nnls(system, np.append(np.zeros(len(root)), 1.0))
    return solution / solution.sum()


def kept_models(hidden):
    """Return which few models lose at most `MIN_GAIN` of both values of all; (k,).

    Each model is left out in turn, that of least weight first. The first, independent
    columns, is kept: its small weight bounds what a wrong prediction costs.
    """
    weights = hidden.weights()
    least = np.array(hidden.value(weights)) - MIN_GAIN
    kept = np.arange(len(hidden.log_prob))
    for model in 1 + np.sum(weights, axis=0)[1:].mean(axis=1).argsort():
        others = hidden.take(kept[kept != model])
        if (others.value(others.weights()) >= least).all():
            kept = kept[kept != model]
    return kept


def mixed(log_probs, weights):
    """Return log-probabilities of a mixture; (n_models, ...) -> (...).

    weights : (n_models,), or of a shape that broadcasts to `log_probs`.
    """
    weights = np.asarray(weights)
    if weights.ndim == 1:
        weights = weights.reshape(-1, *[1] * (np.ndim(log_probs) - 1))
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(log_probs + np.log(weights))
