r"""Sums over rows of likelihoods of linear models integrated over z.

Nodes have no gradient, because the integral does not depend on where they are. The
gradient in the locations is that in log p times the derivative of log p, so any
likelihood can be used.

There are four ways to integrate, classes with a method ``sums(point, joint, index)``,
which returns the `Sums` of some of the rows with these numbers, or None, and the
numbers of the rows that it leaves to another way; and, but for bounds,
``information(point, joint, accuracy)``, minus the second derivatives of all rows, or
None:

- `answers.CodedRows`: one grid for all rows, whose entries are codes; sums are products
  of two matrices;
- `SharedGrid`: one grid for all rows whose posteriors it resolves;
- `NodesOfRows`: nodes around the posterior of each row, on a grid or sampled;
- `BoundedRows`: lower bounds, by the best Gaussian of each row.
"""

import math
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._gaussian.moments import closed_form, gradients_at, moments_of
from sklearn_mpt._latent.grids import MAX_SPACING, RADIUS, coarsen, prior_grid, resolves
from sklearn_mpt._latent.integrals import log_joint, rows_of
from sklearn_mpt._latent.linear_map import (
    MODE_TOLERANCE,
    LinearMap,
    append_one,
    bound_grid,
    evidence_lower_bound,
    location_points,
    spacing,
    variational_posterior,
)
from sklearn_mpt._latent.modes import laplace
from sklearn_mpt._latent.quadrature import Nodes, logsumexp_and_softmax
from sklearn_mpt._numbers import CACHE_ENTRIES, CHUNK_ENTRIES, TINY, chunk_slices
from sklearn_mpt._optim.information import information_by_hessian
from sklearn_mpt._optim.natural import Curvature, Point, Sums
from sklearn_mpt._optim.weights import SampleWeights, distinct_rows

# Spacing of shared grids, in standard deviations of the narrowest posterior, of which
# there is a bound, where rows that these do not resolve have other nodes.
SPACING = 1.5
# Cost of a node of a single row, in nodes that rows share.
SHARED_COST = 40


class TrainingRows:
    """Rows that differ, each with the weight of all its equals.

    Parameters
    ----------
    X, weight, group, units
        As `LikelihoodRows` takes them.
    merges : bool
        Whether equal rows become one.
    """

    def __init__(self, X, weight=None, group=None, units=None, merges=True):
        n_given = len(X)
        if merges:
            keys = X.cpu().numpy()
            if group is not None:
                keys = np.column_stack([keys, group])
            kept, weight = distinct_rows(keys, weight)
            if len(kept) < n_given:
                X = X[torch.from_numpy(kept)]
                group = None if group is None else group[kept]
        self.X, self.group, self.units = X, group, units
        self.weights = SampleWeights.from_array(weight, X, n_given)

    def __len__(self):
        return len(self.X)

    def take(self, index):
        """Return some rows, standardised, in double precision, and their weights."""
        X = self.X[index].double()
        X = X if self.units is None else self.units.standardise(X)
        return X, self.weights.values[index]


def varies_in_rows(X, is_all):
    """Return 1.0 for features that may vary; others keep their coefficients."""
    if not is_all:
        return torch.ones_like(X[0]).double()
    blocks = [X[part] for part in chunk_slices(*X.shape, CHUNK_ENTRIES)]
    low = torch.stack([b.nan_to_num(nan=torch.inf).amin(0) for b in blocks]).amin(0)
    high = torch.stack([b.nan_to_num(nan=-torch.inf).amax(0) for b in blocks]).amax(0)
    return (low < high).double()


def start_components(
    X, intercept, n_components, likelihood, weight=None, max_length=3.0
):
    """Return components that nearly give features their observed correlations."""
    # max_length : of the slopes of a location, so that posteriors are resolved.
    # With small weights w_j, the gradients of entries at the intercepts, over the roots
    # s_j of their information, have the correlations s_i w_i' w_j s_j.
    gradients, size, present = gradients_at(likelihood, X, intercept, weight)
    rows = torch.from_numpy(np.where(present, gradients / size, np.nan))
    mean = rows.new_zeros(rows.shape[1])
    moments = moments_of(rows, SampleWeights.from_array(weight, rows).values, mean)
    components = closed_form(moments, n_components, 0)[0] / size
    lengths = np.linalg.norm(components, axis=0)
    components *= np.minimum(1, max_length / np.maximum(lengths, TINY))
    return components * varies(X, likelihood)


def varies(X, likelihood):
    """Return 1.0 for locations of features that are not constant, else 0.0."""
    one_if_varies = varies_in_rows(torch.tensor(X, device="cpu"), is_all=True)
    return likelihood.to_locations(one_if_varies).numpy()


class RepresentativeValues(NamedTuple):
    """A few values of each feature that stand for its entries, in the information."""

    values: torch.Tensor  # shape: (v, d); repeated where a feature has fewer
    code: torch.Tensor  # shape: (n, d): index of the value of each entry; -1 if missing

    @classmethod
    def from_rows(cls, X, number):
        """Choose all values of features that have few, and quantiles of others."""
        # X : rows (n, d), NaN where missing. number : of values at most.
        X, device = X.cpu().numpy(), X.device
        values, code = np.zeros((number, X.shape[1])), np.full(X.shape, -1)
        for j, column in enumerate(X.T):
            present = ~np.isnan(column)
            distinct_values = np.unique(column[present])
            if len(distinct_values) > number:
                level = (np.arange(number) + 0.5) / number
                quantiles = np.quantile(column[present], level, method="nearest")
                distinct_values = np.unique(quantiles)
            if len(distinct_values):
                values[:, j] = distinct_values[-1]
                values[: len(distinct_values), j] = distinct_values
                limits = (distinct_values[1:] + distinct_values[:-1]) / 2
                code[present, j] = np.searchsorted(limits, column[present])
        return cls(*(torch.from_numpy(part).to(device) for part in (values, code)))

    def indicators(self, rows, like):
        """Return 1.0 for the value of each entry of some rows, else 0.0; (n, v, d)."""
        number = torch.arange(len(self.values), device=self.code.device)[:, None]
        return (self.code[rows][:, None] == number).to(like)


class BoundedRows:
    """Evidence lower bounds of rows, each at the best Gaussian of its row."""

    def __init__(self, rows, blocks, seed):
        self.rows, self.blocks, self.seed = rows, blocks, seed

    def sums(self, point, joint, index):
        grid, total = bound_grid(joint, self.seed), None
        n_entries = len(point.coefs) * len(grid[1])
        for part in chunk_slices(len(index), n_entries, CACHE_ENTRIES):
            X, weight = self.rows.take(index[part])
            sums = self._sums(rows_of(X), weight, joint, grid)
            total = sums if total is None else total + sums
        return total, index[:0]

    def _sums(self, rows, weight, joint, grid):
        # Each row has the Gaussian posterior that nearly maximises its bound, so the
        # gradient is taken at fixed posteriors. By Stein's identity, the mean of
        # derivative times z follows from the means of derivative and information.
        posterior = variational_posterior(rows, joint, grid)
        points, node_weight = location_points(posterior, joint, grid), grid[1].exp()
        likelihood, X = joint.likelihood, rows.X[:, None]
        observed_weight = (
            node_weight[:, None] * (weight[:, None] * rows.observed)[:, None]
        )
        z = append_one(posterior.mean)
        at_points = z[:, None].expand(-1, points.shape[1], -1)
        shape_params = likelihood.shape_sums(X, points, observed_weight, at_points)
        derivative, information = derivatives_of(likelihood, X, points, self.blocks)
        derivative, information = (
            likelihood.to_locations(observed_weight) * t
            for t in (derivative, information)
        )
        covariance = posterior.root.mT @ posterior.root
        information = information.sum(1)
        gradient = derivative.sum(1).T @ z
        if likelihood.n_locations == 1:
            gradient[:, :-1] -= torch.einsum(
                "nd,nkl,ld->dk", information, covariance, joint.components
            )
        else:
            moved = (grid[0] @ posterior.root).flatten(0, 1)
            gradient[:, :-1] += derivative.flatten(0, 1).T @ moved
        second = z[:, :, None] * z[:, None]
        second[:, :-1, :-1] += covariance
        full = (information.T @ second.flatten(1)).unflatten(1, second.shape[1:])
        value = evidence_lower_bound(rows, posterior, joint, grid)
        return sums_of(value, weight, gradient, full, shape_params)


class NodesOfRows:
    """Likelihoods of rows by nodes around the posterior of each, on a grid or sampled.

    rule : GaussHermite or PosteriorMixture, of one group.
    """

    def __init__(self, rows, blocks, rule):
        self.rows, self.blocks, self.rule = rows, blocks, rule
        self._modes = None

    def sums(self, point, joint, index):
        # Posteriors are found for more rows at a time than there are in a block, from
        # where they were before.
        if self._modes is None:
            shape = len(self.rows), joint.n_dims
            self._modes = joint.intercept.new_zeros(shape)
        total = None
        n_entries = len(joint.intercept) * self.rule.n_nodes
        for part in chunk_slices(len(index), joint.components.numel(), CACHE_ENTRIES):
            X, weight = self.rows.take(index[part])
            rows, start = rows_of(X), self._modes[index[part]]
            posterior, _ = laplace(rows, joint, start, tol=MODE_TOLERANCE)
            self._modes[index[part]] = posterior.mean
            for block in chunk_slices(len(X), n_entries, CACHE_ENTRIES // 2):
                taken, near = rows.take(block), [posterior.take(block)]
                nodes = self.rule.place(self.rule.groups[0], near, taken)
                args = taken, nodes, joint, weight[block], self.blocks
                sums = row_node_sums(*args)
                total = sums if total is None else total + sums
        return total, index[:0]

    def information(self, point, joint, accuracy):
        X, weight = self.rows.take(slice(None))
        return information_by_nodes(rows_of(X), weight, joint, accuracy)


class SharedGrid:
    """Likelihoods of rows by nodes of one grid over the prior.

    It leaves rows that it does not resolve. The gradient is that of products of
    matrices. The information is computed at the representative values of entries.

    number : of representative values of a feature. max_nodes : wider grids have fewer.
    """

    def __init__(self, rows, blocks, number, max_nodes):
        self.rows, self.blocks = rows, blocks
        self.number, self.max_nodes = number, max_nodes

    @cached_property
    def _representative(self):
        return RepresentativeValues.from_rows(
            self.rows.take(slice(None))[0], self.number
        )

    def sums(self, point, joint, index):
        values = self._representative.values
        steps = spacing(joint, SPACING, values)
        steps = coarsen(steps, self.max_nodes, [RADIUS] * joint.n_dims, MAX_SPACING)
        z, log_weight = prior_grid(steps, point.coefs)
        nodes = append_one(z)
        with torch.enable_grad():
            location = joint.location(z).detach().requires_grad_()
            shape_params = point.shape_params.detach().requires_grad_()
            likelihood = joint.likelihood.at(shape_params)
        found, total, left = [], 0.0, []
        for part in index.tensor_split(math.ceil(len(index) * len(z) / CACHE_ENTRIES)):
            X, weight = self.rows.take(part)
            rows = rows_of(X)
            observed = rows.observed.to(X.dtype)
            with torch.enable_grad():
                args = rows.X * observed, observed, location
                log_prob = likelihood.pair_log_prob(*args)
            value, r = logsumexp_and_softmax(log_prob.detach() + log_weight)
            is_resolved = resolves(r, z, steps, RADIUS)
            r = torch.where(is_resolved, weight, 0.0)[:, None] * r
            with torch.enable_grad():
                torch.dot(log_prob.flatten(), r.flatten()).backward()
            indicators = self._representative.indicators(part, X)
            known = (r.T @ indicators.flatten(1)).unflatten(1, indicators.shape[1:])
            total = total + known.movedim(1, 0)
            found.append(torch.stack([value[is_resolved], weight[is_resolved]]))
            left.append(part[~is_resolved])
        location_gradient, shape_gradient = location.grad, shape_params.grad
        location = location.detach()
        if shape_gradient is None:
            shape_gradient = torch.zeros_like(point.shape_params)
        shape = len(values), -1, -1
        at = location.expand(shape), total, nodes.expand(shape)
        _, shape_information = joint.likelihood.shape_sums(values[:, None], *at)
        args = joint.likelihood, values[:, None], location[None], self.blocks
        _, information = derivatives_of(*args)
        information = (information * joint.likelihood.to_locations(total)).sum(0)
        shape_params = shape_gradient, shape_information
        gradient, full = location_gradient.T @ nodes, outer_sums(information, nodes)
        sums = sums_of(*torch.cat(found, 1), gradient, full, shape_params)
        return sums, torch.cat(left)

    def information(self, point, joint, accuracy):
        return None


def derivatives_of(likelihood, X, location, blocks):
    """Return derivatives in locations, and information of one kind with blocks."""
    # That of locations beside gaps is of products of derivatives, as that of gaps: with
    # another one the matrix of both need not be positive.
    derivative, information = likelihood.derivatives(X, location)
    if blocks is not None:
        at = blocks.locations[blocks.is_log[blocks.slots[:, 0]]]
        information = information.expand_as(derivative).clone()
        information[..., at] = derivative[..., at] ** 2
    return derivative, information


def outer_sums(weight, z):
    """Return the sum of weight z z' over nodes, for each location."""
    # weight : (m, l). Returns (l, k + 1, k + 1).
    products = (z[:, :, None] * z[:, None]).flatten(1)
    return (weight.T @ products).unflatten(1, (-1, z.shape[1]))


def sums_of(value, weight, gradient, information, shape_params):
    """Return `Sums`; shape_params : gradient and information of these."""
    parts = zip((gradient, information), shape_params, strict=True)
    gradient, information = parts
    return Sums.from_rows(value, weight, Point(*gradient), Curvature(*information))


def row_node_sums(rows, nodes, joint, weight, blocks):
    """Return sums of log marginal likelihoods, with nodes by row."""
    # weight : weights of the rows. blocks : `shape_blocks` of the likelihood.
    z, X, likelihood = append_one(nodes.z), rows.X[:, None], joint.likelihood
    location = joint.location(nodes.z)
    log_prob = likelihood.entry_log_prob(X, location)
    visible = rows.observed.to(z.dtype)
    joint = nodes.log_weight + (log_prob @ visible[..., None])[..., 0]
    value, r = logsumexp_and_softmax(joint)
    r, known = weight[:, None] * r, visible[:, None]
    shape_params = likelihood.shape_sums(X, location, r[..., None] * known, z)
    derivative, information = derivatives_of(likelihood, X, location, blocks)
    if not visible.all():
        on_locations = likelihood.to_locations(known)
        derivative, information = on_locations * derivative, on_locations * information
    r, z = r.flatten()[:, None], z.flatten(0, 1)
    gradient = derivative.flatten(0, 1).T @ (r * z)
    information = outer_sums(r * information.flatten(0, 1), z)
    return sums_of(value, weight, gradient, information, shape_params)


def information_by_nodes(rows, weight, joint, accuracy, *, tol=1e-4, sampling_tol=1e-2):
    """Return the observed information of coefficients and shapes, (p, p)."""

    # Minus the second derivatives of sums over nodes, which do not move. Rules are
    # refined until it changes by less than `tol`, or `sampling_tol` of importance
    # sampling, relative to its diagonal. weight : (n,).
    def lml(block, coefs, shape_params):
        part, nodes, index = block
        likelihood = joint.likelihood.at(shape_params)
        moved = LinearMap(coefs[:, :-1].T, coefs[:, -1], likelihood)
        entries = moved.entry_log_prob(part.X, nodes.z)
        observed = part.observed.to(entries.dtype)[..., None]
        total = nodes.log_weight + (entries @ observed)[..., 0]
        return weight[index] @ total.logsumexp(1)

    is_exact, information = accuracy.is_quadrature, None
    for rule in accuracy.without_shared().rules():
        before, information = information, 0.0
        for block in _blocks(rows, joint, rule, is_exact):
            of_block = information_by_hessian(partial(lml, block), *joint.point)
            information = information + of_block
        if before is None:
            continue
        unit = information.diagonal().clamp(min=TINY).rsqrt()
        difference = ((information - before) * unit * unit[:, None]).abs().max()
        if difference < (tol if is_exact else sampling_tol):
            break
    return information


def _blocks(rows, joint, rule, is_exact):
    """Yield blocks of rows, their nodes, and which rows they are."""
    # Nodes are those of the finest grid, or of all independent scramblings.
    groups = rule.groups[-1:] if is_exact else rule.groups
    n_nodes = len(groups) * rule.n_nodes
    width = joint.components.shape[1] + joint.likelihood.n_shape_params
    for index in chunk_slices(len(rows.X), n_nodes * width, CHUNK_ENTRIES):
        part = rows.take(index)
        posteriors = joint.propose(part)
        placed = [rule.place(group, posteriors, part)[:2] for group in groups]
        yield part, Nodes(*(torch.cat(p, 1) for p in zip(*placed, strict=True))), index


def information_by_scores(rows, joint, accuracy, *, max_nodes=50**2):
    """Return the sum over rows of s s', with gradients s of log p(x); (p, p)."""
    # The rule is finer than for `information_by_nodes`: directions in which the sum is
    # exactly 0 must be distinguished from others.
    *_, rule = (
        rule
        for rule in accuracy.without_shared().rules()
        if len(rule.groups[-1][0]) <= max_nodes
    )
    likelihood, total = joint.likelihood, 0.0
    features = torch.as_tensor(likelihood.shape_param_features).long()
    for part, nodes, _ in _blocks(rows, joint, rule, True):
        r = torch.softmax(log_joint(part, nodes, joint), 1)
        location = joint.location(nodes.z)
        on = part.observed.to(r.dtype)[:, None]
        score, _ = likelihood.derivatives(part.X[:, None], location)
        score = r[..., None] * likelihood.to_locations(on) * score
        shape_score = likelihood.shape_scores(part.X[:, None], location)
        if len(features):
            shape_score = on[..., features.to(on.device)] * shape_score
        coefs = (score.mT @ append_one(nodes.z)).flatten(1)
        scores = torch.cat([coefs, (r[:, None] @ shape_score)[:, 0]], 1).detach()
        total = total + scores.T @ scores
    return total
