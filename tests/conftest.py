import gc
import os

gc.set_threshold(50_000)  # to collect the tests makes many objects, and no garbage
# The problems are small: waiting for a second thread costs more than it gives.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import pytest  # what takes long to load, the process that starts the others need not

# They register a device for the whole process, and are no tests.
collect_ignore = ["second_device.py", "device_cases.py"]


@pytest.fixture
def in_threads():
    """Jobs are threads: each process would load all libraries. Engines test those."""
    import joblib

    with joblib.parallel_config(backend="threading"):
        yield


@pytest.fixture
def known():
    """Rows, and a model whose parameters are known: nothing is trained."""
    import numpy as np

    from sklearn_mpt import MPTProbabilisticPCA

    rng = np.random.default_rng(0)
    components = rng.normal(size=(2, 6))
    start = {"components": components, "mean": np.arange(6.0), "noise_variance": 0.3}
    X = rng.normal(size=(20, 2)) @ components + np.arange(6.0)
    X += np.sqrt(0.3) * rng.normal(size=X.shape)
    return MPTProbabilisticPCA(init=start, max_iter=0, random_state=0).fit(X), X
