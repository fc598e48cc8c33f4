r"""Nodes of z for items: a grid over the distributions of z in all groups.

For a Gaussian posterior the error is that of `prior_grid`. For a logistic curve of
slope a it is about :math:`\exp(-2 \pi^2 / (a h))` at the spacing h.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._integration.prior_grid import coarsen, lattice, spacings
from sklearn_mpt._likelihoods.gaussian import LOG_2PI
from sklearn_mpt._numbers import KEPT_ENTRIES

# Radius of a grid, in standard deviations of z. At most 4e-9 of the prior is beyond.
RADIUS = 6.5


class GridRules(NamedTuple):
    """Spacings and sizes of grids, by the number of dimensions.

    Attributes
    ----------
    ratios : Mapping
        Spacing in standard deviations of the narrowest posterior.
    max_spacing : float
        Largest spacing over this ratio, in standard deviations of z.
    max_slope_spacing : float
        Largest spacing over this ratio, in units of 1 / (steepest slope).
    max_nodes : Mapping
        Largest number of nodes. It is smaller where the log-probabilities of all
        answers at the nodes would have more than `KEPT_ENTRIES` entries.
    min_nodes : Mapping
        Number of nodes in each dimension that is allowed for tables of any size.
    """

    ratios: Mapping[int, float]
    max_spacing: float = 0.7
    max_slope_spacing: float = 1.1
    max_nodes: Mapping[int, int] = {1: 2**13, 2: 2**14, 3: 2**15}
    min_nodes: Mapping[int, int] = {1: 101, 2: 31, 3: 31}


# For a Gaussian posterior the errors exp(-2 pi^2 / ratio^2) are 8e-8, 8e-6 and 4e-4 in
# training, where more dimensions cost more, and at most 1e-6 in scores.
TRAINING = GridRules({1: 1.1, 2: 1.3, 3: 1.6})
SCORING = GridRules({1: 0.7, 2: 0.9, 3: 1.2})


class Population(NamedTuple):
    """Normal distributions of z, one for each group.

    mean : (g, k). deviation : (g, k).
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def log_density(self, z):
        """Return the log-density of z in each group at nodes; (g, s)."""
        unit = (z - self.mean[:, None]) / self.deviation[:, None]
        constant = self.deviation.log().sum(1) + 0.5 * z.shape[1] * LOG_2PI
        return -0.5 * (unit**2).sum(2) - constant[:, None]


class LatentGrid(NamedTuple):
    """Nodes in a box; every other node belongs to a coarser grid.

    z : (s, k). is_even : (s,). log_cell : log of the volume of a cell, or
    of the cell of each node, (s,). steps : (k,).
    """

    z: torch.Tensor
    is_even: torch.Tensor
    log_cell: float | torch.Tensor
    steps: tuple[float, ...]

    def log_weight(self, population):
        """Return log weights of the nodes for each group; (g, s)."""
        return population.log_density(self.z) + self.log_cell


def grid_of(steps, population):
    """Return a grid with spacings `steps` over the range of z in all groups."""
    centre, radii = _extent(population)
    # the outermost nodes are as far from either end
    shift = [math.ceil(2 * r / h) % 2 / 2 for h, r in zip(steps, radii, strict=True)]
    z, is_even = lattice(steps, centre, radii, shift)
    like = population.mean
    return LatentGrid(
        torch.from_numpy(z).to(like),
        torch.from_numpy(is_even).to(like.device),
        float(np.log(steps).sum()),
        tuple(float(h) for h in steps),
    )


def _extent(population):
    """Return centre and half axes of the range of z in all groups, lists (k,)."""
    low = (population.mean - RADIUS * population.deviation).amin(0)
    high = (population.mean + RADIUS * population.deviation).amax(0)
    return (0.5 * (low + high)).tolist(), (0.5 * (high - low)).tolist()


def steps_for(items, point, population, rules):
    """Return spacings that resolve all posteriors, or the finest that memory allows."""
    n_dims = items.n_dims
    ratio = rules.ratios[n_dims]
    widest = rules.max_spacing * ratio * population.deviation.amin(0)
    coarse = grid_of(widest.tolist(), population).z
    curves = items.curves(point, coarse)
    slopes = items.slopes(point)
    information = (slopes**2).T @ items.eta_information(curves)
    precision = information.amax(1) + population.deviation.amax(0) ** -2
    for block in items.blocks:
        if block.kind.n_shape_slopes:
            shape_slopes = block.split(point)[1][:, : block.kind.n_shape_slopes]
            slopes[block.items, 0] = shape_slopes.abs().amax(1)
    steepest = slopes.abs().amax(0)
    widest_by_slope = rules.max_slope_spacing * ratio / steepest.clamp(min=1e-3)
    widest = torch.minimum(widest, widest_by_slope)
    steps = spacings(precision, ratio, widest).tolist()
    most = min(
        rules.max_nodes[n_dims], KEPT_ENTRIES // (len(items) * items.max_categories)
    )
    most = max(most, rules.min_nodes[n_dims] ** n_dims)
    return coarsen(steps, most, _extent(population)[1])
