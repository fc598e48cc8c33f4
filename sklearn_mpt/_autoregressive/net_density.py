"""The density of a fitted net, on tensors."""

from sklearn_mpt._autoregressive.order_mixture import OrderMixture
from sklearn_mpt._numbers import FLOAT_BYTES


class MaskedDensity(OrderMixture):
    """The mixture of the orders of a net, and its conditionals."""

    def __init__(self, module, units, orders):
        super().__init__(units, orders)
        self.module = module

    @property
    def row_bytes(self):
        """Approximate memory for scoring a row along all orders."""
        module = self.module
        width = 2 * module.n_inputs + 4 * module.n_outputs + 4 * module.net.width
        return FLOAT_BYTES * width * len(self.orders)

    def log_prob(self, rows, visible, hidden):
        return self.module(rows, visible).log_prob(rows)

    def log_prob_of_entries(self, rows, visible, column):
        return self.module.entries(rows, visible, column).log_prob(rows)

    def mean(self, rows, visible):
        return self.module(rows, visible).expect()

    def draw_entries(self, rows, visible, column, uniform):
        return self.module.entries(rows, visible, column).draw(uniform)

    def last_hidden(self, X):
        """Return the last hidden layer given the present entries; (n, width)."""
        rows, present = self._read(X)
        return self.module.last_hidden(rows, present)
