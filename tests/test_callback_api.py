"""What the package uses of scikit-learn's callbacks, which are experimental there.

Where a test of this file fails, scikit-learn has changed them: mend
``sklearn_mpt/_base/callbacks.py``, ``sklearn_mpt/_base/estimator.py`` and
``sklearn_mpt/_measure/monitor.py``. ``nox -s upcoming`` runs the tests with the
development version of scikit-learn; a workflow does so every night.
"""

import inspect

import numpy as np
import pytest

pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")

from sklearn.callback import FitCallback

from sklearn_mpt import LMLMonitor, MPTProbabilisticPCA


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
        n = getattr(fitted_estimator, "n_iter_", None)
        self.events.append(("end", context, X, n))
        return context.parent is not None and n == 2


def test_hooks_are_called_as_fit_and_monitor_rely_on():
    recorder, X = Recorder(), np.random.default_rng(0).normal(size=(20, 3))
    model = MPTProbabilisticPCA(1, mask_rate=2, random_state=0)
    model.set_callbacks(recorder).fit(X)
    names = [event[0] for event in recorder.events]
    assert names == ["setup", "begin", *["begin", "end"] * 2, "end", "teardown"]
    root = recorder.events[0][1]
    assert recorder.events[-1][1] is root
    epochs = [event for event in recorder.events if event[1].parent is root]
    assert [event[1].task_id for event in epochs] == [0, 0, 1, 1]
    assert [event[3] for event in epochs[1::2]] == [1, 2]  # of epochs
    assert all(event[2] is not None for event in epochs[1::2])
    assert len({event[1] for event in recorder.events}) == 3  # contexts are keys
    assert isinstance(LMLMonitor(), FitCallback)


@pytest.mark.parametrize("name", ["on_fit_task_begin", "on_fit_task_end"])
def test_hooks_of_the_monitor_take_what_the_protocol_names(name):
    takes = list(inspect.signature(getattr(LMLMonitor, name)).parameters)
    offered = inspect.signature(getattr(FitCallback, name)).parameters
    assert set(takes) <= set(offered)
