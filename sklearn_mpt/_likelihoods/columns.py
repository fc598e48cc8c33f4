"""The likelihood of a table with columns of several kinds."""

import copy
from typing import NamedTuple

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


class Place(NamedTuple):
    """Where the numbers of a part are along the last axis.

    They are slices, or indices where numbers of other parts are between them.
    """

    features: slice | torch.Tensor
    locations: slice | torch.Tensor
    means: slice
    shape_params: slice


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
    """

    def __init__(self, kinds, n_categories, names=None):
        super().__init__()
        self.kinds, self.n_categories = tuple(kinds), tuple(n_categories)
        self.names = range(len(self.kinds)) if names is None else names
        of_features = list(zip(self.kinds, self.n_categories, strict=True))
        groups = sorted(set(of_features), key=lambda group: (str(group[0]), group[1]))
        parts = [likelihood_of(*group, of_features.count(group)) for group in groups]
        self.parts = torch.nn.ModuleList(parts)
        part_of = np.array([groups.index(group) for group in of_features])
        self.n_locations_each = [parts[i].n_locations for i in part_of]
        self.n_locations = max(self.n_locations_each)
        self.feature_of = np.repeat(np.arange(len(part_of)), self.n_locations_each)
        part_of_locations = part_of[self.feature_of]
        self._places, n_means, n_shapes = [], 0, 0
        for i, part in enumerate(parts):
            features = np.flatnonzero(part_of == i)
            means = slice(n_means, n_means + len(features) * part.n_means)
            shapes = slice(n_shapes, n_shapes + len(features) * part.n_shape_params)
            n_means, n_shapes = means.stop, shapes.stop
            of_part = _index(features), _index(np.flatnonzero(part_of_locations == i))
            self._places.append(Place(*of_part, means, shapes))
        # of results that are joined part by part
        self._feature_order, self._location_order = (
            _index(owner.argsort(kind="stable").argsort())
            for owner in (part_of, part_of_locations)
        )

    @property
    def n_shape_params(self):
        return max(part.n_shape_params for part in self.parts)

    @property
    def has_blocks(self):
        return any(part.has_blocks for part in self.parts)

    def _each(self):
        """Return pairs of a part and its `Place`."""
        return zip(self.parts, self._places, strict=True)

    def _features(self, place):
        return np.arange(len(self.kinds))[place.features]

    def _by_feature(self, results):
        return _joined(results)[..., self._feature_order]

    def _by_location(self, results):
        return _joined(results)[..., self._location_order]

    def check_rows(self, X):
        for part, at in self._each():
            part.check_rows(X[:, at.features])

    def check_columns(self, X, names):
        for part, at in self._each():
            part_names = [names[j] for j in self._features(at)]
            part.check_columns(X[:, at.features], part_names)

    def units(self, X, weight=None, by_column=True):
        units = [
            part.units(X[:, at.features], weight, True) for part, at in self._each()
        ]
        return ColumnUnits(*map(self._by_feature, zip(*units, strict=True)))

    def standardised(self, X, shift, scale):
        return self._by_feature(
            part.standardised(
                *(numbers[..., at.features] for numbers in (X, shift, scale))
            )
            for part, at in self._each()
        )

    def start_location(self, X, weight=None):
        return self._by_location(
            part.start_location(X[:, at.features], weight) for part, at in self._each()
        )

    def entry_log_prob(self, X, location):
        return self._by_feature(
            part.entry_log_prob(X[..., at.features], location[..., at.locations])
            for part, at in self._each()
        )

    def pair_log_prob(self, X, observed, location):
        return sum(
            part.pair_log_prob(
                X[:, at.features], observed[:, at.features], location[:, at.locations]
            )
            for part, at in self._each()
        )

    def expected_prob(self, X, r, location):
        return self._by_feature(
            part.expected_prob(X[:, at.features], r, location[:, at.locations])
            for part, at in self._each()
        )

    def derivatives(self, X, location):
        both = [
            part.derivatives(X[..., at.features], location[..., at.locations])
            for part, at in self._each()
        ]
        return tuple(map(self._by_location, zip(*both, strict=True)))

    def inputs(self, X):
        return self._by_location(
            part.inputs(X[..., at.features]) for part, at in self._each()
        )

    def net_inputs(self, X):
        return _joined(
            part.net_inputs(X[..., at.features]) for part, at in self._each()
        )

    def precision(self, information, observed, jacobian):
        return sum(
            part.precision(
                information[:, at.locations],
                observed[:, at.features],
                jacobian[..., at.locations],
            )
            for part, at in self._each()
        )

    def centre(self, location):
        return self._by_location(
            part.centre(location[..., at.locations]) for part, at in self._each()
        )

    def mean(self, location):
        return _joined(
            part.mean(location[..., at.locations]) for part, at in self._each()
        )

    def to_means(self, entries):
        return _joined(
            part.to_means(entries[..., at.features]) for part, at in self._each()
        )

    def to_locations(self, entries):
        return entries[..., self.feature_of]

    def fill(self, mean):
        return self._by_feature(
            part.fill(mean[..., at.means]) for part, at in self._each()
        )

    def draw(self, location, uniform):
        return self._by_feature(
            part.draw(location[..., at.locations], uniform[..., at.features])
            for part, at in self._each()
        )

    def is_open(self, X):
        return self._by_feature(
            part.is_open(X[..., at.features]) for part, at in self._each()
        )

    def within(self, X, location, uniform=None):
        return self._by_feature(
            part.within(
                X[..., at.features],
                location[..., at.locations],
                None if uniform is None else uniform[..., at.features],
            )
            for part, at in self._each()
        )

    def values_of_each(self, n_features):
        values = [None] * n_features
        for part, at in self._each():
            features = self._features(at)
            part_values = part.values_of_each(len(features))
            if part_values is None:
                return None
            for j, feature_values in zip(features, part_values, strict=True):
                values[j] = feature_values
        return values

    def unseen(self, X):
        rows = np.full((max(self.n_categories), X.shape[1]), np.nan)
        for j, count in enumerate(self.n_categories):
            if count > 1:
                unseen_levels = np.setdiff1d(np.arange(count), X[:, j])
                rows[unseen_levels, j] = unseen_levels
        return rows[~np.isnan(rows).all(axis=1)]

    # Attributes and shape parameters

    def start_attributes(self, X, scale, weight=None):
        arrays = [
            part.start_attributes(X[:, at.features], scale[at.features], weight)
            for part, at in self._each()
        ]
        tensors = [{k: torch.from_numpy(v) for k, v in of.items()} for of in arrays]
        return {k: v.numpy() for k, v in self._join_attributes(tensors).items()}

    def shape_attributes(self, scale):
        return self._join_attributes(
            [part.shape_attributes(scale[at.features]) for part, at in self._each()]
        )

    def _join_attributes(self, of_parts):
        """Join attributes of the parts into tensors for all columns; NaN elsewhere."""
        joined = {}
        for name in dict.fromkeys(name for part in of_parts for name in part):
            found = [part.get(name) for part in of_parts]
            shapes = [tensor.shape[1:] for tensor in found if tensor is not None]
            first = next(tensor for tensor in found if tensor is not None)
            shape = len(self.kinds), *max(shapes)
            joined[name] = first.new_full(shape, torch.nan, dtype=torch.float64)
            for tensor, at in zip(found, self._places, strict=True):
                if tensor is not None:
                    where = at.features, *map(slice, tensor.shape[1:])
                    joined[name][where] = tensor.double()
        return joined

    def from_attributes(self, fitted, scale):
        parts = []
        for part, at in self._each():
            scale_of_part = scale[at.features]
            names = part.shape_attributes(scale_of_part)
            own = {name: fitted[name][at.features] for name in names}
            parts.append(part.from_attributes(own, scale_of_part))
        return self._with_parts(parts)

    def check_attributes(self, fitted, columns=(), names=()):
        for part, at in self._each():
            features = self._features(at)
            part.check_attributes(fitted, features, [self.names[j] for j in features])

    def at(self, shape_params):
        parts = [
            part.at(shape_params[..., at.shape_params]) for part, at in self._each()
        ]
        return self._with_parts(parts).to(shape_params.device)

    def _with_parts(self, parts):
        other = copy.copy(self)  # which shares the dict of modules
        other._modules = {**self._modules, "parts": torch.nn.ModuleList(parts)}
        return other

    @property
    def shape_params(self):
        return _joined_params(part.shape_params for part in self.parts)

    @property
    def shape_floor(self):
        return _joined_params(part.shape_floor for part in self.parts)

    @property
    def shape_param_features(self):
        return [
            int(j)
            for part, at in self._each()
            for j in np.repeat(self._features(at), part.n_shape_params)
        ]

    def shape_scores(self, X, location):
        return _joined(
            part.shape_scores(X[..., at.features], location[..., at.locations])
            for part, at in self._each()
        )

    def shape_sums(self, X, location, weight, z):
        if not self.n_shape_params:
            return location.new_zeros(0), location.new_zeros(0)
        gradients, informations = [], []
        for part, at in self._each():
            if part.n_shape_params:
                entries = X[..., at.features], location[..., at.locations]
                own = *entries, weight[..., at.features]
                gradient, information = part.shape_sums(*own, z)
                if self.has_blocks:
                    information = self._as_blocks(information, z.shape[-1])
                gradients.append(gradient)
                informations.append(information)
        return torch.cat(gradients), torch.cat(informations)

    def _as_blocks(self, information, n_coefs):
        """Return the information of a part as `shape_sums` does with blocks."""
        pad = torch.nn.functional.pad
        if information.ndim == 1:
            return pad(information[:, None], (0, self.n_shape_params - 1 + n_coefs))
        blocks, cross = information.tensor_split([information.shape[1] - n_coefs], 1)
        return torch.cat(
            [pad(blocks, (0, self.n_shape_params - blocks.shape[1])), cross], 1
        )


def _index(indices):
    """Return indices as a slice, which copies nothing, if they are neighbours."""
    first, stop = int(indices[0]), int(indices[0]) + len(indices)
    if np.array_equal(indices, np.arange(first, stop)):
        return slice(first, stop)
    return torch.from_numpy(indices)


def _joined(results):
    """Join what the parts return along the last axis."""
    results = list(results)
    if isinstance(results[0], np.ndarray):
        return np.concatenate(results, -1)
    shape = np.broadcast_shapes(*(part.shape[:-1] for part in results))
    return torch.cat([part.expand(*shape, -1) for part in results], -1)


def _joined_params(of_parts):
    """Join shape parameters of the parts that have any."""
    tensors = [tensor for tensor in of_parts if tensor.numel()]
    if not tensors:
        return torch.empty(0, dtype=torch.float64, device="cpu")
    return torch.cat(tensors, -1)
