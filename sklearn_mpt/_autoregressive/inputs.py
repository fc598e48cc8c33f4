"""Inputs of the predictor of a column: other columns, coded as numbers."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._autoregressive.predictors import takes_gaps
from sklearn_mpt._likelihoods.columns import Columns


class PredictorCoding:
    """Code of the columns that a predictor reads as numbers.

    A number is itself, levels are -1 to 1, amounts logarithms, and categories
    indicators.
    """

    def __init__(self, columns, read):
        self.columns = read
        kinds, counts = (
            [of_all[j] for j in read]
            for of_all in (columns.kinds, columns.n_categories)
        )
        self._columns = Columns(kinds, counts) if len(read) else None

    def inputs(self, rows):
        """Return the inputs that code rows of these columns; (n, p)."""
        return self._columns.inputs(torch.from_numpy(rows)).numpy()

    @property
    def column_of(self):
        """The column, among those that are read, of each input; (p,)."""
        return self._columns.feature_of.numpy()


class PredictorInputs:
    """The columns of rows that predictors read, as far as they are visible."""

    def __init__(self, coding, rows, visible):
        self.coding, self.rows, self.visible = coding, rows, visible

    def __len__(self):
        return len(self.rows)

    def take(self, index):
        """Return the inputs of some rows."""
        return PredictorInputs(self.coding, self.rows[index], self.visible[index])

    @property
    def n_visible(self):
        """Numbers of visible columns, (n,)."""
        return self.visible.sum(axis=1)

    @property
    def fraction_visible(self):
        """Fractions of the columns that are visible, (n,)."""
        return self.n_visible / max(1, self.visible.shape[1])

    def given_to(self, predictor):
        """Return the inputs of a predictor, (n, p).

        Those that are not visible are NaN, if the predictor takes NaN. If not, they are
        0, and indicators of visible columns are inputs too. Without other columns there
        is one input, 0.
        """
        if not self.visible.shape[1]:
            return np.zeros((len(self), 1))
        return self._with_nan if takes_gaps(predictor) else self._with_indicators

    @cached_property
    def _coded(self):
        return self.coding.inputs(np.where(self.visible, self.rows, 0.0))

    @property
    def _is_seen(self):
        return self.visible[:, self.coding.column_of]

    @cached_property
    def _with_nan(self):
        return np.where(self._is_seen, self._coded, np.nan)

    @cached_property
    def _with_indicators(self):
        coded = np.where(self._is_seen, np.nan_to_num(self._coded), 0.0)
        return np.column_stack([coded, self.visible])


class MaskedCopies(NamedTuple):
    """Copies of rows."""

    rows: np.ndarray
    inputs: PredictorInputs

    def at(self, index):
        """Return the copies at an index."""
        return MaskedCopies(self.rows[index], self.inputs.take(index))

    def take(self, index):
        """Return the copies of the rows that are True in `index`."""
        kept = index[self.rows]
        new_index = np.cumsum(index) - 1
        return MaskedCopies(new_index[self.rows[kept]], self.inputs.take(kept))
