"""What an estimator's linear model computes, and the parameters that it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._optim.steps import ascent_of, ascent_on_part
from sklearn_mpt._tables.labels import aligned, labels_of

# Length of a component that starts at zero, where it would stay.
ZERO_JITTER = 1e-3


class LinearParams(NamedTuple):
    """Parameters of an estimator that determine the start and the training."""

    n_components: int
    mask_rate: str | float
    n_masks: int | str
    objective: str
    init: str | dict
    max_iter: int
    learning_rate: float
    batch_size: int | str
    tol: float
    n_iter_no_change: int
    rotation: str | None = None
    slope_prior: float | None = None

    @classmethod
    def of(cls, estimator: Any) -> LinearParams:
        """Return those of an estimator; it need not have those with defaults."""
        given = vars(estimator)
        params = cls(**{name: given[name] for name in cls._fields if name in given})
        names = given.get("_table_names") or range(given.get("n_features_in_", 0))
        return params._replace(init=in_order(params.init, names))


class LinearModel(ABC):
    """A linear model of rows, as an estimator needs it."""

    params: LinearParams

    def check(self, n_features):
        """Refuse parameters that do not suit the number of features."""

    @abstractmethod
    def start(self, X, rng, weight):
        """Return the fitted attributes from which training starts."""

    @abstractmethod
    def epochs(self, data, training):
        """Train from the attributes of `data`, TrainingData; yield after each epoch."""

    @abstractmethod
    def trained_attributes(self, result, fitted):
        """Return the fitted attributes that trained parameters stand for."""

    @abstractmethod
    def density(self, fitted, device):
        """Return the density of the fitted attributes."""

    @abstractmethod
    def n_parameters(self, fitted):
        """Return the number of free parameters; rotations change nothing."""

    @abstractmethod
    def information(self, fitted, X, weight):
        """Return the observed information; X and weight are tensors."""

    @abstractmethod
    def warn_of_limits(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""


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


def natural_ascent(training, params, data, objective, point):
    """Return the epochs for all rows, or for a part of a stream."""
    is_zero = (point.coefs == 0).all(0)
    is_zero[-1] = False  # intercepts
    if is_zero.any():
        coefs = point.coefs.clone()
        noise = ZERO_JITTER * data.rng.normal(size=(len(coefs), int(is_zero.sum())))
        coefs[:, is_zero] = torch.from_numpy(noise).to(coefs)
        point = point._replace(coefs=coefs)
    training.params = point
    steps = {"learning_rate": params.learning_rate, "rng": data.rng}
    if not data.is_all:
        steps["n_steps"] = data.fitted["n_iter_"]
        return ascent_on_part(training, objective, **steps)
    steps |= {"tol": params.tol, "n_iter_no_change": params.n_iter_no_change}
    return ascent_of(training, objective, **steps)
