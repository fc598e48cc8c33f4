"""Matrices as tensors: identities, and what triangular factors give."""

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
