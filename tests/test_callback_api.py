"""What the package uses of scikit-learn's callbacks, which are experimental there.

Where a test of this file fails, scikit-learn has changed them: mend
``sklearn_mpt/_callbacks.py``, ``sklearn_mpt/_base/estimator.py`` and
``sklearn_mpt/_measure/monitor.py``. ``nox -s upcoming`` runs the tests with the
development version of scikit-learn; a workflow does so every night.
"""

import inspect

import pytest

pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")

from sklearn.base import BaseEstimator
from sklearn.callback import CallbackSupportMixin, FitCallback, with_callbacks

from sklearn_mpt import LMLMonitor


class Counter(CallbackSupportMixin, BaseEstimator):
    """Fits as `BaseMPT` does: a task for each epoch, its state on request."""

    @with_callbacks
    def fit(self, X):
        context = self._init_callback_context(max_subtasks=3)
        context.call_on_fit_task_begin(estimator=self, X=X)
        for epoch in range(3):
            task = context.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X)
            stop = task.call_on_fit_task_end(
                estimator=self,
                X=X,
                reconstruction_attributes=lambda epoch=epoch: {"n_": epoch},
            )
            if stop:
                break
        context.call_on_fit_task_end(
            estimator=self, X=X, reconstruction_attributes=dict
        )
        return self


class Recorder:
    """Keeps what the hooks are given; asks to stop after the second epoch."""

    def __init__(self):
        self.events = []

    def setup(self, estimator, context):
        self.events.append(("setup", context))

    def teardown(self, estimator, context):
        self.events.append(("teardown", context))

    def on_fit_task_begin(self, estimator, context):
        self.events.append(("begin", context))

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        n = getattr(fitted_estimator, "n_", None)
        self.events.append(("end", context, X, n))
        return context.parent is not None and n == 1


def test_hooks_are_called_as_fit_and_monitor_rely_on():
    recorder = Recorder()
    Counter().set_callbacks(recorder).fit("rows")
    names = [event[0] for event in recorder.events]
    assert names == ["setup", "begin", *["begin", "end"] * 2, "end", "teardown"]
    root = recorder.events[0][1]
    assert recorder.events[-1][1] is root
    epochs = [event for event in recorder.events if event[1].parent is root]
    assert [event[1].task_id for event in epochs] == [0, 0, 1, 1]
    assert [event[2:] for event in epochs[1::2]] == [("rows", 0), ("rows", 1)]


def test_a_monitor_is_a_callback_and_contexts_are_keys():
    assert isinstance(LMLMonitor(), FitCallback)
    recorder = Recorder()
    Counter().set_callbacks(recorder).fit("rows")
    assert len({event[1] for event in recorder.events}) == 3  # the fit and two epochs


@pytest.mark.parametrize("name", ["on_fit_task_begin", "on_fit_task_end"])
def test_hooks_of_the_monitor_take_what_the_protocol_names(name):
    takes = list(inspect.signature(getattr(LMLMonitor, name)).parameters)
    offered = inspect.signature(getattr(FitCallback, name)).parameters
    assert set(takes) <= set(offered)
