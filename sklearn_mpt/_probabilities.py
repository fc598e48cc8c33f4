"""Codes of categories, given their probabilities, as arrays or tensors."""

from sklearn_mpt._numbers import ROUNDING


def drawn_codes(weights, uniform):
    """Return codes 0..C-1, drawn in proportion to weights; (...)."""
    level = weights.cumsum(-1)
    return (level[..., :-1] <= uniform * level[..., -1:]).sum(-1)


def median_codes(weights):
    """Return the medians of codes 0..C-1 that are distributed as the weights; (...)."""
    level = weights.cumsum(-1)
    return (level[..., :-1] < (0.5 - ROUNDING) * level[..., -1:]).sum(-1)
