"""Terms of rows along orders of the features, for linear Gaussian models."""
# f = F'w, v = s + |f|^2, e = x_t - mu_t - w'm for feature t with weights w and noise
# variance s, given z with mean m and covariance F F'. Potter's update of the root
# (Kaminski, Bryson and Schmidt, 1971, IEEE Transactions on Automatic Control 16)
# includes it:
# m <- m + e / v F f, F <- F - F f f' / (v + sqrt(v s)).
# Updates of F F' itself would lose the digits of small noise; those of a root lose half
# as many.

import torch

from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices


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
