"""Observed information of item parameters, by Louis' identity."""

import torch

from sklearn_mpt._items.objective import are_free, population_scores, prior_terms
from sklearn_mpt._latent.answers import MISSING, log_joint
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._optim.information import (
    SINGULAR,
    missing_information,
)

# With more parameters, whose matrix has 72 MB, the information is that of each item
# alone.
MAX_PARAMETERS = 3000


def observed_information(objective, point):
    """Return the information of all parameters, (p, p), or of each item alone."""
    # With more than `MAX_PARAMETERS` it is a list with an array (j, q, q) for each
    # block of items: with many items, a single one hardly changes the posterior of z.
    curves, expected = objective.expect(point)
    items, z = objective.layout.items, objective.grid.z
    scores = [
        block.scores(curve, z)
        for block, curve in zip(items.blocks, curves, strict=True)
    ]
    complete = _complete(objective, point, expected)
    if len(point) > MAX_PARAMETERS:
        return _by_items(objective, point, curves, expected, scores, complete)
    p = len(point)
    total = torch.zeros(p, p, dtype=point.dtype, device=point.device)
    for block, part in zip(items.blocks, complete, strict=True):
        _diagonal_blocks(total, block)[:] += part
    _add_population(total, objective, point, expected)
    density_scores = population_scores(objective.layout, point, z)
    answers = objective.answers
    table = items.table(curves)
    log_weight = objective.grid.log_weight(objective.layout.population(point))
    for rows in chunk_slices(len(answers), len(z) * p, CHUNK_ENTRIES):
        r = log_joint(answers, rows, table, log_weight).softmax(1)
        answer_scores = _scores_of(answers.codes[rows].long(), items, scores)
        row_scores = torch.cat(
            [answer_scores, density_scores[answers.group[rows]].mT], 2
        )
        total -= missing_information(row_scores, r, answers.weight[rows])
    return total.cpu().numpy()


def with_bounds(information, objective, point):
    """Return the information, and which parameters are at a bound, bool (p,)."""
    # Probabilities of guessing and variances of z are at least 0, where their logits
    # and logarithms are infinite. So training ends before, with nothing more to gain.
    # The curvature is that in the value v itself, times v'^2: in the logit it would
    # have a part of the gradient, which is not quite 0. And the parameter stands for
    # the bound if a step of Newton's method in v reaches 0, or has no end because the
    # likelihood is not concave, when it is maximised over the other parameters of the
    # item.
    evaluation = objective(point)
    point, gradient = point.cpu(), evaluation.gradient.cpu()
    layout, at_bound = objective.layout, torch.zeros(len(point), dtype=torch.bool)
    is_free = torch.ones_like(at_bound)
    if layout.is_fixed is not None:
        is_free[: layout.items.n_parameters] = torch.from_numpy(~layout.is_fixed)
    for block, part in zip(
        layout.items.blocks, item_blocks(layout.items, information), strict=True
    ):
        if block.kind.is_guessed:
            index = block.parameter_index
            guessing = point[index[:, -1]].sigmoid()
            part[:, -1, -1] += (1 - 2 * guessing) * gradient[index[:, -1]]
            curvature, slope = _profile(part, gradient[index], is_free[index])
            # a standard error above 1, the range of a probability, says nothing of it
            curvature -= (guessing * (1 - guessing)) ** 2
            reaches_0 = _reaches_0(curvature, (1 - guessing) * slope)
            at_bound[index[:, -1]] = reaches_0 & is_free[index[:, -1]]
    if not isinstance(information, list):
        deviations = layout.population_slices[1]
        diagonal = torch.from_numpy(information).diagonal()[deviations]
        diagonal += 2 * gradient[deviations]
        n_means = int(layout.free_mean.sum())
        rounding = SINGULAR * evaluation.population_metric[n_means:].cpu()
        at_bound[deviations] = _reaches_0(diagonal - rounding, 2 * gradient[deviations])
    return information, at_bound.numpy()


def item_blocks(items, information):
    """Return matrices of single items for each block, tensors (j, q, q)."""
    # information : a matrix (p, p), or arrays (j, q, q) for each block.
    if isinstance(information, list):
        return [torch.from_numpy(part) for part in information]
    matrix = torch.from_numpy(information)
    return [_diagonal_blocks(matrix, block) for block in items.blocks]


def _profile(information, gradient, is_free):
    """Return the information about the last parameter, and its slope, (j,) each."""
    # Those of the likelihood that is maximised over the others of the item that are
    # free. information : (j, q, q). gradient : (j, q). is_free : bool (j, q).
    are_free = is_free[:, :-1, None] & is_free[:, None, :-1]
    others = torch.where(are_free, information[:, :-1, :-1], 0.0)
    cross = torch.where(is_free[:, :-1], information[:, -1, :-1], 0.0)
    weights = torch.linalg.pinv(others, hermitian=True)
    weights = (cross[:, None] @ weights)[:, 0]
    curvature = information[:, -1, -1] - (weights * cross).sum(1)
    return curvature, gradient[:, -1] - (weights * gradient[:, :-1]).sum(1)


def _reaches_0(curvature, slope):
    """Return whether a step of Newton's method reaches 0."""
    # curvature, slope : derivatives in a value v: minus the second times v'^2, and the
    # first times v'^2 / v.
    return curvature + slope.clamp(max=0) <= 0


def _scores_of(codes, items, scores):
    """Return the scores of rows of answers at nodes, (n, s, p), 0 where missing."""
    # scores : of each block, (j, q, c, s).
    parts = []
    for block, score in zip(items.blocks, scores, strict=True):
        # -1, MISSING, is the index of the zeros at the end
        chosen = codes[:, block.items]
        table = torch.nn.functional.pad(score.permute(0, 2, 3, 1), (0, 0, 0, 0, 0, 1))
        item = torch.arange(len(block.items), device=codes.device)
        parts.append(table[item, chosen].transpose(1, 2).flatten(2))
    return torch.cat(parts, 2)


def _diagonal_blocks(matrix, block):
    """Return a view of the blocks of items on the diagonal of a matrix (p, p)."""
    j, w = len(block.items), block.width
    part = matrix[block.parameters, block.parameters].view(j, w, j, w)
    return part.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _complete(objective, point, expected):
    """Return minus the second derivatives of complete data, for each block of items."""
    blocks = []
    for block in objective.layout.items.blocks:
        counts = expected.counts[block.items, : block.kind.n_categories]
        matrix = complete_information(block, point, counts, objective.grid.z)
        matrix.diagonal(dim1=1, dim2=2).add_(
            prior_terms(objective.priors, block, point)[1]
        )
        blocks.append(matrix)
    return blocks


def complete_information(block, point, counts, z):
    """Return minus the second derivatives of a block of items, (j, q, q)."""
    # counts : expected numbers of answers at nodes, (j, c, s).

    def gradient(at):
        curve = block.curve(at, z)
        return torch.einsum("jpcs,jcs->jp", block.scores(curve, z), counts)

    hessian = block.derivatives(gradient, point)
    return -0.5 * (hessian + hessian.mT)


def _add_population(total, objective, point, expected):
    """Add the complete-data information about means and log deviations of z."""
    layout = objective.layout
    population, first = layout.population(point), layout.items.n_parameters
    mean, deviation = population.mean[:, :1], population.deviation[:, :1]
    standardised = (objective.grid.z[:, 0] - mean) / deviation
    n, total_z, squares = (
        (expected.groups * standardised**power).sum(1) for power in range(3)
    )
    deviation = deviation[:, 0]
    of_means, cross = (n / deviation**2).diag(), (2 * total_z / deviation).diag()
    rows = [of_means, cross], [cross, (2 * squares).diag()]
    whole = torch.cat([torch.cat(row, 1) for row in rows])
    is_free = are_free(layout)
    total[first:, first:] += whole[is_free][:, is_free]


def _by_items(objective, point, curves, expected, scores, complete):
    items, answers = objective.layout.items, objective.answers
    table = items.table(curves)
    log_weight = objective.grid.log_weight(objective.layout.population(point))
    products = []
    for block, score, part in zip(items.blocks, scores, complete, strict=True):
        counts = expected.counts[block.items, : block.kind.n_categories]
        weighted = (score * counts[:, None]).flatten(2)
        products.append(part - weighted @ score.flatten(2).mT)
    for rows in answers.blocks(table.shape[2]):
        r = log_joint(answers, rows, table, log_weight).softmax(1)
        codes, weight = answers.codes[rows].long(), answers.weight[rows]
        for k, (block, score) in enumerate(zip(items.blocks, scores, strict=True)):
            chosen = codes[:, block.items]
            entries = len(codes) * block.width * block.kind.n_categories
            for few in chunk_slices(len(block.items), entries, CHUNK_ENTRIES):
                mean = torch.einsum("ns,jpcs->njpc", r, score[few])
                at = chosen[:, few, None, None].clamp(min=0)
                mean = mean.gather(3, at.expand(*mean.shape[:3], 1))[..., 0]
                mean = torch.where(chosen[:, few, None] == MISSING, 0.0, mean)
                products[k][few] += torch.einsum("njp,njq,n->jpq", mean, mean, weight)
    return [part.cpu().numpy() for part in products]
