"""Observed information of parameters, their covariance, and differences."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh, null_space

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._numbers import ROUNDING

# Of numbers of size 1: near the cube root of the rounding error, for which the error of
# central differences is least.
STEP = 1e-5


def central_differences(function, at, steps):
    """Return half the change of a function between the ends of steps; (q, ...)."""
    # function : from a tensor such as `at` to a tensor. steps : (q, ...), each of which
    # broadcasts with `at`. Divided by the sizes of the steps, these are derivatives.
    return torch.stack(
        [0.5 * (function(at + step) - function(at - step)) for step in steps]
    )


# Information, relative to that of the single parameters, below which rows do not
# determine a direction.
SINGULAR = 1e-7


def covariance_of(information, *, constraints=None, expected=None, n_rotations=0):
    """Return the inverse of the observed information; NaN where not determined."""
    # constraints : gradients of functions that are always 0, (q, p). expected : as in
    # `Information`; it finds what no number of rows determines, as the observed
    # information there depends on chance and on where training ended. n_rotations :
    # number of directions, of least information, in which the likelihood is constant.
    diagonal = information.diagonal()
    unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    basis, unidentified = np.eye(len(unit)), np.zeros(len(unit), dtype=bool)
    if constraints is not None and constraints.any():
        basis = null_space(constraints * unit, rcond=ROUNDING)
    if expected is not None:
        expected = unit[:, None] * expected * unit
        basis, unidentified = _identified(expected, basis, n_rotations)
        n_rotations = 0  # these are no longer in the basis
    values, vectors = eigh(basis.T @ (unit[:, None] * information * unit) @ basis)
    values, vectors = values[n_rotations:], basis @ vectors[:, n_rotations:]
    known = values > SINGULAR
    root = unit[:, None] * vectors[:, known] / np.sqrt(values[known])
    covariance = root @ root.T
    covariance[unidentified] = covariance[:, unidentified] = np.nan
    not_determined = _parameters_in(vectors[:, ~known]) & ~unidentified
    if not_determined.any():
        covariance[not_determined] = covariance[:, not_determined] = np.nan
        warn_caller(
            f"The rows do not determine {np.count_nonzero(not_determined)} of "
            f"{len(unit)} parameters, or the model is not at a maximum of their "
            "likelihood: these have no standard errors.",
        )
    return covariance


def _identified(expected, basis, n_rotations):
    """Return a basis (p, q) of what rows determine, and who lies outside."""
    # Rotations, the directions of least information, are left out without a warning.
    values, vectors = eigh(basis.T @ expected @ basis)
    values, vectors = values[n_rotations:], basis @ vectors[:, n_rotations:]
    identified = values > 1e-8 * values.max(initial=0)
    unidentified = _parameters_in(vectors[:, ~identified])
    if unidentified.any():
        warn_caller(
            f"The model does not determine {np.count_nonzero(unidentified)} of "
            f"{len(unidentified)} parameters, however many rows there are, because "
            "other values fit equally well: these have no standard errors. Use fewer "
            "components, or more features.",
        )
    return vectors[:, identified], unidentified


def _parameters_in(directions):
    """Return which parameters have coefficients in some of these directions, (p,)."""
    return (directions**2).sum(axis=1) > 1e-6


# Parameters: coefficients of locations, (l, k + 1), row by row, and shapes, (g,).


class Information(NamedTuple):
    """Observed information of the standardised parameters."""

    # matrix : (p, p). coefs : (l, k + 1). scale : size of one standardised unit of each
    # location, (l,). free : projection onto coefficients that change the distribution,
    # (l, l). varies : (l,), False for locations that are not estimated. expected :
    # information of rows drawn from the model, up to a factor, (p, p), or None.
    # shape_params_vary : (g,), or None if all are estimated.

    matrix: np.ndarray
    coefs: np.ndarray
    scale: np.ndarray
    free: np.ndarray
    varies: np.ndarray
    expected: np.ndarray | None = None
    shape_params_vary: np.ndarray | None = None

    def covariance(self, rotation):
        """Return the covariance of the parameters, rotated by `rotation`, (p, p)."""
        n_locations, width = self.coefs.shape
        fixed = np.zeros(len(self.matrix), dtype=bool)
        fixed[: self.coefs.size] = np.repeat(~self.varies, width)
        if self.shape_params_vary is not None:
            fixed[self.coefs.size :] = ~self.shape_params_vary
        # constraints hold axes, coefficients without effect, and fixed parameters
        axes = [
            _axes_gradient(self.coefs, pair, rotation)
            for pair in itertools.combinations(range(width - 1), 2)
        ]
        tied = np.kron(np.eye(n_locations) - self.free, np.eye(width))
        rows = np.concatenate([np.reshape(axes, (-1, self.coefs.size)), tied])
        rows = np.pad(rows, [(0, 0), (0, len(self.matrix) - self.coefs.size)])
        constraints = np.concatenate([rows, np.eye(len(self.matrix))[fixed]])
        covariance = covariance_of(
            self.matrix, constraints=constraints, expected=self.expected
        )
        covariance[fixed] = covariance[:, fixed] = np.nan
        return covariance


def _axes_gradient(coefs, pair, rotation):
    """Return the gradient of the constraint on the axes of two components."""
    # Principal axes (`rotation` None) are orthogonal. Otherwise the derivative of the
    # criterion, as one component turns towards the other, is 0.
    a, b = (coefs[:, k] for k in pair)
    gradient = np.zeros_like(coefs)
    if rotation is None:
        a_gradient, b_gradient = b, a
    else:
        a_gradient, b_gradient = 3 * a**2 * b - b**3, a**3 - 3 * b**2 * a
    if rotation == "varimax":
        product, excess = a @ b, a @ a - b @ b
        a_gradient = a_gradient - (2 * a * product + excess * b) / len(a)
        b_gradient = b_gradient - (excess * a - 2 * b * product) / len(a)
    gradient[:, pair[0]], gradient[:, pair[1]] = a_gradient, b_gradient
    return gradient


def information_by_hessian(log_prob, *parameters):
    """Return minus the second derivatives of `log_prob` in its parameters, (p, p)."""
    shapes = [parameter.shape for parameter in parameters]
    sizes = [parameter.numel() for parameter in parameters]

    def flat(theta):
        parts = zip(theta.split(sizes), shapes, strict=True)
        return log_prob(*(part.reshape(shape) for part, shape in parts))

    theta = torch.cat([parameter.flatten() for parameter in parameters])
    return -torch.autograd.functional.hessian(flat, theta)


def row_scores(log_prob, theta):
    """Return derivatives of log-probabilities of rows in parameters, (p, n)."""
    jacobian = torch.autograd.functional.jacobian

    def gradient(weight):
        return jacobian(lambda at: weight @ log_prob(at), theta, create_graph=True)

    return jacobian(gradient, torch.ones_like(log_prob(theta)))


def typical_rows(X, values, n_parameters, draw):
    """Return rows that a model can produce, with the gaps of X; all if they are few."""
    # values : those that each feature takes, or None if some take any number. draw :
    # fills rows that are NaN, from rows and `rng`; it may miss rare ones.
    gaps = torch.isnan(X).unique(dim=0)
    n_patterns = math.prod(len(v) for v in values) if values else math.inf
    if n_patterns * len(gaps) <= 1024:
        rows = X.new_tensor(list(itertools.product(*values))).repeat(len(gaps), 1)
        return rows.masked_fill(gaps.repeat_interleave(n_patterns, 0), torch.nan)
    rng = np.random.default_rng(0)
    # so that information has full rank if the model determines all parameters
    n_rows = 200 + 4 * n_parameters
    chosen = torch.isnan(X)[torch.from_numpy(rng.integers(len(X), size=n_rows))]
    drawn = draw(torch.full_like(chosen, torch.nan, dtype=X.dtype), rng)
    return drawn.masked_fill(chosen, torch.nan)
