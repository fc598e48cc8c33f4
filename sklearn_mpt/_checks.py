"""Checks of parameters; warnings; seeds; lists and tables in messages to users."""

from __future__ import annotations

import math
import reprlib
import sys
import warnings
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    Interval,
    InvalidParameterError,
    RealNotInt,
    StrOptions,
    make_constraint,
)

INTEGERS, FLOATS = (int, np.integer), (float, np.floating)
NUMBERS = INTEGERS + FLOATS  # not Fraction or Decimal, which torch refuses
RandomState = int | np.random.RandomState | None
# Numbers of seeds that scikit-learn and torch take.
N_SEEDS, N_TORCH_SEEDS = (int(np.iinfo(i).max) + 1 for i in (np.int32, np.int64))
# A warning names the first calling line outside these packages.
LIBRARIES = {"sklearn_mpt", "sklearn", "joblib", "torch", "contextlib"}


class StrictInterval(Interval):
    """Interval of numbers that torch takes; a bool is no number."""

    def is_satisfied_by(self, val):
        allowed = {Integral: INTEGERS, RealNotInt: FLOATS}.get(self.type, NUMBERS)
        return isinstance(val, allowed) and not isinstance(val, bool) and val in self


# Constraints of parameters; see `_parameter_constraints` of the estimators.
AUTO = StrOptions({"auto"})
UNIFORM = StrOptions({"uniform"})
COUNT = StrictInterval(Integral, 1, None, closed="left")
COUNT_OR_0 = StrictInterval(Integral, 0, None, closed="left")
POSITIVE = StrictInterval(Real, 0, None, closed="neither")
POSITIVE_OR_0 = StrictInterval(Real, 0, None, closed="left")
OPEN_UNIT_INTERVAL = StrictInterval(Real, 0, 1, closed="neither")
RATE = StrictInterval(RealNotInt, 0, 1, closed="right")
SEED = StrictInterval(Integral, 0, 2**32 - 1, closed="both")
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
    """Check that a mask rate is "uniform", in (0, 1] or an int in 1..n_features.

    Warn if a mask rate of 1 hides all features, or may be meant to.
    """
    sizes = StrictInterval(Integral, 0, n_features, closed="right")
    check(mask_rate, "mask_rate", UNIFORM, RATE, sizes)
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


def check(value, name, *constraints):
    """Refuse a value that satisfies none of the constraints; the message lists them."""
    made = list(map(make_constraint, constraints))
    if not any(constraint.is_satisfied_by(value) for constraint in made):
        allowed = " or ".join(map(str, made))
        raise InvalidParameterError(f"{name} must be {allowed}, got {plain(value)!r}.")


def check_int(value, name, min_val=1):
    """Check an integer of at least `min_val`; bools are refused."""
    check(value, name, StrictInterval(Integral, min_val, None, closed="left"))


def check_real(value, name, closed, max_val=math.inf):
    """Check a finite number between 0 and `max_val`; bools are refused."""
    check(value, name, StrictInterval(Real, 0, max_val, closed=closed))


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


def check_shape(array, name, shape, axes=""):
    """Refuse an array of another shape; axes : in words, such as "(n_samples,)"."""
    if np.shape(array) != shape:
        expected = f"{axes} = {shape}" if axes else shape
        raise ValueError(
            f"{name} must have shape {expected}, got shape {np.shape(array)}."
        )


def check_bool(value, name):
    check(value, name, "boolean")


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


def check_n_jobs(n_jobs):
    check(n_jobs, "n_jobs", *N_JOBS)


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


def check_as_fitted(value, fitted, name):
    """Refuse to train on with another value than that of the fitted model."""
    if not isinstance(value, str) and not np.array_equal(value, fitted):
        raise ValueError(
            f"{name}={plain(value)!r} differs from the {fitted} of the fitted model "
            "that training goes on with; set warm_start=False, or clone the estimator, "
            "to start anew."
        )


def spawn_seeds(random_state, n_seeds):
    """Derive independent seeds from a scikit-learn random state."""
    entropy = _generator(random_state).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence(entropy.tolist()).spawn(n_seeds)


def check_seed(random_state):
    """Refuse what is no random state, without drawing from it."""
    check(random_state, "random_state", SEED, np.random.RandomState, None)


def draw_seed(random_state):
    """Draw one integer from a scikit-learn random state."""
    return int(_generator(random_state).randint(N_SEEDS - 1))


def seed_from(rng, n_seeds=N_SEEDS):
    """Draw a seed, of `n_seeds`, from a generator of NumPy."""
    return int(rng.integers(n_seeds))


def _generator(random_state):
    check_seed(random_state)
    return check_random_state(random_state)


def how_to_install(*extras):
    """Say what installs the packages of an extra, as the README does."""
    names = " or ".join(f"'.[{extra}]'" for extra in extras)
    return f"pip install {names}, in a copy of the repository."


def plain(value):
    """Return NumPy scalars as Python numbers: 3 for ``np.int64(3)``."""
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def joined(values, most=10):
    """Return values as text, without brackets; see `listed`."""
    first = values[:most]
    entries = map(repr, first.tolist() if isinstance(first, np.ndarray) else first)
    ending = ["..."] if len(values) > most else []
    return ", ".join([*entries, *ending])


def listed(values):
    """Return a list as text: its first entries, and "..." if there are more."""
    return f"[{joined(values)}]"


def examples_of(numbers):
    """Return the first few distinct numbers as text."""
    return ", ".join(f"{value:.6g}" for value in np.unique(numbers)[:3])


def text_table(names, columns, title=""):
    """Return a table as text: a line of titles, and a line for each name."""
    width = max(map(len, [title, *names]))
    head = "".join(f"{title:>{w}}" for title, w, _ in columns)
    lines = [f"{title:{width}}{head}"]
    for name, *values in zip(names, *(values for *_, values in columns), strict=True):
        cells = zip(values, (w for _, w, _ in columns), strict=True)
        numbers = "".join(f"{value:{w}.4f}" for value, w in cells)
        lines.append(f"{name:{width}}{numbers}")
    return "\n".join(lines)
