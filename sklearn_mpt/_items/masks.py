r"""Training of item models by masks.

The objective of a row with m of its d items hidden, the set M, is
:math:`(d / m) \sum_{j \in M} \log p(x_j \mid x_R)`. Its mean over masks, with all sizes
equally likely, is the log marginal likelihood.
"""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.masks import shared_masks
from sklearn_mpt._fitting.phases import ends_without_masks
from sklearn_mpt._fitting.schedules import falling_size, share_of_last
from sklearn_mpt._fitting.stopping import is_flat
from sklearn_mpt._integration.masked_scores import target_terms
from sklearn_mpt._items.answers import MISSING
from sklearn_mpt._items.objective import block_sums
from sklearn_mpt._items.solver import ItemSolver, solve_metric
from sklearn_mpt._numbers import TINY

# Masks in each step, if `n_masks` is "auto". Their noise falls with the number, and
# each has a product of matrices of its own.
AUTO_MASKS = 32


class MaskedItemSolver(Solver):
    """Natural steps by masks, which steps on the LML may follow.

    The log marginal likelihood follows a uniform rate, unless `n_masks` is an int. If
    nothing follows, points are averaged, with larger weights for later ones.

    Parameters
    ----------
    objective : ItemObjective
    point : Tensor of shape (p,)
        Parameters at the start.
    rng : numpy.random.Generator
    mask_rate : "uniform", float or int
    n_masks : int or "auto"
    learning_rate : float
        Size of the first step; 1 is a full one.
    tol : float
        Of the steps that follow, as in `ItemSolver`.

    Attributes
    ----------
    max_step : float
        Largest change of a parameter in a step, in logits. Directions are noisy, so
        that it is less than without masks.
    max_tries : int
        Number of sizes of a step that are tried, until parameters are valid.
    window : int
        Number of steps whose mean loss is compared with that of the next, if the LML
        follows; otherwise half of all steps are.
    min_steps, max_steps : int
        Least number of steps if the LML follows, and four times as many otherwise; and
        largest number. Then step sizes are 0.5, 0.27 and 0.16 of the first.
    """

    max_step = 0.5
    max_tries = 20
    window = 5
    min_steps, max_steps = 20, 200

    def __init__(
        self, objective, point, *, rng, mask_rate, n_masks, learning_rate, tol
    ):
        self.objective, self.point = objective, point
        self.rng, self.learning_rate, self.tol = rng, learning_rate, tol
        self.mask_rate = mask_rate
        self.lml_follows = ends_without_masks(mask_rate, n_masks)
        self.n_masks = AUTO_MASKS if n_masks == "auto" else n_masks
        self.loss_curve = []
        self._average = None

    @property
    def result(self):
        return self.point if self._average is None else self._average

    def init(self, max_iter):
        self.objective.place_nodes(self.point)
        if self.objective(self.point) is None:
            raise FloatingPointError

    def step(self):
        n_steps, items = len(self.loss_curve), self.objective.layout.items
        self.objective.place_nodes(self.point)
        evaluation = self._evaluate()
        if evaluation is None:
            raise FloatingPointError
        direction = solve_metric(self.objective, evaluation, evaluation.gradient)
        size = self.learning_rate * falling_size(n_steps)
        size = min(size, self.max_step / max(float(direction.abs().max()), TINY))

        def move(size):
            point = self.point + size * direction
            return point if items.is_valid(point) else None

        _, point = backtrack(move, self.max_tries, size)
        if point is None:
            raise FloatingPointError
        self.point = point
        self.loss_curve.append(-evaluation.value / self.objective.answers.total)
        if not self.lml_follows:
            share = share_of_last(n_steps + 1, 1)
            self._average = torch.lerp(self.result, point, share)

    def terminate(self):
        n_steps = len(self.loss_curve)
        if n_steps >= self.max_steps:
            return True
        if n_steps % self.window:
            return False
        n_compared, min_steps = self.window, self.min_steps
        if not self.lml_follows:
            n_compared, min_steps = n_steps // 2, 4 * self.min_steps
        return n_steps >= min_steps and is_flat(self.loss_curve, n_compared, tol=0.0)

    def following(self):
        """Return the solver for the log marginal likelihood, or None."""
        if not self.lml_follows:
            return None
        following = ItemSolver(self.objective, self.point, self.tol)
        following.init(max_iter=None)
        return following

    def _evaluate(self):
        """Return the evaluation of masked scores, with one mask for each row."""
        objective, point = self.objective, self.point
        items, answers = objective.layout.items, objective.answers
        d, z = len(items), objective.grid.z
        masks = shared_masks(self.mask_rate, self.n_masks, d, self.rng)
        masks = torch.from_numpy(masks).to(z.device)
        curves = items.curves(point, z)
        table = items.table(curves)
        prob = items.prob(table).permute(2, 0, 1).contiguous()  # shape: (s, d, c)
        log_weight = objective.grid.log_weight(objective.layout.population(point))
        masked, value = MaskedSums.zeros(table, len(log_weight)), 0.0
        groups_of_rows = np.array_split(self.rng.permutation(len(answers)), len(masks))
        for mask, rows in zip(masks, groups_of_rows, strict=True):
            if len(rows) == 0:
                continue
            index = torch.from_numpy(rows).to(z.device)
            value += _add_masked(masked, answers, index, mask, table, prob, log_weight)
        sums = []
        for block, curve in zip(items.blocks, curves, strict=True):
            n_rows = masked.row_counts[block.items][:, None] * curve.log_prob.exp()
            _, information = block_sums(block, curve, n_rows, z)
            slopes = masked.slopes[block.items, : block.kind.n_categories]
            scores = block.scores(curve, z)
            sums.append((torch.einsum("jpcs,jcs->jp", scores, slopes), information))
        return objective.evaluation(
            point, value, sums, masked.group_slopes, masked.group_rows
        )


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
    scale = weight * d / mask.sum()
    score, slopes, node_slope = target_terms(r, hidden, prob[:, mask].flatten(1), scale)
    node_slope *= r
    sums.slopes[mask] += slopes.T.unflatten(0, (-1, max_categories))
    sums.slopes.add_((observed.T @ node_slope).unflatten(0, (d, max_categories)))
    sums.row_counts.add_((codes != MISSING).double().T @ (weight[:, None] * r))
    sums.group_slopes.index_add_(0, group, node_slope)
    sums.group_rows.index_add_(0, group, weight)
    return float(score.sum())
