"""Modes of the posterior of z in a deep model, and the curvature there."""

import functools
from typing import NamedTuple

import torch

from sklearn_mpt._latent.integration import BLOCK_BYTES, log_joint
from sklearn_mpt._latent.quadrature import (
    Nodes,
    Posterior,
    gaussian_around,
    log_peak,
    normal_points,
    standard_normal_log_prob,
)

# Starts are the likeliest of points of the prior, and of wider normals, as rows far
# from the data have z in the tails of the prior. They are APART from each other, or in
# the tails APART_IN_TAILS of their distance beyond FAR.
N_SEARCH_POINTS, WIDTHS = 1024, (1.0, 3.0, 8.0, 20.0, 50.0)
APART, APART_IN_TAILS, FAR = 0.3, 0.5, 3.0
N_STARTS, FEW_DIMS = 8, 3  # one in more dimensions
# More points of the prior, and starts that may be nearer to each other: with many
# features modes are narrow, and a high mode may be beside a lower and wider one.
N_NEAR_POINTS, NEAR, N_NEAR_STARTS = 4096, 0.05, 4
SAME, NEGLIGIBLE = 3.0, 20.0  # deviations between modes; nats below the largest
MAX_STEPS = 20
TOLERANCE = 0.01  # nats, of the log joint density
SHORTER, SHORTEST = 0.3, 0.02  # of steps: factor, and least share of a full one
# A row is unlikely if the prior at its best mode is UNLIKELY nats below its peak, or if
# the squared errors there exceed BAD_FIT noise variances. It gets N_CONTENDERS more
# starts of each width, of which fewer go on after every few steps: ROUNDS has numbers
# of steps, and of starts that go on.
UNLIKELY, BAD_FIT = 7.0, 5.0
N_CONTENDERS, N_SURVIVORS = 100, 30
ROUNDS = (1, 120), (2, N_SURVIVORS)


def n_modes(n_dims):
    """Return the number of modes: more gain nothing in many dimensions."""
    return 4 if n_dims <= FEW_DIMS else 2


def posteriors_around_modes(rows, z, module):
    """Return Gaussians around the largest modes found from z (n, k) and other starts.

    Where there are fewer modes, the largest stands for them.
    """
    starts = torch.cat([z[:, None], search(rows, module)], 1)
    modes = climb(rows, starts, module)
    if module.n_dims <= FEW_DIMS:
        unlikely = is_unlikely(rows, modes, module).nonzero()[:, 0]
        if len(unlikely):
            modes = _with_more(modes, unlikely, rows, module)
    return _distinct(modes)


class Modes(NamedTuple):
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


def climb(rows, starts, module, max_steps=MAX_STEPS):
    """Return the modes near starts (n, s, k)."""
    shape = starts.shape[:2]
    index = torch.arange(shape[0], device=starts.device).repeat_interleave(shape[1])
    rows = rows.take(index)
    found, joint = laplace(rows, starts.flatten(0, 1), module, max_steps)
    mass = joint - log_peak(found)
    return Modes(*(part.unflatten(0, shape) for part in (*found, mass)))


def is_unlikely(rows, modes, module):
    """Return whether the best mode is in the tails, or fits badly; bool, (n,)."""
    z, kind = modes.best().mean, module.likelihood
    slope, information = kind.derivatives(rows.X, module.location(z))
    seen = kind.spread(rows.observed.to(z.dtype))
    error, noise = (seen * slope**2).sum(1), (seen * information).sum(1)
    return ((z**2).sum(1) > 2 * UNLIKELY) | (error > BAD_FIT * noise)


def _with_more(modes, which, rows, module):
    """Add modes that survivors reach, for some of the rows."""
    width = max(rows.X.shape[1], module.width) * module.n_dims
    n_at_once = max(1, BLOCK_BYTES // (8 * len(WIDTHS) * N_CONTENDERS * width))
    room = torch.zeros(N_SURVIVORS, dtype=torch.long, device=which.device)
    more = Modes(*(part[:, room] for part in modes))
    more.mass[:] = -torch.inf
    for some in which.split(n_at_once):
        part = rows.take(some)
        found = climb(part, survivors(part, module), module)
        for all_rows, new in zip(more, found, strict=True):
            all_rows[some] = new
    return Modes(*(torch.cat(both, 1) for both in zip(modes, more, strict=True)))


def survivors(rows, module):
    """Return the best of many starts; fewer go on after every few steps; (n, s, k)."""
    z = _search_points(module.n_dims).to(rows.X)
    joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), module)
    joint = joint.unflatten(1, (len(WIDTHS), -1))
    chosen = joint.topk(N_CONTENDERS, 2).indices
    first = N_SEARCH_POINTS * torch.arange(len(WIDTHS), device=z.device)
    z = z[(first[:, None] + chosen).flatten(1)]
    for n_steps, n_left in ROUNDS:
        modes = climb(rows, z, module, n_steps)
        left = modes.mass.topk(n_left, 1).indices
        z = modes.mean.take_along_dim(left[..., None], 1)
    return z


def _distinct(modes):
    """Return the posteriors of largest mass that are apart from each other."""
    first, largest = modes.best(), modes.mass.amax(1)
    chosen = [first]
    for _ in range(1, n_modes(first.mean.shape[1])):
        before = chosen[-1]
        away = (modes.mean - before.mean[:, None]) @ before.precision_root
        apart = away.norm(dim=2) > SAME
        modes = modes._replace(mass=torch.where(apart, modes.mass, -torch.inf))
        other = modes.best()
        none = (modes.mass.amax(1) < largest - NEGLIGIBLE)[:, None]
        mean = torch.where(none, first.mean, other.mean)
        root = torch.where(
            none[..., None], first.precision_root, other.precision_root
        )
        chosen.append(gaussian_around(mean, root))
    return chosen


def search(rows, module):
    """Return the likeliest of shared points, apart from each other; (n, s, k)."""
    n_dims = module.n_dims
    if n_dims > FEW_DIMS:
        return _likeliest(rows, _search_points(n_dims), module, 1, APART)
    far = _likeliest(rows, _search_points(n_dims), module, N_STARTS, APART)
    near = _normal_points(N_NEAR_POINTS, n_dims)
    return torch.cat([far, _likeliest(rows, near, module, N_NEAR_STARTS, NEAR)], 1)


def _likeliest(rows, z, module, number, least):
    """Return the likeliest of points z (m, k) with a least distance."""
    z = z.to(rows.X)
    joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), module)
    chosen = []
    for _ in range(number):
        best = z[joint.argmax(1)]
        chosen.append(best)
        beyond = best.norm(dim=1, keepdim=True) - FAR
        apart = (APART_IN_TAILS * beyond).clamp(min=least * z.shape[1] ** 0.5)
        joint = torch.where(torch.cdist(best, z) < apart, -torch.inf, joint)
    return torch.stack(chosen, 1)


def _search_points(n_dims):
    normal = _normal_points(N_SEARCH_POINTS, n_dims)
    return torch.cat([width * normal for width in WIDTHS])


@functools.lru_cache(maxsize=64)
def _normal_points(number, n_dims):
    return torch.from_numpy(normal_points(number, n_dims, 0, 1)[0])


def laplace(rows, z, module, max_steps=MAX_STEPS):
    """Return mode and curvature of the posterior near z, by Gauss-Newton steps.

    A step that gains nothing is shortened. A row stays where it is once a full step
    gains no more than TOLERANCE, or no short one gains, however many steps other rows
    take.
    """
    z = z.clone()
    joint, step, root = _gauss_newton(rows, z, module)
    moving = torch.arange(len(z), device=z.device)
    size = torch.ones_like(joint)
    for _ in range(max_steps):
        candidate = z[moving] + size[:, None] * step[moving]
        found, *others = _gauss_newton(rows.take(moving), candidate, module)
        gain = found - joint[moving]
        better, goes_on = gain > 0, gain > TOLERANCE
        at = moving[better]
        z[at], joint[at] = candidate[better], found[better]
        step[at], root[at] = (part[better] for part in others)
        size = torch.where(better, torch.clamp(size / SHORTER, max=1.0), size * SHORTER)
        goes_on |= ~better & (size > SHORTEST)
        moving, size = moving[goes_on], size[goes_on]
        if len(moving) == 0:
            break
    return gaussian_around(z, root), joint


def _gauss_newton(rows, z, module):
    """Return the log joint density, the full step and the root of the precision.

    z : shape (n, k).
    """
    location, jacobian = module.decoder.value_and_jacobian(z)
    kind, observed = module.likelihood, rows.observed.to(z.dtype)
    entries = kind.entry_log_prob(rows.X, location)
    joint = (entries * observed).sum(1) + standard_normal_log_prob(z)
    slope, information = kind.derivatives(rows.X, location)
    slope = kind.spread(observed) * slope
    gradient = (jacobian @ slope[..., None])[..., 0] - z
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    root = torch.linalg.cholesky(eye + kind.precision(information, observed, jacobian))
    step = torch.cholesky_solve(gradient[..., None], root)[..., 0]
    return joint, step, root
