"""Try members on entries that are hidden, choose among them, and weigh them."""
# Weights of log-probabilities maximise the log-probability of the mixture (Yao et al.,
# Bayesian Analysis 13, 2018, and 17, 2022); those of means minimise its squared error
# (Bates and Granger, Operational Research Quarterly 20, 1969). The hidden entries of a
# column count beside some that are like those of all columns of its kind.

import time
import warnings
from functools import partial
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
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.weights import stacking_weights, weights_by_em

HIDDEN_FRACTION = 0.2  # of the present entries, hidden at a time
# Entries are hidden again until so many were hidden, or so often, because few entries
# decide neither which member is better nor what weights they have.
MIN_HIDDEN, MAX_MASKS = 200, 4
# Entries of coded rows on which members are tried, and fewest and most of these rows.
MAX_ENTRIES, MIN_ROWS, MAX_ROWS = 60_000, 500, 2000
# Most coded columns of Gaussians of all covariances, beyond which these take longer
# than factors, and of mixtures.
MAX_DENSE, MAX_MIXTURE = 140, 30
MIXTURE_SIZES = 3, 8, 16  # the first one, and more with a limit
MAX_FACTORS = 32
# Inputs of the trees of a column, and columns of each kind on which they are tried.
MAX_INPUTS, N_TRIED = 30, 4
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
    members: tuple = ()  # one for each mask
    log_prob: np.ndarray | None = None
    error: np.ndarray | None = None
    rmse: float = np.nan
    wrong: float = np.nan
    steps: float = np.nan
    gain: float = np.nan
    seconds: float = np.nan
    outcome: str = NO_GAIN

    @property
    def member(self):
        """The member to train on: trees of all masks, others of the first."""
        first, *others = self.members
        return first.joined(others) if isinstance(first, Trees) else first


def hide(rows, rng):
    """Draw entries to hide, at most half of each column and of each row."""
    # At least one if a column has two. Entries of a row with a single one can be hidden
    # if there are no others.
    known = ~np.isnan(rows)
    keys = np.where(known, rng.random(rows.shape), 2.0)
    for axes in (0, 1), (0,):
        allowed = known.copy()
        for axis in axes:
            rank = keys.argsort(axis=axis).argsort(axis=axis)
            allowed &= rank < known.sum(axis=axis, keepdims=True) // 2
        if allowed.any():
            break
    return allowed & (keys <= max(HIDDEN_FRACTION, keys[allowed].min(initial=2.0)))


class Search:
    """The search for members of a table."""

    def __init__(self, coding: Coding, numbers, weight, max_seconds, max_models, rng):
        self.coding, self.max_models = coding, max_models or np.inf
        self.deadline = np.inf
        if max_seconds not in ("auto", None):
            self.deadline = time.process_time() + max_seconds
        self.has_limit = max_seconds != "auto" or max_models is not None
        n_rows = int(np.clip(MAX_ENTRIES / coding.width, MIN_ROWS, MAX_ROWS))
        if len(numbers) > n_rows:
            sample = rng.permutation(len(numbers))[:n_rows]
            numbers, weight = numbers[sample], weight[sample]
        self.numbers, self.weight = numbers, weight
        masks = [hide(numbers, rng)]
        if not masks[0].any():
            raise ValueError(
                "No column of X has two present entries in the rows that count, so "
                "MPTImputer has nothing to choose models by: give more rows, or an "
                "estimator."
            )
        while len(masks) < MAX_MASKS and np.sum(masks) < MIN_HIDDEN:
            masks.append(hide(numbers, rng))
        self.tables = [(np.where(mask, np.nan, numbers), weight) for mask in masks]
        self.of_mask, rows, self.columns = np.nonzero(masks)
        self.rows, self.truth = rows, numbers[rows, self.columns]
        self.entry_weight = weight[rows]
        margin = np.where(coding.is_number, coding.spreads, 0.0)
        self.low = np.nanmin(numbers, axis=0) - margin
        self.high = np.nanmax(numbers, axis=0) + margin
        self.seed = seed_from(rng)
        self.trials: list[Trial] = []
        self.values = np.zeros(2)  # of the mixture of all so far

    def run(self):
        """Return the trials, indices of those that are kept, their weights and errors.

        The latter are those of hidden entries, in the order of `columns`.
        """
        self._try_all()
        fitted = [i for i, t in enumerate(self.trials) if t.log_prob is not None]
        hidden = self._hidden(self._fitted)
        kept = hidden.kept()
        hidden = hidden.take(kept)
        weights = hidden.weights()
        return self.trials, np.array(fitted)[kept], weights, hidden.mean_error(weights)

    @property
    def _fitted(self):
        return [trial for trial in self.trials if trial.log_prob is not None]

    def _try_all(self):
        """Try members of each kind while they gain, until a limit."""
        for kind in self._kinds():
            last = None
            for k, (name, fit) in enumerate(kind):
                ended_by = None
                if self.trials and time.process_time() > self.deadline:
                    ended_by = "max_seconds"
                if len(self.trials) >= self.max_models:
                    ended_by = "max_models"
                # less shrinkage is no larger model
                if ended_by and k > 1 and "shrinkage" not in name:
                    warn_caller(
                        f"MPTImputer ended the choice of models by {ended_by}, though "
                        f"the last one, {last.name}, gained {last.gain:.2g} nats per "
                        f"hidden entry. A larger {ended_by} may fill gaps in better."
                    )
                if ended_by:
                    return
                last = self._tried(name, fit, () if last is None else last.members)
                self.trials.append(last)
                if last.outcome != GAINED:
                    break

    def _kinds(self):
        """Yield lists of names, and of functions of the members before, by size."""
        coding, n = self.coding, len(self.numbers)

        def fitted(fit, *args):
            return lambda before: [fit(coding, *table, *args) for table in self.tables]

        yield [("columns alone", fitted(ColumnsAlone))]
        if len(coding.counts) == 1:
            return
        if coding.width <= MAX_DENSE:
            yield [
                (f"Gaussian, shrinkage {s:g}", partial(self._shrunk, shrinkage=s))
                for s in SHRINKAGES
            ]
        if coding.width > min(MAX_DENSE, n / 4):
            most = min(coding.width // 2, n // 2, MAX_FACTORS)
            yield [
                (
                    f"Gaussian, {k} factor{'s' if k > 1 else ''}",
                    fitted(Factors.fitted, k),
                )
                for k in 2 ** np.arange(most.bit_length())
            ]
        if coding.width <= MAX_MIXTURE and n >= 4 * coding.width:
            sizes = MIXTURE_SIZES if self.has_limit else MIXTURE_SIZES[:1]
            yield [
                (f"mixture of {k}", fitted(Gaussians.of_clusters, k))
                for k in sizes
                if 4 * k <= n
            ]
        yield [("trees", self._trees)]

    def _shrunk(self, before, shrinkage):
        if not before:
            start = Gaussians(self.coding, shrinkage)
            return [start.fit(*table) for table in self.tables]
        pairs = zip(before, self.tables, strict=True)
        return [member.shrunk(*table, shrinkage) for member, table in pairs]

    def _tried(self, name, fit, before):
        """Fit and score one member; `before` are the smaller ones of its kind."""
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                members = fit(before)
                trial = self._scored(name, members) if members else Trial(name)
        except NUMERICAL_ERRORS:
            if not self.trials:  # of columns alone, with which others are compared
                raise
            trial = Trial(name, outcome=FAILED)
        if trial.members:
            values = self._hidden([*self._fitted, trial]).values()
            gains, self.values = values - self.values, values
            is_better = not self.trials or (gains > MIN_GAIN).any()
            outcome = GAINED if is_better else NO_GAIN
            trial = trial._replace(gain=gains[0], outcome=outcome)
        return trial._replace(seconds=time.process_time() - start)

    def _trees(self, before):
        """Fit trees of some columns of each kind, and of the others where they gain."""
        is_number, gaining = self.coding.is_number, []
        for group in np.flatnonzero(is_number), np.flatnonzero(~is_number):
            is_tried = np.arange(len(group)) % max(1, -(-len(group) // N_TRIED)) == 0
            tried, entries = group[is_tried], np.isin(self.columns, group[is_tried])
            if not entries.any():
                continue
            members = self._fitted_trees(tried)
            trial = self._scored("trees", members)
            before, after = (
                self._hidden(trials, entries).values()
                for trials in (self._fitted, [*self._fitted, trial])
            )
            if is_tried.all() or (after - before > MIN_GAIN).any():
                gaining += [members, self._fitted_trees(group[~is_tried])]
        return [first.joined(others) for first, *others in zip(*gaining, strict=True)]

    def _fitted_trees(self, columns):
        """Return trees for each mask; their errors are those of all hidden entries."""
        d, coding = self.numbers.shape[1], self.coding
        inputs = {j: np.delete(np.arange(d), j) for j in columns.tolist()}
        if d - 1 > MAX_INPUTS:  # the columns that tell most, by correlations
            Z = np.nan_to_num(coding.code(self.tables[0][0]))
            for j in inputs:
                related = np.abs(Z[:, coding.blocks[j]].T @ Z).max(axis=0)
                related = np.maximum.reduceat(related, coding.first)
                related[j] = -1
                inputs[j] = np.sort(related.argsort()[::-1][:MAX_INPUTS])
        trees = Trees(coding, inputs, self.seed, {}, {})
        members = [trees.fit(*table) for table in self.tables]
        means = [
            member.predict(rows, columns).mean[:, 0]
            for member, (rows, _) in zip(members, self.tables, strict=True)
        ]
        coded = coding.scales.of(self.columns).code(self.truth)
        error = np.stack(means)[self.of_mask, self.rows, self.columns] - coded
        for j in columns[coding.is_number[columns]].tolist():
            of_column = error[self.columns == j]
            if len(of_column):
                for member in members:
                    member.spreads[j] = max(np.sqrt(np.mean(of_column**2)), 1e-3)
        return members

    def _scored(self, name, members):
        """Return a trial of members, one for each mask."""
        coding, columns = self.coding, self.columns
        is_number = coding.is_number[columns]
        error, steps = np.zeros((2, len(columns)))
        log_prob = np.full(len(columns), np.nan)
        for m, (member, (table, _)) in enumerate(
            zip(members, self.tables, strict=True)
        ):
            prediction = member.predict(table, np.unique(columns[self.of_mask == m]))
            laws = Laws(coding, [prediction], np.ones((1, table.shape[1])))
            is_told = coding.is_number & ~np.isnan(prediction.mean[0, 0])
            is_told[list(prediction.probs)] = True
            told = np.flatnonzero((self.of_mask == m) & is_told[columns])
            log_prob[told] = laws.log_prob(
                self.rows[told], columns[told], self.truth[told]
            )
            numbers = told[is_number[told]]
            j = columns[numbers]
            law = laws.numbers(self.rows[numbers], j)
            expected = law.expected(self.low[j], self.high[j])
            error[numbers] = (expected - self.truth[numbers]) / coding.spreads[j]
            for j in prediction.probs:
                here = told[columns[told] == j]
                steps[here] = np.abs(laws.codes(self.rows[here], j) - self.truth[here])
        log_prob[is_number] += np.log(coding.spreads[columns[is_number]])

        def mean(values, which):
            which = which & ~np.isnan(log_prob)
            if not which.any():
                return np.nan
            return np.average(values[which], weights=self.entry_weight[which])

        return Trial(
            name,
            tuple(members),
            np.clip(log_prob, -WORST, WORST),
            np.clip(np.nan_to_num(error), -WORST, WORST),
            np.sqrt(mean(error**2, is_number)),
            mean(steps > 0, ~is_number),
            mean(steps, coding.is_ordered[columns] & ~is_number),
        )

    def _hidden(self, trials, entries=slice(None)):
        return HiddenEntries(
            self.columns[entries],
            self.coding.is_number,
            np.stack([trial.log_prob[entries] for trial in trials]),
            np.stack([trial.error[entries] for trial in trials]),
            self.entry_weight[entries],
        )


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
        is_kept[0] = True
        return np.flatnonzero(is_kept)

    def mean_error(self, weights):
        """Return the errors of the expectations of the mixture, (n_entries,)."""
        return (weights.mean[:, self.columns] * self.error).sum(axis=0)

    def values(self):
        """Return the log-probability of the best mixture, and minus its log rmse."""
        weights = self.weights()
        weight = np.maximum(weights.log_prob[:, self.columns], TINY)
        log_prob = np.nan_to_num(self.log_prob, nan=-WORST)
        mixture = logsumexp(log_prob, b=weight, axis=0)
        square = np.average(self.mean_error(weights) ** 2, weights=self.weight)
        log_prob = np.average(mixture, weights=self.weight)
        return np.array([log_prob, -0.5 * np.log(square + TINY)])


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
