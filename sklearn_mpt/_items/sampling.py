r"""Items with more abilities than grids serve: importance sampling around each row.

Nodes of a row come from a Gaussian at the mode of its posterior, and from the prior, as
for linear models of many latent variables. Expectations over the population, which
involve no rows, are averages over quasi-random points of the prior.
"""

from operator import add
from typing import NamedTuple

import torch

from sklearn_mpt._base.density import Density, IntegratedDensity, Units
from sklearn_mpt._fitting.priors import UNSEEN_COUNT
from sklearn_mpt._integration.integrals import IMPORTANCE_POINTS, importance, rows_of
from sklearn_mpt._integration.quadrature import (
    gaussian_around,
    logsumexp_and_softmax,
    normal_nodes,
    widened,
)
from sklearn_mpt._integration.row_nodes import RowNodes
from sklearn_mpt._items.abilities import covariances, modes, standard_prior
from sklearn_mpt._items.answers import MISSING, at_answers
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.objective import ItemObjective, block_sums
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CACHE_ENTRIES, chunk_slices

# Points of averages over a population of many abilities. Averages of probabilities of
# items have errors below 1e-3.
POPULATION_POINTS = 2**12


class ItemJoint:
    """Joint distribution of standard normal abilities and answers, for `integrals`.

    Parameters
    ----------
    items : Items
    point : Tensor
        Flat parameters of the items.
    """

    def __init__(self, items, point):
        self.items = items
        self.point = point

    @property
    def n_dims(self):
        return self.items.n_dims

    @property
    def width(self):
        return len(self.items) * self.items.max_categories

    def entry_log_prob(self, X, z):
        """Return log p(x_j | z) at nodes of each row, (n, s, d); X : 0 if missing."""
        entries = z.new_empty(*z.shape[:2], X.shape[1])
        for block in self.items.blocks:
            likelihood, location = block.likelihood_and_locations(
                self.point, z.flatten(0, 1)
            )
            location = location.unflatten(0, z.shape[:2])
            answers = X[:, None, block.items]
            entries[..., block.items] = likelihood.entry_log_prob(answers, location)
        return entries

    def propose(self, rows):
        return [self.posterior_near(rows, rows.X.new_zeros(len(rows.X), self.n_dims))]

    def propose_fewer(self, rows, posteriors):
        return self.propose(rows)

    def posterior_near(self, rows, start):
        """Return a Gaussian at the mode of each row, wider than the posterior there.

        start : where the search for the mode starts, (n, k).
        """
        X = torch.where(rows.observed, rows.X, torch.nan)
        z, curvature = modes(self.items, self.point, X, standard_prior, start)
        eye = identity(self.n_dims, z)
        is_peak = covariances(curvature).isfinite().all(2).all(1)
        curvature = torch.where(is_peak[:, None, None], curvature, eye)
        return widened(gaussian_around(z, torch.linalg.cholesky(curvature)))


class PopulationPoints:
    """Quasi-random points of standard normal abilities, in the place of a grid."""

    def __init__(self, n_dims, like):
        self.z, self._log_weight = normal_nodes(POPULATION_POINTS, n_dims, [0], like)

    def log_weight(self, population):
        """Return the log weights, which are equal, of the only group; (1, s)."""
        return self._log_weight[None]


class SampledItemDensity(IntegratedDensity, ItemDensity):
    """Items with given parameters and many abilities, z standard normal.

    Parameters
    ----------
    items, point, population, group_weight, root
        As for `ItemDensity`.
    seed : tuple of int
        Of quasi-random points.
    """

    def __init__(self, items, point, population, group_weight, root, seed):
        grid = PopulationPoints(items.n_dims, point)
        ItemDensity.__init__(self, items, point, grid, population, group_weight, root)
        scoring = importance(IMPORTANCE_POINTS, items.n_dims, point.device, seed)
        units = Units(point.new_zeros(()), point.new_ones(()))
        joint = ItemJoint(items, point)
        IntegratedDensity.__init__(self, joint, units, scoring, scoring, seed)

    @property
    def row_bytes(self):
        integrated_bytes = IntegratedDensity.row_bytes.fget(self)
        return integrated_bytes + ItemDensity.row_bytes.fget(self)

    def is_open(self, X):
        return ItemDensity.is_open(self, X)  # no answer is an interval

    def chain_log_prob(self, X, orders):
        return Density.chain_log_prob(self, X, orders)  # rows share no nodes

    def expect(self, X):
        answer_prob = self._average(self._flat_probs, X, "Probabilities")
        return self.most_probable(answer_prob.unflatten(1, self.prob.shape[:2]), X)

    def _flat_probs(self, z):
        """Return probabilities of all answers at nodes (n, s, k); (n, s, d c)."""
        prob = self.items.prob(self.items.log_prob(self.point, z.flatten(0, -2)))
        return prob.flatten(0, 1).T.unflatten(0, z.shape[:-1])

    def decode(self, Z):
        return ItemDensity.decode(self, Z)

    def latent_mean(self, X):
        return super().latent_mean(X) @ self.root

    def latent_moments(self, X, log_weight=None):
        mean, covariance = super().latent_moments(X)
        return mean @ self.root, self.root.T @ covariance @ self.root

    def draw(self, X, rng):
        prob = self._flat_probs(self._draw_latent(rows_of(X), rng)[:, None])[:, 0]
        prob = prob.unflatten(1, self.prob.shape[:2])
        return self.draw_answers(prob, X, rng)

    def on_finer_grid(self):
        return self

    def draw_latent(self, X, rng, n_draws, log_weight=None):
        rows = rows_of(X)
        rows = rows._replace(posteriors=self.joint.propose(rows))
        draws = [self._draw_latent(rows, rng) for _ in range(n_draws)]
        return torch.stack(draws, 1) @ self.root


class AnswersAtNodes(NamedTuple):
    """Rows, and curves at the nodes of each.

    answered : for each block of items, answers, 0 where missing, and whether they are
    present; (j, n) each.
    """

    value: torch.Tensor  # log-likelihood, (n,)
    r: torch.Tensor  # posterior weights of the nodes, (n, s)
    weight: torch.Tensor  # sample weights, (n,)
    z: torch.Tensor  # shape: (n s, k)
    curves: list
    answered: list

    def counts(self, i):
        """Return expected numbers of answers to the items of a block; (j, c, n s)."""
        (at, present), log_prob = self.answered[i], self.curves[i].log_prob
        weight = torch.where(present[..., None], self.weight[:, None] * self.r, 0.0)
        counts = torch.zeros_like(log_prob).unflatten(2, self.r.shape)
        at = at[:, None, :, None].expand(-1, 1, -1, self.r.shape[1])
        return counts.scatter_(1, at, weight[:, None]).flatten(2)

    def scores(self, blocks):
        """Return the scores of rows at their nodes, (n, s, p), 0 where missing."""
        parts = []
        for block, curve, answered in zip(
            blocks, self.curves, self.answered, strict=True
        ):
            at, present = answered
            scores = block.scores(curve, self.z).transpose(0, 1)
            chosen = [at_answers(one, at, self.r.shape[1]) for one in scores]
            chosen = torch.where(present[..., None], torch.stack(chosen), 0.0)
            parts.append(chosen.permute(2, 3, 1, 0).flatten(2))
        return torch.cat(parts, 2)


class SampledObjective(ItemObjective):
    """The log marginal likelihood of answers, by nodes around each row.

    Nodes move to the modes of the rows after every few steps. In between, the objective
    is a smooth function of the parameters, whose maximum is partly an error of the
    nodes: only values at nodes that have just moved are compared.

    Parameters
    ----------
    answers, layout, priors, unseen
        As for `ItemObjective`.
    seed : tuple of int
        Of quasi-random points.
    steps_between_moves : int
        Number of steps after which nodes move.
    """

    has_node_noise = True

    def __init__(self, *args, seed=(0,), steps_between_moves=4, **params):
        super().__init__(*args, **params)
        self.seed, self.steps_between_moves = seed, steps_between_moves
        codes = self.answers.codes.double()
        self._rows = rows_of(torch.where(codes == MISSING, torch.nan, codes))
        self._set_row_nodes(is_fine=False)

    def _set_row_nodes(self, is_fine):
        shape = len(self.answers), self.layout.items.n_dims
        device = self.answers.codes.device
        self._row_nodes = RowNodes(*shape, device, self.seed, is_fine, n_groups=1)
        self._is_fine, self._nodes, self._n_steps = is_fine, None, 0

    def place_nodes(self, point):
        """Move the nodes if it is time; return whether they have moved."""
        items = self.layout.items
        is_time = self._n_steps % self.steps_between_moves == 0
        self._n_steps += 1
        if self._nodes is not None and not is_time:
            return False
        if self.grid is None:
            self.grid = PopulationPoints(items.n_dims, point)
        joint = ItemJoint(items, point[: items.n_parameters])
        posterior = self._row_nodes.posterior(self._rows, joint, slice(None))
        self._nodes = self._row_nodes.place(self._rows, posterior, 0)
        return True

    def refine(self):
        if self._is_fine:
            return False
        self._set_row_nodes(is_fine=True)
        return True

    def blocks(self, point):
        """Yield the log-likelihood and the nodes of rows, block by block.

        The derivatives of all answers at the nodes of a block fit the caches.
        """
        items, nodes = self.layout.items, self._nodes
        n_nodes, n_dims = nodes.z.shape[1:]
        n_entries = n_nodes * items.n_parameters * items.max_categories
        for rows in chunk_slices(len(self.answers), n_entries, CACHE_ENTRIES):
            z = nodes.z[rows].reshape(-1, n_dims)
            curves, codes = items.curves(point, z), self.answers.codes[rows].long()
            total, answered = nodes.log_weight[rows].clone(), []
            for block, curve in zip(items.blocks, curves, strict=True):
                at = codes[:, block.items].T
                present, at = at != MISSING, at.clamp(min=0)
                log_prob = at_answers(curve.log_prob, at, n_nodes)
                total += torch.where(present[..., None], log_prob, 0.0).sum(0)
                answered.append((at, present))
            value, r = logsumexp_and_softmax(total)
            weight = self.answers.weight[rows]
            yield AnswersAtNodes(value, r, weight, z, curves, answered)

    def _sums(self, point):
        blocks = self.layout.items.blocks
        value, sums = 0.0, [(0.0, 0.0)] * len(blocks)
        for part_value, curves, counts, z in self._parts(point):
            value += part_value
            for i, part in enumerate(zip(blocks, curves, counts, strict=True)):
                sums[i] = tuple(map(add, sums[i], block_sums(*part, z)))
        return value, sums, point.new_zeros(1, len(self.grid.z))

    def _parts(self, point):
        """Yield values, curves, numbers of answers by block, and nodes: of rows first.

        Then those of half a person for each answer that nobody gave.
        """
        items, z = self.layout.items, self.grid.z
        for rows in self.blocks(point):
            counts = map(rows.counts, range(len(items.blocks)))
            yield float(rows.weight @ rows.value), rows.curves, counts, rows.z
        if self.unseen is not None:
            curves, weight = items.curves(point, z), UNSEEN_COUNT / len(z)
            added = self.unseen[:, :, None] * point.new_full((len(z),), weight)
            value = float((added * items.table(curves)).sum())
            counts = (added[b.items, : b.kind.n_categories] for b in items.blocks)
            yield value, curves, counts, z
