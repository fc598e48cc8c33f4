"""Quick checks that a function scores hidden entries and does not read them."""

from dataclasses import replace
from functools import partial

import numpy as np

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._measure.contract import (
    MIN_CHANGE,
    CheckedConditional,
    change_of,
    describe_mask,
    few_rows,
)
from sklearn_mpt._measure.normalisation import (
    GRID_TOLERANCE,
    MAX_INTEGERS,
    MAX_VALUES,
    ROWS_TO_SUM,
    check_sums,
    discrete_columns,
)
from sklearn_mpt._measure.rows import Rows, with_moved_columns
from sklearn_mpt._messages import listed

# Hidden features whose densities are integrated. Each costs calls of the model with at
# least `GRID_POINTS` rows; check_masked_model integrates one for each of its masks.
TESTED_FEATURES = 3
GRID_POINTS = 33  # number of points of the first grid
MAX_HALVINGS = 12  # of intervals of the grid: to 1 / 131072 of the range
MAX_INTEGRAL = 1.1  # largest integral of a density, with errors of the grid
MAX_WITHOUT_CONSTANT = 10.0  # largest integral of exp(-x**2 / 2) and the like
# changes are no noise if they are larger than this times those of repeated calls
NOISE_FACTOR = 10


def check_hidden_values(model: object, rows: Rows, is_compared: bool = False) -> None:
    """Check on a few rows that a model scores hidden entries without reading them.

    Models that know the measures of their columns are not checked, nor those with a
    method ``chain_log_prob``. Nothing is said if a call fails: the real calls follow.
    """
    if hasattr(model, "chain_log_prob") or hasattr(model, "_measures_of_columns"):
        return
    conditional, few = CheckedConditional(model), few_rows(rows)
    n_features = rows.shape[1]
    ask, masks = partial(_attempt, conditional), _masks_to_try(n_features)
    half, _ = masks
    log_prob = [ask(few, mask) for mask in masks]
    _check_side(few, masks, log_prob)
    for mask, result in zip(masks, log_prob, strict=True):
        if result is not None:
            check_reading(ask, few, mask, result, np.random.default_rng(0))
    _check_binary(ask, rows.slice(0, min(ROWS_TO_SUM, len(rows))), masks)
    most = MAX_INTEGRAL if is_compared else MAX_WITHOUT_CONSTANT
    for j in np.flatnonzero(half)[:TESTED_FEATURES].tolist():
        if integral := excessive_integral(conditional, rows, few, half, j, most):
            warn_caller(
                f"The density of feature {j} integrates to {integral:.3g}, for the "
                f"mask {describe_mask(half)}: it is not normalised, or it is computed "
                "from the hidden value. Its log-probabilities cannot be compared with "
                "those of other models. check_masked_model has more checks."
            )
            return


def _masks_to_try(n_features):
    """Return a mask of half of the features, and one of all."""
    half = np.random.default_rng(0).permutation(n_features) < (n_features + 1) // 2
    return half, np.ones(n_features, dtype=bool)


def _check_binary(ask, rows, masks):
    """Check that the probabilities of columns of two values add up to one."""
    columns = discrete_columns(rows, [None] * rows.shape[1])
    binary = {j: column for j, column in columns.items() if column.is_binary}
    for mask in masks if binary else ():
        calls = ask(rows, mask), ask(rows, mask)
        if any(log_prob is None for log_prob in calls):
            continue
        if (change_of(*calls) <= MIN_CHANGE).all():
            check_sums(ask, rows, mask, binary)


def check_side(conditional, rows):
    """Refuse a function that scores visible entries and no hidden one."""
    few, masks = few_rows(rows), _masks_to_try(rows.shape[1])
    _check_side(few, masks, [_attempt(conditional, few, mask) for mask in masks])


def _attempt(conditional, rows, mask):
    """Return a copy of the result, or None if the call fails or is not of numbers."""
    try:
        log_prob = np.array(conditional(rows, mask))
    except Exception:  # the user's function; a real error appears in the next call
        return None
    return None if np.isnan(log_prob[rows.targets(mask)]).any() else log_prob


def _check_side(rows, masks, log_prob):
    if any(result is None for result in log_prob):
        return
    pairs = list(zip(masks, log_prob, strict=True))
    hidden = [result[rows.targets(mask)] for mask, result in pairs]
    visible = [result[rows.targets(~mask)] for mask, result in pairs]
    if np.any(np.concatenate(visible)) and not np.any(np.concatenate(hidden)):
        raise ValueError(
            "mask is True where an entry is hidden, and log-probabilities of hidden "
            "entries are needed. All of them are 0, and those of visible entries are "
            "not: does the function take True for visible? Pass ~mask to it."
        )


def check_reading(ask, rows, mask, log_prob, rng, limit=None):
    """Check that hidden values do not change log-probabilities of other features."""
    hidden = rng.permutation(np.flatnonzero(mask))
    for changed in (hidden[: len(hidden) // 2], hidden[len(hidden) // 2 :]):
        kept = np.setdiff1d(hidden, changed)
        if len(changed) and len(kept):
            moved = Rows.from_table(with_moved_columns(rows.values, changed))
            moved = replace(moved, index=rows.index)
            after = ask(moved, mask)
            if after is None:
                continue
            before, allowed = log_prob[:, kept], MIN_CHANGE if limit is None else limit
            if limit is None and change_of(before, after[:, kept]).max() > MIN_CHANGE:
                repeated = ask(rows, mask)
                if repeated is not None:
                    noise = change_of(before, repeated[:, kept]).max()
                    allowed = max(MIN_CHANGE, NOISE_FACTOR * noise)
            when = f"when the hidden values of the features {listed(changed)} changed"
            check_same(rows, log_prob, after, mask, when, allowed, kept)


def check_same(rows, log_prob, other, mask, when, limit, targets=slice(None)):
    """Check that the log-probabilities of the target features did not change."""
    change = np.zeros(log_prob.shape)
    change[:, targets] = change_of(log_prob[:, targets], other[:, targets])
    if (change > limit).any():
        i, j = np.argwhere(change > limit)[0]
        raise ValueError(
            "A log-probability may depend on its own value and on the visible features "
            f"alone: that of feature {j} of row {rows.number(i)} changed from "
            f"{log_prob[i, j]:.6g} to {other[i, j]:.6g} {when}, for the mask "
            f"{describe_mask(mask)}."
        )


def excessive_integral(conditional, rows, few, mask, j, most=MAX_INTEGRAL):
    """Return the integral of the density of a hidden feature if it is above `most`.

    Otherwise 0.0: also if the probabilities of the values of a discrete column add up
    to one or less, if X is not an array of numbers, and if a call fails.
    """
    if not isinstance(rows.values, np.ndarray) or rows.values.dtype.kind not in "biuf":
        return 0.0
    column = rows.values[:, j]
    levels = np.unique(column[~np.isnan(column)])
    if len(levels) < 2:
        return 0.0
    low, high = levels[[0, -1]].astype(np.float64)

    def density(values):
        repeated = np.repeat(few.values[:1], len(values), axis=0)
        repeated = repeated.astype(np.result_type(repeated, values), copy=False)
        repeated[:, j] = values
        log_prob = np.asarray(conditional(Rows.from_table(repeated), mask))[:, j]
        with np.errstate(over="ignore"):
            return np.exp(np.nan_to_num(log_prob, nan=-np.inf, posinf=-np.inf))

    is_whole = np.all(levels == np.round(levels)) and high - low <= MAX_INTEGERS
    is_discrete = is_whole or len(levels) <= MAX_VALUES
    if is_whole:
        levels = np.arange(low, high + 1).astype(column.dtype)
    try:
        if is_discrete and density(levels).sum() <= MAX_INTEGRAL:
            return 0.0
        total = _integral(density, *_range(low, high, is_discrete))
    except Exception:  # the user's function may refuse these values
        return 0.0
    return total if total > most else 0.0


def _range(low, high, is_discrete):
    """Return bounds to integrate between, beyond the values that a column has."""
    is_fraction = 0 <= low and high <= 1 and not is_discrete
    beyond = high - low
    start = max(low - beyond, 0.0) if low >= 0 else low - beyond
    end = min(high + beyond, 0.0) if high <= 0 else high + beyond
    return start, min(end, 1.0) if is_fraction else end


def _integral(density, low, high):
    """Integrate on a grid that is halved where most of the integral is."""
    points = np.linspace(low, high, GRID_POINTS)
    values, total = density(points), np.inf
    for _ in range(MAX_HALVINGS):
        parts = np.diff(points) * (values[1:] + values[:-1]) / 2
        before, total = total, parts.sum()
        if total <= MAX_INTEGRAL or abs(total - before) <= GRID_TOLERANCE * total:
            break
        where = np.flatnonzero(parts > GRID_TOLERANCE * total / GRID_POINTS)
        middles = (points[where] + points[where + 1]) / 2
        points = np.insert(points, where + 1, middles)
        values = np.insert(values, where + 1, density(middles))
    return float(total)
