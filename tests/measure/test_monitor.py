import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV

from sklearn_mpt import (
    LMLMonitor,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTProbabilisticPCA,
)

pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Maximum iterations:sklearn.exceptions.ConvergenceWarning"
)
X = load_iris().data


def fit(callback, max_iter=6):
    model = MPTProbabilisticPCA(max_iter=max_iter, random_state=0)
    return model.set_callbacks(callback).fit(X)


def test_records_every_epoch_of_every_fit():
    monitor = LMLMonitor()
    model = fit(monitor)
    model.fit(X)
    assert [(r["fit"], r["epoch"]) for r in monitor.log_] == [
        (n_fit, epoch) for n_fit in (0, 1) for epoch in range(6)
    ]
    lmls = np.array([record["lml"] for record in monitor.log_])
    assert np.allclose(lmls[:6], lmls[6:])
    assert lmls[5] > lmls[0]


def test_scores_given_rows_and_skips_epochs():
    class Counting(MPTProbabilisticPCA):
        n_scored = 0

        def score_samples(self, X, return_std=False):
            Counting.n_scored += 1
            assert len(X) == 10
            return super().score_samples(X, return_std)

    monitor = LMLMonitor(X[:10], every=3)
    Counting(max_iter=7, random_state=0).set_callbacks(monitor).fit(X)
    assert [record["epoch"] for record in monitor.log_] == [0, 3, 6]
    assert Counting.n_scored == 3


def test_tells_the_fits_of_a_grid_search_apart():
    monitor = LMLMonitor()
    model = MPTProbabilisticPCA(max_iter=2, random_state=0).set_callbacks(monitor)
    GridSearchCV(model, {"n_components": [1, 2]}, cv=2).fit(X)
    fits = [record["fit"] for record in monitor.log_]
    assert fits == sorted(fits)
    assert np.bincount(fits).tolist() == [2] * 5  # 2 x 2 folds, and the refit


def test_a_callback_that_returns_true_stops_the_fit():
    class StopAtThird(LMLMonitor):
        def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
            super().on_fit_task_end(
                estimator, context, X=X, fitted_estimator=fitted_estimator
            )
            return len(self.log_) == 3

    assert fit(StopAtThird(), max_iter=50).n_iter_ == 3


def test_progress_bar_shows_the_epochs(capsys):
    pytest.importorskip("rich")
    from sklearn.callback import ProgressBar

    fit(ProgressBar())
    assert "MPTProbabilisticPCA" in capsys.readouterr().out


def test_pickles_with_its_log():
    monitor = LMLMonitor()
    model = pickle.loads(pickle.dumps(fit(monitor)))
    assert np.isfinite(model.score(X))
    assert pickle.loads(pickle.dumps(monitor)).log_ == monitor.log_


def test_bad_every_is_refused():
    with pytest.raises(ValueError, match="every"):
        LMLMonitor(every=0)


def table_with_categories():
    rng = np.random.default_rng(0)
    z = rng.normal(size=60)
    answers = pd.Categorical(np.where(z > 0, "yes", "no"))
    levels = pd.Categorical(rng.integers(0, 3, 60), [2, 0, 1], ordered=True)
    table = pd.DataFrame({"number": z + rng.normal(size=60), "answer": answers})
    return table.assign(level=levels).mask(rng.random((60, 3)) < 0.1)


BY_DTYPE = {"likelihood": "from_dtype", "max_iter": 3, "random_state": 0}


@pytest.mark.parametrize(
    "model",
    [
        MPTLinearVAE(1, **BY_DTYPE),
        MPTMaskedAutoencoder(**BY_DTYPE),
        MPTItemResponse("rasch", random_state=0),
    ],
)
def test_training_rows_may_be_a_table(model):
    table = table_with_categories()
    if isinstance(model, MPTItemResponse):
        table = (pd.DataFrame(X, columns=list("abcd")) > X.mean(0)).astype(int)
    monitor = LMLMonitor()
    model.set_callbacks(monitor).fit(table)
    # the noise of deep models is set once more after the last epoch
    assert np.isclose(monitor.log_[-1]["lml"], model.score(table), rtol=1e-3)
