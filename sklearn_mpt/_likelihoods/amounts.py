"""What kinds of amounts share: a base class, logarithms, checks and moments."""

import numpy as np
import torch

from sklearn_mpt._likelihoods.base import (
    DispersionLikelihood,
    check_values,
    column_moments,
    totals,
)
from sklearn_mpt._likelihoods.gaussian import EQUAL_ROUNDING_ERRORS

# Largest log of an expected amount: sums of some of their exponentials are finite in
# single precision, too.
MAX_LOG = 80.0
# Largest exponent in log-densities, which are linear beyond it. So products of their
# derivatives are finite.
MAX_EXPONENT = 50.0
# Least variance of a logarithm, and of an amount over its squared mean: a rounding
# error of single precision.
DISPERSION_FLOOR = 1e-7


def check_counts(X, kind):
    """Refuse rows with entries that are neither counts nor NaN."""
    check_values(X, kind, "counts 0, 1, 2, ...", (X < 0) | (X % 1 > 0))


def mean_counts(X, weight=None):
    """Return the mean count of each column; that of zeros alone is of half a count."""
    total, present = totals(X, weight)
    return np.maximum(total, 0.5) / np.maximum(present, 0.5)


def amounts_of(logs):
    """Return amounts, given a tensor of their logarithms."""
    return logs.clamp(max=MAX_LOG).exp()


def log_of(X):
    """Return logarithms of amounts, an array or tensor; 0 where not positive."""
    if isinstance(X, np.ndarray):
        return np.log(np.where(X > 0, X, 1.0))
    return torch.where(X > 0, X, 1.0).log()


def log_moments(X, weight=None):
    """Return mean, variance and count of the logs of positive amounts by column."""
    return column_moments(_logs_of_positive(X), weight)


def _logs_of_positive(X):
    return np.where(X > 0, log_of(np.nan_to_num(X)), np.nan)


class Amounts(DispersionLikelihood):
    """Base class of kinds whose positive amounts have a density.

    Amounts are positive, unless a kind allows more.
    """

    kind: str  # name of the kind
    measure = "density"
    bounds = (0.0, np.inf)
    floor = DISPERSION_FLOOR

    @classmethod
    def check_rows(cls, X):
        check_values(X, cls.kind, "numbers above 0", X <= 0)

    def units(self, X, weight=None, by_column=False):
        """Columns are constant if all positive amounts, if there are any, are equal."""
        logs = _logs_of_positive(X)
        low = np.fmin.reduce(logs, axis=0, initial=np.inf)
        high = np.fmax.reduce(logs, axis=0, initial=-np.inf)
        error = EQUAL_ROUNDING_ERRORS * np.finfo(np.float64).eps * (1 + np.abs(high))
        constant = (low <= high) & (high - low <= error)
        return super().units(X, weight)._replace(constant=constant)
