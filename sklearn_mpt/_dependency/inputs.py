"""Inputs of the predictor of a column: the other columns, coded as numbers."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._dependency.predictors import takes_gaps


class PredictorCoding:
    """Code of the columns other than one as numbers.

    Parameters
    ----------
    columns : Columns
        Likelihood of the columns. Its `inputs` code a number as itself, levels as -1 to
        1, amounts as logarithms, and categories as indicators.
    column : int
        The column that is predicted.
    """

    def __init__(self, columns, column):
        self.columns = columns
        column_of = columns.feature_of.numpy()
        self.kept = np.flatnonzero(column_of != column)
        self.column_of = column_of[self.kept]
        self.others = np.unique(self.column_of)


class PredictorInputs:
    """The visible other columns of rows, for the predictors of a column.

    Parameters
    ----------
    coding : PredictorCoding
    rows : ndarray of shape (n, d)
        Any number where not visible.
    visible : bool ndarray of shape (n, d)
        False in the column that is predicted.
    """

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
    def share_visible(self):
        """Shares of the other columns that are visible, (n,)."""
        return self.n_visible / max(1, self.visible.shape[1] - 1)

    def given_to(self, predictor):
        """Return the inputs of a predictor, (n, p).

        Those that are not visible are NaN, if the predictor takes NaN. If not, they are
        0, and indicators of visible columns are inputs too. Without other columns there
        is one input, 0.
        """
        if not len(self.coding.kept):
            return np.zeros((len(self), 1))
        return self._with_nan if takes_gaps(predictor) else self._with_indicators

    @cached_property
    def _coded(self):
        rows = torch.from_numpy(np.where(self.visible, self.rows, 0.0))
        return self.coding.columns.inputs(rows).numpy()[:, self.coding.kept]

    @property
    def _is_seen(self):
        return self.visible[:, self.coding.column_of]

    @cached_property
    def _with_nan(self):
        return np.where(self._is_seen, self._coded, np.nan)

    @cached_property
    def _with_indicators(self):
        coded = np.where(self._is_seen, self._coded, 0.0)
        return np.column_stack([coded, self.visible[:, self.coding.others]])


class MaskedCopies(NamedTuple):
    """Copies of rows.

    rows : index of the row of each copy, (m,). inputs : those of predictors.
    """

    rows: np.ndarray
    inputs: PredictorInputs

    def at(self, index):
        """Return the copies at an index."""
        return MaskedCopies(self.rows[index], self.inputs.take(index))

    def take(self, index):
        """Return the copies of the rows that are True in `index`."""
        kept = index[self.rows]
        places = np.cumsum(index) - 1
        return MaskedCopies(places[self.rows[kept]], self.inputs.take(kept))
