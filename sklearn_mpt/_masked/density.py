"""Densities along orders, imputation and draws of a fitted net, on tensors.

Rows are (n, d) in double precision, NaN where missing.
"""

import math

import torch

from sklearn_mpt._latent.density import Density
from sklearn_mpt._measure.contract import masked_score

FLOAT_BYTES = 8
CHAIN_BYTES = 2**25  # memory of the rows that are scored along an order at a time


class MaskedDensity(Density):
    """The mixture of the orders of a net, and its conditionals.

    Parameters
    ----------
    module : MaskedModule
        In double precision.
    units : Units
    orders : int Tensor of shape (n_orders, d)
        Orders of the columns.
    """

    def __init__(self, module, units, orders):
        self.module, self.units, self.orders = module, units, orders

    @property
    def row_bytes(self):
        """Approximate memory for scoring a row."""
        module = self.module
        return FLOAT_BYTES * (
            2 * module.n_inputs + 4 * module.n_outputs + 4 * module.net.width
        )

    def _given(self, rows, visible):
        """Return conditionals of standardised rows, given their visible entries."""
        return self.module(rows, visible)

    def _read(self, X):
        """Return standardised rows with 0 in gaps, and which entries are present."""
        present = ~X.isnan()
        return torch.where(present, self.units.standardise(X), 0.0), present

    def _in_units(self, log_prob, asked):
        return torch.where(asked, log_prob - self.units.log_scale, 0.0)

    def conditional_log_prob(self, X, mask):
        """Return log p(x_j | visible) where hidden and present, else 0; (n, d)."""
        rows, present = self._read(X)
        mask = mask.expand_as(present)
        log_prob = self._given(rows, present & ~mask).log_prob(rows)
        return self._in_units(log_prob, mask & present)

    def lml(self, X):
        """Return the log-density of the mixture of the orders, and 0.0; (n,) each."""
        rows, present = self._read(X)
        along = torch.stack(
            [self._along(rows, present, order) for order in self.orders]
        )
        scale = (present * self.units.log_scale).sum(1)
        n_orders = len(self.orders)
        value = torch.logsumexp(along, 0) - math.log(n_orders) - scale
        value = torch.where(present.any(1), value, 0.0)
        return value, torch.zeros_like(value)

    def _along(self, rows, present, order):
        """Return the log-probability of each row along one order; (n,)."""
        total = rows.new_zeros(len(rows))
        visible = torch.zeros_like(present)
        for feature in order.tolist():
            asked = present[:, feature].nonzero()[:, 0]
            if len(asked):
                some = rows[asked]
                log_prob = self._given(some, visible[asked]).log_prob(some)
                total[asked] += log_prob[:, feature]
            visible[:, feature] = present[:, feature]
        return total

    def mean_masked_scores(self, X, masks, n_rows):
        """Return the masked score averaged over rows, for each mask; (n_masks,).

        n_rows : largest number of rows that are processed at a time.
        """
        parts = X.split(n_rows)
        return torch.stack(
            [
                torch.cat(
                    [
                        masked_score(self.conditional_log_prob(p.double(), m[None]), m)
                        for p in parts
                    ]
                ).mean()
                for m in masks
            ]
        )

    def mean_chain_scores(self, X, orders):
        """Return scores along orders, as in the contract; (2, n_orders, d)."""
        scores = X.new_zeros(2, len(orders), X.shape[1], dtype=torch.float64)
        n_rows = max(1, CHAIN_BYTES // self.row_bytes)
        for i, order in enumerate(orders):
            for first in range(0, len(X), n_rows):
                part = X[first : first + n_rows].double()
                own = order[first : first + n_rows] if order.ndim == 2 else order[None]
                scores[:, i] += self._chain_sums(part, own.expand(len(part), -1))
        return scores / len(X)

    def _chain_sums(self, X, order):
        """Return sums over rows of masked scores and next terms, by place; (2, d)."""
        place, d = order.argsort(1), X.shape[1]
        sums = X.new_zeros(2, d)
        for t in range(d):
            mask = place >= t
            log_prob = self.conditional_log_prob(X, mask)
            sums[0, t] = log_prob.sum() / (d - t)
            sums[1, t] = torch.where(place == t, log_prob, 0.0).sum()
        return sums

    def last_hidden(self, X):
        """Return the last hidden layer given the present entries; (n, width)."""
        rows, present = self._read(X)
        return self.module.last_hidden(rows, present)

    def expect(self, X):
        """Return E[x | present entries]; (n, d)."""
        rows, present = self._read(X)
        return self.units.restore(self._given(rows, present).expect())

    def draw(self, X, rng):
        """Draw missing entries given present ones; (n, d).

        Columns are drawn one after the other, in a random order for each row. Rows
        without any present entry use one of the orders of the mixture, so that they are
        draws from its density.
        """
        noise = X.new_tensor(rng.random((len(X), X.shape[1], 3)))
        rows, present = self._read(X)
        keys = noise[..., 0]
        of_mixture = (keys[:, 0] * len(self.orders)).long()
        places = self.orders.argsort(1)[of_mixture].to(keys)
        keys = torch.where(present.any(1, keepdim=True), keys, places)
        # present entries are last in the order, and are not drawn
        order = torch.where(present, keys + 2 * X.shape[1], keys).argsort(1)
        n_missing = (~present).sum(1)
        visible = present.clone()
        for t in range(int(n_missing.max()) if len(X) else 0):
            which = (n_missing > t).nonzero()[:, 0]
            feature = order[which, t]
            given = self._given(rows[which], visible[which])
            drawn = given.draw(noise[which, :, 1:])
            rows[which, feature] = drawn.gather(1, feature[:, None])[:, 0]
            visible[which, feature] = True
        return self.units.restore(rows)
