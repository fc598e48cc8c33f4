"""The solver of linear models."""

import torch

from sklearn_mpt._optim.steps import NoisyAscent, ascent_of

# Length of a component that starts at zero, where it would stay.
ZERO_JITTER = 1e-3


def natural_ascent(params, data, objective, point):
    """Return the solver for all rows, or for a part of a stream."""
    point = _without_zeros(point, data.rng)
    steps = {"learning_rate": params.learning_rate, "rng": data.rng}
    if not data.is_all:
        return NoisyAscent.of_part(objective, point, data.fitted["n_iter_"], **steps)
    steps |= {"tol": params.tol, "n_iter_no_change": params.n_iter_no_change}
    return ascent_of(objective, point, **steps)


def _without_zeros(point, rng):
    """Return the point with small random numbers in components that are zero."""
    is_zero = (point.coefs == 0).all(0)
    is_zero[-1] = False  # intercepts
    if not is_zero.any():
        return point
    coefs = point.coefs.clone()
    noise = ZERO_JITTER * rng.normal(size=(len(coefs), int(is_zero.sum())))
    coefs[:, is_zero] = torch.from_numpy(noise).to(coefs)
    return point._replace(coefs=coefs)
