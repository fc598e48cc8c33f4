"""Rows of codes, such as answers, and their products with tables over nodes.

The log-probability of a row at a node is the sum of ``log_prob[j, answer]`` over items
j. With the first category as the base, the sums for all rows and nodes are the product
of a matrix of indicators and a matrix over nodes.
"""

from functools import cached_property
from typing import NamedTuple

import torch

from sklearn_mpt._latent.grids import RADIUS, WIDE_RADIUS, Population, PriorGrid
from sklearn_mpt._latent.linear_map import LinearMap, append_one, shared_steps
from sklearn_mpt._latent.quadrature import logsumexp_and_softmax
from sklearn_mpt._latent.sums import derivatives_of, outer_sums, sums_of
from sklearn_mpt._likelihoods.base import features_of_locations
from sklearn_mpt._numbers import (
    CACHE_ENTRIES,
    CHUNK_ENTRIES,
    KEPT_ENTRIES,
    chunk_slices,
)
from sklearn_mpt._optim.information import information_by_hessian
from sklearn_mpt._optim.natural import Point
from sklearn_mpt._optim.weights import UNSEEN_COUNT

MISSING = -1
MAX_CATEGORIES = 101  # codes 0 to 100 are integers of 8 bits


class Answers:
    """Answers of rows.

    Parameters
    ----------
    codes : int8 Tensor of shape (n, d)
        `MISSING` where missing.
    n_categories : int
        Largest number of categories of an item.
    weight : Tensor of shape (n,), default=None
        None is 1.
    group : int Tensor of shape (n,), default=None
        None is 0.
    """

    def __init__(self, codes, n_categories, weight=None, group=None):
        n, device = len(codes), codes.device
        if weight is None:
            weight = torch.ones(n, dtype=torch.float64, device=device)
        if group is None:
            group = torch.zeros(n, dtype=torch.int64, device=device)
        self.codes, self.weight, self.group = codes, weight, group
        self.n_categories = n_categories
        gaps = self.codes == MISSING
        self.gappy = gaps.any(0).nonzero()[:, 0]  # items with missing answers
        columns = self.codes.shape[1] * (n_categories - 1) + len(self.gappy)
        self.columns = columns
        self._kept = None
        if len(self.codes) * columns <= KEPT_ENTRIES:
            self._kept = self._indicators(slice(None))

    def __len__(self):
        return len(self.codes)

    @cached_property
    def total(self):
        """The sum of the weights."""
        return float(self.weight.sum())

    def indicators(self, rows):
        """Return indicators of categories but the first, and of gaps; (n, columns)."""
        # For each item there is a column for each category except the first. Items with
        # missing answers have one more column, for the gaps.
        return self._indicators(rows) if self._kept is None else self._kept[rows]

    def _indicators(self, rows):
        codes = self.codes[rows]
        steps = torch.arange(
            1, self.n_categories, device=codes.device, dtype=torch.int8
        )
        indicators = (codes[..., None] == steps).flatten(1).double()
        if len(self.gappy) == 0:
            return indicators
        gaps = (codes[:, self.gappy] == MISSING).double()
        return torch.cat([indicators, gaps], 1)

    def coefficients(self, table):
        """Return the factors of the indicators, and the sum of first categories."""
        # The factors, (columns, s), are differences to the log-probability of the first
        # category. The sum over items for rows with all first categories is (s,).
        first = table[:, 0]
        more = (table[:, 1:] - first[:, None]).flatten(0, 1)
        if len(self.gappy):
            more = torch.cat([more, -first[self.gappy]])
        return more, first.sum(0)

    def blocks(self, n_nodes):
        """Yield slices of rows for which tensors over nodes and columns fit memory."""
        return chunk_slices(len(self), max(n_nodes, self.columns), CACHE_ENTRIES)

    def counts(self, sums, total):
        """Return expected numbers of each answer at nodes; (d, c, s)."""
        # sums : sums of the indicators, (columns, s). total : sums of the rows, (s,).
        n_items = self.codes.shape[1]
        split = n_items * (self.n_categories - 1)
        chosen = sums[:split].unflatten(0, (n_items, -1))
        first = total - chosen.sum(1)
        if len(self.gappy):
            first[self.gappy] -= sums[split:]
        return torch.cat([first[:, None], chosen], 1)


class ExpectedCounts(NamedTuple):
    """Log-likelihood of rows, and expected numbers at nodes.

    counts : expected numbers of answers, (d, c, s). groups : of rows, (g, s).
    """

    value: float
    counts: torch.Tensor
    groups: torch.Tensor


def expectations(answers, table, log_weight):
    """Compute the E-step of EM."""
    n_nodes = table.shape[2]
    sums = table.new_zeros(answers.columns, n_nodes)
    groups = table.new_zeros(log_weight.shape)
    differences, base = answers.coefficients(table)
    value = 0.0
    for rows in answers.blocks(n_nodes):
        indicators, group = answers.indicators(rows), answers.group[rows]
        total, r = _posterior(indicators, group, differences, base + log_weight)
        weight = answers.weight[rows]
        value += float(weight @ total)
        r *= weight[:, None]
        sums.addmm_(indicators.T, r)
        if len(log_weight) > 1:
            groups.index_add_(0, group, r)
        else:
            groups[0] += r.sum(0)
    return ExpectedCounts(value, answers.counts(sums, groups.sum(0)), groups)


def _posterior(indicators, group, differences, start):
    """Return log p(answers) of rows, (n,), and posterior weights of nodes, (n, s)."""
    # start : for each group, or one for all.
    start = start[group] if len(start) > 1 else start[0]
    return logsumexp_and_softmax(torch.addmm(start, indicators, differences))


def variance_of_scores(answers, table, log_weight, scores, features, of_groups):
    """Return the sum over rows of the variance of scores, given answers; (p, p)."""
    # scores : derivatives of log-probabilities of the answers to the feature of each
    # parameter, (p, c, s). of_groups : of z in each group, (g, p, s).
    differences, base = answers.coefficients(table)
    (n_params, _, n_nodes), n_groups = scores.shape, len(log_weight)
    total = table.new_zeros(n_params, n_params)
    for rows in answers.blocks(n_nodes):  # less squares of means
        indicators, group = answers.indicators(rows), answers.group[rows]
        _, r = _posterior(indicators, group, differences, base + log_weight)
        codes = answers.codes[rows][:, features].long()[..., None]
        means = (r @ scores.flatten(0, 1).T).unflatten(1, scores.shape[:2])
        mean = (means.gather(2, codes.clamp(min=0)) * (codes != MISSING))[..., 0]
        if of_groups.any():
            for i in range(n_groups):
                mean[group == i] += r[group == i] @ of_groups[i].T
        total -= mean.T @ (answers.weight[rows][:, None] * mean)
    # A score of a row is the product of its indicators and the slopes of a parameter.
    n_columns = n_groups + answers.columns
    width = max(n_columns, table[..., 0].numel()) * max(n_columns, n_params)
    for nodes in chunk_slices(n_nodes, width, CHUNK_ENTRIES):
        part = scores[..., nodes]
        tables = part.new_zeros(*table.shape[:2], part.shape[2], n_params)
        tables[features, :, :, torch.arange(n_params)] = part
        slopes, first = answers.coefficients(tables)
        slopes = torch.cat([first + of_groups[..., nodes].mT, slopes]).movedim(1, 0)
        products = part.new_zeros(len(slopes), n_columns, n_columns)
        for rows in answers.blocks(n_nodes):
            indicators, group = answers.indicators(rows), answers.group[rows]
            _, r = _posterior(indicators, group, differences, base + log_weight)
            r = answers.weight[rows][:, None] * r[:, nodes]
            if n_groups == 1:
                group = torch.zeros_like(group)
            of_group = torch.nn.functional.one_hot(group, n_groups)
            columns = torch.cat([of_group.to(r), indicators], 1)
            for product, weight in zip(products, r.T, strict=True):
                product.addmm_(columns.T, weight[:, None] * columns)
        total += (slopes.mT @ (products @ slopes)).sum(0)
    return total


class CodedRows:
    """Rows of codes 0, 1, 2, ..., which share a grid that resolves all posteriors.

    Points with one latent variable can have more rows of coefficients than there are
    locations, one for each group of people: logarithm of the deviation, and mean, of z.

    Parameters
    ----------
    rows : TrainingRows
    blocks : ShapeBlocks or None
    codes : sequence of sequence of int
        Those of each feature.
    max_nodes : int, default=None
        It leaves all rows if the grid has more. None takes the grid always.
    unseen : bool Tensor of shape (d, c), default=None
        Codes of which `UNSEEN_COUNT` observations are added.
    """

    def __init__(self, rows, blocks, codes, max_nodes=None, unseen=None):
        self.rows, self.blocks, self.unseen = rows, blocks, unseen
        self.max_nodes = max_nodes
        X, group = rows.X, rows.group
        if group is not None:
            group = torch.from_numpy(group).to(X.device)
        n_codes = max(map(len, codes))
        codes = [[v[min(c, len(v) - 1)] for v in codes] for c in range(n_codes)]
        self.codes = torch.tensor(codes, dtype=torch.float64, device=X.device)
        answers = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
        self.answers = Answers(answers, n_codes, rows.weights.values, group)
        self._grid = None

    def population(self, point, joint):
        """Return the distribution of z in each group."""
        rows = point.coefs[len(joint.intercept) :]
        if len(rows):
            return Population(rows[:, 1:], rows[:, :1].exp())
        return Population.standard(joint.n_dims, point.coefs)

    def grid(self, point, joint, max_ratio=1.15):
        """Return a grid that resolves posteriors, or the finest that memory allows."""
        # That of `place`, if its spacing is at most `max_ratio` times as wide as
        # needed, so that values of successive points have the same error. Where mean or
        # variance of z move the grid reaches as far as that of scores.
        population, last = self.population(point, joint), self._grid
        # Spacing over the narrowest posterior, in one, two and three dimensions. The
        # relative errors are 2e-7, 2e-5 and 9e-4: nodes in more dimensions cost more.
        spacing_ratio = (1.1, 1.3, 1.6)[joint.n_dims - 1]
        steps = shared_steps(joint, spacing_ratio, self.codes, population)
        if last is not None and last.covers(population, RADIUS):
            ratios = [a / b for a, b in zip(last.steps, steps, strict=True)]
            if max(ratios) < max_ratio:
                return last
        may_move = len(point.coefs) > len(joint.intercept)
        return PriorGrid.over(population, steps, WIDE_RADIUS if may_move else RADIUS)

    def place(self, point, joint):
        """Change the grid if the point needs it; return whether it did."""
        last, self._grid = self._grid, self.grid(point, joint)
        return self._grid is not last

    def sums(self, point, joint, index):
        grid = self._grid or self.grid(point, joint)
        if len(index) < len(self.rows) or self._is_large(grid):
            return None, index
        population, z = self.population(point, joint), grid.z
        log_weight, table = grid.log_weight(population), joint.table(self.codes, z)
        value, counts, groups = expectations(self.answers, table, log_weight)
        total = self.answers.total
        if self.unseen is not None:
            count = UNSEEN_COUNT * total / self.rows.weights.total
            added = count * self.unseen[..., None] * log_weight[0].exp()
            value, counts = value + float((added * table).sum()), counts + added
        nodes = append_one(z)
        location, likelihood = joint.location(z)[None], joint.likelihood
        known, X = counts.permute(1, 2, 0), self.codes[:, None]
        args = likelihood, X, location, self.blocks
        derivative, information = derivatives_of(*args)
        on_locations = likelihood.to_locations(known)
        gradient = (on_locations * derivative).sum(0).T @ nodes
        information = outer_sums((on_locations * information).sum(0), nodes)
        shape = len(X), -1, -1
        at = location.expand(shape), known, nodes.expand(shape)
        shape_params = likelihood.shape_sums(X, *at)
        if len(point.coefs) > len(gradient):  # means and deviations of groups
            unit = (z[:, 0] - population.mean) / population.deviation
            deviation, n = population.deviation[:, 0], groups.sum(1)
            of_deviation = (groups * (unit**2 - 1)).sum(1)
            of_groups = [of_deviation, (groups * unit).sum(1) / deviation]
            gradient = torch.cat([gradient, torch.stack(of_groups, 1)])
            of_groups = torch.diag_embed(torch.stack([2 * n, n / deviation**2], 1))
            information = torch.cat([information, of_groups])
        value, total = (gradient.new_tensor([part]) for part in (value, total))
        sums = sums_of(value / total, total, gradient, information, shape_params)
        return sums, index[:0]

    def information(self, point, joint, accuracy):
        grid = self.grid(point, joint)
        if self._is_large(grid):
            return None
        answers, n_locations = self.answers, len(joint.intercept)
        with torch.no_grad():
            log_weight = grid.log_weight(self.population(point, joint))
            table = joint.table(self.codes, grid.z)
            _, counts, groups = expectations(answers, table, log_weight)
            variance = self._variance_of_scores(point, joint, grid, table, log_weight)

        def expected(coefs, shape_params):  # log-probability of answers and z
            likelihood = joint.likelihood.at(shape_params)
            of_items = coefs[:n_locations]
            moved = LinearMap(of_items[:, :-1].T, of_items[:, -1], likelihood)
            population = self.population(Point(coefs, shape_params), moved)
            of_z = (groups * grid.log_weight(population)).sum()
            return of_z + (counts * moved.table(self.codes, grid.z)).sum()

        return information_by_hessian(expected, *point) - variance

    def _is_large(self, grid):
        return self.max_nodes is not None and len(grid.z) > self.max_nodes

    def _variance_of_scores(self, point, joint, grid, table, log_weight):
        """Return the sum over rows of the variance of scores at nodes, (p, p)."""
        z, population = grid.z, self.population(point, joint)
        coefs, shapes = joint.scores(self.codes, z)
        n_of_z = point.coefs[len(joint.intercept) :].numel()
        scores = torch.cat([coefs, coefs.new_zeros(n_of_z, *coefs.shape[1:]), shapes])
        args = joint.likelihood, len(joint.intercept), z.device
        features = features_of_locations(*args)
        features = features.repeat_interleave(point.coefs.shape[1])
        of_shapes = torch.as_tensor(joint.likelihood.shape_param_features).to(features)
        features = torch.cat([features, features.new_zeros(n_of_z), of_shapes])
        n_groups, first = len(population.mean), len(coefs)
        of_groups = z.new_zeros(n_groups, len(scores), len(z))
        if n_of_z:
            unit = (z[:, 0] - population.mean) / population.deviation
            of_z = torch.stack([unit**2 - 1, unit / population.deviation], 1)
            of_z -= (log_weight.exp()[:, None] * of_z).sum(2, keepdim=True)
            for i in range(n_groups):
                of_groups[i, first + 2 * i : first + 2 * i + 2] = of_z[i]
        args = table, log_weight, scores, features, of_groups
        return variance_of_scores(self.answers, *args)
