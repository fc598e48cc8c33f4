"""Models of coded rows, without checks, that keep their density between calls."""

from typing import Self

import numpy as np
import torch
from sklearn.base import BaseEstimator

from sklearn_mpt._base.density import Density
from sklearn_mpt._base.estimator import BaseMPT
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices


class CodedModel(BaseEstimator):
    """A model of coded rows that keeps its density between calls.

    Rows are not checked, because they were checked when they were coded. So calls with
    single rows are fast.

    Parameters
    ----------
    model : estimator
        Derived from `BaseMPT`.
    """

    def __init__(self, model: BaseMPT):
        self.model = model
        self._kept: Density | None = None

    def set_warm_start(self, **params) -> Self:
        """Set parameters of the model, and let `fit` start from the last fit."""
        self.model.set_params(warm_start=True, **params)
        return self

    def fit(self, X, y=None, sample_weight=None) -> Self:
        self.model.fit(X, sample_weight=sample_weight)
        self._kept = None
        return self

    @property
    def _density(self):
        if self._kept is None:
            self._kept = self.model._density()
        return self._kept

    def conditional_log_prob(self, X, mask):
        function = self._density.conditional_log_prob
        return self.model._map_rows(self._density, function, X, mask)

    def expected(self, X, layout, columns, units):
        """Return expected numbers, and log-probabilities of categories.

        Numbers are in the units of the table, (n, d). columns : the columns of
        categories whose log-probabilities are returned, in a list of arrays
        (n, n_categories). All are arbitrary where X is present.
        """
        counts, powers = layout.n_categories[columns], units.powers.columns
        filled, power_columns = X.copy(), X[:, powers]
        log_prob = np.zeros((len(X), counts.sum()))
        with_codes = np.isnan(X[:, columns]).any(axis=1)
        row_entries = X.shape[1] * counts.max(initial=1)
        for is_row, asked in ((with_codes, columns), (~with_codes, columns[:0])):
            rows = np.flatnonzero(is_row)
            params = asked.tolist(), layout.n_categories[asked].tolist(), powers
            for part in chunk_slices(len(rows), row_entries, CHUNK_ENTRIES):
                block = rows[part]
                parts = self.map_density(
                    lambda x, density, params=params: torch.cat(
                        density.complete(x, *params, units.inverse_power_transforms),
                        dim=1,
                    ),
                    X[block],
                )
                widths = X.shape[1], X.shape[1] + len(powers)
                filled[block], power_columns[block], prob = np.split(
                    parts, widths, axis=1
                )
                log_prob[block, : prob.shape[1]] = prob
        numbers = units.inverse_transform(filled)
        numbers[:, powers] = power_columns
        return numbers, np.split(log_prob, counts.cumsum(), axis=1)[:-1]

    def draw(self, X, random_state=None):
        rng = np.random.default_rng(random_state)
        drawn = self.map_density(lambda x, density: density.draw(x, rng), X)
        return np.where(np.isnan(X), drawn, X)

    def map_density(self, function, X):
        """Return a function of rows and of the density, as tensors, in chunks."""
        density = self._density
        return self.model._map_rows(density, lambda x: function(x, density), X)

    def __getstate__(self):
        state = super().__getstate__()
        return state | {"_kept": None}


class CodedNetwork(CodedModel):
    """A dependency network of coded rows, whose fits have no start."""

    def set_warm_start(self, **params) -> Self:
        """Return self, because `fit` has no starting values."""
        return self


class RecodedModel(BaseEstimator):
    """Base of models whose `model` reads columns that are coded differently."""

    model: BaseEstimator

    def set_warm_start(self, **params) -> Self:
        """Set parameters of the model, and let `fit` start from the last fit."""
        self.model.set_warm_start(**params)
        return self
