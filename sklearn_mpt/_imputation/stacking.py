"""Several models of one table, whose conditionals are mixed."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._checks import (
    check_choice,
    check_mask,
    rows_that_count,
    rows_with_entries,
)
from sklearn_mpt._fitting.weights import relative_weights
from sklearn_mpt._frames import column_names
from sklearn_mpt._imputation.coded_rows import CodedRows, TableCoding
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.expectations import expected
from sklearn_mpt._imputation.frequent_values import FrequentValue
from sklearn_mpt._imputation.hidden_table import sampled, with_levels
from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._imputation.power_transforms import PowerTransforms
from sklearn_mpt._imputation.search import SearchLimits, search
from sklearn_mpt._imputation.truncation import Conditionals, draw_within, expect_within
from sklearn_mpt._imputation.weights import ModelWeights, mixed
from sklearn_mpt._labels import check_columns, labels_of
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._persistence import VersionedPickleMixin
from sklearn_mpt._probabilities import drawn_codes
from sklearn_mpt._seeds import RandomState, seed_from, spawn_seeds
from sklearn_mpt._tables.days import DATES
from sklearn_mpt._tables.reader import TableReader

# Of models that were fitted without the hidden entries: with these, they start near
# their optimum, so that few epochs are enough. Each takes as long as one in the choice
# of models.
REFIT_PARAMS = {"max_iter": 10}
# Of models that are fitted again to rows drawn with replacement. Fits that stop too
# early stay too close to the first one, and so do the tables that they fill in: their
# pooled standard errors are too small. benchmarks/bench_coverage.py prints the coverage
# of intervals, and the ratio of variances.
WARM_START_PARAMS = {"max_iter": 30, "tol": 4e-4}  # tol in nats per row

# Rows to which the chosen models are fitted; of longer tables, a sample. Errors of
# estimates are below 1% of a standard deviation then. What fewer cost is in
# benchmarks/RESULTS.rst, "Imputation: rules of the choice of models".
MAX_FIT_ROWS = 20_000


def repeated(rows, weight):
    """Return rows as often as their weights say, rounded up or down in turn."""
    if weight is None:
        return rows
    last = np.floor(np.cumsum(weight) + 0.5).astype(int)
    return np.repeat(rows, np.diff(last, prepend=0), axis=0)


class StackedModels(VersionedPickleMixin, BaseEstimator):
    r"""Mixture of several models of a table, chosen by predictions of hidden entries.

    Conditionals are mixed [1]_ with weights for each column,
    :math:`p(x_j \mid x_R) = \sum_k w_{kj} \, p_k(x_j \mid x_R)`, which maximise the
    log-probability of entries that are hidden for this purpose. Expectations of numbers
    have weights of their own, which minimise the squared error; see `weights`.

    Parameters
    ----------
    reader : TableReader
        Kinds and categories of the columns. Columns without a kind are not modelled.
    max_seconds : "auto", float or None, default="auto"
        Limit for the choice of models; see `MPTImputer`.
    max_models : int, default=None
        Largest number of models that are tried.
    warm_start : bool, default=False
        Whether `fit` trains the chosen models on, without a new choice.
    random_state : int, RandomState instance or None, default=None
        Determines the hidden entries and the fits.

    Attributes
    ----------
    estimators_ : list of estimators
        The chosen models, fitted to coded rows with standardised numbers.
    weights_ : ndarray of shape (n_models, n_columns)
        Weights of the models in the conditionals and draws of each modelled column.
    mean_weights_ : ndarray of shape (n_models, n_columns)
        Weights of the models in the expectations of columns of numbers.
    selection_ : dict of ndarrays
        Results of all models that were tried.

    References
    ----------
    .. [1] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average
       Bayesian predictive distributions", Bayesian Analysis 13, 2018.
    """

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
            self._learn_columns(numbers, weight)
        n_rows = len(numbers)
        rows, weight = with_levels(numbers, weight, self._coding)
        if not is_refit:
            limits = SearchLimits.from_parameters(self.max_seconds, self.max_models)
            self._store_models(*search(rows, weight, limits, rng))
        self._frequent_values = {
            j: frequent.calibrated(numbers[:, j], weight[:n_rows])
            for j, frequent in self._frequent_values.items()
        }
        rows, weight = sampled(rows, weight, MAX_FIT_ROWS, rng)
        params = WARM_START_PARAMS if is_refit else REFIT_PARAMS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.estimators_ = [
                model.warm_started(**params).fit(rows, sample_weight=weight)
                for model in self.estimators_
            ]
        return self

    def _training_rows(self, X, weight):
        """Return the modelled columns as numbers, (n, m), and the weights of rows.

        The order of rows and of columns is of no effect.
        """
        X, weight = rows_that_count(X, weight)
        self._names = labels_of(X, 1)
        self._columns = _in_order(self.reader.modelled, column_names(X))
        numbers = self._numbers(X)
        if not np.isnan(numbers).all():
            numbers, weight = rows_with_entries(numbers, weight)
        if weight is not None:  # beside prior entries and levels of weight 1
            weight = relative_weights(weight, len(weight))
        return _sorted(numbers, weight)

    def _learn_columns(self, numbers, weight):
        """Learn units and transforms of the numbers, levels, limits and categories."""
        reader, columns = self.reader, self._columns
        kinds = [reader.kinds[j] for j in columns]
        categories = [reader.categories[j] for j in columns]
        rows = repeated(numbers, weight)
        layout = ColumnLayout.from_kinds(kinds, categories).with_levels(rows)
        is_number = np.array([kind == "gaussian" for kind in layout.kinds])
        powers = PowerTransforms.from_rows(rows, is_number)
        self._coding = TableCoding(layout, numbers, powers, weight)
        is_date = [DATES in reader.storage[j]["days"] for j in columns]
        self._limits = Limits.from_rows(rows, layout.numbers, np.logical_not(is_date))
        self.n_features_in_ = len(reader.kinds)
        self.likelihoods_ = list(reader.kinds)
        self.categories_ = [
            None if kind is None else known
            for kind, known in zip(reader.kinds, reader.categories, strict=True)
        ]

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

    def _store_models(self, trials, kept, weights, frequent):
        columns = "name", "rmse", "wrong", "steps", "gain", "seconds", "outcome"
        table = {c: np.array([getattr(t, c) for t in trials]) for c in columns}
        table["log_prob"] = np.array(
            [t.log_prob.mean() if len(t.log_prob) else np.nan for t in trials]
        )
        table["weight"] = np.zeros(len(trials))
        table["weight"][kept] = weights.log_prob.mean(axis=1)
        self.selection_ = table
        self.estimators_ = [trials[i].models[0] for i in kept]
        self.weights_, self.mean_weights_ = weights
        self._frequent_values = frequent

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        """Compute the log-probability of hidden entries given the others of their row.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN or None marks missing entries.
        mask : array-like of bool, of shape (n_features,) or (n_samples, n_features)
            True where an entry is hidden.

        Returns
        -------
        log_prob : ndarray of shape (n_samples, n_features)
            In nats; 0.0 where not hidden, or missing, and in columns without a kind.
        """
        check_is_fitted(self)
        shape, columns = np.shape(X), self._columns
        mask = check_mask(mask, shape[0], column_names(X))
        mask = np.broadcast_to(mask, shape)[:, columns]
        numbers, log_prob = self._numbers(X), np.zeros(shape)
        is_target = mask & ~np.isnan(numbers)
        mixture_log_prob = self._log_prob(numbers, mask, self.weights_)
        log_prob[:, columns] = np.where(is_target, mixture_log_prob, 0.0)
        return log_prob

    def _log_prob(self, numbers, mask, weights):
        """Return log-probabilities of hidden entries of the modelled columns, (n, m).

        They are arbitrary where entries are not hidden.
        """
        rows = CodedRows(numbers, self._coding)
        mask = np.broadcast_to(mask, numbers.shape)
        log_probs = [
            model.conditional_log_prob(rows, mask) for model in self.estimators_
        ]
        mixture_log_prob = mixed(np.stack(log_probs), weights[:, None])
        return np.minimum(mixture_log_prob, self._coding.largest_log_density)

    def impute(
        self,
        X: ArrayLike,
        method: str = "mean",
        random_state: RandomState = None,
        bounds: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Any:
        """Fill in the gaps of rows.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN or None marks missing entries.
        method : {"mean", "sample"}, default="mean"
            "mean" is the expected number, the median of ordered and the most probable
            of other categories; "sample" one draw, each entry of a row from one of the
            models other than independent columns, given what is drawn already.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own.
        bounds : tuple of ndarray, default=None
            Least and largest numbers to fill in, in each column, (n_features,), or in
            each entry, (n_samples, n_features); NaN for the limits of what was seen.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            A copy without gaps, except in columns without a kind that were not constant
            in `fit`.
        """
        check_choice(method, "method", ["mean", "sample"])
        check_is_fitted(self)
        codes, columns = self._encoded(X), self._columns
        numbers = codes[:, columns]
        filled, gaps = numbers.copy(), np.isnan(numbers)
        has_gaps = gaps.any(axis=1)
        if has_gaps.any():
            if bounds is None:
                bounds = np.full((2, codes.shape[1]), np.nan)
            low, high = (bound[..., columns] for bound in bounds)
            limits = self._limits.with_bounds(low, high).rows(has_gaps)
            if method == "mean":
                is_bound = np.isfinite(low) | np.isfinite(high)
                is_bound = np.broadcast_to(is_bound, gaps.shape)[has_gaps]
                filled[has_gaps] = self._expected(numbers[has_gaps], limits, is_bound)
            else:
                state = self.random_state if random_state is None else random_state
                rng = np.random.default_rng(spawn_seeds(state, 1)[0])
                filled[has_gaps] = self._drawn_within(numbers[has_gaps], limits, rng)
        complete = codes.copy()
        complete[:, columns] = np.where(gaps, filled, numbers)
        return self.reader.fill(X, complete, self.reader.gaps(X, codes))

    def _expected(self, numbers, limits, is_bound):
        """Fill rows in by expectations within limits.

        is_bound : entries whose limits a user set, bool, (n, m).
        """
        filled, model = self._mixture_means(numbers), self._conditionals()
        return limits.clip(expect_within(model, numbers, filled, limits, is_bound))

    def _mixture_means(self, numbers):
        """Fill rows in by expectations, whatever the limits are."""
        filled = numbers.copy()
        weights = ModelWeights(self.weights_, self.mean_weights_)
        n_outputs = np.maximum(self._coding.layout.n_categories, 1).sum()
        row_entries = len(self.estimators_) * int(n_outputs)
        for chunk in chunk_slices(len(numbers), row_entries, CHUNK_ENTRIES):
            rows = CodedRows(numbers[chunk], self._coding)
            filled[chunk] = expected(self.estimators_, weights, rows)
        return filled

    def _drawn_within(self, numbers, limits, rng):
        """Draw the missing entries of rows within limits."""
        model, drawn = self._conditionals(rng), self._drawn(numbers, rng)
        drawn = draw_within(model, numbers, drawn, limits.of_draws(), rng)
        return limits.nearest_existing(drawn)

    def _conditionals(self, rng=None):
        """Return conditionals of rows, whatever their indices are."""
        return Conditionals(
            lambda rows, index: self._drawn(rows, rng),
            lambda rows, index, mask: self._log_prob(rows, mask, self._draw_weights()),
            dict(self._coding.layout.values),
        )

    def _drawn(self, numbers, rng):
        """Draw the missing entries of rows; each from one of the models, by weights.

        Entries of a row that are drawn from the same model are drawn together, and
        models draw in turn, given what is drawn already. One uniform number for each
        row chooses the models of its entries, so that they are the same model if
        weights do not differ between columns.
        """
        weights = self._draw_weights().T
        model_of_entry = drawn_codes(weights, rng.random((len(numbers), 1, 1)))
        drawn = self._with_frequent_values(numbers, rng)
        gaps = np.isnan(drawn)
        for k in rng.permutation(len(self.estimators_)):
            entries = gaps & (model_of_entry == k)
            is_drawn = entries.any(axis=1)
            if is_drawn.any():
                seed = seed_from(rng)
                rows_to_draw = CodedRows(drawn[is_drawn], self._coding)
                drawn_rows = self.estimators_[k].draw(rows_to_draw, random_state=seed)
                drawn[is_drawn] = np.where(
                    entries[is_drawn], drawn_rows, drawn[is_drawn]
                )
        return drawn

    def _with_frequent_values(self, numbers, rng):
        """Return rows in which gaps are drawn of columns with a frequent value."""
        drawn = numbers.copy()
        for j, frequent in self._frequent_values.items():
            index = np.flatnonzero(np.isnan(drawn[:, j]))
            if len(index):
                expected_numbers = self._mixture_means(drawn[index])[:, j]
                drawn[index, j] = frequent.draw(expected_numbers, rng)
        return drawn

    def _draw_weights(self):
        """Return weights of the models in draws, (n_models, m).

        Independent columns, the first, are left out: rows drawn from them would weaken
        the dependence of columns, and bias slopes of regressions towards zero.
        """
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
    keys = rows.T[::-1] if weight is None else [weight, *rows.T[::-1]]
    order = np.lexsort(keys)
    return rows[order], None if weight is None else weight[order]
