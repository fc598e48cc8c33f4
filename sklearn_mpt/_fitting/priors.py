"""Priors that keep estimates finite: of slopes, and of categories that no row has."""

import torch

from sklearn_mpt._numbers import TINY

# Without a prior, slopes are free up to this length (change of a location for a unit of
# z), and a normal prior with this standard deviation keeps the excess small: slopes of
# features that separate the rows would be infinite.
LONG_SLOPE, LONG_SLOPE_DEVIATION = 10.0, 1.0
# Observations added to each category that no row has, as by Jeffreys' prior.
UNSEEN_COUNT = 0.5


def slope_penalty(slopes, deviation):
    """Return gradient, curvature and value of minus the log prior of slopes (j, k)."""
    # deviation : of the prior; None is none, but for long slopes. Shapes (j, k) and (j,
    # 1), and a float, in nats.
    free = 0.0
    if deviation is None:
        deviation, free = LONG_SLOPE_DEVIATION, LONG_SLOPE
    length = torch.linalg.norm(slopes, dim=1, keepdim=True)
    excess = (length - free).clamp(min=0)
    precision = deviation**-2
    gradient = precision * excess / length.clamp(min=TINY) * slopes
    curvature = precision * (length >= free)
    return gradient, curvature, 0.5 * precision * float((excess**2).sum())
