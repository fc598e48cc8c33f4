"""A Gaussian of numbers and of indicators of categories."""

from typing import Self

import numpy as np
from sklearn.base import BaseEstimator

from sklearn_mpt._imputation.coded import CodedModel
from sklearn_mpt._imputation.layout import Layout, Units, codes_of

LEAST = 0.01  # smallest probability of a category before normalisation


class GaussianIndicators(BaseEstimator):
    """Gaussian model of coded rows with indicators in place of categories.

    The probability of a category is the expectation of its indicator, at least 0.01,
    after normalisation: linear probability models for all columns together. Ordered
    categories have indicators for whether the code is above each level.

    Parameters
    ----------
    layout : Layout
    model : CodedModel
        A Gaussian of numbers.
    """

    def __init__(self, layout: Layout, model: CodedModel):
        self.layout = layout
        self.model = model

    def go_on(self, **params) -> Self:
        """Set parameters of the model, and let `fit` start from the last fit."""
        self.model.go_on(**params)
        return self

    def fit(self, X, y=None, sample_weight=None):
        coded = self._coded(X)
        if not hasattr(self, "units_"):
            gaussian = Layout(["gaussian"] * coded.shape[1], np.zeros(coded.shape[1]))
            self.units_ = Units.of(coded, gaussian)
        self.model.fit(self.units_.without(coded), sample_weight=sample_weight)
        return self

    def conditional_log_prob(self, X, mask):
        mask = np.broadcast_to(mask, X.shape)
        hidden = mask & ~np.isnan(X)
        log_prob = np.zeros(X.shape)
        numbers = np.flatnonzero(self.layout.n_categories == 0)
        if hidden[:, numbers].any():
            coded, wide = self.units_.without(self._coded(X)), self._widened(mask)
            found = self.model.conditional_log_prob(coded, wide)
            places = self._starts[numbers]
            log_prob[:, numbers] = found[:, places] - np.log(self.units_.scale[places])
        columns = self.layout.coded
        for j, probs in zip(columns, self._probs(X, mask), strict=True):
            code = np.where(hidden[:, j], X[:, j], 0).astype(int)
            log_prob[:, j] = np.log(probs[np.arange(len(X)), code])
        return np.where(hidden, log_prob, 0.0)

    def impute(self, X, method="mean", random_state=None):
        """Fill in gaps; categories are drawn one column after the other."""
        X = np.array(X, dtype=np.float64)
        if method == "sample":
            rng = np.random.default_rng(random_state)
            for place, j in enumerate(self.layout.coded):
                rows = np.isnan(X[:, j])
                if rows.any():
                    probs = self._probs(X[rows], np.isnan(X[rows]))[place]
                    level = rng.random((len(probs), 1))
                    X[rows, j] = (probs.cumsum(axis=1) < level).sum(axis=1)
            random_state = int(rng.integers(2**31))
        coded = self.units_.without(self._coded(X))
        wide = self.model.impute(coded, method=method, random_state=random_state)
        wide = self.units_.restored(wide)
        filled = wide[:, self._starts]
        if method == "mean":
            for j, probs in zip(self.layout.coded, self._shares(wide), strict=True):
                filled[:, j] = codes_of(probs, self.layout.ordered[j])
        return np.where(np.isnan(X), filled, X)

    def _probs(self, X, mask):
        """Return probabilities of all categories of hidden entries, by column."""
        if not len(self.layout.coded):
            return []
        seen = self.units_.without(self._coded(np.where(mask, np.nan, X)))
        return self._shares(self.units_.restored(self.model.impute(seen)))

    def _shares(self, expected):
        """Return probabilities of categories from expectations of their indicators."""
        ends = np.append(self._starts, len(self._sources))
        every = []
        for j in self.layout.coded:
            part = expected[:, ends[j] : ends[j + 1]]
            if self._is_cumulative[j]:
                one, zero = np.ones((len(part), 1)), np.zeros((len(part), 1))
                part = np.hstack([one, part]) - np.hstack([part, zero])
            part = np.maximum(part, LEAST)
            every.append(part / part.sum(axis=1, keepdims=True))
        return every

    @property
    def _is_cumulative(self):
        is_bool = self.layout.n_categories == 2
        return self.layout.ordered | is_bool

    @property
    def _widths(self):
        """Number of indicators of each column; 1 for numbers."""
        counts = self.layout.n_categories
        return np.maximum(np.where(self._is_cumulative, counts - 1, counts), 1)

    @property
    def _sources(self):
        return np.repeat(np.arange(len(self.layout.kinds)), self._widths)

    @property
    def _starts(self):
        return np.append(0, self._widths.cumsum()[:-1])

    def _widened(self, mask):
        return mask[:, self._sources]

    def _coded(self, X):
        wide = np.asarray(X, dtype=np.float64)[:, self._sources].copy()
        for j, start, width in zip(
            self.layout.coded,
            self._starts[self.layout.coded],
            self._widths[self.layout.coded],
            strict=True,
        ):
            levels, codes = np.arange(width), X[:, [j]]
            hit = codes > levels if self._is_cumulative[j] else codes == levels
            wide[:, start : start + width] = np.where(np.isnan(codes), np.nan, hit)
        return wide
