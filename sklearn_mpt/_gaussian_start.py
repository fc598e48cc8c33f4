"""Where a linear Gaussian model starts, and the axes it ends on, as arrays."""

import numpy as np
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip
from sklearn.utils.validation import check_scalar


def location_and_scale(X):
    """Mean of each column, and one standard deviation for all, ignoring NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        X = X.astype(np.float64, copy=False)
        shift = np.nanmean(X, axis=0)
        deviation = np.abs(X - shift)
        largest = np.nanmax(deviation)
        if largest == 0:
            return shift, 1.0
        scale = largest * np.sqrt(np.nanmean((deviation / largest) ** 2))
    if not 1e-150 < scale < 1e150:
        raise ValueError(
            f"The standard deviation of X is {scale:.3g}, whose square double "
            "precision cannot hold: rescale X, for instance with StandardScaler."
        )
    return shift, float(scale)


def closed_form(X, mean, n_components, noise_floor):
    """The maximum likelihood solution on mean-imputed rows (Tipping and Bishop)."""
    centred = np.nan_to_num(X - mean)
    values, vectors = eigh(centred.T @ centred / len(X))
    values, vectors = values[::-1], vectors[:, ::-1]
    rest = values[n_components:] if n_components < len(values) else values[-1:]
    noise_variance = max(float(rest.mean()), noise_floor)
    lengths = np.sqrt(np.maximum(values[:n_components] - noise_variance, 0))
    return {
        "components_": principal_axes((vectors[:, :n_components] * lengths).T),
        "mean_": mean,
        "noise_variance_": noise_variance,
    }


def principal_axes(components):
    """Rotate components to orthogonal ones, longest first, with definite signs."""
    U, lengths, axes = np.linalg.svd(components, full_matrices=False)
    _, axes = svd_flip(U, axes, u_based_decision=False)
    return lengths[:, None] * axes


def check_init(init, shape):
    """Return the fitted attributes that a dict of initial arrays stands for."""
    expected = {"components": shape, "mean": shape[1:], "noise_variance": ()}
    if set(init) != set(expected):
        raise ValueError(
            f"init must have the keys {sorted(expected)}, got {sorted(init)}."
        )
    attributes = {}
    for key, key_shape in expected.items():
        value = np.array(init[key], dtype=np.float64)
        if value.shape != key_shape or not np.isfinite(value).all():
            raise ValueError(
                f"init[{key!r}] must be finite and of shape {key_shape}, got shape "
                f"{value.shape}."
            )
        attributes[f"{key}_"] = value
    noise_variance = float(attributes["noise_variance_"])
    check_scalar(
        noise_variance,
        "init['noise_variance']",
        float,
        min_val=0,
        include_boundaries="neither",
    )
    return {**attributes, "noise_variance_": noise_variance}
