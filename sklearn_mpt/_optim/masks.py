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

from sklearn_mpt._measure.masks import (
    block_keys,
    draw_masks,
    enumerate_masks,
    fixed_size,
)
from sklearn_mpt._numbers import CHUNK_BYTES, chunk_slices
from sklearn_mpt._optim.natural import Objective, Point, Sums


class MaskedPairs(NamedTuple):
    """Pairs of a row and a mask."""

    # rows, of_mask : numbers of the row and of the mask of each pair, (m,), in the
    # order of masks. masks : True where hidden, (n_masks, d).

    rows: torch.Tensor
    of_mask: torch.Tensor
    masks: torch.Tensor

    def chunks(self, row_bytes):
        """Yield slices of pairs, and what they hide, (n, d)."""
        # row_bytes : memory that the conditionals of a row take.
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

    @property
    def are_all(self):
        """Whether a step has all masks of the size."""
        if self.mask_rate == "uniform":
            return False
        # at most so many masks of a size are all in each step, which has no noise
        n_masks = 512 if self.n_masks == "auto" else self.n_masks
        size = fixed_size(self.mask_rate, self.n_features)
        return math.comb(self.n_features, size) <= n_masks

    def draw(self, rng):
        """Draw the masks of a step; all masks of a size, if they are no more."""
        # With a uniform rate every other mask hides what the one before shows, so that
        # columns are hidden about equally often, which lowers the noise.
        n_features, n_masks = self.n_features, self.n_masks
        n_masks = 32 if n_masks == "auto" else n_masks
        if self.are_all:
            return enumerate_masks(n_features, fixed_size(self.mask_rate, n_features))
        if self.mask_rate != "uniform":
            return shared_masks(self.mask_rate, n_masks, n_features, rng)
        masks = shared_masks("uniform", (n_masks + 1) // 2, n_features, rng)
        # the complement of all columns hides nothing: all columns take its place
        others = ~masks | masks.all(1, keepdims=True)
        return np.stack([masks, others], 1).reshape(-1, n_features)[:n_masks]

    def pairs(self, rows, masks, rng):
        """Divide rows, a tensor of their numbers, among the masks of a step."""
        # Rows have one mask each, or several if there would be fewer than 1024 pairs:
        # with twice as many masks take half of a fit (benchmarks/RESULTS.rst).
        n_rows = len(rows)
        if self.are_all:
            masks = rng.permutation(masks)
        n_copies = min(len(masks), max(1, 1024 // n_rows))
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


def masked_sums(density_of, params, pairs, rows_of, chunks):
    """Return `MaskedScores` of pairs, computed in chunks of them.

    density_of : from parameters to the density. rows_of : from numbers of rows to the
    rows and their weights. chunks : as `MaskedPairs.chunks` yields them.

    What the density says of each entry alone counts alike, whatever the mask and the
    rows of it. So values have less noise, and it does not depend on units.
    """
    params = [param.detach().requires_grad_() for param in params]
    by_mask, gradient = 0.0, [torch.zeros_like(param) for param in params]
    total_alone = 0.0
    for part, hidden in chunks:
        X, weight = rows_of(pairs.rows[part])
        with torch.enable_grad():
            log_prob = density_of(*params).conditional_log_prob(X, hidden)
            value = log_prob.sum(1) * (X.shape[1] / hidden.to(X).sum(1))
            total = torch.dot(weight, value)
            more = torch.autograd.grad(total, params, materialize_grads=True)
        # what is not used has a gradient with a gradient, with PyTorch 2.4
        gradient = [a + b.detach() for a, b in zip(gradient, more, strict=True)]
        with torch.no_grad():  # of each row once
            numbers, place = pairs.rows[part].unique(return_inverse=True)
            of_rows, everything = X[: len(numbers)].clone(), torch.ones_like(hidden[:1])
            of_rows[place] = X
            alone = density_of(*params).conditional_log_prob(of_rows, everything)[place]
        share = hidden.to(X).mean(1, keepdim=True)
        value = value.detach() - (hidden / share * alone).sum(1)
        total_alone += weight @ alone.sum(1)
        sums = value.new_zeros(2, len(pairs.masks))
        values = torch.stack([weight * value, weight])
        by_mask = by_mask + sums.index_add_(1, pairs.of_mask[part], values)
    by_mask[0] += total_alone / by_mask[1].sum() * by_mask[1]
    return MaskedScores(by_mask, gradient)


def moment_sums(density_of, params, masks, moments):
    """Return `MaskedScores` of masks, of complete rows with these moments."""
    params = [param.detach().requires_grad_() for param in params]
    n_features = masks.shape[1]
    with torch.enable_grad():
        scores = density_of(*params).moment_scores(moments, masks)
        (n_features * scores.sum()).backward()
    with torch.no_grad():
        alone = density_of(*params).alone_scores(moments)
    excess = masks / masks.to(alone).mean(1, keepdim=True) - 1
    values = n_features * scores.detach() - excess @ alone
    by_mask = torch.stack([values, torch.ones_like(values)])
    return MaskedScores(by_mask, [param.grad for param in params])


class MaskedObjective(Objective):
    """The mean masked score of rows; the information is that of the likelihood."""

    # likelihood : objective of the same rows, with `density(*point)` and `rows(index)`,
    # and `moments` of complete rows of a Gaussian model, or None. following : what is
    # maximised afterwards, or None.

    def __init__(self, likelihood, source, following=None):
        self.likelihood, self.source, self._following = likelihood, source, following
        self.floor, self.log_scale = likelihood.floor, likelihood.log_scale
        self.max_step, self.n_batches = likelihood.max_step, likelihood.n_batches
        self.is_noisy = likelihood.moments is None or not source.are_all

    def batches(self, rng):
        for rows in self.likelihood.batches(rng):
            masks = self.source.draw(rng)
            if self.likelihood.moments is None:
                yield rows, self.source.pairs(rows, masks, rng)
            else:
                yield rows, torch.from_numpy(masks).to(rows.device)

    def sums(self, point, batch):
        rows, masks = batch
        likelihood = self.likelihood
        of_rows = likelihood.sums(point, rows)
        if likelihood.moments is not None:
            scores = moment_sums(likelihood.density, point, masks, likelihood.moments)
        else:
            chunks = masks.chunks(likelihood.density(*point).row_bytes)
            scores = masked_sums(
                likelihood.density, point, masks, likelihood.rows, chunks
            )
        value, n_rows = scores.by_mask.sum(1)
        gradient = Point(*scores.gradient)
        information = of_rows.information.times(n_rows / of_rows.n_rows)
        by_mask = scores.by_mask if self.is_noisy else None
        return Sums(value, value, gradient, information, n_rows, by_mask=by_mask)

    def completed(self, sums, point):
        return self.likelihood.completed(sums, point)

    def exact_objective(self):
        return self._following


def ends_without_masks(mask_rate, n_masks):
    """Return whether the last epochs draw no masks, given an estimator's parameters."""
    # Not with a number of masks, because the user asks for it, nor with a fixed rate,
    # because the sum over all sizes is another objective.
    return n_masks == "auto" and mask_rate == "uniform"


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


def shared_masks(mask_rate, n_masks, n_features, rng):
    """Draw the masks of one step, each for many rows; (n_masks, n_features)."""
    # With a uniform rate, one size is drawn from each of `n_masks` equal slices of
    # 1..n_features, in random order, so that any part of them is unbiased too.
    if mask_rate == "uniform":
        quantiles = (np.arange(n_masks) + rng.random(n_masks)) / n_masks
        sizes = 1 + np.floor(rng.permutation(quantiles) * n_features).astype(int)
    else:
        sizes = np.full(n_masks, fixed_size(mask_rate, n_features))
    return draw_masks(sizes, n_features, rng)


class RowMasks:
    """Draw a mask for each row, with the sizes that `mask_rate` defines."""

    # For a uniform rate, sizes are drawn from 1 to the number of present entries of
    # each row, and only these are hidden: missing entries contribute 0. blocks :
    # features that are hidden together.

    def __init__(self, mask_rate, n_features, blocks=None):
        self.size, self.blocks = None, blocks
        if mask_rate != "uniform":
            self.size = fixed_size(mask_rate, n_features)

    def draw(self, present, generator, n_batches=1):
        """Draw a mask for each row; return masks and weights of hidden entries."""
        # present : bool (n, d). n_batches : each of as many neighbouring rows, over
        # which sizes are stratified. With a uniform rate, the mean over masks of minus
        # the weighted sum of hidden log-probabilities is minus the log-density.
        n, d = present.shape
        where = {
            "generator": generator,
            "device": present.device,
            "dtype": torch.float32,
        }
        keys = self._keys(n, d, where)
        if self.size is not None:
            highest = keys.kthvalue(self.size, 1, keepdim=True).values
            weight = torch.full((n,), d / self.size, device=present.device)
            return keys <= highest, weight.to(torch.float32)
        keys = torch.where(present, keys, math.inf)
        count = present.sum(1).clamp(min=1)
        n_in_batch = n // n_batches
        positions = [
            torch.randperm(n_in_batch, generator=generator, device=present.device)
            for _ in range(n_batches)
        ]
        level = (torch.cat(positions) + torch.rand(n, **where)) / n_in_batch
        size = torch.minimum((level * count).long() + 1, count)
        if keys.device.type == "cpu":  # NumPy is ten times as fast as torch
            ordered = torch.from_numpy(np.sort(keys.numpy(), axis=1))
        else:
            ordered = keys.sort(1).values
        highest = ordered.gather(1, size[:, None] - 1)
        return keys <= highest, count.to(torch.float32) / size

    def _keys(self, n, d, where):
        """Draw keys (n, d); the smallest ones of each row are hidden."""
        if self.blocks is None:
            return torch.rand(n, d, **where)
        # single precision has ties between the keys of a block
        where = where | {"dtype": torch.float64}
        numbers = torch.as_tensor(self.blocks.numbers, device=where["device"])
        blocks = self.blocks._replace(numbers=numbers)
        return block_keys(lambda *shape: torch.rand(shape, **where), n, blocks)
