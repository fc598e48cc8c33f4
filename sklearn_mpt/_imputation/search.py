"""Try members on entries that are hidden, and choose among them."""

import time
import warnings
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import seed_from, warn_caller
from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.laws import Laws
from sklearn_mpt._imputation.members import ColumnsAlone, Factors, Gaussians, Trees
from sklearn_mpt._imputation.weights import MIN_GAIN, WORST, HiddenEntries
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._matrices import median_codes

HIDDEN_FRACTION = 0.2  # of the present entries, hidden at a time
# Entries are hidden again until so many were hidden, or so often, because few entries
# decide neither which member is better nor what weights they have.
MIN_HIDDEN, MAX_MASKS = 200, 4
# Entries of coded rows on which members are tried, and fewest and most of these rows.
MAX_ENTRIES, MIN_ROWS, MAX_ROWS = 60_000, 500, 2000
# Variance that each step of EM adds to the variance 1 of coded columns.
SHRINKAGES = 0.03, 1e-3, 3e-5
FIRST_STEPS, NEXT_STEPS = 8, 5  # of EM, and of fits that begin with others
# Most coded columns of Gaussians of all covariances, beyond which these take longer
# than factors, and of mixtures.
MAX_DENSE, MAX_MIXTURE = 140, 30
MIXTURE_SIZES = 3, 8, 16  # the first one, and more with a limit
MAX_FACTORS = 32
# Inputs of the trees of a column, and columns of each kind on which they are tried.
MAX_INPUTS, N_TRIED = 30, 3
GAIN_OF_TREES = 0.005  # in nats per entry of these, for all others to follow
# A limit is worth a warning if the last member gained more, in nats per hidden entry.
LARGE_GAIN = 0.01
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
    outcome: str = GAINED

    @property
    def member(self):
        """The member to train on: trees of all masks, others of the first."""
        first, *others = self.members
        return first.joined(others) if isinstance(first, Trees) else first


class Ended(Exception):
    """A limit ended the search."""


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
        self.coding, self.rng = coding, rng
        self.has_limit = max_seconds != "auto" or max_models is not None
        self.max_models, self.deadline = max_models or np.inf, np.inf
        if max_seconds not in ("auto", None):
            self.deadline = time.process_time() + max_seconds
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
        self.tables = [np.where(mask, np.nan, numbers) for mask in masks]
        self.of_mask, rows, self.columns = np.nonzero(masks)
        self.rows, self.truth = rows, numbers[rows, self.columns]
        self.entry_weight = weight[rows]
        margin = np.where(coding.is_number, coding.spreads, 0.0)
        self.low = np.nanmin(numbers, axis=0) - margin
        self.high = np.nanmax(numbers, axis=0) + margin
        self.trials: list[Trial] = []
        self.value, self.is_larger = 0.0, False

    def run(self):
        """Return the trials, indices of those that are kept, their weights and errors.

        The latter are those of hidden entries, in the order of `columns`.
        """
        ended_by = None
        try:
            self._try_all()
        except Ended as limit:
            ended_by = str(limit)
        last = self.trials[-1]
        if ended_by and self.is_larger and last.gain > LARGE_GAIN:
            warn_caller(
                f"MPTImputer ended the choice of models by {ended_by}, though the "
                f"last one, {last.name}, gained {last.gain:.2g} nats per hidden entry. "
                f"A larger {ended_by} may fill gaps in better."
            )
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
        coding, n = self.coding, len(self.numbers)
        self._try("columns alone", lambda m: ColumnsAlone(coding, *self._table(m)))
        if len(coding.counts) == 1:
            return
        if coding.width <= MAX_DENSE:
            self._gaussians()
        if coding.width > min(MAX_DENSE, n / 4):
            self._factors()
        sizes = MIXTURE_SIZES if self.has_limit else MIXTURE_SIZES[:1]
        if coding.width <= MAX_MIXTURE and n >= 4 * coding.width:
            self._mixtures([k for k in sizes if 4 * k <= n])
        self._trees()

    def _table(self, m):
        return self.tables[m], self.weight

    def _gaussians(self):
        """Try Gaussians of falling shrinkage, while they gain."""
        before = None
        for shrinkage in SHRINKAGES:

            def fit(m, before=before, shrinkage=shrinkage):
                if before is None:
                    start, n_steps = Gaussians(self.coding, shrinkage), FIRST_STEPS
                else:
                    start, n_steps = before.members[m], NEXT_STEPS
                return start.fit(*self._table(m), n_steps, shrinkage)

            before = self._try(f"Gaussian, shrinkage {shrinkage:g}", fit, before)
            self.is_larger = False  # as large as the one before
            if before.outcome != GAINED:
                break

    def _factors(self):
        """Try Gaussians of 1, 2, 4, ... factors, while they gain."""
        before, k = None, 1
        while k <= min(self.coding.width // 2, len(self.numbers) // 2, MAX_FACTORS):
            model = MPTLinearVAE(
                k,
                noise="per_feature",
                objective="lml",
                max_iter=FIRST_STEPS,
                random_state=0,
            )
            start = Factors(self.coding, model)
            name = f"Gaussian, {k} factor{'s' if k > 1 else ''}"
            before = self._try(
                name, lambda m, start=start: start.fit(*self._table(m)), before
            )
            if before.outcome != GAINED:
                break
            k *= 2

    def _mixtures(self, sizes):
        before = None
        for k in sizes:
            shrinkage = SHRINKAGES[0] * k * self.coding.width / len(self.numbers)

            def fit(m, k=k, shrinkage=shrinkage):
                rng = np.random.default_rng(0)
                table = self._table(m)
                start = Gaussians.of_clusters(self.coding, *table, k, shrinkage, rng)
                return start.fit(*table, FIRST_STEPS)

            before = self._try(f"mixture of {k}", fit, before)
            if before.outcome != GAINED:
                break

    def _trees(self):
        """Try trees on a few columns of each kind, and on all where they gain."""
        is_number, seed = self.coding.is_number, seed_from(self.rng)
        start, gaining = time.process_time(), {}
        self._end_at_limit()
        for group in np.flatnonzero(is_number), np.flatnonzero(~is_number):
            tried = group[:: max(1, -(-len(group) // N_TRIED))]
            entries = np.isin(self.columns, tried)
            if entries.any():
                few = self._fit_trees(tried, seed)
                if self._gain_of_trees(self._scored("trees", few), entries):
                    gaining |= dict.fromkeys(group.tolist())
        if gaining:
            self._try(
                "trees", self._fit_trees(list(gaining), seed).__getitem__, start=start
            )
        else:
            seconds = time.process_time() - start
            self.trials.append(Trial("trees", seconds=seconds, outcome=NO_GAIN))

    def _gain_of_trees(self, trial, entries):
        """Return whether trees of some columns gain beside all members so far."""
        values = []
        for trials in self._fitted, [*self._fitted, trial]:
            hidden = self._hidden(trials, entries)
            weights = hidden.weights()
            square = np.mean(hidden.mean_error(weights) ** 2)
            log_prob = hidden.mean_log_prob(weights.log_prob)
            values.append((log_prob / 2, -0.5 * np.log(square + 1e-300)))
        return (np.diff(values, axis=0) > GAIN_OF_TREES).any()

    def _fit_trees(self, columns, seed):
        """Return trees for each mask; their errors are those of all hidden entries."""
        d, coding = self.numbers.shape[1], self.coding
        inputs = {j: np.delete(np.arange(d), j) for j in columns}
        if d - 1 > MAX_INPUTS:  # the columns that tell most, by correlations
            Z = np.nan_to_num(coding.code(self.tables[0]))
            for j in columns:
                related = np.abs(Z[:, coding.blocks[j]].T @ Z).max(axis=0)
                related = np.maximum.reduceat(related, coding.first)
                related[j] = -1
                inputs[j] = np.sort(related.argsort()[::-1][:MAX_INPUTS])
        members = [
            Trees.fitted(coding, *self._table(m), inputs, seed)
            for m in range(len(self.tables))
        ]
        mean = [
            of.predict(t, columns).mean
            for of, t in zip(members, self.tables, strict=True)
        ]
        coded = coding.scales.of(self.columns).code(self.truth)
        error = np.stack(mean)[self.of_mask, self.rows, 0, self.columns] - coded
        has = ~np.isnan(error)
        square, count = (
            np.bincount(self.columns[has], values, d)
            for values in (error[has] ** 2, has[has])
        )
        spreads = np.sqrt(np.where(count > 0, square, 0.25) / np.maximum(count, 1))
        for member in members:
            member.spreads = np.maximum(spreads, 1e-3)
        return members

    def _end_at_limit(self):
        if self.trials and time.process_time() > self.deadline:
            raise Ended("max_seconds")
        if len(self.trials) >= self.max_models:
            raise Ended("max_models")

    def _try(self, name, fit, before=None, start=None):
        """Fit and score one member; `before` is the smaller one of its kind."""
        self._end_at_limit()
        self.is_larger = before is not None
        start = time.process_time() if start is None else start
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial = self._scored(name, [fit(m) for m in range(len(self.tables))])
        except NUMERICAL_ERRORS:
            if not self.trials:  # of columns alone, with which others are compared
                raise
            seconds = time.process_time() - start
            self.trials.append(Trial(name, seconds=seconds, outcome=FAILED))
            return self.trials[-1]
        outcome = GAINED
        if before is not None:
            gains, noises = self._hidden([before, trial]).gains()
            if not (gains > np.maximum(noises, MIN_GAIN)).any():
                outcome = NO_GAIN
        hidden = self._hidden([*self._fitted, trial])
        value = hidden.mean_log_prob(hidden.weights().log_prob)
        seconds = time.process_time() - start
        gain, self.value = value - self.value, value
        trial = trial._replace(gain=gain, seconds=seconds, outcome=outcome)
        self.trials.append(trial)
        return trial

    def _scored(self, name, members):
        """Return a trial of members, one for each mask."""
        coding, columns = self.coding, self.columns
        is_number = coding.is_number[columns]
        error, steps = np.zeros((2, len(columns)))
        log_prob = np.full(len(columns), np.nan)
        for m, (member, table) in enumerate(zip(members, self.tables, strict=True)):
            prediction = member.predict(table, np.unique(columns[self.of_mask == m]))
            laws = Laws(coding, [prediction], np.ones((1, table.shape[1])))
            is_told = ~np.isnan(prediction.mean[0, 0])
            is_told[~coding.is_number] = False
            is_told[list(prediction.probs)] = True
            told = np.flatnonzero((self.of_mask == m) & is_told[columns])
            log_prob[told] = laws.log_prob(
                self.rows[told], columns[told], self.truth[told]
            )
            numbers = told[is_number[told]]
            j = columns[numbers]
            law = laws.numbers(self.rows[numbers], j)
            error[numbers] = law.expected(self.low[j], self.high[j])
            for j, probs in prediction.probs.items():
                here = told[columns[told] == j]
                codes = codes_of(probs[self.rows[here]], coding.is_ordered[j])
                steps[here] = np.abs(codes - self.truth[here])
        log_prob[is_number] += np.log(coding.spreads[columns[is_number]])
        told = ~np.isnan(log_prob)
        numbers = told & is_number
        error[numbers] -= self.truth[numbers]
        error[numbers] /= coding.spreads[columns[numbers]]

        def mean(values, which):
            which = which & told
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


def codes_of(probs, is_ordered):
    """Return the median of ordered categories, else the most probable one; (n,)."""
    return median_codes(probs) if is_ordered else probs.argmax(axis=1)
