r"""Scores along orders of the features, for models that are integrated over z.

At a node, the joint log-probability of the first t features of an order is a running
sum. So one set of nodes gives the posterior weights of many prefixes, and a product of
two matrices their predictions of every later feature. A level is the prefixes from one
length to one and a half times that length. Its nodes are points of a mixture of the
approximate posteriors at both ends, adapted by a few points first, and the prior.

Points are shifted at random for each order and level. So the errors of integration of
different orders are independent, and show in the spread of the orders. Each row has a
shift of its own besides, so that errors of rows average out.
"""

import functools
import zlib

import numpy as np
import torch

from sklearn_mpt._latent.integration import Rows, log_joint, rows_of
from sklearn_mpt._latent.quadrature import (
    N_BITS,
    PartMoments,
    adapted,
    digits,
    mixture_nodes,
    normal_points,
    row_shifts,
    shifted,
)

BLOCK_BYTES = 2**25  # of one tensor over rows, nodes or places, and features
GROWTH = 1.5  # of the length of a prefix, from one level to the next
MAX_PLACES = 512  # prefixes of a level at most, for memory


def prefix_scores(X, orders, model, n_dims, seed):
    """Return scores along orders, averaged over rows; (2, n_orders, d).

    See the contract of `mean_chain_scores`.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    orders : int Tensor of shape (n_orders, d) or (n_orders, n, d)
    model : object
        With `propose`, `entry_log_prob` and `width` (see `integration`), and
        `standardise`, which returns the rows that these take.
    n_dims : int
        Number of latent variables.
    seed : list of int
    """
    return torch.stack([_by_order(X, o, model, n_dims, seed) for o in orders], 1)


def _by_order(X, order, model, n_dims, seed):
    key = zlib.crc32(np.ascontiguousarray(order.cpu().numpy()))
    n_nodes = 11 * n_points(n_dims)  # at most ten posteriors
    width = max(X.shape[1], model.width)
    size = max(1, BLOCK_BYTES // (8 * width * n_nodes))
    order = order.expand(len(X), -1)
    sums = 0
    for rows, places in zip(X.split(size), order.split(size), strict=True):
        rows = model.standardise(rows.double())
        rng = np.random.default_rng([*seed, key])  # the same in every chunk
        shift = row_shifts(rows_of(rows), n_dims, tuple(seed))
        sums = sums + _sum_over_rows(rows, places, model, shift, rng)
    return sums / len(X)


def _sum_over_rows(X, order, model, shift, rng):
    """Sum the scores of rows, each along its order; (2, d).

    shift : integers, of the points of each row, (n, k).
    """
    bounds, n_dims = levels(X.shape[1]), shift.shape[1]
    posteriors = [
        _propose(_prefix(X, order, bound), model, shift, rng) for bound in bounds
    ]
    parts = []
    for level in range(len(bounds) - 1):
        ends = [*posteriors[level], *posteriors[level + 1]]
        count = n_points(n_dims)
        counts = (*[count] * len(ends), count // 4)  # the last are of the prior
        points = [_points(count, shift, rng) for count in counts]
        nodes = mixture_nodes(points, ends)
        parts.append(_score_level(X, order, model, nodes, bounds[level : level + 2]))
    return torch.cat(parts, 1)


def _propose(rows, model, shift, rng):
    """Return approximate posteriors, adapted by a few nodes if there are several."""
    posteriors = model.propose(rows)
    if len(posteriors) == 1:
        return posteriors
    count = n_points(shift.shape[1]) // 4
    points = [_points(count, shift, rng) for _ in range(len(posteriors) + 1)]
    nodes = mixture_nodes(points, posteriors)
    joint = log_joint(rows, nodes, model)
    return adapted(posteriors, [PartMoments.of(nodes, joint, posteriors)])


def n_points(n_dims):
    """Number of points for each approximate posterior."""
    return 64 * 2 ** min(1, (n_dims - 1) // 4)


def levels(n_features):
    """Return the lengths of prefixes at which levels begin, and n_features."""
    bounds = [0]
    while bounds[-1] < n_features:
        start = bounds[-1]
        end = min(max(start + 1, int(GROWTH * start)), start + MAX_PLACES)
        bounds.append(min(n_features, end))
    return bounds


def _prefix(X, order, length):
    """Return rows of which the first features of each order are observed."""
    present = ~torch.isnan(X)
    seen = torch.zeros_like(present).scatter_(1, order[:, :length], True)
    return Rows(torch.nan_to_num(X), present, present & seen)


def _points(count, shift, rng):
    """Quasi-random points of the standard normal, of shape (n, count, n_dims)."""
    of_all = rng.integers(2**N_BITS, size=shift.shape[1])
    of_all = torch.from_numpy(of_all).to(shift.device)
    points = _shared_points(count, shift.shape[1]).to(shift.device)
    return shifted(points, (shift ^ of_all)[:, None])


@functools.lru_cache(maxsize=32)
def _shared_points(count, n_dims):
    return torch.from_numpy(digits(normal_points(count, n_dims, 0, 1)[0]))


def _score_level(X, order, model, nodes, bounds):
    """Sum over rows the scores of the prefixes from one bound to the next; (2, t)."""
    first, last = bounds
    log_prob = model.entry_log_prob(torch.nan_to_num(X), nodes.z)
    n_nodes, n_features = log_prob.shape[1:]
    # shape: (n, s, d), in the order of each row
    log_prob = log_prob.gather(2, order[:, None].expand(-1, n_nodes, -1))
    present = (~torch.isnan(X)).gather(1, order).to(log_prob.dtype)
    seen = log_prob * present[:, None]
    joint = nodes.log_weight + seen[..., :first].sum(2)
    running = seen[..., first:last].cumsum(2)
    joint = torch.cat([joint[..., None], joint[..., None] + running], 2)
    following = torch.logsumexp(joint, 1).diff(dim=1)  # of the next feature alone
    joint, later = joint[..., :-1], log_prob[..., first:]
    peak = later.amax(1, keepdim=True)
    average = torch.softmax(joint, 1).mT @ (later - peak).exp_()
    tiny = torch.finfo(average.dtype).tiny
    predicted = (average.clamp_(min=tiny).log_() + peak) * present[:, None, first:]
    by_place = predicted.sum(0).triu()  # shape: (t, d - first); features to come
    by_place.diagonal().copy_(following.sum(0))  # never an underflow
    n_left = n_features - torch.arange(first, last, device=X.device)
    return torch.stack([by_place.sum(1) / n_left, by_place.diagonal()])
