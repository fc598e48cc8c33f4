"""Whether a loss still falls: trends amid noise, and gains that are still to come.

Solvers compare these numbers with their tolerance `tol`, in the units of the loss.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sklearn_mpt._numbers import ROUNDING


class Trend(NamedTuple):
    """Fall of the mean loss from one window to the next, and its standard error."""

    fall: float
    noise: float

    def is_flat(self, tol=0.0, n_errors=1.0):
        """Return whether the fall is no more than noise, or than `tol`.

        n_errors : standard errors of the fall that count as noise.
        """
        return self.fall <= max(tol, n_errors * self.noise)


def trend(losses, window):
    """Return the trend of the last `window` losses, against as many before.

    If fewer came before, these are taken; the variance of a single one is that of the
    last window. With windows of one loss, its noise is taken as 0.
    """
    losses = np.asarray(losses)
    before, last = losses[-2 * window : -window], losses[-window:]
    variance = last.var(ddof=1) if window > 1 else 0.0
    variance_before = before.var(ddof=1) if len(before) > 1 else variance
    noise = math.sqrt(variance_before / len(before) + variance / len(last))
    return Trend(before.mean() - last.mean(), noise)


def fall_of_lowest(losses, window):
    """Return how far the last `window` losses fell below the lowest one before.

    The losses must have the same noise, such as those of validation rows.
    """
    return min(losses[:-window]) - min(losses[-window:])


def trend_of_rows(before, now):
    """Return the trend of the mean loss from losses of the same rows, (n,) each."""
    falls = before - now
    return Trend(falls.mean(), standard_error(falls))


def standard_error(values):
    """Return the standard error of the mean; 0 for one value, where SciPy warns."""
    return values.std() / math.sqrt(len(values))


def gain_to_come(before, now, min_fall=0.0):
    """Return the gain of all later steps, given those of the last two.

    Near a maximum gains fall by the same factor from step to step. The result is
    infinite unless they fall by more than `min_fall`.
    """
    fall = before - now
    return now**2 / fall if fall > min_fall else math.inf


def is_flat(losses, window, tol, n_errors=1.0):
    """Return whether the last losses fell by no more than noise, or than `tol`.

    losses : with noise. window : number of losses that are compared with as many
    before. n_errors : standard errors of the fall that count as noise.
    """
    return trend(losses, window).is_flat(tol, n_errors)


def gains_are_below(tol, last_gain, remaining_gain, patience=1.0):
    """Return whether steps without noise may end.

    last_gain : must be below `patience` times `tol`. remaining_gain : of all later
    steps, which must be below `tol`.
    """
    return last_gain < patience * tol and remaining_gain < tol


@dataclass(frozen=True)
class AscentRules:
    """How large natural steps are, when they are averaged, and when they end.

    Gains are in nats per row. Shares are of the tolerance `tol`, unless stated.

    Attributes
    ----------
    max_step : float
        Bound on the step of the coefficients of a feature; see `natural_step`.
    corrects_steps : bool
        Whether steps without noise are corrected by the last gradients; see
        `acceleration`.
    tries_components : bool
        Whether other components are tried before the end. It helps where gains of
        components are approximate, and steps are cheap.
    stops_at_noise : bool
        Whether steps end when noise exceeds what they gain, for the exact objective to
        go on from there, instead of averages of points.
    tests_at_noise : bool
        Whether weak components are replaced only once noise dominates the steps, for
        the exact objective, because it costs less than steps with noise.
    node_noise : float
        Values without noise may fall by this share, because nodes move with the
        posteriors. If it is not 0, a full step that falls by less than `tol` ends the
        ascent.
    min_averaged_steps : int
        Number of points in an average before convergence is tested.
    stop_gain : float
        Steps end when they gain a smaller share, or promise it if there is noise.
    stop_gain_after_masks : float
        The same for steps without masks, which follow steps with masks.
    remaining_gain_share : float
        Steps without noise end when all later ones gain a smaller share.
    warn_gain_factor : float
        A warning is given if later steps gain a larger share.
    rounding : float
        Relative change of values by rounding, from step to step.
    resolution : float
        Averages end when they lose a smaller share of what sampling rows loses, which
        is (number of parameters) / (2 n_rows).
    min_size : float
        A step is halved until its size, 1 for a full step, is smaller.
    corrected_step_factor : float
        Bound on corrected steps, as a multiple of that on full steps.
    first_test : int
        Number of epochs before components are tested for saddles.
    trial_share : float
        A component is tried if its approximate gain is a larger share of the loss by
        removing the one that it replaces.
    trial_epochs : int
        Number of epochs of such a trial.
    lag : int
        Steps so far apart have independent masks.
    window : int
        Number of steps in which noise is detected.
    min_signal : float
        With `stops_at_noise`, steps end if a smaller share of their expected gains is
        not noise.
    flat_gain_ratio : float
        Steps do not shrink if their expected gains fall to a larger share of those in
        the window before.
    overshoot_in_noise : float
        A step is halved if the value after it is so many standard errors below the one
        before.
    fall_in_noise : float
        Values have fallen if they are so many standard errors below the best.
    rise_in_noise : float
        Values rise if they are so many standard errors above those before.
    min_points : int
        An average of fewer points is not used.
    points_between_checks : int
        Number of points of an average between checks whether values rise.
    drift_ratio : float
        Full steps start again if the drift of an average is larger than so many times
        its noise.
    drift_cost : float
        Gain that slow directions promise, at least, in gains of a full step.
    """

    max_step: float = math.inf
    corrects_steps: bool = False
    tries_components: bool = False
    stops_at_noise: bool = False
    tests_at_noise: bool = False
    node_noise: float = 0.0
    min_averaged_steps: int = 10
    stop_gain: float = 3e-3
    stop_gain_after_masks: float = 0.1
    remaining_gain_share: float = 0.005
    warn_gain_factor: float = 30.0
    rounding: float = ROUNDING
    resolution: float = 5e-4
    min_size: float = 1e-6
    corrected_step_factor: float = 5.0
    first_test: int = 2
    trial_share: float = 0.25
    trial_epochs: int = 16
    lag: int = 2
    window: int = 4
    min_signal: float = 0.5
    flat_gain_ratio: float = 0.9
    overshoot_in_noise: float = 4.0
    fall_in_noise: float = 3.0
    rise_in_noise: float = 2.0
    min_points: int = 4
    points_between_checks: int = 12
    drift_ratio: float = 10.0
    drift_cost: float = 4.0


RULES = AscentRules()
