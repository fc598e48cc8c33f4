"""Matrices as tensors, codes of categories given probabilities, nodes of averages."""

import torch
from scipy.special import roots_hermitenorm

from sklearn_mpt._numbers import ROUNDING


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


def drawn_codes(weights, uniform):
    """Return codes 0..C-1, drawn in proportion to weights; (...)."""
    level = weights.cumsum(-1)
    return (level[..., :-1] <= uniform * level[..., -1:]).sum(-1)


def median_codes(weights):
    """Return the medians of codes 0..C-1 that are distributed as the weights; (...)."""
    level = weights.cumsum(-1)
    return (level[..., :-1] < (0.5 - ROUNDING) * level[..., -1:]).sum(-1)


def hermite_nodes(n_nodes):
    """Return nodes and weights of averages over the standard normal; (n_nodes,) each.

    They are exact for polynomials of degree 2 n_nodes - 1.
    """
    nodes, weights = roots_hermitenorm(n_nodes)
    return nodes, weights / weights.sum()
