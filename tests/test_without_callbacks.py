"""Estimators on versions of scikit-learn that have no callbacks, or others."""

import runpy
import sys
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris

import sklearn_mpt
from sklearn_mpt import LMLMonitor, MPTProbabilisticPCA


@pytest.fixture
def estimator(monkeypatch):
    """An estimator of a scikit-learn that lacks the module of callbacks."""
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)
    folder = Path(sklearn_mpt.__file__).parent
    module = runpy.run_path(folder / "_base" / "estimator.py")

    class Estimator(module["CallbackMixin"], BaseEstimator):
        @module["in_callback_context"]
        def fit(self, X):
            """Fit as `BaseMPT` does."""
            context = self._callback_context(2)
            context.call_on_fit_task_begin(estimator=self, X=X)
            epoch = context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(estimator=self, X=X)
            self.is_stopped_ = epoch.call_on_fit_task_end(estimator=self, X=X)
            context.call_on_fit_task_end(estimator=self, X=X)
            return self

    return Estimator()


def test_fits_go_on_where_there_are_no_callbacks(estimator):
    assert estimator.set_callbacks().fit([[0.0]]).is_stopped_ is False


def test_a_callback_is_refused_where_there_are_none(estimator):
    message = r"sklearn\.callback of scikit-learn 1\.9, and scikit-learn [\d.]+"
    with pytest.raises(ImportError, match=message):
        estimator.set_callbacks(LMLMonitor())


def test_a_fit_without_callbacks_does_not_touch_what_is_experimental(monkeypatch):
    def fail(self, **kwargs):
        raise TypeError("This is another interface.")

    model = MPTProbabilisticPCA(max_iter=1, random_state=0, tol=0)
    name = "_init_callback_context"
    monkeypatch.setattr(MPTProbabilisticPCA, name, fail, raising=False)
    with pytest.warns(match="Maximum iterations"):
        model.fit(load_iris().data)
