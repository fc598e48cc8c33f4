"""Whether a function is a masked model: the contract, put to the test."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import _safe_indexing, check_array

from sklearn_mpt._checks import check_int
from sklearn_mpt._measure.contract import (
    as_array,
    check_rows,
    conditional_log_prob_of,
)
from sklearn_mpt._measure.masks import draw_masks
from sklearn_mpt._seeds import RandomState, spawn_seeds

MAX_ROWS = 50
TOLERANCE = 1e-6  # relative, or of a nat


def check_masked_model(
    estimator: object,
    X: ArrayLike,
    *,
    n_masks: int = 10,
    random_state: RandomState = 0,
) -> None:
    r"""Check that a model keeps the contract of ``conditional_log_prob(X, mask)``.

    It must return one finite number for every entry of X, which is 0 at visible and at
    missing ones, is the same in every call, does not depend on other rows, and reads no
    hidden value but that of its own term: :math:`\log p(x_j \mid x_R)` may depend on
    :math:`x_j` and on the visible features R. What cannot be checked is that the
    numbers are log-probabilities, normalised over :math:`x_j`.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function of
        that form.
    X : array-like of shape (n_samples, n_features)
        Rows that the model takes; the first 50 are used. NaN marks missing entries.
    n_masks : int, default=10
        Number of masks to try; one hides everything, another a single feature.
    random_state : int, RandomState instance or None, default=0
        Determines the masks.

    Raises
    ------
    TypeError
        If the estimator has no conditionals, or they are no numbers.
    ValueError
        If a rule is broken: the message names it, the feature, the row and the mask,
        and the two numbers that disagree.

    See Also
    --------
    mpt_curve : Measure a masked model.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import check_masked_model
    >>> X = np.random.default_rng(0).normal(size=(5, 3))
    >>> def standard_normal(X, mask):
    ...     return np.where(mask, -0.5 * (X**2 + np.log(2 * np.pi)), 0.0)
    >>> check_masked_model(standard_normal, X)
    >>> check_masked_model(lambda X, mask: standard_normal(X, ~mask), X)
    Traceback (most recent call last):
        ...
    ValueError: Visible and missing entries must have log-probability 0, ...
    """
    check_int(n_masks, "n_masks")
    rows = _first_rows(estimator, X)
    conditional = conditional_log_prob_of(estimator)
    values = check_array(rows, dtype=np.float64, ensure_all_finite="allow-nan")
    rng = np.random.default_rng(spawn_seeds(random_state, 1)[0])
    n_features = values.shape[1]
    sizes = [n_features, 1, *rng.integers(1, n_features + 1, n_masks)][:n_masks]
    for mask in draw_masks(sizes, n_features, rng):
        log_prob = _ask(conditional, rows, mask)
        _check_entries(log_prob, mask & ~np.isnan(values), mask)
        _check_same(log_prob, _ask(conditional, rows, mask), mask, "in a second call")
        alone = _ask(conditional, _safe_indexing(rows, [0]), mask)
        _check_same(log_prob[:1], alone, mask, "without the other rows")
        _check_reading(conditional, rows, mask, log_prob, rng)


def _first_rows(estimator, X):
    X, _ = check_rows(estimator, X)
    return _safe_indexing(X, np.arange(min(MAX_ROWS, np.shape(X)[0])))


def _ask(conditional, rows, mask):
    log_prob = as_array(conditional(rows, mask))
    if log_prob.dtype.kind not in "fiu":
        raise TypeError(
            f"Log-probabilities must be real numbers, got dtype {log_prob.dtype} for "
            f"the mask {_describe(mask)}."
        )
    if log_prob.shape != np.shape(rows):
        raise ValueError(
            "conditional_log_prob must return one value per entry of X, of shape "
            f"{np.shape(rows)}, got {log_prob.shape} for the mask {_describe(mask)}."
        )
    return log_prob


def _describe(mask):
    hidden = np.flatnonzero(mask)
    few = ", ".join(map(str, hidden[:10]))
    rest = f", ... ({len(hidden)} of {len(mask)})" if len(hidden) > 10 else ""
    return f"that hides the features [{few}{rest}]"


def _check_entries(log_prob, is_target, mask):
    wrong = ~np.isfinite(log_prob)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"Log-probabilities must be finite, got {log_prob[i, j]} at feature {j} of "
            f"row {i}, for the mask {_describe(mask)}."
        )
    wrong = (log_prob != 0) & ~is_target
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        kind = "a missing" if mask[j] else "the visible"
        raise ValueError(
            "Visible and missing entries must have log-probability 0, got "
            f"{log_prob[i, j]:.6g} instead of 0 at {kind} feature {j} of row {i}, for "
            f"the mask {_describe(mask)}."
        )


def _check_same(log_prob, other, mask, when, targets=slice(None)):
    """Check that the terms of some features are what they were."""
    limit = TOLERANCE * np.maximum(1, np.abs(log_prob))
    wrong = np.zeros(log_prob.shape, dtype=bool)
    wrong[:, targets] = ~(np.abs(other - log_prob) <= limit)[:, targets]
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            "A log-probability may depend on its own value and on the visible features "
            f"alone: that of feature {j} of row {i} changed from {log_prob[i, j]:.6g} "
            f"to {other[i, j]:.6g} {when}, for the mask {_describe(mask)}."
        )


def _check_reading(conditional, rows, mask, log_prob, rng):
    """Give half of the hidden features the values of another row, then the others."""
    hidden = rng.permutation(np.flatnonzero(mask))
    for changed in (hidden[: len(hidden) // 2], hidden[len(hidden) // 2 :]):
        kept = np.setdiff1d(hidden, changed)
        if len(changed) and len(kept):
            log_prob_after = _ask(conditional, _move(rows, changed), mask)
            named = ", ".join(map(str, changed[:10]))
            when = f"when the hidden values of the features [{named}] changed"
            _check_same(log_prob, log_prob_after, mask, when, kept)


def _move(rows, columns):
    """Shift the values of some columns by a row."""
    if hasattr(rows, "iloc"):
        moved = rows.copy()
        for j in columns:
            moved.isetitem(j, np.roll(moved.iloc[:, j].to_numpy(), 1))
        return moved
    moved = np.array(rows)
    moved[:, columns] = np.roll(moved[:, columns], 1, axis=0)
    return moved
