"""Modes of posteriors of z, for all rows at once, by Newton's method."""

from typing import NamedTuple

import torch

from sklearn_mpt._latent.quadrature import gaussian_around, standard_normal_log_prob
from sklearn_mpt._numbers import ROUNDING, TINY


class LogJoint(NamedTuple):
    """Log p(x, z) of rows at points z, up to constants, and its derivatives."""

    value: torch.Tensor  # shape: (n,)
    gradient: torch.Tensor  # shape: (n, k)
    precision: torch.Tensor  # shape: (n, k, k), minus the Hessian, or near it


def climb(
    log_joint,
    start,
    *,
    max_iter=100,
    tol=0.0,
    min_gain=0.0,
    shortening=0.3,
    min_fraction=1e-3,
):
    r"""Return the modes near `start`, (n, k), and value and precision there.

    Rows move by Newton steps. A step that gains nothing is shortened, from length d to
    :math:`\log(1 + d)` at once if it is long: Newton steps of log-rates grow with the
    counts. Where the precision has negative eigenvalues, their absolute values are
    taken, so that every step leads upwards. A row that has converged does not move
    while other rows do.

    Parameters
    ----------
    log_joint : callable
        Takes points, (m, k), and the indices of their rows, (m,); returns a `LogJoint`.
    start : Tensor of shape (n, k)
    max_iter : int
        Largest number of steps; hardly any row needs ten.
    tol : float
        A row has converged if its step changes no component of z by more.
    min_gain : float
        A row has converged if its step is expected to gain less, in nats.
    shortening : float
        Factor of the length of a step that gains nothing.
    min_fraction : float
        A row has converged if its step is shortened to a smaller fraction of
        :math:`\log(1 + d)`.
    """
    z, moving = start.clone(), torch.arange(len(start), device=start.device)
    value, gradient, precision = (part.clone() for part in log_joint(z, moving))
    step, gain = _newton(gradient, precision)
    size = torch.ones_like(value)
    is_moving = (step.abs().amax(1) > tol) & (gain > min_gain)
    for _ in range(max_iter):
        moving = moving[is_moving]
        if len(moving) == 0:
            break
        proposal = z[moving] + size[moving, None] * step[moving]
        evaluated = log_joint(proposal, moving)
        # a fall that may be a rounding error is no reason to shorten a step
        rounding = ROUNDING * (1 + value[moving].abs())
        is_accepted = evaluated.value - value[moving] > -rounding
        # indices, because a GPU waits for each selection by a mask
        chosen = is_accepted.nonzero()[:, 0]
        accepted = moving[chosen]
        rejected = moving[(~is_accepted).nonzero()[:, 0]]
        z[accepted], value[accepted] = proposal[chosen], evaluated.value[chosen]
        precision[accepted] = evaluated.precision[chosen]
        new = _newton(evaluated.gradient[chosen], precision[accepted])
        step[accepted], gain[accepted] = new
        length = step.norm(dim=1).clamp(min=TINY)
        damped = torch.log1p(length) / length
        longer = torch.maximum(size[accepted] / shortening, damped[accepted])
        size[accepted] = longer.clamp(max=1.0)
        size[rejected] = torch.minimum(shortening * size[rejected], damped[rejected])
        is_moving = (step[moving].abs().amax(1) > tol) & (gain[moving] > min_gain)
        is_moving &= size[moving] > min_fraction * damped[moving]
    return z, value, precision


def laplace(rows, joint, start=None, tol=ROUNDING, **search):
    """Return Laplace approximations of posteriors, and log p(x, z) at modes; (n,).

    Their precision is that of the prior and the information of the observed entries.

    Parameters
    ----------
    rows : ObservedRows
    joint : object
        With a `likelihood`, and ``location_and_jacobian(z)``: the locations, (n, l),
        and their derivatives in z, (k, l) or (n, k, l).
    start : Tensor of shape (n, k), default=None
        Where the search starts; None is 0.
    tol, **search
        Parameters of `climb`.
    """
    if start is None:
        start = rows.X.new_zeros(len(rows.X), joint.n_dims)
    likelihood = joint.likelihood

    def log_joint(z, index):
        selected = rows.take(index)
        observed = selected.observed.to(z.dtype)
        location, jacobian = joint.location_and_jacobian(z)
        entries = likelihood.entry_log_prob(selected.X, location)
        derivative, information = likelihood.derivatives(selected.X, location)
        derivative = likelihood.to_locations(observed) * derivative
        if jacobian.ndim == 2:
            gradient = derivative @ jacobian.T
        else:
            gradient = (jacobian @ derivative[..., None])[..., 0]
        precision = likelihood.precision(information, observed, jacobian)
        precision.diagonal(dim1=1, dim2=2).add_(1)
        value = (observed * entries).sum(1) + standard_normal_log_prob(z)
        return LogJoint(value, gradient - z, precision)

    z, value, precision = climb(log_joint, start, tol=tol, **search)
    return gaussian_around(z, torch.linalg.cholesky(precision)), value


def _newton(gradient, precision):
    """Return Newton steps (n, k), and the gains that they promise, (n,), in nats."""
    root, failed = torch.linalg.cholesky_ex(precision)
    step = torch.cholesky_solve(gradient[..., None], root)[..., 0]
    is_indefinite = failed > 0
    if is_indefinite.any():
        values, vectors = torch.linalg.eigh(precision[is_indefinite])
        along = (vectors.mT @ gradient[is_indefinite][..., None])[..., 0]
        along = along / values.abs().clamp(min=ROUNDING)  # where it is flat
        step[is_indefinite] = (vectors @ along[..., None])[..., 0]
    return step, 0.5 * (gradient * step).sum(1)
