r"""The log marginal likelihood of item parameters, with its gradient and a metric.

Let :math:`r_{is}` be the posterior weights of nodes :math:`z_s` given the answers of
row i. The gradient of the log marginal likelihood is that of the expected
log-likelihood of complete data (Fisher's identity): the derivatives of the item curves,
weighted by the expected numbers of answers
:math:`n_{jcs} = \sum_{i: x_{ij} = c} r_{is}` [1]_. The metric is the Fisher information
of complete data, one block for each item, as in the M-step of EM.

References
----------
.. [1] R. D. Bock and M. Aitkin, "Marginal maximum likelihood estimation of item
   parameters: application of an EM algorithm", Psychometrika 46, 1981.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._items.solver import ItemSolver
from sklearn_mpt._latent.answers import expectations
from sklearn_mpt._latent.grids import (
    MAX_SPACING,
    RADIUS,
    WIDE_RADIUS,
    Population,
    PriorGrid,
    coarsen,
    spacings,
)
from sklearn_mpt._latent.integrals import MAX_GRID_NODES
from sklearn_mpt._latent.likelihood_rows import SPACINGS
from sklearn_mpt._numbers import KEPT_ENTRIES, TINY
from sklearn_mpt._optim.weights import (
    UNSEEN_COUNT,
    slope_penalty,
)


class Priors(NamedTuple):
    """Normal priors of slopes and of logits of guessing.

    slope : standard deviation, or None. guessing : mean and standard deviation of the
    logit, or None.
    """

    slope: float | None = None
    guessing: tuple[float, float] | None = None


NO_PRIORS = Priors()


class ParameterLayout(NamedTuple):
    """Layout of the flat parameters: those of items, then the free ones of z.

    free_mean, free_variance : whether mean and variance of z are free, bool (g,).
    is_fixed : which parameters of items stay as they are, bool (p,); None if none does.
    """

    items: object
    free_mean: np.ndarray
    free_variance: np.ndarray
    is_fixed: np.ndarray | None = None

    @property
    def n_parameters(self):
        return self.items.n_parameters + int(
            self.free_mean.sum() + self.free_variance.sum()
        )

    @property
    def n_free(self):
        n_fixed = 0 if self.is_fixed is None else int(self.is_fixed.sum())
        return self.n_parameters - n_fixed

    @property
    def population_slices(self):
        """Slices of the free means and of the free log deviations."""
        first = self.items.n_parameters
        middle = first + int(self.free_mean.sum())
        return slice(first, middle), slice(middle, self.n_parameters)

    def population(self, point):
        n_dims, n_groups = self.items.n_dims, len(self.free_mean)
        mean, deviation = point.new_zeros(n_groups), point.new_ones(n_groups)
        means, deviations = self.population_slices
        mean[torch.from_numpy(self.free_mean)] = point[means]
        deviation[torch.from_numpy(self.free_variance)] = point[deviations].exp()
        return Population(
            mean[:, None].repeat(1, n_dims), deviation[:, None].repeat(1, n_dims)
        )

    def free(self, means, log_deviations):
        """Return what belongs to the free means and log deviations, of (g,) each."""
        parts = (means, self.free_mean), (log_deviations, self.free_variance)
        return torch.cat([part[torch.from_numpy(is_free)] for part, is_free in parts])

    def population_params(self, mean, variance):
        """Return the end of the flat parameters, given means and variances (g,)."""
        return np.concatenate(
            [mean[self.free_mean], 0.5 * np.log(variance[self.free_variance])]
        )


def prior_terms(priors, block, point):
    """Return gradient, curvature and value of minus the log prior of a block."""
    # The curvature is the diagonal of the Hessian. Tensors of shape (j, q), and a
    # float, in nats.
    values = point[block.parameters].reshape(len(block.items), block.width)
    gradient, curvature = torch.zeros_like(values), torch.zeros_like(values)
    penalty, columns = 0.0, block.slope_columns
    if values[:, columns].shape[1]:
        slope_gradient, slope_curvature, penalty = slope_penalty(
            values[:, columns], priors.slope
        )
        gradient[:, columns] += slope_gradient
        curvature[:, columns] += slope_curvature
    if priors.guessing is not None and block.kind.is_guessed:
        mean, deviation = priors.guessing
        standardised = (values[:, -1] - mean) / deviation
        gradient[:, -1] += standardised / deviation
        curvature[:, -1] += deviation**-2
        penalty += 0.5 * float((standardised**2).sum())
    return gradient, curvature, penalty


class Evaluation(NamedTuple):
    """The objective at given parameters: value, gradient (p,) and metric.

    metric : for each block of items, (j, q, q). population_metric : metric of the means
    and log deviations of z, (f,).
    """

    value: float
    gradient: torch.Tensor
    metric: list
    population_metric: torch.Tensor


class ItemObjective:
    """The log marginal likelihood of answers, with priors.

    Parameters
    ----------
    answers : Answers
    layout : ParameterLayout
    priors : Priors
    unseen : Tensor of bool, of shape (d, c)
        Categories that nobody chose.

    Attributes
    ----------
    max_spacing_ratio : float
        The grid changes where its spacing is so many times as wide as needed. If
        mean or variance of z are free, it reaches as far as that of scores, so that the
        population may move a little before it changes.
    """

    max_spacing_ratio = 1.15

    def __init__(self, answers, layout, priors=NO_PRIORS, unseen=None):
        self.answers = answers
        self.layout = layout
        self.priors = priors
        self.unseen = None if unseen is None or not bool(unseen.any()) else unseen
        self.grid = None
        is_fixed, device = layout.is_fixed, answers.codes.device
        self._is_fixed = None if is_fixed is None else torch.tensor(is_fixed).to(device)

    def place_nodes(self, point):
        """Change the grid if the parameters need it; return whether it changed."""
        layout = self.layout
        population = layout.population(point)
        steps = spacing(layout.items, point, population, TRAINING)
        if self.grid is not None:
            pairs = zip(self.grid.steps, steps, strict=True)
            is_fine = all(old < self.max_spacing_ratio * new for old, new in pairs)
            if is_fine and self.grid.covers(population, RADIUS):
                return False
        may_move = layout.n_parameters > layout.items.n_parameters
        radius = WIDE_RADIUS if may_move else RADIUS
        self.grid = PriorGrid.over(population, steps, radius)
        return True

    def expect(self, point):
        """Return curves, log-likelihood and expected numbers at given parameters."""
        items = self.layout.items
        curves = items.curves(point, self.grid.z)
        log_weight = self.grid.log_weight(self.layout.population(point))
        return curves, expectations(self.answers, items.table(curves), log_weight)

    def _with_unseen(self, point, curves, expected):
        """Add half a person for each answer that nobody gave."""
        log_weight = self.grid.log_weight(self.layout.population(point))
        added = self.unseen[:, :, None] * UNSEEN_COUNT * log_weight[0].exp()
        value = float((added * self.layout.items.table(curves)).sum())
        return expected._replace(
            value=expected.value + value, counts=expected.counts + added
        )

    def __call__(self, point):
        if not self.layout.items.is_valid(point):
            return None
        value, sums, groups = self._sums(point)
        return self.evaluation(point, value, sums, groups, groups.sum(1))

    def evaluation(self, point, value, sums, groups, n_rows):
        """Return the evaluation from sums over rows; None if it is not finite.

        Parameters
        ----------
        point : Tensor of shape (p,)
        value : float
        sums : list
            Gradient (j, q) and information (j, q, q) of each block of items, without
            priors, which are added to the latter.
        groups : Tensor of shape (g, s)
            Derivatives of the value in the log weights of nodes.
        n_rows : Tensor of shape (g,)
            Number of rows of each group.
        """
        gradient, metric = torch.zeros_like(point), []
        for block, (block_gradient, information) in zip(
            self.layout.items.blocks, sums, strict=True
        ):
            prior_gradient, curvature, penalty = prior_terms(self.priors, block, point)
            value -= penalty
            gradient[block.parameters] = (block_gradient - prior_gradient).flatten()
            information.diagonal(dim1=1, dim2=2).add_(curvature)
            if self._is_fixed is not None:
                is_fixed = self._is_fixed[block.parameters].view(len(block.items), -1)
                information = _without(information, is_fixed)
            metric.append(information)
        if self._is_fixed is not None:
            gradient[: len(self._is_fixed)][self._is_fixed] = 0.0
        if not math.isfinite(value):
            return None
        first = self.layout.items.n_parameters
        scores = population_scores(self.layout, point, self.grid.z)
        gradient[first:] = torch.einsum("gfs,gs->f", scores, groups)
        population_metric = self._population_metric(point, n_rows)
        return Evaluation(value, gradient, metric, population_metric)

    def _sums(self, point):
        """Return the log-likelihood, gradient and information of each block, groups."""
        # groups : expected numbers of rows at nodes, (g, s).
        curves, expected = self.expect(point)
        if self.unseen is not None:
            expected = self._with_unseen(point, curves, expected)
        sums = []
        for block, curve in zip(self.layout.items.blocks, curves, strict=True):
            counts = expected.counts[block.items, : block.kind.n_categories]
            sums.append(block_sums(block, curve, counts, self.grid.z))
        return expected.value, sums, expected.groups

    def solver(self, point, tol, rng, is_all, n_before):
        """Return the solver that starts from a point; see `ItemSolver`."""
        return ItemSolver(self, point, tol, n_before)

    def _population_metric(self, point, n_rows):
        """Return the metric of the free means and log deviations; (f,)."""
        # n_rows : in each group, (g,).
        deviation = self.layout.population(point).deviation[:, 0]
        return self.layout.free(n_rows / deviation**2, 2 * n_rows)


def population_scores(layout, point, z):
    """Return derivatives of the log density of z in free means and log deviations."""
    # Shape (g, f, s): for each group, parameter and node.
    population = layout.population(point)
    difference = z[:, 0] - population.mean[:, :1]
    variance = population.deviation[:, :1] ** 2
    mean_scores, deviation_scores = difference / variance, difference**2 / variance - 1
    both = torch.cat([_each_alone(mean_scores), _each_alone(deviation_scores)], 1)
    return both[:, are_free(layout)]


def _each_alone(scores):
    """Return what each group has in a row of its own, 0 elsewhere; (g, g, s)."""
    return torch.diag_embed(scores.mT).movedim(0, 2)


def are_free(layout):
    """Return which of all means and of all log deviations are free; bool (2 g,)."""
    return torch.from_numpy(np.concatenate([layout.free_mean, layout.free_variance]))


def _without(information, is_fixed):
    """Return the information of free parameters: fixed ones are apart from them."""
    # information : (j, q, q). is_fixed : bool (j, q).
    is_free = ~is_fixed
    both_free = is_free[:, None] & is_free[..., None]
    kept = torch.where(both_free, information, 0.0)
    return kept + torch.diag_embed(is_fixed.to(information.dtype))


def block_sums(block, curve, counts, z):
    """Return the gradient (j, p) of expected log-probabilities, and the information."""
    # The information, (j, p, p), is that of complete data.
    n_rows = counts.sum(1)  # shape: (j, s)
    if block.kind.is_logistic:
        return _of_logits(block, curve, counts[:, 1], n_rows, z)
    prob = curve.log_prob.exp()
    scores = block.scores(curve, z)
    gradient = torch.einsum("jpcs,jcs->jp", scores, counts)
    weighted = scores * (n_rows[:, None] * prob)[:, None]
    information = weighted.flatten(2) @ scores.flatten(2).mT
    return gradient, information


def _of_logits(block, curve, n_ones, n_rows, z):
    """Compute `block_sums` for two categories whose logit is linear in z."""
    ones = torch.ones_like(z[:, :1])
    z1 = torch.cat([z, ones], 1) if block.kind.has_slope else ones
    wrong, right = curve.eta[:, 1], -curve.eta[:, 0]  # probabilities
    expected = n_rows * right
    gradient = (n_ones - expected) @ z1
    outer = (z1[:, :, None] * z1[:, None]).flatten(1)
    information = (expected * wrong) @ outer
    return gradient, information.unflatten(1, (z1.shape[1], -1))


# Spacing over the standard deviation of the narrowest posterior, by the number of
# dimensions, in training and in scores, whose relative errors are at most 2e-6.
TRAINING = SPACINGS
SCORING = {1: 0.7, 2: 0.9, 3: 1.2}
# Nodes in each dimension that are taken even if their table does not fit the memory
# that is otherwise used: their spacing is 0.13 and 0.42 standard deviations of z.
MIN_PER_DIM = {1: 101, 2: 31, 3: 31}


def spacing(items, point, population, ratios):
    """Return spacings that resolve all posteriors, or the finest that memory allows."""
    # A logistic curve of slope a has poles at a distance of pi / a from the real line,
    # so the spacing is at most a ratio times 1 / a, beside that of Gaussian posteriors.
    # ratios : `TRAINING` or `SCORING`.
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
    """Return the largest precision of posteriors in each dimension, at nodes; (k,)."""
    # steps : spacings of the nodes, (k,).
    z = PriorGrid.over(population, steps.tolist(), WIDE_RADIUS).z
    information = (items.slopes(point) ** 2).T @ items.eta_information(point, z)
    return information.amax(1) + population.deviation.amax(0) ** -2
