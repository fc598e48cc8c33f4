"""Tasks for joblib's workers, which all get the same rows."""

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._measure.rows import Rows


def map_workers(function, rows, tasks, n_jobs):
    """Return the results of ``function(rows, some_tasks)``, one for each worker."""
    n_workers = max(1, min(len(tasks), effective_n_jobs(n_jobs)))
    # joblib sends a large array once, but only if it is an argument by itself.
    large = rows.values, rows.missing
    return Parallel(n_jobs=n_jobs)(
        delayed(_on_rows)(function, *large, tasks[i::n_workers])
        for i in range(n_workers)
    )


def map_tasks(function, rows, tasks, n_jobs):
    """Return a result for each task; ``function(rows, some_tasks)`` returns theirs."""
    results = [None] * len(tasks)
    of_workers = map_workers(function, rows, tasks, n_jobs)
    for i, of_worker in enumerate(of_workers):
        results[i :: len(of_workers)] = of_worker
    return results


def _on_rows(function, values, missing, tasks):
    return function(Rows(values, missing), tasks)
