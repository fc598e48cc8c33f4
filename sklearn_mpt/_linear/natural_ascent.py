"""The solver of linear models."""

from sklearn_mpt._fitting.ascent import Ascent
from sklearn_mpt._fitting.stream import StreamAscent


def natural_ascent(estimator, data, objective, point, finishes=True):
    """Return the solver for all rows, or for a part of a stream.

    finishes : whether the exact objective follows; see `Ascent`.
    """
    params = {
        "learning_rate": estimator.learning_rate,
        "rng": data.rng,
        "n_before": data.fitted["n_iter_"],
    }
    if not data.is_all:
        return StreamAscent(objective, point, **params)
    params |= {"tol": estimator.tol, "n_iter_no_change": estimator.n_iter_no_change}
    return Ascent(objective, point, finishes=finishes, **params)
