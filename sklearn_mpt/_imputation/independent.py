"""Independent columns: the model that all others are compared with."""

from typing import Self

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator, clone

from sklearn_mpt._imputation.coded_rows import CODES, CodedRows
from sklearn_mpt._likelihoods.base import column_moments
from sklearn_mpt._likelihoods.levels import smoothed_fractions


class IndependentColumns(BaseEstimator):
    """Normal numbers with few outliers, and frequencies of categories, independent.

    Parameters
    ----------
    outlier_weight : float, default=0.01
        Weight of a Cauchy distribution in that of each number, so that a number far
        outside of the rows costs tens of nats, not millions. Other numbers cost as many
        nats as this weight.
    min_variance : float, default=1e-6
        Added to the variance of each number, whose unit is the standard deviation.
    """

    def __init__(self, outlier_weight: float = 0.01, min_variance: float = 1e-6):
        self.outlier_weight = outlier_weight
        self.min_variance = min_variance

    def warm_started(self, **params) -> Self:
        """Return an unfitted copy, because `fit` has no starting values."""
        return clone(self)

    def fit(self, rows: CodedRows, sample_weight=None) -> Self:
        X, layout = rows.coded(CODES), rows.coding.layout
        self.means_of_numbers_, _, _ = column_moments(rows.numbers, sample_weight)
        self.means_, variances, _ = column_moments(X, sample_weight)
        self.variances_ = variances + self.min_variance
        self._log_probs = {}
        for j in layout.coded.tolist():
            (frequencies,) = smoothed_fractions(
                X[:, [j]], layout.n_categories[j], sample_weight
            )
            self._log_probs[j] = np.log(frequencies)
        return self

    def conditional_log_prob(self, rows: CodedRows, mask):
        hidden = mask & ~rows.gaps
        X = np.nan_to_num(rows.coded(CODES))
        loc_and_scale = self.means_, np.sqrt(self.variances_)
        log_prob = np.logaddexp(
            np.log1p(-self.outlier_weight) + stats.norm.logpdf(X, *loc_and_scale),
            np.log(self.outlier_weight) + stats.cauchy.logpdf(X, *loc_and_scale),
        )
        for j, level_log_prob in self._log_probs.items():
            log_prob[:, j] = level_log_prob[X[:, j].astype(int)]
        return rows.as_densities(np.where(hidden, log_prob, 0.0), mask)

    def expected(self, rows: CodedRows, columns):
        n_rows = len(rows.numbers)
        log_probs = [np.tile(self._log_probs[j], (n_rows, 1)) for j in columns]
        return np.tile(self.means_of_numbers_, (n_rows, 1)), log_probs

    def draw(self, rows: CodedRows, random_state=None):
        rng, shape = np.random.default_rng(random_state), rows.numbers.shape
        drawn = self.means_ + np.sqrt(self.variances_) * rng.normal(size=shape)
        for j, log_prob in self._log_probs.items():
            drawn[:, j] = rng.choice(len(log_prob), len(drawn), p=np.exp(log_prob))
        return np.where(rows.gaps, rows.coding.decode(drawn, CODES), rows.numbers)
