"""Densities of linear Gaussian latent variable models."""
# x = W' z + mu + sigma eps, with `components` W, (k, d), and one sigma or that of each
# feature. All comes from the (k, k) posterior precision I + V_R V_R' given the observed
# features R, with V = W / sigma. Rounding errors grow with the ratio of the variance of
# features to the noise, or its square; slower computations, whose errors grow with the
# root, are used if that is too much.

import torch

from sklearn_mpt._base.density import LatentDensity
from sklearn_mpt._gaussian.moments import moments_of
from sklearn_mpt._likelihoods.gaussian import LOG_2PI, normal_log_prob
from sklearn_mpt._matrices import identity, log_determinant, sums_of_outer_products
from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._numbers import CACHE_ENTRIES, FLOAT_BYTES, chunk_slices

# Largest ratio of a feature's variance to the noise for which sums of products have an
# error of less than 1e-6 nats (benchmarks/RESULTS.rst, "Mechanisms").
MAX_RATIO = 1e6


def _precision_root_by_rows(observed, scaled):
    """Return lower triangular L with L L' = I + sum_j o_j w_j w_j'; (n, k, k)."""
    # The sum is not formed: rounding would remove the identity. scaled : w_j as
    # columns.
    eye = identity(len(scaled), scaled).expand(len(observed), -1, -1)
    rows = torch.cat([observed[..., None] * scaled.T, eye], 1)
    upper = torch.linalg.qr(rows).R
    sign = torch.sign(upper.diagonal(dim1=1, dim2=2))
    return (sign[..., None] * upper).mT


def _observed(X, hidden=None):
    """Return 1.0 where entries are observed, else 0.0; one row for complete rows."""
    present = ~torch.isnan(X)
    if present.all():
        present = present[:1]
    observed = present if hidden is None else present & ~hidden
    if not observed.any():
        observed = observed[:1]
    return observed.to(X.dtype)


def _times_covariance(root, vectors):
    """Multiply vectors by the covariance F' F of z; (n, k)."""
    return (root.mT @ (root @ vectors[..., None]))[..., 0]


def _finite(log_prob):
    """Replace NaN and -inf, from squares that overflow, by the lowest number."""
    lowest = torch.finfo(log_prob.dtype).min
    return torch.nan_to_num(log_prob, nan=lowest, neginf=lowest)


class LinearGaussian(LatentDensity):
    """Density of a fitted linear Gaussian model."""

    # components : (k, d). mean : (d,). noise_variance : () or (d,).

    def __init__(self, components, mean, noise_variance):
        self.components, self.mean = components, mean
        self.noise_variance = noise_variance
        self.scale = noise_variance.sqrt().expand_as(mean)
        self.scaled = components / self.scale

    @property
    def row_bytes(self):
        n_dims, n_features = self.components.shape
        return FLOAT_BYTES * (6 * n_features * n_dims + 4 * n_dims**2)

    def lml(self, X):
        observed = _observed(X)
        root = self.posterior_root(observed)
        z = self.posterior_mean(X, observed, root)
        # |e|^2 + |z|^2 equals the Mahalanobis distance without cancellation
        error = self.errors(X, z) * observed
        distance = (error**2).sum(1) + (z**2).sum(1)
        log_scale = observed @ (LOG_2PI + 2 * self.scale.log())
        log_prob = _finite(-0.5 * (log_scale - log_determinant(root) + distance))
        return log_prob, torch.zeros_like(log_prob)

    def conditional_log_prob(self, X, mask):
        observed = _observed(X, mask)
        root = self.posterior_root(observed)
        z = self.posterior_mean(X, observed, root)
        log_prob = normal_log_prob(self.errors(X, z) ** 2, self._variance(root))
        log_prob = _finite(log_prob - self.scale.log())
        return torch.where(mask & ~torch.isnan(X), log_prob, 0.0)

    def conditional_moments(self, X, observed):
        """Return mean and variance of each entry given the observed; (n, d) each."""
        # observed : 1.0 where observed, else 0.0, (n, d).
        root = self.posterior_root(observed)
        z = self.posterior_mean(X, observed, root)
        return self.decode(z), self.scale**2 * self._variance(root)

    def latent_moments(self, X):
        observed = _observed(X)
        root = self.posterior_root(observed)
        z = self.posterior_mean(X, observed, root)
        return z, (root.mT @ root).expand(len(X), -1, -1)

    def expect(self, X):
        return self.decode(self.latent_mean(X))

    def decode(self, Z):
        return Z @ self.components + self.mean

    def draw(self, X, rng):
        latent_noise = X.new_tensor(rng.normal(size=(len(X), len(self.components))))
        noise = X.new_tensor(rng.normal(size=tuple(X.shape)))
        observed = _observed(X)
        root = self.posterior_root(observed)
        z = self.posterior_mean(X, observed, root)
        z = z + (root.mT @ latent_noise[..., None])[..., 0]
        return self.decode(z) + self.scale * noise

    def mean_masked_scores(self, X, masks, n_rows):
        """Return the masked score averaged over rows, for each mask; (n_masks,)."""
        if torch.isnan(X).any() or self.signal > MAX_RATIO:
            parts = X.split(n_rows)
            return torch.stack([self._mean_score(parts, mask) for mask in masks])
        moments = moments_of(X)
        return torch.cat([self.moment_scores(moments, m) for m in masks.split(n_rows)])

    def _mean_score(self, parts, mask):
        log_prob = [self.conditional_log_prob(p.double(), mask[None]) for p in parts]
        return masked_score(torch.cat(log_prob), mask).mean()

    def moment_scores(self, moments, masks):
        """Return mean masked scores of complete rows, from moments; (n_masks,)."""
        # With u = F^-T z, whose posterior covariance is the identity, and U = F V, the
        # expected squared error of feature j is C_jj - 2 u_j' E[u x_j] + u_j' E[u u']
        # u_j, where C = E (x - mu)(x - mu)' in units of the noise.
        observed = (~masks).to(self.scaled.dtype)
        U = self.posterior_root(observed) @ self.scaled
        U_seen = U * (observed / self.scale)[:, None, :]
        offset = moments.mean - self.mean
        u_x = moments.product(U_seen) + (U_seen @ offset)[..., None] * offset
        u_u, u_x = u_x @ U_seen.mT, u_x / self.scale
        second = (moments.variance + offset**2) / self.scale**2
        error = second + (U * (u_u @ U - 2 * u_x)).sum(1)
        log_prob = normal_log_prob(error, 1 + (U**2).sum(1)) - self.scale.log()
        return (log_prob * masks).sum(1) / masks.sum(1)

    def alone_scores(self, moments):
        """Return mean log p(x_j) of complete rows, from moments; (d,)."""
        second = moments.variance + (moments.mean - self.mean) ** 2
        variance = self.scale**2 + (self.components**2).sum(0)
        return normal_log_prob(second, variance)

    def chain_log_prob(self, X, orders):
        """Return log p(x_j | features before j in the order); (n, n_orders, d)."""
        # orders : int, (1 or n, n_orders, d).
        n_dims, n_features = self.components.shape
        row_entries = orders.shape[1] * (n_features + 4 * n_dims**2)
        slices = chunk_slices(len(X), row_entries, CACHE_ENTRIES)
        shared = len(orders) == 1
        log_prob = torch.cat(
            [self._terms(X[p], orders if shared else orders[p]) for p in slices]
        )
        return torch.where(X.isnan()[:, None], 0.0, _finite(log_prob))

    def _terms(self, X, orders):
        """Return the terms of a block of rows by Potter's update of the root F."""
        # f = F'w, v = 1 + |f|^2, e = x_t - w'm for feature t with weights w, given z
        # with mean m and covariance F F' (Kaminski, Bryson and Schmidt, 1971, IEEE
        # Transactions on Automatic Control 16): m <- m + e / v F f, F <- F - F f f' /
        # (v + sqrt(v)). Updates of F F' would lose the digits of small noise; those of
        # a root lose half as many.
        weights, missing = self.scaled.T, X.isnan()
        n_orders, n_features = orders.shape[1:]
        # Complete rows have the same covariances along an order that they share.
        present = (~missing if missing.any() else ~missing[:1]).to(X.dtype)
        residual = self._standard(X)
        rows, patterns = (torch.arange(len(t), device=X.device) for t in (X, present))
        mean = X.new_zeros(len(X), n_orders, weights.shape[1])
        eye = identity(weights.shape[1], weights)
        root = eye.repeat(max(len(present), len(orders)), n_orders, 1, 1)
        terms = X.new_empty(n_features, len(X), n_orders)
        for term, feature in zip(terms, orders.unbind(2), strict=True):
            w = weights[feature]  # shape: (1 or n, n_orders, k)
            seen = present[patterns[:, None], feature]
            error = residual[rows[:, None], feature] - (mean * w).sum(2)
            # For small matrices this is faster than batched products.
            f = (root * w[..., None]).sum(2)
            variance = 1 + (f**2).sum(2)
            log_prob = normal_log_prob(error**2, variance)
            term.copy_(log_prob - self.scale.log()[feature])
            # A missing feature does not change the posterior.
            gain = (root * f[:, :, None]).sum(3) * (seen / variance)[..., None]
            mean.addcmul_(gain, error[..., None])
            f /= 1 + variance.rsqrt()[..., None]
            root.addcmul_(gain[..., None], f[:, :, None], value=-1)
        by_feature = X.new_empty(len(X), n_orders, n_features)
        index = orders.expand(len(X), -1, -1)
        return by_feature.scatter_(2, index, terms.permute(1, 2, 0))

    def posterior_root(self, observed):
        """Return F, (n, k, k), with F' F the covariance of z given visible features."""
        eye = identity(len(self.scaled), observed)
        if self.signal > MAX_RATIO:
            factor = _precision_root_by_rows(observed, self.scaled)
        else:
            precision = eye + sums_of_outer_products(observed, self.scaled)
            # not finite where parameters are not: training then goes back
            factor = torch.linalg.cholesky_ex(precision).L
        return torch.linalg.solve_triangular(factor, eye, upper=False)

    def posterior_mean(self, X, observed, root):
        """Return the mean of z given visible features and their root; (n, k)."""
        residual = torch.where(observed > 0, self._standard(X), 0.0)
        z = _times_covariance(root, residual @ self.scaled.T)
        if self.signal > MAX_RATIO:
            error = residual - (z @ self.scaled) * observed
            z = z + _times_covariance(root, error @ self.scaled.T - z)
        return z

    @property
    def signal(self):
        """The largest ratio of a feature's variance to the noise."""
        return float((self.scaled.detach() ** 2).sum(0).max())

    def errors(self, X, z):
        """Return entries less what z explains, in units of the noise; (n, d)."""
        return self._standard(X) - z @ self.scaled

    def _standard(self, X):
        """Return deviations in units of the noise; 0 in gaps."""
        # NaN must not occur: it would make the gradient NaN.
        return torch.where(X.isnan(), 0.0, X - self.mean) / self.scale

    def _variance(self, root):
        """Return the variance of each entry, given z with root F, in units of noise."""
        if self.signal > MAX_RATIO:
            return 1 + ((root @ self.scaled) ** 2).sum(1)
        outer = (self.scaled[:, None] * self.scaled).flatten(0, 1)
        return 1 + (root.mT @ root).flatten(1) @ outer  # one product for all rows
