r"""Fit of items and of people: S-X2, infit, outfit, Zh, residual correlations.

References
----------
.. [1] M. Orlando and D. Thissen, "Likelihood-based item-fit indices for dichotomous
   item response theory models", Applied Psychological Measurement 24, 2000.
.. [2] T. Kang and T. T. Chen, "An investigation of the performance of the generalized
   S-X2 item-fit index for polytomous IRT models", ACT Research Report 2007-1.
.. [3] F. Drasgow, M. V. Levine and E. A. Williams, "Appropriateness measurement with
   polychotomous item response models and standardized indices", British Journal of
   Mathematical and Statistical Psychology 38, 1985.
.. [4] B. D. Wright and G. N. Masters, "Rating scale analysis", MESA Press, 1982.
.. [5] W. M. Yen, "Effects of local item dependence on the fit and equating performance
   of the three-parameter logistic model", Applied Psychological Measurement 8, 1984.
"""

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._numbers import TINY

# Cells are collapsed as in mirt, so that statistics agree.
MIN_EXPECTED = 1.0  # smallest expected number of people in a cell


class ItemFit(NamedTuple):
    """Fit of each item; arrays of shape (n_items,)."""

    s_x2: np.ndarray
    df_s_x2: np.ndarray
    p_s_x2: np.ndarray
    infit: np.ndarray
    outfit: np.ndarray
    zh: np.ndarray


class PersonFit(NamedTuple):
    """Fit of each person; arrays of shape (n_samples,)."""

    zh: np.ndarray
    infit: np.ndarray
    outfit: np.ndarray


def _convolve(one, other):
    """Return the distribution of the sum of two scores at each node."""
    if len(one) < len(other):
        one, other = other, one
    joined = np.zeros((len(one) + len(other) - 1, one.shape[1]))
    for c, curve in enumerate(other):
        joined[c : c + len(one)] += curve * one
    return joined


def ranks_of(X, order):
    """Return the ranks of answers in an order of them, NaN where missing; (n, d)."""
    # X : codes of answers. order : codes in order for each item, (d, c). Sums,
    # residuals and correlations are of these ranks, since codes of nominal items are
    # arbitrary.
    missing = np.isnan(X)
    codes = np.where(missing, 0, X).astype(int)
    ranks = order.argsort(axis=1)[np.arange(len(order)), codes]
    return np.where(missing, np.nan, ranks)


def _merged(cells, i, target):
    """Add one row of both tables, or one category of a row, to another; drop it."""
    cells[:, target] += cells[:, i]
    return np.delete(cells, i, axis=1)


def _smaller_neighbour(counts, i):
    """Return the index beside i with the smaller count; the one before if equal."""
    neighbours = [j for j in (i - 1, i + 1) if 0 <= j < len(counts)]
    return min(neighbours, key=lambda j: counts[j])


def collapse_cells(observed, expected, *, min_expected_rows=0.1, min_rows=0.05):
    """Collapse cells until at least one person is expected in each; two arrays.

    The steps, in this order:

    - Rows (sum scores) with which some answer cannot occur are added to the nearest row
      with which all answers can.
    - Rows with one person are added to the next row.
    - In rows with smaller expected numbers, adjacent categories are collapsed.
    - Categories that are rare in all rows are collapsed.
    - Rows are added to the neighbour with fewer people.

    In the expected table, cells that were collapsed into others are NaN.
    """
    # Rare categories have less than MIN_EXPECTED people in the first fraction of the
    # rows, or any at all in less than the second.
    possible = np.flatnonzero(~np.isnan(expected).any(axis=1))
    cells = np.stack([observed, np.nan_to_num(expected)])
    if len(possible):
        low, high = possible[[0, -1]]
        cells[:, low] += cells[:, :low].sum(axis=1)
        cells[:, high] += cells[:, high + 1 :].sum(axis=1)
        cells = cells[:, low : high + 1]
    cells = cells[:, cells[0].sum(axis=1) > 0]
    is_small = (cells[1] < MIN_EXPECTED).any(axis=1)
    row = 0
    while row < cells.shape[1] - 1:
        if cells[0, row].sum() == 1:
            cells = _merged(cells, row, row + 1)
        else:
            row += 1
    if row > 0 and cells[0, row].sum() == 1:
        cells = _merged(cells, row, row - 1)
    if cells.shape[2] > 2:
        for row in np.flatnonzero(is_small[: cells.shape[1]]):
            part = cells[:, row].copy()
            while part.shape[1] > 2:
                rarest = np.flatnonzero(part[1] == part[1].min())[-1]
                part = _merged(part, rarest, _smaller_neighbour(part[1], rarest))
                if part[1].min() >= MIN_EXPECTED:
                    break
            cells[:, row] = 0.0
            cells[:, row, : part.shape[1]] = part
        least = MIN_EXPECTED * np.ceil(min_expected_rows * cells.shape[1])
        for c in range(cells.shape[2] - 1, 0, -1):
            is_last = c == cells.shape[2] - 1
            is_rare = is_last and c > 1 and cells[1, :, c].sum() < least
            if is_rare or np.mean(cells[1, :, c] > 0) < min_rows:
                cells[..., c - 1] += cells[..., c]
                cells = np.delete(cells, c, axis=2)
    while cells.shape[1] > 1:
        is_small = ((cells[1] < MIN_EXPECTED) & (cells[1] != 0)).any(axis=1)
        if not is_small.any():
            break
        row = is_small.argmax()
        cells = _merged(cells, row, _smaller_neighbour(cells[0].sum(axis=1), row))
    observed, expected = cells
    return observed, np.where(expected == 0, np.nan, expected)


def s_x2(model, density, rows, weight, *, max_numbers=2**27):
    """Return S-X2 of complete rows and its degrees of freedom, for each item."""
    # max_numbers : in the distributions of sum scores, 1 GB.
    items, n_items = model.items, len(model.items)
    largest = int((items.n_categories - 1).sum())
    if n_items * largest * len(density.z) > max_numbers:
        warn_caller(
            f"S-X2 is not computed for {n_items} items: the distributions of sum "
            f"scores up to {largest} would not fit the memory. Take fewer items."
        )
        return np.full(n_items, np.nan), np.zeros(n_items, dtype=int)
    whole = ~np.isnan(rows).any(axis=1)
    if not whole.any():
        raise ValueError(
            "item_fit needs some complete rows for S-X2, but all rows have missing "
            "answers."
        )
    order, weight = items.answer_order(density.joint), weight[whole]
    X = ranks_of(rows[whole], order).astype(int)
    prob = np.take_along_axis(density.prob.numpy(force=True), order[..., None], 1)
    node_weight = density.log_weight.exp().numpy(force=True)
    # distributions of sum scores at nodes, of the items before each, and from it on
    of_items = [prob[j, :count] for j, count in enumerate(items.n_categories)]
    none = np.ones((1, len(node_weight)))
    before = list(accumulate(of_items, _convolve, initial=none))
    after = list(accumulate(of_items[::-1], _convolve, initial=none))[::-1]
    total = X.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.bincount(total, weight, largest + 1) / (before[-1] @ node_weight)
    # that of z is estimated from all items, and takes next to nothing from each
    owner = model.item_of_parameters[model.moves]
    n_free = np.bincount(owner[owner >= 0], minlength=n_items)
    statistic, df = [], []
    for j, of_item in enumerate(of_items):
        observed = np.zeros((largest + 1, len(of_item)))
        np.add.at(observed, (total, X[:, j]), weight)
        # NaN where an answer cannot occur with a sum score
        expected = np.full_like(observed, np.nan)
        joint = (of_item * node_weight) @ _convolve(before[j], after[j + 1]).T
        for c, numbers in enumerate(joint):
            expected[c : c + len(numbers), c] = numbers
        expected *= scale[:, None]
        # without the smallest and the largest sum score
        observed, expected = collapse_cells(observed[1:-1], expected[1:-1])
        free = np.count_nonzero(~np.isnan(expected)) - len(expected) - n_free[j]
        value = np.nansum((observed - expected) ** 2 / expected)
        statistic.append(value if free > 0 else np.nan)
        df.append(max(int(free), 0))
    return np.array(statistic), np.array(df)


class AnswerMoments(NamedTuple):
    """Moments of the answers of people with given abilities; (n, d) each.

    present : whether there is an answer. residual : answer less its expectation.
    variance : variance of the answer. log_prob : its log-probability. mean_log_prob,
    variance_log_prob : mean and variance of the log-probability.
    """

    present: np.ndarray
    residual: np.ndarray
    variance: np.ndarray
    log_prob: np.ndarray
    mean_log_prob: np.ndarray
    variance_log_prob: np.ndarray


def moments_of(X, prob):
    """Return the moments of the answers X."""
    # prob : probabilities of the answers, (n, d, c), 0 beyond the categories.
    present = ~np.isnan(X)
    codes = np.where(present, X, 0).astype(int)
    steps = np.arange(prob.shape[2])
    log_prob = np.log(prob.clip(TINY))
    mean = prob @ steps
    variance = prob @ steps**2 - mean**2
    mean_log = (prob * log_prob).sum(axis=2)
    variance_log = (prob * log_prob**2).sum(axis=2) - mean_log**2
    chosen = np.take_along_axis(log_prob, codes[..., None], 2)[..., 0]
    parts = codes - mean, variance, chosen, mean_log, variance_log
    return AnswerMoments(present, *(np.where(present, part, 0.0) for part in parts))


def sums_of(moments, weight, axis, *, min_variance=1e-5**0.5):
    """Return sums for fit statistics, over people (axis 0) or over items (axis 1)."""
    # weight : weights of people, (n,). Returns (6, d) or (6, n). Sums over people of
    # several blocks can be added. min_variance : of an answer, as in mirt.
    w = weight[:, None] * moments.present if axis == 0 else 1.0 * moments.present
    variance = np.maximum(moments.variance, min_variance)
    square = moments.residual**2
    excess = moments.log_prob - moments.mean_log_prob
    parts = square, variance, square / variance, 1.0, excess, moments.variance_log_prob
    return np.stack([(w * part).sum(axis) for part in parts])


def fit_of(sums):
    """Compute infit, outfit and Zh from the result of `sums_of`."""
    square, variance, ratio, count, excess, log_variance = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return square / variance, ratio / count, excess / np.sqrt(log_variance)


def pair_sums(moments, weight):
    """Return sums over people for pairs of items; (4, d, d)."""
    # Sums of several blocks of people can be added.
    w, present = weight[:, None] * moments.present, 1.0 * moments.present
    residual = moments.residual
    weighted = w * residual
    return np.stack(
        [
            w.T @ present,
            weighted.T @ present,  # of the item of the row, beside that of the column
            weighted.T @ residual,
            (weighted * residual).T @ present,
        ]
    )


def residual_correlations(sums):
    """Compute correlations of residuals from the result of `pair_sums`; (d, d)."""
    n_both, first, cross, square = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = first / n_both
        variance = square / n_both - mean**2
        correlations = (cross / n_both - mean * mean.T) / np.sqrt(variance * variance.T)
    np.fill_diagonal(correlations, 1.0)
    return correlations
