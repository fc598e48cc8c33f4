r"""The density of a mixture, and its conditionals, in closed form.

Given the observed entries R of a row, component k has the responsibility

.. math:: r_k \propto \pi_k \, p_k(x_R), \qquad
    p(x_j \mid x_R) = \sum_k r_k \, p_k(x_j \mid x_R),

where :math:`p_k` is the Gaussian density of the Gaussian columns times one factor for
each other column, since other columns are independent in a component.
"""

from itertools import pairwise
from typing import NamedTuple

import torch

from sklearn_mpt._base.density import Density
from sklearn_mpt._likelihoods import Likelihood
from sklearn_mpt._likelihoods.interval import is_open
from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._mixture.covariances import Full
from sklearn_mpt._mixture.gaussians import (
    DenseConditioned,
    DiagonalConditioned,
    Patterns,
)
from sklearn_mpt._numbers import CHUNK_BYTES, FLOAT_BYTES


class Components(NamedTuple):
    """The parameters of a mixture of K components, as tensors."""

    weights: torch.Tensor  # shape: (K,); they add up to 1
    means: torch.Tensor  # shape: (K, g)
    covariances: torch.Tensor  # (K, g, g), or (K, g) if columns are independent
    locations: torch.Tensor  # shape: (K, l)
    # With covariance_type="low_rank", covariances are loadings @ loadings.T + noise.
    # With other types, the next two are empty.
    loadings: torch.Tensor  # shape: (K, g, q)
    noise: torch.Tensor  # shape: (K, g)

    def is_finite(self):
        return all(bool(part.isfinite().all()) for part in self)

    def parameters(self):
        """Return weights, means, covariances and locations, flat."""
        return torch.cat([part.flatten() for part in self[:4]])


class MixtureLayout(NamedTuple):
    """Which columns are Gaussian, and the likelihood of the others, if any."""

    form: Full  # of the covariances of the Gaussian columns
    gaussian: torch.Tensor  # indices of the Gaussian columns, (g,)
    others: torch.Tensor  # indices of the other columns, (d - g,)
    likelihood: Likelihood

    @property
    def n_features(self):
        return len(self.gaussian) + len(self.others)

    @property
    def values_of_each(self):
        """Values that each column takes; None if some take any number."""
        if len(self.gaussian):
            return None
        return self.likelihood.values_of_each(self.n_features)

    def expectations(self, locations):
        """Return probabilities and rates that locations (K, l) stand for, (K, l)."""
        numbers = torch.arange(len(self.others), device=locations.device)
        order = self.likelihood.to_means(numbers).argsort(stable=True)
        return self.likelihood.mean(locations)[:, order]

    def joined(self, gaussian, others):
        """Join Gaussian and other columns in the order of the table; (..., d)."""
        order = torch.cat([self.gaussian, self.others]).argsort()
        return torch.cat([gaussian, others], -1)[..., order]

    def means(self, components):
        """Return expected values of all columns, (K, d); NaN if some have several."""
        others = self.expectations(components.locations)
        if self.likelihood.n_locations > 1:
            others = others.new_full((len(others), len(self.others)), torch.nan)
        return self.joined(components.means, others)


class GivenObserved(NamedTuple):
    """Distributions of all components, given the observed entries of rows."""

    joint: torch.Tensor  # log p(component, observed entries), (n, K)
    gaussian: DenseConditioned | DiagonalConditioned
    entries: torch.Tensor  # log p(entry | component) of others, (n, K, d - g)

    @property
    def log_responsibility(self):
        return self.joint.log_softmax(1)


class MixtureDensity(Density):
    """Density of a fitted mixture."""

    def __init__(self, components, layout):
        self.components, self.layout = components, layout
        parameters = components.means, components.covariances
        self._gaussians = layout.form.gaussians(*parameters)

    @property
    def row_bytes(self):
        return self._bytes(1, 1)

    def _bytes(self, n_rows, n_patterns):
        """Return the memory that rows with so many different gaps take."""
        n_numbers = n_rows * (8 * self.layout.n_features + 8)
        n_numbers = n_numbers + n_patterns * self._gaussians.pattern_numbers
        return FLOAT_BYTES * len(self.components.weights) * n_numbers

    def blocks(self, observed):
        """Return slices of rows that stay within the memory, with their patterns.

        Neighbours with the same observed columns share matrices.
        """
        columns = observed[:, self.layout.gaussian]
        is_new = columns.new_ones(len(columns))
        is_new[1:] = (columns[1:] != columns[:-1]).any(1)
        n_rows = torch.ones_like(is_new, dtype=torch.long).cumsum(0)
        block = self._bytes(n_rows, is_new.cumsum(0)) // CHUNK_BYTES
        ends = block.unique(return_counts=True)[1].cumsum(0).tolist()
        slices = (slice(*pair) for pair in pairwise([0, *ends]))
        return [(part, Patterns(columns[part])) for part in slices]

    def given(self, X, observed, patterns=None):
        """Condition every component on the observed entries of rows."""
        components, layout = self.components, self.layout
        entries, seen = X[:, layout.gaussian], observed[:, layout.gaussian]
        gaussian = self._gaussians.condition(entries, seen, patterns)
        entries = torch.nan_to_num(X[:, None, layout.others])
        entries = layout.likelihood.entry_log_prob(entries, components.locations)
        observed_others = observed[:, None, layout.others]
        log_prob = gaussian.log_prob + torch.where(observed_others, entries, 0.0).sum(2)
        return GivenObserved(components.weights.log() + log_prob, gaussian, entries)

    def lml(self, X):
        value = self.given(X, ~X.isnan()).joint.logsumexp(1)
        value = torch.where(X.isnan().all(1), 0.0, value)
        return value, torch.zeros_like(value)

    def log_responsibility(self, X):
        """Return log p(component | present entries), (n, K)."""
        return self.given(X, ~X.isnan()).log_responsibility

    def conditional_log_prob(self, X, mask):
        present = ~X.isnan()
        given = self.given(X, present & ~mask)
        numbers = torch.nan_to_num(X[:, self.layout.gaussian])
        gaussian = given.gaussian.entry_log_prob(numbers)
        entries = self.layout.joined(gaussian, given.entries)
        log_prob = (given.log_responsibility[..., None] + entries).logsumexp(1)
        return torch.where(present & mask, log_prob, 0.0)

    def is_open(self, X):
        return is_open(X)

    def expect(self, X):
        given, likelihood = self.given(X, ~X.isnan()), self.layout.likelihood
        responsibility = given.log_responsibility.exp()
        expected = self.components.means + given.gaussian.deviation
        numbers = (responsibility[..., None] * expected).sum(1)
        mean = responsibility @ likelihood.mean(self.components.locations)
        return self.layout.joined(numbers, likelihood.fill(mean))

    def draw(self, X, rng):
        """Draw a component for each row, then all its missing entries jointly."""
        layout, given = self.layout, self.given(X, ~X.isnan())
        level = X.new_tensor(rng.random((len(X), 1)))
        k = drawn_codes(given.log_responsibility.exp(), level)
        noise = X.new_tensor(rng.normal(size=(len(X), len(layout.gaussian))))
        drawn = self._gaussians.draw(k, noise)
        numbers = given.gaussian.moved(drawn, X[:, layout.gaussian], k)
        uniform = X.new_tensor(rng.random((len(X), len(layout.others))))
        others = layout.likelihood.draw(self.components.locations[k], uniform)
        return layout.joined(numbers, others)
