"""What solvers by natural steps maximise."""

import math
from abc import ABC, abstractmethod

from sklearn_mpt._fitting.stopping import RULES, AscentRules


class Objective(ABC):
    """A function of a `Point`, summed over rows, which `Ascent` maximises.

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
        How large steps are, and when they end.
    """

    n_rows: float
    n_batches: int
    is_noisy: bool
    floor = -math.inf
    rules: AscentRules = RULES

    @abstractmethod
    def batches(self, rng):
        """Yield the batches of one epoch."""

    @abstractmethod
    def sums(self, point, batch):
        """Return the `Sums` of a batch at a point."""

    @abstractmethod
    def slopes(self, point):
        """Return a function from V to the mean of s s' V over rows, and information.

        s : posterior means of the gradient of a row in its locations; see `saddles`.
        The information is that of the locations.
        """

    def exact_objective(self):
        """Return the same objective with smaller errors, or None.

        It has no noise of masks, or more nodes.
        """
        return None
