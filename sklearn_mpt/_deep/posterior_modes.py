"""Modes of the posterior of z in a deep model, and the curvature there."""

import functools
from typing import NamedTuple

import torch

from sklearn_mpt._integration.integrals import log_joint
from sklearn_mpt._integration.modes import LogJoint, climb
from sklearn_mpt._integration.quadrature import (
    Nodes,
    Posterior,
    gaussian_around,
    log_peak,
    normal_points,
    standard_normal_log_prob,
)

# Starts are the encoder's mean and the likeliest of shared points, which have the tails
# of a Cauchy distribution, as rows far from the data have z in the tails of the prior.
# They are APART from each other, relative to 1 + |z|. In more than FEW_DIMS dimensions
# such points are seldom near a mode.
N_POINTS, N_STARTS, START_DISTANCE, FEW_DIMS = 4096, 12, 0.1, 3
MODE_DISTANCE, NEGLIGIBLE = (
    3.0,
    20.0,
)  # deviations between modes; nats below the largest
MAX_STEPS = 20
LEAST_GAIN = 1e-3  # nats, of the log joint density, for which a climb goes on


def n_modes(n_dims):
    """Return the number of modes; in many dimensions more of them gain nothing."""
    return 4 if n_dims <= FEW_DIMS else 2


def posteriors_around_modes(rows, z, module):
    """Return Gaussians around the largest modes found from z (n, k) and other starts.

    Where there are fewer modes, the largest is repeated.
    """
    starts = torch.cat([z[:, None], likeliest_points(rows, module)], 1)
    shape = starts.shape[:2]
    index = torch.arange(shape[0], device=z.device).repeat_interleave(shape[1])
    posterior, joint = laplace(rows.take(index), starts.flatten(0, 1), module)
    mass = joint - log_peak(posterior)
    return _distinct(
        RowModes(*(part.unflatten(0, shape) for part in (*posterior, mass)))
    )


class RowModes(NamedTuple):
    """Gaussians around the modes that are reached from several starts of each row."""

    mean: torch.Tensor  # shape: (n, s, k)
    root: torch.Tensor  # shape: (n, s, k, k)
    precision_root: torch.Tensor  # shape: (n, s, k, k)
    mass: torch.Tensor  # shape: (n, s), logarithms

    def best(self):
        """Return the posterior of the largest mass of each row."""
        first = self.mass.argmax(1)
        rows = torch.arange(len(first), device=first.device)
        return Posterior(*(part[rows, first] for part in self[:3]))


def _distinct(modes):
    """Return the posteriors of largest mass that are apart from each other."""
    first, largest = modes.best(), modes.mass.amax(1)
    chosen = [first]
    for _ in range(1, n_modes(first.mean.shape[1])):
        before = chosen[-1]
        away = (modes.mean - before.mean[:, None]) @ before.precision_root
        apart = away.norm(dim=2) > MODE_DISTANCE
        modes = modes._replace(mass=torch.where(apart, modes.mass, -torch.inf))
        other = modes.best()
        none = (modes.mass.amax(1) < largest - NEGLIGIBLE)[:, None]
        mean = torch.where(none, first.mean, other.mean)
        root = torch.where(none[..., None], first.precision_root, other.precision_root)
        chosen.append(gaussian_around(mean, root))
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


def laplace(rows, z, module, max_steps=MAX_STEPS):
    """Return the Gaussian at the mode near z, (n, k), and the log joint density there.

    The curvature is that of Gauss and Newton.
    """
    kind = module.likelihood

    def log_joint_of(z, index):
        selected = rows.take(index)
        location, jacobian = module.decoder.value_and_jacobian(z)
        observed = selected.observed.to(z.dtype)
        entries = kind.entry_log_prob(selected.X, location)
        slope, information = kind.derivatives(selected.X, location)
        slope = kind.to_locations(observed) * slope
        eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        return LogJoint(
            (entries * observed).sum(1) + standard_normal_log_prob(z),
            (jacobian @ slope[..., None])[..., 0] - z,
            eye + kind.precision(information, observed, jacobian),
        )

    modes = climb(log_joint_of, z, max_iter=max_steps, least_gain=LEAST_GAIN)
    return gaussian_around(modes.z, torch.linalg.cholesky(modes.precision)), modes.value
