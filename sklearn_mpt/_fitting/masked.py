r"""Masked scores of rows, and their gradients, for every model that has a density.

The score of a row with the hidden entries H, out of D features, is

.. math:: \frac{D}{|H|} \sum_{j \in H} \log p(x_j \mid x_R),

where R are the visible entries. With sizes of H that are uniform over 1..D its
expectation over masks is the log marginal likelihood (Proposition 1 of the paper). The
conditionals are those that users score with, and their gradients come by autograd.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.masks import number_of_masks, shared_masks
from sklearn_mpt._fitting.natural_gradient import Point, Sums
from sklearn_mpt._fitting.objective import Objective
from sklearn_mpt._fitting.phases import ends_without_masks
from sklearn_mpt._measure.masks import enumerate_masks, fixed_size
from sklearn_mpt._numbers import CACHE_BYTES, CHUNK_BYTES, chunk_slices

# Least number of pairs of a row and a mask in a step: few rows have several masks.
MIN_PAIRS = 2048


class MaskedPairs(NamedTuple):
    """Pairs of a row and a mask.

    rows, of_mask : numbers of the row and of the mask of each pair, (m,), in the order
    of masks. masks : True where hidden, (n_masks, d).
    """

    rows: torch.Tensor
    of_mask: torch.Tensor
    masks: torch.Tensor

    def chunks(self, row_bytes, has_all):
        """Yield slices of pairs, and what they hide, (1 or n, d).

        row_bytes : memory that the conditionals of a row take. has_all : whether each
        row has all masks; then the many rows of a mask share its matrices.
        """
        n_rows = len(self.rows) // len(self.masks)
        if has_all and n_rows * row_bytes > CACHE_BYTES:
            parts = chunk_slices(len(self.rows), 1, n_rows)
            yield from zip(parts, self.masks.split(1), strict=True)
            return
        for part in chunk_slices(len(self.rows), row_bytes, CHUNK_BYTES):
            yield part, self.masks[self.of_mask[part]]


class MaskedScores(NamedTuple):
    """Sums over pairs.

    by_mask : sums of values and of weights for each mask, (2, n_masks). gradient : in
    each of the parameters.
    """

    by_mask: torch.Tensor
    gradient: list[torch.Tensor]


class MaskSource(NamedTuple):
    """How the masks of a step are drawn, by parameters of an estimator."""

    mask_rate: str | float
    n_masks: int | str
    n_features: int

    def draw(self, rng):
        """Draw the masks of a step; all masks of a size, if they are no more.

        With a uniform rate every other mask hides what the one before shows, so that
        columns are hidden about equally often, which lowers the noise.
        """
        n_masks, n_features = number_of_masks(self.n_masks), self.n_features
        if self.mask_rate != "uniform":
            size = fixed_size(self.mask_rate, n_features)
            if math.comb(n_features, size) <= n_masks:
                return rng.permutation(enumerate_masks(n_features, size))
            return shared_masks(self.mask_rate, n_masks, n_features, rng)
        masks = shared_masks("uniform", (n_masks + 1) // 2, n_features, rng)
        # the complement of all columns hides nothing: all columns take its place
        others = ~masks | masks.all(1, keepdims=True)
        return np.stack([masks, others], 1).reshape(-1, n_features)[:n_masks]

    def pairs(self, rows, rng, has_all=False):
        """Divide rows, a tensor of their numbers, among the masks of a step.

        has_all : whether each row has all masks; else it has one, or several if rows
        are few.
        """
        masks, n_rows = self.draw(rng), len(rows)
        n_copies = len(masks)
        if not has_all:
            n_copies = min(n_copies, max(1, MIN_PAIRS // n_rows))
        first = np.zeros(n_rows, dtype=int)  # with all masks no row is drawn
        if n_copies < len(masks):
            first = n_copies * rng.permutation(n_rows)
        index = (first + np.arange(n_copies)[:, None]).ravel() % len(masks)
        order = index.argsort(kind="stable")  # rows of a mask share matrices
        order, index, masks = (
            torch.from_numpy(array).to(rows.device)
            for array in (order, index[order], masks)
        )
        return MaskedPairs(rows[order % n_rows], index, masks)


def masked_scores(density, X, hidden):
    """Return the masked scores of rows, (n,); hidden : bool, (n, d)."""
    log_prob = density.conditional_log_prob(X, hidden)
    return log_prob.sum(1) * (X.shape[1] / hidden.to(X).sum(1))


def masked_sums(density_of, params, pairs, rows_of, chunks):
    """Return `MaskedScores` of pairs, computed in chunks of them.

    density_of : from parameters to the density. rows_of : from numbers of rows to the
    rows and their weights. chunks : as `MaskedPairs.chunks` yields them.

    What the density says of each entry alone has the same weight in the value whatever
    the mask. So values have less noise, and it does not depend on units.
    """
    params = [param.detach().requires_grad_() for param in params]
    by_mask = 0.0
    for part, hidden in chunks:
        X, weight = rows_of(pairs.rows[part])
        with torch.enable_grad():
            value = masked_scores(density_of(*params), X, hidden)
            torch.dot(weight, value).backward()
        with torch.no_grad():
            everything = torch.ones_like(hidden[:1])
            alone = density_of(*params).conditional_log_prob(X, everything)
        share = hidden.to(X).mean(1, keepdim=True)
        excess = hidden / share - 1
        value = value.detach() - (excess * alone).sum(1)
        sums = value.new_zeros(2, len(pairs.masks))
        values = torch.stack([weight * value, weight])
        by_mask = by_mask + sums.index_add_(1, pairs.of_mask[part], values)
    zeros = map(torch.zeros_like, params)
    gradient = [
        zero if param.grad is None else param.grad
        for param, zero in zip(params, zeros, strict=True)
    ]
    return MaskedScores(by_mask, gradient)


class MaskedObjective(Objective):
    """The mean masked score of rows, as objective of natural steps.

    The information is that of the log marginal likelihood.

    Parameters
    ----------
    likelihood : Objective
        The log marginal likelihood of the same rows, with ``density(*point)`` and
        ``rows(index)``.
    source : MaskSource
    following : Objective, default=None
        What is maximised afterwards.

    Attributes
    ----------
    information_steps : int
        Number of steps on the same rows that share the information.
    """

    is_noisy = True
    information_steps = 3

    def __init__(self, likelihood, source, following=None):
        self.likelihood, self.source, self._following = likelihood, source, following
        self.floor, self.log_scale = likelihood.floor, likelihood.log_scale
        self.rules = likelihood.rules
        self._information, self._n_steps = None, 0

    def batches(self, rng):
        has_all = self.likelihood.has_all_masks
        for rows in self.likelihood.batches(rng):
            yield rows, self.source.pairs(rows, rng, has_all)

    def sums(self, point, batch):
        rows, pairs = batch
        likelihood, has_all = self.likelihood, self.likelihood.has_all_masks
        is_new = has_all or likelihood.n_batches > 1
        if is_new or self._n_steps % self.information_steps == 0:
            sums = likelihood.likelihood_sums(point, rows)
            self._information = sums.information.times(1 / sums.n_rows)
        self._n_steps += 1
        chunks = pairs.chunks(likelihood.density(*point).row_bytes, has_all)
        scores = masked_sums(likelihood.density, point, pairs, likelihood.rows, chunks)
        value, n_rows = scores.by_mask.sum(1)
        gradient, information = Point(*scores.gradient), self._information.times(n_rows)
        sums = Sums(value, value, gradient, information, n_rows, by_mask=scores.by_mask)
        return likelihood.completed(sums, point)

    def exact_objective(self):
        return self._following


def masked_first(likelihood, following, params, data):
    """Return the objective of rows that the parameters of an estimator ask for.

    likelihood : of batches of rows. following : the same of all rows. params : with
    `objective`, `mask_rate` and `n_masks`. data : TrainingData.
    """
    if params.objective != "mpt":
        return likelihood
    is_followed = ends_without_masks(params.mask_rate, params.n_masks)
    if is_followed and not data.is_all:
        return likelihood  # of a part of a stream, without the noise of masks
    source = MaskSource(params.mask_rate, params.n_masks, data.X.shape[1])
    return MaskedObjective(likelihood, source, following if is_followed else None)
