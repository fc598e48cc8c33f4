"""Forms of the covariances of a mixture: what is stored, and estimated.

Training and densities have matrices (K, g, g), or variances (K, g) if the columns are
independent. `covariances_` has the shapes of `sklearn.mixture.GaussianMixture`.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch

from sklearn_mpt._factors.em import em_step
from sklearn_mpt._factors.rotation import count_free
from sklearn_mpt._factors.starts import factors_of_covariances
from sklearn_mpt._matrices import identity, inverse_of_lower
from sklearn_mpt._mixture.gaussians import DenseGaussians, DiagonalGaussians
from sklearn_mpt._numbers import TINY


class CovarianceForm(ABC):
    """A form of the covariances of K components."""

    gaussians: type  # distribution of the Gaussian columns, from means and covariances
    takes_intervals = False  # whether entries of Gaussian columns may be intervals
    has_prior = False  # whether rows of a prior are added to those of each component

    @abstractmethod
    def shape(self, n_components, n_features):
        """Return the shape of `covariances_`."""

    @abstractmethod
    def compress(self, covariances):
        """Return arrays (K, g, g) or (K, g) in the shape of `covariances_`."""

    @abstractmethod
    def expand(self, array, n_components, n_features):
        """Return an array in the shape of `covariances_` for every component."""

    @abstractmethod
    def with_variances(self, variances):
        """Return covariances with these variances, (K, g), and no correlations."""

    @abstractmethod
    def outer(self, vectors):
        """Return what vectors (K, g) contribute to covariances about another mean."""

    @abstractmethod
    def pool(self, scatter, fraction):
        """Return the covariances of maximum likelihood of this form.

        scatter : covariances of the rows in each component. fraction : of all rows, in
        each component, (K,).
        """

    @abstractmethod
    def add_to_variances(self, covariances, amount):
        """Add a number to the variances."""

    @abstractmethod
    def is_valid(self, covariances):
        """Return whether all covariances are positive definite."""

    @abstractmethod
    def inverses(self, covariances):
        """Return Cholesky factors of the inverses of arrays, and the inverses."""

    @abstractmethod
    def min_variances(self, covariances):
        """Return the least variance of each component in any direction, (K,)."""

    @abstractmethod
    def correlations(self, covariances):
        """Return arrays of covariances of columns whose variances are 1, or stay 0."""

    @abstractmethod
    def index(self, n_components, n_features):
        """Return which free parameter each entry of the covariances is.

        A tensor of the shape (K, g, g) or (K, g) of the covariances.
        """

    def n_parameters(self, n_components, n_features):
        """Return the number of free parameters."""
        index = self.index(n_components, n_features)
        return int(index.max()) + 1 if index.numel() else 0

    def n_rotations(self, n_features):
        """Return how many directions of `free` change nothing in a component."""
        return 0

    def free(self, components):
        """Return the free parameters of the covariances, as tensors."""
        covariances = components.covariances
        index = self._index_of(covariances).flatten()
        free = covariances.new_empty(self.n_parameters(*covariances.shape[:2]))
        free[index] = covariances.flatten()
        return (free,)

    def covariances_of(self, free, like):
        """Return the covariances that `free` stands for. like : Components."""
        return free[self._index_of(like.covariances)]

    def _index_of(self, covariances):
        return self.index(*covariances.shape[:2]).to(covariances.device)

    def factors(self, covariances, reg_covar):
        """Return loadings (K, g, q) and noise variances of given covariances.

        They are empty unless the covariances consist of them.
        """
        n_components, n_features = covariances.shape[:2]
        loadings = covariances.new_zeros(n_components, n_features, 0)
        return loadings, covariances.new_zeros(n_components, 0)

    def estimate(self, scatter, counts, loadings, noise, size, reg_covar):
        """Return the covariances after an M-step, their loadings and noise variances.

        scatter : covariances of the rows in each component. counts : rows in each
        component, (K,). loadings, noise : those before the step. size : of the step; 1
        is a full one. reg_covar : added to the variances in a full step.
        """
        covariances = self.pool(scatter, counts / counts.sum())
        return self.add_to_variances(covariances, size * reg_covar), loadings, noise


class Full(CovarianceForm):
    """A matrix for each component."""

    gaussians = DenseGaussians

    def shape(self, n_components, n_features):
        return n_components, n_features, n_features

    def compress(self, covariances):
        return covariances

    def expand(self, array, n_components, n_features):
        return array

    def with_variances(self, variances):
        return torch.diag_embed(variances)

    def outer(self, vectors):
        return vectors[:, :, None] * vectors[:, None]

    def pool(self, scatter, fraction):
        return 0.5 * (scatter + scatter.mT)

    def add_to_variances(self, covariances, amount):
        return covariances + amount * identity(covariances.shape[1], covariances)

    def is_valid(self, covariances):
        is_empty = covariances.numel() == 0
        return is_empty or not bool(torch.linalg.cholesky_ex(covariances)[1].any())

    def inverses(self, covariances):
        root = torch.linalg.cholesky(torch.from_numpy(covariances))
        root = inverse_of_lower(root).mT
        return root.numpy(), (root @ root.mT).numpy()

    def min_variances(self, covariances):
        return np.linalg.eigvalsh(covariances)[:, 0]

    def correlations(self, covariances):
        variances = np.diagonal(covariances, axis1=1, axis2=2)
        scale = np.sqrt(np.where(variances > TINY, variances, np.inf))
        return covariances / scale[:, :, None] / scale[:, None]

    def index(self, n_components, n_features):
        first = self._n_entries(n_features) * torch.arange(n_components, device="cpu")
        return first[:, None, None] + self._entries(n_features)

    def _n_entries(self, n_features):
        return n_features * (n_features + 1) // 2

    def _entries(self, n_features):
        """Return the numbers of the entries of a symmetric matrix, (g, g)."""
        entries = torch.zeros(n_features, n_features, dtype=torch.long, device="cpu")
        rows, columns = torch.tril_indices(n_features, n_features, device="cpu")
        entries[rows, columns] = torch.arange(len(rows), device="cpu")
        return torch.maximum(entries, entries.T)


class Tied(Full):
    """One matrix for all components."""

    def shape(self, n_components, n_features):
        return n_features, n_features

    def compress(self, covariances):
        return covariances[0]

    def expand(self, array, n_components, n_features):
        return np.tile(array, (n_components, 1, 1))

    def pool(self, scatter, fraction):
        mean = (fraction[:, None, None] * scatter).sum(0).expand_as(scatter)
        return super().pool(mean, fraction)

    def index(self, n_components, n_features):
        return self._entries(n_features).expand(n_components, -1, -1)


class LowRank(Full):
    """Factors and noise variances for each component.

    Parameters
    ----------
    n_factors : int
    n_steps : int
        Number of steps of factor analysis in each M-step.
    pooled_rows : float
        Number of rows with the pooled noise variances that are added to each component.
        So the noise of a feature that is constant in one component stays above zero.
    """

    has_prior = True

    def __init__(self, n_factors, n_steps=5, pooled_rows=1.0):
        self.n_factors = n_factors
        self.n_steps, self.pooled_rows = n_steps, pooled_rows

    def factors(self, covariances, reg_covar):
        n_factors = min(self.n_factors, covariances.shape[1])
        return factors_of_covariances(covariances, n_factors, reg_covar)

    def estimate(self, scatter, counts, loadings, noise, size, reg_covar):
        fraction = (counts / counts.sum())[:, None]
        of_component = counts[:, None] / (counts[:, None] + size * self.pooled_rows)
        for _ in range(self.n_steps):
            loadings, variance = em_step(scatter, loadings, noise)
            pooled = (fraction * variance).sum(0)
            noise = of_component * variance + (1 - of_component) * pooled
            noise = noise + size * reg_covar
        return self.covariances_of(loadings, noise, None), loadings, noise

    def n_rotations(self, n_features):
        n_numbers = n_features * (min(self.n_factors, n_features) + 1)
        return n_numbers - self.n_parameters(1, n_features)

    def free(self, components):
        return components.loadings, components.noise

    def covariances_of(self, loadings, noise, like):
        return loadings @ loadings.mT + torch.diag_embed(noise)

    def n_parameters(self, n_components, n_features):
        n_factors = min(self.n_factors, n_features)
        return n_components * count_free(n_features, n_factors, n_features)


class Diagonal(CovarianceForm):
    """A variance for each column of each component."""

    gaussians = DiagonalGaussians
    takes_intervals = True

    def shape(self, n_components, n_features):
        return n_components, n_features

    def compress(self, covariances):
        return covariances

    def expand(self, array, n_components, n_features):
        return array

    def with_variances(self, variances):
        return variances

    def outer(self, vectors):
        return vectors**2

    def pool(self, scatter, fraction):
        return scatter

    def add_to_variances(self, covariances, amount):
        return covariances + amount

    def is_valid(self, covariances):
        return bool((covariances > 0).all())

    def inverses(self, covariances):
        return 1 / np.sqrt(covariances), 1 / covariances

    def min_variances(self, covariances):
        return covariances.min(axis=1)

    def correlations(self, covariances):
        return np.where(covariances > TINY, 1.0, 0.0)

    def index(self, n_components, n_features):
        numbers = torch.arange(n_components * n_features, device="cpu")
        return numbers.view(n_components, -1)


class Spherical(Diagonal):
    """One variance for each component."""

    def shape(self, n_components, n_features):
        return (n_components,)

    def compress(self, covariances):
        return covariances.sum(axis=1) / max(covariances.shape[1], 1)

    def expand(self, array, n_components, n_features):
        return np.repeat(array[:, None], n_features, axis=1)

    def pool(self, scatter, fraction):
        return scatter.mean(1, keepdim=True).expand_as(scatter)

    def index(self, n_components, n_features):
        numbers = torch.arange(n_components, device="cpu")
        return numbers[:, None].expand(-1, n_features)


FORMS = {
    "full": Full,
    "tied": Tied,
    "diag": Diagonal,
    "spherical": Spherical,
    "low_rank": LowRank,
}


def form_of(covariance_type, n_factors):
    """Return the form of a `covariance_type`; `n_factors` matters if it is of factors.

    covariance_type : a key of `FORMS`.
    """
    form = FORMS[covariance_type]
    return form(n_factors) if form is LowRank else form()
