"""Weights of members for each column, from their predictions of hidden entries."""
# Those of log-probabilities maximise the log-probability of the mixture (Yao et al.,
# Bayesian Analysis 13, 2018, and 17, 2022); those of means minimise its squared error
# (Bates and Granger, Operational Research Quarterly 20, 1969). The hidden entries of a
# column count beside some that are like those of all columns of its kind.

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.special import logsumexp

from sklearn_mpt._optim.weights import (
    stacking_weights,
    weights_by_em,
)

# Entries like those of all columns that are added to those of a column, for weights of
# log-probabilities and of means. Squared errors vary more, above all of skewed numbers.
PSEUDO_ENTRIES, PSEUDO_ERRORS = 10.0, 200.0
# Gain, in nats per hidden entry, that is worth the time of a member.
MIN_GAIN = 3e-3
WEIGHT_TOL = 1e-3  # EM ends when a step changes no weight by more
MIN_WEIGHT = 0.02  # of a member, on average or a tenth of it in a single column
WORST = 1e6  # in place of what is not finite, in nats or standard deviations


class ModelWeights(NamedTuple):
    """Weights of members for each column; each (n_models, d), columns add up to 1."""

    # log_prob : of conditionals. mean : of expectations, for columns of numbers.

    log_prob: np.ndarray
    mean: np.ndarray


class HiddenEntries(NamedTuple):
    """The hidden entries, and what members predict of them."""

    # columns : (n_entries,). is_number : (d,). log_prob : (n_models, n_entries), NaN
    # where a member predicts none. error : in deviations of the column, 0 for no
    # numbers.

    columns: np.ndarray
    is_number: np.ndarray
    log_prob: np.ndarray
    error: np.ndarray
    weight: np.ndarray

    def take(self, models):
        return self._replace(log_prob=self.log_prob[models], error=self.error[models])

    def weights(self):
        """Return the best weights of both kinds."""
        log_prob = np.zeros((len(self.log_prob), len(self.is_number)))
        mean = np.zeros(log_prob.shape)
        log_prob[0] = mean[0] = 1.0
        for is_number in (True, False):
            columns = np.flatnonzero(self.is_number == is_number)
            entries = np.isin(self.columns, columns)
            if not entries.any():
                continue
            predicts = ~np.isnan(self.log_prob[:, entries]).any(axis=1)
            of = np.ix_(np.flatnonzero(predicts), columns)
            part = self._replace(
                columns=np.searchsorted(columns, self.columns[entries]),
                is_number=self.is_number[columns],
                log_prob=self.log_prob[np.ix_(predicts, entries)],
                error=self.error[np.ix_(predicts, entries)],
                weight=self.weight[entries],
            )
            log_prob[of] = log_prob_weights(part)
            if is_number:
                mean[of] = mean_weights(part)
        return ModelWeights(log_prob, mean)

    def mean_log_prob(self, weights):
        """Return the mean log-probability of the mixture; weights : (n_models, d)."""
        log_prob = np.nan_to_num(self.log_prob, nan=-WORST)
        mixture = mixed(log_prob, weights[:, self.columns])
        return np.average(mixture, weights=self.weight)

    def mean_error(self, weights):
        """Return the errors of the expectations of the mixture, (n_entries,)."""
        return (weights.mean[:, self.columns] * self.error).sum(axis=0)

    def gains(self):
        """Return what the second of two members gains on the first, and noise."""
        # Both are pairs: of log-probabilities, and of squared errors in nats, per
        # entry.
        first, second = self.error
        n = len(self.is_number)
        count = np.bincount(self.columns, self.weight, n)
        squares = np.bincount(self.columns, self.weight * (first**2 + second**2) / 2, n)
        squares = np.maximum(squares / np.maximum(count, 1e-12), 1e-30)[self.columns]
        by_entry = (
            np.diff(self.log_prob, axis=0)[0],
            (first**2 - second**2) / squares / 2,
        )
        fraction = self.weight / self.weight.sum()
        gains = np.array([fraction @ gain for gain in by_entry])
        noises = [
            np.sqrt(fraction**2 @ (gain - mean) ** 2)
            for gain, mean in zip(by_entry, gains, strict=True)
        ]
        return gains, np.array(noises)


def log_prob_weights(hidden):
    """Return weights of log-probabilities for each column; (n_models, d)."""
    common = stacking_weights(hidden.log_prob, hidden.weight, tol=WEIGHT_TOL)[:, None]
    likelihood = np.exp(hidden.log_prob - hidden.log_prob.max(axis=0))
    n = len(hidden.is_number)

    def expected_counts(weights):
        shares = weights[:, hidden.columns] * likelihood
        shares = hidden.weight * shares / shares.sum(axis=0)
        return np.stack([np.bincount(hidden.columns, row, n) for row in shares])

    start = np.repeat(common, n, axis=1)
    prior = PSEUDO_ENTRIES * common
    return weights_by_em(start, expected_counts, prior, axis=0, tol=WEIGHT_TOL)


def mean_weights(hidden):
    """Return weights of expectations for each column of numbers; (n_models, d)."""
    # A member worse in a column than the first one, independent columns, has no weight.
    # Entries like those of other columns have the size of the least error in the
    # column, so that a column that one member fills exactly has its weights.
    n_models, d = len(hidden.error), len(hidden.is_number)
    count = np.bincount(hidden.columns, hidden.weight, d)
    products = (hidden.error[:, None] * hidden.error).reshape(n_models**2, -1)
    sums = np.stack(
        [np.bincount(hidden.columns, hidden.weight * row, d) for row in products]
    ).T.reshape(d, n_models, n_models)
    least = sums.diagonal(axis1=1, axis2=2).min(axis=1) / np.maximum(count, 1e-12)
    least = np.maximum(least, 1e-30)
    seen = count > 0
    common = (sums[seen] / least[seen, None, None]).sum(axis=0) / count.sum()
    weights = np.zeros((n_models, d))
    for j in range(d):
        matrix = common
        if count[j]:
            matrix = sums[j] / least[j] + PSEUDO_ERRORS * common
        is_no_worse = matrix.diagonal() <= matrix[0, 0]
        weights[is_no_worse, j] = _least_squares_weights(
            matrix[np.ix_(is_no_worse, is_no_worse)]
        )
    return weights


def _least_squares_weights(matrix):
    """Return weights w, not negative, with sum 1 and the smallest w' matrix w."""
    matrix = matrix / matrix.diagonal().min()
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    # If w' A w is smallest among those with sum 1, then so is w' A w + (1' w - 1)^2
    # up to a factor of w.
    system = np.vstack([root, np.ones(len(matrix))])
    solution, _ = nnls(system, np.append(np.zeros(len(root)), 1.0))
    return solution / solution.sum()


def kept_models(hidden):
    """Return the indices of members with some weight, and the first one."""
    weights = np.maximum(*hidden.weights())
    kept = (weights.mean(axis=1) > MIN_WEIGHT) | (weights.max(axis=1) > 10 * MIN_WEIGHT)
    kept[0] = True
    return np.flatnonzero(kept)


def mixed(log_probs, weights):
    """Return log-probabilities of a mixture; (n_models, ...) -> (...)."""
    weights = np.asarray(weights)
    weights = weights.reshape(
        *weights.shape, *[1] * (np.ndim(log_probs) - weights.ndim)
    )
    return logsumexp(log_probs, b=np.maximum(weights, 1e-300), axis=0)
