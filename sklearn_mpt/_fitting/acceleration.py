r"""Quasi-Newton steps, from the last points and gradients of an ascent.

Full steps divide the gradient by the information that the M-step of EM inverts, which
takes z as known. Where entries leave z uncertain, or one feature nearly determines it,
this information is too large, and full steps converge slowly. Limited-memory BFGS [1]_
corrects it by differences of gradients: moved by s, the gradient falls by y, and the
corrected information maps s to y. The inverse information of the full step takes the
place of the identity [2]_.

Full steps are multiplied by the ratio by which the last step says that they are too
short, if it is above 1.

Along a ray on which the gradient hardly falls, such as the slopes of features that
separate the rows, y is mixed with the fall that was expected [3]_. So the information
along a step falls to no less than `min_fall` of itself at once.

References
----------
.. [1] J. Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of
   Computation 35, 1980.
.. [2] M. Jamshidian and R. I. Jennrich, "Acceleration of the EM algorithm by using
   quasi-Newton methods", Journal of the Royal Statistical Society B 59, 1997.
.. [3] M. J. D. Powell, "Algorithms for nonlinear constraints that use Lagrangian
   functions", Mathematical Programming 14, 1978.
"""

import torch


class QuasiNewton:
    """The last steps of an ascent, and the falls of the gradient along them.

    Points, gradients and steps are flat tensors, (p,).

    Parameters
    ----------
    length : int
        Number of steps that are remembered.
    min_fall : float
        Smallest fall of the gradient along a step, as a fraction of the expected one.
    """

    def __init__(self, length=10, min_fall=0.2):
        self.length, self.min_fall = length, min_fall
        self._pairs = []

    def __len__(self):
        return len(self._pairs)

    def add(self, displacement, gradient_before, gradient):
        """Add a step, and the gradients before and after it."""
        fall, expected = gradient_before - gradient, displacement @ gradient_before
        product, least = float(displacement @ fall), self.min_fall * float(expected)
        if least <= 0:  # the step was not in a direction of ascent
            return
        if product < least:
            factor = (expected - least) / (expected - product)
            fall = torch.lerp(gradient_before, fall, factor)
        self._pairs = [*self._pairs, (displacement, fall)][-self.length :]

    def direction(self, gradient, divide):
        """Return the corrected step for a gradient.

        divide : callable, from a gradient to the full step.
        """
        factors = []
        for displacement, fall in reversed(self._pairs):
            factors.append((displacement @ gradient) / (displacement @ fall))
            gradient = gradient - factors[-1] * fall
        step = divide(gradient)
        if self._pairs:
            displacement, fall = self._pairs[-1]
            ratio = float(displacement @ fall) / float(fall @ divide(fall))
            step = max(1.0, ratio) * step
        for (displacement, fall), factor in zip(
            self._pairs, reversed(factors), strict=True
        ):
            step = (
                step + (factor - (fall @ step) / (displacement @ fall)) * displacement
            )
        return step
