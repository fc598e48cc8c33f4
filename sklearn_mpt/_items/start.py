"""Slopes at which the training of item models starts."""

import numpy as np
import torch

from sklearn_mpt._gaussian.moments import (
    moments_of,
    principal_loadings,
)
from sklearn_mpt._gaussian.rotation import (
    SCALE,
)
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.weights import (
    relative_weights,
)

# Largest correlation of an item's response with z: slopes must be finite.
MAX_LOADING = 0.9


def first_slopes(X, n_dims, weight=None):
    """Return slopes computed from the correlations of the items; (d, k)."""
    X = X.astype(float)
    weight = np.ones(len(X)) if weight is None else weight
    present = ~np.isnan(X)
    count = np.maximum(weight @ present, TINY)
    mean = weight @ np.nan_to_num(X) / count
    centred = np.where(present, X - mean, 0.0)
    deviation = np.sqrt(weight @ centred**2 / count)
    centred /= np.where(deviation > 0, deviation, np.inf)
    rows = torch.from_numpy(centred)
    weight = torch.from_numpy(relative_weights(weight, len(X)))
    moments = moments_of(rows, weight, rows.new_zeros(rows.shape[1]))
    loadings = principal_loadings(moments, n_dims)
    length = np.linalg.norm(loadings, axis=1, keepdims=True)
    loadings *= np.minimum(1, MAX_LOADING / np.maximum(length, TINY))
    slopes = SCALE * loadings / np.sqrt(1 - (loadings**2).sum(axis=1, keepdims=True))
    sign = np.where(slopes.sum(axis=0) < 0, -1.0, 1.0)
    return slopes * sign
