"""What solvers by natural steps maximise."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class AscentRules:
    """What an objective needs of the ascent that maximises it."""

    # max_step : bound on the step of the coefficients of a feature. stop_gain :
    # fraction of `tol` that the last step gains: errors of sampled nodes may be as
    # large.

    max_step: float = math.inf
    stop_gain: float = 0.0


class Objective(ABC):
    """A function of a `Point`, summed over rows, which `Ascent` maximises."""

    # is_noisy : whether batches differ, by their masks or rows. floor : smallest values
    # of the shape parameters, such as the log noise variance. log_scale : what the
    # units of the rows add to the loss of standardised ones. has_all_masks : whether
    # each row gets all masks of a step, or they are divided among the rows.

    n_rows: float
    n_batches: int
    is_noisy: bool
    floor = -math.inf
    rules = AscentRules()
    log_scale = 0.0
    has_all_masks = False

    @abstractmethod
    def batches(self, rng):
        """Yield the batches of one epoch."""

    @abstractmethod
    def sums(self, point, batch):
        """Return the `Sums` of a batch at a point."""

    def likelihood_sums(self, point, batch):
        """Return the `Sums` of a batch without what concerns no single row."""
        return self.sums(point, batch)

    def completed(self, sums, point):
        """Add what concerns no single row, such as priors."""
        return sums

    def escapes(self, point, min_gain):
        """Yield better points if this one is a saddle, and epochs to try them for."""
        return ()

    def exact_objective(self):
        """Return the same objective with smaller errors, or None."""
        # It has no noise of masks, or more nodes.
        return None
