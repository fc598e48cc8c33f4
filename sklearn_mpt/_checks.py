"""Checks of parameters and arguments; error messages say what is allowed."""

import copy
import math
import reprlib
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from numbers import Integral, Real

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe, is_into_series
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_scalar

from sklearn_mpt._frames import plain
from sklearn_mpt._labels import check_columns, labels_of
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import CACHE_ENTRIES, MAX_EXACT_INTEGER, chunk_slices

INTEGERS, FLOATS = (int, np.integer), (float, np.floating)
NUMBERS = INTEGERS + FLOATS  # not Fraction or Decimal, which torch refuses
# Rows of so small a weight change no sum, but they would change ranges, categories, and
# what is drawn.
MIN_WEIGHT = 1e-8
# Priors count as about one row: a tenth of the weight of so few rows.
FEW_ROWS = 10
# A warning names the first calling line outside these packages.
LIBRARIES = {"sklearn_mpt", "sklearn", "joblib", "torch", "contextlib"}


class StrictInterval(Interval):
    """Interval of numbers that torch takes; a bool is no number."""

    def is_satisfied_by(self, val):
        allowed = INTEGERS if self.type is Integral else NUMBERS
        return isinstance(val, allowed) and not isinstance(val, bool) and val in self


# Constraints of parameters; see `_parameter_constraints` of the estimators.
AUTO = StrOptions({"auto"})
COUNT = StrictInterval(Integral, 1, None, closed="left")
COUNT_OR_0 = StrictInterval(Integral, 0, None, closed="left")
POSITIVE = StrictInterval(Real, 0, None, closed="neither")
POSITIVE_OR_0 = StrictInterval(Real, 0, None, closed="left")
OPEN_UNIT_INTERVAL = StrictInterval(Real, 0, 1, closed="neither")
N_JOBS = [None, COUNT, StrictInterval(Integral, None, -1, closed="right")]
VERBOSE = ["boolean", COUNT_OR_0]


def warn_caller(message, category=UserWarning):
    """Issue a warning that names the line of the user's code."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _package(frame) in LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def check_choice(value, name, choices):
    """Check that a string is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {allowed}, got {plain(value)!r}.")


def check_mask_rate(mask_rate, n_features):
    """Check that a mask rate is "uniform", in (0, 1] or an int in 1..n_features."""
    if isinstance(mask_rate, str | bool):
        valid = mask_rate == "uniform"
    elif isinstance(mask_rate, Integral):
        valid = 1 <= mask_rate <= n_features
    else:
        valid = isinstance(mask_rate, FLOATS) and 0 < mask_rate <= 1
    if not valid:
        raise ValueError(
            "mask_rate must be 'uniform', a float in (0, 1] (a rate) or an int in "
            f"1..n_features={n_features} (a size), got {plain(mask_rate)!r}."
        )


def warn_of_mask_rate(mask_rate, n_features):
    """Warn if a mask rate of 1 hides all features, or may be meant to."""
    if isinstance(mask_rate, FLOATS) and mask_rate == 1:
        warn_caller(
            "mask_rate=1.0 hides every feature: training uses only the marginal "
            "distribution of each feature and learns no dependence between them."
        )
    elif isinstance(mask_rate, Integral) and mask_rate == 1 and n_features > 1:
        warn_caller(
            "mask_rate=1 is an int and hides one feature, where 1.0 would hide all "
            f"{n_features}. Write 1 / n_features for one feature: a grid such as "
            "[0.5, 1] mixes rates and sizes."
        )


def check_int(value, name, min_val=1):
    """Check an integer of at least `min_val`; bools are refused."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an instance of int, not bool.")
    check_scalar(value, name, Integral, min_val=min_val)


def check_int_or_auto(value, name):
    if isinstance(value, str):
        check_choice(value, name, ["auto"])
    else:
        check_int(value, name)


def check_real(value, name, include_boundaries, max_val=None):
    """Check a finite number between 0 and `max_val`; bools are refused."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError(
            f"{name} must be a real number, not {type(value).__qualname__}."
        )
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    bounds = {
        "min_val": 0,
        "max_val": max_val,
        "include_boundaries": include_boundaries,
    }
    check_scalar(value, name, NUMBERS, **bounds)


def check_floats(value, name):
    """Return a copy as an array of floats, or raise an error that names it."""
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} must be an array of numbers, got {reprlib.repr(value)}."
        ) from error


def check_finite(array, name):
    """Raise an error if some numbers of an array are not finite."""
    n_invalid = np.count_nonzero(~np.isfinite(array))
    if n_invalid:
        raise ValueError(
            f"{name} must be finite, but {n_invalid} of its {array.size} values are "
            "NaN or infinite."
        )


def check_bool(value, name):
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {plain(value)!r}.")


def check_widths(sizes):
    """Check `hidden_layer_sizes` of a net: "auto", or a sequence of int."""
    if isinstance(sizes, str):
        check_choice(sizes, "hidden_layer_sizes", ["auto"])
        return
    if not isinstance(sizes, Sequence | np.ndarray):
        raise TypeError(
            "hidden_layer_sizes must be a sequence of ints, such as (128, 128), () for "
            f"linear maps, or 'auto', got {plain(sizes)!r}."
        )
    for size in sizes:
        check_int(size, "hidden_layer_sizes")


def check_verbose(verbose):
    """Check `verbose`: a bool, or an integer level as in scikit-learn."""
    if not isinstance(verbose, bool | np.bool_):
        check_int(verbose, "verbose", min_val=0)


def check_n_jobs(n_jobs):
    is_int = isinstance(n_jobs, Integral) and not isinstance(n_jobs, bool)
    if n_jobs is not None and (not is_int or n_jobs == 0):
        raise ValueError(
            "n_jobs must be None or an int other than 0 (-1 is all cores, -2 all "
            f"cores but one), got {plain(n_jobs)!r}."
        )


def check_device(device, dtype="float64"):
    """Return the torch device; "auto" is CUDA if there is a GPU, else the CPU."""
    import torch

    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers.")
        torch.empty(0, dtype=getattr(torch, dtype), device=device)
        return torch.device(device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            "device must be 'auto' or an available torch device that computes in "
            f"{dtype}, got {plain(device)!r}: {str(error).splitlines()[0]}"
        ) from error


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
    is_order = orders.dtype.kind in "iu" and orders.shape[1:] in allowed
    if not is_order or (np.sort(orders, axis=-1) != np.arange(n_features)).any():
        raise ValueError(
            f"orders must hold each of the features 0..{n_features - 1} once in each "
            f"order, of shape (n_orders, {n_features}) or (n_orders, {n_samples}, "
            f"{n_features}), got shape {orders.shape} and dtype {orders.dtype}."
        )
    return orders.reshape(len(orders), -1, n_features)


def check_sample_weight(sample_weight, X):
    """Return sample weights as float64: finite, not negative, not all 0."""
    warn_of_row_labels(X, sample_weight, "sample_weight")
    weight = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    with np.errstate(over="ignore"):
        if weight.sum() == np.inf:
            raise ValueError("sample_weight must have a finite sum, got inf.")
    if not 1 / MAX_EXACT_INTEGER <= weight.sum() <= MAX_EXACT_INTEGER:
        raise ValueError(
            f"sample_weight adds up to {weight.sum():.3g}, but a weight of 1 is a row, "
            f"and sums from {1 / MAX_EXACT_INTEGER:.2g} to {MAX_EXACT_INTEGER:.2g} can "
            "be computed with. If only the ratios of the weights matter, divide them "
            "by their mean."
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
    return np.flatnonzero(weight > MIN_WEIGHT * weight.max())


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


def warn_of_few_rows(weight):
    """Warn if weights of many rows add up to few, beside priors that count as rows."""
    if weight is not None and weight.sum() < min(FEW_ROWS, len(weight)):
        warn_caller(
            f"sample_weight of {len(weight)} rows adds up to {weight.sum():.3g}. A "
            "weight of 1 is a row, and priors of this model count as rows, too, which "
            "outweigh so few. If only the ratios of the weights matter, divide them by "
            "their mean."
        )


def check_columns_present(X, names):
    """Refuse rows in which a whole column is missing."""
    if not np.isnan(X[0]).any():
        return
    empty = np.flatnonzero(np.isnan(X).all(axis=0))
    if len(empty):
        raise ValueError(
            f"All entries of column(s) {listed(names[empty])} of X are missing; "
            "drop the column(s)."
        )


def warn_constant(columns, fitted):
    """Warn of constant Gaussian columns."""
    if len(columns):
        names = fitted.get("feature_names_in_", np.arange(max(columns) + 1))
        warn_caller(
            f"Column(s) {listed(names[columns])} of X are constant: the "
            "likelihood of a constant column of numbers has no maximum, and its noise "
            "variance fell towards its floor. Drop the column(s)."
        )


def bound_parameters(estimator, free):
    """Return the parameters that must not change after `fit`: all but the free ones."""
    params = estimator.get_params(deep=False)
    return {name: _frozen(params[name]) for name in params if name not in free}


def _frozen(value):
    is_container = isinstance(value, list | tuple | dict | np.ndarray)
    is_container |= is_into_dataframe(value) or is_into_series(value)
    return copy.deepcopy(value) if is_container else value


def _is_same(value, other):
    """Return whether two values of a parameter are equal; NaN is equal to NaN."""
    if value is other:
        return True
    if isinstance(value, dict) and isinstance(other, dict):
        has_same_keys = value.keys() == other.keys()
        return has_same_keys and all(_is_same(value[key], other[key]) for key in value)
    if is_into_dataframe(value) or is_into_series(value):
        return type(value) is type(other) and bool(value.equals(other))
    with suppress(Exception):  # values of users, and arrays, may not compare
        if bool(value == other):
            return True
    try:
        np.testing.assert_equal(value, other)
    except Exception:
        return False
    return True


def check_bound_parameters(estimator, bound):
    """Refuse parameters that were changed since the model was fitted."""
    for name, value in bound.items():
        if not _is_same(getattr(estimator, name), value):
            raise ValueError(
                f"{name}={plain(getattr(estimator, name))!r} differs from the "
                f"{plain(value)!r} of the fitted model; clone the estimator to fit "
                "another one."
            )


def check_fitted_widths(sizes, fitted):
    """Refuse to train on with other hidden layers than those of the fitted model."""
    if not isinstance(sizes, str) and list(sizes) != list(fitted):
        raise ValueError(
            f"hidden_layer_sizes={plain(sizes)!r} differ from the {list(fitted)} of "
            "the fitted model that training goes on with; set warm_start=False, or "
            "clone the estimator, to start anew."
        )


def check_fitted_components(n_components, n_fitted):
    """Refuse to train on with another number of components."""
    if n_components != n_fitted:
        raise ValueError(
            f"n_components={n_components} differs from the {n_fitted} of the fitted "
            "model that training goes on with; set warm_start=False, or clone the "
            "estimator, to start anew."
        )
