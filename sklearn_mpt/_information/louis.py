"""Observed information of the parameters of models with latent variables."""
# Louis' identity, for each row: -d^2 log p(x) / dtheta dtheta' = E[-H | x] - Cov[s |
# x], with the gradient s and the Hessian H of log p(x, z). T. A. Louis, Journal of the
# Royal Statistical Society B 44, 1982.

import numpy as np
from scipy.linalg import eigh, null_space

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._numbers import ROUNDING

# Information, relative to that of the single parameters, below which rows do not
# determine a direction; and expected information, relative to the largest, below which
# no number of rows does.
SINGULAR, UNIDENTIFIED = 1e-7, 1e-8
MIN_SQUARE = 1e-6  # squared coefficient of a parameter in a direction to count


def missing_information(scores, r, weight):
    """Return the sum over rows of the covariance of scores given the row, (p, p)."""
    # scores : (n, s, p). r : posterior weights of the nodes, (n, s). weight : (n,).
    deviation = scores - r[:, None] @ scores
    deviation = (weight[:, None] * r).sqrt()[..., None] * deviation
    deviation = deviation.flatten(0, 1)
    return deviation.T @ deviation


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
    identified = values > UNIDENTIFIED * values.max(initial=0)
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
    return (directions**2).sum(axis=1) > MIN_SQUARE
