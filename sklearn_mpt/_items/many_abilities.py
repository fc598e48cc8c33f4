"""Items of more abilities than grids serve: a linear model of the answers.

All slopes are free, so that the items are columns of a linear model. It is trained and
integrated as `MPTLinearVAE` is: by nodes around the posterior of each row.
"""

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import Units
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.guessing import Guessing
from sklearn_mpt._items.objective import Evaluation, prior_terms
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.information import information_by_nodes
from sklearn_mpt._latent.integrals import (
    IMPORTANCE_POINTS,
    importance,
    integrate_average,
    rows_of,
)
from sklearn_mpt._latent.likelihood_rows import LikelihoodRows, ObjectiveParams
from sklearn_mpt._latent.linear_map import LinearMap
from sklearn_mpt._latent.quadrature import normal_nodes
from sklearn_mpt._latent.sums import RowContext
from sklearn_mpt._likelihoods import Columns
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.levels import Ordinal
from sklearn_mpt._optim.natural import (
    Point,
)
from sklearn_mpt._optim.steps import (
    Ascent,
    NoisyAscent,
)

# Points of averages over a population. Those of probabilities have errors below 1e-3.
POPULATION_POINTS = 2**12
# Least tolerance of training, in nats of all rows for each parameter: half of a
# thousandth of what a parameter gains by fitting noise. Errors of nodes are larger.
LEAST_TOLERANCE = 0.00025


class LinearItems(NamedTuple):
    """Items as columns of a linear model.

    likelihood : of the columns. coefs : places of their coefficients, slopes and then
    the intercept, in the flat parameters, int (d, k + 1). shape_params : of the shape
    parameters, int (g,).
    """

    likelihood: Columns
    coefs: torch.Tensor
    shape_params: torch.Tensor

    @classmethod
    def of(cls, items):
        width = items.n_dims + 1
        kinds, index = [None] * len(items), [None] * len(items)
        for block in items.blocks:
            kind, count = block.kind.likelihood, block.kind.n_categories
            name = "partial_credit"
            if isinstance(kind, Bernoulli):
                name, count = "bernoulli", 1
            elif isinstance(kind, Ordinal):
                name = "ordinal"
            elif isinstance(kind, Guessing):
                name = Guessing.of_columns(2, len(block.items))
            for j, row in zip(block.items.tolist(), block.parameter_index, strict=True):
                kinds[j], index[j] = (name, count), row
        likelihood = Columns(*zip(*kinds, strict=True))
        order = torch.cat([columns for _, columns in likelihood._iter_parts()])
        shape_params = torch.cat([index[j][width:] for j in order.tolist()])
        return cls(likelihood, torch.stack([r[:width] for r in index]), shape_params)

    def point(self, flat):
        return Point(flat[self.coefs], flat[self.shape_params])

    def flat(self, point):
        """Return the flat parameters of a point, or what belongs to each, as arrays."""
        flat = point.coefs.new_empty(self.coefs.numel() + self.shape_params.numel())
        flat[self.coefs], flat[self.shape_params] = point
        return flat

    def joint(self, flat):
        coefs, shape_params = self.point(flat)
        likelihood = self.likelihood.at(shape_params)
        return LinearMap(coefs[:, :-1].T.contiguous(), coefs[:, -1], likelihood)


class ItemRows(LikelihoodRows):
    """The log marginal likelihood of answers, with a prior of guessing.

    linear : LinearItems. layout : ParameterLayout. priors : Priors.
    """

    def __init__(self, X, linear, layout, priors, context, is_fine=False):
        self.linear, self.layout, self.priors = linear, layout, priors
        is_fixed = np.zeros(layout.n_parameters, dtype=bool)
        if layout.is_fixed is not None:
            is_fixed = layout.is_fixed
        self._free = linear.point(torch.from_numpy(~is_fixed).to(X.device))
        self.moves_axes = bool(self._free.coefs.all())
        params = ObjectiveParams("lml", "auto", priors.slope)
        n_dims = layout.items.n_dims
        super().__init__(X, linear.likelihood, params, n_dims, context, is_fine)

    def exact_objective(self):
        """Return the objective with more sampled nodes; None if these are many."""
        if not self._is_coarse:
            return None
        args = self.X, self.linear, self.layout, self.priors, self.context
        return ItemRows(*args, is_fine=True)

    def sums(self, point, batch):
        sums = super().sums(point, batch)
        gradient, information = sums.gradient, sums.information
        coefs, shape_params = information.coefs, information.shape_params.clone()
        guessing, prior = self._guessing, self.priors.guessing
        of_shape = gradient.shape_params.clone()
        if prior is not None and len(guessing):
            standardised = (point.shape_params[guessing] - prior[0]) / prior[1]
            fraction = sums.n_rows / self.weights.total
            of_shape[guessing] -= fraction * standardised / prior[1]
            shape_params[guessing, 0] += fraction / prior[1] ** 2
            penalty = 0.5 * float((standardised**2).sum())
            sums = sums.lowered(penalty / self.weights.total)
        free = self._free
        both_free = free.coefs[:, None] & free.coefs[..., None]
        diagonal = coefs.diagonal(dim1=1, dim2=2)
        fixed_diagonal = torch.where(free.coefs, 0.0, diagonal)
        coefs = torch.where(both_free, coefs, 0.0) + torch.diag_embed(fixed_diagonal)
        gradient = Point(
            torch.where(free.coefs, gradient.coefs, 0.0),
            torch.where(free.shape_params, of_shape, 0.0),
        )
        if shape_params.numel():
            width = coefs.shape[1]
            feature = torch.as_tensor(self.likelihood.shape_param_features)
            cross = free.coefs[feature] & free.shape_params[:, None]
            shape_params[:, -width:] = torch.where(cross, shape_params[:, -width:], 0.0)
        information = information._replace(coefs=coefs, shape_params=shape_params)
        sums = sums._replace(gradient=gradient, information=information)
        if not self.moves_axes:
            sums = sums._replace(rescaling=torch.zeros_like(coefs[0]))
        return sums

    @cached_property
    def _guessing(self):
        """Places of the logits of guessing among the shape parameters."""
        names = self.layout.items.names
        features = self.likelihood.shape_param_features
        return [i for i, j in enumerate(features) if names[j] == "3pl"]


class ManyAbilities:
    """The log marginal likelihood of answers as a function of flat parameters.

    Parameters
    ----------
    answers : Answers
    layout : ParameterLayout
    priors : Priors
    seed : tuple of int
        Of quasi-random points.
    """

    def __init__(self, answers, layout, priors, seed):
        self.answers, self.layout, self.priors = answers, layout, priors
        self.linear, self.seed = LinearItems.of(layout.items), seed

    def rows(self, is_all=True, is_fine=False):
        """Return the objective of the rows."""
        weight = self.answers.weight.cpu().numpy()
        context = RowContext(seed=self.seed, weight=weight, is_all=is_all)
        args = self.linear, self.layout, self.priors, context
        return ItemRows(self.answers.as_floats, *args, is_fine=is_fine)

    def solver(self, flat, tol, rng, is_all, n_before):
        """Return the solver that starts from flat parameters; see `ItemSolver`."""
        objective, point = self.rows(is_all), self.linear.point(flat)
        if not is_all:
            return NoisyAscent.of_part(objective, point, n_before, rng=rng)
        tol = max(tol, LEAST_TOLERANCE) * len(flat) / self.answers.total
        return Ascent(objective, point, tol=tol)

    def __call__(self, flat):
        rows = self.rows(is_fine=True)
        (batch,) = rows.batches(np.random.default_rng(0))
        sums = rows.sums(self.linear.point(flat), batch)
        gradient = self.linear.flat(sums.gradient)
        return Evaluation(float(sums.value), gradient, [], gradient[:0])

    @torch.enable_grad()
    def observed_information(self, flat):
        """Return the information of flat parameters, with that of priors, (p, p)."""
        rows, joint = rows_of(self.answers.as_floats), self.linear.joint(flat)
        args = IMPORTANCE_POINTS[:1], joint.n_dims, flat.device, self.seed
        found = information_by_nodes(
            rows, self.answers.weight, joint, importance(*args)
        )
        order = torch.cat([self.linear.coefs.flatten(), self.linear.shape_params])
        whole = torch.empty_like(found)
        whole[order[:, None], order] = found
        for block in self.layout.items.blocks:
            curvature = prior_terms(self.priors, block, flat)[1].flatten()
            whole.diagonal()[block.parameters] += curvature
        return whole.detach().cpu().numpy()

    def place_nodes(self, flat):
        """Nodes are placed around the rows at each point."""


class ManyAbilitiesDensity(IntegratedDensity, ItemDensity):
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
        joint = LinearItems.of(items).joint(point)
        IntegratedDensity.__init__(self, joint, units, scoring, scoring, seed)

    @property
    def row_bytes(self):
        integrated_bytes = IntegratedDensity.row_bytes.fget(self)
        return integrated_bytes + ItemDensity.row_bytes.fget(self)

    def conditional_log_prob(self, X, mask):
        is_target = ~X.isnan() & mask
        probs = self._answer_probs(torch.where(is_target, torch.nan, X))
        return self._log_prob_of(X, probs, is_target)

    def expect(self, X):
        return self.most_probable(self._answer_probs(X), X)

    def _answer_probs(self, X):
        """Return probabilities of all answers given those of X, (n, d, c)."""
        function = partial(integrate_average, self._flat_probs)
        probs = self._estimate(function, self._rows(X), self.scoring)[0]
        probs = probs.unflatten(1, self.prob.shape[:2]).clamp(min=0)
        return probs / probs.sum(2, keepdim=True)

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

    def on_finer_grid(self):
        return self

    def draw_latent(self, X, rng, n_draws, log_weight=None):
        rows = rows_of(X)
        rows = rows._replace(posteriors=self.joint.propose(rows))
        draws = [self._draw_latent(rows, rng) for _ in range(n_draws)]
        return torch.stack(draws, 1) @ self.root


class PopulationPoints:
    """Quasi-random points of standard normal abilities, in the place of a grid."""

    def __init__(self, n_dims, like):
        self.z, self._log_weight = normal_nodes(POPULATION_POINTS, n_dims, [0], like)

    def log_weight(self, population):
        """Return the log weights, which are equal, of the only group; (1, s)."""
        return self._log_weight[None]
