"""Checks that a function keeps the contract: its side, what it reads, normalisation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Number

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    RandomState,
    check_int,
    listed,
    plain,
    spawn_seeds,
    warn_caller,
)
from sklearn_mpt._measure.contract import (
    MIN_CHANGE,
    CheckedConditional,
    change_of,
    check_rows,
    describe_mask,
    few_rows,
    measures_of_columns,
    refuse_texts,
)
from sklearn_mpt._measure.masks import draw_masks
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import Rows, as_objects, with_entries
from sklearn_mpt._numbers import MAX_GIVEN_ERROR

MAX_ROWS = 50  # rows that are checked
MAX_VALUES = 20  # largest number of values of a discrete column
# Largest range of integers whose probabilities are added up, and number of those beyond
# the ones seen that are tried for counts.
MAX_INTEGERS = 200
SUM_TOLERANCE = 1e-3  # of sums of probabilities, which can be integrals
GRID_TOLERANCE = 0.02  # relative error of an integral on a grid
MAX_INTEGRAL = 1.1  # largest integral of a density, with errors of the grid


def check_hidden_values(model: object, rows: Rows, is_compared: bool = False) -> None:
    """Check on a few rows that a model scores hidden entries without reading them.

    Models that know the measures of their columns are not checked, nor those with a
    method ``chain_log_prob``. Nothing is said if a call fails: the real calls follow.
    """
    if hasattr(model, "chain_log_prob") or hasattr(model, "_measures_of_columns"):
        return
    conditional, few = CheckedConditional(model), few_rows(rows)
    ask = partial(_attempt, conditional)
    tried = check_side(ask, few)
    for mask, log_prob in tried:
        if log_prob is not None:
            check_reading(ask, few, mask, log_prob, np.random.default_rng(0))
    first = rows.slice(0, min(MAX_ROWS, len(rows)))
    columns = discrete_columns(first, [None] * rows.shape[1])
    binary = {j: values for j, values in columns.items() if set(values) == {0, 1}}
    for mask, _ in tried if binary else ():
        calls = ask(first, mask), ask(first, mask)
        if all(call is not None for call in calls) and (
            change_of(*calls).max() <= MIN_CHANGE
        ):
            check_sums(ask, first, mask, binary)
    # the largest integral of exp(-x**2 / 2) and the like is below 10
    most = MAX_INTEGRAL if is_compared else 10.0
    half, _ = tried[0]
    for j in np.flatnonzero(half)[:3].tolist():
        if integral := excessive_integral(conditional, rows, few, half, j, most):
            warn_caller(
                f"The density of feature {j} integrates to {integral:.3g}, for the "
                f"mask {describe_mask(half)}: it is not normalised, or it is computed "
                "from the hidden value. Its log-probabilities cannot be compared with "
                "those of other models. check_masked_model has more checks."
            )
            return


def check_side(ask, rows):
    """Refuse a function that scores visible entries and no hidden one.

    Return its log-probabilities for a mask of half of the features, and one of all.
    """
    n_features = rows.shape[1]
    half = np.random.default_rng(0).permutation(n_features) < (n_features + 1) // 2
    pairs = [(m, ask(rows, m)) for m in (half, np.ones(n_features, dtype=bool))]
    if any(log_prob is None for _, log_prob in pairs):
        return pairs
    is_scored = [np.any(result[rows.targets(mask)]) for mask, result in pairs]
    is_visible = [np.any(result[rows.targets(~mask)]) for mask, result in pairs]
    if any(is_visible) and not any(is_scored):
        raise ValueError(
            "mask is True where an entry is hidden, and log-probabilities of hidden "
            "entries are needed. All of them are 0, and those of visible entries are "
            "not: does the function take True for visible? Pass ~mask to it."
        )
    return pairs


def _attempt(conditional, rows, mask):
    """Return a copy of the result, or None if the call fails or is not of numbers."""
    try:
        log_prob = np.array(conditional(rows, mask))
    except Exception:  # the user's function; a real error appears in the next call
        return None
    return None if np.isnan(log_prob[rows.targets(mask)]).any() else log_prob


def check_reading(ask, rows, mask, log_prob, rng, limit=None):
    """Check that hidden values do not change log-probabilities of other features."""
    hidden = rng.permutation(np.flatnonzero(mask))
    for changed in (hidden[: len(hidden) // 2], hidden[len(hidden) // 2 :]):
        kept = np.setdiff1d(hidden, changed)
        if len(changed) and len(kept):
            sources = dict.fromkeys(changed.tolist(), np.roll(np.arange(len(rows)), 1))
            moved = Rows.from_table(with_entries(rows.values, sources))
            moved = replace(moved, index=rows.index)
            after = ask(moved, mask)
            if after is None:
                continue
            before, allowed = log_prob[:, kept], MIN_CHANGE if limit is None else limit
            if limit is None and change_of(before, after[:, kept]).max() > MIN_CHANGE:
                repeated = ask(rows, mask)
                if repeated is not None:
                    noise = change_of(before, repeated[:, kept]).max()
                    allowed = max(MIN_CHANGE, 10 * noise)
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


def _density_along(ask, row, mask, j, values):
    """Return the density of a row whose feature j has these values; 0 if refused."""
    repeated = np.repeat(row, len(values), axis=0)
    repeated = repeated.astype(np.result_type(repeated, values), copy=False)
    repeated[:, j] = values
    try:
        log_prob = np.asarray(ask(Rows.from_table(repeated), mask))[:, j]
    except Exception:  # the user's function may refuse other values
        return np.zeros(len(values))
    with np.errstate(over="ignore"):  # those that are not normalised may be large
        density = np.exp(log_prob)
    return np.where(np.isfinite(density), density, 0.0)


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
    density = partial(_density_along, conditional, few.values[:1], mask, j)
    is_whole = np.all(levels == np.round(levels)) and high - low <= MAX_INTEGERS
    is_discrete = is_whole or len(levels) <= MAX_VALUES
    if is_whole:
        levels = np.arange(low, high + 1).astype(column.dtype)
    if is_discrete and density(levels).sum() <= MAX_INTEGRAL:
        return 0.0
    # beyond the values that the column has, but not beyond 0 or, of fractions, 1
    beyond = high - low
    start = max(low - beyond, 0.0) if low >= 0 else low - beyond
    end = min(high + beyond, 0.0) if high <= 0 else high + beyond
    if 0 <= low and high <= 1 and not is_discrete:
        end = min(end, 1.0)
    total = _integral(density, np.linspace(start, end, 33))
    return total if total > most else 0.0


def _integral(density, points):
    """Integrate on a grid that is halved where most of the integral is."""
    values, total, n_points = density(points), np.inf, len(points)
    for _ in range(12):
        parts = np.diff(points) * (values[1:] + values[:-1]) / 2
        before, total = total, parts.sum()
        if total <= MAX_INTEGRAL or abs(total - before) <= GRID_TOLERANCE * total:
            break
        where = np.flatnonzero(parts > GRID_TOLERANCE * total / n_points)
        middles = (points[where] + points[where + 1]) / 2
        points = np.insert(points, where + 1, middles)
        values = np.insert(values, where + 1, density(middles))
    return float(total)


def discrete_columns(rows, measures):
    """Return, for each discrete feature, a dict of its values: a row with each."""
    entries, columns = as_objects(rows.values), {}
    for j, measure in enumerate(measures):
        present = range(len(rows))
        if rows.missing is not None:
            present = np.flatnonzero(~rows.missing[:, j]).tolist()
        first = {}  # row of each value
        for i in present:
            first.setdefault(entries[i, j], i)
        is_known = measure in (None, "probability")
        is_whole = all(v == int(v) for v in _numbers_of(first))
        if is_known and is_whole and 2 <= len(first) <= MAX_VALUES:
            columns[j] = first
    return columns


def _numbers_of(values):
    """Return the values that are finite numbers and not booleans."""
    numbers = [v for v in values if isinstance(v, Number)]
    return [v for v in numbers if not isinstance(v, bool | np.bool_) and np.isfinite(v)]


def check_sums(ask, rows, mask, discrete):
    """Check that the probabilities of discrete features add up to one over values.

    All hidden ones change their values at the same time: the log-probability of a
    feature does not depend on the hidden values of others, as `check_reading` has
    checked.
    """
    rows_of = {j: list(discrete[j].values()) for j in discrete if mask[j]}
    totals = np.zeros(rows.shape)
    for k in range(max(map(len, rows_of.values()), default=0)):
        features = [j for j, of_values in rows_of.items() if of_values[k:]]
        sources = {j: np.full(len(rows), rows_of[j][k]) for j in features}
        log_prob = ask(Rows.from_table(with_entries(rows.values, sources)), mask)
        if log_prob is None:
            return
        with np.errstate(over="ignore"):  # those that are not normalised may be large
            totals[:, features] += np.exp(log_prob[:, features])
    for j in rows_of:
        i = int(np.abs(totals[:, j] - 1).argmax())
        total, values = totals[i, j], list(discrete[j])
        if abs(total - 1) <= SUM_TOLERANCE:
            continue
        if len(_numbers_of(values)) == len(values):
            if not isinstance(rows.values, np.ndarray):
                continue  # numbers in a table of other things
            values, row = sorted(values), rows.values[[i]].astype(float)
            density = partial(_density_along, ask, row, mask, j)
            if _is_explained(density, int(values[0]), int(values[-1])):
                continue
        elif total < 1 and not all(isinstance(v, bool | np.bool_) for v in values):
            continue  # there can be other categories
        cause = "" if total < 1 else " They may be computed from the hidden value."
        raise ValueError(
            "Log-probabilities must be normalised: the probabilities of feature "
            f"{j} of row {i} add up to {total:.6g} over its values "
            f"{listed([plain(value) for value in values])}, for the mask "
            f"{describe_mask(mask)}.{cause}"
        )


def _is_explained(density, low, high):
    """Return whether integers have a density, or unseen ones have probabilities too."""
    least = max(0, low - MAX_INTEGERS) if low >= 0 else low - MAX_INTEGERS
    ends = [(low, high), (low, high + 1), (low, high + 2), (least, high + MAX_INTEGERS)]
    sums = np.array([density(np.arange(a, b + 1)).sum() for a, b in ends])
    if (np.abs(sums - 1) <= SUM_TOLERANCE).any():
        return True
    margin, n_points = 10 * (high - low + 1), 2001
    grids = [np.linspace(low - margin, high + margin, n_points)]
    if low >= 0:  # amounts: negative values may be refused, and zero be common
        grids.append(np.geomspace(1e-6, 1e3, n_points) * (high + 1))
    integrals = np.array([np.trapezoid(density(grid), grid) for grid in grids])
    totals = np.append(integrals, integrals[-1] + density(np.zeros(1)))
    return bool((np.abs(totals - 1) < GRID_TOLERANCE).any())


def check_masked_model(
    estimator: object,
    X: ArrayLike,
    *,
    n_masks: int = 10,
    random_state: RandomState = None,
) -> None:
    r"""Check that a model keeps the contract of ``conditional_log_prob(X, mask)``.

    The function must return one finite number for every entry of X, and 0 at visible
    and at missing entries. The numbers must be the same in every call and must not
    depend on other rows. :math:`\log p(x_j \mid x_R)` may depend on :math:`x_j` and on
    the visible features R, but not on the values of other hidden features. The
    probabilities of a discrete column must add up to one over its values. A
    density of another column must not integrate to more than one over its range; it is
    not checked that it integrates to one. The conditionals need not belong to one joint
    density.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function or
        torch module of that form.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows that the model takes, with columns of any kind; the first 50 are used. NaN,
        or the missing value of a DataFrame, marks missing entries.
    n_masks : int, default=10
        Number of masks to try. One hides all features, another a single feature.
    random_state : int, RandomState instance or None, default=None
        Determines the masks.

    Raises
    ------
    TypeError
        If the estimator has no conditionals, or if they are not numbers; or if it is a
        model of texts.
    ValueError
        If a rule is broken; the message names the rule, the feature, the row, the mask,
        and the two numbers that disagree. Also if the function does not take a mask of
        shape (n_features,).

    See Also
    --------
    mpt_curve : Measure a masked model.
    lml_samples : The spread over orders of the features, with ``return_std=True``.

    Notes
    -----
    A column is discrete if it holds booleans, categories or strings, or at most 20
    different integers. A column of integers also passes if its probabilities add up to
    one together with those of integers that are not in X, or if the model gives it a
    density. This must integrate to one over all numbers, or over positive numbers
    together with a probability of zero. The probabilities may add up to less than one
    if X does not contain all categories of a column.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import check_masked_model
    >>> X = np.random.default_rng(0).normal(size=(5, 3))
    >>> def standard_normal(X, mask):
    ...     return np.where(mask, -0.5 * (X**2 + np.log(2 * np.pi)), 0.0)
    >>> check_masked_model(standard_normal, X)  # returns None: no rule is broken
    >>> check_masked_model(lambda X, mask: standard_normal(X, ~mask), X)
    Traceback (most recent call last):
        ...
    ValueError: mask is True where an entry is hidden, and ... Pass ~mask to it.
    """
    check_int(n_masks, "n_masks")
    estimator = resolve_model(estimator)
    refuse_texts(estimator, "check_masked_model")
    conditional, rows = CheckedConditional(estimator), check_rows(estimator, X)
    rows = rows.slice(0, min(MAX_ROWS, len(rows)))
    check_side(partial(_attempt, conditional), few_rows(rows))
    discrete = discrete_columns(rows, measures_of_columns(estimator, rows.shape[1]))
    rng = np.random.default_rng(spawn_seeds(random_state, 1)[0])
    n_features = rows.shape[1]
    sizes = [n_features, 1, *rng.integers(1, n_features + 1, n_masks)][:n_masks]
    masks = list(draw_masks(sizes, n_features, rng))

    def ask(rows, mask):
        """Return a copy of the result, because the function may use the array again."""
        return np.array(conditional(rows, mask))

    for mask in masks:
        log_prob = ask(rows, mask)
        if conditional.refusal is not None:
            raised = conditional.refusal
            raise ValueError(
                "conditional_log_prob must take a mask of shape (n_features,); given "
                f"one, of shape {mask.shape}, it raised {type(raised).__name__}: "
                f"{raised}"
            ) from raised
        wrong = ~np.isfinite(log_prob)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise ValueError(
                f"Log-probabilities must be finite, got {log_prob[i, j]} at feature "
                f"{j} of row {i}, for the mask {describe_mask(mask)}."
            )
        wrong = (log_prob != 0) & ~rows.targets(mask)
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            kind = "a missing" if mask[j] else "the visible"
            raise ValueError(
                "Visible and missing entries must have log-probability 0, got "
                f"{log_prob[i, j]:.6g} instead of 0 at {kind} feature {j} of row {i}, "
                f"for the mask {describe_mask(mask)}."
            )
        limit = MIN_CHANGE if conditional.is_single else MAX_GIVEN_ERROR
        check_same(rows, log_prob, ask(rows, mask), mask, "in a second call", limit)
        alone = ask(rows.slice(0, 1), mask)
        check_same(rows, log_prob[:1], alone, mask, "without the other rows", limit)
        check_reading(ask, rows, mask, log_prob, rng, limit)
        check_sums(ask, rows, mask, discrete)
    for mask in masks:
        others = [j for j in np.flatnonzero(mask).tolist() if j not in discrete]
        j = int(rng.choice(others)) if others else None
        if others and (integral := excessive_integral(ask, rows, rows, mask, j)):
            raise ValueError(
                f"Log-probabilities must be normalised: the density of feature {j} of "
                f"row 0 integrates to {integral:.6g}, for the mask "
                f"{describe_mask(mask)}. It may be computed from the hidden value."
            )
