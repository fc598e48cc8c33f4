"""The likelihood of a table with columns of several kinds."""

import copy
from itertools import pairwise

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import Likelihood, ShapeSteps
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.gamma import Gamma
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._likelihoods.interval import Interval
from sklearn_mpt._likelihoods.levels import Levels
from sklearn_mpt._likelihoods.lognormal import Lognormal
from sklearn_mpt._likelihoods.negative_binomial import NegativeBinomial
from sklearn_mpt._likelihoods.ordinal import Ordinal
from sklearn_mpt._likelihoods.partial_credit import PartialCredit
from sklearn_mpt._likelihoods.poisson import Poisson
from sklearn_mpt._likelihoods.zero_lognormal import ZeroLognormal

LIKELIHOODS = {
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "ordinal": Ordinal,
    "partial_credit": PartialCredit,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "lognormal": Lognormal,
    "gamma": Gamma,
    "zero_lognormal": ZeroLognormal,
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


class Columns(Likelihood):
    """Features of several kinds, with the shape parameters of their kinds.

    Features of one kind and one number of categories form a part, with its own
    likelihood. Locations are in the order of the features.

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
        groups = sorted(set(feature_kinds))
        self.parts = torch.nn.ModuleList(
            likelihood_of(kind, count, feature_kinds.count((kind, count)))
            for kind, count in groups
        )
        part_by_kind = dict(zip(groups, self.parts, strict=True))
        self.n_locations_each = [
            part_by_kind[kind].n_locations for kind in feature_kinds
        ]
        self.n_locations = max(self.n_locations_each)
        if noise_variance is not None and "gaussian" in self.kinds:
            place = groups.index(("gaussian", 1))
            self.parts[place] = Gaussian(noise_variance)
        self._store_places(groups)

    @property
    def has_fixed_information(self):
        return all(part.has_fixed_information for part in self.parts)

    @property
    def n_shape_params(self):
        return max(part.n_shape_params for part in self.parts)

    @property
    def has_blocks(self):
        return any(part.has_blocks for part in self.parts)

    def _store_places(self, groups):
        """Store the features and locations of each part, and the inverse order."""
        feature_kinds = list(zip(self.kinds, self.n_categories, strict=True))
        ends = np.concatenate([[0], np.cumsum(self.n_locations_each)])
        spans = [np.arange(*span) for span in pairwise(ends)]
        columns = [
            np.flatnonzero([kind == group for kind in feature_kinds])
            for group in groups
        ]
        locations = [np.concatenate([spans[j] for j in part]) for part in columns]
        for i, (part, places) in enumerate(zip(columns, locations, strict=True)):
            self.register_buffer(f"columns_{i}", torch.from_numpy(part))
            self.register_buffer(f"locations_{i}", torch.from_numpy(places))
        self._column_runs, self._location_runs = _runs(columns), _runs(locations)
        self._slices = [
            tuple(map(_slice_of, pair)) for pair in zip(columns, locations, strict=True)
        ]
        features = np.repeat(np.arange(len(self.kinds)), self.n_locations_each)
        self.register_buffer("feature_of", torch.from_numpy(features))

    def _iter_parts(self):
        """Yield each part with the indices of its features and of its locations."""
        for i, part in enumerate(self.parts):
            yield part, getattr(self, f"columns_{i}"), getattr(self, f"locations_{i}")

    def _iter_part_slices(self):
        """Yield the same, but slices of indices that follow each other: no copies."""
        for (part, *indices), slices in zip(
            self._iter_parts(), self._slices, strict=True
        ):
            yield part, *(s or index for s, index in zip(slices, indices, strict=True))

    def _by_feature(self, parts):
        return _joined(parts, self._column_runs)

    def _by_location(self, parts):
        return _joined(parts, self._location_runs)

    def values_of_each(self, n_features):
        values = [None] * n_features
        for part, columns, _ in self._iter_parts():
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

    def check_rows(self, X):
        for part, columns, _ in self._iter_parts():
            part.check_rows(X[:, columns.numpy()])

    def check_columns(self, X, names):
        for part, columns, _ in self._iter_parts():
            j = columns.numpy()
            part.check_columns(X[:, j], [names[i] for i in j.tolist()])

    def units(self, X, weight=None):
        """Return a shift and a scale of each column.

        The scale of a constant column is the geometric mean of those of the other
        Gaussian columns, or 1.
        """
        shift, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        for part, columns, _ in self._iter_parts():
            j = columns.numpy()
            shift[j], scale[j] = part.units_of_each(X[:, j], weight)
        constant = self.constant(X)
        numbers = [j for j, kind in enumerate(self.kinds) if kind == "gaussian"]
        others = [j for j in numbers if not constant[j]]
        if others:
            constants = [j for j in numbers if constant[j]]
            scale[constants] = np.exp(np.log(scale[others]).mean())
        return shift, scale

    def standardised(self, X, shift, scale):
        return self._by_feature(
            part.standardised(X[..., columns], shift[columns], scale[columns])
            for part, columns, _ in self._iter_part_slices()
        )

    def constant(self, X):
        is_constant = np.zeros(X.shape[1], dtype=bool)
        for part, columns, _ in self._iter_parts():
            is_constant[columns.numpy()] = part.constant(X[:, columns.numpy()])
        return is_constant

    def start_location(self, X, weight=None):
        start = np.empty(len(self.feature_of))
        for part, columns, locations in self._iter_parts():
            X_part = X[:, columns.numpy()]
            start[locations.numpy()] = part.start_location(X_part, weight)
        return start

    def start_attributes(self, X, scale, weight=None):
        attributes = []
        for part, columns, _ in self._iter_parts():
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
            for part, columns, _ in self._iter_parts()
        )

    def _join_attributes(self, parts):
        """Join attributes of the parts into tensors for all columns; NaN elsewhere.

        In double precision, as nets have some in single and some in double precision.
        """
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
            for part, columns, _ in self._iter_parts()
        )

    def check_attributes(self, fitted, columns=(), names=()):
        for part, columns, _ in self._iter_parts():
            names = [self.names[j] for j in columns.tolist()]
            part.check_attributes(fitted, columns.numpy(), names)

    def at(self, shape_params):
        sizes = [
            part.n_shape_params * len(columns)
            for part, columns, _ in self._iter_parts()
        ]
        given = zip(self.parts, shape_params.split(sizes, -1), strict=True)
        parts = (part.at(part_params) for part, part_params in given)
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
    def shape_steps(self):
        steps = zip(*(part.shape_steps for part in self.parts), strict=True)
        return ShapeSteps(*map(self._join_shape_params, steps))

    def _join_shape_params(self, parts):
        """Join tensors of the shape parameters of all parts.

        Empty tensors are left out, so that the result has the dtype of the others.
        """
        tensors = [tensor for tensor in parts if tensor.numel()]
        return (
            torch.cat(tensors, -1) if tensors else torch.empty(0, dtype=torch.float64)
        )

    @property
    def shape_param_features(self):
        return [
            j
            for part, columns, _ in self._iter_parts()
            for j in columns.repeat_interleave(part.n_shape_params).tolist()
        ]

    def shape_scores(self, X, location):
        return torch.cat(
            [
                part.shape_scores(X[..., columns], location[..., places])
                for part, columns, places in self._iter_part_slices()
            ],
            -1,
        )

    def shape_sums(self, X, location, weight, information_weight, z):
        slopes, informations = [], []
        for part, columns, places in self._iter_part_slices():
            if part.n_shape_params:
                entries = X[..., columns], location[..., places]
                weights = weight[..., columns], information_weight[..., columns]
                sums = part.shape_sums(*entries, *weights, z)
                slopes.append(sums[0])
                informations.append(sums[1])
        if self.has_blocks:
            width = self.n_shape_params, z.shape[-1]
            informations = [_as_blocks(part, *width) for part in informations]
        return torch.cat(slopes), torch.cat(informations)

    def entry_log_prob(self, X, location):
        return self._by_feature(
            part.entry_log_prob(X[..., columns], location[..., places])
            for part, columns, places in self._iter_part_slices()
        )

    def pair_log_prob(self, X, observed, location):
        total = 0.0
        if any(part.has_factors for part in self.parts):
            # one product is faster than several of narrow matrices
            row_factors, total = self.row_factors(X, observed)
            total = row_factors @ self.location_factors(location).T + total
        for part, columns, places in self._iter_part_slices():
            if not part.has_factors:
                args = X[:, columns], observed[:, columns], location[:, places]
                total = total + part.pair_log_prob(*args)
        return total

    @property
    def has_factors(self):
        return all(part.has_factors for part in self.parts)

    def row_factors(self, X, observed):
        """Return the factors of the parts that have any."""
        factors, constants = zip(
            *(
                part.row_factors(X[:, columns], observed[:, columns])
                for part, columns, _ in self._iter_part_slices()
                if part.has_factors
            ),
            strict=True,
        )
        return torch.cat(factors, 1), sum(constants)

    def location_factors(self, location):
        """Return the factors of the parts that have any."""
        return torch.cat(
            [
                part.location_factors(location[:, places])
                for part, _, places in self._iter_part_slices()
                if part.has_factors
            ],
            1,
        )

    def expected_prob(self, X, r, location):
        return self._by_feature(
            part.expected_prob(X[:, columns], r, location[:, places])
            for part, columns, places in self._iter_part_slices()
        )

    def derivatives(self, X, location):
        parts = [
            part.derivatives(X[..., columns], location[..., places])
            for part, columns, places in self._iter_part_slices()
        ]
        slopes, informations = zip(*parts, strict=True)
        shape = np.broadcast_shapes(*(part.shape[:-1] for part in informations))
        informations = (part.expand(*shape, -1) for part in informations)
        return self._by_location(slopes), self._by_location(informations)

    def to_locations(self, entries):
        return entries[..., self.feature_of.to(entries.device)]

    def inputs(self, X):
        return self._by_location(
            part.inputs(X[..., columns])
            for part, columns, _ in self._iter_part_slices()
        )

    def net_inputs(self, X):
        """Return the inputs, part by part."""
        parts = self._iter_parts()
        return torch.cat([part.net_inputs(X[..., c]) for part, c, _ in parts], -1)

    def precision(self, information, observed, jacobian):
        return sum(
            part.precision(
                information[..., places], observed[..., columns], jacobian[..., places]
            )
            for part, columns, places in self._iter_part_slices()
        )

    def centre(self, location):
        return self._by_location(
            part.centre(location[..., places])
            for part, _, places in self._iter_part_slices()
        )

    def mean(self, location):
        """Return the expectations that each part needs, part by part."""
        means = (
            part.mean(location[..., places])
            for part, _, places in self._iter_part_slices()
        )
        return torch.cat(list(means), -1)

    def to_means(self, entries):
        parts = self._iter_parts()
        return torch.cat([part.to_means(entries[..., c]) for part, c, _ in parts], -1)

    def fill(self, mean):
        sizes = [part.n_means * len(columns) for part, columns, _ in self._iter_parts()]
        part_means = mean.split(sizes, -1)
        pairs = zip(self.parts, part_means, strict=True)
        return self._by_feature(part.fill(part_mean) for part, part_mean in pairs)

    def draw(self, location, uniform):
        return self._by_feature(
            part.draw(location[..., places], uniform[..., columns])
            for part, columns, places in self._iter_part_slices()
        )

    def is_open(self, X):
        return self._by_feature(
            part.is_open(X[..., columns])
            for part, columns, _ in self._iter_part_slices()
        )

    def mean_within(self, X, location):
        return self._by_feature(
            part.mean_within(X[..., columns], location[..., places])
            for part, columns, places in self._iter_part_slices()
        )

    def draw_within(self, X, location, uniform):
        return self._by_feature(
            part.draw_within(
                X[..., columns], location[..., places], uniform[..., columns]
            )
            for part, columns, places in self._iter_part_slices()
        )


def _runs(parts):
    """Return slices of the parts that follow each other in the order of the table.

    parts : increasing indices of each part, all of which are 0..d-1. Each run is the
    number of a part and a slice of it.
    """
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    part_of = part_of[np.concatenate(parts).argsort()]
    ends = np.flatnonzero(np.diff(part_of, append=-1)) + 1
    runs, used = [], [0] * len(parts)
    for part, length in zip(part_of[ends - 1], np.diff(ends, prepend=0), strict=True):
        runs.append((part, slice(used[part], used[part] + length)))
        used[part] += length
    return runs


def _joined(parts, runs):
    """Join tensors of the parts along the last axis, in the order of the table."""
    parts = list(parts)
    return torch.cat([parts[part][..., where] for part, where in runs], -1)


def _slice_of(indices):
    """Return increasing indices as a slice, None if there are gaps between them."""
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else None


def _widened(tensor, width):
    """Append columns of NaN up to a width."""
    more = width - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (0, more), value=torch.nan)


def _as_blocks(information, n_shape_params, n_coefs):
    """Return the information of a part in the columns of `shape_sums` with blocks.

    information : (g,), or (g, q + k + 1) with q at most `n_shape_params`.
    """
    if information.ndim == 1:
        return torch.nn.functional.pad(
            information[:, None], (0, n_shape_params - 1 + n_coefs)
        )
    blocks, cross = information.tensor_split([information.shape[1] - n_coefs], 1)
    more = n_shape_params - blocks.shape[1]
    return torch.cat([torch.nn.functional.pad(blocks, (0, more)), cross], 1)
