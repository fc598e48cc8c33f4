"""Whether a loss still falls: trends amid noise, and gains that are still to come.

Solvers compare these numbers, in nats per row, with tolerances of their own.
"""

import math
from typing import NamedTuple

import numpy as np


class Trend(NamedTuple):
    """Fall of the mean loss from one window to the next, and its standard error."""

    fall: float
    noise: float


def trend(losses, window):
    """Return the trend of the last `window` losses, against as many before.

    If fewer came before, these are taken; the variance of a single one is that of the
    last window. With windows of one loss, its noise is taken as 0.
    """
    losses = np.asarray(losses)
    before, last = losses[-2 * window : -window], losses[-window:]
    variance = last.var(ddof=1) if window > 1 else 0.0
    of_before = before.var(ddof=1) if len(before) > 1 else variance
    noise = math.sqrt(of_before / len(before) + variance / len(last))
    return Trend(before.mean() - last.mean(), noise)


def fall_of_lowest(losses, window):
    """Return how far the last `window` losses fell below the lowest one before.

    The losses must have the same noise, such as those of validation rows.
    """
    return min(losses[:-window]) - min(losses[-window:])


def gain_to_come(before, now, least_fall=0.0):
    """Return the gain of all later steps, given those of the last two.

    Near a maximum gains fall by the same factor from step to step. The result is
    infinite unless they fall by more than `least_fall`.
    """
    fall = before - now
    return now**2 / fall if fall > least_fall else math.inf
