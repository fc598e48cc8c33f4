r"""The density of a fitted item response model.

All rows share the nodes of one grid, so the conditionals of all rows are a product of
two matrices. With the posterior weights :math:`r_s` of nodes given the visible answers,
:math:`p(x_j = c \mid x_R) = \sum_s r_s \, p(x_j = c \mid z_s)`.
"""

import torch

from sklearn_mpt._base.density import LatentDensity, torch_modes
from sklearn_mpt._latent.answers import MISSING, Answers, log_joint
from sklearn_mpt._latent.grids import WIDE_RADIUS, PriorGrid
from sklearn_mpt._latent.quadrature import mean_and_covariance, moments
from sklearn_mpt._matrices import drawn_codes, median_codes
from sklearn_mpt._numbers import FLOAT_BYTES, TINY

# Smaller errors of integration, in nats, are reported as 0, as for linear models.
TOLERANCE = 1e-4
# Ratio of the spacing of integrals to that of the nodes from which z is drawn. Draws
# are uniform in the cell of a node, which adds a twelfth of the squared spacing to
# their variance: less than 1% of that of a posterior, unless there would be more nodes
# than the next number.
SPACING_RATIO, MAX_DRAWN = 4, 2**14


class ItemDensity(LatentDensity):
    """Items with given parameters, and the distribution of z.

    Parameters
    ----------
    items : Items
    point : Tensor
        Flat parameters of the items. With several dimensions z is standard normal.
    grid : PriorGrid
    population : Population
    group_weight : Tensor of shape (g,)
        Proportion of each group, for rows whose group is not given.
    root : Tensor of shape (k, k)
        The matrix F: z F are the abilities in the coordinates of users.
    """

    def __init__(self, items, point, grid, population, group_weight, root):
        self.items = items
        self.point = point
        self.grid = grid
        self.population = population
        self.group_weight = group_weight
        self.root = root
        self.table = items.log_prob(point, grid.z)
        self.prob = items.prob(self.table)
        self.group_log_weight = grid.log_weight(population)
        self.log_weight = (
            group_weight.log()[:, None] + self.group_log_weight
        ).logsumexp(0)
        self._ordered = torch.zeros(len(items), dtype=torch.bool, device="cpu")
        for block in items.blocks:
            self._ordered[block.items] = block.kind.is_ordered

    @property
    def n_items(self):
        return len(self.items)

    @property
    def row_bytes(self):
        n_answers = self.n_items * self.items.max_categories
        return FLOAT_BYTES * (4 * len(self.grid.z) + 4 * n_answers)

    def log_joint(self, X, observed=None, log_weight=None):
        """Return log p(observed answers, z) at nodes; (n, s)."""
        # log_weight : log weights of the nodes for each row, (n, s); None is that of
        # all groups together.
        if observed is not None:
            X = torch.where(observed, X, torch.nan)
        codes = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
        answers = Answers(codes, self.items.max_categories)
        all_rows = slice(None)
        if log_weight is None:
            return log_joint(answers, all_rows, self.table, self.log_weight[None])
        none = torch.zeros_like(self.log_weight[None])
        return log_joint(answers, all_rows, self.table, none) + log_weight

    def lml(self, X):
        value, error = self.grid.log_integral(self.log_joint(X))
        error = torch.where(error > TOLERANCE, error, 0.0)
        is_empty = X.isnan().all(1)
        return value.masked_fill(is_empty, 0.0), error.masked_fill(is_empty, 0.0)

    def row_log_weight(self, codes):
        """Return log weights of the nodes for each row, (n, s); None without groups."""
        # codes : of the group of each row, (n, 1), or None.
        return None if codes is None else self.group_log_weight[codes[:, 0].long()]

    def weights(self, X, observed=None, log_weight=None):
        """Return posterior weights of the nodes; (n, s)."""
        return self.log_joint(X, observed, log_weight).softmax(1)

    def marginal_reliability(self):
        """Return the reliability of each ability in the population; (k,)."""
        z, weights = self.grid.z, self.log_weight.exp()
        centred = z - weights @ z
        prior = torch.einsum("s,sk,sl->kl", weights, centred, centred)
        slopes = self.items.slopes(self.point)
        information = self.items.eta_information(self.point, z)
        information = torch.einsum("jk,jl,js->skl", slopes, slopes, information)
        posterior = torch.linalg.inv(information + torch.linalg.inv(prior))
        error = self.root.T @ torch.einsum("s,skl->kl", weights, posterior) @ self.root
        return 1 - error.diagonal() / (self.root.T @ prior @ self.root).diagonal()

    def answer_probs(self, weights):
        """Return probabilities of all answers, given weights of nodes; (n, d, c)."""
        flat = weights @ self.prob.flatten(0, 1).T
        return flat.unflatten(1, self.prob.shape[:2])

    def conditional_log_prob(self, X, mask):
        present = ~X.isnan()
        probs = self.answer_probs(self.weights(X, present & ~mask))
        return self._log_prob_of(X, probs, present & mask)

    def _log_prob_of(self, X, probs, is_target):
        codes = X.nan_to_num().long()[..., None]
        chosen = probs.gather(2, codes)[..., 0].clamp(min=TINY)
        return torch.where(is_target, chosen.log(), 0.0)

    def expect(self, X):
        """Return median answers, and the most probable ones of nominal items."""
        return self.most_probable(self.answer_probs(self.weights(X)), X)

    def most_probable(self, probs, X):
        """Return median or most probable answers from their probabilities."""
        # probs : shape (n, d, c).
        is_ordered = self._ordered.to(X.device)
        return torch.where(is_ordered, median_codes(probs), probs.argmax(2)).to(X)

    def decode(self, Z):
        """Return expected answers, as numbers, given abilities."""
        table = self.items.log_prob(self.point, self.z_of_abilities(Z))
        prob = self.items.prob(table)
        codes = torch.arange(
            self.items.max_categories, dtype=prob.dtype, device=prob.device
        )
        return torch.einsum("dcs,c->sd", prob, codes)

    def prob_of_abilities(self, theta):
        """Return probabilities of all answers, given abilities; an array (n, d, c)."""
        with torch_modes():
            z = self.z_of_abilities(theta)
            prob = self.items.prob(self.items.log_prob(self.point, z))
            return prob.permute(2, 0, 1).cpu().numpy()

    def z_of_abilities(self, theta):
        """Return the z that belong to abilities; (n, k)."""
        return torch.linalg.solve(self.root, theta, left=False)

    def latent_moments(self, X, log_weight=None):
        weights = self.weights(X, log_weight=log_weight)
        z = self.grid.z @ self.root
        return mean_and_covariance(weights @ moments(z), z.shape[1])

    def draw(self, X, rng):
        weights = self.weights(X)
        chosen = drawn_codes(weights, X.new_tensor(rng.random((len(X), 1))))
        return self.draw_answers(self.prob.permute(2, 0, 1)[chosen], X, rng)

    def draw_answers(self, prob, X, rng):
        """Draw answers to all items from their probabilities (n, d, c)."""
        level = X.new_tensor(rng.random((len(X), self.n_items, 1)))
        return drawn_codes(prob, level).to(X)

    def on_finer_grid(self):
        """Return this density on a finer grid, from which z is drawn."""
        n_dims = self.items.n_dims
        max_per_dim = (MAX_DRAWN / len(self.grid.z)) ** (1 / n_dims)
        factor = max(1.0, min(SPACING_RATIO, max_per_dim))
        steps = [h / factor for h in self.grid.steps]
        grid = PriorGrid.over(self.population, steps, WIDE_RADIUS)
        return ItemDensity(
            self.items, self.point, grid, self.population, self.group_weight, self.root
        )

    def draw_latent(self, X, rng, n_draws, log_weight=None):
        """Draw abilities given the answers; (n, n_draws, k)."""
        # A node is drawn by its weight, and then a uniform point in the cell around it.
        level = self.weights(X, log_weight=log_weight).cumsum(1)
        drawn = X.new_tensor(rng.random((len(X), n_draws)))
        chosen = torch.searchsorted(level, drawn).clamp(max=len(self.grid.z) - 1)
        cell = rng.random((len(X), n_draws, self.items.n_dims)) - 0.5
        z = self.grid.z[chosen] + X.new_tensor(cell * self.grid.steps)
        return z @ self.root
