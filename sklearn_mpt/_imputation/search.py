"""Try members on entries that are hidden, choose among them, and weigh them."""
# Weights of log-probabilities maximise the log-probability of the mixture (Yao et al.,
# Bayesian Analysis 13, 2018, and 17, 2022); those of means minimise its squared error
# (Bates and Granger, Operational Research Quarterly 20, 1969). The hidden entries of a
# column count beside some that are like those of all columns of its kind.

import time
import warnings
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.special import logsumexp

from sklearn_mpt._checks import seed_from, warn_caller
from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.laws import Laws
from sklearn_mpt._imputation.members import (
    SHRINKAGES,
    ColumnsAlone,
    Factors,
    Gaussians,
    Trees,
)
from sklearn_mpt._numbers import ROUNDING, TINY
from sklearn_mpt._optim.weights import stacking_weights, weights_by_em

HIDDEN_FRACTION = 0.2  # of the present entries
# Entries of coded rows on which members are tried, and fewest and most of these rows.
MAX_ENTRIES, MIN_ROWS, MAX_ROWS = 60_000, 500, 2000
# Most coded columns of Gaussians of all covariances, beyond which these take longer
# than factors, and of mixtures; also inputs of the trees of a column.
MAX_DENSE, MAX_COLUMNS = 140, 30
N_TRIED = 4  # columns of each kind on which trees are tried
# Gain of the mixture that is worth the time of the next member, in nats per hidden
# entry, or in the logarithm of the root mean squared error.
MIN_GAIN = 0.008
# Entries like those of all columns that are added to those of a column, for weights of
# log-probabilities and of means. Squared errors vary more, above all of skewed numbers.
PSEUDO_ENTRIES, PSEUDO_ERRORS = 10.0, 200.0
MIN_WEIGHT = 0.02  # of a member, on average or a tenth of it in a single column
WORST = 1e6  # in place of what is not finite, in nats or standard deviations
GAINED, NO_GAIN, FAILED = "gained", "no gain", "failed"
# With which a member cannot be fitted to a table.
NUMERICAL_ERRORS = ValueError, ArithmeticError, RuntimeError, np.linalg.LinAlgError


class Trial(NamedTuple):
    """A member, and its results on the hidden entries."""

    name: str
    member: object  # None if it does not gain, or cannot be fitted
    # of each hidden entry, NaN where it tells nothing: errors are in deviations of a
    # column of numbers, and in steps between codes of categories
    log_prob: np.ndarray
    error: np.ndarray
    gain: float = np.nan
    seconds: float = np.nan
    outcome: str = NO_GAIN


def hide(rows, rng):
    """Draw entries to hide, at most half of each column and of each row."""
    # At least one if a column has two, in rows without others if there are no more.
    known = ~np.isnan(rows)
    keys = np.where(known, rng.random(rows.shape), 2.0)
    of_columns, of_rows = (
        keys.argsort(axis).argsort(axis) < known.sum(axis, keepdims=True) // 2
        for axis in (0, 1)
    )
    both = of_columns & of_rows
    allowed = both if both.any() else of_columns
    return allowed & (keys <= max(HIDDEN_FRACTION, keys[allowed].min(initial=2.0)))


class Search:
    """The search for members of a table."""

    def __init__(self, coding: Coding, numbers, weight, max_seconds, max_models, rng):
        self.coding, self.max_models = coding, max_models or np.inf
        seconds = np.inf if max_seconds in ("auto", None) else max_seconds
        self.deadline = time.process_time() + seconds
        n_rows = int(np.clip(MAX_ENTRIES / coding.width, MIN_ROWS, MAX_ROWS))
        if len(numbers) > n_rows:
            sample = rng.permutation(len(numbers))[:n_rows]
            numbers, weight = numbers[sample], weight[sample]
        self.numbers = numbers
        mask = hide(numbers, rng)
        if not mask.any():
            raise ValueError(
                "No column of X has two present entries in the rows that count, so "
                "MPTImputer has nothing to choose models by: give more rows, or an "
                "estimator."
            )
        self.table = np.where(mask, np.nan, numbers), weight
        self.rows, self.columns = np.nonzero(mask)
        self.truth = numbers[self.rows, self.columns]
        self.entry_weight = weight[self.rows]
        self.seed = seed_from(rng)
        self.trials: list[Trial] = []
        self.values = np.zeros(2)  # of the mixture of all so far

    def run(self):
        """Try members of each kind while they gain, until a limit."""
        for kind in self._kinds():
            last = None
            for name, fit in kind:
                is_late = self.trials and time.process_time() > self.deadline
                if is_late or len(self.trials) >= self.max_models:
                    limit = "max_seconds" if is_late else "max_models"
                    if "factors" in name:
                        warn_caller(
                            f"MPTImputer ended the choice of models by {limit}, though "
                            f"the last one, {last.name}, gained {last.gain:.2g} nats "
                            f"per hidden entry. A larger {limit} may fill gaps in "
                            "better."
                        )
                    return
                last = self._tried(name, fit, last and last.member)
                self.trials.append(last)
                if last.outcome != GAINED:
                    break

    def chosen(self):
        """Return the indices of the trials to keep, and both kinds of weights."""
        fitted = [i for i, trial in enumerate(self.trials) if trial.member]
        weights = np.maximum(*self._weights([self.trials[i] for i in fitted]))
        is_kept = weights.mean(axis=1) > MIN_WEIGHT
        is_kept |= weights.max(axis=1) > 10 * MIN_WEIGHT
        kept = [i for k, i in enumerate(fitted) if k == 0 or is_kept[k]]
        return kept, *self._weights([self.trials[i] for i in kept])

    def results(self):
        """Return a dict of the results of all trials."""
        of_trials = {
            name: np.array([getattr(trial, name) for trial in self.trials])
            for name in ("log_prob", "error", "name", "gain", "seconds", "outcome")
        }
        log_prob, error = of_trials.pop("log_prob"), of_trials.pop("error")
        is_number = self.coding.is_number[self.columns]
        is_ordered = self.coding.is_ordered[self.columns]

        def mean(values, which):
            values = np.ma.masked_invalid(values[:, which])
            return np.ma.average(values, 1, self.entry_weight[which]).filled(np.nan)

        return {
            "log_prob": mean(log_prob, slice(None)),
            "rmse": np.sqrt(mean(error**2, is_number)),
            "wrong": mean(np.sign(error) ** 2, ~is_number),
            "steps": mean(np.abs(error), is_ordered),
            **of_trials,
        }

    def _kinds(self):
        """Yield lists of names and functions of the members before, by size."""
        coding, n = self.coding, len(self.numbers)

        def fitted(fit, *args):
            return lambda before: fit(coding, *self.table, *args)

        def shrunk(shrinkage):
            start = Gaussians(coding)
            return lambda before: (before or start).shrunk(*self.table, shrinkage)

        yield [("columns alone", fitted(ColumnsAlone))]
        if len(coding.counts) == 1:
            return
        if coding.width <= MAX_DENSE:
            yield [(f"Gaussian, shrinkage {s:g}", shrunk(s)) for s in SHRINKAGES]
        if coding.width > min(MAX_DENSE, n / 4):
            sizes = 2 ** np.arange((min(coding.width, n) // 2).bit_length())
            yield [
                (f"Gaussian, {k} factor{'s'[: k - 1]}", fitted(Factors.fitted, k))
                for k in sizes
            ]
        if coding.width <= min(MAX_COLUMNS, n / 4):
            yield [("mixture of 3", fitted(Gaussians.of_clusters, 3))]
        yield [("trees", self._trees)]

    def _tried(self, name, fit, before):
        """Fit and score one member; `before` are the smaller ones of its kind."""
        start, nothing = time.process_time(), np.full(len(self.columns), np.nan)
        trial = Trial(name, None, nothing, nothing)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                member = fit(before)
                trial = self._scored(name, member) if member else trial
        except NUMERICAL_ERRORS:
            if not self.trials:  # of columns alone, with which others are compared
                raise
            trial = trial._replace(outcome=FAILED)
        if trial.member:
            values = self._values([*self._fitted, trial])
            gains, self.values = values - self.values, values
            is_better = not self.trials or (gains > MIN_GAIN).any()
            outcome = GAINED if is_better else NO_GAIN
            trial = trial._replace(gain=gains[0], outcome=outcome)
        return trial._replace(seconds=time.process_time() - start)

    @property
    def _fitted(self):
        return [trial for trial in self.trials if trial.member]

    def _trees(self, before):
        """Fit trees of some columns of each kind, and of the others where they gain."""
        is_number, gaining = self.coding.is_number, []
        for group in np.flatnonzero(is_number), np.flatnonzero(~is_number):
            tried = group[:: max(1, -(-len(group) // N_TRIED))]
            entries = np.isin(self.columns, tried)
            if not entries.any():
                continue
            member = self._fitted_trees(tried)
            others = [*self._fitted, self._scored("trees", member)]
            gains = self._values(others, entries) - self._values(others[:-1], entries)
            if len(tried) == len(group) or (gains > MIN_GAIN).any():
                gaining += [member, self._fitted_trees(np.setdiff1d(group, tried))]
        return gaining[0].joined(gaining[1:]) if gaining else None

    def _fitted_trees(self, columns):
        """Return trees, whose errors are those of hidden entries."""
        d, coding = self.numbers.shape[1], self.coding
        inputs = {j: np.delete(np.arange(d), j) for j in columns.tolist()}
        if d - 1 > MAX_COLUMNS:  # the columns that tell most, by correlations
            Z = np.nan_to_num(coding.code(self.table[0]))
            for j in inputs:
                related = np.abs(Z[:, coding.blocks[j]].T @ Z).max(axis=0)
                related = np.maximum.reduceat(related, coding.first)
                related[j] = -1
                inputs[j] = np.sort(related.argsort()[::-1][:MAX_COLUMNS])
        member = Trees(coding, inputs, self.seed, {}, {}).fit(*self.table)
        mean = member.predict(self.table[0], columns).mean[self.rows, 0, self.columns]
        error = mean - coding.scales.of(self.columns).code(self.truth)
        for j in columns[coding.is_number[columns]].tolist():
            of_column = error[self.columns == j]
            if len(of_column):
                member.spreads[j] = max(np.sqrt(np.mean(of_column**2)), 1e-3)
        return member

    def _scored(self, name, member):
        """Return a trial of a member, by the hidden entries that it tells of."""
        coding, columns, (table, _) = self.coding, self.columns, self.table
        log_prob, error = np.full((2, len(columns)), np.nan)
        prediction = member.predict(table, np.unique(columns))
        is_told = coding.is_number & ~np.isnan(prediction.mean[0, 0])
        is_told[list(prediction.probs)] = True
        told = np.flatnonzero(is_told[columns])
        place, truth = (self.rows[told], columns[told]), self.truth[told]
        laws = Laws(coding, [prediction], np.ones((1, table.shape[1])))
        log_prob[told] = laws.log_prob(*place, truth)
        ends = coding.least - coding.spreads, coding.largest + coding.spreads
        error[told] = laws.expected(*place, *ends) - truth
        # both in deviations of the column
        log_prob += np.log(coding.spreads[columns])
        error /= coding.spreads[columns]
        log_prob, error = (of.clip(-WORST, WORST) for of in (log_prob, error))
        return Trial(name, member, log_prob, error)

    def _weights(self, trials, entries=slice(None)):
        """Return weights of members for each column: of log-probabilities, of means."""
        # Shapes: (n_trials, d); those of a column add up to 1. Means of categories have
        # the weights of log-probabilities.
        is_number, columns = self.coding.is_number, self.columns[entries]
        log_probs = np.stack([trial.log_prob[entries] for trial in trials])
        errors = np.stack([trial.error[entries] for trial in trials])
        log_prob = np.zeros((len(trials), len(is_number)))
        log_prob[0] = 1.0
        mean = log_prob.copy()
        for of_kind in is_number, ~is_number:
            here = of_kind[columns]
            if not here.any():
                continue
            tells = ~np.isnan(log_probs[:, here]).any(axis=1)
            place, told = np.ix_(tells, of_kind), np.ix_(tells, here)
            how = columns[here], self.entry_weight[entries][here], len(is_number)
            weights = log_prob_weights(log_probs[told], *how)
            log_prob[place] = weights[:, of_kind]
            if of_kind is is_number:
                weights = mean_weights(errors[told], *how)
            mean[place] = weights[:, of_kind]
        return log_prob, mean

    def mean_errors(self, trials, mean_weights):
        """Return errors of the expectations of a mixture, 0 of categories."""
        errors = np.nan_to_num([trial.error for trial in trials])
        errors = (mean_weights[:, self.columns] * errors).sum(axis=0)
        return np.where(self.coding.is_number[self.columns], errors, 0.0)

    def _values(self, trials, entries=slice(None)):
        """Return the log-probability of the best mixture, and minus its log rmse."""
        log_prob, mean = self._weights(trials, entries)
        weight = np.maximum(log_prob[:, self.columns[entries]], TINY)
        log_probs = np.stack([trial.log_prob[entries] for trial in trials])
        mixture = logsumexp(np.nan_to_num(log_probs, nan=-WORST), b=weight, axis=0)
        square = self.mean_errors(trials, mean)[entries] ** 2
        share = self.entry_weight[entries] / self.entry_weight[entries].sum()
        return np.array([share @ mixture, -0.5 * np.log(share @ square + TINY)])


def log_prob_weights(log_prob, columns, weight, d):
    """Return weights of log-probabilities for each column; (n_models, d)."""
    # log_prob : (n_models, n_entries). columns, weight : (n_entries,)
    common = stacking_weights(log_prob, weight, tol=1e-3)[:, None]
    likelihood = np.exp(log_prob - log_prob.max(axis=0))

    def expected_counts(weights):
        shares = weights[:, columns] * likelihood
        shares = weight * shares / shares.sum(axis=0)
        return np.stack([np.bincount(columns, row, d) for row in shares])

    start = np.repeat(common, d, axis=1)
    prior = PSEUDO_ENTRIES * common
    return weights_by_em(start, expected_counts, prior, axis=0, tol=1e-3)


def mean_weights(error, columns, weight, d):
    """Return weights of expectations for each column of numbers; (n_models, d)."""
    # A member worse in a column than the first one, independent columns, has no weight.
    # Entries like those of other columns have the size of the least error in the
    # column, so that a column that one member fills exactly has its weights.
    count = np.bincount(columns, weight, d)
    sums = [[np.bincount(columns, weight * a * b, d) for a in error] for b in error]
    sums = np.moveaxis(sums, 2, 0)  # shape: (d, n_models, n_models)
    squares = sums.diagonal(axis1=1, axis2=2)
    least = np.maximum(squares.min(axis=1), ROUNDING * squares.max(axis=1))
    sums = sums * (count / np.maximum(least, TINY))[:, None, None]
    matrices = sums + PSEUDO_ERRORS * sums[count > 0].sum(axis=0) / count.sum()
    weights = np.zeros((len(error), d))
    for j, matrix in enumerate(matrices):
        better = np.flatnonzero(matrix.diagonal() <= matrix[0, 0])
        matrix = matrix[np.ix_(better, better)] / matrix.diagonal().min()
        values, vectors = np.linalg.eigh(matrix)
        # If w' A w is smallest among those with sum 1, then so is w' A w + (1' w - 1)^2
        # up to a factor of w.
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        target = np.append(np.zeros(len(root)), 1.0)
        solution, _ = nnls(np.vstack([root, np.ones(len(root))]), target)
        weights[better, j] = solution / solution.sum()
    return weights
