"""Rows, masks and orders of users: checks, sample weights, rows that count."""

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight

from sklearn_mpt._checks import listed, warn_caller
from sklearn_mpt._numbers import CACHE_ENTRIES, MAX_EXACT_INTEGER, chunk_slices
from sklearn_mpt._tables.frames import check_columns, labels_of


def check_mask(mask, n_samples, names):
    """Return a boolean mask of shape (1, n_features) or (n_samples, n_features)."""
    n_features = len(names)
    check_columns(mask, names, "mask")
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(
            f"mask must be boolean, True where hidden, got dtype {mask.dtype}."
        )
    if mask.shape not in [(n_features,), (n_samples, n_features)]:
        raise ValueError(
            f"mask must have shape (n_features,) = ({n_features},) or "
            f"(n_samples, n_features) = ({n_samples}, {n_features}), got {mask.shape}."
        )
    return mask.reshape(-1, n_features)


def check_orders(orders, n_samples, n_features):
    """Return orders of shape (n_orders, 1 or n_samples, n_features)."""
    orders = np.asarray(orders)
    allowed = [(n_features,), (n_samples, n_features)]
    is_order = orders.size and orders.dtype.kind in "iu" and orders.shape[1:] in allowed
    if not is_order or (np.sort(orders, axis=-1) != np.arange(n_features)).any():
        raise ValueError(
            f"orders must hold each of the {n_features} features once, of shape "
            f"(n_orders, {n_features}) or (n_orders, {n_samples}, {n_features}), got "
            f"{orders!r}."
        )
    return orders.reshape(len(orders), -1, n_features)


def check_sample_weight(sample_weight, X):
    """Return sample weights as float64: finite, not negative, not all 0."""
    warn_of_row_labels(X, sample_weight, "sample_weight")
    weight = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    with np.errstate(over="ignore"):
        total = weight.sum()
    if not 1 / MAX_EXACT_INTEGER <= total <= MAX_EXACT_INTEGER:
        raise ValueError(
            f"sample_weight adds up to {total:.3g}, but a weight of 1 is a row, and "
            f"sums from {1 / MAX_EXACT_INTEGER:.2g} to {MAX_EXACT_INTEGER:.2g} can be "
            "computed with. If only the ratios of the weights matter, divide them by "
            "their mean."
        )
    return weight


def warn_of_row_labels(X, argument, name):
    """Warn of an argument of rows whose index has that of X in another order."""
    labels = labels_of(argument)
    if labels is None or issparse(X):  # some sparse arrays of old versions are dicts
        return
    rows = labels_of(X)
    if rows is None or rows == labels:
        return
    if len(rows) == len(labels) and set(rows) == set(labels):
        warn_caller(
            f"{name} goes by position, as in scikit-learn, but its index has the "
            f"labels of X in another order. Give {name}.loc[X.index] to match them."
        )


def counted_rows(weight):
    """Return the indices of rows whose weight is not 0."""
    # others change no sum, but ranges, categories, and what is drawn
    return np.flatnonzero(weight > 1e-8 * weight.max())


def rows_that_count(X, sample_weight):
    """Return the rows whose weight is not 0, and their weights; None means all 1."""
    if sample_weight is None:
        return X, None
    weight = check_sample_weight(sample_weight, X)
    counts = counted_rows(weight)
    if len(counts) < len(weight):
        X = _safe_indexing(X, counts)
    return X, weight[counts]


def rows_with_entries(X, weight):
    """Return the rows of an array with an entry that is not NaN, and their weights."""
    has_entries = ~np.isnan(X).all(axis=1)
    if has_entries.all():
        return X, weight
    return X[has_entries], None if weight is None else weight[has_entries]


def sums_of_rows(X, weight):
    """Return the weighted number of rows, and sums of sizes of entries, (d + 1,)."""
    weight = np.ones(len(X)) if weight is None else weight
    sums = np.zeros(1 + X.shape[1])
    for part in chunk_slices(len(X), X.shape[1], CACHE_ENTRIES):
        sizes, of_rows = np.abs(X[part]), weight[part]
        with np.errstate(over="ignore", invalid="ignore"):
            of_columns = of_rows @ sizes
            if not np.isfinite(of_columns).all():
                of_rows = of_rows * ~np.isnan(sizes).all(axis=1)
                of_columns = of_rows @ np.nan_to_num(sizes, copy=False, posinf=0)
            sums += [of_rows.sum(), *of_columns]
    return sums


def warn_constant(columns, fitted):
    """Warn of constant Gaussian columns."""
    if len(columns):
        names = fitted.get("feature_names_in_", np.arange(max(columns) + 1))
        warn_caller(
            f"Column(s) {listed(names[columns])} of X are constant: the "
            "likelihood of a constant column of numbers has no maximum, and its noise "
            "variance fell towards its floor. Drop the column(s)."
        )
