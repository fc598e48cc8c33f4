"""Convert covariances between full matrices and the shape of `covariances_`."""

import numpy as np


def covariance_shape(kind, n_classes, n_features):
    """Return the shape of `covariances_` for this covariance type."""
    return {
        "tied": (n_features, n_features),
        "diag": (n_classes, n_features),
        "spherical": (n_classes,),
    }.get(kind, (n_classes, n_features, n_features))


def compressed(matrices, kind):
    """Return full matrices (K, g, g) in the shape of `covariances_`."""
    if kind == "tied":
        return matrices[0].copy()
    if kind in ("diag", "spherical"):
        diagonal = np.diagonal(matrices, axis1=1, axis2=2).copy()
        return diagonal if kind == "diag" else diagonal.mean(axis=1)
    return matrices.copy()


def expanded(array, kind, n_classes, n_features):
    """Return `covariances_` as one full matrix for each class, (K, g, g)."""
    eye = np.eye(n_features)
    if kind == "tied":
        return np.tile(array, (n_classes, 1, 1))
    if kind == "diag":
        return array[:, :, None] * eye
    if kind == "spherical":
        return array[:, None, None] * eye
    return array
