"""Models of coded rows, without checks, that keep their density between calls."""

from typing import Self

import numpy as np
from sklearn.base import BaseEstimator

from sklearn_mpt._latent.base import BaseMPT
from sklearn_mpt._latent.density import Density


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

    def go_on(self, **params) -> Self:
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

    def impute(self, X, method="mean", random_state=None):
        density = self._density
        if method == "mean":
            filled = self.model._map_rows(density, density.expect, X)
        else:
            rng = np.random.default_rng(random_state)
            filled = self.model._map_rows(density, lambda x: density.draw(x, rng), X)
        return np.where(np.isnan(X), filled, X)

    def of_density(self, function, X):
        """Return a function of rows and of the density, as tensors, in chunks."""
        density = self._density
        return self.model._map_rows(density, lambda x: function(x, density), X)

    def __getstate__(self):
        state = super().__getstate__()
        return state | {"_kept": None}
