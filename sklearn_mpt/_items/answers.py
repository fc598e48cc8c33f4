"""Rows of answers as codes, and products of them with tables over nodes.

An answer of item j adds ``log_prob[j, answer]`` to the log-probability of its row, at
each node. Written with the first category as base, that is one product of a matrix of
indicators with a matrix over nodes.
"""

import numpy as np
import torch

BLOCK = 2**20  # numbers in a tensor over rows and columns, or nodes
MOST_KEPT = 2**24  # indicators that are kept, not formed in every pass
SAMPLE, OFTEN_ALONE = 4096, 0.8  # rows that tell whether many are alike
MISSING = -1


class Answers:
    """Answers of rows, of which those that are alike are one.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Codes, NaN where missing.
    n_categories : int
        Largest number of categories of an item.
    weight : ndarray of shape (n,) or None
    group : ndarray of int, of shape (n,), or None
    device : torch.device
    compress : bool
        Whether to look for rows that are alike.
    """

    def __init__(
        self, X, n_categories, weight=None, group=None, device="cpu", compress=True
    ):
        codes = np.where(np.isnan(X), MISSING, X).astype(np.int8)
        weight = np.ones(len(X)) if weight is None else np.asarray(weight, float)
        group = np.zeros(len(X), int) if group is None else group
        self.place = None
        if compress:
            codes, weight, group, self.place = _distinct(codes, weight, group)
        self.codes = torch.from_numpy(codes).to(device)
        self.weight = torch.from_numpy(weight).to(device)
        self.group = torch.from_numpy(group).to(device)
        self.n_categories = n_categories
        gaps = self.codes == MISSING
        self.gappy = gaps.any(0).nonzero()[:, 0]  # items with missing answers
        self.total = float(self.weight.sum())
        columns = self.codes.shape[1] * (n_categories - 1) + len(self.gappy)
        self.columns = columns
        self._kept = None
        if len(self.codes) * columns <= MOST_KEPT:
            self._kept = self._indicators(slice(None))

    def __len__(self):
        return len(self.codes)

    def indicators(self, rows):
        """1.0 for the category of each answer but the first, and gaps; (n, columns)."""
        return self._indicators(rows) if self._kept is None else self._kept[rows]

    def _indicators(self, rows):
        codes = self.codes[rows]
        steps = torch.arange(
            1, self.n_categories, device=codes.device, dtype=torch.int8
        )
        found = (codes[..., None] == steps).flatten(1).double()
        if len(self.gappy) == 0:
            return found
        gaps = (codes[:, self.gappy] == MISSING).double()
        return torch.cat([found, gaps], 1)

    def coefficients(self, table):
        """What the indicators add to that of all first categories; and this, (s,)."""
        first = table[:, 0]
        more = (table[:, 1:] - first[:, None]).flatten(0, 1)
        if len(self.gappy):
            more = torch.cat([more, -first[self.gappy]])
        return more, first.sum(0)

    def blocks(self, n_nodes):
        """Slices of rows such that tensors over nodes and columns fit."""
        size = max(1, BLOCK // max(n_nodes, self.columns))
        for start in range(0, len(self), size):
            yield slice(start, start + size)

    def counts(self, sums, total):
        """Expected numbers of each answer at nodes; (d, c, s).

        sums : of the indicators, (columns, s). total : of all rows, (s,).
        """
        n_items = self.codes.shape[1]
        split = n_items * (self.n_categories - 1)
        chosen = sums[:split].unflatten(0, (n_items, -1))
        first = total - chosen.sum(1)
        if len(self.gappy):
            first[self.gappy] -= sums[split:]
        return torch.cat([first[:, None], chosen], 1)


def log_joint(answers, rows, table, log_weight):
    """log p(answers, z) of rows at nodes; (n, s).

    log_weight : of the nodes for each group, (g, s).
    """
    more, base = answers.coefficients(table)
    start = (base + log_weight)[answers.group[rows]]
    return torch.addmm(start, answers.indicators(rows), more)


def _distinct(codes, weight, group):
    """Distinct rows, with their weights and groups, and the place of each row."""
    both = np.concatenate([codes, group[:, None].astype(np.int8)], 1)
    both = np.ascontiguousarray(both)
    keys = both.view(np.dtype((np.void, both.shape[1])))[:, 0]
    sample = keys[:: max(1, len(keys) // SAMPLE)]
    if len(np.unique(sample)) > OFTEN_ALONE * len(sample) and len(keys) > SAMPLE:
        return codes, weight, group, None
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    place = place.ravel()
    total = np.bincount(place, weight, len(first))
    return codes[first], total, group[first], place
