"""Quasi-Newton steps, from the last points and gradients of an ascent."""
# The information of the full step takes z as known. Where entries leave z uncertain it
# is too large, and full steps converge slowly. Limited-memory BFGS (Nocedal,
# Mathematics of Computation 35, 1980) corrects it: moved by s, the gradient falls by y,
# and the corrected information maps s to y; that of the full step takes the place of
# the identity (Jamshidian and Jennrich, Journal of the Royal Statistical Society B 59,
# 1997). Full steps are multiplied by the ratio by which the last step says that they
# are too short, if it is above 1. On a ray where the gradient hardly falls, such as
# slopes of features that separate the rows, y is mixed with the expected fall (Powell,
# Mathematical Programming 14, 1978), so that the information falls to no less than
# `min_fall` of itself at once.

import torch


class QuasiNewton:
    """The last steps of an ascent, and the falls of the gradient along them."""

    # Points, gradients and steps are flat, (p,). length : number of steps remembered.

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
        """Return the corrected step for a gradient."""
        # divide : from a gradient to the full step.
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
