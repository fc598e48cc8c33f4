"""What linear models with a closed form and with integrals share."""

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats, check_shape
from sklearn_mpt._optim.steps import ascent_of, ascent_on_part
from sklearn_mpt._tables.frames import aligned, labels_of


def initial_arrays(estimator, shapes, **used):
    """Return the arrays of the parameter `init`, a dict, as fitted attributes."""
    # shapes : by key. used : which entries of an array must be finite; all by default.
    # Labels of columns are put in the order of the table.
    init = estimator.init
    if set(init) != set(shapes):
        raise ValueError(
            f"init must have the keys {sorted(shapes)}, got {sorted(init, key=str)}."
        )
    names = estimator._table_names or range(estimator.n_features_in_)
    arrays = {}
    for key, shape in shapes.items():
        value, name = init[key], f"init[{key!r}]"
        axes = [None, names] if labels_of(value, 1) is not None else [names]
        labels = labels_of(value, len(axes) - 1)
        if labels is not None and len(labels) == len(names):
            value = aligned(value, axes, name)
        value = check_floats(value, name)
        check_shape(value, name, shape)
        counted = value[used.get(key, True)]
        check_finite(counted, name)
        least = counted.min(initial=np.inf)
        if key in ("noise_variance", "dispersion") and least <= 0:
            raise ValueError(f"{name} must be > 0, got {least}.")
        arrays[f"{key}_"] = value if shape else float(value)
    return arrays


def natural_ascent(training, estimator, data, objective, point):
    """Return the epochs for all rows, or for a part of a stream."""
    is_zero = (point.coefs == 0).all(0)
    is_zero[-1] = False  # intercepts
    if is_zero.any():  # they would stay at zero
        coefs = point.coefs.clone()
        noise = 1e-3 * data.rng.normal(size=(len(coefs), int(is_zero.sum())))
        coefs[:, is_zero] = torch.from_numpy(noise).to(coefs)
        point = point._replace(coefs=coefs)
    training.params = point
    steps = {"learning_rate": estimator.learning_rate, "rng": data.rng}
    if not data.is_all:
        steps["n_steps"] = data.fitted["n_iter_"]
        return ascent_on_part(training, objective, **steps)
    steps |= {"tol": estimator.tol, "n_iter_no_change": estimator.n_iter_no_change}
    return ascent_of(training, objective, **steps)
