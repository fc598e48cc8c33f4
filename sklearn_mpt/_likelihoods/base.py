"""What every kind of feature says of itself."""

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch

Scale = float | np.ndarray  # of standardised rows: one, or one for each column


def totals(X, weight=None):
    """Sums of the present entries of each column, and their numbers.

    weight : what each row counts, (n,); None is 1.
    """
    weight = np.ones(len(X)) if weight is None else weight
    return weight @ np.nan_to_num(X), weight @ ~np.isnan(X)


class Locations:
    """Those of features at shared points, hidden @ coef + intercept.

    Parameters
    ----------
    hidden : Tensor of shape (m, h)
    coef : Tensor of shape (h, l)
    intercept : Tensor of shape (l,)
    """

    def __init__(self, hidden, coef, intercept):
        self.hidden, self.coef, self.intercept = hidden, coef, intercept
        self._has_gradient = torch.is_grad_enabled()

    def every(self, step):
        """Those at one in so many of the points."""
        if step == 1:
            return self
        return Locations(self.hidden[::step], self.coef, self.intercept)

    @functools.cached_property
    def product(self):
        """They, of shape (m, l); with a gradient if the hidden values have one."""
        with torch.set_grad_enabled(self._has_gradient):
            return torch.addmm(self.intercept, self.hidden, self.coef)


class FormedLocations(Locations):
    """Those that a decoder of a user gives, which has no last layer to factor out.

    Parameters
    ----------
    product : Tensor of shape (m, l)
    """

    def __init__(self, product):
        super().__init__(product, product.new_empty(0, 0), product.new_empty(0))

    def every(self, step):
        return FormedLocations(self.hidden[::step])

    @property
    def product(self):
        return self.hidden


class Likelihood(torch.nn.Module, ABC):
    """Distribution of features given their locations.

    Entries X are tensors (..., d) and locations (..., l) that broadcast, unless a
    method says otherwise. Most kinds of features have one location each, and l = d.
    Rows that training starts from are arrays, NaN where missing. What concerns these
    an instance says whatever its parameters are. Those, if there are any, are the
    logarithms of noise variances over LOG_NOISE_STEP, which deep models multiply so
    that they suit rows held out.
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the values of a feature
    values: tuple[float, ...] | None = None  # of a feature, if they are few
    is_separable = True  # whether each feature has one location
    noisy: Sequence[int] = ()  # features with a noise variance of their own
    # Whether an entry may tell z more closely than nodes of the others are spaced.
    is_sharp = False

    @classmethod
    def of_columns(cls, n_categories: int, noise_variance: torch.Tensor) -> Self:
        """Return the likelihood of all columns of this kind in a table."""
        return cls()

    def values_of_each(self, n_features: int) -> list[Sequence[float]] | None:
        """Return the values that each feature takes; None if some take any number."""
        return None if self.values is None else [self.values] * n_features

    @staticmethod
    @abstractmethod
    def check_rows(X: np.ndarray) -> None:
        """Refuse rows, NaN where missing, that hold what is no value of a feature."""

    def check_columns(self, X: np.ndarray, names: Sequence) -> None:
        """Do so column by column, and name the first that does."""
        for j, name in enumerate(names):
            try:
                self.check_rows(X[:, [j]])
            except ValueError as error:
                raise ValueError(f"Column {name!r}: {error}") from None

    @staticmethod
    def units(
        X: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[np.ndarray, Scale]:
        """Return the shift of each column, and the scale, that standardise X.

        weight : of each row, (n,); None is 1.
        """
        return np.zeros(X.shape[1]), 1.0

    @staticmethod
    def constant(X: np.ndarray) -> np.ndarray:
        """Return whether each column is constant and its density therefore unbounded.

        Bool, (d,). False for all kinds of features that have no density.
        """
        return np.zeros(X.shape[1], dtype=bool)

    @staticmethod
    @abstractmethod
    def start_location(X: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        """Return the locations that suit X best, of shape (l,)."""

    @staticmethod
    def start_attributes(scale: Scale) -> dict:
        """Return the fitted attributes of its own from which training starts."""
        return {}

    def from_attributes(self, fitted: Mapping, scale: Scale) -> Self:
        """Return the likelihood of standardised rows, from fitted attributes."""
        return copy.deepcopy(self)

    def attributes(self, scale: Scale) -> dict:
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

        X : shape (n, d), 0.0 where not observed; observed : the same, 1.0 or 0.0, or
        ones of shape (1, d); location : (m, d) -> (n, m).
        """

    def shared_log_prob(
        self, X: torch.Tensor, observed: torch.Tensor, locations: Locations
    ) -> torch.Tensor:
        """Return `pair_log_prob`, forming the locations only if it needs them.

        observed : bool, (n, d).
        """
        seen = observed[:1] if observed.all() else observed
        return self.pair_log_prob(X, seen.to(X.dtype), locations.product)

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
        """Return the slope of `entry_log_prob` in locations, and Fisher information.

        Both are (..., l). Where a feature has several locations, information is a
        diagonal matrix that is at least as large as that of the feature.
        """

    def spread(self, entries: torch.Tensor) -> torch.Tensor:
        """Repeat what is said of features for each of their locations; (..., l)."""
        return entries

    def spread_units(self, array: Scale) -> Scale:
        """Return the shift or the scale of each location, from that of the rows."""
        if np.ndim(array) == 0:
            return array
        return self.spread(torch.from_numpy(array)).numpy()

    def inputs(self, X: torch.Tensor) -> torch.Tensor:
        """Return what a net reads of entries; (..., l).

        `derivatives` are linear in it.
        """
        return X

    def precision(
        self, information: torch.Tensor, observed: torch.Tensor, jacobian: torch.Tensor
    ) -> torch.Tensor:
        """Return the Fisher information of the observed entries on z; (n, k, k).

        information : what `derivatives` says, (n, l). observed : (n, d), 1.0 or 0.0.
        jacobian : of the locations, (k, l), or (n, k, l).
        """
        weight = self.spread(observed) * information
        if jacobian.ndim == 3:
            return (jacobian * weight[:, None]) @ jacobian.mT
        outer = (jacobian[:, None] * jacobian).flatten(0, 1)
        return (weight @ outer.T).unflatten(1, (len(jacobian),) * 2)

    def curving(self, location: torch.Tensor) -> torch.Tensor:
        """Return 1.0 for locations whose information varies, else 0.0; (l,)."""
        return torch.ones_like(location)

    def at(self, log_noise: torch.Tensor) -> Self:
        """Return the likelihood with given logarithms of noise variances.

        Of shape (g,), for the `noisy` features in turn.
        """
        return self

    @property
    def log_variance(self) -> torch.Tensor:
        """Logarithms of the noise variances, of shape (g,)."""
        return torch.empty(0, device="cpu")

    def noise_derivatives(
        self, X: torch.Tensor, location: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return slope and Fisher information in the log noise variances; (..., g)."""
        none = location[..., :0]
        return none, none

    def centre(self, location: torch.Tensor) -> torch.Tensor:
        """Return the locations, or coefficients of theirs, that stand for the same.

        Of those that do, they are in the middle; (..., l).
        """
        return location

    @abstractmethod
    def mean(self, location: torch.Tensor) -> torch.Tensor:
        """Return what is expected of entries, to be averaged over z; (..., l)."""

    def fill(self, mean: torch.Tensor) -> torch.Tensor:
        """Return what a hidden entry is filled in with, given its mean; (..., d)."""
        return mean.clamp(*self.bounds)

    @abstractmethod
    def draw(self, location: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Draw entries from uniform noise (..., d)."""
