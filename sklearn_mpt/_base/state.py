"""Attributes of estimators: version in pickles, resets, parameters since `fit`."""

import copy
import warnings
from contextlib import contextmanager

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe, is_into_series
from sklearn.exceptions import InconsistentVersionWarning

from sklearn_mpt._checks import plain
from sklearn_mpt._version import __version__


@contextmanager
def all_or_nothing(estimator: object):
    """Restore the attributes of an estimator if the body of the `with` block raises."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def forget(estimator: object) -> None:
    """Delete fitted attributes: those whose names end with an underscore."""
    for name in list(vars(estimator)):
        if name.endswith("_") and not name.startswith("_"):
            delattr(estimator, name)


class VersionedPickleMixin:
    """Store the package's version in pickles; warn if another version loads them."""

    def __getstate__(self):
        return {
            **super().__getstate__(),
            "_sklearn_mpt_version": __version__,
        }

    def __setstate__(self, state):
        version = state.pop("_sklearn_mpt_version", "unknown")
        if version != __version__:
            warnings.warn(
                InconsistentVersionWarning(
                    estimator_name=type(self).__name__,
                    current_sklearn_version=f"{__version__} (sklearn_mpt)",
                    original_sklearn_version=f"{version} (sklearn_mpt)",
                ),
                stacklevel=2,
            )
        super().__setstate__(state)


def bound_parameters(estimator, free):
    """Return the parameters that must not change after `fit`: all but the free ones."""
    params = estimator.get_params(deep=False)
    bound = {name: params[name] for name in params if name not in free}
    for name, value in bound.items():
        is_table = is_into_dataframe(value) or is_into_series(value)
        if is_table or isinstance(value, list | tuple | dict | np.ndarray):
            bound[name] = copy.deepcopy(value)  # it may be changed in place
    return bound


def _is_same(value, other):
    """Return whether two values of a parameter are equal; NaN is equal to NaN."""
    if value is other:
        return True
    if isinstance(value, dict) and isinstance(other, dict):
        has_same_keys = value.keys() == other.keys()
        return has_same_keys and all(_is_same(value[key], other[key]) for key in value)
    if is_into_dataframe(value) or is_into_series(value):
        return type(value) is type(other) and bool(value.equals(other))
    try:
        np.testing.assert_equal(value, other)
    except Exception:  # values of users may not compare
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
