"""Choice of the kind of a column of numbers from its values: ``likelihood="auto"``.

Candidates are the kinds that allow all values. Each is fitted to the column alone and
scored by the cross-validated log-probability of a value. For whole numbers a density is
multiplied by the step of the grid of the values. The best kind is chosen, unless a
simpler one is within the standard error of the difference.
"""

import math

import numpy as np
from scipy import stats

from sklearn_mpt._likelihoods.gamma import Gamma
from sklearn_mpt._likelihoods.negative_binomial import NegativeBinomial
from sklearn_mpt._numbers import MAX_EXACT_INTEGER, ROUNDING

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
    scores = {kind: _held_out(kind, values) for kind in kinds}
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


def _held_out(kind, values):
    """Return the log-probability of each value, by a fit to other values; (n,)."""
    fold = np.random.default_rng(0).permutation(len(values)) % N_FOLDS
    log_prob = np.empty(len(values))
    for k in range(N_FOLDS):
        log_prob[fold == k] = SCORES[kind](values[fold != k], values[fold == k], values)
    if kind in DENSITIES:
        positive = values > 0 if kind == "zero_lognormal" else np.ones_like(fold, bool)
        log_prob += positive * math.log(step_of(values) or 1)
    return log_prob


def _gaussian(train, test, values):
    return stats.norm.logpdf(
        test, train.mean(), max(train.std(), ROUNDING * values.std())
    )


def _lognormal(train, test, values):
    logs = np.log(train)
    spread = max(logs.std(), ROUNDING * np.log(values).std())
    return stats.norm.logpdf(np.log(test), logs.mean(), spread) - np.log(test)


def _gamma(train, test, values):
    kind, column = Gamma.of_columns(1, 1), train[:, None]
    dispersion = kind.start_attributes(column, np.ones(1))["dispersion_"][0]
    return stats.gamma.logpdf(test, 1 / dispersion, scale=train.mean() * dispersion)


def _zero_lognormal(train, test, values):
    share = ((train > 0).sum() + 0.5) / (len(train) + 1)
    log_prob = np.full(len(test), math.log1p(-share))
    positive = test > 0
    if positive.any() and (train > 0).any():
        of_positive = _lognormal(train[train > 0], test[positive], values[values > 0])
        log_prob[positive] = math.log(share) + of_positive
    return log_prob


def _poisson(train, test, values):
    return stats.poisson.logpmf(test, max(train.mean(), ROUNDING * values.mean()))


def _negative_binomial(train, test, values):
    kind, column = NegativeBinomial.of_columns(1, 1), train[:, None]
    size = 1 / kind.start_attributes(column, np.ones(1))["dispersion_"][0]
    mean = max(train.mean(), ROUNDING * values.mean())
    return stats.nbinom.logpmf(test, size, size / (size + mean))


def _ordinal(train, test, values):
    levels = np.arange(values.min(), values.max() + 1, step_of(values))
    counts = (train[:, None] == levels).sum(0) + 0.5
    return np.log(counts / counts.sum())[np.searchsorted(levels, test)]


SCORES = {
    "gaussian": _gaussian,
    "lognormal": _lognormal,
    "gamma": _gamma,
    "zero_lognormal": _zero_lognormal,
    "poisson": _poisson,
    "negative_binomial": _negative_binomial,
    "ordinal": _ordinal,
}
DENSITIES = ("gaussian", "lognormal", "gamma", "zero_lognormal")
