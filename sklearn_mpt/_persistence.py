"""Pickles that know which version of the package wrote them."""

import warnings

from sklearn.exceptions import InconsistentVersionWarning

from sklearn_mpt._version import __version__


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
