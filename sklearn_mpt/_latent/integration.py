"""Integrals over the latent variables: likelihoods, conditionals, posterior averages.

They are sums over the nodes that a rule places for each row (see `rules`), with the
rule's estimate of the error. A model says how:

- ``propose(rows)``: approximate posteriors of z, as the rule's ``place`` takes them;
- ``entry_log_prob(X, z)``: log p(x_j | z) of rows X, of shape (n, d), each at nodes of
  its own, of shape (n, s, k); of shape (n, s, d).
"""

from typing import NamedTuple

import torch

BLOCK_BYTES = 2**25  # of one tensor over rows, nodes and features


class Rows(NamedTuple):
    """Rows, and what is seen of them."""

    X: torch.Tensor  # shape: (n, d), 0.0 if missing
    present: torch.Tensor  # shape: (n, d), bool
    observed: torch.Tensor  # shape: (n, d), bool: present and not hidden

    def take(self, index):
        return Rows(*(tensor[index] for tensor in self))


def rows_of(X, mask=None):
    """Return the rows X, of shape (n, d), with the entries of the mask hidden."""
    present = ~torch.isnan(X)
    observed = present if mask is None else present & ~mask
    return Rows(torch.nan_to_num(X), present, observed)


def log_joint(rows, nodes, model):
    """Log of each node's share of p(observed entries), of shape (n, s)."""
    if nodes.z.ndim == 2:  # shared by all rows
        return nodes.log_weight + _shared_log_prob(rows, nodes.z, model)
    observed = rows.observed.to(rows.X.dtype)[..., None]
    shares = [
        (model.entry_log_prob(rows.X, z) @ observed)[..., 0]
        for z in _blocks(nodes.z, rows)
    ]
    return nodes.log_weight + torch.cat(shares, 1)


def _shared_log_prob(rows, z, model):
    observed = rows.observed.to(rows.X.dtype)
    X = rows.X * observed
    return model.likelihood.pair_log_prob(X, observed, model.location(z))


def _blocks(z, rows):
    """Split the nodes so that a tensor over rows, nodes and features fits."""
    return z.split(max(1, BLOCK_BYTES // (8 * rows.X.numel())), 1)


def integrate_log_prob(rows, rule, model):
    """Log density of what is observed, and its error; (n,) each."""
    posterior = None if rule.is_shared else model.propose(rows)
    logs = [
        torch.logsumexp(log_joint(rows, rule.place(group, posterior, rows), model), 1)
        for group in rule.groups
    ]
    return rule.combine_logs(torch.stack(logs))


def integrate_average(function, rows, rule, model):
    """E f(z) given what is observed, and its error; (n, p) each.

    function : from nodes (n, s, k) to values (n, s, p).
    """
    posterior = None if rule.is_shared else model.propose(rows)
    logs, averages = [], []
    for group in rule.groups:
        nodes = rule.place(group, posterior, rows)
        joint = log_joint(rows, nodes, model)
        logs.append(torch.logsumexp(joint, 1))
        averages.append(_average(function, rows, nodes.z, torch.softmax(joint, 1)))
    return rule.combine(torch.stack(averages), torch.stack(logs))


def _average(function, rows, z, weight):
    if z.ndim == 2:
        return weight @ function(z)
    blocks = _blocks(z, rows)
    weights = weight.split(blocks[0].shape[1], 1)
    return sum(
        (w[:, None] @ function(block))[:, 0]
        for block, w in zip(blocks, weights, strict=True)
    )


def integrate_conditionals(rows, rule, model):
    """log p(x_j | observed) of present entries that are hidden, and its error."""

    def density(z):
        return model.entry_log_prob(rows.X, z).exp()

    if rule.is_shared:
        average, error = _shared_conditionals(rows, rule, model)
    else:
        average, error = integrate_average(density, rows, rule, model)
    average = average.clamp(min=torch.finfo(average.dtype).tiny)
    hidden = rows.present & ~rows.observed
    return (
        torch.where(hidden, average.log(), 0.0),
        torch.where(hidden, error / average, 0.0),
    )


def _shared_conditionals(rows, rule, model):
    """Mean probabilities by products of two matrices, and their error; (n, d) each."""
    logs, averages = [], []
    for nodes in (rule.place(group, None, rows) for group in rule.groups):
        joint = log_joint(rows, nodes, model)
        logs.append(torch.logsumexp(joint, 1))
        r, location = torch.softmax(joint, 1), model.location(nodes.z)
        averages.append(model.likelihood.expected_prob(rows.X, r, location))
    return rule.combine(torch.stack(averages), torch.stack(logs))


def refine(estimate, rules, tolerance):
    """Estimate rows by the first rule, those not yet accurate by the next, and so on.

    An entry keeps the first estimate that is accurate, so that it does not depend on
    other rows, nor on other entries of its row.

    estimate : callable
        From a rule and the indices of rows to value and error, of shape (n, ...).
    rules : iterable
    tolerance : float
    """
    rules = iter(rules)
    values, errors = estimate(next(rules), slice(None))
    for rule in rules:
        inaccurate = errors > tolerance
        rows = inaccurate.reshape(len(values), -1).any(1).nonzero()[:, 0]
        if len(rows) == 0:
            break
        value, error = estimate(rule, rows)
        values[rows] = torch.where(inaccurate[rows], value, values[rows])
        errors[rows] = torch.where(inaccurate[rows], error, errors[rows])
    return values, errors


def draw_latent(rows, nodes, level, model):
    """Draw one node of each row by its share of p(observed entries); (n, k).

    level : uniform random numbers, of shape (n, 1).
    """
    weight = torch.softmax(log_joint(rows, nodes, model), 1)
    chosen = (weight.cumsum(1) < level).sum(1).clamp(max=weight.shape[1] - 1)
    return nodes.z[torch.arange(len(chosen), device=chosen.device), chosen]
