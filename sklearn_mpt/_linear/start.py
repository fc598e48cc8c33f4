"""Where a linear model starts, and the axes it ends on, as arrays."""

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit
from sklearn.utils.extmath import svd_flip
from sklearn.utils.validation import check_scalar

from sklearn_mpt._checks import check_choice


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
    rotated = np.zeros_like(components)  # more components than features: zero rows
    rotated[: len(lengths)] = lengths[:, None] * axes
    return rotated


def check_init(init):
    if not isinstance(init, dict):
        check_choice(init, "init", ["random", "pca"])


def initial_arrays(init, shapes):
    """Return the fitted attributes that a dict of initial arrays stands for.

    shapes : dict from each key to the shape its array must have.
    """
    if set(init) != set(shapes):
        raise ValueError(
            f"init must have the keys {sorted(shapes)}, got {sorted(init)}."
        )
    return {f"{key}_": _initial(init, key, shape) for key, shape in shapes.items()}


def _initial(init, key, shape):
    value = np.array(init[key], dtype=np.float64)
    if value.shape != shape or not np.isfinite(value).all():
        raise ValueError(
            f"init[{key!r}] must be finite and of shape {shape}, got shape "
            f"{value.shape}."
        )
    if key != "noise_variance":
        return value
    name, value = "init['noise_variance']", float(value)
    return check_scalar(value, name, float, min_val=0, include_boundaries="neither")


def binary_components(X, intercept, n_components):
    """Components under which the features correlate as they do, to first order.

    With small logits, entries standardised by their Bernoulli deviation s_j have the
    correlations s_i w_i' w_j s_j; steep components are cut at length 3.
    """
    prob = expit(intercept)
    std = np.sqrt(prob * (1 - prob))
    standardised = closed_form((X - prob) / std, np.zeros(len(std)), n_components, 0)
    components = standardised["components_"] / std
    lengths = np.linalg.norm(components, axis=0)
    return components * np.minimum(1, 3 / np.maximum(lengths, 1e-12))
