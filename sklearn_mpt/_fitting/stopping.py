"""Whether a loss still falls: trends amid noise, and gains that are still to come."""

import math
from typing import NamedTuple

import numpy as np


class Trend(NamedTuple):
    """Fall of the mean loss from one window to the next, and its standard error."""

    fall: float
    noise: float

    def is_flat(self, tol=0.0, n_errors=1.0):
        """Return whether the fall is no more than noise, or than `tol`."""
        # n_errors : standard errors of the fall that count as noise.
        return self.fall <= max(tol, n_errors * self.noise)


def trend(losses, window):
    """Return the trend of the last `window` losses, against as many before."""
    # If fewer came before, these are taken; the variance of a single one is that of the
    # last window. With windows of one loss, its noise is taken as 0.
    losses = np.asarray(losses)
    before, last = losses[-2 * window : -window], losses[-window:]
    variance = last.var(ddof=1) if window > 1 else 0.0
    variance_before = before.var(ddof=1) if len(before) > 1 else variance
    noise = math.sqrt(variance_before / len(before) + variance / len(last))
    return Trend(before.mean() - last.mean(), noise)


def fall_of_lowest(losses, window):
    """Return how far the last `window` losses fell below the lowest one before."""
    # The losses must have the same noise, such as those of validation rows.
    return min(losses[:-window]) - min(losses[-window:])


def trend_of_rows(before, now):
    """Return the trend of the mean loss from losses of the same rows, (n,) each."""
    falls = before - now
    return Trend(falls.mean(), standard_error(falls))


def standard_error(values):
    """Return the standard error of the mean; 0 for one value, where SciPy warns."""
    return values.std() / math.sqrt(len(values))


def gain_to_come(before, now, min_fall=0.0):
    """Return the gain of all later steps, given those of the last two."""
    # Near a maximum gains fall by the same factor from step to step. Infinite unless
    # they fall by more than `min_fall`.
    fall = before - now
    return now**2 / fall if fall > min_fall else math.inf
