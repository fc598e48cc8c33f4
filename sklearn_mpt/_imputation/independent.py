"""Independent columns: the model that all others are compared with."""

from typing import Self

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator

from sklearn_mpt._imputation.column_layout import ColumnLayout, NumberTransform
from sklearn_mpt._likelihoods.base import column_moments
from sklearn_mpt._likelihoods.levels import smoothed_shares


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
    min_variance : float, default=1e-6
        Added to the variance of each number, whose unit is the standard deviation.
    """

    def __init__(
        self,
        layout: ColumnLayout,
        units: NumberTransform,
        outlier_share: float = 0.01,
        min_variance: float = 1e-6,
    ):
        self.layout = layout
        self.units = units
        self.outlier_share = outlier_share
        self.min_variance = min_variance

    def set_warm_start(self, **params) -> Self:
        """Return self, because `fit` has no starting values."""
        return self

    def fit(self, X, y=None, sample_weight=None) -> Self:
        numbers = self.units.inverse_transform(X)
        self.means_of_numbers_, _, _ = column_moments(numbers, sample_weight)
        self.means_, variances, _ = column_moments(X, sample_weight)
        self.variances_ = variances + self.min_variance
        self._log_probs = {}
        for j in self.layout.coded:
            count = self.layout.n_categories[j]
            (shares,) = smoothed_shares(X[:, [j]], count, sample_weight)
            self._log_probs[j] = np.log(shares)
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
