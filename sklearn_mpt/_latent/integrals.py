"""Integrals over the latent variables: likelihoods, conditionals, posterior averages.

They are sums over the nodes that a rule of `quadrature` places for each row, with the
rule's estimate of the error. The joint distribution, `model`, has

- ``propose(rows)``: approximate posteriors of z, as the rule's ``place`` takes them;
- ``entry_log_prob(X, z)``: log p(x_j | z) of rows X, of shape (n, d), at the nodes of
  each row, of shape (n, s, k); of shape (n, s, d);
- ``pair_log_prob(X, observed, z)``: log p(observed | z) of each row at each node
  that all rows share, of shape (s, k); a new tensor, (n, s);
- ``width``: the largest number of values that are computed for a node.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from sklearn_mpt._latent.quadrature import (
    ComponentMoments,
    Posterior,
    adapt,
    grids,
    logsumexp_and_softmax,
    mixtures,
)
from sklearn_mpt._numbers import CACHE_ENTRIES, TINY

# Errors at which refining ends, in nats, or in units of z or of standardised features:
# of quadrature, where smaller ones are reported as 0, and of importance sampling.
TOLERANCE, IMPORTANCE_TOLERANCE = 1e-4, 0.02
# Points around the mode and from the prior in each replicate, for rule after rule. A
# ninth of the points is from the prior, so that no weight of a point, over the
# likelihood there, is larger than 9. Each rule has twice the points of the one before,
# so that all rules of a row cost less than twice its last one.
IMPORTANCE_POINTS = [(2**power, 2 ** (power - 3)) for power in range(5, 11)]
# In training: at first, and at the end. Time and memory of a step grow with the points;
# the errors of sums over rows fall with their square root at least, so that four times
# as many at the end halve them.
TRAINING_POINTS, FINE_POINTS = IMPORTANCE_POINTS[1], IMPORTANCE_POINTS[3]
# Largest number of nodes of a grid for integrals of one row, and of a grid that rows
# share. The values of 100 features at so many nodes take 26 MB.
MAX_GRID_NODES = 2**15
# Standard error of random points over that of quasi-random ones, at least. What it is
# for numbers of points is in benchmarks/RESULTS.rst, "Quasi-random points".
QUASI_RANDOM_GAIN = 2


class Accuracy(NamedTuple):
    """The accuracy of integrals: rules, and the error at which refining ends."""

    rules: Callable[[], Iterator]  # yields rules, each finer than the one before
    tolerance: float
    n_nodes: int  # number of nodes for which chunks of rows fit into memory
    is_quadrature: bool  # whether errors below the tolerance count as 0
    pilot: Callable | None = None  # makes a rule by which posteriors are adapted first

    def coarse(self, n_rules):
        """Return the accuracy of the first rules alone."""
        return self._replace(rules=lambda: itertools.islice(self.rules(), n_rules))

    def without_shared(self):
        """Return the accuracy of the rules whose nodes rows do not share."""
        return self._replace(
            rules=lambda: (rule for rule in self.rules() if not rule.is_shared)
        )

    def finest(self):
        """Return the accuracy of the last rule alone."""
        *_, last = self.rules()
        return self._replace(rules=lambda: iter([last]))


def quadrature(
    n_dims,
    device,
    *,
    sizes=(4, 6, 9, 13, 19, 28, 41, 60, 90),
    max_nodes=MAX_GRID_NODES,
    tolerance=TOLERANCE,
):
    """Return the accuracy of product grids.

    Three grids estimate an error, because two may agree by chance.

    Parameters
    ----------
    n_dims : int
    device : torch.device
    sizes : sequence of int
        Numbers of nodes in a dimension, from coarse to fine grids.
    max_nodes : int
        Largest number of nodes of a grid.
    tolerance : float
        Error at which refining ends, in nats, or in units of z or of standardised
        features.
    """

    def rules():
        for few, many in itertools.pairwise(sizes):
            if many**n_dims <= max_nodes:
                yield grids((few, (few + many) // 2, many), n_dims, device)

    n_nodes = sizes[1] ** n_dims
    return Accuracy(rules, tolerance, n_nodes, is_quadrature=True)


def importance(
    counts, n_dims, device, seed, tolerance=IMPORTANCE_TOLERANCE, pilot=None
):
    """Return the accuracy of mixtures.

    Rules share no points. If they did, posteriors would be adapted to the points that
    are used next, and likelihoods would be too low.

    Parameters
    ----------
    counts : sequence of tuple of int
        Numbers of points of each part of the mixture, for rule after rule.
    n_dims : int
    device : torch.device
    seed : tuple of int
    tolerance : float
        Error at which refining ends, in nats, or in units of z or of standardised
        features.
    pilot : tuple of int, default=None
        Numbers of points of the rule that only adapts posteriors, if there is one.
    """

    def rules():
        for i, count in enumerate(counts):
            yield mixtures(count, n_dims, device, (*seed, i))

    first = None if pilot is None else partial(mixtures, pilot, n_dims, device, seed)
    # all rows need the nodes of the first rule, and later rules compute in blocks
    return Accuracy(rules, tolerance, sum(IMPORTANCE_POINTS[0]), False, first)


class ObservedRows(NamedTuple):
    """Rows, which entries are observed, and approximate posteriors, if computed."""

    X: torch.Tensor  # shape: (n, d), 0.0 if missing
    present: torch.Tensor  # shape: (n, d), bool
    observed: torch.Tensor  # shape: (n, d), bool: present and not hidden
    posteriors: Sequence[Posterior] = ()
    moments: list[ComponentMoments] | None = None  # gets those of weighted nodes

    def take(self, index):
        tensors = (tensor[index] for tensor in self[:3])
        return ObservedRows(
            *tensors, [posterior.take(index) for posterior in self.posteriors]
        )

    def with_observed(self, observed):
        return ObservedRows(self.X, self.present, observed)


def rows_of(X, mask=None):
    """Return the rows X, of shape (n, d), with the entries of the mask hidden."""
    present = ~torch.isnan(X)
    observed = present if mask is None else present & ~mask
    return ObservedRows(torch.nan_to_num(X), present, observed)


def _weighted(rows, rule, model, visit=None):
    """Yield the nodes of each group, and the logs of their terms; see `log_joint`."""
    posteriors = None if rule.is_shared else rows.posteriors or model.propose(rows)
    for group in rule.groups:
        nodes = rule.place(group, posteriors, rows)
        joint = log_joint(rows, nodes, model, visit)
        if rows.moments is not None:
            rows.moments.append(ComponentMoments.from_nodes(nodes, joint, posteriors))
        yield nodes, joint


def log_joint(rows, nodes, model, visit=None):
    """Return the log of each node's term of p(observed entries); (n, s)."""
    # visit : callable, gets the log-probabilities of entries at some nodes, (n, t, d),
    # and the result there, (n, t); nodes of each row only.
    if nodes.z.ndim == 2:  # shared by all rows
        observed = rows.observed.to(rows.X.dtype)
        log_prob = model.pair_log_prob(rows.X * observed, observed, nodes.z)
        return log_prob.add_(nodes.log_weight)
    observed = rows.observed.to(rows.X.dtype)[..., None]
    # Memory is allocated once: results of blocks that stay in memory between large
    # tensors would fragment it.
    terms, end = rows.X.new_empty(len(rows.X), nodes.z.shape[1]), 0
    log_weight = nodes.log_weight.expand(terms.shape)
    for z in _blocks(nodes.z, rows, model):
        first, end = end, end + z.shape[1]
        entries = model.entry_log_prob(rows.X, z)
        part = log_weight[:, first:end] + (entries @ observed)[..., 0]
        terms[:, first:end] = part
        if visit is not None:
            visit(entries, part)
    return terms


def _blocks(z, rows, model):
    """Split the nodes so that a tensor over rows, nodes and features fits."""
    # So does one over rows, nodes and the `width` of the joint.
    n_rows, n_features = rows.X.shape
    width = max(n_features, model.width)
    return z.split(max(1, CACHE_ENTRIES // (n_rows * width)), 1)


def integrate_log_prob(rows, rule, model):
    """Return the log density of observed entries, its error and its random error."""
    # All are (n,). The random error is that of random points, scaled. It decides when
    # refining ends: if the error decided, refining would end where it is small by
    # chance. Nodes that are not random have none.
    if rule.is_shared:
        logs, unresolved = [], None
        for _, joint in _weighted(rows, rule, model):
            total, weight = logsumexp_and_softmax(joint)
            logs.append(total)
            if unresolved is None:
                unresolved = rule.unresolved(weight)
        value, error = rule.combine_logs(torch.stack(logs))
        error[unresolved] = torch.inf
        return value, error
    joints = [joint for _, joint in _weighted(rows, rule, model)]
    logs = torch.stack([torch.logsumexp(joint, 1) for joint in joints])
    value, error = rule.combine_logs(logs)
    if not rule.is_random:
        return value, error
    return value, error, random_error(torch.cat(joints, 1))


def random_error(joint):
    """Return the standard error of quasi-random points; (n,)."""
    # joint : log weights of the points, (n, s).
    concentration = torch.logsumexp(2 * joint, 1) - 2 * torch.logsumexp(joint, 1)
    variance = (concentration.exp() - 1 / joint.shape[1]).clamp(min=1e-12)
    return variance.sqrt() / QUASI_RANDOM_GAIN


def integrate_average(function, rows, rule, model):
    """Return E[f(z) | observed entries], and its error; (n, p) each."""
    # With random points also their standard error, which decides when refining ends.
    # function : from nodes (n, s, k) to values (n, s, p).
    joints, averages, squares = [], [], []

    def with_squares(z):
        values = function(z)
        return torch.cat([torch.ones_like(values[..., :1]), values, values**2], -1)

    for nodes, joint in _weighted(rows, rule, model):
        joints.append(joint)
        weight = torch.softmax(joint, 1)
        averages.append(_average(function, rows, nodes.z, weight, model))
        if rule.is_random:
            part = _average(with_squares, rows, nodes.z, weight**2, model)
            squares.append(part)
    logs = torch.stack([torch.logsumexp(joint, 1) for joint in joints])
    value, error = rule.combine(torch.stack(averages), logs)
    if rule.is_shared:
        error[rule.unresolved(joints[0].softmax(1))] = torch.inf
    if not rule.is_random:
        return value, error
    # sums of squared weights, alone, times values and times their squares
    square = torch.softmax(logs, 0)[..., None] ** 2
    square, n_values = (square * torch.stack(squares)).sum(0), value.shape[1]
    total, first, second = square.split([1, n_values, n_values], 1)
    variance = second - 2 * value * first + value**2 * total
    return value, error, variance.clamp(min=0).sqrt()


def _average(function, rows, z, weight, model):
    if z.ndim == 2:
        return weight @ function(z)
    blocks = _blocks(z, rows, model)
    weights = weight.split(blocks[0].shape[1], 1)
    return sum(
        (w[:, None] @ function(block))[:, 0]
        for block, w in zip(blocks, weights, strict=True)
    )


def integrate_conditionals(rows, rule, model):
    """Return log p(x_j | observed) of hidden entries, else 0.0, and its error."""
    joints, averages, block_sums = [], [], []

    def visit(entries, joint):
        block_sums.append(torch.logsumexp(entries + joint[..., None], 1))

    for nodes, joint in _weighted(rows, rule, model, visit):
        joints.append(joint)
        if rule.is_shared:  # mean probabilities
            r, location = torch.softmax(joint, 1), model.location(nodes.z)
            averages.append(model.likelihood.expected_prob(rows.X, r, location))
        else:  # and their logarithms
            averages.append(torch.logsumexp(torch.stack(block_sums), 0))
            block_sums.clear()
    averages = torch.stack(averages)
    logs = torch.stack([torch.logsumexp(joint, 1) for joint in joints])
    if rule.is_shared:
        average, error = rule.combine(averages, logs)
        error[rule.unresolved(joints[0].softmax(1))] = torch.inf
        # terms of smaller probabilities may underflow: nodes of each row estimate them
        error = torch.where(average > TINY, error / average, torch.inf)
        log_average = average.clamp(min=TINY).log()
    else:
        averages = averages - logs[..., None]
        log_average, error = rule.combine_log_averages(averages, logs)
    hidden = rows.present & ~rows.observed
    return torch.where(hidden, log_average, 0.0), torch.where(hidden, error, 0.0)


def conditionals_by_difference(rows, entries, integrate):
    """Return log p(x_j, observed) - log p(observed) of single entries, and its error.

    Nodes are placed where the hidden value is likely. Therefore the difference is
    accurate for values that are far from their expectation, and for those that
    determine z more closely than all others.

    entries : indices of rows and of features. integrate : callable, returns
    log p(observed) of rows and its error.
    """
    row_index, feature = entries
    unique_rows, number = row_index.unique(return_inverse=True)
    observed = rows.observed[row_index]
    observed[torch.arange(len(row_index), device=row_index.device), feature] = True
    joint, joint_error, *_ = integrate(rows.take(row_index).with_observed(observed))
    before, error, *_ = integrate(
        rows.take(unique_rows).with_observed(rows.observed[unique_rows])
    )
    return joint - before[number], torch.hypot(joint_error, error[number])


def refine(estimate, rules, tolerance, random_error_fraction=0.75):
    """Estimate rows by the first rule, inaccurate ones by the next, up to the last.

    An entry keeps the first estimate that is accurate, so that it does not depend on
    other rows, nor on other entries of its row.

    estimate : callable
        Takes a rule and the indices of rows; returns value and error, of shape
        (n, ...), and the random error that decides on refining, if it is not the error.
    rules : iterable
    tolerance : float
    random_error_fraction : float
        Refining ends where weights, and with them errors, are small by chance.
        Therefore this fraction of the random error is added to errors of refined rows.

    Returns value, error and random error.
    """
    rules = iter(rules)
    best = _estimated(estimate, next(rules), slice(None))
    for rule in rules:
        inaccurate = best[2] > tolerance
        rows = inaccurate.reshape(len(inaccurate), -1).any(1).nonzero()[:, 0]
        if len(rows) == 0:
            break
        estimate_of_rule = _estimated(estimate, rule, rows, random_error_fraction)
        for old, new in zip(best, estimate_of_rule, strict=True):
            old[rows] = torch.where(inaccurate[rows], new, old[rows])
    return best


def refine_rows(function, rows, accuracy, model):
    """Refine a function of rows, rule and model; see `refine`."""
    # If there is a pilot, the posteriors of a row are adapted to the weights of the
    # nodes of each rule before the next.
    if not accuracy.is_quadrature:
        rows = rows._replace(posteriors=model.propose(rows))
    if accuracy.pilot is None:

        def estimate_of(rule, index):
            return function(rows.take(index), rule, model)

        return refine(estimate_of, accuracy.rules(), accuracy.tolerance)
    posteriors = [
        Posterior(*map(torch.clone, posterior)) for posterior in rows.posteriors
    ]
    rows = rows._replace(posteriors=posteriors)

    def estimate(rule, index, function=function):
        selected = rows.take(index)._replace(moments=[])
        result = function(selected, rule, model)
        new = adapt(selected.posteriors, selected.moments)
        for stored, part in zip(posteriors, new, strict=True):
            for tensor, other in zip(stored, part, strict=True):
                tensor[index] = other
        return result

    estimate(accuracy.pilot(), slice(None), integrate_log_prob)
    return refine(estimate, accuracy.rules(), accuracy.tolerance)


def _estimated(estimate, rule, rows, fraction=0.0):
    """Return value, error with a fraction of the random error, and random error."""
    value, error, *random_error = estimate(rule, rows)
    if not random_error:
        return value, error, error.clone()
    return value, torch.hypot(error, fraction * random_error[0]), *random_error
