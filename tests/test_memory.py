"""What methods take beside their rows and their results, as documented."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_common import quiet_fit

from sklearn_mpt import (
    MPTLinearVAE,
    MPTProbabilisticPCA,
    feature_contributions,
    lml_samples,
    mpt_curve,
)

STATM = Path("/proc/self/statm")
CONSTANT = 2**28  # 256 MiB: blocks, and what the allocator keeps
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STATM.exists(), reason="counts pages of Linux"),
]


def resident_bytes():
    return int(STATM.read_text().split()[1]) * 4096


def most_added(function):
    """Bytes that were resident at most while the function ran, beyond those before."""
    before, sizes, is_over = resident_bytes(), [0], threading.Event()

    def watch():
        while not is_over.is_set():
            sizes.append(resident_bytes())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = function()
    finally:
        is_over.set()
        watcher.join()
    return max(sizes) - before, result


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(1_000_000, 50))  # 381 MiB


@pytest.fixture(scope="module")
def model(X):
    model = quiet_fit(MPTProbabilisticPCA(max_iter=2, random_state=0), X[:500])
    model.score(X[:500])
    return model


TIMES_ROWS = dict.fromkeys(["fit", "closed form", "score_samples", "transform"], 0)
TIMES_ROWS |= {"balanced": 0, "impute": 1, "mpt_curve": 1}
IN_DOUBLE = {"inverse_transform": 1, "sample": 1, "conditional_log_prob": 1}


@pytest.mark.parametrize(
    ("method", "times_rows", "dtype"),
    [(*item, np.float64) for item in (TIMES_ROWS | IN_DOUBLE).items()]
    + [(*item, np.float32) for item in TIMES_ROWS.items()],
)
def test_complete_rows_are_worked_on_in_blocks(method, times_rows, dtype, X, model):
    """The results of some are as large as the rows; single precision stays so."""
    X = X.astype(dtype, copy=False)
    Z, mask = X[:, :2].copy(), np.arange(50) < 3
    ppca = MPTProbabilisticPCA(max_iter=2, random_state=0)
    added, _ = most_added(
        {
            "fit": lambda: quiet_fit(ppca, X),
            "closed form": lambda: quiet_fit(ppca.set_params(objective="lml"), X),
            "score_samples": lambda: model.score_samples(X),
            "transform": lambda: model.transform(X),
            "inverse_transform": lambda: model.inverse_transform(Z),
            "impute": lambda: model.impute(X),
            "sample": lambda: model.sample(len(X)),
            "conditional_log_prob": lambda: model.conditional_log_prob(X, mask),
            "mpt_curve": lambda: mpt_curve(model, X, n_masks=1),
            "balanced": lambda: mpt_curve(model, X, mask_sizes=[5], design="balanced"),
        }[method]
    )
    assert added < times_rows * X.nbytes + CONSTANT * X.itemsize / 8


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_fit_with_gaps_does_not_copy_the_rows(X, dtype):
    gaps = X.astype(dtype)
    gaps[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    ppca = MPTProbabilisticPCA(max_iter=1, random_state=0)
    added, _ = most_added(lambda: quiet_fit(ppca, gaps))
    assert added < CONSTANT


@pytest.mark.parametrize(("n_components", "n_rows"), [(100, 100), (300, 20)])
def test_many_latent_variables_take_few_rows_at_a_time(n_components, n_rows):
    X = (np.random.default_rng(0).random((n_rows, 10)) < 0.5).astype(float)
    model = MPTLinearVAE(
        n_components, likelihood="bernoulli", max_iter=0, random_state=0
    ).fit(X)
    model.score(X[:2])
    added, _ = most_added(lambda: model.score_samples(X))
    assert added < CONSTANT


@pytest.mark.parametrize(
    ("function", "times_rows"),
    [(lml_samples, 1), (feature_contributions, 3), (mpt_curve, 3)],
)
def test_orders_of_many_rows_take_few_copies(function, times_rows):
    """Contributions and their errors are as large as the rows, each."""
    X = np.random.default_rng(0).normal(size=(8_000_000, 4))  # 244 MiB
    X[::2, 0] = np.nan
    model = MPTProbabilisticPCA(2, init="pca", max_iter=0).fit(X[:100])
    model.score(X[:100])
    settings = {"n_masks": 1} if function is mpt_curve else {"n_orders": 1}
    added, _ = most_added(lambda: function(model, X, **settings))
    assert added < times_rows * X.nbytes + CONSTANT
