"""Rows of codes, such as answers, and their products with tables over nodes.

The log-probability of a row at a node is the sum of ``log_prob[j, answer]`` over items
j. With the first category as the base, the sums for all rows and nodes are the product
of a matrix of indicators and a matrix over nodes.
"""

from functools import cached_property
from typing import NamedTuple

import torch

from sklearn_mpt._latent.quadrature import logsumexp_and_softmax
from sklearn_mpt._numbers import (
    CACHE_ENTRIES,
    CHUNK_ENTRIES,
    KEPT_ENTRIES,
    chunk_slices,
)

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
