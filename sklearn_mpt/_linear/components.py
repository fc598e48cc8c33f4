"""Components of linear models: initial arrays, the closed form, and rotations."""

import numpy as np
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip

POSITIVE = ("noise_variance", "dispersion")  # initial arrays that must be positive


def initial_arrays(init, shapes, **used):
    """Check a dict of initial arrays and return them as fitted attributes.

    shapes : required shape of the array of each key. used : which entries of an array
    must be finite; all by default.
    """
    if set(init) != set(shapes):
        raise ValueError(
            f"init must have the keys {sorted(shapes)}, got {sorted(init, key=str)}."
        )
    return {f"{k}_": _initial(init, k, shapes[k], used.get(k, True)) for k in shapes}


def _initial(init, key, shape, used):
    value = np.array(init[key], dtype=np.float64)
    if value.shape != shape:
        raise ValueError(
            f"init[{key!r}] must have shape {shape}, got shape {value.shape}."
        )
    strange = ~np.isfinite(value[used])
    if strange.any():
        raise ValueError(
            f"init[{key!r}] must be finite, but {np.count_nonzero(strange)} of its "
            f"{value[used].size} values are NaN or infinite."
        )
    least = value[used].min(initial=np.inf)
    if key in POSITIVE and least <= 0:
        raise ValueError(f"init[{key!r}] must be > 0, got {least}.")
    return value if shape else float(value)


def closed_form(moments, n_components, noise_floor):
    """Return the maximum likelihood solution for second moments (Tipping, Bishop).

    moments : Moments. If their covariance is a product of the rows, which are fewer
    than the features, the eigenvectors lie in the span of the rows.
    """
    factors = [factor.cpu().numpy() for factor in moments.covariance_factors]
    n_features = len(moments.mean)
    values, vectors = eigh(factors[0] if len(factors) == 1 else factors[1] @ factors[0])
    values, vectors = values[::-1], vectors[:, ::-1]
    n_rest = n_features - n_components
    rest = values[n_components:].sum() / n_rest if n_rest > 0 else values[-1]
    noise_variance = max(float(rest), noise_floor)
    values, vectors = values[:n_components], vectors[:, :n_components]
    lengths = np.sqrt(np.maximum(values - noise_variance, 0))
    if len(factors) == 2:
        with_length = lengths > 0
        lengths[with_length] /= np.sqrt(values[with_length])
        vectors = factors[0] @ vectors
    components = np.zeros((n_components, n_features))
    components[: len(lengths)] = (vectors * lengths).T
    return {
        "components_": principal_axes(components),
        "mean_": moments.mean.cpu().numpy(),
        "noise_variance_": noise_variance,
    }


def principal_axes(components):
    """Rotate components to orthogonal ones, longest first, and fix their signs."""
    U, lengths, axes = np.linalg.svd(components, full_matrices=False)
    _, axes = svd_flip(U, axes, u_based_decision=False)
    rotated = np.zeros_like(components)  # more components than features: zero rows
    rotated[: len(lengths)] = lengths[:, None] * axes
    return rotated


def simple_axes(components, rotation):
    """Rotate components to the principal axes, then by "varimax" or "quartimax"."""
    components = principal_axes(components)
    if rotation is None or len(components) == 1:
        return components
    from sklearn.decomposition._factor_analysis import _ortho_rotation

    return _ortho_rotation(components.T, method=rotation)
