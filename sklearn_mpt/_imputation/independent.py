"""Independent columns: the model that all others are compared with."""

from typing import Self

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator

from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform


class IndependentColumns(BaseEstimator):
    """Normal numbers with few outliers, and frequencies of categories, independent.

    Parameters
    ----------
    layout : ColumnLayout
        Kinds of the columns of coded rows.
    units : NumberTransform
        Units of their numbers, whose means are filled in.
    outlier_share : float, default=0.01
        Share of a Cauchy distribution in that of each number, so that a number far
        outside of the rows costs tens of nats, not millions. Other numbers cost as many
        nats as this share.
    prior_count : float, default=0.5
        Added to the count of each category.
    min_variance : float, default=1e-6
        Added to the variance of each number, whose unit is the standard deviation.
    """

    def __init__(
        self,
        layout: ColumnLayout,
        units: NumberTransform,
        outlier_share: float = 0.01,
        prior_count: float = 0.5,
        min_variance: float = 1e-6,
    ):
        self.layout = layout
        self.units = units
        self.outlier_share = outlier_share
        self.prior_count = prior_count
        self.min_variance = min_variance

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
        self.variances_ = square + self.min_variance
        self._log_probs = {}
        for j in self.layout.coded:
            levels = np.arange(self.layout.n_categories[j])
            count = weight[:, j] @ (X[:, [j]] == levels) + self.prior_count
            self._log_probs[j] = np.log(count / count.sum())
        return self

    def conditional_log_prob(self, X, mask):
        hidden = mask & ~np.isnan(X)
        X = np.nan_to_num(X)
        place_and_scale = self.means_, np.sqrt(self.variances_)
        log_prob = np.logaddexp(
            np.log1p(-self.outlier_share) + stats.norm.logpdf(X, *place_and_scale),
            np.log(self.outlier_share) + stats.cauchy.logpdf(X, *place_and_scale),
        )
        for j, level_log_prob in self._log_probs.items():
            log_prob[:, j] = level_log_prob[X[:, j].astype(int)]
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
