"""What is kept of an estimator: versions in pickles, and nothing of a failed call."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sklearn.exceptions import InconsistentVersionWarning

from sklearn_mpt._version import __version__

Method = TypeVar("Method", bound=Callable[..., Any])


def all_or_nothing(method: Method) -> Method:
    """Make a method leave its estimator as it was if it raises."""

    @functools.wraps(method)
    def wrapped(estimator, *args, **kwargs):
        before = vars(estimator).copy()
        try:
            return method(estimator, *args, **kwargs)
        except BaseException:
            vars(estimator).clear()
            vars(estimator).update(before)
            raise

    return cast(Method, wrapped)


def forget(estimator: object) -> None:
    """Drop what an earlier fit set, known by the names that scikit-learn prescribes."""
    for name in list(vars(estimator)):
        if name.endswith("_") and not name.startswith("_"):
            delattr(estimator, name)


class VersionedPickleMixin:
    """Write the package's version into pickles, and warn where another one reads."""

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
