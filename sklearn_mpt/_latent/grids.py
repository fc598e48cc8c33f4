r"""Grids of nodes of z over its prior, which all rows share.

On a grid of spacing h, the integral of a Gaussian with standard deviation s has a
relative error of :math:`2 \exp(-2 (\pi s / h)^2)`: 5e-9 at h = s, 3e-4 at 1.5 s, 3e-3
at 1.75 s. So the narrowest posterior of a row determines the spacing: models give the
ratio h / s. The radius says how much of the prior is left out.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._latent.quadrature import (
    Nodes,
    log_mean_exp,
    mean_and_covariance,
    moments,
)
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._numbers import TINY

# Radius of a grid, in standard deviations of z, where rows whose posterior reaches the
# edge get nodes of their own: 4e-8 of the prior is beyond in one dimension, 1e-6 in
# three. And the radius where all rows use the grid: 8e-11 and 4e-9.
RADIUS, WIDE_RADIUS = 5.5, 6.5
# Of the two grids of a pair: their results differ if a posterior reaches the edge.
PAIR_RADII = (WIDE_RADIUS, RADIUS)
# Largest spacing h of a grid, in standard deviations of z, for which the error
# exp(-2 pi^2 / h^2) of an integral over the prior is 4e-14.
MAX_SPACING = 0.8


class Population(NamedTuple):
    """Normal distributions of z, whose components are independent, one for each group.

    mean : (g, k). deviation : standard deviations, (g, k).
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    @classmethod
    def standard(cls, n_dims, like):
        """Return one standard normal distribution."""
        mean = like.new_zeros(1, n_dims)
        return cls(mean, torch.ones_like(mean))

    def log_density(self, z):
        """Return the log-density of z in each group at nodes; (g, s)."""
        unit = (z - self.mean[:, None]) / self.deviation[:, None]
        constant = self.deviation.log().sum(1) + 0.5 * z.shape[1] * LOG_2PI
        return -0.5 * (unit**2).sum(2) - constant[:, None]

    def limits(self, radius):
        """Return the lower and upper limits of z in all groups together; (k,) each."""
        # radius : distance from the means, in standard deviations.
        low = (self.mean - radius * self.deviation).amin(0)
        return low, (self.mean + radius * self.deviation).amax(0)

    def ellipsoid(self, radius):
        """Return the centre and the half axes within these limits; lists (k,)."""
        low, high = self.limits(radius)
        return (0.5 * (low + high)).tolist(), (0.5 * (high - low)).tolist()


class PriorGrid(NamedTuple):
    """Equally spaced nodes in an ellipsoid; every other one is between the rest.

    z : (s, k). is_even : True for every other node, bool (s,). steps : spacings, (k,).
    """

    z: torch.Tensor
    is_even: torch.Tensor
    steps: tuple[float, ...]

    @classmethod
    def over(cls, population, steps, radius, shift=0.0):
        """Return a grid over a population."""
        # radius : in standard deviations. shift : offset of the nodes from the centre,
        # in steps; a number or (k,).
        centre, radii = population.ellipsoid(radius)
        counts = [math.ceil(r / h) + 1 for h, r in zip(steps, radii, strict=True)]
        axes = np.meshgrid(*[np.arange(-n, n) for n in counts], indexing="ij")
        numbers = np.stack(axes, -1).reshape(-1, len(steps))
        offsets = np.asarray(steps) * (shift + numbers)
        inside = ((offsets / np.asarray(radii)) ** 2).sum(1) <= 1
        z = torch.from_numpy((np.asarray(centre) + offsets)[inside])
        is_even = torch.from_numpy(numbers.sum(1)[inside] % 2 == 0)
        like = population.mean
        steps = tuple(float(h) for h in steps)
        return cls(z.to(like), is_even.to(like.device), steps)

    def log_weight(self, population):
        """Return log weights of the nodes, which add up to 1 in each group; (g, s)."""
        log_density = population.log_density(self.z)
        return log_density - log_density.logsumexp(1, keepdim=True)

    def covers(self, population, radius):
        """Return whether the grid reaches the limits of a population, within a step."""
        low, high = population.limits(radius)
        step = self.z.new_tensor(self.steps)
        is_low, is_high = self.z.amin(0) <= low + step, self.z.amax(0) >= high - step
        return bool((is_low & is_high).all())


def spacings(precision, ratio, widest):
    """Return the spacing of a grid that resolves posteriors of z; tensor (k,)."""
    # precision : largest precision of a posterior in each dimension, (k,). ratio :
    # spacing in standard deviations of the narrowest posterior. widest : the largest
    # spacing, in units of z.
    return (ratio / precision.sqrt()).clamp(max=widest)


def count_nodes(steps, radii):
    """Return the approximate number of nodes of a grid, a float."""
    # radii : half axes of the ellipsoid that it fills, (k,).
    ball = math.pi ** (len(steps) / 2) / math.gamma(len(steps) / 2 + 1)
    return ball * math.prod(r / h for r, h in zip(radii, steps, strict=True))


def coarsen(steps, max_nodes, radii, widest=math.inf):
    """Return the spacing of a grid with about `max_nodes` nodes, if it has more."""
    while count_nodes(steps, radii) > 1.001 * max_nodes and min(steps) < widest:
        n_free = sum(h < widest for h in steps)
        factor = (count_nodes(steps, radii) / max_nodes) ** (1 / n_free)
        steps = [min(factor * h, widest) for h in steps]
    return steps


def prior_grid(steps, like, radius=RADIUS, shift=0.0):
    """Return nodes over the standard normal, (s, k), with log weights, (s,)."""
    population = Population.standard(len(steps), like)
    grid = PriorGrid.over(population, steps, radius, shift)
    return grid.z, grid.log_weight(population)[0]


def resolves(r, z, steps, radius, max_ratio=1.5, max_edge_weight=1e-3):
    """Return for which rows a grid is fine and wide enough; bool, (n,)."""
    # r : posterior weights of the nodes, (n, s). max_ratio : largest ratio of the
    # spacing and the standard deviation of a component of a posterior, given all
    # others. max_edge_weight : largest weight of a posterior near the edge of the grid.
    n_dims = len(steps)
    u = z / z.new_tensor(steps)
    _, covariance = mean_and_covariance(r @ moments(u), n_dims)
    covariance.diagonal(dim1=1, dim2=2).add_(1e-6)
    precision = torch.linalg.inv_ex(covariance).inverse.diagonal(dim1=1, dim2=2)
    is_edge = ((z**2).sum(1) > (radius - 1) ** 2).to(r.dtype)
    return (precision.amax(1) < max_ratio**2) & (r @ is_edge < max_edge_weight)


class PriorGrids:
    """Two grids over the prior, each between the nodes of the other, for all rows.

    Their mean is a grid twice as fine, whose error their difference exceeds by far, in
    rows that the first grid resolves.

    grids : tuples of nodes (s, k) and log weights (s,). steps : their spacing. radius :
        that of the first grid.
    """

    is_shared, is_random = True, False

    def __init__(self, grids, steps, radius):
        self.groups = grids
        self._steps, self._radius = steps, radius

    @classmethod
    def of_steps(cls, steps, like):
        """Return the pair of grids with these spacings, (k,)."""
        grids = [
            prior_grid(steps, like, radius, shift)
            for radius, shift in zip(PAIR_RADII, (0.0, 0.5), strict=True)
        ]
        return cls(grids, steps, PAIR_RADII[0])

    def unresolved(self, r):
        """Return which rows the first grid does not resolve; bool, (n,)."""
        # r : posterior weights of its nodes, (n, s).
        return ~resolves(r, self.groups[0][0], self._steps, self._radius)

    def place(self, group, posteriors, rows):
        return Nodes(*group)

    def combine_logs(self, logs):
        """Log integrals of the groups, of shape (2, n): value and error."""
        return log_mean_exp(logs, 0), (logs[0] - logs[1]).abs()

    def combine(self, averages, logs):
        """Posterior averages of the groups, of shape (2, n, d), and error."""
        weight = torch.softmax(logs, 0)[..., None]
        return (weight * averages).sum(0), (averages[0] - averages[1]).abs()


class PopulationGrid:
    """A grid over a population for all rows, which estimates its error by its halves.

    grid : PriorGrid. log_weight : of its nodes, (s,).
    """

    is_shared, is_random = True, False

    def __init__(self, grid, log_weight):
        halves = grid.is_even, ~grid.is_even
        self.groups = [(grid.z[half], log_weight[half]) for half in halves]

    def unresolved(self, r):
        return r.new_zeros(len(r), dtype=torch.bool)

    def place(self, group, posteriors, rows):
        return Nodes(*group)

    def combine_logs(self, logs):
        """Log integrals of the halves, of shape (2, n): value and error."""
        # each half is a grid; the error of both is about the square of that of one
        return logs.logsumexp(0), (logs[0] - logs[1]) ** 2

    def combine(self, averages, logs):
        """Posterior averages of the halves, of shape (2, n, d), and error."""
        average = (torch.softmax(logs, 0)[..., None] * averages).sum(0)
        size = average.abs().clamp(min=TINY)
        return average, (averages[0] - averages[1]) ** 2 / size
