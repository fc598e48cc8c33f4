r"""Terms of rows along orders of the features, for linear Gaussian models.

Features become visible one after the other. Given those before, z has the mean m and
the covariance F F'. The next feature t, with weights w and noise variance s, then has

.. math:: f = F^\top w, \quad v = s + |f|^2, \quad e = x_t - \mu_t - w^\top m,

and Potter's update of the root [1]_ includes it:

.. math:: m \leftarrow m + \frac{e}{v} F f, \quad
          F \leftarrow F - \frac{F f f^\top}{v + \sqrt{v s}}.

Updates of F F' itself would lose the digits of small noise; those of a root lose half
as many. The cost is O(n d k^2) for an order.

References
----------
.. [1] P. G. Kaminski, A. E. Bryson and S. F. Schmidt, "Discrete square root filtering:
   a survey of current techniques", IEEE Transactions on Automatic Control 16, 1971.
"""

import torch

from sklearn_mpt._likelihoods.gaussian import normal_log_prob
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices


def terms_along(X, orders, model):
    """Return log p(x_j | features before j in the order); (n, n_orders, d).

    It is any number where x_j is missing.

    X : shape (n, d), NaN where missing. orders : int, (1 or n, n_orders, d). model :
    LinearGaussian.
    """
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
