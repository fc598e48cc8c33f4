"""Modes of the posterior of z in a deep model, and the curvature there."""

import functools

import torch

from sklearn_mpt._latent.integrals import log_joint
from sklearn_mpt._latent.modes import gaussians_at_modes
from sklearn_mpt._latent.quadrature import (
    Nodes,
    Posterior,
    log_peak,
    normal_points,
    standard_normal_log_prob,
)

# Starts of the search for modes are the mean of the encoder and the likeliest of shared
# points, which have the tails of a Cauchy distribution: rows far from the data have
# their modes in the tails of the prior. What other numbers would cost is in
# benchmarks/RESULTS.rst, "Deep models: the search for modes".
N_POINTS = 4096
FEW_DIMS = 3  # up to these, shared points are likely to be near modes
N_STARTS = 12  # shared points that are starts, in few dimensions
START_DISTANCE = 0.1  # from each other, relative to 1 + abs(z)
MAX_STEPS = 20  # to a mode
MIN_GAIN = 1e-3  # a row is at its mode if the next step would gain less, in nats


def n_modes(n_dims):
    """Return the number of modes; in many dimensions more of them gain nothing."""
    return 4 if n_dims <= FEW_DIMS else 2


def posteriors_around_modes(rows, z, module):
    """Return Gaussians around the largest modes found from z (n, k) and other starts.

    They are farther from each other than a standard deviation. Where there are fewer
    modes, the one that is reached from z is repeated.
    """
    starts = torch.cat([z[:, None], likeliest_points(rows, module)], 1)
    shape = starts.shape[:2]
    row = torch.arange(shape[0], device=z.device)
    posterior, joint = gaussians_at_modes(
        rows.take(row.repeat_interleave(shape[1])),
        module,
        starts.flatten(0, 1),
        max_iter=MAX_STEPS,
        min_gain=MIN_GAIN,
    )
    mass = (joint - log_peak(posterior)).unflatten(0, shape)
    parts = [part.unflatten(0, shape) for part in posterior]
    chosen = []
    for _ in range(n_modes(module.n_dims)):
        best = Posterior(*(part[row, mass.argmax(1)] for part in parts))
        chosen.append(best)
        away = (parts[0] - best.mean[:, None]) @ best.precision_root
        mass = torch.where(away.norm(dim=2) > 1, mass, -torch.inf)
    return chosen


def likeliest_points(rows, module):
    """Return the likeliest of shared points, apart from each other; (n, s, k)."""
    z = _cauchy_points(module.n_dims).to(rows.X)
    joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), module)
    chosen = []
    for _ in range(N_STARTS if module.n_dims <= FEW_DIMS else 1):
        best = z[joint.argmax(1)]
        chosen.append(best)
        least = START_DISTANCE * (1 + best.norm(dim=1, keepdim=True))
        joint = torch.where(torch.cdist(best, z) < least, -torch.inf, joint)
    return torch.stack(chosen, 1)


@functools.lru_cache(maxsize=64)
def _cauchy_points(n_dims):
    """Return points of the multivariate Cauchy distribution; (N_POINTS, k)."""
    normal = torch.from_numpy(normal_points(N_POINTS, n_dims + 1, 0, 1)[0])
    return normal[:, :-1] / normal[:, -1:].abs()
