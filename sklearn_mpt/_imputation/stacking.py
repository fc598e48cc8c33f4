"""Several models of one table, whose conditionals are mixed."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._base.state import VersionedPickleMixin
from sklearn_mpt._checks import RandomState, check_choice, spawn_seeds
from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.draws import drawn_in_turn
from sklearn_mpt._imputation.frequent_values import FrequentValue
from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._imputation.relations import LinearRelations
from sklearn_mpt._imputation.search import (
    Search,
    SearchLimits,
    codes_of,
    hide,
    number_log_prob,
)
from sklearn_mpt._imputation.weights import mixed
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._optim.weights import (
    relative_weights,
)
from sklearn_mpt._tables.days import DATES
from sklearn_mpt._tables.frames import column_names
from sklearn_mpt._tables.labels import check_columns, labels_of
from sklearn_mpt._tables.reader import TableReader
from sklearn_mpt._tables.weights import check_mask, rows_that_count, rows_with_entries

# Steps of EM on all entries, from the fit without the hidden ones; and of fits to rows
# drawn with replacement, which stay too close to the first fit with fewer.
REFIT_STEPS, BOOTSTRAP_STEPS = 4, 10
CHUNK_ROWS = 4000  # whose laws are computed together
# Rows to which the chosen models are fitted; of longer tables, a sample. Errors of
# estimates are below 1% of a standard deviation then.
MAX_FIT_ROWS = 20_000


class StackedModels(VersionedPickleMixin, BaseEstimator):
    """Mixture of several models of a table, chosen by predictions of hidden entries."""

    # p(x_j | x_R) = sum_k w_kj p_k(x_j | x_R) with weights for each column that
    # maximise the log-probability of hidden entries (Yao et al., Bayesian Analysis 13,
    # 2018). Expectations of numbers have weights of their own; see `weights`.
    # estimators_ : fitted to coded rows with standardised numbers. weights_,
    # mean_weights_ : (n_models, n_columns). selection_ : results of all models that
    # were tried.

    estimators_: list[BaseEstimator]
    selection_: dict[str, np.ndarray]
    _frequent_values: dict[int, FrequentValue]

    def __init__(
        self,
        reader: TableReader,
        *,
        max_seconds: str | float | None = "auto",
        max_models: int | None = None,
        warm_start: bool = False,
        random_state: RandomState = None,
    ):
        self.reader = reader
        self.max_seconds = max_seconds
        self.max_models = max_models
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Choose models and fit them; with `warm_start`, train the chosen ones on."""
        numbers, weight = self._training_rows(X, sample_weight)
        rng = np.random.default_rng(spawn_seeds(self.random_state, 1)[0])
        is_refit = self.warm_start and hasattr(self, "estimators_")
        if not is_refit:
            coding = self._learn_columns(numbers, weight)
            limits = SearchLimits.from_parameters(self.max_seconds, self.max_models)
            self._relations = LinearRelations(numbers, coding.is_number)
            search = Search(coding, numbers, weight, limits, rng)
            self._relations.check(search.numbers, search.tables[0])
            self._store_models(search.coding, *search.run())
        self._frequent_values = {
            j: frequent.calibrated(numbers[:, j], weight)
            for j, frequent in self._frequent_values.items()
        }
        if len(numbers) > MAX_FIT_ROWS:
            sample = rng.permutation(len(numbers))[:MAX_FIT_ROWS]
            numbers, weight = numbers[sample], weight[sample]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_refit:
                hidden = np.where(hide(numbers, rng), np.nan, numbers)
                self.estimators_ = [
                    member.refitted(numbers, weight, BOOTSTRAP_STEPS, hidden, rng)
                    for member in self.estimators_
                ]
            else:
                self.estimators_ = [
                    member.trained_on(numbers, weight, REFIT_STEPS)
                    for member in self.estimators_
                ]
        return self

    def _training_rows(self, X, weight):
        """Return the modelled columns as numbers, (n, m), and the weights of rows."""
        # The order of rows and of columns is of no effect.
        X, weight = rows_that_count(X, weight)
        self._names = labels_of(X, 1)
        self._columns = _in_order(self.reader.modelled, column_names(X))
        numbers = self._numbers(X)
        if not np.isnan(numbers).all():
            numbers, weight = rows_with_entries(numbers, weight)
        weight = np.ones(len(numbers)) if weight is None else weight
        return _sorted(numbers, relative_weights(weight, len(weight)))

    def _learn_columns(self, numbers, weight):
        """Learn units and levels of numbers, limits and categories; return a coding."""
        reader, columns = self.reader, self._columns
        kinds = [reader.kinds[j] for j in columns]
        counts = [
            0 if kind == "gaussian" else 2 if known is None else len(known)
            for kind, known in zip(
                kinds, [reader.categories[j] for j in columns], strict=True
            )
        ]
        coding = Coding(kinds, counts, numbers, weight)
        is_date = [DATES in reader.storage[j]["days"] for j in columns]
        has_margin = np.logical_not(is_date)
        self._limits = Limits.from_rows(numbers, weight, coding.is_number, has_margin)
        self.n_features_in_ = len(reader.kinds)
        self.likelihoods_ = list(reader.kinds)
        self.categories_ = [
            None if kind is None else known
            for kind, known in zip(reader.kinds, reader.categories, strict=True)
        ]
        return coding

    @property
    def limits(self):
        """Limits of all columns of the table; NaN for columns that are not modelled."""
        limits = np.full((len(Limits._fields), len(self.reader.kinds)), np.nan)
        limits[:, self._columns] = self._limits
        return Limits(*limits)

    def _numbers(self, X):
        """Return the modelled columns as numbers, (n, m)."""
        return self._encoded(X)[:, self._columns]

    def _encoded(self, X):
        check_columns(X, self._names, "X", "columns of fit")
        codes = self.reader.encode(X)
        self.reader.check_values(codes, column_names(X))
        return codes

    def _store_models(self, coding, trials, kept, weights, frequent):
        columns = "name", "rmse", "wrong", "steps", "gain", "seconds", "outcome"
        table = {c: np.array([getattr(t, c) for t in trials]) for c in columns}
        table["log_prob"] = np.array(
            [np.nan if t.log_prob is None else np.nanmean(t.log_prob) for t in trials]
        )
        table["weight"] = np.zeros(len(trials))
        table["weight"][kept] = weights.log_prob.mean(axis=1)
        self.selection_, self._coding = table, coding
        self.estimators_ = [trials[i].member for i in kept]
        self.weights_, self.mean_weights_ = weights
        self._frequent_values = frequent

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        """Compute log-probabilities of hidden entries given the others of a row."""
        check_is_fitted(self)
        shape, columns = np.shape(X), self._columns
        mask = check_mask(mask, shape[0], column_names(X))
        mask = np.broadcast_to(mask, shape)[:, columns]
        numbers, log_prob = self._numbers(X), np.zeros(shape)
        visible = np.where(mask, np.nan, numbers)
        is_target = mask & ~np.isnan(numbers)
        for rows in _chunks(len(numbers)):
            of_rows = np.zeros(mask[rows].shape)
            asked = np.flatnonzero(is_target[rows].any(axis=0)).tolist()
            targets, has = is_target[rows], is_target[rows].any(axis=1)
            laws = self._laws(visible[rows][has], asked)
            for j in asked:
                index = targets[has, j]
                truth = numbers[rows][has][index, j]
                found = self._log_prob(laws, j, index, truth)
                of_rows[np.flatnonzero(has)[index], j] = found
            log_prob[rows.start : rows.stop, columns] = of_rows
        return log_prob

    def _laws(self, visible, columns):
        """Return the laws of missing entries by each member, by column."""
        return [member.laws(visible, columns) for member in self.estimators_]

    def _log_prob(self, laws, j, index, truth):
        """Return log-probabilities of what is true of column j in some rows."""
        found = []
        for of in laws:
            if j not in of:
                found.append(np.full(len(truth), -np.inf))
            elif self._coding.is_number[j]:
                law = of[j].rows(index)
                found.append(number_log_prob(self._coding, law, j, truth))
            else:
                found.append(np.log(of[j][index, truth.astype(int)]))
        return mixed(np.stack(found), self.weights_[:, j])

    def impute(
        self,
        X: ArrayLike,
        method: str = "mean",
        random_state: RandomState = None,
        bounds: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Any:
        """Fill in gaps by "mean" or "sample"; `bounds` of columns may be NaN."""
        check_choice(method, "method", ["mean", "sample"])
        check_is_fitted(self)
        codes, columns = self._encoded(X), self._columns
        numbers = codes[:, columns]
        filled, gaps = numbers.copy(), np.isnan(numbers)
        has_gaps = gaps.any(axis=1)
        if has_gaps.any():
            if bounds is None:
                bounds = np.full((2, codes.shape[1]), np.nan)
            low, high = (bound[columns] for bound in bounds)
            limits = self._limits.with_bounds(low, high)
            is_bound = np.isfinite(low) | np.isfinite(high)
            if method == "mean":
                filled[has_gaps] = self._expected(numbers[has_gaps], limits, is_bound)
            else:
                state = self.random_state if random_state is None else random_state
                rng = np.random.default_rng(spawn_seeds(state, 1)[0])
                how = limits, is_bound, rng
                filled[has_gaps] = self._drawn_within(numbers[has_gaps], *how)
        complete = codes.copy()
        complete[:, columns] = np.where(gaps, filled, numbers)
        return self.reader.fill(X, complete, self.reader.gaps(X, codes))

    def _expected(self, numbers, limits, is_bound):
        """Fill rows in by expectations within limits."""
        # is_bound : columns whose limits a user set, bool, (m,).
        filled, coding = numbers.copy(), self._coding
        for chunk in _chunks(len(numbers)):
            rows = numbers[chunk]
            asked = np.flatnonzero(np.isnan(rows).any(axis=0)).tolist()
            laws = self._laws(rows, asked)
            for j in asked:
                gaps = np.flatnonzero(np.isnan(rows[:, j]))
                if not coding.is_number[j]:
                    probs = self._probs(laws, j, gaps, self.weights_[:, j])
                    found = codes_of(probs, coding.is_ordered[j])
                elif is_bound[j]:
                    found = self._mean_within(laws, j, gaps, limits)
                else:
                    found = self._mean(laws, j, gaps, limits)
                filled[chunk.start + gaps, j] = found
        determined = self._relations.determined(numbers)
        return np.where(np.isnan(determined), filled, limits.clip(determined))

    def _mean(self, laws, j, rows, limits):
        """Return the expected numbers of column j by the weights of means."""
        return sum(
            weight * of[j].rows(rows).expected(limits.low[j], limits.high[j])
            for weight, of in zip(self.mean_weights_[:, j], laws, strict=True)
            if weight > 0
        )

    def _mean_within(self, laws, j, rows, limits):
        """Return the means of the truncated law of column j."""
        low, high = limits.low[j], limits.high[j]
        if j in self._coding.levels:
            probs = self._level_probs(laws, j, rows, low, high)
            return probs @ self._coding.levels[j]
        log_masses, means = [], []
        for weight, of in zip(self._draw_weights()[:, j], laws, strict=True):
            if weight > 0:
                log_mass, mean = of[j].rows(rows).truncated(low, high)
                log_masses.append(np.log(weight) + logsumexp(log_mass, axis=1))
                means.append(mean)
        return (softmax(np.stack(log_masses), axis=0) * means).sum(axis=0)

    def _probs(self, laws, j, rows, weights):
        """Return probabilities of the categories of column j, (n, C)."""
        return sum(
            weight * of[j][rows]
            for weight, of in zip(weights, laws, strict=True)
            if j in of and weight > 0
        )

    def _level_probs(self, laws, j, rows, low, high):
        """Return probabilities of the levels of column j within limits, (n, L)."""
        levels = self._coding.levels[j]
        edges = (levels[1:] + levels[:-1]) / 2
        probs = sum(
            weight * of[j].rows(rows).cell_probs(edges)
            for weight, of in zip(self._draw_weights()[:, j], laws, strict=True)
            if weight > 0
        )
        is_within = (levels >= low) & (levels <= high)
        if is_within.any():
            probs = np.where(is_within, probs, 0.0)
        return probs / probs.sum(axis=1, keepdims=True)

    def _drawn_within(self, numbers, limits, is_bound, rng):
        """Draw the missing entries of rows within limits."""
        draws, weights = limits.of_draws(), self._draw_weights()
        order = rng.permutation(numbers.shape[1]).tolist()
        order = sorted(order, key=lambda j: not is_bound[j])

        def draw(rows, index, j):
            return np.concatenate(
                [
                    self._drawn(rows[chunk], j, weights[:, j], limits, draws, rng)
                    for chunk in _chunks(len(rows))
                ]
            )

        return limits.nearest_existing(drawn_in_turn(numbers, order, draw))

    def _drawn(self, rows, j, weights, limits, draws, rng):
        """Draw column j, which is missing in rows, given their other entries."""
        laws, every = self._laws(rows, [j]), slice(None)
        if not self._coding.is_number[j]:
            probs = self._probs(laws, j, every, weights)
            return drawn_codes(probs, rng.random((len(rows), 1)))
        low, high = draws.low[j], draws.high[j]
        determined = self._relations.determined(rows)[:, j]
        if j in self._frequent_values:
            expected = self._mean(laws, j, every, limits)
            drawn = self._frequent_values[j].draw(expected, rng)
            again = np.flatnonzero((drawn < low) | (drawn > high))
        else:
            drawn, again = np.empty(len(rows)), np.arange(len(rows))
        if not len(again):
            pass
        elif j in self._coding.levels:
            probs = self._level_probs(laws, j, again, limits.low[j], limits.high[j])
            codes = drawn_codes(probs, rng.random((len(again), 1)))
            drawn[again] = self._coding.levels[j][codes]
        else:
            parts = [
                (weight, of[j].rows(again))
                for weight, of in zip(weights, laws, strict=True)
                if weight > 0
            ]
            masses = [
                np.log(w) + logsumexp(law.truncated(low, high)[0], axis=1)
                for w, law in parts
            ]
            shares = softmax(np.column_stack(masses), axis=1)
            k = drawn_codes(shares, rng.random((len(again), 1)))
            for i, (_, law) in enumerate(parts):
                here = np.flatnonzero(k == i)
                drawn[again[here]] = law.rows(here).draw(low, high, rng)
        drawn = np.where(np.isnan(determined), drawn, determined)
        return limits.nearest_existing_of(j, drawn)

    def _draw_weights(self):
        """Return weights of the models in draws, (n_models, m)."""
        # Independent columns, the first, are left out: rows drawn from them would
        # weaken the dependence of columns, and bias slopes of regressions towards zero.
        weights = self.weights_.copy()
        others = weights[1:].sum(axis=0) > 0
        weights[0, others] = 0.0
        return weights


def _in_order(columns, names):
    """Return indices of columns by their names, so that their order is of no effect."""
    if len(set(names)) == len(names) and all(isinstance(name, str) for name in names):
        return np.array(sorted(columns, key=lambda j: names[j]), dtype=int)
    return columns


def _sorted(rows, weight):
    """Return rows in the order of their values, so that their order is of no effect."""
    order = np.lexsort([weight, *rows.T[::-1]])
    return rows[order], weight[order]


def _chunks(n_rows):
    return [
        slice(start, min(start + CHUNK_ROWS, n_rows))
        for start in range(0, n_rows, CHUNK_ROWS)
    ]
