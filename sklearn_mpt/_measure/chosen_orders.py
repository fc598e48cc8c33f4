"""Orders of features that depend on the visible values, or are learned from rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr, logsumexp

from sklearn_mpt._checks import check_int
from sklearn_mpt._measure.consistency import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    check_rows,
    hidden_log_prob,
    refuse_texts,
    takes_row_masks,
)
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import Rows, as_objects, with_entries
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import ROUNDING

# Values of a column of numbers over which its entropy is averaged. Each costs a call of
# the model for every step of the order. Half and twice as many change scores little:
# "Confident orders: quantiles" in benchmarks/RESULTS.rst.
N_QUANTILES = 8
DECIMALS = 6  # of entropies, so that rounding errors do not decide between columns


class Candidates(NamedTuple):
    """Values that the features may take, as entries of reference rows.

    rows : Rows. entries : rows of the candidate values, (n_values, n_features); a
    column with fewer values repeats its first. exists : bool of that shape, False for
    such repetitions. is_number : bool (n_features,), whether the values are quantiles.
    """

    rows: Rows
    entries: np.ndarray
    exists: np.ndarray
    is_number: np.ndarray


def read_candidates(rows, n_quantiles=N_QUANTILES):
    """Return `Candidates`: all values of each column, or quantiles of its numbers."""
    columns = as_objects(rows.values).T
    missing = np.zeros(rows.shape, bool) if rows.missing is None else rows.missing
    chosen, is_number = [], []
    empty = np.flatnonzero(missing.all(axis=0))
    if len(empty):
        raise ValueError(
            "reference must have a value in each column, got none in the columns "
            f"{listed(empty)}."
        )
    for column, absent in zip(columns, missing.T, strict=True):
        present = np.flatnonzero(~absent)
        indices, holds_numbers = _sorted_distinct(column, present)
        is_many = holds_numbers and len(indices) > n_quantiles
        if is_many:
            ranked = present[np.argsort(column[present].astype(float), kind="stable")]
            middle = (np.arange(n_quantiles) + 0.5) / n_quantiles
            indices = ranked[(middle * len(ranked)).astype(int)]
        chosen.append(indices)
        is_number.append(is_many)
    n_values = max(map(len, chosen))
    entries = np.stack([np.resize(indices, n_values) for indices in chosen], axis=1)
    counts = np.array(list(map(len, chosen)))
    exists = np.arange(n_values)[:, None] < counts
    return Candidates(rows, entries, exists, np.array(is_number))


def _sorted_distinct(column, present):
    """Return the first row of each value, in order, and whether values are numbers."""
    values = column[present]
    try:
        keys, is_number = values.astype(np.float64), True
    except (TypeError, ValueError):
        keys, is_number = values.astype(str), False
    return present[np.unique(keys, return_index=True)[1]], is_number


def along_confident_order(model, rows, candidates):
    """Reveal in each row the feature of least entropy given what is visible so far.

    Returns
    -------
    log_prob : ndarray of shape (n_samples,)
        Sum of the log-probabilities of each feature given those revealed before it.
    orders : ndarray of shape (n_samples, n_features)
        The features in the order in which they are revealed.
    """
    ask = _AnyMask(CheckedConditional(model), rows)
    n_rows, n_features = rows.shape
    hidden = np.ones(rows.shape, dtype=bool)
    missing = np.zeros(rows.shape, bool) if rows.missing is None else rows.missing
    orders = np.empty(rows.shape, dtype=int)
    log_prob, row_index, first = np.zeros(n_rows), np.arange(n_rows), None
    for position in range(n_features):
        at_values = _at_candidates(ask, rows, hidden, candidates)
        first = at_values if first is None else first
        entropy = _entropies(at_values, first, candidates).round(DECIMALS)
        # missing entries come last: they are neither predicted nor predict others
        entropy[missing] = np.finfo(float).max
        entropy[~hidden] = np.inf
        chosen = orders[:, position] = entropy.argmin(axis=1)
        log_prob += ask(rows, hidden)[row_index, chosen]
        hidden[row_index, chosen] = False
    return log_prob, orders


def _at_candidates(ask, rows, hidden, candidates):
    """Return log-probabilities of the values, (n_values, n_samples, n_features)."""
    others = candidates.rows.values
    log_prob = np.empty((len(candidates.entries), *rows.shape))
    for entries, exists, values in zip(
        candidates.entries, candidates.exists, log_prob, strict=True
    ):
        filled = with_entries(rows.values, others, np.where(hidden, entries, -1))
        values[:] = np.where(exists, ask(Rows.from_table(filled), hidden), -np.inf)
    return log_prob


def _entropies(at_values, first, candidates):
    """Return the entropy of each feature over its values, (n_samples, n_features).

    Quantiles have equal probabilities in the marginal distribution, so the density at
    them is divided by that given nothing.
    """
    with np.errstate(invalid="ignore"):  # -inf - -inf
        relative = np.where(candidates.is_number, at_values - first, at_values)
    relative = np.where(np.isnan(relative), -np.inf, relative)
    total = logsumexp(relative, axis=0)
    probability = np.exp(relative - np.where(np.isfinite(total), total, 0.0))
    return entr(probability).sum(axis=0)


class _AnyMask:
    """Call a model with masks for each row, also one that takes a single mask."""

    def __init__(self, conditional, rows):
        self.conditional = conditional
        self.takes_row_masks = takes_row_masks(conditional, rows)

    def __call__(self, rows, masks):
        if self.takes_row_masks:
            return hidden_log_prob(self.conditional, rows, masks)
        log_prob = np.empty(rows.shape)
        distinct, mask_number = np.unique(masks, axis=0, return_inverse=True)
        for number, mask in enumerate(distinct):
            rows_of_mask = np.flatnonzero(mask_number.ravel() == number)
            log_prob[rows_of_mask] = hidden_log_prob(
                self.conditional, rows.take(rows_of_mask), mask
            )
        return log_prob


def learn_order(
    model: object,
    X: ArrayLike,
    *,
    n_sweeps: int = 5,
    max_shift: int | None = None,
) -> np.ndarray:
    r"""Learn an order of the features in which rows have a high log-probability.

    Conditionals of no joint density give another log-probability along each order (see
    :func:`order_spread`). The order starts greedily: with the feature from which the
    mean log-probabilities of all others gain most, and in each step with the one that
    has gained most from those before it. Then each feature in turn moves to where the
    mean log-probability of the rows is highest.

    Parameters
    ----------
    model : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function or
        torch module of that form.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows from which the order is learned: those of training or, if the model fits
        these more closely than others, validation rows. Do not score the same rows
        along it: it was chosen for them.
    n_sweeps : int, default=5
        Largest number of times that each feature moves; fewer, if none gains by moving.
        0 returns the greedy order.
    max_shift : int, default=None
        Largest number of positions by which a feature moves. None is any number.

    Returns
    -------
    order : ndarray of shape (n_features,)
        Indices of the features. Along any fixed order the log-probability is an exact
        log-density.

    Raises
    ------
    TypeError
        If the model has no conditionals, or is a model of texts.
    ValueError
        If an argument is not allowed, or if the conditionals have the wrong shape or
        are NaN or infinity.

    See Also
    --------
    order_log_prob : Log-probability along the order.
    order_spread : Compare orders.

    Notes
    -----
    The cost is ``2 * n_features`` calls of ``conditional_log_prob`` for the greedy
    order, and at most ``2 * n_features * min(n_features, 2 * max_shift)`` for each
    sweep. Sets of features that were visible before are not asked for again.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.stats import norm
    >>> from sklearn_mpt import learn_order, order_log_prob
    >>> def model(X, mask):  # the second feature repeats the first, but not reversely
    ...     visible = ~np.broadcast_to(mask, X.shape)
    ...     centre = np.where(visible[:, :1], X[:, :1], 0.0) * [0, 1]
    ...     width = np.where(visible[:, :1], [1, 0.1], 1.0)
    ...     return np.where(visible, 0, norm.logpdf(X, centre, width))
    >>> X = np.random.default_rng(0).normal(size=(100, 1)).repeat(2, axis=1)
    >>> order = learn_order(model, X)
    >>> order.tolist()
    [0, 1]
    >>> gain = order_log_prob(model, X, order) - order_log_prob(model, X, [1, 0])
    >>> bool(gain.mean() > 1)
    True
    """
    check_int(n_sweeps, "n_sweeps", min_val=0)
    if max_shift is not None:
        check_int(max_shift, "max_shift")
    model = resolve_model(model)
    refuse_texts(model, "learn_order")
    rows = check_rows(model, X)
    check_hidden_values(model, rows)
    means = _MeanLogProb(CheckedConditional(model), rows)
    order = _greedy_order(means)
    for _ in range(n_sweeps):
        if not _move_features(means, order, max_shift or len(order)):
            break
    return np.array(order)


class _MeanLogProb:
    """Mean over rows of the log-probabilities of features, given those revealed."""

    def __init__(self, conditional, rows):
        self.conditional, self.rows = conditional, rows
        self.n_features = rows.shape[1]
        self.known: dict[frozenset, np.ndarray] = {}

    def __call__(self, revealed):
        key = frozenset(revealed)
        if key not in self.known:
            mask = ~np.isin(np.arange(self.n_features), list(key))
            log_prob = hidden_log_prob(self.conditional, self.rows, mask)
            self.known[key] = log_prob.mean(axis=0)
        return self.known[key]


def _greedy_order(means):
    order: list[int] = []
    left = list(range(means.n_features))
    alone = means([])
    gain = np.array([_gain(means([j]), alone, j) for j in left])
    score = gain.sum(axis=1)  # of all features from one
    while left:
        order.append(max(left, key=lambda j: score[j]))
        left.remove(order[-1])
        score = _gain(means(order), alone, order) if left else score
    return order


def _gain(mean, alone, revealed):
    """Return the gain of each feature over `alone`; 0 if revealed, or both are -inf."""
    with np.errstate(invalid="ignore"):
        gain = np.nan_to_num(mean - alone, nan=0.0)
    gain[revealed] = 0.0
    return gain


def _move_features(means, order, max_shift):
    """Move each feature to the best position in reach; return whether any has moved."""
    is_changed = False
    for feature in list(order):
        position = order.index(feature)
        rest = order[:position] + order[position + 1 :]
        lowest = max(0, position - max_shift)
        highest = min(len(rest), position + max_shift)
        # change of the sum as the feature moves on by one position, past `rest[i]`
        steps = [
            _gain_of_passing(means, rest[:i], feature, rest[i])
            for i in range(lowest, highest)
        ]
        sums = np.concatenate([[0.0], np.cumsum(steps)])
        best = int(sums.argmax())
        if sums[best] > sums[position - lowest] + ROUNDING:
            order[:] = [*rest[: lowest + best], feature, *rest[lowest + best :]]
            is_changed = True
    return is_changed


def _gain_of_passing(means, before, feature, other):
    """Return the change of the sum if two neighbours after `before` are exchanged."""
    given = means(before)
    as_it_is = given[feature] + means([*before, feature])[other]
    with np.errstate(invalid="ignore"):
        change = given[other] + means([*before, other])[feature] - as_it_is
    return np.nan_to_num(change, nan=0.0)
