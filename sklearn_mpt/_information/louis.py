r"""Observed information of the parameters of models with latent variables.

Let s and H be the gradient and the Hessian of log p(x, z) in the parameters. Louis'
identity [1]_ is for each row

.. math:: -\frac{\partial^2 \log p(x)}{\partial \theta \, \partial \theta^\top}
    = E[-H \mid x] - \mathrm{Cov}[s \mid x].

References
----------
.. [1] T. A. Louis, "Finding the observed information matrix when using the EM
   algorithm", Journal of the Royal Statistical Society B 44, 1982.
"""

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
    """Return the sum over rows of the covariance of scores given the row, (p, p).

    scores : gradients of log p(x, z) at nodes, (n, s, p). r : posterior weights of the
    nodes, (n, s). weight : sample weights, (n,).
    """
    deviation = scores - r[:, None] @ scores
    deviation = (weight[:, None] * r).sqrt()[..., None] * deviation
    deviation = deviation.flatten(0, 1)
    return deviation.T @ deviation


def covariance_of(information, *, constraints=None, expected=None, n_rotations=0):
    """Return the inverse of the observed information, (p, p).

    Parameters that the rows do not determine become NaN, with a warning, and so do
    those that no number of rows determines. The latter are found from `expected`, as
    the observed information in their directions depends on chance and on where training
    ended.

    Parameters
    ----------
    information : ndarray of shape (p, p)
    constraints : ndarray of shape (q, p), default=None
        Gradients of functions of the parameters that are always 0.
    expected : ndarray of shape (p, p), default=None
        Information expected of rows drawn from the model, up to a factor.
    n_rotations : int
        Number of directions, such as rotations of z, in which the likelihood is
        constant: those of least information are left out.
    """
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
    """Return the subspace of `basis` that rows of the model can determine.

    Rotations, the directions of least information, are left out without a warning.

    The result is an orthonormal basis of the subspace, the columns of a (p, q) matrix;
    and bool, (p,), True for parameters with coefficients in the other directions. A
    warning gives their number.
    """
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
