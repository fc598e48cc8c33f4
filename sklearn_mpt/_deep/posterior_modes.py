"""Modes of the posterior of z in a deep model, and the curvature there."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sklearn_mpt._integration.integrals import log_joint
from sklearn_mpt._integration.modes import gaussians_at_modes
from sklearn_mpt._integration.quadrature import (
    Nodes,
    Posterior,
    log_peak,
    normal_points,
    standard_normal_log_prob,
)


@dataclass(frozen=True)
class ModeSearch:
    """Starts of the search for modes, and when it ends.

    Starts are the mean of the encoder and the likeliest of shared points. These points
    have the tails of a Cauchy distribution, because rows far from the data have their
    modes in the tails of the prior. ``benchmarks/bench_deep_scores.py rules`` prints
    the errors of scores with other rules; see benchmarks/RESULTS.rst.

    Attributes
    ----------
    few_dims : int
        Largest number of dimensions in which shared points are likely to be near modes,
        so that several of them are starts.
    n_points : int
        Number of shared points.
    n_starts : int
        Number of shared points from which modes are sought in few dimensions.
    start_distance : float
        Starts are farther from each other, relative to 1 + abs(z).
    max_steps : int
        Largest number of steps to a mode.
    min_gain : float
        A row is at its mode if the next step would gain less, in nats.
    """

    few_dims: int = 3
    n_points: int = 4096
    n_starts: int = 12
    start_distance: float = 0.1
    max_steps: int = 20
    min_gain: float = 1e-3


SEARCH = ModeSearch()


def n_modes(n_dims):
    """Return the number of modes; in many dimensions more of them gain nothing."""
    return 4 if n_dims <= SEARCH.few_dims else 2


def posteriors_around_modes(rows, z, module):
    """Return Gaussians around the largest modes found from z (n, k) and other starts.

    Where there are fewer modes, one is repeated.
    """
    starts = torch.cat([z[:, None], likeliest_points(rows, module)], 1)
    shape = starts.shape[:2]
    index = torch.arange(shape[0], device=z.device).repeat_interleave(shape[1])
    posterior, joint = gaussian_at_mode(rows.take(index), starts.flatten(0, 1), module)
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
    """Return the posteriors of largest mass that are apart from each other.

    They are farther from each other than a standard deviation. Where there are fewer,
    the mode that is reached from the encoder's mean is repeated.
    """
    chosen = [modes.best()]
    for _ in range(1, n_modes(modes.mean.shape[2])):
        before = chosen[-1]
        away = (modes.mean - before.mean[:, None]) @ before.precision_root
        mass = torch.where(away.norm(dim=2) > 1, modes.mass, -torch.inf)
        modes = modes._replace(mass=mass)
        chosen.append(modes.best())
    return chosen


def likeliest_points(rows, module):
    """Return the likeliest of shared points, apart from each other; (n, s, k)."""
    z = _cauchy_points(module.n_dims).to(rows.X)
    joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), module)
    chosen = []
    for _ in range(SEARCH.n_starts if module.n_dims <= SEARCH.few_dims else 1):
        best = z[joint.argmax(1)]
        chosen.append(best)
        least = SEARCH.start_distance * (1 + best.norm(dim=1, keepdim=True))
        joint = torch.where(torch.cdist(best, z) < least, -torch.inf, joint)
    return torch.stack(chosen, 1)


@functools.lru_cache(maxsize=64)
def _cauchy_points(n_dims):
    """Return points of the multivariate Cauchy distribution; (n_points, k)."""
    normal = torch.from_numpy(normal_points(SEARCH.n_points, n_dims + 1, 0, 1)[0])
    return normal[:, :-1] / normal[:, -1:].abs()


def gaussian_at_mode(rows, z, module, max_steps=SEARCH.max_steps):
    """Return the Gaussian at the mode near z, (n, k), and the log joint density there.

    The curvature is that of Gauss and Newton.
    """
    search = {"max_iter": max_steps, "min_gain": SEARCH.min_gain}
    return gaussians_at_modes(rows, module, z, **search)
