r"""Training of item models by masks.

The objective of a row with m of its d items hidden, the set M, is
:math:`(d / m) \sum_{j \in M} \log p(x_j \mid x_R)`. Its mean over masks, with all sizes
equally likely, is the log marginal likelihood.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.masks import number_of_masks, shared_masks
from sklearn_mpt._fitting.natural_gradient import error_of_groups
from sklearn_mpt._fitting.noisy_steps import NoisySteps
from sklearn_mpt._fitting.phases import ends_without_masks
from sklearn_mpt._integration.masked_scores import masked_scores
from sklearn_mpt._items.answers import MISSING
from sklearn_mpt._items.objective import block_sums
from sklearn_mpt._items.solver import ItemSolver, shortened, solve_metric


class MaskedItemSolver(NoisySteps):
    """Natural steps by masks, which steps on the LML may follow.

    The log marginal likelihood follows a uniform rate, unless `n_masks` is an int.

    Parameters
    ----------
    objective : ItemObjective
    point : Tensor of shape (p,)
        Parameters at the start.
    n_rows : int
        Number of people.
    mask_rate : "uniform", float or int
    n_masks : int or "auto"
    tol : float
        Of the steps that follow, as in `ItemSolver`.
    params : dict
        Of `NoisySteps`.

    Attributes
    ----------
    resolution : float
        Averages end when one more epoch would gain a smaller fraction of what sampling
        loses, which is (number of parameters) / (2 n_rows).
    """

    resolution = 5e-4

    def __init__(self, objective, point, n_rows, *, mask_rate, n_masks, tol, **params):
        lost_by_sampling = len(point) / (2 * n_rows)
        super().__init__(
            point,
            is_followed=ends_without_masks(mask_rate, n_masks),
            tol=self.resolution * lost_by_sampling,
            **params,
        )
        self.objective, self.mask_rate = objective, mask_rate
        self.n_masks = number_of_masks(n_masks)
        self._tol_of_following = tol

    def init(self, max_iter):
        self.objective.place_nodes(self.point)
        if self.objective(self.point) is None:
            raise FloatingPointError

    def batches(self):
        answers = self.objective.answers
        args = self.mask_rate, self.n_masks, answers.codes.shape[1], self.rng
        masks = shared_masks(*args)
        groups = np.array_split(self.rng.permutation(len(answers)), len(masks))
        return [[pair for pair in zip(masks, groups, strict=True) if len(pair[1])]]

    def move(self, point, batch):
        self.objective.place_nodes(point)
        evaluation, error = self._evaluate(point, batch)
        if evaluation is None:
            return MaskedMove(math.nan, math.nan, math.nan, None, None)
        gradient, n_rows = evaluation.gradient, self.objective.answers.total
        direction = solve_metric(self.objective, evaluation, gradient)
        gain = 0.5 * float(gradient @ direction) / n_rows
        value, gradient = evaluation.value / n_rows, gradient / n_rows
        return MaskedMove(value, error, gain, gradient, direction)

    def moved(self, point, move, size):
        return point + shortened(self.objective.layout.items, size * move.direction)

    def flat(self, move):
        return move.gradient, move.direction

    def mixed(self, point, other, weight):
        return torch.lerp(point, other, weight)

    def following(self):
        """Return the solver for the log marginal likelihood, or None."""
        if not self.is_followed:
            return None
        return ItemSolver(self.objective, self.point, self._tol_of_following)

    def _evaluate(self, point, batch):
        """Return the evaluation by masks, and the standard error of its value."""
        objective, answers = self.objective, self.objective.answers
        items, z = objective.layout.items, objective.grid.z
        curves = items.curves(point, z)
        table = items.table(curves)
        log_weight = objective.grid.log_weight(objective.layout.population(point))
        log_prob = table.flatten(0, 1).T.contiguous()  # shape: (s, d c)
        masked = MaskedSums.zeros(table, len(log_weight))
        scores, weights = [], []  # sums over the rows of each mask
        for mask, rows in batch:
            args = answers, rows, mask, log_prob, log_weight
            scores.append(_add_masked(masked, *args).sum())
            weights.append(answers.weight[rows].sum())
        sums = []
        for block, curve in zip(items.blocks, curves, strict=True):
            n_rows = masked.row_counts[block.items][:, None] * curve.log_prob.exp()
            _, information = block_sums(block, curve, n_rows, z)
            gradients = masked.gradients[block.items, : block.kind.n_categories]
            gradient = torch.einsum("jpcs,jcs->jp", block.scores(curve, z), gradients)
            sums.append((gradient, information))
        scores = torch.stack(scores)
        value, error = (
            float(scores.sum()),
            error_of_groups(scores, torch.stack(weights)),
        )
        evaluation = objective.evaluation(
            point, value, sums, masked.group_gradients, masked.group_rows
        )
        return evaluation, error


class MaskedMove(NamedTuple):
    """A full step by masks, in nats per row; see `NoisySteps`."""

    value: float
    error: float
    gain: float
    gradient: torch.Tensor | None
    direction: torch.Tensor | None

    @property
    def is_finite(self):
        return self.direction is not None and bool(self.direction.isfinite().all())


class MaskedSums(NamedTuple):
    """Sums over rows, each with a mask, to which those of other rows are added.

    gradients, group_gradients : derivatives of scores in the log-probabilities of
    answers, (d, c, s), and in the log weights of nodes for each group, (g, s).
    row_counts : expected numbers of rows with an answer to each item, (d, s).
    group_rows : numbers of rows of each group, (g,).
    """

    gradients: torch.Tensor
    group_gradients: torch.Tensor
    row_counts: torch.Tensor
    group_rows: torch.Tensor

    @classmethod
    def zeros(cls, table, n_groups):
        n_items, _, n_nodes = table.shape
        shapes = table.shape, (n_groups, n_nodes), (n_items, n_nodes), (n_groups,)
        return cls(*(table.new_zeros(shape) for shape in shapes))


def _add_masked(sums, answers, rows, mask, log_prob, log_weight):
    """Add the sums over rows with one mask to those before; return scores, (n,).

    mask : bool array (d,). log_prob : of all answers at nodes, (s, d c).
    """
    d, max_categories, _ = sums.gradients.shape
    rows = torch.from_numpy(rows).to(log_prob.device)
    codes, weight = answers.codes[rows], answers.weight[rows]
    group = answers.group[rows]
    steps = torch.arange(max_categories, device=codes.device, dtype=torch.int8)
    indicator = (codes[..., None] == steps).double().flatten(1)  # shape: (n, d c)
    scores = masked_scores(
        indicator,
        np.repeat(mask, max_categories),
        log_prob,
        log_weight[group],
        weight * (d / mask.sum()),
    )
    sums.gradients.add_(scores.gradient.T.unflatten(0, (d, max_categories)))
    sums.row_counts.add_((codes != MISSING).double().T @ (weight[:, None] * scores.r))
    sums.group_gradients.index_add_(0, group, scores.node_gradient)
    sums.group_rows.index_add_(0, group, weight)
    return scores.score
