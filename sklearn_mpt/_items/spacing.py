r"""The spacing of grids over abilities: as fine as posteriors and curves need.

The error for a Gaussian posterior is that of `prior_grid`, :math:`2 \exp(-2 (\pi s /
h)^2)` at the spacing h and the standard deviation s. A logistic curve of slope a has
poles at a distance of :math:`\pi / a` from the real line, which cause an error of about
:math:`2 \exp(-2 \pi^2 / (a h))`. So h is at most a ratio times s, and the same
ratio times 1 / a.
"""

import torch

from sklearn_mpt._integration.integrals import MAX_GRID_NODES
from sklearn_mpt._integration.prior_grid import (
    MAX_SPACING,
    WIDE_RADIUS,
    PriorGrid,
    coarsen,
    spacings,
)
from sklearn_mpt._numbers import KEPT_ENTRIES, TINY

# Spacing over the standard deviation of the narrowest posterior, by the number of
# dimensions. The relative errors are 2e-7, 2e-5 and 9e-4 in training, where nodes in
# more dimensions cost more, and at most 2e-6 in scores.
TRAINING = {1: 1.1, 2: 1.3, 3: 1.6}
SCORING = {1: 0.7, 2: 0.9, 3: 1.2}
# Nodes in each dimension that are taken even if their table does not fit the memory
# that is otherwise used: their spacing is 0.13 and 0.42 standard deviations of z.
MIN_PER_DIM = {1: 101, 2: 31, 3: 31}


def spacing(items, point, population, ratios):
    """Return spacings that resolve all posteriors, or the finest that memory allows.

    ratios : `TRAINING` or `SCORING`.
    """
    n_dims = items.n_dims
    ratio = ratios[n_dims]
    widest = MAX_SPACING * population.deviation.amin(0)
    precision = max_precision(items, point, population, widest)
    steepest = items.max_slopes(point).clamp(min=TINY)
    widest = torch.minimum(widest, ratio / steepest)
    steps = spacings(precision, ratio, widest).tolist()
    n_fitting = KEPT_ENTRIES // (len(items) * items.max_categories)
    max_nodes = max(min(MAX_GRID_NODES, n_fitting), MIN_PER_DIM[n_dims] ** n_dims)
    return coarsen(steps, max_nodes, population.ellipsoid(WIDE_RADIUS)[1])


def max_precision(items, point, population, steps):
    """Return the largest precision of posteriors in each dimension, at nodes; (k,).

    steps : spacings of the nodes, (k,).
    """
    z = PriorGrid.over(population, steps.tolist(), WIDE_RADIUS).z
    information = (items.slopes(point) ** 2).T @ items.eta_information(point, z)
    return information.amax(1) + population.deviation.amax(0) ** -2
