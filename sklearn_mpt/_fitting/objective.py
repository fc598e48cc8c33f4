"""What solvers by natural steps maximise."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class AscentRules:
    """What an objective needs of the ascent that maximises it.

    Fractions are of the tolerance `tol`, in nats per row.

    Attributes
    ----------
    max_step : float
        Bound on the step of the coefficients of a feature; see `natural_step`.
    stop_gain : float
        Steps end when they gain a smaller fraction: errors of sampled nodes may be as
        large.
    """

    max_step: float = math.inf
    stop_gain: float = 0.0


class Objective(ABC):
    """A function of a `Point`, summed over rows, which `Ascent` maximises.

    Its members are of three ideas: the rows of an epoch (`n_rows`, `n_batches`,
    `batches` and `is_noisy`), the function (`sums` and `floor`), and how it
    is maximised (`rules`, and `exact_objective` for a second phase).

    Attributes
    ----------
    n_rows : int or float
        Number of rows.
    n_batches : int
        Number of batches in an epoch.
    is_noisy : bool
        Whether batches differ, by their masks or rows.
    floor : Tensor or float
        Smallest values of the shape parameters, such as the log noise variance.
    rules : AscentRules
        What it needs of the ascent.
    log_scale : float
        What the units of the rows add to the loss, which is that of rows before they
        are standardised.
    has_all_masks : bool
        Whether each row gets all masks of a step, or they are divided among the rows.
    """

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
        """Return the same objective with smaller errors, or None.

        It has no noise of masks, or more nodes.
        """
        return None
