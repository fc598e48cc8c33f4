"""Choice of the kind of a column of numbers from its values: ``likelihood="auto"``.

Candidates are the kinds that allow all values. Each is fitted to the column alone and
scored by the cross-validated log-probability of a value. For whole numbers a density is
multiplied by the step of the grid of the values. The best kind is chosen, unless a
simpler one is within the standard error of the difference.
"""

import math

import numpy as np
import torch

from sklearn_mpt._likelihoods import likelihood_of
from sklearn_mpt._numbers import MAX_EXACT_INTEGER

# Largest number of levels in order, each of which costs a parameter. Rounding to more
# levels is less than 1/400 of the variance of a uniform column, which a density
# describes as well.
MAX_LEVELS = 20
# Smallest mean number of rows for each level: the relative standard error of its
# probability is then about 1 / sqrt(5) or less.
ROWS_PER_LEVEL = 5
N_FOLDS = 5  # of cross-validation
MIN_ROWS = 4 * N_FOLDS  # four in each fold; with fewer rows, numbers are Gaussian


def kind_of_values(values, allowed, are_codes=False):
    """Return the kind with the best score for the present values of a column.

    Parameters
    ----------
    values : ndarray of shape (n,)
    allowed : collection of str
        Kinds to choose from.
    are_codes : bool, default=False
        Whether levels in order must be 0, 1, 2, ..., as in arrays.
    """
    if len(values) and np.isin(values, (0, 1)).all():
        return "bernoulli"
    if len(values) < MIN_ROWS or np.ptp(values) == 0:
        return "gaussian"
    allowed = set(allowed)
    if are_codes and not 0 <= values.min() <= values.max() < MAX_LEVELS:
        allowed.discard("ordinal")
    kinds = [kind for kind in _candidates(values) if kind in allowed]
    fold = np.random.default_rng(0).permutation(len(values)) % N_FOLDS
    folds = [(fold != k, fold == k) for k in range(N_FOLDS)]
    scores = {kind: _held_out(kind, values, folds) for kind in kinds}
    best = max(kinds, key=lambda kind: scores[kind].mean())
    for kind in kinds:  # simpler ones first
        loss = scores[best] - scores[kind]
        if loss.mean() <= loss.std() / math.sqrt(len(loss)):
            return kind
    return best


def step_of(values):
    """Return the greatest common divisor of the distances between whole values.

    0 if some value is not whole.
    """
    if len(values) == 0 or (values % 1 != 0).any():
        return 0
    if np.abs(values).max() > MAX_EXACT_INTEGER:
        return 0
    return math.gcd(*np.diff(np.unique(values)).astype(np.int64).tolist())


def _candidates(values):
    """Return the kinds that allow the values, simpler ones first."""
    step, lowest = step_of(values), values.min()
    kinds = ["gaussian"]
    if step and lowest >= 0:
        kinds = ["poisson", "gaussian", "negative_binomial"]
    if lowest > 0:
        kinds += ["lognormal", "gamma"]
    elif lowest == 0:
        kinds += ["zero_lognormal"]
    if step:
        n_levels = np.ptp(values) / step + 1
        if n_levels <= min(MAX_LEVELS, len(values) / ROWS_PER_LEVEL):
            kinds += ["ordinal"]
    return kinds


def _held_out(kind, values, folds):
    """Return the log-probability of each value, by a fit to other values; (n,).

    folds : the values to which the kind is fitted, and the others, bool (n,) each.
    """
    step, n_levels = step_of(values), 1
    if kind == "ordinal":
        values = (values - values.min()) / step
        n_levels = int(values.max()) + 1
    likelihood = likelihood_of(kind, n_levels, n_features=1)
    # fits to a single number, or to equal ones, depend on the unit
    unit = 1.0 if likelihood.measure == "probability" else np.ptp(values)
    rows = values[:, None] / unit
    log_prob = np.empty(len(rows))
    for train, test in folds:
        log_prob[test] = _log_prob(likelihood, rows[train], rows[test])
    has_density = likelihood.measure == "density"
    if likelihood.measure != "probability":
        log_prob[has_density | (values > 0)] += math.log((step or 1) / unit)
    return log_prob


def _log_prob(likelihood, train, test):
    """Return log-probabilities of rows by the likelihood that fits others; (n,).

    It has the location and the shape parameters from which models start.
    """
    shift, scale, _ = likelihood.units(train)
    train, test = (train - shift) / scale, (test - shift) / scale
    location = torch.from_numpy(likelihood.start_location(train))
    attributes = likelihood.start_attributes(train, scale)
    fitted = likelihood.from_attributes(attributes, scale)
    log_prob = fitted.entry_log_prob(torch.from_numpy(test), location)
    return log_prob[:, 0].detach().numpy() - np.log(scale)
