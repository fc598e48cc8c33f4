"""Checks of parameters and arguments, with messages that say what is allowed."""

import math
import sys
import warnings
from numbers import Integral

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight, check_scalar

from sklearn_mpt._frames import plain

FLOATS = float, np.floating  # a Fraction or a Decimal is none: torch takes neither
# Packages whose frames lie between a user's line and what it warns of.
BETWEEN = {"sklearn_mpt", "sklearn", "joblib", "torch", "contextlib"}


def warn_caller(message, category=UserWarning):
    """Warn, and name the line of the user's code that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _package(frame) in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def check_choice(value, name, choices):
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {allowed}, got {plain(value)!r}.")


def check_mask_rate(mask_rate, n_features):
    """Check "uniform", a rate in (0, 1] or a size in 1..n_features."""
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


def check_int(value, name, least=1):
    """Check an integer, which True and False are not."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an instance of int, not bool.")
    check_scalar(value, name, Integral, min_val=least)


def check_int_or_auto(value, name):
    if isinstance(value, str):
        check_choice(value, name, ["auto"])
    else:
        check_int(value, name)


def check_real(value, name, include_boundaries, most=None):
    """Check a finite number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer, *FLOATS)):
        raise TypeError(
            f"{name} must be a real number, not {type(value).__qualname__}."
        )
    if not math.isfinite(value):
        raise ValueError(f"{name} == {value}, must be finite.")
    bounds = {"min_val": 0, "max_val": most, "include_boundaries": include_boundaries}
    check_scalar(value, name, (int, np.integer, *FLOATS), **bounds)


def check_bool(value, name):
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {plain(value)!r}.")


def check_verbose(verbose):
    """Check a bool, or the level that many scikit-learn estimators take."""
    if not isinstance(verbose, bool | np.bool_):
        check_int(verbose, "verbose", least=0)


def check_n_jobs(n_jobs):
    is_int = isinstance(n_jobs, Integral) and not isinstance(n_jobs, bool)
    if n_jobs is not None and (not is_int or n_jobs == 0):
        raise ValueError(
            "n_jobs must be None or an int other than 0: a number of workers, or "
            f"from -1 down all cores but none, one, two, ..., got {plain(n_jobs)!r}."
        )


def check_device(device, dtype="float64"):
    """Return the torch device; "auto" is CUDA where there is one, else the CPU."""
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
            "device must be 'auto' or a torch device that is there and computes in "
            f"{dtype}, got {plain(device)!r}: {str(error).splitlines()[0]}"
        ) from error


def check_mask(mask, n_samples, n_features):
    """Return a boolean mask of shape (1, n_features) or (n_samples, n_features)."""
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


def check_sample_weight(sample_weight, X):
    """Return what each row counts: finite numbers from 0 on, not all 0; float64."""
    weight = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    with np.errstate(over="ignore"):
        if weight.sum() == np.inf:
            raise ValueError("The sum of sample_weight is infinite.")
    return weight


def rows_that_count(X, sample_weight):
    """Return the rows with weights other than 0, and these; None if all are 1."""
    if sample_weight is None:
        return X, None
    weight = check_sample_weight(sample_weight, X)
    counts = np.flatnonzero(weight)
    if len(counts) < len(weight):
        X = _safe_indexing(X, counts)
    return X, weight[counts]


def check_columns_present(X, names):
    """Refuse rows that are NaN in all of a column."""
    empty = np.flatnonzero(np.isnan(X).all(axis=0))
    if len(empty):
        raise ValueError(
            f"All entries of column(s) {names[empty[:10]].tolist()} of X are missing; "
            "drop the column(s)."
        )


def warn_constant(columns, fitted):
    """Warn of columns of numbers, by their places, that have one value each.

    fitted : attributes, with the names of the columns if they have any.
    """
    if len(columns):
        names = fitted.get("feature_names_in_", np.arange(max(columns) + 1))
        warn_caller(
            f"Column(s) {names[columns[:10]].tolist()} of X are constant: the "
            "likelihood of a constant column of numbers has no maximum, and its noise "
            "variance fell towards its floor. Drop the column(s)."
        )


def check_bound_parameters(estimator, bound):
    """Refuse parameters that differ from those, by name, of the fitted model."""
    for name, value in bound.items():
        if getattr(estimator, name) != value:
            raise ValueError(
                f"{name}={plain(getattr(estimator, name))!r} differs from the "
                f"{plain(value)!r} of the fitted model; clone the estimator to fit "
                "another one."
            )


def check_fitted_components(n_components, n_fitted):
    """Refuse another number of components than that of the model to be trained on."""
    if n_components != n_fitted:
        raise ValueError(
            f"n_components={n_components} differs from the {n_fitted} of the fitted "
            "model that training goes on with; set warm_start=False, or clone the "
            "estimator, to start anew."
        )


def check_training_parameters(estimator, objectives, n_features):
    """Check the parameters that every model trained by masking has."""
    for name in ("n_components", "n_iter_no_change"):
        check_int(getattr(estimator, name, 1), name)
    check_int_or_auto(estimator.n_masks, "n_masks")
    check_mask_rate(estimator.mask_rate, n_features)
    check_choice(getattr(estimator, "objective", "mpt"), "objective", objectives)
    check_int(estimator.max_iter, "max_iter", least=0)
    check_real(estimator.learning_rate, "learning_rate", "neither")
    check_int_or_auto(getattr(estimator, "batch_size", "auto"), "batch_size")
    check_real(estimator.tol, "tol", "left")
    check_bool(estimator.warm_start, "warm_start")
    check_verbose(estimator.verbose)
    check_device(estimator.device)
    check_n_jobs(estimator.n_jobs)
    if isinstance(estimator.mask_rate, FLOATS) and estimator.mask_rate == 1:
        warn_caller(
            "mask_rate=1.0 hides every feature: training sees the marginals of the "
            "features only, nothing of what relates them.",
        )
