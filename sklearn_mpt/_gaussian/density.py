"""Densities of linear Gaussian latent variable models."""

import torch

from sklearn_mpt._base.density import LatentDensity
from sklearn_mpt._gaussian.moments import (
    moments_of,
)
from sklearn_mpt._likelihoods.gaussian import LOG_2PI, normal_log_prob
from sklearn_mpt._matrices import (
    identity,
    inverse_of_lower,
    log_determinant,
    sums_of_outer_products,
)
from sklearn_mpt._measure.contract import masked_score
from sklearn_mpt._numbers import CACHE_ENTRIES, FLOAT_BYTES, chunk_slices

# f = F'w, v = s + |f|^2, e = x_t - mu_t - w'm for feature t with weights w and noise
# variance s, given z with mean m and covariance F F'. Potter's update of the root
# (Kaminski, Bryson and Schmidt, 1971, IEEE Transactions on Automatic Control 16)
# includes it:
# m <- m + e / v F f, F <- F - F f f' / (v + sqrt(v s)).
# Updates of F F' itself would lose the digits of small noise; those of a root lose half
# as many.


def terms_along(X, orders, model):
    """Return log p(x_j | features before j in the order); (n, n_orders, d)."""
    # X : (n, d), NaN where missing. orders : int, (1 or n, n_orders, d).
    n_dims, n_features = model.components.shape
    row_entries = orders.shape[1] * (n_features + 4 * n_dims**2)
    parts = [
        _terms_of_block(X[part], orders if len(orders) == 1 else orders[part], model)
        for part in chunk_slices(len(X), row_entries, CACHE_ENTRIES)
    ]
    return torch.cat(parts)


def _terms_of_block(X, orders, model):
    weights, noise, missing = model.components.T, model.noise_variance, X.isnan()
    n_orders, n_features = orders.shape[1:]
    # Complete rows have the same posterior covariances along an order that they share.
    present = (~missing if missing.any() else ~missing[:1]).to(X.dtype)
    residual = torch.where(missing, 0.0, X - model.mean)
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
        variance = noise + (f**2).sum(2)
        term.copy_(normal_log_prob(error**2, variance))
        # A missing feature does not change the posterior.
        gain = (root * f[:, :, None]).sum(3) * (seen / variance)[..., None]
        mean.addcmul_(gain, error[..., None])
        f /= 1 + (noise / variance).sqrt()[..., None]
        root.addcmul_(gain[..., None], f[:, :, None], value=-1)
    by_feature = X.new_empty(len(X), n_orders, n_features)
    return by_feature.scatter_(2, orders.expand(len(X), -1, -1), terms.permute(1, 2, 0))


# x = W' z + mu + sigma eps, with `components` W, (k, d). All comes from the (k, k)
# posterior precision I + W_R W_R' / sigma^2 given the observed features R. Rounding
# errors grow with the ratio of the variance of features to the noise, or its square;
# slower computations, whose errors grow with the root, are used if that is too much.


# Largest ratio of a feature's variance to the noise for which sums of products have an
# error of less than 1e-6 nats (benchmarks/RESULTS.rst, "Mechanisms").
MAX_RATIO = 1e6


def _second_moment_about(mean, moments, V):
    """Return V C and the diagonal of C = E (x - mean)(x - mean)'; V is (..., d)."""
    offset = moments.mean - mean
    product = moments.product(V)
    if offset.any():
        product = product + (V @ offset)[..., None] * offset
    return product, moments.variance + offset**2


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
    """Return 1.0 where entries are observed, else 0.0; one row if all rows agree."""
    present = ~torch.isnan(X)
    if present.all():
        present = present[:1]
    observed = present if hidden is None else present & ~hidden
    return observed.to(X.dtype)


def _residual(X, observed, mean):
    return torch.nan_to_num(X - mean) * observed


def _finite(log_prob):
    """Replace NaN and -inf, from squares that overflow, by the lowest number."""
    lowest = torch.finfo(log_prob.dtype).min
    return torch.nan_to_num(log_prob, nan=lowest, neginf=lowest)


def expected_information(coefs, log_noise, observed):
    """Return the Fisher information of a row on all parameters, (p, p)."""
    # coefs : (d, k + 1). log_noise : () or (d,). observed : bool, (d,). With P the
    # inverse covariance of observed features, that of weights (j, a) and (l, b) is P_jl
    # w_a' P w_b + (P w_b)_j (P w_a)_l.
    W, is_shared = coefs[:, :-1], log_noise.ndim == 0
    n_features, n_dims = W.shape
    noise = log_noise.exp().expand(n_features)
    P = torch.zeros(n_features, n_features, dtype=W.dtype, device=W.device)
    covariance = (W @ W.T + noise.diag())[observed][:, observed]
    P[torch.outer(observed, observed)] = torch.linalg.inv(covariance).flatten()
    PW = P @ W
    coef_information = P.new_zeros(n_features, n_dims + 1, n_features, n_dims + 1)
    coef_information[:, :-1, :, :-1] = torch.einsum("jl,ab->jalb", P, W.T @ PW)
    coef_information[:, :-1, :, :-1] += torch.einsum("jb,la->jalb", PW, PW)
    coef_information[:, -1, :, -1] = P
    cross = P.new_zeros(n_features, n_dims + 1, n_features)
    cross[:, :-1] = torch.einsum("jl,la,l->jal", P, PW, noise)
    noise_information = 0.5 * P**2 * torch.outer(noise, noise)
    if is_shared:
        cross = cross.sum(-1, keepdim=True)
        noise_information = noise_information.sum()[None, None]
    cross = cross.flatten(0, 1)
    top = torch.cat([coef_information.flatten(2).flatten(0, 1), cross], 1)
    return torch.cat([top, torch.cat([cross.T, noise_information], 1)])


class LinearGaussian(LatentDensity):
    """Density of a fitted linear Gaussian model."""

    # components : (k, d). mean : (d,). noise_variance : ().

    def __init__(self, components, mean, noise_variance):
        self.components = components
        self.mean = mean
        self.noise_variance = noise_variance

    @property
    def row_bytes(self):
        n_dims, n_features = self.components.shape
        return FLOAT_BYTES * (6 * n_features * n_dims + 4 * n_dims**2)

    def lml(self, X):
        observed = _observed(X)
        z, root = self.posterior(X, observed)
        # |x - Wz|^2 / s2 + |z|^2 equals the Mahalanobis distance without cancellation
        noise = _residual(X, observed, self.decode(z))
        distance = (noise**2).sum(1) / self.noise_variance + (z**2).sum(1)
        log_scale = observed.sum(1) * (LOG_2PI + self.noise_variance.log())
        log_prob = _finite(-0.5 * (log_scale - log_determinant(root) + distance))
        return log_prob, torch.zeros_like(log_prob)

    def conditional_log_prob(self, X, mask):
        z, root = self.posterior(X, _observed(X, mask))
        # NaN must not occur even in entries that are not selected: it would make the
        # gradient NaN.
        residual = torch.nan_to_num(X) - self.mean - z @ self.components
        variance = self.noise_variance + ((root @ self.components) ** 2).sum(1)
        log_prob = normal_log_prob(residual**2, variance)
        return torch.where(mask & ~torch.isnan(X), _finite(log_prob), 0.0)

    def latent_moments(self, X):
        z, root = self.posterior(X, _observed(X))
        return z, (root.mT @ root).expand(len(X), -1, -1)

    def expect(self, X):
        return self.decode(self.latent_mean(X))

    def decode(self, Z):
        return Z @ self.components + self.mean

    def draw(self, X, rng):
        latent_noise = X.new_tensor(rng.normal(size=(len(X), len(self.components))))
        noise = X.new_tensor(rng.normal(size=tuple(X.shape)))
        z, root = self.posterior(X, _observed(X))
        z = z + (root.mT @ latent_noise[..., None])[..., 0]
        return self.decode(z) + self.noise_variance.sqrt() * noise

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

    def chain_log_prob(self, X, orders):
        """Return log p(x_j | features before j in the order); (n, n_orders, d)."""
        log_prob = _finite(terms_along(X, orders, self))
        return torch.where(X.isnan()[:, None], 0.0, log_prob)

    def posterior(self, X, observed):
        """Return mean (n, k) and root F (n or 1, k, k) of z given observed entries."""
        root, residual = self._root(observed), _residual(X, observed, self.mean)
        z = self._solve(root, residual @ self.components.T / self.noise_variance)
        if self.signal > MAX_RATIO:
            error = residual - (z @ self.components) * observed
            gradient = error @ self.components.T / self.noise_variance - z
            z = z + self._solve(root, gradient)
        return z, root

    def _solve(self, root, vectors):
        """Multiply vectors by the covariance F' F of z; (n, k)."""
        return (root.mT @ (root @ vectors[..., None]))[..., 0]

    @property
    def signal(self):
        """The largest ratio of a feature's variance to the noise."""
        largest = (self.components.detach() ** 2).sum(0).max()
        return float(largest / self.noise_variance.detach())

    def _root(self, observed):
        """Return F, (n, k, k), with F' F the covariance of z given visible features."""
        noise = self.noise_variance
        if self.signal > MAX_RATIO:
            factor = _precision_root_by_rows(observed, self.components / noise.sqrt())
        else:
            gram = sums_of_outer_products(observed, self.components)
            eye = identity(len(self.components), noise)
            factor = torch.linalg.cholesky(eye + gram / noise)
        return inverse_of_lower(factor)

    def mean_log_prob(self, moments):
        """Return the mean log-density of complete rows, from their moments."""
        root = self._root(torch.ones_like(self.mean)[None])[0]
        V = root @ self.components
        product, variance = _second_moment_about(self.mean, moments, V)
        explained = torch.sum(product * V) / self.noise_variance
        distance = (variance.sum() - explained) / self.noise_variance
        log_scale = len(self.mean) * (LOG_2PI + self.noise_variance.log())
        return -0.5 * (log_scale - log_determinant(root) + distance)

    def moment_scores(self, moments, masks):
        """Return mean masked scores of complete rows, from moments; (n_masks,)."""
        # With u = F^-T z, whose posterior covariance is the identity, and V = F W, the
        # expected squared error of feature j is C_jj - 2 v_j' E[u x_j] + v_j' E[u u']
        # v_j.
        observed = (~masks).to(self.components.dtype)
        V = self._root(observed) @ self.components
        V_seen = V * (observed / self.noise_variance)[:, None, :]
        u_x, second = _second_moment_about(self.mean, moments, V_seen)
        u_u = u_x @ V_seen.mT
        error = second + (V * (u_u @ V - 2 * u_x)).sum(1)
        log_prob = normal_log_prob(error, self.noise_variance + (V**2).sum(1))
        return (log_prob * masks).sum(1) / masks.sum(1)


class RescaledDensity(LatentDensity):
    """Density of rows that are scaled and shifted, from that of standard rows."""

    def __init__(self, density, scale, shift):
        self.density = density
        self.scale = scale
        self.shift = shift

    @property
    def row_bytes(self):
        return self.density.row_bytes

    def _standard(self, X):
        """Return standard rows, with 0 in gaps: NaN would make the gradient NaN."""
        # The shift is taken off first: quotients of values that differ little are
        # rounded.
        gaps = torch.isnan(X)
        deviation = torch.where(gaps, 0.0, X) - self.shift
        return torch.where(gaps, X, deviation / self.scale)

    def _restored(self, X):
        return self.shift + self.scale * X

    def _log_scale(self, X):
        return torch.where(torch.isnan(X), 0.0, self.scale.log())

    def lml(self, X):
        value, error = self.density.lml(self._standard(X))
        return value - self._log_scale(X).sum(1), error

    def conditional_log_prob(self, X, mask):
        log_prob = self.density.conditional_log_prob(self._standard(X), mask)
        return log_prob - mask * self._log_scale(X)

    def latent_mean(self, X):
        return self.density.latent_mean(self._standard(X))

    def latent_moments(self, X):
        return self.density.latent_moments(self._standard(X))

    def expect(self, X):
        return self._restored(self.density.expect(self._standard(X)))

    def decode(self, Z):
        return self._restored(self.density.decode(Z))

    def draw(self, X, rng):
        return self._restored(self.density.draw(self._standard(X), rng))

    def mean_masked_scores(self, X, masks, n_rows):
        scores = self.density.mean_masked_scores(self._standard(X), masks, n_rows)
        hidden = masks.to(scores.dtype)
        return scores - hidden @ self._log_scale(X).mean(0) / masks.sum(1)

    def chain_log_prob(self, X, orders):
        log_prob = self.density.chain_log_prob(self._standard(X), orders)
        return log_prob - self._log_scale(X)[:, None]


def density_of(components, mean, noise_variance):
    """Return the density, given the noise variance of all features or of each, (d,)."""
    if noise_variance.ndim == 0:
        return LinearGaussian(components, mean, noise_variance)
    scale = noise_variance.sqrt()
    noise = torch.ones_like(scale[0])
    standard = LinearGaussian(components / scale, torch.zeros_like(mean), noise)
    return RescaledDensity(standard, scale, mean)
