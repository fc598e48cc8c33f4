"""Checks of parameters and arguments, with messages that say what is allowed."""

import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.utils.validation import check_scalar


def check_choice(value, name, choices):
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}.")


def check_mask_rate(mask_rate, n_features):
    """Check "uniform", a rate in (0, 1] or a size in 1..n_features."""
    if isinstance(mask_rate, str | bool):
        valid = mask_rate == "uniform"
    elif isinstance(mask_rate, Integral):
        valid = 1 <= mask_rate <= n_features
    else:
        valid = isinstance(mask_rate, Real) and 0 < mask_rate <= 1
    if not valid:
        raise ValueError(
            "mask_rate must be 'uniform', a float in (0, 1] (a rate) or an int in "
            f"1..n_features={n_features} (a size), got {mask_rate!r}."
        )


def check_int_or_auto(value, name):
    if isinstance(value, str):
        check_choice(value, name, ["auto"])
    else:
        check_scalar(value, name, Integral, min_val=1)


def check_fraction(value, name):
    check_scalar(value, name, Real, min_val=0, max_val=1, include_boundaries="neither")


def check_device(device, dtype="float64"):
    """Return the torch device; "auto" is CUDA where there is one, else the CPU."""
    import torch

    if isinstance(device, str) and device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, dtype=getattr(torch, dtype), device=device)
        return torch.device(device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            "device must be 'auto' or a torch device that is there and computes in "
            f"{dtype}, got {device!r}: {str(error).splitlines()[0]}"
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


def check_training_parameters(estimator, objectives, n_features):
    """Check the parameters that every model trained by masking has."""
    check_scalar(estimator.n_components, "n_components", Integral, min_val=1)
    check_mask_rate(estimator.mask_rate, n_features)
    check_scalar(estimator.n_masks, "n_masks", Integral, min_val=1)
    check_choice(estimator.objective, "objective", objectives)
    check_scalar(estimator.max_iter, "max_iter", Integral, min_val=0)
    check_scalar(
        estimator.learning_rate,
        "learning_rate",
        Real,
        min_val=0,
        include_boundaries="neither",
    )
    check_int_or_auto(estimator.batch_size, "batch_size")
    check_scalar(estimator.tol, "tol", Real, min_val=0)
    check_scalar(estimator.n_iter_no_change, "n_iter_no_change", Integral, min_val=1)
    check_device(estimator.device)
    if isinstance(estimator.mask_rate, float) and estimator.mask_rate == 1:
        warnings.warn(
            "mask_rate=1.0 hides every feature: training sees the marginals of the "
            "features only, nothing of what relates them.",
            stacklevel=6,
        )
