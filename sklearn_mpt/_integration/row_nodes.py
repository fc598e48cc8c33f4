"""Nodes around the posterior of each row, whose modes are kept from step to step."""

import torch

from sklearn_mpt._integration.quadrature import (
    FINE_TRAINING_POINTS,
    MAX_GRID_DIMS,
    TRAINING_POINTS,
    grids,
    mixtures,
)

# Number of dimensions -> nodes in each dimension. With more, fits score the same to
# .002 nats on six tables.
ROW_GRID = {1: 15, 2: 5, 3: 5}


class RowNodes:
    """Place nodes for each row, around the mode of its posterior.

    The search for the mode of a row starts at its mode in the step before.

    n_rows : number of rows. is_fine : whether sampled nodes are many. n_groups : number
    of independent groups of sampled nodes, of which each step takes the next. Their
    errors average out over steps: the error of an average over many steps is that of a
    step, divided by the square root of `n_groups`. Their points take little memory, as
    rows share them.
    """

    def __init__(self, n_rows, n_dims, device, seed, is_fine=False, n_groups=16):
        shape = n_rows, n_dims
        self._modes = torch.zeros(shape, dtype=torch.float64, device=device)
        self.is_sampled = n_dims > MAX_GRID_DIMS
        if self.is_sampled:
            counts = FINE_TRAINING_POINTS if is_fine else TRAINING_POINTS
            self.rule = mixtures(counts, n_dims, device, seed, n_groups)
            self.n_nodes = sum(counts)
            return
        n_per_dim = ROW_GRID[n_dims]
        self.rule = grids((n_per_dim,), n_dims, device)
        self.n_nodes = n_per_dim**n_dims

    def posterior(self, rows, joint, index):
        """Return Gaussians at the modes of rows, whose indices are `index`.

        joint : its method `posterior_near` returns them, near given points, (n, k).
        """
        posterior = joint.posterior_near(rows, self._modes[index])
        self._modes[index] = posterior.mean
        return posterior

    def place(self, rows, posterior, iteration):
        """Return the nodes of rows around their `posterior`."""
        group = self.rule.groups[iteration % len(self.rule.groups)]
        return self.rule.place(group, [posterior], rows)
