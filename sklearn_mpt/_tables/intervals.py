"""Columns of intervals, such as those of pandas, and of numbers among them."""

import numpy as np
import torch

from sklearn_mpt._likelihoods.gaussian import MAX_SIZE
from sklearn_mpt._likelihoods.interval import codes_of
from sklearn_mpt._messages import examples_of
from sklearn_mpt._tables.frames import is_interval, one_of_each_type

INTERVAL = "interval"  # the kind of such columns


def holds_intervals(column):
    """Return whether some entry of a column is an interval."""
    if column.values.dtype != object:
        return False
    return any(map(is_interval, one_of_each_type(column.present)))


def codes_of_column(column):
    """Return numbers, codes of intervals, and NaN where missing; floats, (n,)."""
    lower, upper = column.values.copy(), column.values.copy()
    if holds_intervals(column):
        for i in np.flatnonzero(~column.missing).tolist():
            if is_interval(column.values[i]):
                lower[i], upper[i] = column.values[i].left, column.values[i].right
    lower, upper = (column._replace(values=end).numbers() for end in (lower, upper))
    _check_ends(lower, upper, column.name)
    has_width = (lower < upper) & ~(np.isinf(lower) & np.isinf(upper))
    codes = codes_of(torch.from_numpy(lower), torch.from_numpy(upper))
    numbers = np.where(lower == upper, lower, np.nan)
    return np.where(has_width, codes.numpy(), numbers)


def _check_ends(lower, upper, name):
    """Refuse infinite numbers, and those that double precision cannot square."""
    ends = np.stack([lower, upper])
    is_excessive = (np.isfinite(ends) & (np.abs(ends) > MAX_SIZE)).any(axis=0)
    is_excessive |= (lower == upper) & np.isinf(lower)
    if is_excessive.any():
        raise ValueError(
            f"Column {name!r} holds numbers such as {examples_of(upper[is_excessive])},"
            " whose squares double precision cannot hold: rescale it."
        )
