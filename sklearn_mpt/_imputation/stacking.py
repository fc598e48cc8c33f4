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
from sklearn_mpt._imputation.laws import Laws
from sklearn_mpt._imputation.limits import FrequentValue, limits_of
from sklearn_mpt._imputation.members import LinearRelations
from sklearn_mpt._imputation.search import Search
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices
from sklearn_mpt._optim.weights import relative_weights
from sklearn_mpt._tables.filling import DATES
from sklearn_mpt._tables.frames import check_columns, column_names, labels_of
from sklearn_mpt._tables.reader import TableReader
from sklearn_mpt._tables.weights import check_mask, rows_that_count, rows_with_entries

# Rows to which the chosen models are fitted; of longer tables, a sample. Errors of
# estimates are below 1% of a standard deviation then.
MAX_FIT_ROWS = 20_000


class StackedModels(VersionedPickleMixin, BaseEstimator):
    """Mixture of several models of a table, chosen by predictions of hidden entries."""

    # p(x_j | x_R) = sum_k w_kj p_k(x_j | x_R) with weights for each column that
    # maximise the log-probability of hidden entries (Yao et al., Bayesian Analysis 13,
    # 2018). Expectations of numbers have weights of their own; see `search`.
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
        # tables of rows drawn with replacement have none in columns where fit has none
        found = {
            j: FrequentValue.found(numbers[:, j], weight, *self._hidden_entries[j])
            for j in (self._frequent_values if is_refit else self._hidden_entries)
        }
        self._frequent_values = {j: of for j, of in found.items() if of is not None}
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
        kinds, n_categories = self.reader.kinds, self.reader.n_categories
        counts = [
            0 if kinds[j] == "gaussian" else max(2, n_categories[j])
            for j in self._columns
        ]
        self._coding = Coding(
            [kinds[j] for j in self._columns], counts, numbers, weight
        )
        self._is_date = [DATES in self.reader.storage[j]["days"] for j in self._columns]
        self.n_features_in_, self.likelihoods_ = len(kinds), list(kinds)
        self.categories_ = [
            None if kind is None else known
            for kind, known in zip(kinds, self.reader.categories, strict=True)
        ]

    def _choose(self, numbers, weight, rng):
        """Choose members, and what else the hidden entries tell."""
        coding = self._coding
        search = Search(coding, numbers, weight, self.max_seconds, self.max_models, rng)
        self._relations = LinearRelations(numbers, coding.is_number)
        self._relations.check(search.numbers, search.table[0])
        search.run()
        kept, self.weights_, self.mean_weights_ = search.chosen()
        trials = [search.trials[i] for i in kept]
        self.estimators_ = [trial.member for trial in trials]
        self.selection_ = search.results()
        self.selection_["weight"] = np.zeros(len(search.trials))
        self.selection_["weight"][kept] = self.weights_.mean(axis=1)
        error = search.mean_errors(trials, self.mean_weights_)
        expected = search.truth + error * coding.spreads[search.columns]
        entries = np.stack([expected, search.truth, search.entry_weight])
        self._hidden_entries = {
            j: entries[:, search.columns == j]
            for j in np.flatnonzero(coding.is_number).tolist()
        }

    def _encoded(self, X):
        check_columns(X, self._names, "X", "columns of fit")
        codes = self.reader.encode(X)
        self.reader.check_values(codes, column_names(X))
        return codes

    def _chunks(self, n_rows):
        return chunk_slices(n_rows, len(self._columns), CACHE_ENTRIES)

    def _laws(self, numbers, columns):
        """Return laws of conditionals, and with the weights of means and of draws."""
        predictions = [of.predict(numbers, columns) for of in self.estimators_]
        # Draws from independent columns, the first, would weaken the dependence of
        # columns, and bias slopes of regressions towards zero.
        drawn = self.weights_.copy()
        drawn[0, drawn[1:].sum(axis=0) > 0] = 0.0
        weights = self.weights_, self.mean_weights_, drawn
        return [Laws(self._coding, predictions, of) for of in weights]

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
            laws, *_ = self._laws(visible[chunk], np.unique(columns))
            found = laws.log_prob(rows, columns, numbers[chunk[rows], columns])
            log_prob[chunk[rows], self._columns[columns]] = found
        return log_prob

    def impute(
        self,
        X: ArrayLike,
        method: str = "mean",
        random_state: RandomState = None,
        bounds: np.ndarray | None = None,
    ) -> Any:
        """Fill in gaps by "mean" or "sample"; `bounds`, (2, d), may be NaN."""
        check_choice(method, "method", ["mean", "sample"])
        check_is_fitted(self)
        codes, columns = self._encoded(X), self._columns
        if bounds is None:
            bounds = np.full((2, codes.shape[1]), np.nan)
        limits, has_grid = limits_of(self._coding, self._is_date, bounds[:, columns])
        is_bound = np.isfinite(bounds[:, columns]).any(axis=0)
        place = np.ix_(np.isnan(codes[:, columns]).any(axis=1), columns)
        complete = codes.copy()
        if method == "mean":
            complete[place] = self._expected(codes[place], limits, is_bound)
        else:
            state = self.random_state if random_state is None else random_state
            rng = np.random.default_rng(spawn_seeds(state, 1)[0])
            complete[place] = self._drawn(codes[place], limits, has_grid, is_bound, rng)
        return self.reader.fill(X, complete, self.reader.gaps(X, codes))

    def _expected(self, numbers, limits, is_bound):
        """Fill rows in by expectations within limits."""
        # is_bound : columns whose limits a user set, bool, (m,).
        determined = np.clip(self._relations.determined(numbers), *limits)
        filled = numbers.copy()
        for chunk in self._chunks(len(numbers)):
            visible, of_chunk = numbers[chunk], filled[chunk]
            rows, columns = np.nonzero(np.isnan(visible))
            _, means, draws = self._laws(visible, np.unique(columns))
            of_chunk[rows, columns] = means.expected(rows, columns, *limits)
            place = np.nonzero(np.isnan(visible) & is_bound)
            ends = (end[place[1]] for end in limits)
            of_chunk[place] = draws.numbers(*place).truncated_mean(*ends)
        return np.where(np.isnan(determined), filled, determined)

    def _drawn(self, numbers, limits, has_grid, is_bound, rng):
        """Draw the missing entries of rows within limits, those with bounds first."""
        order, drawn = rng.permutation(numbers.shape[1]), numbers.copy()
        for j in order[np.argsort(~is_bound[order], kind="stable")].tolist():
            index = np.flatnonzero(np.isnan(numbers[:, j]))
            for chunk in self._chunks(len(index)):
                rows = index[chunk]
                args = j, limits, has_grid[j], rng
                drawn[rows, j] = self._drawn_column(drawn[rows], *args)
        return drawn

    def _drawn_column(self, rows, j, limits, has_grid, rng):
        """Draw column j, which is missing in rows, given their other entries."""
        coding, n = self._coding, len(rows)
        every, columns, drawn = np.arange(n), np.full(n, j), np.full(n, np.nan)
        _, means, laws = self._laws(rows, [j])
        if not coding.is_number[j]:
            return drawn_codes(laws.probs(every, j), rng.random((n, 1)))
        low, high = (end[columns] for end in limits)
        if j in self._frequent_values:
            expected = means.numbers(every, columns).expected(low, high)
            drawn = self._frequent_values[j].draw(expected, rng)
            drawn = coding.rounded(j, drawn) if has_grid else drawn
        again = np.flatnonzero(~((low <= drawn) & (drawn <= high)))
        # numbers of a grid at a limit are as probable as others
        half = coding.steps[j] / 2 if has_grid else 0.0
        ends = low[again] - half, high[again] + half
        drawn[again] = laws.numbers(again, columns[again]).draw(*ends, rng)
        determined = self._relations.determined(rows)[:, j]
        drawn = np.where(np.isnan(determined), drawn, determined)
        return np.clip(coding.rounded(j, drawn) if has_grid else drawn, low, high)
