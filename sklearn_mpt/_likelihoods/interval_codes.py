"""Intervals as numbers of double precision, so that tables of them are arrays.

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
"""

import torch

INFINITE = 2.0**100  # stands for infinite ends, so that a code is finite
LEAST_CODE = 2.0**513
_LOWER, _UPPER = 2**30 - 1, 2**31 - 1  # the bits of the size, and of the upper end


def codes_of(lower, upper):
    """Return the codes of intervals; float64."""
    lower, upper = (_bits_of(end.clamp(-INFINITE, INFINITE)) for end in (lower, upper))
    sign, size = lower >> 30, lower & _LOWER
    return ((sign << 63) | (3 << 61) | (size << 31) | upper).view(torch.float64)


def has_codes(X):
    """Return where X has codes; bool."""
    return X.abs() >= LEAST_CODE


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
