"""Matrices as tensors: identities, sums of products, inverses by factors."""

import torch


def identity(n, like):
    """Return the identity of n rows, with the dtype and on the device of a tensor."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


def sums_of_outer_products(weight, V):
    """Return sum_j c_j v_j v_j' for each row of weights c; (n, k, k)."""
    products = (V[:, None] * V).flatten(0, 1)
    return (weight @ products.T).unflatten(1, (len(V), len(V)))


def inverse_of_lower(root):
    """Return the inverses of lower triangular matrices; (..., k, k)."""
    eye = identity(root.shape[-1], root).expand_as(root)
    return torch.linalg.solve_triangular(root, eye, upper=False)


def log_determinant(root):
    """Return log det L L' of triangular matrices L with positive diagonals; (...)."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def explained_fractions(lengths):
    """Return the fractions s for which the inverse of I + U U' is I - Q diag(s) Q'."""
    return lengths**2 / (1 + lengths**2)


def inverse_product(axes, lengths, V):
    """Return (I + U U')^-1 V."""
    return V - axes @ (explained_fractions(lengths)[:, None] * (axes.T @ V))
