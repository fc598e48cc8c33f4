"""What every kind of feature says of itself."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch

LOG_NOISE_STEP = 10.0  # the noise variance has further to go than a coefficient

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


class Likelihood(torch.nn.Module, ABC):
    """Distribution of features given their locations.

    Entries X are tensors (..., d) and locations (..., l) that broadcast, unless a
    method says otherwise. Most kinds of features have one location each, and l = d.
    Rows that training starts from are arrays, NaN where missing. What concerns these
    an instance says whatever its parameters are.

    Beside its locations a kind may have parameters of its own, `own`: the logarithm of
    a noise variance, or of the gaps between thresholds. They are one vector, and step
    with the locations in training. `OwnParameters` is the base of such kinds.
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the values of a feature
    values: tuple[float, ...] | None = None  # of a feature, if they are few
    is_separable = True  # whether each feature has one location
    own_features: Sequence[int] = ()  # the feature that each own parameter is of
    n_own = 0  # own parameters of a feature
    n_means = 1  # numbers that `mean` returns for a feature
    # Whether their information is a block with that of the location, not a diagonal.
    has_blocks = False
    measure: str | None = None  # what entries have: "density", "probability"
    has_density = False  # whether a constant feature has no finite maximum likelihood
    # Whether an entry may tell z more closely than nodes of the others are spaced.
    is_sharp = False

    @classmethod
    def of_columns(cls, n_categories: int, n_features: int) -> Self:
        """Return the likelihood of all columns of this kind in a table."""
        return cls()

    @staticmethod
    def n_locations(n_categories: int) -> int:
        """Return the number of locations of a feature."""
        return 1

    def values_of_each(self, n_features: int) -> list[Sequence[float]] | None:
        """Return the values that each feature takes; None if some take any number."""
        return None if self.values is None else [self.values] * n_features

    def unseen(self, X: np.ndarray) -> np.ndarray:
        """Return levels that features may have and none of the rows has; (r, d).

        Each row holds one of them for some features, NaN for the others.
        """
        return np.empty((0, X.shape[1]))

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

    def start_attributes(
        self, X: np.ndarray, scale: Scale, weight: np.ndarray | None = None
    ) -> dict:
        """Return the fitted attributes of its own from which training starts.

        X : standardised rows, NaN where missing.
        """
        return {}

    def from_attributes(self, fitted: Mapping, scale: Scale) -> Self:
        """Return the likelihood of standardised rows, from fitted attributes."""
        return type(self)()

    def check_attributes(
        self, fitted: Mapping, columns: Sequence = (), names: Sequence = ()
    ) -> None:
        """Refuse fitted attributes of its own that stand for no distribution.

        columns : numbers of its features in a table. names : of these.
        """

    def own_attributes(self, scale: Scale) -> dict[str, torch.Tensor]:
        """Return the fitted attributes of its own, in the units of the rows.

        Tensors that are functions of `own`.
        """
        return {}

    def attributes(self, scale: Scale) -> dict:
        """Return the same as arrays, or as a float if all features share it."""
        found = self.own_attributes(scale)
        arrays = {k: v.detach().double().cpu().numpy() for k, v in found.items()}
        return {k: v if v.ndim else float(v) for k, v in arrays.items()}

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

        Both are (..., l). In the place of Fisher information may stand minus the second
        derivative, if it is never negative: its mean is the same. Where a feature has
        several locations, information is a diagonal matrix that is at least as large as
        that of the feature.
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

    @property
    def n_reads(self) -> int:
        """Numbers that `reads` returns for a feature."""
        return 1

    standardises_reads = False  # whether nets read them standardised

    def reads(self, X: torch.Tensor) -> torch.Tensor:
        """Return what a net reads of entries that knows no latent variables."""
        return self.inputs(X)

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

    def at(self, own: torch.Tensor) -> Self:
        """Return the likelihood with given parameters of its own, (..., g).

        They may differ from entry to entry: what broadcasts with locations will do.
        """
        return self

    @property
    def own(self) -> torch.Tensor:
        """Parameters of its own, of shape (g,)."""
        return torch.empty(0, device="cpu", dtype=torch.float64)

    @property
    def own_floor(self) -> torch.Tensor:
        """Least values of these, (g,)."""
        return self.own

    @property
    def own_is_log(self) -> torch.Tensor:
        """Whether each is the logarithm of a positive number, which steps; bool."""
        return self.own.bool()

    @property
    def own_lengths(self) -> torch.Tensor:
        """Size of a unit step in each, in units of the location; 0 is no bound."""
        return self.own

    def noises(self) -> list[torch.nn.Parameter]:
        """Return torch parameters that say how widely entries scatter.

        They are logarithms over LOG_NOISE_STEP, and deep models change them so that
        they suit rows held out.
        """
        return []

    def own_sums(
        self,
        X: torch.Tensor,
        location: torch.Tensor,
        share: torch.Tensor,
        known: torch.Tensor,
        z: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return slope and information in `own`, summed over rows and nodes.

        X : (n, 1, d). location : (n, s, l). share : weights of slopes, (n, s, d).
        known : weights of information, (n, s, d). z : nodes with a one at the end,
        (n, s, k + 1).

        Returns
        -------
        slope : Tensor of shape (g,)
        information : Tensor of shape (g,), or (g, q + k + 1) if it `has_blocks`
            In the latter, q columns for the own parameters of the same feature, then
            the cross information with the coefficients of its first location.
        """
        none = location.new_zeros(0)
        return none, none

    def centre(self, location: torch.Tensor) -> torch.Tensor:
        """Return the locations, or coefficients of theirs, that stand for the same.

        Of those that do, they are in the middle; (..., l).
        """
        return location

    @abstractmethod
    def mean(self, location: torch.Tensor) -> torch.Tensor:
        """Return what `fill` needs of entries, to be averaged over z; (..., m)."""

    def fill(self, mean: torch.Tensor) -> torch.Tensor:
        """Return what a hidden entry is filled in with, given its mean; (..., d)."""
        return mean.clamp(*self.bounds)

    @abstractmethod
    def draw(self, location: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Draw entries from uniform noise (..., d)."""


class OwnParameters(Likelihood):
    """Base of kinds with parameters of their own, `n_own` for each feature.

    Parameters
    ----------
    own : Tensor of shape (g,)
        Of the features in turn. Training starts from there.
    """

    def __init__(self, own):
        super().__init__()
        self.raw = torch.nn.Parameter(self._raw(own))
        self.register_buffer("given", None)

    def _raw(self, own):
        """Return what nets are trained on."""
        return own

    def _own(self, raw):
        """The inverse of `_raw`."""
        return raw

    @abstractmethod
    def _empty(self) -> Self:
        """Return a likelihood of this kind, whatever its own parameters are."""

    @property
    def own(self):
        return self._own(self.raw) if self.given is None else self.given

    def at(self, own):
        other = self._empty()
        other.raw, other.given = None, own
        return other

    @property
    def own_features(self):
        if not self.n_own or not self.own.ndim:
            return []
        n_features = self.own.shape[-1] // self.n_own
        return np.repeat(np.arange(n_features), self.n_own).tolist()


class OfScale(OwnParameters):
    """Base of kinds with one own parameter, the logarithm of how entries scatter.

    A noise variance or a dispersion, whose information with the location is zero.

    Parameters
    ----------
    scatter : Tensor of shape (d,)
        The positive number. It stays above `floor`.
    """

    n_own = 1
    floor: float  # of the positive number
    has_bound = True  # whether a step of the logarithm is at most 1

    def __init__(self, scatter):
        super().__init__(scatter)

    def _raw(self, scatter):
        excess = torch.clamp(scatter - self.floor, min=0.1 * self.floor)
        return excess.log() / LOG_NOISE_STEP

    def _own(self, raw):
        return self._scatter(raw).log()

    def _scatter(self, raw):
        return (LOG_NOISE_STEP * raw).exp() + self.floor

    @property
    def scatter(self):
        """The positive number, a noise variance or dispersion."""
        return self._scatter(self.raw) if self.given is None else self.given.exp()

    @property
    def own_floor(self):
        return torch.full_like(self.own, math.log(2 * self.floor)).detach()

    @property
    def own_is_log(self):
        return torch.ones_like(self.own, dtype=torch.bool)

    @property
    def own_lengths(self):
        return torch.full_like(self.own, float(self.has_bound)).detach()

    def noises(self):
        return [self.raw]

    @abstractmethod
    def own_derivatives(
        self, X: torch.Tensor, location: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return slope and Fisher information in `own`; (..., d) each."""

    def own_sums(self, X, location, share, known, z):
        slope, information = self.own_derivatives(X, location)
        return (share * slope).sum((0, 1)), (known * information).sum((0, 1))
