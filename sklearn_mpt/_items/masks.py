r"""Training of item models by masks.

The objective of a row with m of its d items hidden, the set M, is
:math:`(d / m) \sum_{j \in M} \log p(x_j \mid x_R)`. Its mean over masks, with all sizes
equally likely, is the log marginal likelihood.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.masks import shared_masks
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import is_flat
from sklearn_mpt._items.answers import MISSING
from sklearn_mpt._items.training import (
    STEPS,
    Evaluation,
    ItemSolver,
    block_sums,
    solve_metric,
)
from sklearn_mpt._numbers import TINY

AUTO_MASKS = 32  # in each step, if n_masks is "auto"


class MaskedItemSolver(ItemSolver):
    """Steps by masks; with a uniform rate, followed by steps on the LML.

    The steps on the log marginal likelihood are left out if `n_masks` is an int.

    Parameters
    ----------
    objective, point, tol, n_before
        As in `ItemSolver`.
    rng : numpy.random.Generator
    mask_rate : "uniform", float or int
    n_masks : int or "auto"
    learning_rate : float
    """

    def __init__(
        self, objective, point, *, rng, mask_rate, n_masks, learning_rate, **settings
    ):
        super().__init__(objective, point, **settings)
        self.rng = rng
        self.mask_rate = mask_rate
        self.finishes = n_masks == "auto" and mask_rate == "uniform"
        self.n_masks = AUTO_MASKS if n_masks == "auto" else n_masks
        self.learning_rate = learning_rate
        self.is_masked = True
        self._average = None

    @property
    def result(self):
        return self.point if self._average is None else self._average

    def init(self, max_iter):
        self.objective.place_nodes(self.point)
        if self.objective(self.point) is None:
            raise FloatingPointError

    def step(self):
        if not self.is_masked:
            super().step()
            return
        count = len(self.loss_curve)
        self.objective.place_nodes(self.point)
        evaluation = self._masked()
        if not math.isfinite(evaluation.value):
            raise FloatingPointError
        direction = solve_metric(self.objective, evaluation, evaluation.gradient)
        size = self.learning_rate * falling_size(count)
        size = min(
            size, STEPS.max_masked_step / max(float(direction.abs().max()), TINY)
        )
        items = self.objective.layout.items

        def move(size):
            point = self.point + size * direction
            return point if items.is_valid(point) else None

        _, point = backtrack(move, STEPS.max_tries, size)
        if point is None:
            raise FloatingPointError
        self.point = point
        self.loss_curve.append(-evaluation.value / self.objective.answers.total)
        if not self.finishes:
            share = 2 / (count + 2)
            before = self.point if self._average is None else self._average
            self._average = torch.lerp(before, self.point, share)

    def terminate(self):
        if not self.is_masked:
            return super().terminate()
        curve = self.loss_curve
        if len(curve) < STEPS.min_masked_steps or len(curve) % STEPS.window:
            return False
        n_compared = len(curve) // 2 if not self.finishes else STEPS.window
        has_settled = is_flat(curve, n_compared, tol=0.0)
        if not self.finishes:
            return (has_settled and len(curve) >= 4 * STEPS.min_masked_steps) or len(
                curve
            ) >= STEPS.max_masked_steps
        if has_settled or len(curve) >= STEPS.max_masked_steps:
            self.is_masked = False
            self._evaluate()
        return False

    def _masked(self):
        """Return value, gradient and metric, with one mask for each row."""
        objective, point = self.objective, self.point
        items, answers = objective.layout.items, objective.answers
        d, z = len(items), objective.grid.z
        masks = shared_masks(self.mask_rate, self.n_masks, d, self.rng)
        masks = torch.from_numpy(masks).to(z.device)
        curves = items.curves(point, z)
        table, prob = items.table(curves), items.prob(curves)
        log_weight = objective.grid.log_weight(objective.layout.population(point))
        sums, value = MaskedSums.zeros(table, len(log_weight)), 0.0
        parts = np.array_split(self.rng.permutation(len(answers)), len(masks))
        for mask, rows in zip(masks, parts, strict=True):
            if len(rows) == 0:
                continue
            index = torch.from_numpy(rows).to(z.device)
            value += _add_masked(sums, answers, index, mask, table, prob, log_weight)
        gradient, metric = torch.zeros_like(point), []
        for block, curve in zip(items.blocks, curves, strict=True):
            n_rows = sums.row_counts[block.items][:, None] * curve.log_prob.exp()
            _, information = block_sums(block, curve, n_rows, z)
            scores = block.scores(curve, z)
            slopes = sums.slopes[block.items, : block.kind.n_categories]
            slope = torch.einsum("jpcs,jcs->jp", scores, slopes)
            value -= objective._add_priors(block, point, slope, information)
            gradient[block.parameters] = slope.flatten()
            metric.append(information)
        first = items.n_parameters
        gradient[first:] = objective._population_gradient(point, sums.group_slopes)
        population_metric = objective._population_metric(point, sums.group_rows)
        return Evaluation(value, gradient, metric, population_metric)


class MaskedSums(NamedTuple):
    """Sums over rows, each with a mask, to which those of other rows are added.

    slopes, group_slopes : derivatives of scores in the log-probabilities of answers,
    (d, c, s), and in the log weights of nodes for each group, (g, s). row_counts :
    expected numbers of rows with an answer to each item, (d, s). group_rows : numbers
    of rows of each group, (g,).
    """

    slopes: torch.Tensor
    group_slopes: torch.Tensor
    row_counts: torch.Tensor
    group_rows: torch.Tensor

    @classmethod
    def zeros(cls, table, n_groups):
        n_items, _, n_nodes = table.shape
        shapes = table.shape, (n_groups, n_nodes), (n_items, n_nodes), (n_groups,)
        return cls(*(table.new_zeros(shape) for shape in shapes))


def _add_masked(sums, answers, rows, mask, table, prob, log_weight):
    """Add the sums over rows with one mask to those before; return their score."""
    d, max_categories, _ = table.shape
    codes, weight = answers.codes[rows], answers.weight[rows]
    group = answers.group[rows]
    steps = torch.arange(max_categories, device=codes.device, dtype=torch.int8)
    indicators = (codes[..., None] == steps).double()  # shape: (n, d, c)
    observed = (indicators * (~mask)[:, None]).flatten(1)
    hidden = indicators[:, mask].flatten(1)
    r = torch.addmm(log_weight[group], observed, table.flatten(0, 1)).softmax(1)
    hidden_prob = prob[mask].flatten(0, 1)  # shape: (h c, s)
    average = torch.where(hidden > 0, r @ hidden_prob.T, 1.0).clamp(min=TINY)
    scale = weight * d / mask.sum()
    gain = scale[:, None] * hidden / average
    node_slopes = r * (gain @ hidden_prob - (scale * hidden.sum(1))[:, None])
    sums.slopes[mask] += (hidden_prob * (gain.T @ r)).unflatten(0, (-1, max_categories))
    sums.slopes.add_((observed.T @ node_slopes).unflatten(0, (d, max_categories)))
    weighted = weight[:, None] * r
    sums.row_counts.add_((codes != MISSING).double().T @ weighted)
    sums.group_slopes.index_add_(0, group, node_slopes)
    sums.group_rows.index_add_(0, group, weight)
    return float((scale[:, None] * average.log()).sum())
