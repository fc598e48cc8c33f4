r"""Grids of nodes of z over its prior, which all rows share.

On a grid of spacing h, the integral of a Gaussian with standard deviation s has a
relative error of :math:`2 \exp(-2 (\pi s / h)^2)`: 5e-9 at h = s, 3e-4 at 1.5 s, 3e-3
at 1.75 s. So the narrowest posterior of a row determines the spacing.
"""

import math

import numpy as np
import torch

from sklearn_mpt._integration.quadrature import (
    Nodes,
    log_mean_exp,
    mean_and_covariance,
    moments,
)

RADIUS = 5.5  # of a grid, in standard deviations of z: 4e-8 of the prior is beyond


def spacings(precision, ratio, widest):
    """Return the spacing of a grid that resolves posteriors of z; tensor (k,).

    precision : largest precision of a posterior in each dimension, (k,). ratio :
    spacing in standard deviations of the narrowest posterior. widest : the largest
    spacing, in units of z.
    """
    return (ratio / precision.sqrt()).clamp(max=widest)


def count_nodes(steps, radii):
    """Return the approximate number of nodes of a grid, a float.

    radii : half axes of the ellipsoid that it fills, (k,).
    """
    ball = math.pi ** (len(steps) / 2) / math.gamma(len(steps) / 2 + 1)
    return ball * math.prod(r / h for r, h in zip(radii, steps, strict=True))


def coarsen(steps, max_nodes, radii, widest=math.inf):
    """Return the spacing of a grid with about `max_nodes` nodes, if it has more."""
    while count_nodes(steps, radii) > 1.001 * max_nodes and min(steps) < widest:
        n_free = sum(h < widest for h in steps)
        factor = (count_nodes(steps, radii) / max_nodes) ** (1 / n_free)
        steps = [min(factor * h, widest) for h in steps]
    return steps


def lattice(steps, centre, radii, shift=0.0):
    """Return equally spaced nodes in an ellipsoid; arrays.

    steps, centre, radii : spacings, centre and half axes, (k,). shift : offset of the
    nodes from the centre, in steps; a number or (k,).

    Returns the nodes, (s, k), and which of them belong to a grid that is coarser by
    leaving out every other node, bool (s,).
    """
    places = [
        np.arange(-math.ceil(r / h) - 1, math.ceil(r / h) + 1)
        for h, r in zip(steps, radii, strict=True)
    ]
    places = np.stack(np.meshgrid(*places, indexing="ij"), -1).reshape(-1, len(steps))
    coordinates = np.asarray(steps) * (np.asarray(shift) + places)
    inside = ((coordinates / np.asarray(radii)) ** 2).sum(1) <= 1
    is_even = places.sum(1) % 2 == 0
    return (np.asarray(centre) + coordinates)[inside], is_even[inside]


def prior_grid(steps, like, radius=RADIUS, shift=0.0):
    """Return nodes in a ball, (s, k), with log weights of the standard normal, (s,)."""
    n_dims = len(steps)
    z, _ = lattice(steps, [0.0] * n_dims, [radius] * n_dims, shift)
    z = torch.from_numpy(z).to(like)
    log_weight = -0.5 * (z**2).sum(1)
    return z, log_weight - log_weight.logsumexp(0)


def resolves(r, z, steps, radius, max_ratio=1.5, max_edge_weight=1e-3):
    """Return for which rows a grid is fine and wide enough; bool, (n,).

    r : posterior weights of the nodes, (n, s). max_ratio : largest ratio of the spacing
    and the standard deviation of a component of a posterior, given all others.
    max_edge_weight : largest weight of a posterior near the edge of the grid.
    """
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

    def unresolved(self, r):
        """Return which rows the first grid does not resolve; bool, (n,).

        r : posterior weights of its nodes, (n, s).
        """
        return ~resolves(r, self.groups[0][0], self._steps, self._radius)

    def place(self, group, posteriors, rows):
        return Nodes(*group)

    def combine_logs(self, logs):
        """Log integrals of the groups, of shape (2, n): value and error."""
        return log_mean_exp(logs, 0), (logs[0] - logs[1]).abs()

    def combine(self, averages, logs):
        """Posterior averages of the groups, of shape (2, n, d), and error."""
        share = torch.softmax(logs, 0)[..., None]
        return (share * averages).sum(0), (averages[0] - averages[1]).abs()
