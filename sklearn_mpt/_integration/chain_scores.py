r"""Scores along orders of the features, for models that are integrated over z.

At a node, the joint log-probability of the first t features of an order is a running
sum. So one set of nodes gives the posterior weights of all prefixes, and a product of
two matrices their predictions of every later feature. The nodes are points of the prior
and of approximate posteriors of prefixes of several lengths. Their weights are those of
a mixture of all of these, the balance heuristic [1]_. So a prefix makes use of every
point that is likely for it, and errors of the terms of a chain cancel in their sum.

Points are shifted at random for each order. So the errors of integration of different
orders are independent, and show in the spread of the orders. Rows have different
shifts, too, so that errors of rows average out.

Where all rows share the nodes of grids over the prior, these serve all prefixes of all
orders, and the log-probabilities of entries at the nodes are computed only once.

References
----------
.. [1] E. Veach and L. J. Guibas, "Optimally combining sampling techniques for Monte
   Carlo rendering", SIGGRAPH 1995.
"""

import functools
import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils import gen_batches

from sklearn_mpt._integration.integrals import rows_of
from sklearn_mpt._integration.quadrature import (
    N_BITS,
    Posterior,
    digits,
    log_mean_exp,
    logsumexp_and_softmax,
    moments,
    natural_parameters,
    normal_points,
    row_shifts,
    shifted,
    standard_normal_log_prob,
)
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices


@dataclass(frozen=True)
class ChainRules:
    """Points of scores along orders, and what is computed together.

    Attributes
    ----------
    growth : float
        Ratio of the lengths of two successive prefixes with approximate posteriors.
        With a smaller one more posteriors are computed, each with fewer points.
        Posteriors of prefixes in between are at most so many times more precise, in
        each direction of z, than one that has points, if features tell equally much.
    n_points : int
        Largest number of points of all approximate posteriors of an order together.
        The time of scores grows with it. Errors of points are part of the standard
        errors of curves.
    max_points : int
        Largest number of points of one approximate posterior, where rows are short.
    prior_ratio : int
        Number of points of the prior, as a multiple of those of a posterior. Short
        prefixes have posteriors that are close to the prior.
    n_rows : int
        Number of rows whose approximate posteriors are computed together. It bounds the
        memory of what a model computes for a row, as its nets do.
    n_prefixes : int
        Number of prefixes that are scored together. It bounds the memory: with D
        features, averages take at most 8 n_prefixes D bytes for each row.
    """

    growth: float = 1.3
    n_points: int = 1280
    max_points: int = 128
    prior_ratio: int = 4
    n_rows: int = 128
    n_prefixes: int = 512


RULES = ChainRules()


def prefix_scores(X, orders, model, n_dims, seed):
    """Return scores along orders, averaged over rows; (2, n_orders, d).

    See the contract of `mean_chain_scores`.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    orders : int Tensor of shape (n_orders, d) or (n_orders, n, d)
    model : object
        With `propose`, `propose_fewer`, `entry_log_prob` and `width` (see
        `integrals`), and `standardise`, which returns the rows that these take.
    n_dims : int
        Number of latent variables.
    seed : list of int
    """
    keys = [zlib.crc32(np.ascontiguousarray(order.cpu().numpy())) for order in orders]
    sums = 0
    for part in gen_batches(len(X), RULES.n_rows):
        rows = rows_of(model.standardise(X[part].double()))
        rows = rows._replace(posteriors=model.propose(rows))
        shift = row_shifts(rows, n_dims, tuple(seed))
        sums = sums + torch.stack(
            [
                _sum_over_rows(
                    rows,
                    (order[part] if order.ndim == 2 else order).expand_as(rows.X),
                    model,
                    shift,
                    np.random.default_rng([*seed, key]),  # the same in every chunk
                )
                for order, key in zip(orders, keys, strict=True)
            ],
            1,
        )
    return sums / len(X)


def _sum_over_rows(rows, order, model, shift, rng):
    """Sum the scores of rows, each along its order; (2, d).

    shift : integers, of the points of each row, (n, k).
    """
    parts = _posteriors(rows, order, model)
    count = n_points(order.shape[1])
    counts = [RULES.prior_ratio * count, *[count] * parts.mean.shape[1]]
    shifts = torch.from_numpy(
        rng.integers(2**N_BITS, size=(len(counts), shift.shape[1]))
    )
    shifts = shift[:, None] ^ shifts.to(shift.device)
    width = max(rows.X.shape[1], model.width)
    sums = 0
    for part in chunk_slices(len(order), width * sum(counts), CACHE_ENTRIES):
        z, log_weight = _nodes(parts.take(part), count, shifts[part])
        block = rows.take(part)
        sums = sums + _score_prefixes(block, order[part], model, z, log_weight)
    return sums


def _posteriors(rows, order, model):
    """Return approximate posteriors of prefixes of several lengths; (n, c, ...)."""
    current, parts = rows.posteriors, [*rows.posteriors]
    for length in lengths(order.shape[1])[1:]:
        current = model.propose_fewer(_prefix(rows, order, length), current)
        parts += current
    return Posterior(*(torch.stack(part, 1) for part in zip(*parts, strict=True)))


def n_points(n_features):
    """Return the number of points of each approximate posterior, a power of 2."""
    count = RULES.n_points / len(lengths(n_features))
    return min(2 ** int(math.log2(count)), RULES.max_points)


def lengths(n_features):
    """Return lengths of prefixes that have approximate posteriors, from n_features."""
    result = [n_features]
    while result[-1] > 1:
        result.append(int(result[-1] / RULES.growth))
    return result


def _prefix(rows, order, length):
    """Return rows of which the first features of each order are observed."""
    in_prefix = torch.zeros_like(rows.present).scatter_(1, order[:, :length], True)
    return rows.with_observed(rows.present & in_prefix)


def _nodes(parts, count, shifts):
    """Return nodes (n, s, k) from the prior and all parts, and log weights (n, s).

    parts : Posterior of shape (n, c, ...).
    """
    n_rows, _, n_dims = parts.mean.shape
    points = _shared_points(RULES.prior_ratio * count, n_dims).to(shifts.device)
    prior = shifted(points, shifts[:, :1])
    posterior_points = shifted(points[:count], shifts[:, 1:, None])
    posterior_points = parts.mean[:, :, None] + posterior_points @ parts.root
    z = torch.cat([prior, posterior_points.flatten(1, 2)], 1)
    # Terms of Gaussians cancel little near the narrowest one.
    centre = parts.mean[:, 0]
    flat = Posterior(*(part.flatten(0, 1) for part in parts))
    flat = flat._replace(mean=(parts.mean - centre[:, None]).flatten(0, 1))
    coefs, constant = natural_parameters(flat)
    coefs, constant = coefs.unflatten(0, (n_rows, -1)), constant.view(n_rows, 1, -1)
    deviation_moments = moments(z - centre[:, None])
    log_parts = torch.baddbmm(constant, deviation_moments, coefs.mT)
    log_prior = standard_normal_log_prob(z)
    log_prior_part = log_prior[..., None] + math.log(RULES.prior_ratio)
    log_mixture = torch.logsumexp(torch.cat([log_prior_part, log_parts], 2), 2)
    return z, log_prior - log_mixture


@functools.lru_cache(maxsize=32)
def _shared_points(count, n_dims):
    return torch.from_numpy(digits(normal_points(count, n_dims, 0, 1)[0]))


def _score_prefixes(rows, order, model, z, log_weight):
    """Sum over rows the scores of all prefixes; (2, d)."""
    row_index = torch.arange(len(order), device=z.device)[:, None]
    # shape: (n, d, s), in the order of each row
    log_prob = model.entry_log_prob(rows.X, z).mT[row_index, order]
    present = rows.present.gather(1, order).to(log_prob.dtype)
    peak, node_weights = _by_node(log_prob)
    log_prob_of_present = log_prob.mul_(present[..., None])
    joint, scores = log_weight, []
    n_features = order.shape[1]
    for first in range(0, n_features, RULES.n_prefixes):
        terms = log_prob_of_present[:, first : first + RULES.n_prefixes]
        sums = _running_sums(joint, terms.unbind(1), terms.shape)
        joint = sums[:, -1].clone()
        total, weight = _by_node(sums)
        following = total.diff(dim=1).sum(0)  # of the next feature alone
        average = weight[:, :-1] @ node_weights[:, first:].mT
        tiny = torch.finfo(average.dtype).tiny
        later = average.clamp_(min=tiny).log_() + peak[:, None, first:]
        # shape: (t, d - first); features to come
        by_place = (later * present[:, None, first:]).sum(0).triu()
        by_place.diagonal().copy_(following)  # sums of logarithms do not underflow
        n_left = n_features - first - torch.arange(len(following), device=z.device)
        scores.append(torch.stack([by_place.sum(1) / n_left, following]))
    return torch.cat(scores, 1)


def _by_node(log_values):
    """Return logs of sums over nodes, (n, t), and weights of nodes, (n, t, s)."""
    pair = logsumexp_and_softmax(log_values.flatten(0, 1))
    return [part.unflatten(0, log_values.shape[:2]) for part in pair]


def _running_sums(start, terms, shape):
    """Return `start` and its sums with the first terms; (n, t + 1, s).

    It is faster than `cumsum`.

    start : (n, s) or (s,). terms : t tensors (n, s). shape : (n, t, s).
    """
    n_rows, n_terms, n_nodes = shape
    sums = start.new_empty(n_rows, n_terms + 1, n_nodes)
    sums[:, 0] = start
    for t, term in enumerate(terms):
        torch.add(sums[:, t], term, out=sums[:, t + 1])
    return sums


def integrate_along(rows, orders, rule, model):
    """Return log p(x_j | features before j) at shared nodes, and its error.

    The values are those of `integrate_conditionals`, one call for each prefix.

    Parameters
    ----------
    rows : ObservedRows
        All entries that are present are observed.
    orders : int Tensor of shape (n, n_orders, d)
    rule : PriorGrids
    model : object
        With `entry_log_prob`; see `integrals`.

    Returns
    -------
    log_prob, error : Tensor of shape (n, n_orders, d)
        By feature; 0.0 for missing entries.
    """
    n_nodes = max(len(z) for z, _ in rule.groups)
    row_entries = n_nodes * (orders.shape[2] + 1)
    sums = [
        _along_orders(rows.take(part), orders[part], rule, model)
        for part in chunk_slices(len(orders), row_entries, CACHE_ENTRIES)
    ]
    return tuple(torch.cat(parts) for parts in zip(*sums, strict=True))


def _along_orders(rows, orders, rule, model):
    """Compute `integrate_along` for a few rows."""
    tables = []  # log-probabilities of entries at nodes, (n, d, s)
    for z, _ in rule.groups:
        table = model.entry_log_prob(rows.X, z[None]).mT.contiguous()
        tables.append(table.masked_fill_(~rows.present[..., None], 0.0))
    value, error = rows.X.new_empty(2, *orders.shape)
    for i, order in enumerate(orders.unbind(1)):
        totals, weights = zip(
            *(
                totals_along(table, order, log_weight)
                for table, (_, log_weight) in zip(tables, rule.groups, strict=True)
            ),
            strict=True,
        )
        totals = torch.stack(totals)
        rule_terms, pooled = totals.diff(dim=2), log_mean_exp(totals, 0).diff(dim=1)
        errors = (rule_terms - pooled).exp().diff(dim=0)[0].abs()
        unresolved = rule.unresolved(weights[0].flatten(0, 1))
        unresolved = unresolved.view_as(totals[0])[:, :-1]
        errors[unresolved & rows.present.gather(1, order)] = torch.inf
        value[:, i].scatter_(1, order, pooled)
        error[:, i].scatter_(1, order, errors)
    return value, error


def totals_along(table, order, log_weight):
    """Return log p(first t features) of rows, for each t from 0, and node weights.

    Parameters
    ----------
    table : Tensor of shape (n, d, s)
        Log-probabilities of entries at nodes; 0.0 for missing ones.
    order : int Tensor of shape (n, d)
    log_weight : Tensor of shape (s,)
        Log weights of the nodes.

    Returns
    -------
    total : Tensor of shape (n, d + 1)
    weight : Tensor of shape (n, d + 1, s)
        Posterior weights of the nodes.
    """
    row_index = torch.arange(len(table), device=table.device)
    terms = (table[row_index, feature] for feature in order.unbind(1))
    return _by_node(_running_sums(log_weight, terms, table.shape))
