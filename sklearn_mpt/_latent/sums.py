r"""Sums over rows of likelihoods of linear models integrated over z.

Nodes have no gradient, because the integral does not depend on where they are. The
gradient in the locations is that in log p times the derivative of log p, so any
likelihood can be used.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import Units
from sklearn_mpt._gaussian.moments import closed_form, gradients_at, moments_of
from sklearn_mpt._latent.grids import RADIUS, resolves
from sklearn_mpt._latent.integrals import log_joint
from sklearn_mpt._latent.linear_map import (
    LinearMap,
    append_one,
    evidence_lower_bound,
    location_points,
    variational_posterior,
)
from sklearn_mpt._latent.quadrature import Nodes, logsumexp_and_softmax
from sklearn_mpt._numbers import CHUNK_ENTRIES, TINY, chunk_slices
from sklearn_mpt._optim.information import information_by_hessian
from sklearn_mpt._optim.natural import Curvature, Point, Sums
from sklearn_mpt._optim.weights import SampleWeights


class RowContext(NamedTuple):
    """Facts about the training rows.

    seed : seed of samples of posteriors in many dimensions. weight : weights of the
    rows, (n,). units : units of the rows, if they are not standardised. log_scale :
    mean over rows of the logarithm that the units add to the objective. is_all :
    whether these are all rows, so that a feature that is constant in them is constant.
    n_rows : number of rows before equal ones were merged, None if they were not. group
    : number of the group of each row, (n,), None if all are of one.
    """

    seed: tuple[int, ...] = (0,)
    weight: np.ndarray | None = None
    units: Units | None = None
    log_scale: float = 0.0
    is_all: bool = True
    n_rows: int | None = None
    group: np.ndarray | None = None

    def standardise(self, X):
        """Return standardised rows in double precision."""
        return X.double() if self.units is None else self.units.standardise(X.double())


NO_CONTEXT = RowContext()


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


def sums_of_counts(expected, total, nodes, point, likelihood, values, blocks):
    """Return sums of the log marginal likelihoods of rows of codes, at shared nodes."""
    # expected : ExpectedCounts. total : of the weights of rows. nodes : (s, k). values
    # : codes of each feature, (c, d). blocks : `shape_blocks` of the likelihood.
    nodes = append_one(nodes)
    location = (nodes @ point.coefs.T)[None]
    known, X = expected.counts.permute(1, 2, 0), values[:, None]
    derivative, information = _derivatives(likelihood, X, location, blocks)
    on_locations = likelihood.to_locations(known)
    gradient = (on_locations * derivative).sum(0).T @ nodes
    full = _outer_sums((on_locations * information).sum(0), nodes)
    shape = len(values), -1, -1
    at = location.expand(shape), known, nodes.expand(shape)
    shape_params = likelihood.shape_sums(X, *at)
    value, weight = (gradient.new_tensor([part]) for part in (expected.value, total))
    return sums_of(value / weight, weight, gradient, full, shape_params)


def _derivatives(likelihood, X, location, blocks):
    """Return derivatives in locations, and information of one kind with blocks."""
    # That of locations beside gaps is of products of derivatives, as that of gaps: with
    # another one the matrix of both need not be positive.
    derivative, information = likelihood.derivatives(X, location)
    if blocks is not None:
        at = blocks.locations[blocks.is_log[blocks.slots[:, 0]]]
        information = information.expand_as(derivative).clone()
        information[..., at] = derivative[..., at] ** 2
    return derivative, information


class RepresentativeValues(NamedTuple):
    """A few values of each feature that stand for its entries, in the information."""

    values: torch.Tensor  # shape: (v, d); repeated where a feature has fewer
    code: torch.Tensor  # shape: (n, d): index of the value of each entry; -1 if missing

    @classmethod
    def from_rows(cls, X, number):
        """Choose all values of features that have few, and quantiles of others."""
        # X : rows (n, d), NaN where missing. number : of values at most.
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
        return cls(torch.from_numpy(values), torch.from_numpy(code))

    def to(self, device):
        return RepresentativeValues(*(part.to(device) for part in self))

    def indicators(self, rows, like):
        """Return 1.0 for the value of each entry of some rows, else 0.0; (n, v, d)."""
        number = torch.arange(len(self.values), device=self.code.device)[:, None]
        return (self.code[rows][:, None] == number).to(like)


def shared_likelihood_sums(parts, grid, steps, point, likelihood, values, blocks=None):
    """Return sums of the log marginal likelihoods of rows, at shared nodes.

    The gradient is that of products of matrices. The information is computed at the
    representative values of entries.

    parts : iterable of rows, their weights, and indicators of `RepresentativeValues`.
    grid, steps : as `prior_grid` returns and takes them. values : (v, d), those of
    `RepresentativeValues`. blocks : `shape_blocks` of the likelihood.

    Returns the sums over the rows that the grid resolves, and for each part which rows
    it does not resolve, bool (n,).
    """
    nodes = append_one(grid[0])
    with torch.enable_grad():
        location = (nodes @ point.coefs.T).detach().requires_grad_()
        shape_params = point.shape_params.detach().requires_grad_()
        at = likelihood.at(shape_params)
    found = [
        _shared_part(*part, grid, steps, location, shape_params, at) for part in parts
    ]
    row_values, sums, unresolved = zip(*found, strict=True)
    value, weight = (torch.cat(part) for part in zip(*row_values, strict=True))
    location_gradient, shape_gradient, known = (
        sum(part) for part in zip(*sums, strict=True)
    )
    location = location.detach()
    at_values = location.expand(len(values), -1, -1)
    X, z = values[:, None], nodes.expand(len(values), -1, -1)
    _, shape_information = likelihood.shape_sums(X, at_values, known, z)
    _, information = _derivatives(likelihood, X, location[None], blocks)
    information = information * likelihood.to_locations(known)
    full = _outer_sums(information.sum(0), nodes)
    gradient = location_gradient.T @ nodes
    shape_params = shape_gradient, shape_information
    return sums_of(value, weight, gradient, full, shape_params), unresolved


def _shared_part(
    rows, weight, indicators, grid, steps, location, shape_params, likelihood
):
    """Return what `shared_likelihood_sums` adds up, and which rows are unresolved."""
    # Value and weight of each row that is resolved; gradients in locations and shape
    # parameters, and weights of representative values at nodes, (v, s, d). likelihood :
    # with these shape parameters.
    z, log_weight = grid
    is_observed = rows.observed.to(rows.X.dtype)
    with torch.enable_grad():
        log_prob = likelihood.pair_log_prob(rows.X * is_observed, is_observed, location)
    value, r = logsumexp_and_softmax(log_prob.detach() + log_weight)
    unresolved = ~resolves(r, z, steps, RADIUS)
    weight = torch.where(unresolved, 0.0, weight)
    r = weight[:, None] * r
    with torch.enable_grad():  # of a scalar, as `grad` imports sympy to check others
        total = torch.dot(log_prob.flatten(), r.flatten())
    inputs = location, shape_params
    gradients = torch.autograd.grad(
        total, inputs, allow_unused=True, materialize_grads=True
    )
    gradients = [part.detach() for part in gradients]  # zeros have one in PyTorch 2.4
    known = (r.T @ indicators.flatten(1)).unflatten(1, indicators.shape[1:])
    kept = ~unresolved
    return (value[kept], weight[kept]), (*gradients, known.movedim(1, 0)), unresolved


def _outer_sums(weight, z):
    """Return the sum of weight z z' over nodes, for each location."""
    # weight : (m, l). Returns (l, k + 1, k + 1).
    products = (z[:, :, None] * z[:, None]).flatten(1)
    return (weight.T @ products).unflatten(1, (-1, z.shape[1]))


def sums_of(value, weight, gradient, information, shape_params):
    """Return `Sums`; shape_params : gradient and information of these."""
    parts = zip((gradient, information), shape_params, strict=True)
    gradient, information = parts
    return Sums.from_rows(value, weight, Point(*gradient), Curvature(*information))


def row_node_sums(rows, nodes, point, likelihood, weight=None, blocks=None):
    """Return sums of log marginal likelihoods, with nodes by row."""
    # weight : weights of the rows. blocks : `shape_blocks` of the likelihood.
    z, X = append_one(nodes.z), rows.X[:, None]
    weight = X.new_ones(len(X)) if weight is None else weight
    location = z @ point.coefs.T
    log_prob = likelihood.entry_log_prob(X, location)
    visible = rows.observed.to(z.dtype)
    joint = nodes.log_weight + (log_prob @ visible[..., None])[..., 0]
    value, r = logsumexp_and_softmax(joint)
    r, known = weight[:, None] * r, visible[:, None]
    shape_params = likelihood.shape_sums(X, location, r[..., None] * known, z)
    derivative, information = _derivatives(likelihood, X, location, blocks)
    if not visible.all():
        on_locations = likelihood.to_locations(known)
        derivative, information = on_locations * derivative, on_locations * information
    r, z = r.flatten()[:, None], z.flatten(0, 1)
    gradient = derivative.flatten(0, 1).T @ (r * z)
    information = _outer_sums(r * information.flatten(0, 1), z)
    return sums_of(value, weight, gradient, information, shape_params)


def bound_sums(rows, joint, grid, weight=None, blocks=None):
    """Return sums of the evidence lower bounds of rows."""
    # Each row has the Gaussian posterior that nearly maximises its bound, so the
    # gradient is taken at fixed posteriors. By Stein's identity, the mean of derivative
    # times z follows from the means of derivative and information.
    posterior = variational_posterior(rows, joint, grid)
    weight = rows.X.new_ones(len(rows.X)) if weight is None else weight
    points, node_weight = location_points(posterior, joint, grid), grid[1].exp()
    likelihood, X = joint.likelihood, rows.X[:, None]
    observed_weight = node_weight[:, None] * (weight[:, None] * rows.observed)[:, None]
    z = append_one(posterior.mean)
    at_points = z[:, None].expand(-1, points.shape[1], -1)
    shape_params = likelihood.shape_sums(X, points, observed_weight, at_points)
    derivative, information = _derivatives(likelihood, X, points, blocks)
    derivative, information = (
        likelihood.to_locations(observed_weight) * t for t in (derivative, information)
    )
    covariance = posterior.root.mT @ posterior.root
    information = information.sum(1)
    gradient = derivative.sum(1).T @ z
    if likelihood.n_locations == 1:
        correction = torch.einsum(
            "nd,nkl,ld->dk", information, covariance, joint.components
        )
        gradient[:, :-1] -= correction
    else:
        moved = (grid[0] @ posterior.root).flatten(0, 1)
        gradient[:, :-1] += derivative.flatten(0, 1).T @ moved
    second = z[:, :, None] * z[:, None]
    second[:, :-1, :-1] += covariance
    full = (information.T @ second.flatten(1)).unflatten(1, second.shape[1:])
    value = evidence_lower_bound(rows, posterior, joint, grid)
    return sums_of(value, weight, gradient, full, shape_params)


def point_of(components, intercept, shape_params=()):
    coefs = torch.cat([components.T, intercept[:, None]], 1)
    shape_params = torch.as_tensor(shape_params, device=coefs.device)
    return Point(coefs, shape_params.detach().to(coefs))


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

    point = point_of(joint.components, joint.intercept, joint.likelihood.shape_params)
    is_exact, information = accuracy.is_quadrature, None
    for rule in accuracy.without_shared().rules():
        before, information = information, 0.0
        for block in _blocks(rows, joint, rule, is_exact):
            of_block = information_by_hessian(partial(lml, block), *point)
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
    n_nodes = sum(len(part) for group in groups for part in group)
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
