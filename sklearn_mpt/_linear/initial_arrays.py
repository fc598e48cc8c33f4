"""Arrays of the user from which linear models start."""

import numpy as np

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._tables.labels import aligned, labels_of

POSITIVE = ("noise_variance", "dispersion")  # initial arrays that must be positive


def in_order(init, names):
    """Return initial arrays with the entries of columns in the order of their names."""
    if not isinstance(init, dict):
        return init
    return {key: _in_order(value, key, names) for key, value in init.items()}


def _in_order(value, key, names):
    axes = [None, names] if labels_of(value, 1) is not None else [names]
    labels = labels_of(value, len(axes) - 1)
    if labels is None or len(labels) != len(names):
        return value
    return aligned(value, axes, f"init[{key!r}]")


def initial_arrays(init, shapes, **used):
    """Check a dict of initial arrays and return them as fitted attributes."""
    # shapes : by key. used : which entries of an array must be finite; all by default.
    if set(init) != set(shapes):
        raise ValueError(
            f"init must have the keys {sorted(shapes)}, got {sorted(init, key=str)}."
        )
    return {f"{k}_": _initial(init, k, shapes[k], used.get(k, True)) for k in shapes}


def _initial(init, key, shape, used):
    value = check_floats(init[key], f"init[{key!r}]")
    if value.shape != shape:
        raise ValueError(
            f"init[{key!r}] must have shape {shape}, got shape {value.shape}."
        )
    check_finite(value[used], f"init[{key!r}]")
    least = value[used].min(initial=np.inf)
    if key in POSITIVE and least <= 0:
        raise ValueError(f"init[{key!r}] must be > 0, got {least}.")
    return value if shape else float(value)
