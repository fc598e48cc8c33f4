"""Features of several kinds beside each other: the columns of a table."""

import copy
from itertools import pairwise

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import Likelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._likelihoods.poisson import Poisson

LIKELIHOODS = {
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "poisson": Poisson,
}
"""Kinds of features by their names."""


def likelihood_of(kind, n_categories, noise_variance):
    """Return the likelihood of all columns of a kind, by its name or an instance.

    noise_variance : Tensor (g,), of the Gaussian ones.
    """
    if isinstance(kind, Likelihood):
        return copy.deepcopy(kind)
    return LIKELIHOODS[kind].of_columns(n_categories, noise_variance)


class Columns(Likelihood):
    """Features of several kinds; Gaussian ones have noise of their own.

    Those of one kind, and of one number of categories, form a part: a likelihood of its
    own. The locations of features follow each other as the features do.

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
        self.noisy = [j for j, kind in enumerate(self.kinds) if kind == "gaussian"]
        self.is_separable = max(self.n_categories) == 1
        if noise_variance is None:
            ones = {"dtype": torch.float64, "device": "cpu"}
            noise_variance = torch.ones(len(self.noisy), **ones)
        groups = sorted(set(zip(self.kinds, self.n_categories, strict=True)))
        self.parts = torch.nn.ModuleList(
            likelihood_of(kind, count, noise_variance) for kind, count in groups
        )
        self._place(groups)

    @property
    def is_sharp(self):
        return any(part.is_sharp for part in self.parts)

    def _place(self, groups):
        """Find the features and locations of each part, and the way back."""
        of_feature = list(zip(self.kinds, self.n_categories, strict=True))
        ends = np.concatenate([[0], np.cumsum(self.n_categories)])
        spans = [np.arange(*span) for span in pairwise(ends)]
        columns = [np.flatnonzero([f == g for f in of_feature]) for g in groups]
        locations = [np.concatenate([spans[j] for j in part]) for part in columns]
        for i, (part, places) in enumerate(zip(columns, locations, strict=True)):
            self.register_buffer(f"columns_{i}", torch.from_numpy(part))
            self.register_buffer(f"locations_{i}", torch.from_numpy(places))
        for name, arrays in (("columns", columns), ("locations", locations)):
            back = torch.from_numpy(np.concatenate(arrays).argsort())
            self.register_buffer(f"{name}_back", back)
        features = np.repeat(np.arange(len(self.kinds)), self.n_categories)
        self.register_buffer("feature_of", torch.from_numpy(features))

    def _each(self):
        """Each part, with its features and its locations."""
        for i, part in enumerate(self.parts):
            yield part, getattr(self, f"columns_{i}"), getattr(self, f"locations_{i}")

    def _by_feature(self, parts):
        return torch.cat(list(parts), -1)[..., self.columns_back]

    def _by_location(self, parts):
        return torch.cat(list(parts), -1)[..., self.locations_back]

    def values_of_each(self, n_features):
        values = [None] * n_features
        for part, columns, _ in self._each():
            of_part = part.values_of_each(len(columns))
            if of_part is None:
                return None
            for j, of_feature in zip(columns.tolist(), of_part, strict=True):
                values[j] = of_feature
        return values

    def check_rows(self, X):
        for part, columns, _ in self._each():
            j = columns.numpy()
            part.check_columns(X[:, j], [self.names[i] for i in j.tolist()])

    def check_columns(self, X, names):
        self.check_rows(X)

    def units(self, X, weight=None):
        """Return a shift and a scale of each column.

        A constant column has no scale of its own. It takes the geometric mean of those
        of the other Gaussian columns, or 1.
        """
        shift, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        for part, columns, _ in self._each():
            for j in columns.tolist():
                shift[j : j + 1], scale[j] = part.units(X[:, [j]], weight)
        constant = self.constant(X)
        others = [j for j in self.noisy if not constant[j]]
        if others:
            scale[constant] = np.exp(np.log(scale[others]).mean())
        return shift, scale

    def constant(self, X):
        found = np.zeros(X.shape[1], dtype=bool)
        for part, columns, _ in self._each():
            found[columns.numpy()] = part.constant(X[:, columns.numpy()])
        return found

    def start_location(self, X, weight=None):
        start = np.empty(len(self.feature_of))
        for part, columns, locations in self._each():
            some = X[:, columns.numpy()]
            start[locations.numpy()] = part.start_location(some, weight)
        return start

    def start_attributes(self, scale):
        return self._noise_attribute(np.ones(len(self.noisy)), scale)

    def _noise_attribute(self, variance, scale):
        if not self.noisy:
            return {}
        everywhere = np.full(len(self.kinds), np.nan)
        everywhere[self.noisy] = variance * scale[self.noisy] ** 2
        return {"noise_variance_": everywhere}

    def from_attributes(self, fitted, scale):
        if not self.noisy:
            return self
        variance = (fitted["noise_variance_"] / scale**2)[self.noisy]
        return self._with(torch.from_numpy(variance))

    def attributes(self, scale):
        if not self.noisy:
            return {}
        return self._noise_attribute(_array(self._gaussian.noise_variance), scale)

    def at(self, log_noise):
        if not self.noisy:
            return self
        return self._with(log_noise.exp()).requires_grad_(False)

    def _with(self, variance):
        other = type(self)(self.kinds, self.n_categories, self.names, variance)
        return other.to(variance.device)

    @property
    def _gaussian(self):
        return next(part for part in self.parts if isinstance(part, Gaussian))

    @property
    def log_variance(self):
        if not self.noisy:
            return super().log_variance
        return self._gaussian.noise_variance.detach().log()

    def entry_log_prob(self, X, location):
        return self._by_feature(
            part.entry_log_prob(X[..., columns], location[..., places])
            for part, columns, places in self._each()
        )

    def pair_log_prob(self, X, observed, location):
        return sum(
            part.pair_log_prob(X[:, columns], observed[:, columns], location[:, places])
            for part, columns, places in self._each()
        )

    def derivatives(self, X, location):
        parts = [
            part.derivatives(X[..., columns], location[..., places])
            for part, columns, places in self._each()
        ]
        slopes, informations = zip(*parts, strict=True)
        return self._by_location(slopes), self._by_location(informations)

    def spread(self, entries):
        return entries[..., self.feature_of]

    def inputs(self, X):
        return self._by_location(
            part.inputs(X[..., columns]) for part, columns, _ in self._each()
        )

    def precision(self, information, observed, jacobian):
        return sum(
            part.precision(
                information[..., places], observed[..., columns], jacobian[..., places]
            )
            for part, columns, places in self._each()
        )

    def curving(self, location):
        return self._by_location(
            part.curving(location[..., places]) for part, _, places in self._each()
        )

    def noise_derivatives(self, X, location):
        for part, columns, places in self._each():
            if isinstance(part, Gaussian):
                return part.noise_derivatives(X[..., columns], location[..., places])
        return super().noise_derivatives(X, location)

    def centre(self, location):
        return self._by_location(
            part.centre(location[..., places]) for part, _, places in self._each()
        )

    def mean(self, location):
        return self._by_location(
            part.mean(location[..., places]) for part, _, places in self._each()
        )

    def fill(self, mean):
        return self._by_feature(
            part.fill(mean[..., places]) for part, _, places in self._each()
        )

    def draw(self, location, uniform):
        return self._by_feature(
            part.draw(location[..., places], uniform[..., columns])
            for part, columns, places in self._each()
        )


def _array(tensor):
    return tensor.detach().double().cpu().numpy()
