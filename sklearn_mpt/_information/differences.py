"""Derivatives by central differences."""

import torch

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
