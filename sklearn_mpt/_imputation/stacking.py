"""Several models of one table, whose conditionals are mixed."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._base.state import VersionedPickleMixin
from sklearn_mpt._checks import RandomState, check_choice, spawn_seeds
from sklearn_mpt._imputation.coding import Coding
from sklearn_mpt._imputation.draws import drawn_in_turn
from sklearn_mpt._imputation.frequent_values import FrequentValue
from sklearn_mpt._imputation.laws import Laws
from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._imputation.relations import LinearRelations
from sklearn_mpt._imputation.search import Search, codes_of
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import chunk_slices
from sklearn_mpt._optim.weights import relative_weights
from sklearn_mpt._tables.filling import DATES
from sklearn_mpt._tables.frames import column_names
from sklearn_mpt._tables.labels import check_columns, labels_of
from sklearn_mpt._tables.reader import TableReader
from sklearn_mpt._tables.weights import check_mask, rows_that_count, rows_with_entries

CHUNK_ENTRIES = 200_000  # of tables, whose laws are computed together
# Rows to which the chosen models are fitted; of longer tables, a sample. Errors of
# estimates are below 1% of a standard deviation then.
MAX_FIT_ROWS = 20_000


class StackedModels(VersionedPickleMixin, BaseEstimator):
    """Mixture of several models of a table, chosen by predictions of hidden entries."""

    # p(x_j | x_R) = sum_k w_kj p_k(x_j | x_R) with weights for each column that
    # maximise the log-probability of hidden entries (Yao et al., Bayesian Analysis 13,
    # 2018). Expectations of numbers have weights of their own; see `weights`.
    # weights_, mean_weights_ : (n_models, n_columns). selection_ : results of all
    # models that were tried.

    estimators_: list
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
            self._learn_columns(numbers, weight)
            self._choose(numbers, weight, rng)
        self._frequent_values = {
            j: frequent.calibrated(numbers[:, j], weight)
            for j, frequent in self._frequent_values.items()
        }
        if len(numbers) > MAX_FIT_ROWS:
            sample = rng.permutation(len(numbers))[:MAX_FIT_ROWS]
            numbers, weight = numbers[sample], weight[sample]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.estimators_ = [
                member.trained_on(numbers, weight, is_refit)
                for member in self.estimators_
            ]
        return self

    def _training_rows(self, X, weight):
        """Return the modelled columns as numbers, (n, m), and the weights of rows."""
        # The order of rows and of columns is of no effect.
        X, weight = rows_that_count(X, weight)
        self._names, names = labels_of(X, 1), column_names(X)
        columns = self.reader.modelled
        if len({*names}) == len(names) and all(isinstance(name, str) for name in names):
            columns = sorted(columns, key=lambda j: names[j])
        self._columns = np.array(columns, dtype=int)
        numbers = self._encoded(X)[:, self._columns]
        if not np.isnan(numbers).all():
            numbers, weight = rows_with_entries(numbers, weight)
        weight = relative_weights(weight, len(numbers))
        order = np.lexsort([weight, *numbers.T[::-1]])
        return numbers[order], weight[order]

    def _learn_columns(self, numbers, weight):
        """Learn units and levels of numbers, limits and categories."""
        reader, columns = self.reader, self._columns
        kinds = [reader.kinds[j] for j in columns]
        counts = [
            0 if kind == "gaussian" else 2 if known is None else len(known)
            for kind, known in zip(
                kinds, [reader.categories[j] for j in columns], strict=True
            )
        ]
        self._coding = Coding(kinds, counts, numbers, weight)
        is_date = [DATES in reader.storage[j]["days"] for j in columns]
        is_number, has_margin = self._coding.is_number, np.logical_not(is_date)
        self._limits = Limits.from_rows(numbers, weight, is_number, has_margin)
        self.n_features_in_ = len(reader.kinds)
        self.likelihoods_ = list(reader.kinds)
        self.categories_ = [
            None if kind is None else known
            for kind, known in zip(reader.kinds, reader.categories, strict=True)
        ]

    def _choose(self, numbers, weight, rng):
        """Choose members, and what else the hidden entries tell."""
        coding = self._coding
        search = Search(coding, numbers, weight, self.max_seconds, self.max_models, rng)
        self._relations = LinearRelations(numbers, coding.is_number)
        self._relations.check(search.numbers, search.tables[0])
        trials, kept, weights, error = search.run()
        columns = "name", "rmse", "wrong", "steps", "gain", "seconds", "outcome"
        table = {c: np.array([getattr(t, c) for t in trials]) for c in columns}
        table["log_prob"] = np.array(
            [np.nan if t.log_prob is None else np.nanmean(t.log_prob) for t in trials]
        )
        table["weight"] = np.zeros(len(trials))
        table["weight"][kept] = weights.log_prob.mean(axis=1)
        self.selection_ = table
        self.estimators_ = [trials[i].member for i in kept]
        self.weights_, self.mean_weights_ = weights
        expected = search.truth + error * coding.spreads[search.columns]
        self._frequent_values = {}
        for j in np.flatnonzero(coding.is_number).tolist():
            here = search.columns == j
            of_entries = expected[here], search.truth[here], search.entry_weight[here]
            value = FrequentValue.found(
                search.numbers[:, j], search.weight, *of_entries
            )
            if value is not None:
                self._frequent_values[j] = value

    @property
    def limits(self):
        """Limits of all columns of the table; NaN for columns that are not modelled."""
        limits = np.full((len(Limits._fields), len(self.reader.kinds)), np.nan)
        limits[:, self._columns] = self._limits
        return Limits(*limits)

    def _encoded(self, X):
        check_columns(X, self._names, "X", "columns of fit")
        codes = self.reader.encode(X)
        self.reader.check_values(codes, column_names(X))
        return codes

    def _chunks(self, n_rows):
        return chunk_slices(n_rows, len(self._columns), CHUNK_ENTRIES)

    def _laws(self, numbers, columns, weights):
        predictions = [of.predict(numbers, columns) for of in self.estimators_]
        return Laws(self._coding, predictions, weights)

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        """Compute log-probabilities of hidden entries given the others of a row."""
        check_is_fitted(self)
        shape, numbers = np.shape(X), self._encoded(X)[:, self._columns]
        mask = check_mask(mask, shape[0], column_names(X))
        mask = np.broadcast_to(mask, shape)[:, self._columns]
        log_prob, visible = np.zeros(shape), np.where(mask, np.nan, numbers)
        is_target = mask & ~np.isnan(numbers)
        has_target = np.flatnonzero(is_target.any(axis=1))
        for chunk in self._chunks(len(has_target)):
            chunk = has_target[chunk]
            rows, columns = np.nonzero(is_target[chunk])
            laws = self._laws(visible[chunk], np.unique(columns), self.weights_)
            found = laws.log_prob(rows, columns, numbers[chunk[rows], columns])
            log_prob[chunk[rows], self._columns[columns]] = found
        return log_prob

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
        gaps = np.isnan(numbers)
        has_gaps = gaps.any(axis=1)
        if has_gaps.any():
            if bounds is None:
                bounds = np.full((2, codes.shape[1]), np.nan)
            low, high = (bound[columns] for bound in bounds)
            limits = self._limits.with_bounds(low, high)
            is_bound = np.isfinite(low) | np.isfinite(high)
            if method == "mean":
                filled = self._expected(numbers[has_gaps], limits, is_bound)
            else:
                state = self.random_state if random_state is None else random_state
                rng = np.random.default_rng(spawn_seeds(state, 1)[0])
                filled = self._drawn_rows(numbers[has_gaps], limits, is_bound, rng)
            numbers[has_gaps] = np.where(gaps[has_gaps], filled, numbers[has_gaps])
        complete = codes.copy()
        complete[:, columns] = numbers
        return self.reader.fill(X, complete, self.reader.gaps(X, codes))

    def _expected(self, numbers, limits, is_bound):
        """Fill rows in by expectations within limits."""
        # is_bound : columns whose limits a user set, bool, (m,).
        filled, coding = numbers.copy(), self._coding
        for chunk in self._chunks(len(numbers)):
            visible, of_chunk = numbers[chunk], filled[chunk]
            rows, columns = np.nonzero(np.isnan(visible))
            laws = self._laws(visible, np.unique(columns), self.weights_)
            means = Laws(coding, laws.predictions, self.mean_weights_)
            is_free = (coding.is_number & ~is_bound)[columns]
            places = rows[is_free], columns[is_free]
            low, high = limits.low[places[1]], limits.high[places[1]]
            of_chunk[places] = means.numbers(*places).expected(low, high)
            for j in np.unique(columns[~is_free]).tolist():
                gaps = rows[columns == j]
                if coding.is_number[j]:
                    found = self._mean_within(laws, gaps, j, limits)
                else:
                    found = codes_of(laws.probs(gaps, j), coding.is_ordered[j])
                of_chunk[gaps, j] = found
        determined = self._relations.determined(numbers)
        return np.where(np.isnan(determined), filled, limits.clip(determined))

    def _mean_within(self, laws, rows, j, limits):
        """Return means of the truncated laws of column j."""
        laws.weights = self._draw_weights()
        law = laws.numbers(rows, np.full(len(rows), j))
        if j in self._coding.levels:
            return self._level_probs(laws, law, j, limits) @ self._coding.levels[j]
        return law.truncated_mean(
            *np.repeat([limits.low[[j]], limits.high[[j]]], len(rows), 1)
        )

    def _level_probs(self, laws, law, j, limits):
        """Return probabilities of the levels of column j within limits, (n, L)."""
        levels, probs = self._coding.levels[j], laws.level_probs(law, j)
        is_within = (levels >= limits.low[j]) & (levels <= limits.high[j])
        if is_within.any():
            probs = np.where(is_within, probs, 0.0)
        return probs / probs.sum(axis=1, keepdims=True)

    def _drawn_rows(self, numbers, limits, is_bound, rng):
        """Draw the missing entries of rows within limits, those with bounds first."""
        order = rng.permutation(numbers.shape[1])
        order = order[np.argsort(~is_bound[order], kind="stable")].tolist()
        draws = limits.of_draws()

        def draw(rows, index, j):
            return np.concatenate(
                [
                    self._drawn(rows[chunk], j, limits, draws, rng)
                    for chunk in self._chunks(len(rows))
                ]
            )

        return limits.nearest_existing(drawn_in_turn(numbers, order, draw))

    def _drawn(self, rows, j, limits, draws, rng):
        """Draw column j, which is missing in rows, given their other entries."""
        laws, every = self._laws(rows, [j], self._draw_weights()), np.arange(len(rows))
        if not self._coding.is_number[j]:
            return drawn_codes(laws.probs(every, j), rng.random((len(rows), 1)))
        columns, drawn = np.full(len(rows), j), np.full(len(rows), np.nan)
        law, low, high = laws.numbers(every, columns), draws.low[j], draws.high[j]
        if j in self._frequent_values:
            means = Laws(self._coding, laws.predictions, self.mean_weights_)
            ends = limits.low[columns], limits.high[columns]
            expected = means.numbers(every, columns).expected(*ends)
            drawn = self._frequent_values[j].draw(expected, rng)
        again = np.flatnonzero(~((drawn >= low) & (drawn <= high)))
        if len(again) and j in self._coding.levels:
            probs = self._level_probs(laws, law.of(again), j, limits)
            codes = drawn_codes(probs, rng.random((len(again), 1)))
            drawn[again] = self._coding.levels[j][codes]
        elif len(again):
            ends = np.repeat([[low], [high]], len(again), axis=1)
            drawn[again] = law.of(again).draw(*ends, rng)
        determined = self._relations.determined(rows)[:, j]
        drawn = np.where(np.isnan(determined), drawn, determined)
        return limits.nearest_existing_of(j, drawn)

    def _draw_weights(self):
        """Return weights of the models in draws, (n_models, m)."""
        # Independent columns, the first, are left out: rows drawn from them would
        # weaken the dependence of columns, and bias slopes of regressions towards zero.
        weights = self.weights_.copy()
        weights[0, weights[1:].sum(axis=0) > 0] = 0.0
        return weights
