"""The density of a fitted dependency network."""

import numpy as np
import torch

from sklearn_mpt._autoregressive.conditionals import conditional_of
from sklearn_mpt._autoregressive.inputs import PredictorCoding, PredictorInputs
from sklearn_mpt._autoregressive.order_mixture import OrderMixture
from sklearn_mpt._autoregressive.predictors import N_TREES, named
from sklearn_mpt._numbers import FLOAT_BYTES


class NetworkDensity(OrderMixture):
    """The mixture of a few orders of columns, and the conditionals of predictors."""

    def __init__(
        self, columns, predictors, learned, read, marginal_weight, units, orders, names
    ):
        super().__init__(units, orders)
        self.names, self.predictors = names, predictors
        self.codings = [PredictorCoding(columns, of_column) for of_column in read]
        self.conditionals = [
            conditional_of(*fitted, marginal_weight)
            for fitted in zip(predictors, learned, strict=True)
        ]
        n_values = 10 * max(N_TREES, max(columns.n_categories))
        self.n_values = len(columns.feature_of) + n_values

    @property
    def row_bytes(self):
        """Approximate memory for scoring a row along all orders."""
        return FLOAT_BYTES * self.n_values * len(self.orders)

    def _call(self, method, rows, visible, row, column, *args):
        """Return what a method of the conditional of a column returns, as a tensor."""
        coding = self.codings[column]
        at = np.ix_(row.numpy(), coding.columns)
        of_read = (array.numpy()[at] for array in (rows, visible))
        inputs = PredictorInputs(coding, *of_read)
        args = (arg.numpy() for arg in args)
        with named(self.predictors[column], self.names[column], "predict"):
            result = getattr(self.conditionals[column], method)(inputs, *args)
        return torch.from_numpy(np.ascontiguousarray(result, dtype=np.float64))

    def _call_at(self, method, rows, visible, row, column, *args):
        """Return what a method of conditionals returns for entries; (n_entries,)."""
        results = rows.new_empty(len(row))
        for j in column.unique().tolist():
            at = (column == j).nonzero()[:, 0]
            i = row[at]
            of_column = (arg[i, j] for arg in args)
            results[at] = self._call(method, rows, visible, i, j, *of_column)
        return results

    def log_prob(self, rows, visible, hidden):
        log_prob, (row, column) = torch.zeros_like(rows), hidden.nonzero().T
        log_prob[row, column] = self._call_at(
            "log_prob", rows, visible, row, column, rows
        )
        return log_prob

    def log_prob_of_entries(self, rows, visible, column):
        row = torch.arange(len(rows), device=rows.device)
        return self._call_at("log_prob", rows, visible, row, column, rows)

    def mean(self, rows, visible, hidden=None):
        """Return expectations where hidden; None is wherever not visible."""
        hidden = ~visible if hidden is None else hidden
        means, (row, column) = rows.clone(), hidden.nonzero().T
        means[row, column] = self._call_at("mean", rows, visible, row, column)
        return means

    def draw_entries(self, rows, visible, column, uniform):
        row = torch.arange(len(rows), device=rows.device)
        return self._call_at("draw", rows, visible, row, column, uniform)

    def predict(self, X):
        """Return the predictions of all columns from the others; (n, n_outputs)."""
        rows, present = self._read(X)
        every = torch.arange(len(rows), device=rows.device)
        outputs = [
            self._call("predict", rows, present, every, j)
            for j in range(len(self.conditionals))
        ]
        shift, scale = (
            unit.expand(len(outputs)) for unit in (self.units.shift, self.units.scale)
        )
        pairs = zip(outputs, shift, scale, strict=True)
        return torch.cat(
            [output * factor + start for output, start, factor in pairs], 1
        )

    @property
    def n_outputs(self):
        return sum(conditional.n_outputs for conditional in self.conditionals)
