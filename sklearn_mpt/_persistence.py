"""Attributes of estimators: version in pickles, reset after errors and before fits."""

import warnings
from contextlib import contextmanager

from sklearn.exceptions import InconsistentVersionWarning

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
