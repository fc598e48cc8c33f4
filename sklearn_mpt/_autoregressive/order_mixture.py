"""Densities of models that have conditionals only: mixtures of a few orders.

The conditionals of a net, or of one predictor for each column, belong to no joint
distribution. Along an order of the columns their product is a density, and the mixture
of the products along a few fixed orders is the density of the model.
"""

import math
from abc import abstractmethod

import numpy as np
import torch

from sklearn_mpt._base.density import Density, Units
from sklearn_mpt._numbers import CHUNK_BYTES


def draw_orders(n_orders, n_features, rng):
    """Draw distinct orders of the columns, or all if there are no more."""
    n_orders = min(n_orders, math.factorial(n_features))
    orders: dict[tuple[int, ...], None] = {}
    while len(orders) < n_orders:
        order = tuple(rng.permutation(n_features).tolist())
        orders |= dict.fromkeys([order, order[::-1]])
    return np.array(list(orders)[:n_orders], dtype=np.int64)


class OrderMixture(Density):
    """The mixture of the products of conditionals along a few orders.

    A subclass gives the conditionals of standardised rows. Arguments `rows` are (n, d),
    with any number where not visible; `visible` is bool (n, d).
    """

    def __init__(self, units: Units, orders: torch.Tensor):
        self.units, self.orders = units, orders

    @abstractmethod
    def log_prob(self, rows, visible, hidden):
        """Return log p(x_j | visible) of the hidden entries; (n, d), any elsewhere."""

    @abstractmethod
    def log_prob_of_entries(self, rows, visible, column):
        """Return log p(x_j | visible) of one entry of each row; (n,)."""

    @abstractmethod
    def mean(self, rows, visible):
        """Return the expected value, or most probable category, of all that is not
        visible; (n, d), any elsewhere.
        """

    @abstractmethod
    def draw_entries(self, rows, visible, column, uniform):
        """Draw one entry of each row given the visible ones; (n,)."""

    def _read(self, X):
        """Return standardised rows with 0 in gaps, and which entries are present."""
        present = ~X.isnan()
        return torch.where(present, self.units.standardise(X), 0.0), present

    def conditional_log_prob(self, X, mask):
        """Return log p(x_j | visible) where hidden and present, else 0; (n, d)."""
        rows, present = self._read(X)
        is_target = mask.expand_as(present) & present
        log_prob = self.log_prob(rows, present & ~mask, is_target)
        return torch.where(is_target, log_prob - self.units.log_scale, 0.0)

    def lml(self, X):
        """Return the log-density of the mixture of the orders, and 0.0; (n,) each."""
        along = self.chain_log_prob(X, self.orders[None]).sum(2)
        value = torch.logsumexp(along, 1) - math.log(len(self.orders))
        value = torch.where(X.isnan().all(1), 0.0, value)
        return value, torch.zeros_like(value)

    def chain_log_prob(self, X, orders):
        """Return log p(x_j | columns before j in the order); (n, n_orders, d)."""
        rows, present = self._read(X)
        terms = rows.new_zeros(len(rows), *orders.shape[1:])
        positions = orders.argsort(-1)
        columns = torch.arange(X.shape[1], device=X.device)
        n_at_a_time = max(1, CHUNK_BYTES // self.row_bytes // max(1, len(X)))
        for block in columns.split(n_at_a_time):
            column, row = present[:, block].T.nonzero().T
            column = block[column]
            position = positions[row] if len(positions) > 1 else positions[:1]
            # shape: (n_entries, n_orders, d)
            position = position.expand(len(row), -1, -1)
            at = column[:, None, None].expand(-1, position.shape[1], 1)
            visible = (position < position.gather(-1, at)) & present[row][:, None]
            if not visible.numel():
                continue
            log_prob = self.log_prob_of_entries(
                rows[row][:, None].expand_as(visible).flatten(0, 1),
                visible.flatten(0, 1),
                at.flatten(),
            )
            terms[row, :, column] = log_prob.unflatten(0, visible.shape[:2])
        return torch.where(present[:, None], terms - self.units.log_scale, 0.0)

    def expect(self, X):
        """Return E[x | present entries]; (n, d)."""
        rows, present = self._read(X)
        return self.units.restore(self.mean(rows, present))

    def draw(self, X, rng):
        """Draw missing entries given present ones; (n, d).

        Columns are drawn one after the other, in a random order for each row. Rows
        without any present entry use one of the orders of the mixture, so that they are
        draws from its density.
        """
        noise = X.new_tensor(rng.random((len(X), X.shape[1], 3)))
        rows, present = self._read(X)
        keys = noise[..., 0]
        order_index = (keys[:, 0] * len(self.orders)).long()
        positions = self.orders.argsort(1)[order_index].to(keys)
        keys = torch.where(present.any(1, keepdim=True), keys, positions)
        # present entries are last in the order, and are not drawn
        order = torch.where(present, keys + 2 * X.shape[1], keys).argsort(1)
        n_missing = (~present).sum(1)
        visible = present.clone()
        for t in range(int(n_missing.max()) if len(X) else 0):
            row_index = (n_missing > t).nonzero()[:, 0]
            column = order[row_index, t]
            rows[row_index, column] = self.draw_entries(
                rows[row_index], visible[row_index], column, noise[row_index, :, 1:]
            )
            visible[row_index, column] = True
        return self.units.restore(rows)
