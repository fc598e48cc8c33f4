"""Try members on entries that are hidden, and choose among them."""

import time
import warnings
from typing import NamedTuple, Self

import numpy as np

from sklearn_mpt._checks import seed_from, warn_caller
from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.frequent_values import FrequentValue, frequent_value
from sklearn_mpt._imputation.gaussians import Factors, Gaussians
from sklearn_mpt._imputation.members import ColumnsAlone, GaussianMember, Trees
from sklearn_mpt._imputation.weights import (
    MIN_GAIN,
    WORST,
    HiddenEntries,
    kept_models,
)
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
# A limit is worth a warning if the last member gained more, in nats per hidden entry.
LARGE_GAIN = 0.01
GAINED, NO_GAIN, FAILED = "gained", "no gain", "failed"
# With which a member cannot be fitted to a table.
NUMERICAL_ERRORS = ValueError, ArithmeticError, RuntimeError, np.linalg.LinAlgError
# Most coded columns of covariances of all of them in a table of 1,000 patterns of gaps,
# and in others; and of mixtures.
MAX_DENSE, MAX_WIDTH, MAX_MIXTURE = 200, 200, 30
MIXTURE_SIZES = 3, 8, 16  # the first one, and more with a limit
MAX_FACTORS, FACTOR_STEPS = 32, 24
# Inputs of the trees of a column, columns of each kind on which they are tried, and the
# gain in nats by which all others follow.
MAX_INPUTS, N_TRIED = 30, 3
GAIN_OF_TREES = 2 * MIN_GAIN, MIN_GAIN
TREES = {
    "numbers": {"n_estimators": 8, "min_samples_leaf": 3, "max_features": 0.5},
    "categories": {"n_estimators": 10, "min_samples_leaf": 2, "max_features": 0.75},
}
TINY = 1e-300


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
        return self.members[0].joined(self.members[1:])


class SearchLimits(NamedTuple):
    """Limits that a user sets; only `deadline` reads a clock."""

    max_models: float = np.inf
    deadline: float = np.inf
    with_more: bool = False

    @classmethod
    def from_parameters(cls, max_seconds, max_models) -> Self:
        deadline = np.inf
        if max_seconds not in ("auto", None):
            deadline = time.process_time() + max_seconds
        with_more = max_seconds != "auto" or max_models is not None
        return cls(max_models or np.inf, deadline, with_more)

    def reached(self, n_models):
        """Return the name of the parameter whose limit is reached, or None."""
        if n_models >= max(1, self.max_models):
            return "max_models"
        if n_models and time.process_time() > self.deadline:
            return "max_seconds"
        return None


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

    def __init__(self, coding: Coding, numbers, weight, limits, rng):
        self.limits, self.rng, self.coding = limits, rng, coding
        n_rows = int(np.clip(MAX_ENTRIES / coding.width, MIN_ROWS, MAX_ROWS))
        if len(numbers) > n_rows:
            sample = rng.permutation(len(numbers))[:n_rows]
            numbers, weight = numbers[sample], weight[sample]
        self.numbers, self.weight = numbers, weight
        masks = [hide(numbers, rng)]
        if not masks[0].any():
            raise ValueError(
                "No column of X has two present entries in the rows that count, so "
                "none can be hidden to choose models. Give MPTImputer a model as "
                "`estimator`."
            )
        n_masks = min(-(-MIN_HIDDEN // masks[0].sum()), MAX_MASKS)
        masks += [hide(numbers, rng) for _ in range(n_masks - 1)]
        self.tables = [np.where(mask, np.nan, numbers) for mask in masks]
        self.entries = [
            [np.flatnonzero(mask[:, j]) for j in range(mask.shape[1])] for mask in masks
        ]
        # entries are in the order of masks, then of columns
        places = [(j, rows) for of in self.entries for j, rows in enumerate(of)]
        self.columns = np.concatenate([np.full(len(rows), j) for j, rows in places])
        rows = np.concatenate([rows for _, rows in places])
        self.entry_weight, self.truth = weight[rows], numbers[rows, self.columns]
        d = numbers.shape[1]
        self.spreads = np.ones(d)
        for j, scale in coding.scales.items():
            self.spreads[j] = scale.spread
        margin = np.where(coding.is_number, self.spreads, 0.0)
        self.low = np.nanmin(numbers, axis=0) - margin
        self.high = np.nanmax(numbers, axis=0) + margin
        self.trials: list[Trial] = []
        self.value, self.is_larger = 0.0, False
        self._correlations = None

    def run(self):
        """Return the trials, the kept ones, their weights, and frequent values."""
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
        hidden = self._hidden(self.fitted)
        kept = kept_models(hidden)
        hidden = hidden.take(kept)
        weights = hidden.weights()
        frequent = self._frequent_values(hidden.mean_error(weights))
        return self.trials, np.array(fitted)[kept], weights, frequent

    @property
    def fitted(self):
        return [trial for trial in self.trials if trial.log_prob is not None]

    def _try_all(self):
        self._try(
            "columns alone",
            lambda m: ColumnsAlone(self.coding).fit(self.tables[m], self.weight),
        )
        n, p = len(self.numbers), self.coding.width
        if len(self.coding.kinds) == 1:
            return
        n_patterns = min(n, 2.0 ** min(len(self.coding.kinds), 60))
        is_dense = n_patterns * p**3 <= 1000 * MAX_DENSE**3 and p <= MAX_WIDTH
        gaussian = self._gaussians() if is_dense else None
        if not is_dense or 4 * p > n:
            self._factors(is_dense)
        if gaussian and p <= MAX_MIXTURE and n >= 4 * p:
            self._mixtures(gaussian)
        self._trees()

    def _coded(self, m):
        return self.coding.code(self.tables[m])

    def _gaussians(self):
        """Try Gaussians of falling shrinkage; return the last one that gained."""
        last = self._gaussian("Gaussian", self.coding, SHRINKAGES[0])
        if last.outcome == FAILED:
            return None
        skewed = np.flatnonzero(self.coding.skewed)
        if len(skewed):
            powers = self.coding.with_powers(self.numbers, self.weight, skewed)
            powered = self._gaussian("Gaussian of powers", powers, SHRINKAGES[0])
            if powered.outcome != FAILED:
                self.coding, same = self._better_scales(last, powered, powers, skewed)
                last = {"all": powered, "none": last}.get(same)
        for shrinkage in SHRINKAGES[1:]:
            trial = self._gaussian("Gaussian", self.coding, shrinkage, last)
            if trial.outcome == FAILED or (
                last is not None and trial.outcome != GAINED
            ):
                break
            last = trial
        return last

    def _better_scales(self, plain, powered, powers, skewed):
        """Choose the scale of each skewed column that predicts its entries better."""
        better = []
        for j in skewed.tolist():
            entries = self.columns == j
            if entries.any():
                pair = self._hidden([plain, powered], entries)
                if pair.gains()[0].sum() > 0:
                    better.append(j)
        same = "all" if len(better) == len(skewed) else "some" if better else "none"
        return self.coding.with_scales(powers, better), same

    def _gaussian(self, name, coding, shrinkage, before=None):
        def fit(m):
            start = None if before is None else before.members[m].model
            model = Gaussians(
                1, shrinkage, FIRST_STEPS if start is None else NEXT_STEPS
            )
            Z = coding.code(self.tables[m])
            return GaussianMember(coding, model.fit(Z, self.weight, start))

        trial = self._try(f"{name}, shrinkage {shrinkage:g}", fit, before)
        self.is_larger = False  # as large as the one before
        return trial

    def _factors(self, is_dense):
        """Try Gaussians of few factors, from 4 on beside one of all covariances."""
        n_most = min(self.coding.width // 2, len(self.numbers) // 2, MAX_FACTORS)
        before, k = None, 4 if is_dense else 1
        while k <= n_most:

            def fit(m, before=before, k=k):
                start = None if before is None else before.members[m].model
                Z, model = self._coded(m), Factors(k, FACTOR_STEPS)
                return GaussianMember(self.coding, model.fit(Z, self.weight, start))

            name = f"Gaussian, {k} factor{'s' if k > 1 else ''}"
            trial = self._try(name, fit, before)
            if trial.outcome != GAINED:
                break
            before, k = trial, 2 * k

    def _mixtures(self, gaussian):
        """Try a small mixture, from the clusters of rows that a Gaussian fills in."""
        from sklearn.cluster import KMeans  # its import takes long

        def fit(m, k):
            Z, start = self._coded(m), gaussian.members[m].model
            filled = start.conditionals(Z, [])[1][0][0]
            clusters = KMeans(k, n_init=1, random_state=0)
            labels = clusters.fit(filled, sample_weight=self.weight).labels_
            share = 0.9 * np.eye(k)[labels] + 0.1 / k
            shrinkage = SHRINKAGES[0] * k * Z.shape[1] / len(Z)
            mixture = Gaussians(k, shrinkage, FIRST_STEPS)
            return GaussianMember(
                self.coding, mixture.fit(Z, self.weight, start, share)
            )

        before = None
        for k in MIXTURE_SIZES if self.limits.with_more else MIXTURE_SIZES[:1]:
            if 4 * k <= len(self.numbers):
                trial = self._try(f"mixture of {k}", lambda m, k=k: fit(m, k), before)
                if trial.outcome != GAINED:
                    break
                before = trial

    def _trees(self):
        """Try trees on a few columns of each kind, and on all where they gain."""
        is_number, seed = self.coding.is_number, seed_from(self.rng)
        start, gaining, few = time.process_time(), [], []
        self._end_at_limit()
        for group in np.flatnonzero(is_number), np.flatnonzero(~is_number):
            tried = group[:: max(1, -(-len(group) // N_TRIED))]
            entries = np.isin(self.columns, tried)
            if not entries.any():
                continue
            columns = tried.tolist()
            members = [
                self._fit_trees(m, columns, seed) for m in range(len(self.tables))
            ]
            if self._gain_of_trees(self._scored("trees", members), tried, entries):
                gaining += group.tolist()
                few.append(members)
        if not gaining:
            seconds = time.process_time() - start
            self.trials.append(Trial("trees", seconds=seconds, outcome=NO_GAIN))
            return

        def fit(m):
            known = {j: tree for members in few for j, tree in members[m].trees.items()}
            rest = self._fit_trees(m, [j for j in gaining if j not in known], seed)
            return Trees(self.coding, rest.trees | known, dict.fromkeys(gaining, 1.0))

        self._try("trees", fit, start=start)

    def _gain_of_trees(self, trial, tried, entries):
        """Return whether trees of some columns gain beside all members so far."""
        values = []
        for trials in self.fitted, [*self.fitted, trial]:
            hidden = self._hidden(trials, entries)
            hidden = hidden._replace(
                columns=np.searchsorted(tried, hidden.columns),
                is_number=hidden.is_number[tried],
            )
            weights = hidden.weights()
            square = np.mean(hidden.mean_error(weights) ** 2)
            value = hidden.mean_log_prob(weights.log_prob), -0.5 * np.log(square + TINY)
            values.append(value)
        return (np.diff(values, axis=0) > GAIN_OF_TREES).any()

    def _fit_trees(self, m, columns, seed):
        d = self.numbers.shape[1]
        inputs = {j: np.delete(np.arange(d), j) for j in columns}
        if d - 1 > MAX_INPUTS:
            inputs = {j: self._telling(m, j) for j in columns}
        table = self.tables[m], self.weight
        return Trees.fit(self.coding, *table, columns, inputs, TREES, seed)

    def _telling(self, m, j):
        """Return the columns that tell most of a column, by correlations."""
        if self._correlations is None:
            Z = np.nan_to_num(self._coded(0))
            self._correlations = np.abs(Z.T @ Z)
        blocks = self.coding.blocks
        of = self._correlations[blocks[j]]
        most = np.array([of[:, b].max() for b in blocks])
        most[j] = -1
        return np.sort(most.argsort()[::-1][:MAX_INPUTS])

    def _end_at_limit(self):
        limit = self.limits.reached(len(self.trials))
        if limit:
            raise Ended(limit)

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
        hidden = self._hidden([*self.fitted, trial])
        value = hidden.mean_log_prob(hidden.weights().log_prob)
        seconds = time.process_time() - start
        gain, self.value = value - self.value, value
        trial = trial._replace(gain=gain, seconds=seconds, outcome=outcome)
        self.trials.append(trial)
        return trial

    def _scored(self, name, members):
        """Return a trial of members, one for each mask."""
        found = [
            self._score_of_column(member, laws, j, rows)
            for member, table, of in zip(
                members, self.tables, self.entries, strict=True
            )
            for laws in [
                member.laws(table, [j for j, rows in enumerate(of) if len(rows)])
            ]
            for j, rows in enumerate(of)
        ]
        log_prob, error, wrong = map(np.concatenate, zip(*found, strict=True))
        is_scored = ~np.isnan(log_prob)
        is_number = self.coding.is_number[self.columns]
        is_ordered = self.coding.is_ordered[self.columns] & ~is_number

        def mean(values, which):
            which = which & is_scored
            if not which.any():
                return np.nan
            return np.average(values[which], weights=self.entry_weight[which])

        return Trial(
            name,
            tuple(members),
            np.clip(log_prob, -WORST, WORST),
            np.clip(np.nan_to_num(error), -WORST, WORST),
            np.sqrt(mean(error**2, is_number)),
            mean(wrong > 0.5, ~is_number),
            mean(wrong, is_ordered),
        )

    def _score_of_column(self, member, laws, j, rows):
        """Return log-probabilities, errors of numbers, and steps between categories."""
        coding, truth, zeros = self.coding, self.numbers[rows, j], np.zeros(len(rows))
        if j not in laws:
            return np.full(len(rows), np.nan), zeros, zeros
        if not coding.is_number[j]:
            probs, codes = laws[j][rows], truth.astype(int)
            log_prob = np.log(probs[np.arange(len(rows)), codes])
            return (
                log_prob,
                zeros,
                np.abs(codes_of(probs, coding.is_ordered[j]) - codes),
            )
        law = laws[j].rows(rows)
        error = (law.expected(self.low[j], self.high[j]) - truth) / self.spreads[j]
        if isinstance(member, Trees):
            law = member.with_spread(j, law, truth)
        log_prob = number_log_prob(coding, law, j, truth) + np.log(self.spreads[j])
        return log_prob, error, zeros

    def _hidden(self, trials, entries=slice(None)):
        return HiddenEntries(
            self.columns[entries],
            self.coding.is_number,
            np.stack([trial.log_prob[entries] for trial in trials]),
            np.stack([trial.error[entries] for trial in trials]),
            self.entry_weight[entries],
        )

    def _frequent_values(self, error):
        """Return the values that many rows share, by the index of their column."""
        frequent = {}
        for j in np.flatnonzero(self.coding.is_number).tolist():
            value = frequent_value(self.numbers[:, j], self.weight)
            entries = self.columns == j
            if value is not None and entries.any():
                truth, weight = self.truth[entries], self.entry_weight[entries]
                expected = truth + error[entries] * self.spreads[j]
                frequent[j] = FrequentValue(value, expected, truth, weight)
        return frequent


def number_log_prob(coding, law, j, numbers):
    """Return log-densities of numbers of column j, in the units of the table."""
    if j not in coding.levels:
        return np.minimum(law.log_prob(numbers), coding.largest[j])
    levels = coding.levels[j]
    cells = law.cell_probs((levels[1:] + levels[:-1]) / 2)
    place = np.abs(numbers[:, None] - levels).argmin(axis=1)
    return np.log(cells[np.arange(len(numbers)), place]) + coding.largest[j]


def codes_of(probs, is_ordered):
    """Return the median of ordered categories, else the most probable one; (n,)."""
    return median_codes(probs) if is_ordered else probs.argmax(axis=1)
