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


def _merge(tables, row, target):
    """Add a row of both tables to another, and drop it."""
    for table in tables:
        table[target] += table[row]
    return [np.delete(table, row, axis=0) for table in tables]


def collapse_cells(observed, expected):
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
    impossible = np.isnan(expected).any(axis=1)
    expected, observed = np.nan_to_num(expected), observed.copy()
    if impossible.any() and not impossible.all():
        low, high = np.flatnonzero(~impossible)[[0, -1]]
        for table in (observed, expected):
            table[low] += table[:low].sum(axis=0)
            table[high] += table[high + 1 :].sum(axis=0)
        observed, expected = observed[low : high + 1], expected[low : high + 1]
    is_expected = observed.sum(axis=1) > 0
    tables = [observed[is_expected], expected[is_expected]]
    small = tables[1] < MIN_EXPECTED
    tables = _merge_single(tables)
    if tables[1].shape[1] > 2:
        tables = _collapse_categories(tables, small)
    tables = _collapse_rows(tables)
    tables[1][tables[1] == 0] = np.nan
    return tables


def _smaller_neighbour(counts, i):
    """Return the index beside i with the smaller count; the one before if equal."""
    neighbours = [j for j in (i - 1, i + 1) if 0 <= j < len(counts)]
    return min(neighbours, key=lambda j: counts[j])


def _merge_single(tables):
    """Add rows with one person to the next row."""
    observed, _ = tables
    sparse_rows = []
    for row in range(len(observed) - 1):
        if observed[row].sum() == 1:
            sparse_rows.append(row)
            for table in tables:
                table[row + 1] += table[row]
    tables = [np.delete(table, sparse_rows, axis=0) for table in tables]
    last = len(tables[0]) - 1
    if last > 0 and tables[0][last].sum() == 1:
        tables = _merge(tables, last, last - 1)
    return tables


def _collapse_categories(tables, small, *, min_expected_rows=0.1, min_rows=0.05):
    # Categories are collapsed if they are expected of fewer people than MIN_EXPECTED in
    # the first fraction of the rows, or at all in fewer than the second one.
    observed, expected = tables
    width = expected.shape[1]
    for row in range(len(expected)):
        if not small[row].any():
            continue
        cells = [list(expected[row]), list(observed[row])]
        while len(cells[0]) > 2:
            least = min(cells[0])
            k = max(i for i, value in enumerate(cells[0]) if value == least)
            target = _smaller_neighbour(cells[0], k)
            for part in cells:
                part[target] += part[k]
                del part[k]
            if min(cells[0]) >= MIN_EXPECTED:
                break
        empty = [0.0] * (width - len(cells[0]))
        expected[row], observed[row] = cells[0] + empty, cells[1] + empty
    while expected.shape[1] > 2:
        rare = MIN_EXPECTED * np.ceil(min_expected_rows * len(expected))
        if expected[:, -1].sum() >= rare:
            break
        for table in (expected, observed):
            table[:, -2] += table[:, -1]
        expected, observed = expected[:, :-1], observed[:, :-1]
    kept = np.ones(expected.shape[1], dtype=bool)
    for c in range(expected.shape[1] - 1, 0, -1):
        if np.mean(expected[:, c] > 0) < min_rows:
            kept[c] = False
            for table in (expected, observed):
                table[:, c - 1] += table[:, c]
    return [observed[:, kept], expected[:, kept]]


def _collapse_rows(tables):
    while len(tables[1]) > 1:
        expected = tables[1]
        small = (expected < MIN_EXPECTED) & (expected != 0)
        if not small.any():
            break
        row = int(np.flatnonzero(small.any(axis=1))[0])
        target = _smaller_neighbour(tables[0].sum(axis=1), row)
        tables = _merge(tables, row, target)
    return tables


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
