"""Check that a function is a masked model, as the contract defines it."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import RandomState, check_int, spawn_seeds
from sklearn_mpt._measure.consistency import (
    check_reading,
    check_same,
    check_side,
    excessive_integral,
)
from sklearn_mpt._measure.contract import (
    MIN_CHANGE,
    CheckedConditional,
    check_rows,
    describe_mask,
    measures_of_columns,
    refuse_texts,
)
from sklearn_mpt._measure.masks import draw_masks
from sklearn_mpt._measure.normalisation import (
    check_sums,
    discrete_columns,
)
from sklearn_mpt._measure.pipelines import resolve_model

MAX_ROWS = 50  # rows that are checked
TOLERANCE = 1e-6  # of log-probabilities, relative or in nats


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
    check_side(conditional, rows)
    discrete = discrete_columns(rows, measures_of_columns(estimator, rows.shape[1]))
    rng = np.random.default_rng(spawn_seeds(random_state, 1)[0])
    n_features = rows.shape[1]
    sizes = [n_features, 1, *rng.integers(1, n_features + 1, n_masks)][:n_masks]
    masks = list(draw_masks(sizes, n_features, rng))
    for mask in masks:
        log_prob = _ask(conditional, rows, mask)
        if conditional.refusal is not None:
            raised = conditional.refusal
            raise ValueError(
                "conditional_log_prob must take a mask of shape (n_features,); given "
                f"one, of shape {mask.shape}, it raised {type(raised).__name__}: "
                f"{raised}"
            ) from raised
        _check_entries(log_prob, rows.targets(mask), mask)
        limit = MIN_CHANGE if conditional.is_single else TOLERANCE
        repeated = _ask(conditional, rows, mask)
        check_same(rows, log_prob, repeated, mask, "in a second call", limit)
        alone = _ask(conditional, rows.slice(0, 1), mask)
        check_same(rows, log_prob[:1], alone, mask, "without the other rows", limit)
        check_reading(partial(_ask, conditional), rows, mask, log_prob, rng, limit)
        check_sums(partial(_ask, conditional), rows, mask, discrete)
    for mask in masks:
        others = [j for j in np.flatnonzero(mask).tolist() if j not in discrete]
        if others:
            _check_integral(conditional, rows, mask, int(rng.choice(others)))


def _ask(conditional, rows, mask):
    """Return a copy of the result, because the function may use the array again."""
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


def _check_integral(conditional, rows, mask, j):
    """Check that the density of a feature integrates to no more than one."""
    if integral := excessive_integral(conditional, rows, rows, mask, j):
        raise ValueError(
            f"Log-probabilities must be normalised: the density of feature {j} of row "
            f"0 integrates to {integral:.6g}, for the mask {describe_mask(mask)}. It "
            "may be computed from the hidden value."
        )
