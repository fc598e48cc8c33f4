"""Weights of members for each column, from their predictions of hidden entries."""
# Those of log-probabilities maximise the log-probability of the mixture (Yao et al.,
# Bayesian Analysis 13, 2018, and 17, 2022); those of means minimise its squared error
# (Bates and Granger, Operational Research Quarterly 20, 1969). The hidden entries of a
# column count beside some that are like those of all columns of its kind.

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.special import logsumexp

from sklearn_mpt._optim.weights import stacking_weights, weights_by_em

# Entries like those of all columns that are added to those of a column, for weights of
# log-probabilities and of means. Squared errors vary more, above all of skewed numbers.
PSEUDO_ENTRIES, PSEUDO_ERRORS = 10.0, 200.0
# Gain, in nats per hidden entry, that is worth the time of a member.
MIN_GAIN = 3e-3
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
        for is_number in np.unique(self.is_number):
            entries = self.is_number[self.columns] == is_number
            predicts = ~np.isnan(self.log_prob[:, entries]).any(axis=1)
            if not entries.any():
                continue
            of = np.ix_(predicts, self.is_number == is_number)
            part = self._replace(
                columns=self.columns[entries],
                log_prob=self.log_prob[np.ix_(predicts, entries)],
                error=self.error[np.ix_(predicts, entries)],
                weight=self.weight[entries],
            )
            log_prob[of] = log_prob_weights(part)[:, of[1][0]]
            if is_number:
                mean[of] = mean_weights(part)[:, of[1][0]]
        return ModelWeights(log_prob, mean)

    def kept(self):
        """Return the indices of members with some weight, and of the first one."""
        weights = np.maximum(*self.weights())
        is_kept = weights.mean(axis=1) > MIN_WEIGHT
        is_kept |= weights.max(axis=1) > 10 * MIN_WEIGHT
        return np.flatnonzero(is_kept | (np.arange(len(weights)) == 0))

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
        count = np.bincount(self.columns, self.weight)
        squares = np.bincount(self.columns, self.weight * (first**2 + second**2))
        scale = np.maximum(squares / np.maximum(count, 1e-12), 1e-30)[self.columns]
        by_entry = [self.log_prob[1] - self.log_prob[0], (first**2 - second**2) / scale]
        fraction = self.weight / self.weight.sum()
        gains = by_entry @ fraction
        return gains, np.sqrt((by_entry - gains[:, None]) ** 2 @ fraction**2)


def log_prob_weights(hidden):
    """Return weights of log-probabilities for each column; (n_models, d)."""
    common = stacking_weights(hidden.log_prob, hidden.weight, tol=1e-3)[:, None]
    likelihood = np.exp(hidden.log_prob - hidden.log_prob.max(axis=0))
    n = len(hidden.is_number)

    def expected_counts(weights):
        shares = weights[:, hidden.columns] * likelihood
        shares = hidden.weight * shares / shares.sum(axis=0)
        return np.stack([np.bincount(hidden.columns, row, n) for row in shares])

    start = np.repeat(common, n, axis=1)
    prior = PSEUDO_ENTRIES * common
    return weights_by_em(start, expected_counts, prior, axis=0, tol=1e-3)


def mean_weights(hidden):
    """Return weights of expectations for each column of numbers; (n_models, d)."""
    # A member worse in a column than the first one, independent columns, has no weight.
    # Entries like those of other columns have the size of the least error in the
    # column, so that a column that one member fills exactly has its weights.
    d = len(hidden.is_number)
    count = np.bincount(hidden.columns, hidden.weight, d)
    sums = [
        [np.bincount(hidden.columns, hidden.weight * a * b, d) for a in hidden.error]
        for b in hidden.error
    ]
    sums = np.moveaxis(sums, 2, 0)  # shape: (d, n_models, n_models)
    least = sums.diagonal(axis1=1, axis2=2).min(axis=1) / np.maximum(count, 1e-12)
    sums = sums / np.maximum(least, 1e-30)[:, None, None]
    matrices = sums + PSEUDO_ERRORS * sums[count > 0].sum(axis=0) / count.sum()
    weights = np.zeros((len(hidden.error), d))
    for j, matrix in enumerate(matrices):
        better = np.flatnonzero(matrix.diagonal() <= matrix[0, 0])
        values, vectors = np.linalg.eigh(
            matrix[np.ix_(better, better)] / matrix.diagonal().min()
        )
        # If w' A w is smallest among those with sum 1, then so is w' A w + (1' w - 1)^2
        # up to a factor of w.
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        target = np.append(np.zeros(len(root)), 1.0)
        solution, _ = nnls(np.vstack([root, np.ones(len(root))]), target)
        weights[better, j] = solution / solution.sum()
    return weights


def mixed(log_probs, weights):
    """Return log-probabilities of a mixture; (n_models, ...) -> (...)."""
    weights = np.asarray(weights)
    weights = weights.reshape(
        *weights.shape, *[1] * (np.ndim(log_probs) - weights.ndim)
    )
    return logsumexp(log_probs, b=np.maximum(weights, 1e-300), axis=0)
