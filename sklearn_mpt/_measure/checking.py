"""Whether a function is a masked model: the contract, put to the test."""

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_int
from sklearn_mpt._measure.contract import Conditional, check_rows, describe_mask
from sklearn_mpt._measure.masks import draw_masks
from sklearn_mpt._measure.rows import Rows, with_moved_columns
from sklearn_mpt._seeds import RandomState, spawn_seeds

MAX_ROWS = 50
TOLERANCE = 1e-6  # relative, or of a nat


def check_masked_model(
    estimator: object,
    X: ArrayLike,
    *,
    n_masks: int = 10,
    random_state: RandomState = None,
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
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows that the model takes, of any kinds of columns; the first 50 are used. NaN,
        or what a DataFrame has in its place, marks missing entries.
    n_masks : int, default=10
        Number of masks to try; one hides everything, another a single feature.
    random_state : int, RandomState instance or None, default=None
        Determines the masks.

    Raises
    ------
    TypeError
        If the estimator has no conditionals, or they are no numbers.
    ValueError
        If a rule is broken: the message names it, the feature, the row and the mask,
        and the two numbers that disagree. Also if the function takes no mask of shape
        (n_features,).

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
    conditional, rows = Conditional(estimator), check_rows(estimator, X)
    rows = rows.slice(0, min(MAX_ROWS, len(rows)))
    rng = np.random.default_rng(spawn_seeds(random_state, 1)[0])
    n_features = rows.shape[1]
    sizes = [n_features, 1, *rng.integers(1, n_features + 1, n_masks)][:n_masks]
    for mask in draw_masks(sizes, n_features, rng):
        log_prob = _ask(conditional, rows, mask)
        if conditional.refusal is not None:
            raised = conditional.refusal
            raise ValueError(
                "conditional_log_prob must take a mask of shape (n_features,); given "
                f"one, of shape {mask.shape}, it raised {type(raised).__name__}: "
                f"{raised}"
            ) from raised
        _check_entries(log_prob, rows.targets(mask), mask)
        again = _ask(conditional, rows, mask)
        _check_same(log_prob, again, mask, "in a second call")
        alone = _ask(conditional, rows.slice(0, 1), mask)
        _check_same(log_prob[:1], alone, mask, "without the other rows")
        _check_reading(conditional, rows, mask, log_prob, rng)


def _ask(conditional, rows, mask):
    """Return a copy of the answer, as the function may use the array again."""
    return np.array(conditional(rows, mask))


def _check_entries(log_prob, is_target, mask):
    wrong = ~np.isfinite(log_prob)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"Log-probabilities must be finite, got {log_prob[i, j]} at feature {j} of "
            f"row {i}, for the mask {describe_mask(mask)}."
        )
    wrong = (log_prob != 0) & ~is_target
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        kind = "a missing" if mask[j] else "the visible"
        raise ValueError(
            "Visible and missing entries must have log-probability 0, got "
            f"{log_prob[i, j]:.6g} instead of 0 at {kind} feature {j} of row {i}, for "
            f"the mask {describe_mask(mask)}."
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
            f"to {other[i, j]:.6g} {when}, for the mask {describe_mask(mask)}."
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
    return Rows.of(with_moved_columns(rows.values, columns))
