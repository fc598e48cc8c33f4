"""Rows that stand for a covariance matrix, from which Gaussian models are fitted."""

from __future__ import annotations

import importlib
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from sklearn.utils import check_array

from sklearn_mpt._checks import check_floats, check_shape
from sklearn_mpt._numbers import MAX_GIVEN_ERROR
from sklearn_mpt._tables.frames import (
    aligned,
    column_names,
    frame_of_numbers,
    indices_of,
    labels_of,
    library_of,
)

WHOSE = "columns of covariance"


def rows_from_covariance(
    covariance: ArrayLike, n_samples: float, *, mean: ArrayLike | None = None
) -> tuple[ArrayLike, np.ndarray]:
    r"""Make rows with weights that have a covariance or correlation matrix.

    The likelihood of a Gaussian model depends on complete rows through their number,
    mean and covariance only. So these few rows stand for the `n_samples` rows that a
    published matrix was computed from: `fit`, `score`, `aic`, `bic`, `standard_errors`
    and `factor_loadings` of `MPTLinearVAE` and `MPTProbabilisticPCA` return what they
    would for all rows. There are two rows for each feature, at
    :math:`\pm \sqrt{d} \, S^{1/2}` about the mean.

    Parameters
    ----------
    covariance : array-like of shape (n_features, n_features)
        Covariances, as sums over rows divided by their number, or correlations. Names
        of the columns of a DataFrame are kept, and its rows are found by these names.
    n_samples : int or float
        Number of rows that the matrix was computed from.
    mean : array-like of shape (n_features,) or dict, default=None
        Means of the features; None is 0. Those of a Series or a dict are found by the
        names of the columns of `covariance`.

    Returns
    -------
    X : ndarray or DataFrame of shape (2 * n_features, n_features)
        Rows, in the container of `covariance`.
    sample_weight : ndarray of shape (2 * n_features,)
        Weights, which add up to `n_samples`.

    Raises
    ------
    ValueError
        If the matrix is not square, symmetric and positive semidefinite, or names
        differ.

    Examples
    --------
    >>> from sklearn_mpt import MPTLinearVAE, rows_from_covariance
    >>> correlation = [[1, 0.7, 0.6, 0.5], [0.7, 1, 0.5, 0.4],
    ...                [0.6, 0.5, 1, 0.4], [0.5, 0.4, 0.4, 1]]
    >>> X, weight = rows_from_covariance(correlation, n_samples=200)
    >>> model = MPTLinearVAE(1, noise="per_feature", objective="lml", random_state=0)
    >>> solution = model.fit(X, sample_weight=weight).factor_loadings(X, weight)
    >>> solution.communality.shape, solution.loadings_error.shape
    ((4,), (4, 1))
    """
    S = check_array(covariance, dtype=np.float64, input_name="covariance")
    d, names = len(S), labels_of(covariance, 1)
    if S.shape != (d, d):
        raise ValueError(f"covariance must be square, got shape {S.shape}.")
    if labels_of(covariance) is not None:
        S = S[indices_of(names, labels_of(covariance), "rows of covariance", WHOSE)]
    size = np.abs(S).max()
    if np.abs(S - S.T).max() > MAX_GIVEN_ERROR * size:
        raise ValueError("covariance must be symmetric, got one that is not.")
    if not isinstance(n_samples, Real) or not 0 < n_samples < np.inf:
        raise ValueError(f"n_samples must be a positive number, got {n_samples!r}.")
    values, vectors = eigh(S)
    if values[0] < -MAX_GIVEN_ERROR * size:
        raise ValueError(
            "covariance must be positive semidefinite, got one with the eigenvalue "
            f"{values[0]:.3g}. Pairwise deletion of gaps makes such matrices: fit the "
            "rows with their gaps."
        )
    if mean is None:
        mean = np.zeros(d)
    else:
        names = range(d) if names is None else names
        mean = check_floats(aligned(mean, [names], "mean", WHOSE), "mean")
    check_shape(mean, "mean", (d,))
    half = np.sqrt(d * np.maximum(values, 0))[:, None] * vectors.T
    rows = mean + np.concatenate([half, -half])
    return _like(covariance, rows), np.full(2 * d, n_samples / (2 * d))


def _like(table, rows):
    """Return rows in the container of a table."""
    library = library_of(table)
    if not library:
        return rows
    return frame_of_numbers(rows, column_names(table), importlib.import_module(library))
