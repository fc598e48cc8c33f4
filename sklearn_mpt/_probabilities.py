"""Codes of categories, given their probabilities, and nodes of averages."""

from scipy.special import roots_hermitenorm

from sklearn_mpt._numbers import ROUNDING


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
