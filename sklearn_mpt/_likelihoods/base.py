"""The base classes of all kinds of features."""

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import examples_of
from sklearn_mpt._matrices import sums_of_outer_products
from sklearn_mpt._numbers import CACHE_ENTRIES, ROUNDING, TINY

# A step of a net's parameter changes the log of a noise variance by so many times as
# much, because it has further to go than a coefficient.
LOG_NOISE_STEP = 10.0

Scale = float | np.ndarray  # one scale for all columns, or one for each


def totals(X, weight=None):
    """Return the sum and the number of the present entries of each column."""
    weight = np.ones(len(X)) if weight is None else weight
    missing = np.isnan(X)
    if not missing.any():
        return weight @ X, np.full(X.shape[1], weight.sum())
    return weight @ np.where(missing, 0.0, X), weight @ ~missing


def check_values(X, kind, takes, is_invalid, advice=""):
    """Refuse rows with values that are not allowed."""
    invalid = X[is_invalid]
    if len(invalid):
        raise ValueError(
            f"likelihood={kind!r} takes {takes} and NaN (missing); found "
            f"{len(invalid)} other values, such as {examples_of(invalid)}.{advice}"
        )


def column_moments(X, weight=None):
    """Return mean, variance and number of the present entries of each column."""
    total, count = totals(X, weight)
    divisor = np.maximum(count, TINY)
    mean = total / divisor
    square, _ = totals((X - mean) ** 2, weight)
    return mean, square / divisor, count


def column_scales(mean, variance):
    """Return standard deviations of columns; 1 where they are rounding errors."""
    scale = np.sqrt(variance)
    return np.where(scale > ROUNDING * np.abs(mean), scale, 1.0)


def log_softmax(logits):
    """Return log-probabilities along the last axis."""
    # over few categories torch is several times faster along the first axis
    return logits.movedim(-1, 0).log_softmax(0).movedim(0, -1)


def softmax(logits):
    """Return probabilities along the last axis, as fast as `log_softmax`."""
    return logits.movedim(-1, 0).softmax(0).movedim(0, -1)


def at_codes(table, X):
    """Return the entries of a table (..., d, m) at the codes X, which broadcast."""
    shape = np.broadcast_shapes(X.shape, table.shape[:-1])
    codes = X.long().expand(shape)[..., None]
    return table.expand(*shape, -1).gather(-1, codes)[..., 0]


class Locations:
    """Locations of features at shared nodes, hidden @ coef + intercept.

    Parameters
    ----------
    hidden : Tensor of shape (m, h)
    coef : Tensor of shape (h, l)
    intercept : Tensor of shape (l,)
    """

    def __init__(self, hidden, coef, intercept):
        self.hidden, self.coef, self.intercept = hidden, coef, intercept
        self._has_gradient = torch.is_grad_enabled()

    @functools.cached_property
    def product(self):
        """The locations, (m, l); with a gradient if it was enabled at creation."""
        with torch.set_grad_enabled(self._has_gradient):
            return torch.addmm(self.intercept, self.hidden, self.coef)


class FormedLocations(Locations):
    """Locations that a user's decoder returns; it has no last layer to factor out.

    Parameters
    ----------
    product : Tensor of shape (m, l)
    """

    def __init__(self, product):
        super().__init__(product, product.new_empty(0, 0), product.new_empty(0))

    @property
    def product(self):
        return self.hidden


class ColumnUnits(NamedTuple):
    """Units in which columns are standardised.

    shift : of each column, (d,). scale : of each column, or one for all. constant :
    which columns are constant, so that their density is unbounded, bool (d,).
    """

    shift: np.ndarray
    scale: Scale
    constant: np.ndarray


class ShapeBlocks(NamedTuple):
    """Shape parameters that belong to one feature, solved for with its location.

    slots : shape parameters of each feature that has any, (f, q); -1 for none.
    locations : first location of each of these features, (f,). is_log : whether a
    parameter is a logarithm, (g,).
    """

    slots: torch.Tensor
    locations: torch.Tensor
    is_log: torch.Tensor


def rank_among_equals(numbers):
    """Return how many equal numbers precede each number of a tensor, (g,)."""
    order = numbers.argsort(stable=True)
    by_number = numbers[order].contiguous()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(
        by_number, by_number
    )
    return rank


def features_of_locations(likelihood, n_locations, device):
    """Return the index of the feature of each location, int, (n_locations,)."""
    # features are no more than locations, so these numbers are enough
    numbers = torch.arange(n_locations, device=device)
    return likelihood.to_locations(numbers)[:n_locations].contiguous()


def noises_of(likelihood):
    """Return the torch parameters of noise variances and dispersions."""
    kinds = likelihood.modules()
    return [kind.raw for kind in kinds if isinstance(kind, DispersionLikelihood)]


def encoder_inputs(likelihood, X, observed):
    """Return the inputs of an encoder, 0.0 for NaN, and which are observed; (n, l)."""
    inputs = likelihood.inputs(X)
    has_input = likelihood.to_locations(observed) * ~inputs.isnan()
    return inputs.nan_to_num(0.0), has_input


def fitted_attributes(likelihood, scale):
    """Return `shape_attributes` as arrays, or as floats if features share them."""
    tensors = likelihood.shape_attributes(scale)
    arrays = {k: v.detach().double().cpu().numpy() for k, v in tensors.items()}
    return {k: v if v.ndim else float(v) for k, v in arrays.items()}


def shape_blocks(likelihood, n_locations):
    """Return the `ShapeBlocks` of a likelihood."""
    if not likelihood.has_blocks:
        return None
    device = likelihood.shape_params.device
    feature = torch.as_tensor(likelihood.shape_param_features, device=device)
    features, number = feature.unique(return_inverse=True)
    slots = number.new_full((len(features), likelihood.n_shape_params), -1)
    slots[number, rank_among_equals(number)] = torch.arange(len(number), device=device)
    of_locations = features_of_locations(likelihood, n_locations, device)
    locations = torch.searchsorted(of_locations, features)
    return ShapeBlocks(slots, locations, likelihood.shape_floor.isfinite())


class Likelihood(torch.nn.Module, ABC):
    """Distribution of features given their locations.

    Unless a method says otherwise, entries X are tensors (..., d) and locations
    (..., l), which broadcast. Most kinds have one location for each feature, and l = d.
    Training rows are arrays, NaN where missing; methods that take them do not depend on
    the parameters of the instance.

    A kind says five things: which values it takes (`check_rows`), at which locations
    training starts (`start_location`), the log-probability of an entry
    (`entry_log_prob`), what is filled in (`mean`) and draws (`draw`). The others have
    defaults, which kinds override where they are faster, or for what they alone have:
    units, few values, several locations, inputs of nets, intervals.

    In addition to its locations a kind may have shape parameters: the logarithm of a
    noise variance, or of the gaps between thresholds. They form one vector, and are
    trained together with the locations. `ShapeLikelihood` is the base class of such
    kinds.

    Attributes
    ----------
    bounds, measure : tuple, str
        Between which numbers the values of a feature are, and whether they have a
        "density" or a "probability".
    n_locations, n_shape_params, n_means : int
        How many numbers a feature has: locations, which are neighbours; shape
        parameters; and expectations that `mean` returns.
    shape_param_features, has_blocks : sequence of int, bool
        The information of shape parameters: the feature to which each belongs, and
        whether they have cross information with its location; see `shape_blocks`.
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)
    measure: str | None = None
    n_locations = 1
    n_shape_params = 0
    n_means = 1
    shape_param_features: Sequence[int] = ()
    has_blocks = False

    @classmethod
    def of_columns(cls, n_categories, n_features):
        """Return the likelihood of all columns of this kind in a table."""
        return cls()

    def values_of_each(self, n_features):
        """Return the values that each feature takes; None if some take any number.

        A number may determine z more closely than the spacing of nodes in the posterior
        given other entries. An entry with few possible values does not.
        """
        return None

    def unseen(self, X):
        """Return the levels of features that occur in none of the rows; (r, d).

        Each row of the result has such levels for some features, and NaN for the
        others.
        """
        return np.empty((0, X.shape[1]))

    @staticmethod
    @abstractmethod
    def check_rows(X):
        """Refuse rows with values that a feature cannot have; NaN is missing."""

    def check_columns(self, X, names):
        """Call `check_rows` for each column; the error names the column."""
        for j, name in enumerate(names):
            try:
                self.check_rows(X[:, [j]])
            except ValueError as error:
                raise ValueError(f"Column {name!r}: {error}") from None

    def units(self, X, weight=None, by_column=False):
        """Return the units in which columns are standardised.

        No column is constant for kinds of features without a density.

        weight : weights of the rows, (n,); None is 1. by_column : whether each column
        has a scale of its own, where a kind could have one for all.
        """
        n_features = X.shape[1]
        return ColumnUnits(
            np.zeros(n_features), np.ones(n_features), np.zeros(n_features, dtype=bool)
        )

    @staticmethod
    def standardised(X, shift, scale):
        """Return rows in these units; (n, d)."""
        return (X - shift) / scale

    @staticmethod
    @abstractmethod
    def start_location(X, weight=None):
        """Return the locations at which training starts, (l,); they fit X best."""

    def start_attributes(self, X, scale, weight=None):
        """Return the fitted attributes of `shape_params` at which training starts.

        X : standardised rows, NaN where missing.
        """
        return {}

    def from_attributes(self, fitted, scale):
        """Return the likelihood of standardised rows, from fitted attributes."""
        return copy.deepcopy(self)

    def check_attributes(self, fitted, columns=(), names=()):
        """Refuse fitted attributes of `shape_params` that do not define a distribution.

        columns : indices of the features of this kind in a table. names : their names.
        """

    def shape_attributes(self, scale):
        """Return the fitted attributes of `shape_params`, in the units of the rows.

        They are tensors that are functions of `shape_params`.
        """
        return {}

    @abstractmethod
    def entry_log_prob(self, X, location):
        """Return the log-probability of each entry; (..., d)."""

    def pair_log_prob(self, X, observed, location):
        """Return the log-probability of each row at each shared location; (n, m).

        Kinds for which it is a product of matrices override it.

        X : shape (n, d), 0.0 where not observed. observed : 1.0 or 0.0, (n, d), or ones
        of shape (1, d). location : (m, l).
        """
        entries = self.entry_log_prob(X[:, None], location)
        return (entries * observed[:, None]).sum(-1)

    def shared_log_prob(self, X, observed, locations):
        """Return `pair_log_prob`, without computing all locations if possible.

        observed : bool, (n, d), or of shape (1, d) where all entries are.
        """
        return self.pair_log_prob(X, observed.to(X.dtype), locations.product)

    def expected_prob(self, X, r, location):
        """Return the mean probability of each entry over shared locations; (n, d).

        r : weights of the locations for each row, (n, m). location : (m, l).
        """
        levels = self.values_of_each(X.shape[1])
        if levels is not None:
            average = torch.zeros_like(X)
            for value in levels[0]:
                prob = self.entry_log_prob(location.new_tensor(value), location).exp()
                average += (X == value) * (r @ prob)
            return average
        n_nodes = max(1, CACHE_ENTRIES // X.numel())
        blocks = zip(r.split(n_nodes, 1), location.split(n_nodes), strict=True)
        return sum(
            (part[:, None] @ self.entry_log_prob(X[:, None], at).exp())[:, 0]
            for part, at in blocks
        )

    def derivatives(self, X, location):
        """Return the derivative of `entry_log_prob` in locations, and the information.

        Both are (..., l). The information is the Fisher information, or minus the
        second derivative if that is never negative; both have the same mean. If a
        feature has several locations, it is a diagonal matrix at least as large as the
        information matrix of the feature.

        They are computed by automatic differentiation. Kinds that know them, in a
        fraction of the time, override this method.
        """
        keeps_graph = torch.is_grad_enabled() and location.requires_grad
        shape = np.broadcast_shapes(X.shape[:-1], location.shape[:-1])
        with torch.enable_grad():
            location = location if keeps_graph else location.detach().requires_grad_()
            at = location.expand(*shape, -1)
            total = self.entry_log_prob(X, at).sum()
            (derivative,) = torch.autograd.grad(total, at, create_graph=True)
            # of all first, all second, ... locations of the features
            sums = (
                derivative.unflatten(-1, (-1, self.n_locations)).flatten(0, -2).sum(0)
            )
            second = [
                torch.autograd.grad(one, at, create_graph=True)[0] for one in sums
            ]
            information = torch.stack(second).abs().sum(0)
        if keeps_graph:
            return derivative, information
        return derivative.detach(), information.detach()

    def to_locations(self, entries):
        """Repeat the number of each feature for each of its locations; (..., l)."""
        if self.n_locations == 1:
            return entries
        return entries.repeat_interleave(self.n_locations, -1)

    def to_means(self, entries):
        """Repeat the number of each feature for each of its expectations; (..., p)."""
        return entries.repeat_interleave(self.n_means, -1)

    def inputs(self, X):
        """Return the inputs of an encoder for these entries; (..., l).

        `derivatives` are linear functions of them. NaN where an entry has no such
        input, as zero has no logarithm; the derivative is then 0.
        """
        return X

    def net_inputs(self, X):
        """Return the inputs, for these entries, of a net without latent variables.

        They are standardised, if features take any number.
        """
        return self.inputs(X)

    def precision(self, information, observed, jacobian):
        """Return the Fisher information of the observed entries on z; (n, k, k).

        information : as `derivatives` returns it, (n, l). observed : 1.0 or 0.0,
        (n, d). jacobian : derivatives of the locations in z, (k, l) or (n, k, l).
        """
        weight = self.to_locations(observed) * information
        if jacobian.ndim == 3:
            return (jacobian * weight[:, None]) @ jacobian.mT
        return sums_of_outer_products(weight, jacobian)

    def at(self, shape_params):
        """Return the likelihood with these shape parameters, (..., g).

        They may differ between entries, if they broadcast with locations.
        """
        return self

    @property
    def shape_params(self):
        """Parameters beside the location, (g,)."""
        return torch.empty(0, device="cpu", dtype=torch.float64)

    @property
    def shape_floor(self):
        """Smallest values of shape parameters, (g,).

        It is minus infinity for those that are not logarithms of numbers.
        """
        return torch.full_like(self.shape_params.detach(), -torch.inf)

    def shape_scores(self, X, location):
        """Return the derivatives of `entry_log_prob` in `shape_params`; (..., g).

        Each shape parameter changes the log-probability of one feature only.
        """
        shape = np.broadcast_shapes(X.shape[:-1], location.shape[:-1])
        params = self.shape_params.expand(*shape, -1)
        if not params.numel():
            return location.new_zeros(*shape, 0)
        keeps_graph = torch.is_grad_enabled() and params.requires_grad
        with torch.enable_grad():
            params = params if keeps_graph else params.detach().requires_grad_()
            total = self.at(params).entry_log_prob(X, location).sum()
            (scores,) = torch.autograd.grad(total, params, create_graph=keeps_graph)
        return scores

    def shape_sums(self, X, location, weight, z):
        """Return gradient and information of `shape_params`; sums over rows and nodes.

        The information is that of products of derivatives, whose mean it is.

        X : (n, 1, d). location : (n, s, l). weight : of nodes for present entries,
        (n, s, d). z : nodes with a one at the end, (n, s, k + 1).

        Returns
        -------
        gradient : Tensor of shape (g,)
        information : Tensor of shape (g,), or (g, q + k + 1) if `has_blocks`
            With blocks, the first q columns are for the shape parameters of the same
            feature, the others for the coefficients of its first location.
        """
        if not self.n_shape_params:
            return location.new_zeros(0), location.new_zeros(0)
        scores = self.shape_scores(X, location).unflatten(-1, (-1, self.n_shape_params))
        weighted = weight[..., None] * scores
        derivative = self.derivatives(X, location)[0][..., :: self.n_locations]
        blocks = torch.einsum("nsdq,nsdp->dqp", weighted, scores)
        cross = torch.einsum(
            "nsdq,nsk->dqk",
            derivative[..., None] * weighted,
            z.expand(*derivative.shape[:2], -1),
        )
        information = torch.cat([blocks, cross], -1).flatten(0, 1)
        return torch.einsum("nsd,nsdq->dq", weight, scores).flatten(), information

    def centre(self, location):
        """Return the centred locations, or coefficients, of the same distribution.

        If several locations give the same distribution, these have mean zero in each
        feature; (..., l).
        """
        return location

    @abstractmethod
    def mean(self, location):
        """Return the expectations that `fill` needs; callers average them over z."""

    def fill(self, mean):
        """Return the values to fill in, given averages of `mean`; (..., d)."""
        return mean.clamp(*self.bounds)

    @abstractmethod
    def draw(self, location, uniform):
        """Draw entries from uniform noise (..., d)."""

    def is_open(self, X):
        """Return which entries have no known value, bool (..., d).

        They are missing, or X tells something else of them, such as an interval.
        """
        return X.isnan()

    def within(self, X, location, uniform=None):
        """Return what open entries are expected to be, given what X tells of them.

        With uniform noise they are drawn. Entries that are not open are arbitrary.

        X : shape (..., d); without noise, no entry is missing. uniform : shape (..., d)
        or None.
        """
        if uniform is not None:
            return self.draw(location, uniform)
        return X + torch.zeros_like(location[..., :1])


class ShapeLikelihood(Likelihood):
    """Base class of kinds with shape parameters, `n_shape_params` for each feature.

    Parameters
    ----------
    raw : Tensor of shape (g,)
        Shape parameters, or a function of them, by which nets train them; feature by
        feature. Training starts from there. None where `at` sets shape parameters.
    """

    def __init__(self, raw):
        super().__init__()
        self.register_parameter("raw", None if raw is None else torch.nn.Parameter(raw))
        self.register_buffer("given", None)  # shape parameters that `at` has set

    @property
    def has_blocks(self):
        return self.n_shape_params > 0

    @property
    def shape_params(self):
        return self.raw if self.given is None else self.given

    def at(self, shape_params):
        other = copy.copy(self)  # which shares the dicts of parameters and buffers
        other._parameters = {"raw": None}
        other._buffers = {**self._buffers, "given": shape_params}
        return other

    @property
    def shape_param_features(self):
        if not self.n_shape_params or not self.shape_params.ndim:
            return []
        n_features = self.shape_params.shape[-1] // self.n_shape_params
        return np.repeat(np.arange(n_features), self.n_shape_params).tolist()


class DispersionLikelihood(ShapeLikelihood):
    """Base class of kinds whose shape parameter is a log noise variance or dispersion.

    Its cross information with the location is zero.

    Parameters
    ----------
    dispersion : Tensor of shape (d,)
        Noise variances or dispersions at which training starts.
    """

    n_shape_params = 1
    has_blocks = False
    floor: float  # smallest noise variance or dispersion
    attribute: str  # name of the fitted attribute that has them

    def __init__(self, dispersion):
        # from the floor itself no gradient leads away
        excess = torch.clamp(dispersion - self.floor, min=0.1 * self.floor)
        super().__init__(excess.log() / LOG_NOISE_STEP)

    @classmethod
    def of_columns(cls, n_categories, n_features):
        return cls(torch.ones(n_features, dtype=torch.float64, device="cpu"))

    def from_attributes(self, fitted, scale):
        dispersion = np.array(fitted[self.attribute], dtype=float)
        return type(self)(torch.from_numpy(dispersion))

    def shape_attributes(self, scale):
        return {self.attribute: self.dispersion}

    @property
    def dispersion(self):
        """Noise variances or dispersions, (d,)."""
        if self.given is not None:
            return self.given.exp()
        return (LOG_NOISE_STEP * self.raw).exp() + self.floor

    @property
    def shape_params(self):
        return self.dispersion.log() if self.given is None else self.given

    @property
    def shape_floor(self):
        return torch.full_like(self.shape_params.detach(), math.log(2 * self.floor))

    @abstractmethod
    def shape_derivatives(self, X, location):
        """Return `shape_scores` and Fisher information; (..., d) each."""

    def shape_scores(self, X, location):
        return self.shape_derivatives(X, location)[0]

    def shape_sums(self, X, location, weight, z):
        derivative, information = self.shape_derivatives(X, location)
        return tuple((weight * part).sum((0, 1)) for part in (derivative, information))
