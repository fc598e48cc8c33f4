r"""Items with more abilities than grids serve: quasi-random points of the prior.

All rows share them, which takes one product of matrices, and answers to few items leave
posteriors wide, with edges where slopes are long. Where posteriors are too narrow for
the points, each row has nodes of its own, from a Gaussian at the mode of its posterior
and from the prior, as for linear models of many latent variables.
"""

from functools import cached_property
from operator import add
from typing import NamedTuple

import torch

from sklearn_mpt._base.density import IntegratedDensity, Units
from sklearn_mpt._fitting.priors import UNSEEN_COUNT
from sklearn_mpt._integration.integrals import (
    IMPORTANCE_POINTS,
    effective_number,
    importance,
    random_error,
    rows_of,
)
from sklearn_mpt._integration.quadrature import (
    MAX_GRID_DIMS,
    gaussian_around,
    logsumexp_and_softmax,
    normal_nodes,
    widened,
)
from sklearn_mpt._integration.row_nodes import RowNodes
from sklearn_mpt._items.abilities import covariances, modes, standard_prior
from sklearn_mpt._items.answers import MISSING, Answers, at_answers, log_joint
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.objective import ItemObjective, block_sums
from sklearn_mpt._matrices import identity
from sklearn_mpt._numbers import CACHE_ENTRIES, KEPT_ENTRIES, chunk_slices

# Points of averages over a population of many abilities. Averages of probabilities of
# items have errors below 1e-3.
POPULATION_POINTS = 2**12
# Powers of 2: points of the prior that all rows share, in training the first for four
# abilities, twice as many for each more, up to the second; and for scores of rows.
TRAINING_POWERS, SCORING_POWER = (13, 15), 15
# Standard error of random points over that of as many quasi-random ones as score rows.
# What it states, beside the errors, is in benchmarks/RESULTS.rst, "Mechanisms".
SCORING_GAIN = 5
# Nats of all rows, for each parameter, that points of the prior may be expected to lose
# in training: half a percent of what a parameter gains by fitting noise.
MAX_LOSS = 0.0025


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

    def __init__(self, n_dims, n_points, like):
        self.z, self._log_weight = normal_nodes(n_points, n_dims, [0], like)

    @classmethod
    def fitting(cls, items, power, like):
        """Return 2^power points, or as many as have a table that fits the memory."""
        n_fitting = KEPT_ENTRIES // (len(items) * items.max_categories)
        power = min(power, max(POPULATION_POINTS, n_fitting).bit_length() - 1)
        return cls(items.n_dims, 2**power, like)

    def log_weight(self, population):
        """Return the log weights, which are equal, of the only group; (1, s)."""
        return self._log_weight[None]


class RowNodesDensity(IntegratedDensity, ItemDensity):
    """Items with given parameters and many abilities, z standard normal, by nodes.

    Each row has its own.

    Parameters
    ----------
    items, point, population, group_weight, root
        As for `ItemDensity`.
    seed : tuple of int
        Of quasi-random points.
    """

    def __init__(self, items, point, population, group_weight, root, seed):
        grid = PopulationPoints(items.n_dims, POPULATION_POINTS, point)
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


class SampledItemDensity(RowNodesDensity):
    """Items whose rows share points of the prior, where these are accurate.

    Parameters are those of `RowNodesDensity`, which serves the other rows.
    """

    @property
    def row_bytes(self):
        return super().row_bytes + self._at_points.row_bytes

    @cached_property
    def _at_points(self):
        grid = PopulationPoints.fitting(self.items, SCORING_POWER, self.point)
        population = self.population, self.group_weight, self.root
        return ItemDensity(self.items, self.point, grid, *population)

    def lml(self, X):
        value, error = _by_points(X, self._at_points)
        parts = value, error, effective_number(error, SCORING_GAIN)
        rest = (error > self.scoring.tolerance).nonzero()[:, 0]
        if len(rest):
            for part, of_rest in zip(parts, super().lml(X[rest]), strict=True):
                part[rest] = of_rest
        is_empty = X.isnan().all(1)
        for part in parts[:2]:
            part.masked_fill_(is_empty, 0.0)
        return parts

    def conditional_log_prob(self, X, mask):
        return self._joined("conditional_log_prob", X, mask.expand_as(X))

    def expect(self, X):
        return self._joined("expect", X)

    def latent_mean(self, X):
        return self._joined("latent_mean", X)

    def latent_moments(self, X, log_weight=None):
        return self._joined("latent_moments", X)

    def _joined(self, name, *args):
        """Return what a method returns, by shared points where these are accurate.

        args : X and other tensors, each of n rows.
        """
        _, error = _by_points(args[0], self._at_points)
        is_near = error <= self.scoring.tolerance
        parts, indices = [], []
        for density, which in ((self._at_points, is_near), (super(), ~is_near)):
            rows = which.nonzero()[:, 0]
            if len(rows):
                parts.append(getattr(density, name)(*(arg[rows] for arg in args)))
                indices.append(rows)
        order = torch.cat(indices).argsort()
        if isinstance(parts[0], tuple):
            return tuple(torch.cat(part)[order] for part in zip(*parts, strict=True))
        return torch.cat(parts)[order]


def _by_points(X, density):
    """Return the scores of rows by points that they share, and errors; (n,) each."""
    table, log_weight = density.table, density.log_weight[None]
    codes = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
    answers, (value, error) = Answers(codes, table.shape[1]), X.new_empty(2, len(X))
    for rows in answers.blocks(table.shape[2]):
        joint = log_joint(answers, rows, table, log_weight)
        value[rows], error[rows] = joint.logsumexp(1), random_error(joint, SCORING_GAIN)
    return value, error


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
    """The log marginal likelihood of answers, by points of the prior.

    If they are too few for the posteriors of the rows, at the start or at the end,
    nodes around each row follow, which move to the modes of the rows after every few
    steps. In between, the objective is a smooth function of the parameters, whose
    maximum is partly an error of the nodes: only values at nodes that have just moved
    are compared.

    Parameters
    ----------
    answers, layout, priors, unseen
        As for `ItemObjective`.
    seed : tuple of int
        Of the nodes around rows.

    Attributes
    ----------
    steps_between_moves : int
        Number of steps after which nodes around rows move.
    """

    least_tol, steps_between_moves = 0.1 * MAX_LOSS, 4

    def __init__(self, *args, seed, **params):
        super().__init__(*args, **params)
        self.seed = seed
        self._row_nodes, self._is_fine = None, False

    @property
    def has_node_noise(self):
        return self._row_nodes is not None

    def place_nodes(self, point):
        """Move the nodes if it is time; return whether they have moved."""
        items, is_first = self.layout.items, self.grid is None
        if is_first:
            least, most = TRAINING_POWERS
            power = min(least + items.n_dims - MAX_GRID_DIMS - 1, most)
            self.grid = PopulationPoints.fitting(items, power, point)
            if not (self.has_node_noise or self._has_enough_points(point)):
                self.take_row_nodes(is_fine=False)
        if not self.has_node_noise:
            return is_first
        is_time = self._n_steps % self.steps_between_moves == 0
        self._n_steps += 1
        if not is_time:
            return False
        joint = ItemJoint(items, point[: items.n_parameters])
        posterior = self._row_nodes.posterior(self._rows, joint, slice(None))
        self._nodes = self._row_nodes.place(self._rows, posterior, 0)
        return True

    def refine(self, point):
        is_rough = self.has_node_noise or not self._has_enough_points(point)
        if self._is_fine or not is_rough:
            return False
        self.take_row_nodes()
        return True

    def take_row_nodes(self, is_fine=True):
        X, n_dims = self.answers.as_floats, self.layout.items.n_dims
        self._rows = rows_of(X)
        args = len(X), n_dims, X.device, self.seed, is_fine
        self._row_nodes = RowNodes(*args, n_groups=1)
        self._is_fine, self._n_steps = is_fine, 0

    def _has_enough_points(self, point):
        return self._expected_loss(point) < MAX_LOSS * len(point)

    def _expected_loss(self, point):
        """Return how much points of the prior are expected to lose, in nats.

        The logarithm of an average of points loses half of its relative variance.
        """
        items, z = self.layout.items, self.grid.z
        table, answers = items.table(items.curves(point, z)), self.answers
        log_weight, loss = self.grid.log_weight(None), 0.0
        for rows in answers.blocks(len(z)):
            error = random_error(log_joint(answers, rows, table, log_weight))
            loss += 0.5 * float(answers.weight[rows] @ error**2)
        return loss

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
        if not self.has_node_noise:
            return super()._sums(point)
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
