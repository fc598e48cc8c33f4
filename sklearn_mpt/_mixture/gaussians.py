r"""Gaussians of the components of a mixture, given some entries of rows.

With the precision P of all columns, observed ones R and others M,

.. math:: \operatorname{Cov}[x_M \mid x_R] = P_{MM}^{-1}, \quad
    E[x_M \mid x_R] = \mu_M - P_{MM}^{-1} P_{MR} (x_R - \mu_R), \quad
    \log |\Sigma_{RR}| = \log |\Sigma| + \log |P_{MM}|,

and the distance of the row filled in so is that of its observed entries. If the columns
are independent, all of this is element by element.

Tensors have the component first: matrices (K, g, g), rows (K, n, g).
"""

from functools import cached_property

import torch

from sklearn_mpt._likelihoods.gaussian import LOG_2PI, normal_log_prob
from sklearn_mpt._matrices import inverse_of_lower, log_determinant
from sklearn_mpt._mixture.patterns import Patterns
from sklearn_mpt._numbers import TINY


class DenseGaussians:
    """Gaussians with a covariance matrix each, which are factorised once for all rows.

    Parameters
    ----------
    means : Tensor of shape (K, g)
    covariances : Tensor of shape (K, g, g)
    """

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

    def condition(self, X, observed, patterns=None):
        """Condition each component on the observed entries of rows.

        X, observed : shape (n, g). patterns : those of `observed`, if they are known.
        """
        patterns = Patterns(observed) if patterns is None else patterns
        deviation = torch.where(observed, X, 0.0) - self.means[:, None]
        deviation *= observed
        log_det, covariance = self.log_det[:, None], None
        if patterns.hidden.shape[1]:
            root = torch.linalg.cholesky(patterns.blocks(self.precision))
            covariance = torch.cholesky_inverse(root) * patterns.is_in_block
            log_det = (log_det + log_determinant(root))[:, patterns.pattern_index]
            pulled = patterns.at_hidden(deviation @ self.precision)
            expected = -patterns.multiply(covariance, pulled)
            deviation = patterns.with_hidden(deviation, expected)
        white = deviation @ self.whitening.mT
        size = LOG_2PI * observed.to(X.dtype).sum(1)
        log_prob = -0.5 * (white.square_().sum(2) + log_det + size)
        return DenseConditioned(self, log_prob.T, deviation, covariance, patterns)

    def terms_along(self, X, observed, places, patterns=None):
        """Return log p(entry | observed entries before it in an order), (n, K, g).

        It is 0.0 where not observed. A triangular root of the covariance in that order
        makes deviations independent. It comes from `root` by reflections, because sums
        of products would lose the digits of small variances.

        X, observed : shape (n, g). places : of the columns in the order, int, of shape
        (1 or n, g). patterns : those of `observed`, if rows have the same places; None
        if each row has its own.
        """
        distinct = observed if patterns is None else patterns.distinct
        # Columns that are not observed come last, so that no entry depends on them.
        order = torch.where(distinct, places, torch.iinfo(places.dtype).max).argsort(1)
        upper = torch.linalg.qr(self.root[:, order].mT, mode="r").R
        whitening = inverse_of_lower(upper.mT)
        log_size = upper.diagonal(dim1=2, dim2=3).abs().log()
        deviation = torch.where(observed, X, 0.0) - self.means[:, None]
        deviation *= observed
        if patterns is None:
            row_order = order.expand(len(deviation), -1, -1)
            ordered = deviation.gather(2, row_order)[..., None]
            white = (whitening @ ordered)[..., 0]
        else:
            row_order = order[patterns.pattern_index].expand(len(deviation), -1, -1)
            white = patterns.multiply(whitening, deviation.gather(2, row_order))
            log_size = log_size[:, patterns.pattern_index]
        log_prob = -0.5 * (LOG_2PI + white.square_()) - log_size
        by_column = torch.empty_like(log_prob).scatter_(2, row_order, log_prob)
        return torch.where(observed, by_column, 0.0).transpose(0, 1)

    def draw(self, k, noise):
        """Draw deviations from the means of components k, (n,); noise : (n, g)."""
        return (self.root[k] @ noise[..., None])[..., 0]


class DenseConditioned:
    """Distributions of all columns in each component, given the observed entries.

    Attributes
    ----------
    log_prob : Tensor of shape (n, K)
        Log-density of the observed entries.
    patterns : Patterns
        Of the observed entries.
    """

    def __init__(self, gaussians, log_prob, deviation, covariance, patterns):
        self.log_prob = log_prob
        self.patterns = patterns
        self._gaussians = gaussians
        self._deviation = deviation  # shape: (K, n, g)
        self._covariance = covariance  # of unobserved columns, (K, u, h, h), or None

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
        if self._covariance is not None:
            diagonal = self._covariance.diagonal(dim1=2, dim2=3)
            places = patterns.hidden.expand(n_components, -1, -1)
            variance = variance.scatter_add(2, places, diagonal)
        variance = variance.clamp(min=TINY)
        return variance[:, patterns.pattern_index].transpose(0, 1)

    @cached_property
    def covariance(self):
        """Covariance of the columns given each pattern, (K, u, g, g)."""
        n_components, _, n_columns = self._deviation.shape
        n_patterns = len(self.patterns.distinct)
        full = self._deviation.new_zeros(n_components, n_patterns, n_columns**2)
        if self._covariance is not None:
            places = self.patterns.block_places.flatten(1).expand(n_components, -1, -1)
            full = full.scatter_add(2, places, self._covariance.flatten(2))
        return full.unflatten(2, (n_columns, n_columns))

    def moments(self, weight):
        """Return first and second moments about the means, added up over rows.

        weight : of the rows, (n, K). Returns shapes (K, g) and (K, g, g).
        """
        weighted = weight.T[..., None] * self._deviation
        scatters = weighted.mT @ self._deviation
        if self._covariance is not None:
            pattern_weight = self.patterns.totals(weight.T)[..., None, None]
            covariances = self.patterns.sum_of_blocks(pattern_weight * self._covariance)
            scatters = scatters + covariances
        return weighted.sum(1), scatters

    def target_moments(self, targets, error):
        """Return how much targets change the moments, added up over rows.

        targets : weights of unobserved entries, (n, K, g). error : difference of the
        entries from their expectations, over their variances, (n, K, g).
        """
        patterns, C = self.patterns, self._covariance
        if C is None:
            parameters = self._gaussians.means, self._gaussians.precision
            return torch.zeros_like(parameters[0]), torch.zeros_like(parameters[1])
        variance = self.variance.transpose(0, 1)
        targets, error = targets.transpose(0, 1), error.transpose(0, 1)
        pulled = targets * error
        change = pulled * error - targets / variance
        moved = patterns.multiply(C, patterns.at_hidden(pulled))
        moved = patterns.with_hidden(torch.zeros_like(self._deviation), moved)
        cross = moved.mT @ self._deviation
        change = patterns.totals(patterns.at_hidden(change))
        target_part = patterns.sum_of_blocks((C * change[..., None, :]) @ C)
        return moved.sum(1), cross + cross.mT + target_part

    def expectation(self, residual, k):
        """Return expected deviations of unobserved entries in components k, (n, g).

        residual : deviations of observed entries, 0.0 elsewhere, (n, g).
        """
        if self._covariance is None:
            return torch.zeros_like(residual)
        patterns = self.patterns
        pulled = self._gaussians.precision[k] @ residual[..., None]
        pulled = pulled.gather(1, patterns.hidden_of_rows[..., None])
        expected = -(self._covariance[k, patterns.pattern_index] @ pulled)[..., 0]
        zero = torch.zeros_like(residual)
        return zero.scatter_add(1, patterns.hidden_of_rows, expected)


class DiagonalGaussians:
    """Gaussians with independent columns.

    Parameters
    ----------
    means, variances : Tensor of shape (K, g)
    """

    pattern_numbers = 0

    def __init__(self, means, variances):
        self.means = means
        self.variances = variances

    def condition(self, X, observed, patterns=None):
        observed_float = observed.to(X.dtype)
        residual = torch.where(observed, X, 0.0) - self.means[:, None]
        residual *= observed_float
        squares = residual**2
        distance = (squares @ (1 / self.variances)[..., None])[..., 0]
        log_scale = observed_float @ (LOG_2PI + self.variances.log()).T
        log_prob = -0.5 * (distance.T + log_scale)
        return DiagonalConditioned(self, log_prob, residual, squares, observed_float)

    def terms_along(self, X, observed, places, patterns=None):
        """Return log p(entry | component), (n, K, g); see `DenseGaussians`."""
        residual = torch.where(observed, X, 0.0)[:, None] - self.means
        log_prob = normal_log_prob(residual**2, self.variances)
        return torch.where(observed[:, None], log_prob, 0.0)

    def draw(self, k, noise):
        return self.variances.sqrt()[k] * noise


class DiagonalConditioned:
    """Distributions of independent columns; see `DenseConditioned`."""

    def __init__(self, gaussians, log_prob, residual, squares, observed):
        self.log_prob = log_prob
        self._gaussians = gaussians
        self._residual, self._squares = residual, squares  # shape: (K, n, g)
        self._seen = observed  # 1.0 where observed, (n, g)

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

    def target_moments(self, targets, error):
        variances = self._gaussians.variances
        pulled = targets * error
        change = (pulled * error).sum(0) - targets.sum(0) / variances
        return variances * pulled.sum(0), variances * (variances * change)

    def expectation(self, residual, k):
        return torch.zeros_like(residual)
