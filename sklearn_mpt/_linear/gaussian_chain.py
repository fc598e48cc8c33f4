r"""Scores of a linear Gaussian model along orders of the features, on tensors.

Features become visible one after the other. The posterior covariance P of z given
those before follows from one place to the next by a rank-one update, and with it the
residual and the variance of every later feature j,

.. math:: c_j = w_j^\top P w_t, \quad e_j \leftarrow e_j - c_j e_t / v_t, \quad
          v_j \leftarrow v_j - c_j^2 / v_t.

Complete rows that share an order need no rows at all: their second moments suffice.
"""

import math

import torch

LOG_2PI = math.log(2 * math.pi)
BLOCK_BYTES = 2**22  # of one tensor over places, components and features
ROWS_BYTES = 2**19  # of one tensor over rows and features: several stay in caches


def mean_scores(X, orders, parameters):
    """Average over rows what is scored along the orders; (2, n_orders, d).

    X : shape (n, d), NaN where missing; orders : (n_orders, d) or (n_orders, n, d).
    See the contract of `mean_chain_scores`.
    """
    if orders.ndim == 3 or torch.isnan(X).any():
        return _by_rows(X, orders, parameters)
    centred = X - parameters.mean
    second = centred.T @ centred / len(X)
    return torch.stack([_by_moments(second, o, parameters) for o in orders], 1)


def _by_moments(second, order, parameters):
    """Score one order by the second moments of the rows; O(d^2 k^2)."""
    W, second = parameters.components[:, order], second[order][:, order]
    n_components, n_features = W.shape
    gram, product = W.new_zeros(n_components, n_components), torch.zeros_like(W)
    blocks = []
    size = max(1, BLOCK_BYTES // (8 * W.numel()))
    for places in torch.arange(n_features, device=W.device).split(size):
        w = W[:, places].T
        grams, gram = _sums_before(gram, w[:, :, None] * w[:, None])
        products, product = _sums_before(product, w[:, :, None] * second[places, None])
        p = torch.linalg.solve(
            grams + parameters.noise_variance * torch.eye(n_components).to(W), W
        )
        variance = parameters.noise_variance * (1 + (W * p).sum(1))
        seen = torch.arange(n_features, device=W.device) < places[:, None]
        quadratic = (products * seen[:, None]) @ W.T
        error = second.diagonal() + (p * (quadratic @ p - 2 * products)).sum(1)
        blocks.append(_along(_log_density(error, variance), places))
    return torch.cat(blocks, 1)


def _sums_before(total, terms):
    """Sums of the terms before each place, and of all."""
    sums = torch.cat([total[None], terms]).cumsum(0)
    return sums[:-1], sums[-1]


def _log_density(squared_error, variance):
    return -0.5 * (LOG_2PI + variance.log() + squared_error / variance)


def _along(log_prob, places):
    """The mean over features from each place on, and the one at the place; (2, t)."""
    n_features = log_prob.shape[1]
    later = torch.arange(n_features, device=places.device) >= places[:, None]
    scores = torch.where(later, log_prob, 0.0).sum(1) / (n_features - places)
    following = log_prob.gather(1, places[:, None])[:, 0]
    return torch.stack([scores, following])


def _by_rows(X, orders, parameters):
    """Score rows along orders, or orders for each; O(n d (d + k) k) an order."""
    if orders.ndim == 2:
        orders = orders[:, None].expand(-1, len(X), -1)
    size = max(1, ROWS_BYTES // (8 * orders[:, 0].numel()))
    sums = 0
    for rows, own in zip(X.split(size), orders.split(size, 1), strict=True):
        scores = _score_rows(rows.repeat(len(own), 1), own.flatten(0, 1), parameters)
        sums = sums + scores.unflatten(2, (len(own), -1)).sum(3).permute(1, 2, 0)
    return sums / len(X)


def _score_rows(X, order, parameters):
    """Score rows, each along its order; (d, 2, n)."""
    W, noise = parameters.components, parameters.noise_variance
    n_components, n_features = W.shape
    # of the features to come, in the order of each row
    error = (X - parameters.mean).gather(1, order)
    present = (~torch.isnan(error)).to(X.dtype)
    error = error.nan_to_num_()
    variance = (noise + (W**2).sum(0))[order]
    covariance = torch.eye(n_components).to(W).repeat(len(X), 1, 1)
    scores = X.new_empty(n_features, 2, len(X))
    for t in range(n_features):
        log_prob = _log_density(error**2, variance).mul_(present)
        scores[t, 0] = log_prob.sum(1) / (n_features - t)
        scores[t, 1] = log_prob[:, 0]
        # a missing feature tells nothing
        gain = present[:, :1] / variance[:, :1]
        # small matrices: faster than batched products
        p = (covariance * W.T[order[:, t], None]).sum(2)
        change = (p @ W).gather(1, order[:, t + 1 :])
        error = torch.addcmul(error[:, 1:], change, gain * error[:, :1], value=-1)
        variance = torch.addcmul(variance[:, 1:], change.square_(), gain, value=-1)
        variance.clamp_(min=noise)
        covariance.addcmul_((p * gain)[:, :, None], p[:, None], value=-1)
        present = present[:, 1:]
    return scores
