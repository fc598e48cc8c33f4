"""Escape from saddles: replace weak components by directions that explain more."""
# A component weaker than the noise of the first steps shrinks, then grows so slowly
# that training looks converged. With s_i the gradient of row i in the locations,
# averaged over the posterior, a new component along v changes the log-likelihood by v'
# M v / 2, M = mean of s_i s_i' - E_model[s s'], to second order. In the units h of the
# roots of the information (t = s / h, U = h W) the second term is inv(I + U U') for
# complete rows, and close to it for others. An eigenvalue b of M is a component of
# squared length b, which gains (b - log(1 + b)) / 2 nats per row; removing one loses as
# much. Exact for Gaussian noise and complete rows (Tipping and Bishop, Journal of the
# Royal Statistical Society B 61, 1999, section 3 and appendix A).

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from sklearn_mpt._matrices import identity, inverse_product
from sklearn_mpt._numbers import TINY

DENSE_FEATURES = 128  # up to this number, a full eigendecomposition is faster


def with_missing_components(point, product, information, min_gain, fraction=1.0):
    """Replace weak components by directions that explain more; None if none are."""
    # product : from V, (d, q), to the mean of s s' V over rows. information : of
    # locations, per row, (d,). min_gain : nats per row. fraction : least gain of the
    # new component, as a fraction of the loss by removing the old one.
    n_dims = point.coefs.shape[1] - 1
    size = information.sqrt()[:, None]
    unit = torch.where(size > 0, 1 / size.clamp(min=TINY), 0.0)
    axes, lengths, rotation = torch.linalg.svd(
        size * point.coefs[:, :n_dims], full_matrices=False
    )
    strengths, directions = _unexplained(product, unit, axes, lengths)
    gains, costs = gain_of(strengths), gain_of(lengths**2).flip(0)
    n_pairs = min(len(gains), len(costs))
    is_worth_it = gains[:n_pairs] - fraction * costs[:n_pairs] > min_gain
    n_new = int(is_worth_it.to(torch.int64).cumprod(0).sum())
    if n_new == 0:
        return None
    loadings = axes * lengths
    new = directions[:, :n_new] * strengths[:n_new].sqrt()
    loadings[:, loadings.shape[1] - n_new :] = new.flip(1)
    weights = (unit * loadings) @ rotation
    return point._replace(coefs=torch.cat([weights, point.coefs[:, n_dims:]], 1))


def gain_of(strengths):
    """Return the largest gain of components of these squared lengths, nats per row."""
    strengths = strengths.clamp(min=0)
    return 0.5 * (strengths - strengths.log1p())


def _unexplained(product, unit, axes, lengths, tol=1e-3):
    """Return the leading eigenvalues of M, largest first, and eigenvectors, (d, q)."""
    # unit : of each feature, (d, 1); 0 if it has no information. tol : of eigenvalues.

    def excess(V):
        return unit * product(unit * V) - inverse_product(axes, lengths, V)

    n_features, n_wanted = len(unit), len(lengths)
    if n_features <= max(DENSE_FEATURES, 4 * n_wanted):
        matrix = excess(identity(n_features, unit))
        values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
        values, vectors = values[-n_wanted:], vectors[:, -n_wanted:]
    else:
        operator = LinearOperator(
            (n_features, n_features),
            matvec=lambda v: excess(unit.new_tensor(v).reshape(-1, 1)).cpu().numpy(),
            dtype=np.float64,
        )
        start = np.random.default_rng(0).normal(size=n_features)
        try:
            eigenpairs = eigsh(operator, n_wanted, which="LA", v0=start, tol=tol)
        except ArpackNoConvergence as error:  # equal eigenvalues, of collinear features
            n_missing = n_wanted - len(error.eigenvalues)
            eigenpairs = (
                np.pad(error.eigenvalues, (n_missing, 0)),
                np.pad(error.eigenvectors, ((0, 0), (n_missing, 0))),
            )
        values, vectors = (unit.new_tensor(array) for array in eigenpairs)
    return values.flip(0), vectors.flip(1)
