"""What is kept of an estimator: versions in pickles, and nothing of a failed call."""

import warnings
from contextlib import contextmanager

from sklearn.exceptions import InconsistentVersionWarning

from sklearn_mpt._version import __version__


@contextmanager
def all_or_nothing(estimator: object):
    """Leave an estimator as it was if what is done with it raises."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


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
