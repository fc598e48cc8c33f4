"""Entries that are hidden in turn, and what models predict of them."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._imputation.coded_rows import CODES, CodedRows, HiddenRows
from sklearn_mpt._imputation.column_layout import codes_of, means_and_spreads
from sklearn_mpt._imputation.expectations import expectations
from sklearn_mpt._imputation.frequent_values import FrequentValue, frequent_value
from sklearn_mpt._imputation.weights import HiddenEntries

HIDDEN_FRACTION = 0.2  # of the present entries, hidden at a time
# Entries are hidden again until so many were hidden, or so often, because few entries
# decide neither which model is better nor what weights the models have.
MIN_HIDDEN, MAX_MASKS = 200, 4
MAX_ROWS = 1000  # on which models are compared
# Weight of each additional row that contains categories; see `with_levels`.
LEVEL_WEIGHT = 1e-3
# In place of errors that are not finite, in standard deviations or nats.
WORST_ERROR = 1e6


class HiddenTable(NamedTuple):
    """The rows, and the entries that are hidden in turn.

    rows : with rows that contain every category at the end; see `with_levels`.
    row_weight : of all of them. numbers : the first n rows, in standard deviations of
    the columns. scale : standard deviations; 1 for categories. largest : largest
    log-density of each column of `numbers`.
    """

    rows: CodedRows
    row_weight: np.ndarray
    masks: list[np.ndarray]
    numbers: np.ndarray
    scale: np.ndarray
    largest: np.ndarray

    @classmethod
    def from_rows(cls, rows, row_weight, masks):
        n_rows, layout = len(masks[0]), rows.coding.layout
        numbers = rows.numbers[:n_rows]
        spreads = means_and_spreads(numbers, row_weight[:n_rows])[1]
        scale = np.where(layout.numbers, spreads, 1.0)
        largest = rows.coding.largest_log_density + np.log(scale)
        return cls(rows, row_weight, masks, numbers / scale, scale, largest)

    @property
    def layout(self):
        return self.rows.coding.layout

    @property
    def columns(self):
        """The column of each hidden entry."""
        return np.concatenate([np.nonzero(mask)[1] for mask in self.masks])

    @property
    def entry_weight(self):
        """The weight of the row of each hidden entry."""
        rows = np.concatenate([np.nonzero(mask)[0] for mask in self.masks])
        return self.row_weight[rows]

    def training_rows(self):
        """Return the rows with each of the masks hidden."""
        n_others = len(self.row_weight) - len(self.numbers)
        padding = (0, n_others), (0, 0)
        return [HiddenRows(self.rows, np.pad(mask, padding)) for mask in self.masks]

    def predictions(self, model, hidden):
        """Return what a model predicts of entries that are hidden from it.

        Returns
        -------
        log_prob : ndarray of shape (n_entries,)
            Log-probabilities of the hidden entries.
        filled : ndarray of shape (n, d)
            Rows filled in; numbers in standard deviations.
        """
        layout, is_coded = self.layout, self.layout.n_categories > 0
        numbers, log_probs = expectations(model, HiddenRows(self.rows, hidden))
        log_prob = np.zeros(hidden.shape)
        if (hidden & ~is_coded).any():
            rows = HiddenRows(self.rows, hidden & is_coded)  # codes follow
            log_prob = model.conditional_log_prob(rows, hidden)
        codes = self.rows.coded(CODES)[: len(hidden)]
        for j, of_codes in log_probs.items():
            code = np.where(hidden[:, j], codes[:, j], 0).astype(int)
            log_prob[:, j] = of_codes[np.arange(len(code)), code]
            log_prob[:, j] += layout.log_level_density(j)
        log_prob = np.minimum(log_prob + np.log(self.scale), self.largest)[hidden]
        for j, of_codes in log_probs.items():
            if not layout.numbers[j]:
                numbers[:, j] = codes_of(np.exp(of_codes), layout.ordered[j])
        return log_prob, numbers / self.scale

    def errors(self, filled):
        """Return errors of numbers, and their summaries of all hidden entries.

        These are the rmse of numbers, the fraction of wrong categories, and the mean
        number of steps of ordered ones.

        filled : for each mask in turn, the rows as `predictions` returns them.
        """
        hidden, layout = np.vstack(self.masks), self.layout
        numbers = np.tile(self.numbers, (len(self.masks), 1))
        error = np.where(layout.numbers, filled - numbers, 0.0)[hidden]
        distance, weight = np.abs(filled - numbers), self.entry_weight

        def mean(values, column_values):
            entries = np.broadcast_to(column_values, hidden.shape)[hidden]
            if not entries.any():
                return np.nan
            return np.average(values[entries], weights=weight[entries])

        is_coded, distance = ~layout.numbers, distance[hidden]
        rmse = np.sqrt(mean(error**2, layout.numbers))
        wrong = mean(distance > 0.5, is_coded)
        return error, rmse, wrong, mean(distance, is_coded & layout.ordered)

    def frequent_values(self, error):
        """Return the values that many rows share, by the index of their column.

        error : of what is expected of the hidden entries, (n_entries,).
        """
        n_rows, frequent = len(self.numbers), {}
        rows, row_weight = self.rows.numbers[:n_rows], self.row_weight[:n_rows]
        numbers = np.concatenate([rows[mask] for mask in self.masks])
        is_dense = self.layout.numbers & (self.layout.n_categories == 0)
        for j in np.flatnonzero(is_dense).tolist():
            value = frequent_value(rows[:, j], row_weight)
            entries = self.columns == j
            if value is not None and entries.any():
                frequent[j] = FrequentValue(
                    value,
                    numbers[entries] + error[entries] * self.scale[j],
                    numbers[entries],
                    self.entry_weight[entries],
                )
        return frequent

    def hidden(self, trials):
        log_prob = np.stack([trial.log_prob for trial in trials])
        error = np.stack([trial.error for trial in trials])
        entry_arrays = log_prob, error, self.entry_weight
        return HiddenEntries(self.columns, self.layout.numbers, *entry_arrays)


def with_levels(numbers, weight, coding):
    """Return coded rows and weights, with rows of very small weights at the end.

    They contain every category, so that all categories are known to the models.

    numbers : rows of the table, (n, d). weight : (n,); None is 1.
    """
    weight = np.ones(len(numbers)) if weight is None else np.asarray(weight, float)
    counts = coding.layout.n_categories
    most = counts.max(initial=0)
    levels = np.full((most, len(counts)), np.nan)
    for j in coding.layout.coded.tolist():
        levels[: counts[j], j] = coding.numbers_of_codes(j)
    weight = np.append(weight, np.full(most, LEVEL_WEIGHT))
    return CodedRows(np.vstack([numbers, levels]), coding), weight


def hide(rows, rng):
    """Draw entries to hide, at most half of each column and of each row.

    At least one is hidden if a column has two. Entries of a row with a single one can
    be hidden if there are no others.
    """
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


def sampled(rows, weight, n_most, rng):
    """Return coded rows and weights, or those of `n_most` rows if there are more.

    rows, weight : as `with_levels` returns them.
    """
    n_rows = len(weight) - rows.coding.layout.n_categories.max(initial=0)
    if n_rows <= n_most:
        return rows, weight
    sample = rng.permutation(n_rows)[:n_most]
    return with_levels(rows.numbers[sample], weight[sample], rows.coding)


def hide_entries(rows, weight, rng):
    """Draw the rows on which models are compared, and the entries that are hidden."""
    rows, weight = sampled(rows, weight, MAX_ROWS, rng)
    n_levels = rows.coding.layout.n_categories.max(initial=0)
    numbers = rows.numbers[: len(weight) - n_levels]
    masks = [hide(numbers, rng)]
    if not masks[0].any():
        raise ValueError(
            "No column of X has two present entries in the rows that count, so none "
            "can be hidden to choose models. Give MPTImputer a model as `estimator`."
        )
    n_masks = min(-(-MIN_HIDDEN // masks[0].sum()), MAX_MASKS)
    masks += [hide(numbers, rng) for _ in range(n_masks - 1)]
    return HiddenTable.from_rows(rows, weight, masks)
