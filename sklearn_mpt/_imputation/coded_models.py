"""Models of the rows of a table that keep their density between calls."""

import copy
from typing import Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone

from sklearn_mpt._base.density import Density
from sklearn_mpt._base.estimator import BaseMPT
from sklearn_mpt._imputation.coded_rows import CODES, CodedRows
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices


class CodedModel(BaseEstimator):
    """A model of the rows of a table that keeps its density between calls.

    It reads coded rows, and predicts numbers in the units of the table. Rows are not
    checked, because they were checked when they were coded. So calls with single rows
    are fast.

    Parameters
    ----------
    model : estimator
        Derived from `BaseMPT`.
    with_powers : bool, default=True
        Whether the model reads power transforms of skewed numbers.
    """

    form = CODES  # in which columns of categories and of levels are coded

    def __init__(self, model: BaseMPT, with_powers: bool = True):
        self.model = model
        self.with_powers = with_powers
        self._kept: Density | None = None

    def warm_started(self, **params) -> Self:
        """Return a model with other parameters, whose `fit` starts from this fit.

        Networks, whose fits have no start, come back unfitted.
        """
        if "warm_start" not in self.model.get_params(deep=False):
            return clone(self)
        model = copy.deepcopy(self)
        model.model.set_params(warm_start=True, **params)
        return model

    def fit(self, rows: CodedRows, sample_weight=None) -> Self:
        self._fit_model(self._coded(rows), sample_weight)
        self._kept = None
        return self

    def _fit_model(self, X, sample_weight):
        self.model.fit(X, sample_weight=sample_weight)

    def _coded(self, rows):
        return rows.coded(self.form, self.with_powers)

    def _transform(self, rows):
        return rows.coding.transforms[self.with_powers]

    @property
    def _density(self):
        if self._kept is None:
            self._kept = self.model._density()
        return self._kept

    def conditional_log_prob(self, rows: CodedRows, mask):
        """Return log-densities of hidden numbers and log-probabilities of categories.

        Numbers are in the units of the table.
        """
        function = self._density.conditional_log_prob
        log_prob = self.model._map_rows(
            self._density, function, self._coded(rows), mask
        )
        return rows.as_densities(log_prob, mask, self.with_powers)

    def expected(self, rows: CodedRows, columns):
        """Return expected numbers, and log-probabilities of categories.

        Numbers are in the units of the table, (n, d). columns : the columns of
        categories and of levels whose log-probabilities are returned, in a list of
        arrays (n, n_categories). All are arbitrary where rows are present.
        """
        X, transform = self._coded(rows), self._transform(rows)
        powers = transform.powers.columns
        counts = rows.coding.layout.n_categories[columns]
        filled, power_columns = X.copy(), X[:, powers]
        log_prob = np.zeros((len(X), counts.sum()))
        with_codes = np.isnan(X[:, columns]).any(axis=1)
        row_entries = X.shape[1] * counts.max(initial=1)
        for is_row, asked in ((with_codes, slice(None)), (~with_codes, slice(0))):
            params = columns[asked].tolist(), counts[asked].tolist(), powers
            indices = np.flatnonzero(is_row)
            for part in chunk_slices(len(indices), row_entries, CHUNK_ENTRIES):
                block = indices[part]
                parts = self.map_density(
                    lambda x, density, params=params: torch.cat(
                        density.complete(
                            x, *params, transform.inverse_power_transforms
                        ),
                        dim=1,
                    ),
                    X[block],
                )
                widths = X.shape[1], X.shape[1] + len(powers)
                filled[block], power_columns[block], prob = np.split(
                    parts, widths, axis=1
                )
                log_prob[block, : prob.shape[1]] = prob
        numbers = transform.with_averages(filled, power_columns)
        return numbers, np.split(log_prob, counts.cumsum(), axis=1)[:-1]

    def draw(self, rows: CodedRows, random_state=None):
        """Return rows of the table in which all gaps are drawn."""
        rng = np.random.default_rng(random_state)
        return self._drawn(rows, rows.numbers, self._coded(rows), rng)

    def _drawn(self, rows, numbers, X, rng):
        """Draw gaps of rows of the table, `numbers`, given the coded rows X."""
        drawn = self.map_density(lambda x, density: density.draw(x, rng), X)
        decoded = rows.coding.decode(drawn, self.form, self.with_powers)
        return np.where(np.isnan(numbers), decoded, numbers)

    def map_density(self, function, X):
        """Return a function of rows and of the density, as tensors, in chunks."""
        density = self._density
        return self.model._map_rows(density, lambda x: function(x, density), X)

    def __getstate__(self):
        state = super().__getstate__()
        return state | {"_kept": None}
