"""The solver of linear models."""

from sklearn_mpt._fitting.ascent import Ascent
from sklearn_mpt._fitting.phases import Phases
from sklearn_mpt._fitting.stream import StreamAscent


def natural_ascent(estimator, data, objective, point):
    """Return the solver for all rows, or for a part of a stream."""
    params = {"learning_rate": estimator.learning_rate, "rng": data.rng}
    if not data.is_all:
        n_before = data.fitted["n_iter_"]
        return StreamAscent(objective, point, n_before=n_before, **params)
    params |= {"tol": estimator.tol, "n_iter_no_change": estimator.n_iter_no_change}
    return Phases(Ascent(objective, point, **params))
