"""The likelihood of a table with columns of several kinds."""

import copy

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import ColumnUnits, Likelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.counts import NegativeBinomial, Poisson
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._likelihoods.interval import Interval
from sklearn_mpt._likelihoods.levels import Levels, Ordinal, PartialCredit
from sklearn_mpt._likelihoods.lognormal import Lognormal

LIKELIHOODS = {
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "ordinal": Ordinal,
    "partial_credit": PartialCredit,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "lognormal": Lognormal,
    "interval": Interval,
}
"""Kinds of features by their names."""
KINDS_OF_VALUES = tuple(name for name in LIKELIHOODS if name != "interval")
"""Kinds of features whose entries are values, and not intervals of them."""
ORDERED_KINDS = tuple(
    name for name, kind in LIKELIHOODS.items() if issubclass(kind, Levels)
)


def likelihood_of(kind, n_categories, n_features):
    """Return the likelihood of all columns of a kind, by its name or an instance."""
    if isinstance(kind, Likelihood):
        return copy.deepcopy(kind)
    return LIKELIHOODS[kind].of_columns(n_categories, n_features)


def _by_part(name, arguments, result):
    """Return the method of `Columns` that calls the method `name` of each part.

    arguments, result : what the last axis of each argument, and of what is returned, is
    made of. "d" is for features, "l" for locations, "p" for expectations and "g" for
    shape parameters; "-" is an argument that all parts get, and "+" a result that is
    added up.
    """

    def method(self, *given):
        results = [
            getattr(part, name)(
                *(self._taken(a, axis, i) for a, axis in zip(given, arguments))  # noqa: B905
            )
            for i, part in enumerate(self.parts)
        ]
        if len(result) < 2:
            return self._joined(results, result)
        return tuple(map(self._joined, zip(*results, strict=True), result))

    return method


class Columns(Likelihood):
    """Features of several kinds, with the shape parameters of their kinds.

    Features of one kind and one number of categories form a part, with its own
    likelihood. Locations are in the order of the features; expectations and shape
    parameters are part by part.

    Parameters
    ----------
    kinds : sequence of str or Likelihood
        Of each feature.
    n_categories : sequence of int
        Number of categories of each feature; 1 for those of another kind.
    names : sequence, default=None
        Of the features, for messages; None takes their numbers.
    noise_variance : Tensor of shape (g,), default=None
        Of the Gaussian features; None is 1.0.
    """

    def __init__(self, kinds, n_categories, names=None, noise_variance=None):
        super().__init__()
        self.kinds, self.n_categories = tuple(kinds), tuple(n_categories)
        self.names = range(len(self.kinds)) if names is None else names
        feature_kinds = list(zip(self.kinds, self.n_categories, strict=True))
        groups = sorted(set(feature_kinds), key=lambda pair: (str(pair[0]), pair[1]))
        self.parts = torch.nn.ModuleList(
            likelihood_of(kind, count, feature_kinds.count((kind, count)))
            for kind, count in groups
        )
        part_of = [groups.index(kind) for kind in feature_kinds]
        self.n_locations_each = [self.parts[i].n_locations for i in part_of]
        self.n_locations = max(self.n_locations_each)
        if noise_variance is not None and "gaussian" in self.kinds:
            self.parts[groups.index(("gaussian", 1))] = Gaussian(noise_variance)
        self._store_indices(np.array(part_of))

    @property
    def n_shape_params(self):
        return max(part.n_shape_params for part in self.parts)

    @property
    def has_blocks(self):
        return any(part.has_blocks for part in self.parts)

    def _store_indices(self, part_of):
        """Store the features and locations of each part, and the inverse order."""
        features = np.repeat(np.arange(len(part_of)), self.n_locations_each)
        self.register_buffer("feature_of", torch.from_numpy(features))
        by_part = np.sort(part_of)
        owners = {
            "d": part_of,
            "l": part_of[features],
            "p": by_part.repeat([self.parts[i].n_means for i in by_part]),
            "g": by_part.repeat([self.parts[i].n_shape_params for i in by_part]),
        }
        self._slices, self._is_sorted = {}, {}
        for axis, owner in owners.items():
            indices = [np.flatnonzero(owner == i) for i in range(len(self.parts))]
            self._slices[axis] = list(map(_slice_of, indices))
            order = np.concatenate(indices).argsort()
            self._is_sorted[axis] = bool((np.diff(order) > 0).all())
            for name, index in (*enumerate(indices), ("", order)):
                self.register_buffer(f"index_{axis}{name}", torch.from_numpy(index))

    def _iter_parts(self):
        """Yield each part with the indices of its features."""
        for i, part in enumerate(self.parts):
            yield part, getattr(self, f"index_d{i}")

    def _taken(self, argument, axis, i):
        """Return what part i takes of an argument; see `_by_part`."""
        if argument is None or axis == "-":
            return argument
        where = self._slices[axis][i]  # a slice, which copies nothing, if it is one
        return argument[..., where] if where else self._at(argument, axis, i)

    def _at(self, array, axis, name):
        """Return the entries of a stored index along the last axis."""
        index = getattr(self, f"index_{axis}{name}")
        return array[
            ..., index.cpu().numpy() if isinstance(array, np.ndarray) else index
        ]

    def _joined(self, results, axis):
        """Join results of the parts along the last axis; see `_by_part`."""
        if not axis:
            return None
        if axis == "+":
            return sum(results)
        if len(results) == 1:
            return results[0]
        if isinstance(results[0], np.ndarray):
            joined = np.concatenate(results, -1)
        else:
            shape = np.broadcast_shapes(*(part.shape[:-1] for part in results))
            joined = torch.cat([part.expand(*shape, -1) for part in results], -1)
        return joined if self._is_sorted[axis] else self._at(joined, axis, "")

    check_rows = _by_part("check_rows", "d", "")
    _units = _by_part("units", "d--", "ddd")
    standardised = _by_part("standardised", "ddd", "d")
    start_location = _by_part("start_location", "d-", "l")
    entry_log_prob = _by_part("entry_log_prob", "dl", "d")
    pair_log_prob = _by_part("pair_log_prob", "ddl", "+")
    expected_prob = _by_part("expected_prob", "d-l", "d")
    derivatives = _by_part("derivatives", "dl", "ll")
    shape_scores = _by_part("shape_scores", "dl", "g")
    inputs = _by_part("inputs", "d", "l")
    net_inputs = _by_part("net_inputs", "d", "p")
    precision = _by_part("precision", "ldl", "+")
    centre = _by_part("centre", "l", "l")
    mean = _by_part("mean", "l", "p")
    to_means = _by_part("to_means", "d", "p")
    fill = _by_part("fill", "p", "d")
    draw = _by_part("draw", "ld", "d")
    is_open = _by_part("is_open", "d", "d")
    within = _by_part("within", "dld", "d")

    def units(self, X, weight=None, by_column=True):
        return ColumnUnits(*self._units(X, weight, True))

    def check_columns(self, X, names):
        for part, columns in self._iter_parts():
            j = columns.numpy()
            part.check_columns(X[:, j], [names[i] for i in j.tolist()])

    def values_of_each(self, n_features):
        values = [None] * n_features
        for part, columns in self._iter_parts():
            part_values = part.values_of_each(len(columns))
            if part_values is None:
                return None
            for j, feature_values in zip(columns.tolist(), part_values, strict=True):
                values[j] = feature_values
        return values

    def unseen(self, X):
        n_levels = max(self.n_categories)
        rows = np.full((n_levels, X.shape[1]), np.nan)
        for j, count in enumerate(self.n_categories):
            if count > 1:
                unseen_levels = np.setdiff1d(np.arange(count), X[:, j])
                rows[unseen_levels, j] = unseen_levels
        return rows[~np.isnan(rows).all(axis=1)]

    def to_locations(self, entries):
        return entries[..., self.feature_of.to(entries.device)]

    def start_attributes(self, X, scale, weight=None):
        attributes = []
        for part, columns in self._iter_parts():
            j = columns.numpy()
            arrays = part.start_attributes(X[:, j], scale[j], weight)
            tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
            attributes.append((columns, tensors))
        return {
            name: tensor.numpy()
            for name, tensor in self._join_attributes(attributes).items()
        }

    def shape_attributes(self, scale):
        return self._join_attributes(
            (columns, part.shape_attributes(scale[columns.cpu().numpy()]))
            for part, columns in self._iter_parts()
        )

    def _join_attributes(self, parts):
        """Join attributes of the parts into tensors for all columns; NaN elsewhere."""
        joined: dict[str, torch.Tensor] = {}
        for columns, attributes in parts:
            for name, tensor in attributes.items():
                tensor = tensor.double()
                shape = len(self.kinds), *tensor.shape[1:]
                before = joined.get(name, tensor.new_full(shape, torch.nan))
                if tensor.ndim == 2:
                    width = max(before.shape[1], tensor.shape[1])
                    before, tensor = _widened(before, width), _widened(tensor, width)
                joined[name] = before.index_copy(0, columns, tensor)
        return joined

    def from_attributes(self, fitted, scale):
        return self._with_parts(
            part.from_attributes(
                {
                    name: fitted[name][columns.cpu().numpy()]
                    for name in part.shape_attributes(scale[columns.cpu().numpy()])
                },
                scale[columns.cpu().numpy()],
            )
            for part, columns in self._iter_parts()
        )

    def check_attributes(self, fitted, columns=(), names=()):
        for part, columns in self._iter_parts():
            names = [self.names[j] for j in columns.tolist()]
            part.check_attributes(fitted, columns.numpy(), names)

    def at(self, shape_params):
        parts = (
            part.at(self._taken(shape_params, "g", i))
            for i, part in enumerate(self.parts)
        )
        return self._with_parts(parts).to(shape_params.device)

    def _with_parts(self, parts):
        other = copy.copy(self)  # which shares the dicts of modules and buffers
        other._modules = {**self._modules, "parts": torch.nn.ModuleList(parts)}
        other._buffers = {**self._buffers}
        return other

    @property
    def shape_params(self):
        return self._join_shape_params(part.shape_params for part in self.parts)

    @property
    def shape_floor(self):
        return self._join_shape_params(part.shape_floor for part in self.parts)

    def _join_shape_params(self, parts):
        """Join tensors of the shape parameters of all parts."""
        tensors = [tensor for tensor in parts if tensor.numel()]
        if not tensors:
            return torch.empty(0, dtype=torch.float64, device="cpu")
        return torch.cat(tensors, -1)

    @property
    def shape_param_features(self):
        return [
            j
            for part, columns in self._iter_parts()
            for j in columns.repeat_interleave(part.n_shape_params).tolist()
        ]

    def shape_sums(self, X, location, weight, information_weight, z):
        entries = X, location, weight, information_weight
        derivatives, informations = [], []
        for i, part in enumerate(self.parts):
            if part.n_shape_params:
                own = (
                    self._taken(a, axis, i)
                    for a, axis in zip(entries, "dldd", strict=True)
                )
                derivative, information = part.shape_sums(*own, z)
                derivatives.append(derivative)
                informations.append(information)
        if self.has_blocks:
            width = self.n_shape_params, z.shape[-1]
            informations = [_as_blocks(part, *width) for part in informations]
        return torch.cat(derivatives), torch.cat(informations)


def _slice_of(indices):
    """Return increasing indices as a slice, None if there are gaps between them."""
    if not len(indices):
        return slice(0)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else None


def _widened(tensor, width):
    """Append columns of NaN up to a width."""
    more = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (0, more), value=torch.nan)


def _as_blocks(information, n_shape_params, n_coefs):
    """Return the information of a part in the columns of `shape_sums` with blocks."""
    if information.ndim == 1:
        return torch.nn.functional.pad(
            information[:, None], (0, n_shape_params - 1 + n_coefs)
        )
    blocks, cross = information.tensor_split([information.shape[1] - n_coefs], 1)
    more = n_shape_params - blocks.shape[1]
    return torch.cat([torch.nn.functional.pad(blocks, (0, more)), cross], 1)
