"""Estimators that fit rows with weights."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _safe_indexing

from sklearn_mpt._checks import check_sample_weight
from sklearn_mpt._latent.fitting import TrainingMixin
from sklearn_mpt._latent.model import own_mode
from sklearn_mpt._persistence import all_or_nothing


class WeightedMixin(TrainingMixin):
    """Mixin for estimators whose family takes the weights of rows.

    Its `start` does, and its trainers heed those of the `Problem`.
    """

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the model to X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts: 2 is the row twice, and 0 leaves it out. None is 1.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError, TypeError
            If a parameter or X is not valid; the message says what is.

        Warns
        -----
        ConvergenceWarning
            If the objective still improved when `max_iter` was reached, or diverged.
        """
        X, weight = _weighed(X, sample_weight)
        with own_mode(with_grad=True):
            return self._fit(X, **weight)

    @all_or_nothing
    def partial_fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Update the model by one pass over X.

        The first call initialises the model, unless it is fitted; later ones go on
        where the last one left off. Steps get smaller with all those before, and are
        averaged; parts of the stream should be alike.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts beside the others of this part. None is 1.

        Returns
        -------
        self : object
            The updated estimator.
        """
        X, weight = _weighed(X, sample_weight)
        with own_mode(with_grad=True):
            return self._partial_fit(X, **weight)


def _weighed(X, sample_weight):
    """The rows that count, and what they do, as arguments."""
    if sample_weight is None:
        return X, {}
    weight = check_sample_weight(sample_weight, X)
    counts = np.flatnonzero(weight)
    if len(counts) < len(weight):
        X = _safe_indexing(X, counts)
    return X, {"weight": weight[counts]}
