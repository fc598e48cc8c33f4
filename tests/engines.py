"""Engines that joblib sends work to, each on a cluster of two workers of its own."""

import os
import sys
import warnings
from contextlib import contextmanager

import cloudpickle
import pytest
from joblib import parallel_config, register_parallel_backend
from joblib._parallel_backends import ThreadingBackend
from joblib.externals.loky import get_reusable_executor

N_WORKERS = 2


@contextmanager
def loky_engine():
    settings = {"n_jobs": N_WORKERS, "inner_max_num_threads": 1}
    yield {"backend": "loky", **settings}
    get_reusable_executor().shutdown()


@contextmanager
def dask_engine():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=N_WORKERS, dashboard_address=None
    )
    with cluster, distributed.Client(cluster):
        yield {"backend": "dask"}


@contextmanager
def ray_engine():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    settings = {"include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=N_WORKERS, logging_level="ERROR", **settings)
    try:
        register_ray()
        yield {"backend": "ray", "n_jobs": N_WORKERS}
    finally:
        ray.shutdown()


@contextmanager
def spark_engine():
    sql = pytest.importorskip("pyspark.sql")
    joblibspark = pytest.importorskip("joblibspark")
    builder = sql.SparkSession.builder.master(f"local[{N_WORKERS}]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    session = builder.config(map=settings).getOrCreate()
    try:
        joblibspark.register_spark()
        yield {"backend": "spark", "n_jobs": N_WORKERS}
    finally:
        session.stop()


@contextmanager
def pickling_engine():
    register_parallel_backend("counting", CountingBackend)
    yield {"backend": "counting", "n_jobs": N_WORKERS}


ENGINES = {
    "threads that pickle": pickling_engine,
    "loky": loky_engine,
    "dask": dask_engine,
    "ray": ray_engine,
    "spark": spark_engine,
}


@contextmanager
def environment(**variables):
    before = os.environ.copy()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def started(name):
    """Start an engine for joblib; skip where it is not installed or does not start."""
    engine = ENGINES[name]()
    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAY_AUTH_MODE": "disabled",  # or it writes a token into the home folder
    }
    with environment(**variables):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the engine's own
            try:
                options = engine.__enter__()
            except Exception as error:  # whatever an engine raises
                pytest.skip(f"{name} does not start here: {error}")
        try:
            yield options
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine.__exit__(None, None, None)


class CountingBackend(ThreadingBackend):
    """Threads that get what they work on as other processes would: pickled."""

    supports_sharedmem = False
    sizes: list[int] = []  # noqa: RUF012 - of all instances, which joblib makes

    def submit(self, func, callback=None):
        return super().submit(self._sent(func), callback)

    def apply_async(self, func, callback=None):
        """What `submit` was before joblib 1.5."""
        return super().apply_async(self._sent(func), callback)

    def _sent(self, func):
        pickled = cloudpickle.dumps(func)
        self.sizes.append(len(pickled))
        return cloudpickle.loads(pickled)


@contextmanager
def counted(n_jobs):
    """Count the bytes of each task; yields the list of their numbers."""
    register_parallel_backend("counting", CountingBackend)
    CountingBackend.sizes.clear()
    with parallel_config(backend="counting", n_jobs=n_jobs):
        yield CountingBackend.sizes
