r"""Numbers with Gaussian noise, some of which are known only to lie in an interval.

With the ends :math:`a < b` of an interval in standard deviations of the noise from the
location, its log-probability is :math:`\log(\Phi(b) - \Phi(a))`, which is concave in
the location [1]_. An interval without lower end is a left-censored number, as in the
Tobit model.

Like a category, an interval becomes a code. It has the bits of both ends in single
precision, without the last one, and two bits that make it larger than any number of X:

====  =================  ==========================================
bits  in the code        what they are
====  =================  ==========================================
1     sign               sign of the lower end
2     exponent           ones, so that a code is at least 2 ** 513
30    exponent, rest     size of the lower end
31    rest               upper end
====  =================  ==========================================

References
----------
.. [1] J. W. Pratt, "Concavity of the log likelihood", JASA 76, 1981.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri_exp

from sklearn_mpt._likelihoods.base import DispersionLikelihood
from sklearn_mpt._likelihoods.gaussian import (
    LOG_2PI,
    SINGLE_NOISE_FLOOR,
    Gaussian,
    normal_log_prob,
    normal_pairs,
)

INFINITE = 2.0**100  # stands for infinite ends, so that a code is finite
_LOWER, _UPPER = 2**30 - 1, 2**31 - 1  # the bits of the size, and of the upper end


def codes_of(lower, upper):
    """Return the codes of intervals; float64."""
    lower, upper = (_bits_of(end.clamp(-INFINITE, INFINITE)) for end in (lower, upper))
    sign, size = lower >> 30, lower & _LOWER
    return ((sign << 63) | (3 << 61) | (size << 31) | upper).view(torch.float64)


def has_codes(X):
    """Return where X has codes; bool."""
    return X.abs() >= 2.0**513


def is_open(X):
    """Return which entries are missing or intervals, bool of the shape of X."""
    return has_codes(X) | X.isnan()


def ends_of(X):
    """Return where X has codes, and the ends of their intervals, 0.0 elsewhere."""
    is_code = has_codes(X)
    code = torch.where(is_code, X, 0.0).view(torch.int64)
    lower = (code >> 63 & 1) << 30 | (code >> 31 & _LOWER)
    return is_code, _end_of(lower), _end_of(code & _UPPER)


def _bits_of(end):
    """Return the bits of numbers in single precision, rounded to 31 of them."""
    return (end.float().view(torch.int32).long() % 2**32 + 1) >> 1


def _end_of(bits):
    return ((bits << 33) >> 32).int().view(torch.float32).double()


class _Ends(NamedTuple):
    """Ends of intervals in standard deviations from the location, mirrored below it.

    is_mirrored : whether signs are changed, so that the sum of both ends is at most 0.
    log_prob : of the intervals.
    """

    far: torch.Tensor
    near: torch.Tensor
    is_mirrored: torch.Tensor
    log_prob: torch.Tensor

    @classmethod
    def of(cls, X, location, variance):
        """Return those of entries; numbers get a wide interval, which nothing uses."""
        is_code, lower, upper = ends_of(X)
        lower = torch.where(is_code, lower, -INFINITE)
        return cls.around(lower, upper, location, variance)

    @classmethod
    def around(cls, lower, upper, location, variance):
        size = variance.sqrt()
        a, b = (lower - location) / size, (upper - location) / size
        is_mirrored = a + b > 0
        far, near = torch.where(is_mirrored, -b, a), torch.where(is_mirrored, -a, b)
        # Beyond 20 deviations the far end has a probability below the rounding error
        # of that of the interval: it is at -10 or further, and the near end within 10,
        # or the ratio of both is below exp(-200).
        is_wide, log_near = near - far > 20, torch.special.log_ndtr(near)
        if is_wide.all():
            return cls(far, near, is_mirrored, log_near)
        far_if_close = torch.where(is_wide, near - 1, far)  # keeps gradients finite
        log_ratio = torch.special.log_ndtr(far_if_close) - log_near
        inner = torch.where(is_wide, 0.0, torch.log(-torch.expm1(log_ratio)))
        return cls(far, near, is_mirrored, log_near + inner)

    def ratios(self):
        """Return normal densities at the near and the far end over the probability."""
        at_near = torch.exp(-0.5 * (LOG_2PI + self.near**2) - self.log_prob)
        far_to_near = 0.5 * (self.near - self.far) * (self.near + self.far)
        return at_near, at_near * far_to_near.exp(), far_to_near

    def derivative(self):
        """Return the derivative of `log_prob` in the location, times the deviation."""
        at_near, _, far_to_near = self.ratios()
        derivative = -at_near * torch.expm1(far_to_near)
        return torch.where(self.is_mirrored, derivative, -derivative)

    def variance_derivative(self):
        """Return the derivative of `log_prob` in the log variance."""
        at_near, at_far, _ = self.ratios()
        return 0.5 * (self.far * at_far - self.near * at_near)


class Interval(DispersionLikelihood):
    """Numbers with Gaussian noise and intervals of them, given their means.

    Parameters
    ----------
    noise_variance : Tensor of shape (d,)
    log_scale : Tensor of shape (d,), default=None
        Logarithms of the units. Densities of standardised numbers are those of numbers
        times the unit, and probabilities of intervals are multiplied by it, too. None
        is 0.
    """

    floor = SINGLE_NOISE_FLOOR
    attribute = "noise_variance_"

    def __init__(self, noise_variance, log_scale=None):
        super().__init__(noise_variance)
        if log_scale is None:
            log_scale = torch.zeros_like(noise_variance)
        self.register_buffer("log_scale", log_scale)

    @staticmethod
    def check_rows(X):
        """All numbers are allowed, and intervals that are not too narrow."""
        _check_width(torch.from_numpy(X.astype(np.float64)))

    @staticmethod
    def standardised(X, shift, scale):
        X = X.double()
        _check_width(X, shift, scale)
        is_code, *ends = ends_of(X)
        ends = [
            torch.where(end.abs() < INFINITE, (end - shift) / scale, end)
            for end in ends
        ]
        return torch.where(is_code, codes_of(*ends), (X - shift) / scale)

    def units(self, X, weight=None, by_column=False):
        return _units(X, weight)

    @staticmethod
    def start_location(X, weight=None):
        return Gaussian.start_location(numbers_near(X), weight)

    start_attributes = Gaussian.start_attributes
    shape_attributes = Gaussian.shape_attributes
    mean, draw = Gaussian.mean, Gaussian.draw

    def from_attributes(self, fitted, scale):
        variance = torch.from_numpy(fitted[self.attribute] / scale**2)
        return type(self)(variance, torch.from_numpy(np.log(scale)))

    def entry_log_prob(self, X, location):
        log_prob = log_prob_of(X, location, self.dispersion)
        return torch.where(has_codes(X), log_prob + self.log_scale, log_prob)

    def pair_log_prob(self, X, observed, location):
        """Compute the probability of each distinct interval once."""
        is_code = has_codes(X)
        numbers = torch.where(is_code, 0.0, X)
        known = observed * ~is_code
        pairs = normal_pairs(numbers, known, location, self.dispersion)
        for j in is_code.any(0).nonzero()[:, 0].tolist():
            rows = is_code[:, j].nonzero()[:, 0]
            code, number = X[rows, j].unique(return_inverse=True)
            _, lower, upper = ends_of(code[:, None])
            ends = _Ends.around(lower, upper, location[:, j], self.dispersion[..., j])
            log_prob = ends.log_prob + self.log_scale[j]
            pairs = pairs.index_add(0, rows, log_prob[number])
        return pairs

    def derivatives(self, X, location):
        """Return the first derivative, and minus the second."""
        derivative, in_variance, is_code = _derivatives(X, location, self.dispersion)
        curvature = (derivative**2 - 2 * in_variance).clamp(0, 1)
        information = torch.where(is_code, curvature, 1.0)
        return derivative / self.dispersion.sqrt(), information / self.dispersion

    def shape_derivatives(self, X, location):
        """Return the derivative, and the information of a number."""
        _, derivative, _ = _derivatives(X, location, self.dispersion)
        return derivative, torch.full_like(derivative, 0.5)

    is_open = staticmethod(is_open)

    def within(self, X, location, uniform=None):
        if uniform is None:
            derivative, _, _ = _derivatives(X, location, self.dispersion)
            return location + self.dispersion.sqrt() * derivative
        drawn = drawn_within(X, location, self.dispersion, uniform)
        return torch.where(has_codes(X), drawn, self.draw(location, uniform))


def log_prob_of(X, mean, variance):
    """Return log-densities of numbers and log-probabilities of intervals."""
    is_code = has_codes(X)
    log_prob = normal_log_prob((torch.where(is_code, 0.0, X) - mean) ** 2, variance)
    if not is_code.any():
        return log_prob
    ends = _Ends.of(X, mean, variance)
    return torch.where(is_code, ends.log_prob, log_prob)


def moments_of(X, mean, variance):
    """Return the expected deviation of entries from the mean, and its square's."""
    derivative, in_variance, _ = _derivatives(X, mean, variance)
    return variance.sqrt() * derivative, variance * (1 + 2 * in_variance)


def drawn_within(X, mean, variance, uniform):
    """Return draws from the intervals of X; arbitrary where X has numbers."""
    _, lower, upper = ends_of(X)
    ends = _Ends.of(X, mean, variance)
    log_far, log_near = map(torch.special.log_ndtr, (ends.far, ends.near))
    # the level is between those of the far and the near end
    level = log_near + torch.log1p(uniform * torch.expm1(log_far - log_near))
    drawn = mean.new_tensor(ndtri_exp(level.cpu().numpy()))
    drawn = torch.where(ends.is_mirrored, -drawn, drawn)
    return (mean + variance.sqrt() * drawn).clamp(lower, upper)


def _derivatives(X, mean, variance):
    """Return derivatives in standard deviations, and which entries are intervals."""
    is_code = has_codes(X)
    residual = (torch.where(is_code, 0.0, X) - mean) / variance.sqrt()
    derivative, in_variance = residual, 0.5 * (residual**2 - 1)
    if is_code.any():
        ends = _Ends.of(X, mean, variance)
        derivative = torch.where(is_code, ends.derivative(), derivative)
        of_ends = ends.variance_derivative()
        in_variance = torch.where(is_code, of_ends, in_variance)
    return derivative, in_variance, is_code


def check_intervals(X):
    """Refuse training rows with intervals that are too narrow; array (n, d)."""
    shift, scale, _ = map(torch.from_numpy, _units(X))
    _check_width(torch.from_numpy(X.astype(np.float64)), shift, scale)


def _units(X, weight=None):
    """Return the units of numbers near the intervals; 1 for constant columns."""
    units = Gaussian.units(numbers_near(X), weight, by_column=True)
    return units._replace(scale=np.where(units.constant, 1.0, units.scale))


def _check_width(X, shift=0.0, scale=math.inf):
    is_code, lower, upper = ends_of(X)
    sizes = [
        torch.where(
            end.abs() < INFINITE, torch.maximum(end.abs(), (end - shift).abs()), 0
        )
        for end in (lower, upper)
    ]
    # An interval, and the standard deviation of its column, must be 1000 roundings of
    # ends wide: the inverse is the error of probabilities.
    least = torch.maximum(*sizes) * 1000 * torch.finfo(torch.float32).eps
    is_narrow = is_code & ((upper - lower < least) | (least > scale))
    if is_narrow.any():
        first = tuple(
            math.copysign(math.inf, end) if abs(end) >= INFINITE else end
            for end in (lower[is_narrow][0].item(), upper[is_narrow][0].item())
        )
        raise ValueError(
            f"{int(is_narrow.sum())} intervals are too narrow for ends of seven "
            f"digits, or in columns that vary too little for them, such as {first}. "
            "Give numbers for narrow intervals, and subtract a constant from columns "
            "that are far from 0."
        )


def numbers_near(X):
    """Return an array with numbers in place of intervals, from which fits start."""
    X = torch.from_numpy(np.asarray(X, dtype=np.float64))
    is_code, lower, upper = ends_of(X)
    is_finite = (lower.abs() < INFINITE), (upper.abs() < INFINITE)
    lower = torch.where(is_finite[0], lower, upper)
    upper = torch.where(is_finite[1], upper, lower)
    return torch.where(is_code, (lower + upper) / 2, X).numpy()
