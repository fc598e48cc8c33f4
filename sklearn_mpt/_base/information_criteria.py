"""Information criteria of models that know the number of their parameters."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._base.fitted_density import FittedDensityMixin
from sklearn_mpt._tables.weights import check_sample_weight


def akaike(log_likelihood, n_parameters):
    """Return -2 times the log-likelihood (nats), plus 2 for each parameter."""
    return float(-2 * log_likelihood + 2 * n_parameters)


def bayesian(log_likelihood, n_parameters, X, weight):
    """Return -2 times the log-likelihood (nats), plus log(n) for each parameter.

    n is the sum of the weights of the rows of X, (n_samples, d), that have an entry.
    """
    n_rows = weight[~np.isnan(X).all(axis=1)].sum()
    if n_rows == 0:
        raise ValueError("X has no entries: all of them are missing.")
    return float(-2 * log_likelihood + np.log(n_rows) * n_parameters)


class InformationCriteriaMixin(FittedDensityMixin):
    """Mixin that adds `aic` and `bic` to models of rows."""

    @abstractmethod
    def _n_parameters(self) -> int:
        """Return the number of free parameters."""

    def aic(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the Akaike information criterion on X; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        aic : float
            -2 times the log-likelihood (nats), plus 2 for each free parameter.
            Rotations of components are not free: they change nothing. A covariance has
            at most as many as it has different entries.
        """
        log_prob = self.score_samples(X)
        weight = check_sample_weight(sample_weight, X)
        return akaike(weight @ log_prob, self._n_parameters())

    def bic(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the Bayesian information criterion on X; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        bic : float
            -2 times the log-likelihood (nats), plus for each free parameter the
            logarithm of the number of rows that have an entry, or of the sum of their
            weights. Rotations of components are not free: they change nothing. A
            covariance has at most as many as it has different entries.

        Raises
        ------
        ValueError
            If all entries are missing.
        """
        log_prob = self.score_samples(X)
        weight = check_sample_weight(sample_weight, X)
        rows = self._validate_rows(X)
        return bayesian(weight @ log_prob, self._n_parameters(), rows, weight)
