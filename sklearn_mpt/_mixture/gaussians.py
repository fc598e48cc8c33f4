r"""Gaussians of the components of a mixture, given some entries of rows.

With the precision P of all columns, observed ones R and others M,

.. math:: \operatorname{Cov}[x_M \mid x_R] = P_{MM}^{-1}, \quad
    E[x_M \mid x_R] = \mu_M - P_{MM}^{-1} P_{MR} (x_R - \mu_R), \quad
    \log |\Sigma_{RR}| = \log |\Sigma| + \log |P_{MM}|,

and the distance of the row filled in so is that of its observed entries. If the columns
are independent, all of this is element by element. Matrices of a pattern of observed
columns are computed once for all its rows.

Tensors have the component first: matrices (K, g, g), rows (K, n, g).
"""

from functools import cached_property

import numpy as np
import torch

from sklearn_mpt._likelihoods.gaussian import LOG_2PI, normal_log_prob
from sklearn_mpt._likelihoods.interval import (
    drawn_within,
    has_codes,
    log_prob_of,
    moments_of,
)
from sklearn_mpt._matrices import identity, inverse_of_lower, log_determinant
from sklearn_mpt._numbers import MAX_EXACT_INTEGER, TINY


def pattern_order(observed):
    """Return an order of rows in which equal rows are neighbours; (n,).

    Rows with few unobserved columns come first. Two patterns with the same key, which
    is most improbable, may be mixed.
    """
    # sums of keys differ between patterns, and are exact
    n_columns = max(1, observed.shape[1])
    largest = MAX_EXACT_INTEGER // n_columns
    keys = np.random.default_rng(0).integers(largest, size=observed.shape[1])
    observed = observed.double()
    order = (observed @ observed.new_tensor(keys.astype(float))).argsort(stable=True)
    count = observed.sum(1)
    return order[count[order].argsort(descending=True, stable=True)]


class Patterns:
    """The patterns of observed columns of some rows."""

    def __init__(self, observed):
        order = pattern_order(observed)
        by_pattern = observed[order]
        starts = observed.new_ones(len(observed))
        starts[1:] = (by_pattern[1:] != by_pattern[:-1]).any(1)
        self.distinct = by_pattern[starts]
        self.pattern_index = torch.empty_like(order)
        self.pattern_index[order] = starts.cumsum(0) - 1

    @cached_property
    def hidden(self):
        """Unobserved columns of each pattern, (u, h), h the largest number of them.

        Patterns that have fewer are filled up with observed columns.
        """
        largest = int((~self.distinct).sum(1).max()) if len(self.distinct) else 0
        order = self.distinct.to(torch.uint8).argsort(dim=1, stable=True)
        return order[:, :largest].contiguous()

    @cached_property
    def hidden_of_rows(self):
        """Unobserved columns of each row, (n, h)."""
        return self.hidden[self.pattern_index]

    @cached_property
    def block_indices(self):
        """Indices of the blocks of unobserved columns in flat matrices; (u, h, h)."""
        n_columns = self.distinct.shape[1]
        return self.hidden[:, :, None] * n_columns + self.hidden[:, None]

    @cached_property
    def is_in_block(self):
        """Whether both columns of an entry of a block are unobserved; (u, h, h)."""
        is_hidden = ~self.distinct.gather(1, self.hidden)
        return is_hidden[:, :, None] & is_hidden[:, None]

    @cached_property
    def groups(self):
        """Patterns (v,) with about as many rows, rows (v, r), and which are theirs.

        Where a pattern has fewer than r rows, others take their places.
        """
        index, counts = self.pattern_index, self.pattern_index.bincount()
        order, starts = index.argsort(stable=True), counts.cumsum(0) - counts
        level, groups = counts.log2().ceil(), []
        for value in level.unique():
            patterns = (level == value).nonzero()[:, 0]
            place = torch.arange(int(counts[patterns].max()), device=index.device)
            rows = (starts[patterns, None] + place).clamp(max=len(index) - 1)
            groups.append((patterns, order[rows], place < counts[patterns, None]))
        return groups

    def multiply(self, matrices, vectors):
        """Multiply vectors (K, n, h) by matrices (K, u, h, h) of their patterns."""
        products = torch.empty_like(vectors)
        for patterns, rows, is_row in self.groups:
            product = vectors[:, rows] @ matrices[:, patterns].mT
            products[:, rows[is_row]] = product[:, is_row]
        return products


class DenseGaussians:
    """Gaussians with a covariance matrix each, factorised once for all rows."""

    def __init__(self, means, covariances):
        self.means = means
        self.root = root = torch.linalg.cholesky(covariances)
        self.whitening = inverse_of_lower(root)
        self.precision = self.whitening.mT @ self.whitening
        self.log_det = log_determinant(root)

    @property
    def pattern_numbers(self):
        """Number of values that a pattern takes for each component."""
        return 5 * self.means.shape[1] ** 2

    def condition(self, X, observed, patterns):
        """Condition each component on the observed entries of rows."""
        return DenseConditioned(self, X, observed, patterns or Patterns(observed))

    def draw(self, k, noise):
        """Draw rows from components k, (n,); noise : (n, g)."""
        return self.means[k] + (self.root[k] @ noise[..., None])[..., 0]


class DenseConditioned:
    """Distributions of all columns in each component, given the observed entries."""

    # _deviation : (K, n, g). _covariance : of unobserved columns, (K, u, h, h).

    def __init__(self, gaussians, X, observed, patterns):
        self._gaussians, self.patterns = gaussians, patterns
        deviation = torch.where(observed, X, 0.0) - gaussians.means[:, None]
        deviation *= observed
        # blocks of unobserved columns, filled up with those of the identity
        blocks = gaussians.precision.flatten(1)[:, patterns.block_indices]
        eye = identity(blocks.shape[-1], blocks)
        root = torch.linalg.cholesky(torch.where(patterns.is_in_block, blocks, eye))
        self._covariance = torch.cholesky_inverse(root) * patterns.is_in_block
        log_det = gaussians.log_det[:, None] + log_determinant(root)
        if patterns.hidden.shape[1]:  # a product that complete rows do without
            hidden = patterns.hidden_of_rows.expand(len(deviation), -1, -1)
            gradient = (deviation @ gaussians.precision).gather(2, hidden)
            expected = patterns.multiply(self._covariance, gradient)
            deviation = deviation.scatter_add(2, hidden, -expected)
        self._deviation = deviation
        distance = (deviation @ gaussians.whitening.mT).square_().sum(2)
        size = LOG_2PI * observed.to(X.dtype).sum(1)
        log_prob = -0.5 * (distance + log_det[:, patterns.pattern_index] + size)
        self.log_prob = log_prob.T

    @property
    def deviation(self):
        """Return E[x | observed] - mean, (n, K, g)."""
        return self._deviation.transpose(0, 1)

    @cached_property
    def variance(self):
        """Variance of each entry given the observed entries, (n, K, g)."""
        patterns = self.patterns
        n_components, _, n_columns = self._deviation.shape
        shape = n_components, len(patterns.distinct), n_columns
        variance = self._deviation.new_zeros(shape)
        diagonal = self._covariance.diagonal(dim1=2, dim2=3)
        columns = patterns.hidden.expand(n_components, -1, -1)
        variance = variance.scatter_add(2, columns, diagonal)
        variance = variance.clamp(min=TINY)
        return variance[:, patterns.pattern_index].transpose(0, 1)

    def moments(self, weight):
        """Return first and second moments about the means, added up over rows."""
        weighted = weight.T[..., None] * self._deviation
        scatters = weighted.mT @ self._deviation
        patterns, flat = self.patterns, scatters.view(len(scatters), -1)
        count = flat.new_zeros(len(flat), len(patterns.distinct))
        count.index_add_(1, patterns.pattern_index, weight.T.contiguous())
        covariances = count[..., None, None] * self._covariance
        indices = patterns.block_indices.flatten().expand(len(flat), -1)
        flat.scatter_add_(1, indices, covariances.flatten(1))
        return weighted.sum(1), scatters

    def entry_log_prob(self, X):
        """Return log p(entry | observed entries) in each component; (n, K, g)."""
        error = X[:, None] - self._gaussians.means - self.deviation
        return normal_log_prob(error**2, self.variance)

    def moved(self, drawn, X, k):
        """Move rows drawn from components k to the observed entries of X.

        Unobserved entries are moved by what their expectation is for the difference,
        which makes them a draw given the observed ones.
        """
        residual = torch.where(X.isnan(), 0.0, X - drawn)
        patterns = self.patterns
        hidden = patterns.hidden_of_rows
        gradient = self._gaussians.precision[k] @ residual[..., None]
        gradient = gradient.gather(1, hidden[..., None])
        expected = -(self._covariance[k, patterns.pattern_index] @ gradient)[..., 0]
        return drawn + residual.scatter_add(1, hidden, expected)


class DiagonalGaussians:
    """Gaussians with independent columns, whose entries may be intervals."""

    pattern_numbers = 0

    def __init__(self, means, variances):
        self.means = means
        self.variances = variances

    def condition(self, X, observed, patterns):
        return DiagonalConditioned(self, X, observed)

    def draw(self, k, noise):
        return self.means[k] + self.variances.sqrt()[k] * noise


class DiagonalConditioned:
    """Distributions of independent columns; see `DenseConditioned`."""

    # _residual, _squares : (K, n, g). _seen : 1.0 where observed, (n, g).

    def __init__(self, gaussians, X, observed):
        means, variances = gaussians.means, gaussians.variances
        is_interval = observed & has_codes(X)
        is_number = observed & ~is_interval
        residual = torch.where(is_number, X, 0.0) - means[:, None]
        residual *= is_number
        squares = residual**2
        distance = (squares @ (1 / variances)[..., None])[..., 0]
        log_scale = is_number.to(X.dtype) @ (LOG_2PI + variances.log()).T
        log_prob = -0.5 * (distance.T + log_scale)
        if is_interval.any():
            normals = means[:, None], variances[:, None]
            X = torch.where(is_interval, X, 0.0)
            moments = moments_of(X, *normals)
            residual = torch.where(is_interval, moments[0], residual)
            squares = torch.where(is_interval, moments[1], squares)
            more = torch.where(is_interval, log_prob_of(X, *normals), 0.0)
            log_prob = log_prob + more.sum(2).T
        self.log_prob, self._gaussians = log_prob, gaussians
        self._residual, self._squares = residual, squares
        self._seen = observed.to(X.dtype)

    @property
    def deviation(self):
        return self._residual.transpose(0, 1)

    @cached_property
    def variance(self):
        unseen = (1 - self._seen)[:, None]
        return (unseen * self._gaussians.variances).clamp(min=TINY)

    def moments(self, weight):
        """Return sums (K, g) of first and second moments; see `DenseConditioned`."""
        by_class = weight.T[:, None]  # shape: (K, 1, n)
        unseen = weight.sum(0)[:, None] - weight.T @ self._seen
        scatters = (by_class @ self._squares)[:, 0]
        scatters = scatters + unseen * self._gaussians.variances
        return (by_class @ self._residual)[:, 0], scatters

    def entry_log_prob(self, X):
        normals = self._gaussians.means, self._gaussians.variances
        return log_prob_of(X[:, None], *normals)

    def moved(self, drawn, X, k):
        normals = self._gaussians.means[k], self._gaussians.variances[k]
        level = torch.special.ndtr((drawn - normals[0]) / normals[1].sqrt())
        return torch.where(has_codes(X), drawn_within(X, *normals, level), drawn)
