"""What counts and amounts share: checks, means, and largest numbers."""

import numpy as np

from sklearn_mpt._likelihoods.base import check_values, totals

# Largest log of an expected amount: sums of some of their exponentials are finite in
# single precision, too.
MAX_LOG = 80.0
# Largest exponent in log-densities, which are linear beyond it. So products of their
# derivatives are finite.
MAX_EXPONENT = 50.0


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
