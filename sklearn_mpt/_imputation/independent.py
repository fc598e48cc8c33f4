"""Independent columns: the model that all others are compared with."""

from typing import Self

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator

from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform

LEAST_VARIANCE = 1e-6  # added to the variance of each number
PRIOR_COUNT = 0.5  # added to the count of each category
# Share of a Cauchy distribution, so that a number far outside of what was seen costs
# tens of nats, not millions. It costs as much, in nats, where no number is like that.
OUTLIER_SHARE = 0.01


class IndependentColumns(BaseEstimator):
    """Normal numbers with few outliers, and frequencies of categories, independent.

    Parameters
    ----------
    layout : ColumnLayout
        Kinds of the columns of coded rows.
    units : NumberTransform
        Units of their numbers, whose means are filled in.
    """

    def __init__(self, layout: ColumnLayout, units: NumberTransform):
        self.layout = layout
        self.units = units

    def set_warm_start(self, **params) -> Self:
        """Return self, because `fit` has no starting values."""
        return self

    def fit(self, X, y=None, sample_weight=None) -> Self:
        weight = np.ones(len(X)) if sample_weight is None else sample_weight
        weight = np.where(np.isnan(X), 0.0, weight[:, None])
        numbers = np.nan_to_num(self.units.inverse_transform(X))
        X = np.nan_to_num(X)
        total = np.maximum(weight.sum(axis=0), np.finfo(np.float64).tiny)
        self.means_ = (weight * X).sum(axis=0) / total
        self.means_of_numbers_ = (weight * numbers).sum(axis=0) / total
        square = (weight * (X - self.means_) ** 2).sum(axis=0) / total
        self.variances_ = square + LEAST_VARIANCE
        self._log_probs = {}
        for j in self.layout.coded:
            levels = np.arange(self.layout.n_categories[j])
            count = weight[:, j] @ (X[:, [j]] == levels) + PRIOR_COUNT
            self._log_probs[j] = np.log(count / count.sum())
        return self

    def conditional_log_prob(self, X, mask):
        hidden = mask & ~np.isnan(X)
        X = np.nan_to_num(X)
        place_and_scale = self.means_, np.sqrt(self.variances_)
        log_prob = np.logaddexp(
            np.log1p(-OUTLIER_SHARE) + stats.norm.logpdf(X, *place_and_scale),
            np.log(OUTLIER_SHARE) + stats.cauchy.logpdf(X, *place_and_scale),
        )
        for j, of_levels in self._log_probs.items():
            log_prob[:, j] = of_levels[X[:, j].astype(int)]
        return np.where(hidden, log_prob, 0.0)

    def expected(self, X, layout, columns, units):
        log_probs = [np.tile(self._log_probs[j], (len(X), 1)) for j in columns]
        return np.tile(self.means_of_numbers_, (len(X), 1)), log_probs

    def draw(self, X, random_state=None):
        rng = np.random.default_rng(random_state)
        drawn = self.means_ + np.sqrt(self.variances_) * rng.normal(size=X.shape)
        for j, log_prob in self._log_probs.items():
            drawn[:, j] = rng.choice(len(log_prob), len(X), p=np.exp(log_prob))
        return np.where(np.isnan(X), drawn, X)
