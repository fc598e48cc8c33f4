"""Matrices as tensors: identities, inverses and determinants by factors."""

import torch


def identity(n, like):
    """Return the identity of n rows, with the dtype and on the device of a tensor."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


def inverse_of_lower(root):
    """Return the inverses of lower triangular matrices; (..., k, k)."""
    eye = identity(root.shape[-1], root).expand_as(root)
    return torch.linalg.solve_triangular(root, eye, upper=False)


def log_determinant(root):
    """Return log det L L' of triangular matrices L with positive diagonals; (...)."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def explained_shares(lengths):
    """Return the shares s for which the inverse of I + U U' is I - Q diag(s) Q'.

    lengths : singular values of U, (k,), whose left singular vectors are Q.
    """
    return lengths**2 / (1 + lengths**2)


def inverse_product(axes, lengths, V):
    """Return (I + U U')^-1 V.

    axes, lengths : left singular vectors of U, (d, k), and singular values.
    """
    return V - axes @ (explained_shares(lengths)[:, None] * (axes.T @ V))
