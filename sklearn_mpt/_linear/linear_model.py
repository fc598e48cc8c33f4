"""What an estimator's linear model computes, and the parameters that it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from sklearn_mpt._linear.initial_arrays import in_order


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
    def solver(self, data):
        """Return a solver that starts from the attributes of `data`, TrainingData."""

    @abstractmethod
    def trained_attributes(self, result, fitted):
        """Return the fitted attributes that a solver's result stands for."""

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
