"""A kind of model: what an estimator needs beside its list of parameters."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._latent.model import Model, as_tensor


class Problem(NamedTuple):
    """What training goes on with.

    X : rows, NaN where missing. fitted : the attributes to start from. is_all : whether
    X is all there is to learn from, not a part of a stream.
    """

    X: np.ndarray
    fitted: Mapping
    is_all: bool
    device: torch.device
    rng: np.random.Generator

    @property
    def has_gaps(self):
        return bool(np.isnan(self.X).any())

    @property
    def rows(self):
        return as_tensor(self.X, self.device)


class Family(ABC):
    """How models of one kind start, are trained, and become maths.

    It has no state. `settings` is what has an estimator's parameters as attributes,
    `fitted` a dict of its fitted attributes.
    """

    objectives: tuple[str, ...]  # allowed values of `objective`

    @abstractmethod
    def check_parameters(self, settings, n_features):
        """Check the parameters that only this kind of model has."""

    def check_rows(self, X):
        """Refuse rows with values that no feature takes."""

    @abstractmethod
    def n_components(self, fitted):
        """Return the number of latent variables of a fitted model."""

    @abstractmethod
    def start(self, settings, X, rng):
        """Return the fitted attributes from which training starts."""

    @abstractmethod
    def trainer(self, settings, problem):
        """Return a `Trainer` or `Ascent` that starts from the problem's attributes."""

    @abstractmethod
    def trained_attributes(self, result, fitted):
        """Return the fitted attributes that the result of training stands for."""

    @abstractmethod
    def model(self, settings, fitted, device) -> Model:
        """Return the maths of the fitted attributes."""

    def check_fitted(self, settings, fitted):
        """Refuse parameters that a fitted model cannot be trained further with."""

    def warn(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""
