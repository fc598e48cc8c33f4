"""What every kind of feature says of itself."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
import torch


class Likelihood(torch.nn.Module, ABC):
    """Distribution of features given their locations.

    Entries X and locations are tensors (..., d) that broadcast, unless a method says
    otherwise. Rows that training starts from are arrays, NaN where missing.
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the values of a feature
    values: tuple[float, ...] | None = None  # of a feature, if they are few

    @staticmethod
    @abstractmethod
    def check_rows(X: np.ndarray) -> None:
        """Refuse rows, NaN where missing, that hold what is no value of a feature."""

    @staticmethod
    def units(X: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the shift of each column, and the one scale, that standardise X."""
        return np.zeros(X.shape[1]), 1.0

    @staticmethod
    @abstractmethod
    def start_location(X: np.ndarray) -> np.ndarray:
        """Return the location of each column that suits X best, of shape (d,)."""

    @staticmethod
    def start_attributes(scale: float) -> dict:
        """Return the fitted attributes of its own from which training starts."""
        return {}

    @classmethod
    def from_attributes(cls, fitted: Mapping, scale: float) -> Self:
        """Return the likelihood of standardised rows, from fitted attributes."""
        return cls()

    def attributes(self, scale: float) -> dict:
        """Return the fitted attributes of its own, in the units of the rows."""
        return {}

    @abstractmethod
    def entry_log_prob(self, X: torch.Tensor, location: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each entry; (..., d)."""

    @abstractmethod
    def pair_log_prob(
        self, X: torch.Tensor, observed: torch.Tensor, location: torch.Tensor
    ) -> torch.Tensor:
        """Return that of the observed entries of each row at each of shared locations.

        X, observed : shape (n, d), 0.0 where not observed; location : (m, d) -> (n, m).
        """

    def expected_prob(self, X, r, location):
        """Return the mean probability of each entry over shared locations; (n, d).

        r : weights of the locations for each row, (n, m); location : (m, d). For
        features that take few `values`.
        """
        average = torch.zeros_like(X)
        for value in self.values or ():
            prob = self.entry_log_prob(location.new_tensor(value), location).exp()
            average += (X == value) * (r @ prob)
        return average

    @abstractmethod
    def derivatives(
        self, X: torch.Tensor, location: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slope of `entry_log_prob` in the location, and Fisher information.

        Both are (..., d).
        """

    @abstractmethod
    def mean(self, location: torch.Tensor) -> torch.Tensor:
        """Return the expected entries; (..., d)."""

    @abstractmethod
    def draw(self, location: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Draw entries from uniform noise; (..., d)."""
