"""The callbacks of scikit-learn, which came with 1.9 and are experimental there.

Earlier versions have none, and a later one may have changed them. An estimator without
callbacks is fitted with any version, because it does not touch them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import sklearn

Method = TypeVar("Method", bound=Callable[..., Any])

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Refuses callbacks."""

        def set_callbacks(self, *callbacks):
            """Raise an error that says which scikit-learn has callbacks."""
            if callbacks:
                raise ImportError(
                    "Callbacks need the module sklearn.callback of scikit-learn 1.9, "
                    f"and scikit-learn {sklearn.__version__} does not have it: "
                    "fit without callbacks, or pip install 'scikit-learn>=1.9'."
                )
            return self

    def with_callbacks(method):
        """Return the method as it is."""
        return method


class NoCallbacks:
    """The context of a task that no callback follows."""

    def subcontext(self, **kwargs):
        """Return the context of a part of the task."""
        return self

    def call_on_fit_task_begin(self, **kwargs):
        """Do nothing before the task."""

    def call_on_fit_task_end(self, **kwargs):
        """Do nothing after the task; no callback ends it."""
        return False


class CallbackMixin(CallbackSupportMixin):
    """Gives a fit the context that calls the callbacks of its estimator."""

    def _callback_context(self, n_epochs):
        """Return the context of a fit of at most n_epochs epochs."""
        if not getattr(self, "_skl_callbacks", None):
            return NoCallbacks()
        return self._init_callback_context(max_subtasks=n_epochs)


def in_callback_context(method: Method) -> Method:
    """Apply scikit-learn's `with_callbacks`, and keep the type of the method."""
    return with_callbacks(method)
