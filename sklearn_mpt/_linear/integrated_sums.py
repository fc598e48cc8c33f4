r"""Masked scores of linear models integrated over z, with gradients and information.

Let r_s be the posterior weights of nodes z_s given the visible entries, and
:math:`p_{js} = p(x_j \mid z_s)`. The log-probability of entry j given the visible
entries other than itself is

.. math:: \log \sum_s r_s p_{js} \text{ if hidden}, \qquad
          -\log \sum_s r_s / p_{js} \text{ if visible}.

The second is the conditional predictive ordinate of [1]_. Nodes have no gradient,
because the integral does not depend on where they are. The gradient in the locations is
that in log p times the derivative of log p, so any likelihood can be used.

References
----------
.. [1] S. Geisser and W. F. Eddy, "A predictive approach to model selection", JASA 74,
   1979.
"""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import Units
from sklearn_mpt._fitting.natural_gradient import Curvature, Point, Sums
from sklearn_mpt._integration.masked_scores import masked_scores
from sklearn_mpt._integration.prior_grid import RADIUS, resolves
from sklearn_mpt._integration.quadrature import logsumexp_and_softmax
from sklearn_mpt._linear.linear_map import (
    evidence_lower_bound,
    location_points,
    variational_posterior,
)
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices

MIN_LOG_PROB = -30.0  # of an entry at a shared node, so that 1 / p is finite


class RowContext(NamedTuple):
    """Facts about the training rows.

    seed : seed of samples of posteriors in many dimensions. weight : weights of the
    rows, (n,). units : units of the rows, if they are not standardised. log_scale :
    mean over rows of the logarithm that the units add to the objective. is_all :
    whether these are all rows, so that a feature that is constant in them is constant.
    n_rows : number of rows before equal ones were merged, None if they were not.
    """

    seed: tuple[int, ...] = (0,)
    weight: np.ndarray | None = None
    units: Units | None = None
    log_scale: float = 0.0
    is_all: bool = True
    n_rows: int | None = None

    def standardise(self, X):
        """Return standardised rows in double precision."""
        return X.double() if self.units is None else self.units.standardise(X.double())


NO_CONTEXT = RowContext()


class TargetWeights(NamedTuple):
    """Weights of targets: hidden entries, and visible ones given the others."""

    hidden: float
    visible: float


class NodeTable(NamedTuple):
    """Log-probabilities and derivatives of all values at shared nodes; (s, v, d)."""

    z: torch.Tensor  # shape: (s, k + 1), with a column of ones
    log_weight: torch.Tensor  # shape: (s,)
    log_prob: torch.Tensor
    derivative: torch.Tensor
    information: torch.Tensor  # shape: (s, d)


def append_one(z):
    return torch.cat([z, z.new_ones(*z.shape[:-1], 1)], -1)


def table_of(z, log_weight, point, likelihood, values):
    """Return the `NodeTable` of nodes; values : those of `common_values`."""
    z = append_one(z)
    location = z @ point.coefs.T
    values = location.new_tensor(values)[:, None].expand(-1, location.shape[1])
    log_prob = likelihood.entry_log_prob(values, location[:, None])
    derivative, information = likelihood.derivatives(values, location[:, None])
    log_prob = log_prob.clamp(min=MIN_LOG_PROB)
    return NodeTable(z, log_weight, log_prob, derivative, information[:, 0])


def indicators(X, values):
    """Return 1.0 for the value that each entry has, else 0.0; (n, v, d)."""
    return torch.stack([X == value for value in values], 1).to(X.dtype)


def varies_in_rows(X, is_all):
    """Return 1.0 for features that may vary; others keep their coefficients."""
    if not is_all:
        return torch.ones_like(X[0]).double()
    blocks = [X[part] for part in chunk_slices(*X.shape, CHUNK_ENTRIES)]
    low = torch.stack([b.nan_to_num(nan=torch.inf).amin(0) for b in blocks]).amin(0)
    high = torch.stack([b.nan_to_num(nan=-torch.inf).amax(0) for b in blocks]).amax(0)
    return (low < high).double()


def shared_masked_sums(indicator, mask, table, targets, weight=None, is_complete=False):
    """Return sums of masked scores of rows that share a mask, at shared nodes.

    indicator : indicators of the rows, (n, v, d). mask : ndarray of bool (d,), True
    where hidden. weight : weights of the rows, (n,). is_complete : whether the rows
    have no gaps.
    """
    weight, n_values = _weight(weight, indicator), indicator.shape[1]
    scores = masked_scores(
        indicator.flatten(1),
        np.tile(mask, n_values),
        table.log_prob.flatten(1),
        table.log_weight,
        targets.hidden * weight,
        targets.visible * weight if targets.visible else None,
    )
    entry_gradient = scores.gradient.unflatten(1, (n_values, -1))
    value = scores.score / weight
    return shared_sums(
        value, entry_gradient, scores.r, indicator, table, weight, is_complete
    )


class RepresentativeValues(NamedTuple):
    """A few values of each feature that stand for its entries, in the information."""

    values: torch.Tensor  # shape: (v, d); repeated where a feature has fewer
    code: torch.Tensor  # shape: (n, d): index of the value of each entry; -1 if missing

    @classmethod
    def from_rows(cls, X, number):
        """Choose all values of features that have few, and quantiles of others.

        X : rows (n, d), NaN where missing. number : of values at most.
        """
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


def shared_likelihood_sums(blocks, grid, steps, point, likelihood, values):
    """Return sums of the log marginal likelihoods of rows, at shared nodes.

    The gradient is that of products of matrices. The information is computed at the
    representative values of entries.

    blocks : iterable of rows, their weights, and indicators of `RepresentativeValues`.
    grid, steps : as `prior_grid` returns and takes them. values : (v, d), those of
    `RepresentativeValues`.

    Returns the sums over the rows that the grid resolves, and for each block which rows
    it does not resolve, bool (n,).
    """
    nodes = append_one(grid[0])
    with torch.enable_grad():
        location = (nodes @ point.coefs.T).detach().requires_grad_()
        shape_params = point.shape_params.detach().requires_grad_()
        at = likelihood.at(shape_params)
    parts = [
        _shared_part(*block, grid, steps, location, shape_params, at)
        for block in blocks
    ]
    row_values, sums, unresolved = zip(*parts, strict=True)
    value, weight = (torch.cat(part) for part in zip(*row_values, strict=True))
    location_gradient, shape_gradient, known = (
        sum(part) for part in zip(*sums, strict=True)
    )
    location = location.detach()
    at_values = location.expand(len(values), -1, -1)
    X, z = values[:, None], nodes.expand(len(values), -1, -1)
    shape_params = _shape_sums(likelihood, X, at_values, known, known, z)
    information = likelihood.derivatives(X, location[None])[1]
    information = information * likelihood.to_locations(known)
    full = _outer_sums(information.sum(0), nodes)
    shape_params = shape_params and (shape_gradient, shape_params[1])
    return sums_of(
        value, weight, location_gradient.T @ nodes, full, shape_params
    ), unresolved


def _shared_part(
    rows, weight, indicators, grid, steps, location, shape_params, likelihood
):
    """Return what `shared_likelihood_sums` adds up, and which rows are unresolved.

    Value and weight of each row that is resolved; gradients in locations and shape
    parameters, and weights of representative values at nodes, (v, s, d).

    likelihood : with these shape parameters.
    """
    z, log_weight = grid
    is_observed = rows.observed.to(rows.X.dtype)
    with torch.enable_grad():
        log_prob = likelihood.pair_log_prob(rows.X * is_observed, is_observed, location)
    value, r = logsumexp_and_softmax(log_prob.detach() + log_weight)
    unresolved = ~resolves(r, z, steps, RADIUS)
    weight = torch.where(unresolved, 0.0, weight)
    r = weight[:, None] * r
    gradients = _gradients(log_prob, r, (location, shape_params))
    known = (r.T @ indicators.flatten(1)).unflatten(1, indicators.shape[1:])
    kept = ~unresolved
    return (value[kept], weight[kept]), (*gradients, known.movedim(1, 0)), unresolved


def _gradients(tensor, weight, inputs):
    """Return gradients of the weighted sum of a tensor; 0.0 where there is none."""
    with torch.enable_grad():  # of a scalar, as `grad` imports sympy to check others
        total = torch.dot(tensor.flatten(), weight.flatten())
    gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return [0.0 if gradient is None else gradient for gradient in gradients]


def _weight(weight, X):
    return X.new_ones(len(X)) if weight is None else weight


def shared_sums(value, entry_gradient, r, indicator, table, weight, is_complete):
    """Return `Sums` from derivatives in log p of values at nodes, (s, v, d)."""
    gradient = (table.derivative * entry_gradient).sum(1).T @ table.z
    r = weight[:, None] * r
    count = r.sum(0)[:, None] if is_complete else r.T @ indicator.sum(1)
    information = _outer_sums(count * table.information, table.z)
    return sums_of(value, weight, gradient, information)


def _products(z):
    """Return z, whose last entry is 1, and the products of the other entries; (..., p).

    The order is that of `_as_matrices`.
    """
    n_dims = z.shape[-1] - 1
    squares = (z[..., i:-1] * z[..., i : i + 1] for i in range(n_dims))
    return torch.cat([z, *squares], -1)


def _as_matrices(sums, width):
    """Return sums of `_products` as matrices, (d, width, width)."""
    full = sums.new_empty(len(sums), width, width)
    full[:, :, -1] = full[:, -1] = sums[:, :width]
    i, j = torch.triu_indices(width - 1, width - 1, device=sums.device)
    full[:, i, j] = full[:, j, i] = sums[:, width:]
    return full


def _outer_sums(weight, z):
    """Return the sum of weight z z' over nodes, for each feature; (d, k + 1, k + 1).

    weight : (m, d).
    """
    return _as_matrices((_products(z).T @ weight).T, z.shape[1])


def sums_of(value, weight, gradient, information, shape_params=None):
    """Return `Sums`.

    shape_params : gradient and information of the likelihood's shape parameters, or
    None.
    """
    none = gradient.new_zeros(0)
    shape_gradient, shape_information = shape_params or (none, none)
    curvature = Curvature(information, shape_information)
    return Sums.from_rows(value, weight, Point(gradient, shape_gradient), curvature)


def row_node_sums(rows, nodes, point, likelihood, targets, weight=None, masks=None):
    """Return sums of masked scores, or of log marginal likelihoods, with nodes by row.

    targets : None for the log marginal likelihood of the observed entries. weight :
    weights of the rows. masks : the index of the mask of each row, int (n,), and the
    number of masks, if rows share them.
    """
    z, X, weight = append_one(nodes.z), rows.X[:, None], _weight(weight, rows.X)
    location = z @ point.coefs.T
    log_prob = likelihood.entry_log_prob(X, location)
    visible = rows.observed.to(z.dtype)
    joint = nodes.log_weight + (log_prob @ visible[..., None])[..., 0]
    value, r = logsumexp_and_softmax(joint)
    if targets is None:
        entry_gradient = visible[:, None]
        known, r = entry_gradient, weight[:, None] * r
    else:
        hidden = rows.present.to(z.dtype) - visible
        value, entry_gradient = _row_node_gradients(
            log_prob, joint - value[:, None], visible, hidden, targets
        )
        known = r[..., None] * rows.present[:, None]
        entry_gradient, known = (
            weight[:, None, None] * t for t in (entry_gradient, known)
        )
        r = torch.ones_like(r)
    shape_params = None
    if len(likelihood.shape_param_features):
        weights = (r[..., None] * t for t in (entry_gradient, known))
        shape_params = _shape_sums(likelihood, X, location, *weights, z)
    derivative, information = likelihood.derivatives(X, location)
    if targets is not None or not visible.all():
        derivative = likelihood.to_locations(entry_gradient) * derivative
        information = likelihood.to_locations(known) * information
    width, products = z.shape[-1], r[..., None] * _products(z)
    gradient = _summed_products(derivative, products[..., :width])
    information = _as_matrices(_summed_products(information, products), width)
    sums = sums_of(value, weight, gradient, information, shape_params)
    if masks is None:
        return sums
    index, n_masks = masks
    by_mask = value.new_zeros(2, n_masks)
    by_mask.index_add_(1, index, torch.stack([weight * value, weight]))
    return sums._replace(by_mask=by_mask)


def _summed_products(weight, factors):
    """Return the sums over rows and nodes of (n, s, l) times (n, s, p); (l, p)."""
    return (factors.flatten(0, 1).T @ weight.flatten(0, 1)).T


def _shape_sums(likelihood, X, location, entry_gradient, known, z):
    """Return sums over rows and nodes for the likelihood's shape parameters.

    They are gradient and information. entry_gradient : derivatives in the
    log-probabilities of entries. known : weights of nodes for present entries. Both are
    (n, s, d).
    """
    if not len(likelihood.shape_param_features):
        return None
    return likelihood.shape_sums(X, location, entry_gradient, known, z)


def _row_node_gradients(log_prob, log_r, visible, hidden, targets):
    """Return scores (n,), and derivatives in log p(x_j | z) at nodes (n, s, d)."""
    sign = hidden - visible
    gain = targets.hidden * hidden + targets.visible * visible
    joint = log_r[..., None] + sign[:, None] * log_prob
    average, entry_gradient = logsumexp_and_softmax(joint)
    signed = (gain * sign)[..., None]
    node_gradient = (entry_gradient @ signed)[..., 0] - log_r.exp() * signed.sum(1)
    entry_gradient *= gain[:, None]
    entry_gradient += node_gradient[..., None] * visible[:, None]
    return (gain * sign * average).sum(1), entry_gradient


def bound_sums(rows, joint, grid, weight=None):
    """Return sums of the evidence lower bounds of rows.

    Each row has the Gaussian posterior that nearly maximises its bound, so the gradient
    is taken at fixed posteriors. By Stein's identity, the mean of derivative times z
    follows from the means of derivative and information.
    """
    posterior = variational_posterior(rows, joint, grid)
    weight = _weight(weight, rows.X)
    points, node_weight = location_points(posterior, joint, grid), grid[1].exp()
    likelihood, X = joint.likelihood, rows.X[:, None]
    observed_weight = node_weight[:, None] * (weight[:, None] * rows.observed)[:, None]
    z = append_one(posterior.mean)
    at_points = z[:, None].expand(-1, points.shape[1], -1)
    shape_params = _shape_sums(
        likelihood, X, points, observed_weight, observed_weight, at_points
    )
    derivative, information = likelihood.derivatives(X, points)
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
    return Point(
        coefs, torch.as_tensor(shape_params, device=coefs.device).detach().to(coefs)
    )
