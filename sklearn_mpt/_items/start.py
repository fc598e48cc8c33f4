"""Start of the training of item models: shares of answers, and principal slopes."""

import numpy as np

from sklearn_mpt._factors.rotation import SCALE

MOST_ROWS = 5000  # number of rows from which correlations are computed
LEAST_SLOPE, LARGEST_LOADING = 0.1, 0.9


def shares(X, most, weight=None):
    """Return shares of the answers to each item, after adding 0.5 to counts; (d, c)."""
    weight = np.ones(len(X)) if weight is None else weight
    counts = np.stack([weight @ (X == c) for c in range(most)], 1)
    counts = counts + 0.5
    return counts / counts.sum(axis=1, keepdims=True)


def first_slopes(X, n_dims, weight=None):
    """Return slopes computed from the correlations of the items; (d, k)."""
    step = max(1, len(X) // MOST_ROWS)
    X = X[::step].astype(float)
    weight = np.ones(len(X)) if weight is None else weight[::step]
    present = ~np.isnan(X)
    count = np.maximum(weight @ present, 1e-300)
    mean = weight @ np.nan_to_num(X) / count
    centred = np.where(present, X - mean, 0.0)
    deviation = np.sqrt(weight @ centred**2 / count)
    centred /= np.where(deviation > 0, deviation, np.inf)
    centred *= np.sqrt(weight / weight.sum())[:, None]
    if len(centred) < centred.shape[1]:
        centred = centred[: len(centred)]
        _, size, axes = np.linalg.svd(centred, full_matrices=False)
        values = size**2
    else:
        values, vectors = np.linalg.eigh(centred.T @ centred)
        values, axes = values[::-1], vectors[:, ::-1].T
    n_found = min(n_dims, len(axes))
    loadings = np.zeros((X.shape[1], n_dims))
    loadings[:, :n_found] = axes[:n_found].T * np.sqrt(
        values[:n_found].clip(0) * min(1.0, 1.0)
    )
    length = np.linalg.norm(loadings, axis=1, keepdims=True)
    loadings *= np.minimum(1, LARGEST_LOADING / np.maximum(length, 1e-12))
    slopes = SCALE * loadings / np.sqrt(1 - (loadings**2).sum(axis=1, keepdims=True))
    sign = np.where(slopes.sum(axis=0) < 0, -1.0, 1.0)
    slopes *= sign
    if n_dims == 1:
        small = np.abs(slopes) < LEAST_SLOPE
        slopes = np.where(small, np.where(slopes < 0, -1, 1) * LEAST_SLOPE, slopes)
    return slopes
