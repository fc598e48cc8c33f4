r"""Scores along orders of the features, for models that are integrated over z.

At a node, the joint log-probability of the first t features of an order is a running
sum. So one set of nodes gives the posterior weights of many prefixes, and a product of
two matrices their predictions of every later feature. A level is the prefixes from one
length to one and a half times that length. Its nodes are points of a mixture of the
approximate posteriors at both ends, adapted by a few points first, and the prior.

Points are shifted at random for each order and level. So the errors of integration of
different orders are independent, and show in the spread of the orders. Each row has a
shift of its own besides, so that errors of rows average out.

Where all rows share the nodes of grids over the prior, these serve all prefixes of all
orders, and the log-probabilities of entries at the nodes are computed only once.
"""

import functools
import zlib

import numpy as np
import torch
from sklearn.utils import gen_batches

from sklearn_mpt._latent.integration import Rows, log_joint, rows_of
from sklearn_mpt._latent.quadrature import (
    N_BITS,
    PartMoments,
    adapted,
    digits,
    log_mean_exp,
    mixture_nodes,
    normal_points,
    row_shifts,
    shifted,
    total_and_shares,
)

BLOCK_BYTES = 2**25  # of one tensor over rows, nodes or places, and features
GROWTH = 1.5  # of the length of a prefix, from one level to the next
MAX_PLACES = 512  # prefixes of a level at most, for memory
SHARED_BYTES = 2**22  # of one tensor over rows, features and shared nodes; fits caches


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


def integrate_along(rows, orders, rule, model):
    """Return log p(x_j | features before j) at shared nodes, and its error.

    The values are those of `integrate_conditionals`, one call for each prefix.

    Parameters
    ----------
    rows : Rows
        All entries that are present are observed.
    orders : int Tensor of shape (n, n_orders, d)
    rule : PriorGrids
    model : object
        With `entry_log_prob`; see `integration`.

    Returns
    -------
    log_prob, error : Tensor of shape (n, n_orders, d)
        By feature; 0.0 for missing entries.
    """
    n_nodes = max(len(z) for z, _ in rule.groups)
    size = max(1, SHARED_BYTES // (8 * n_nodes * (orders.shape[2] + 1)))
    found = [
        _along_orders(rows.take(part), orders[part], rule, model)
        for part in gen_batches(len(orders), size)
    ]
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def _along_orders(rows, orders, rule, model):
    """Compute `integrate_along` for a few rows."""
    tables = []  # log-probabilities of entries at nodes, (n, d, s)
    for z, _ in rule.groups:
        table = model.entry_log_prob(rows.X, z[None]).mT.contiguous()
        tables.append(table.masked_fill_(~rows.present[..., None], 0.0))
    value, error = rows.X.new_empty(2, *orders.shape)
    for i, order in enumerate(orders.unbind(1)):
        totals, shares = zip(
            *(
                total_and_shares(_running_sums(table, order, log_weight).flatten(0, 1))
                for table, (_, log_weight) in zip(tables, rule.groups, strict=True)
            ),
            strict=True,
        )
        totals = torch.stack(totals).unflatten(1, (len(order), -1))
        each, pooled = totals.diff(dim=2), log_mean_exp(totals, 0).diff(dim=1)
        found = (each - pooled).exp().diff(dim=0)[0].abs()
        unresolved = rule.unresolved(shares[0]).view_as(totals[0])[:, :-1]
        found[unresolved & rows.present.gather(1, order)] = torch.inf
        value[:, i].scatter_(1, order, pooled)
        error[:, i].scatter_(1, order, found)
    return value, error


def _running_sums(table, order, log_weight):
    """Return log p(first t features, z) at nodes, for each t from 0; (n, d + 1, s)."""
    n_rows, n_features, n_nodes = table.shape
    every = torch.arange(n_rows, device=table.device)
    sums = table.new_empty(n_rows, n_features + 1, n_nodes)
    sums[:, 0] = log_weight
    for t in range(n_features):
        torch.add(sums[:, t], table[every, order[:, t]], out=sums[:, t + 1])
    return sums
