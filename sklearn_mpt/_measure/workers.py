"""Shares of tasks for joblib's workers, which all get the same rows."""

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._measure.rows import Rows


def map_shares(function, rows, tasks, n_jobs):
    """Return the results of ``function(rows, share)``, one for each worker.

    Share i of n has every n-th task from the i-th on.
    """
    n_shares = max(1, min(len(tasks), effective_n_jobs(n_jobs)))
    # joblib sends a large array once, but only if it is an argument by itself.
    large = rows.values, rows.missing
    return Parallel(n_jobs=n_jobs)(
        delayed(_on_rows)(function, *large, tasks[i::n_shares]) for i in range(n_shares)
    )


def map_tasks(function, rows, tasks, n_jobs):
    """Return a result for each task; ``function(rows, share)`` returns those of one."""
    results = [None] * len(tasks)
    shares = map_shares(function, rows, tasks, n_jobs)
    for i, share in enumerate(shares):
        results[i :: len(shares)] = share
    return results


def _on_rows(function, values, missing, tasks):
    return function(Rows(values, missing), tasks)
