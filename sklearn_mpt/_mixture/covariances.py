"""Forms of the covariances of a mixture: what is stored, and estimated.

Training and densities have matrices (K, g, g), or variances (K, g) if the columns are
independent. `covariances_` has the shapes of `sklearn.mixture.GaussianMixture`.
"""

import numpy as np
import torch

from sklearn_mpt._gaussian.likelihood import em_step
from sklearn_mpt._gaussian.moments import factors_of_covariances
from sklearn_mpt._gaussian.rotation import count_free
from sklearn_mpt._matrices import inverse_of_lower
from sklearn_mpt._mixture.gaussians import DenseGaussians, DiagonalGaussians
from sklearn_mpt._numbers import TINY


class Full:
    """A matrix for each component."""

    gaussians: type = DenseGaussians  # from means and covariances
    takes_intervals = False  # whether entries of Gaussian columns may be intervals
    has_prior = False  # whether rows of a prior are added to those of each component

    def __init__(self, n_factors=0):
        self.n_factors = n_factors  # of each component, if it has any

    def shape(self, n_components, n_features):
        """Return the shape of `covariances_`."""
        return n_components, n_features, n_features

    def compress(self, covariances):
        """Return covariances in the shape of `covariances_`."""
        return covariances

    def expand(self, array, n_components, n_features):
        """Return a tensor in the shape of `covariances_` for every component."""
        return array

    def with_variances(self, variances):
        """Return covariances with these variances, (K, g), and no correlations."""
        return torch.diag_embed(variances)

    def outer(self, vectors):
        """Return what vectors (K, g) contribute to covariances about another mean."""
        return vectors[:, :, None] * vectors[:, None]

    def pool(self, scatter, fraction):
        """Return the covariances of maximum likelihood of this form."""
        return 0.5 * (scatter + scatter.mT)

    def is_valid(self, covariances):
        """Return whether all covariances are positive definite."""
        return not bool(torch.linalg.cholesky_ex(covariances)[1].any())

    def inverses(self, covariances):
        """Return Cholesky factors of the inverses of covariances, and the inverses."""
        root = inverse_of_lower(torch.linalg.cholesky(covariances)).mT
        return root, root @ root.mT

    def least_variances(self, covariances):
        """Return the least variance of each component in any direction, (K,)."""
        variances = covariances.diagonal(dim1=1, dim2=2)
        scale = torch.where(variances > TINY, variances, torch.inf).sqrt()
        relative = covariances / scale[:, :, None] / scale[:, None]
        return (torch.linalg.eigvalsh(m)[:, 0].numpy() for m in (covariances, relative))

    def free(self, components):
        """Return the free parameters of the covariances, as tensors."""
        covariances = self.compress(components.covariances)
        g = covariances.shape[-1]
        return (covariances[(..., *torch.tril_indices(g, g))],)

    def covariances_of(self, free, like):
        """Return the covariances that `free` stands for. like : Components."""
        g = like.means.shape[1]
        lower = free.new_zeros(*free.shape[:-1], g, g)
        lower[(..., *torch.tril_indices(g, g))] = free
        return self.expand(lower + lower.tril(-1).mT, *like.means.shape)

    def n_rotations(self, n_features):
        """Return how many directions of `free` change nothing in a component."""
        return 0

    def factors(self, covariances, reg_covar):
        """Return loadings (K, g, q) and noise variances of given covariances."""
        n_components, n_features = covariances.shape[:2]
        loadings = covariances.new_zeros(n_components, n_features, 0)
        return loadings, covariances.new_zeros(n_components, 0)

    def estimate(self, scatter, counts, loadings, noise, size, reg_covar):
        """Return covariances after an M-step, their loadings and noise variances."""
        added = scatter.new_full(scatter.shape[:2], size * reg_covar)
        covariances = self.pool(scatter, counts / counts.sum())
        return covariances + self.with_variances(added), loadings, noise


class Tied(Full):
    """One matrix for all components."""

    def shape(self, n_components, n_features):
        return n_features, n_features

    def compress(self, covariances):
        return covariances[0]

    def expand(self, array, n_components, n_features):
        return array.expand(n_components, -1, -1)

    def pool(self, scatter, fraction):
        mean = (fraction[:, None, None] * scatter).sum(0).expand_as(scatter)
        return super().pool(mean, fraction)


class LowRank(Full):
    """Factors and noise variances for each component."""

    has_prior = True
    n_steps = 5  # of factor analysis in each M-step
    # Rows with the pooled noise variances that are added to each component. So the
    # noise of a feature that is constant in one component stays above zero.
    pooled_rows = 1.0

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

    def free(self, components):
        return components.loadings, components.noise

    def covariances_of(self, loadings, noise, like):
        return loadings @ loadings.mT + torch.diag_embed(noise)

    def n_rotations(self, n_features):
        n_factors = min(self.n_factors, n_features)
        n_numbers = n_features * (n_factors + 1)
        return n_numbers - count_free(n_features, n_factors, n_features)


class Diagonal(Full):
    """A variance for each column of each component."""

    gaussians = DiagonalGaussians
    takes_intervals = True

    def shape(self, n_components, n_features):
        return n_components, n_features

    def with_variances(self, variances):
        return variances

    def outer(self, vectors):
        return vectors**2

    def pool(self, scatter, fraction):
        return scatter

    def is_valid(self, covariances):
        return bool((covariances > 0).all())

    def inverses(self, covariances):
        return covariances.rsqrt(), 1 / covariances

    def least_variances(self, covariances):
        least = covariances.amin(1).numpy()
        return least, np.where(least > TINY, 1.0, 0.0)

    def free(self, components):
        return (self.compress(components.covariances),)

    def covariances_of(self, free, like):
        return self.expand(free, *like.means.shape)


class Spherical(Diagonal):
    """One variance for each component."""

    def shape(self, n_components, n_features):
        return (n_components,)

    def compress(self, covariances):
        return covariances.sum(1) / max(covariances.shape[1], 1)

    def expand(self, array, n_components, n_features):
        return array[:, None].expand(-1, n_features)

    def pool(self, scatter, fraction):
        return scatter.mean(1, keepdim=True).expand_as(scatter)


FORMS = {
    "full": Full,
    "tied": Tied,
    "diag": Diagonal,
    "spherical": Spherical,
    "low_rank": LowRank,
}
