"""What a linear Gaussian model is trained on: rows, or their second moments."""

import copy
import functools
import math
import operator
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip

from sklearn_mpt._checks import check_choice
from sklearn_mpt._latent.natural_gradient import IDLE, IDLE_FOR_MASKS, Weights, axes_of
from sklearn_mpt._likelihoods.gaussian import row_blocks
from sklearn_mpt._linear.gaussian_sums import (
    Model,
    Symmetric,
    explained_axes,
    likelihood_sums,
    masked_sums,
    mean_slopes,
    moment_likelihood_sums,
    moment_sums,
    whitened_precision,
)
from sklearn_mpt._measure.masks import fixed_size

GOLDEN, SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
MIN_PAIRS = 2048  # of a row and a mask in a step: few rows have several masks each
BLOCK_BYTES = 2**24  # of what is held for a block of rows: caches are not much larger
MAX_BATCH = 2**17  # rows of a step, if they are not told
MOST_JOINT_NOISES = 500  # whose information is a matrix, to be solved in each step
NOISE_ROWS = 1000  # that tell the information of the noise
SLOPE_NUMBERS = 2**24  # of the rows that tell what components miss
FEW = 0.2  # of the latent dimensions, in observed features: see UniformMasks


class Batch(NamedTuple):
    """Rows of a step, and what their masks are drawn from."""

    rows: torch.Tensor
    turn: int
    seed: int
    shift: float


class UniformMasks:
    """Sets R of uniform size, with every entry a target given the others in R.

    Each entry is seen with the probability u of its row: as u is uniform, so is the
    size, over 0..d. From row to row and from turn to turn u follows sequences that
    cover the interval evenly; the sets of odd turns are complements of those before.

    few : float, default=None
        If given, half the draws have a density as 1 / (u + few), since what few
        features say of z varies most; weights make up for it.
    """

    is_uniform = True

    def __init__(self, few=None):
        self.few = few

    def __call__(self, present, batch, first):
        uniform = _uniform(batch, first, present)
        place = torch.arange(first, first + len(present), device=present.device)
        start = batch.shift + SILVER * place[:, None].to(present.dtype)
        share, weight = self._share((start + GOLDEN * (batch.turn // 2)) % 1)
        seen = uniform < share
        seen = ~seen if batch.turn % 2 else seen
        return present * seen, present * weight

    def _share(self, uniform):
        if self.few is None:
            return uniform, 1.0
        width = math.log1p(1 / self.few)
        tilted = self.few * torch.expm1((2 * uniform - 1) * width)
        share = torch.where(uniform < 0.5, 2 * uniform, tilted)
        density = 1 / (share + self.few) + 1 / (1 - share + self.few)
        return share, 1 / (0.5 + 0.25 * density / width)


class FixedMasks:
    """Hidden sets of one size as targets; those of successive turns are disjoint."""

    is_uniform = False

    def __init__(self, size):
        self.size = size

    def __call__(self, present, batch, first):
        n_features = present.shape[1]
        n_parts = max(1, n_features // self.size)
        rank = _uniform(batch, first, present).argsort(1).argsort(1)
        start = (batch.turn % n_parts) * self.size
        hidden = (rank >= start) & (rank < start + self.size)
        return present * ~hidden, present * hidden * (n_features / self.size)


def _uniform(batch, first, like):
    """Draw uniform numbers for the rows of a batch from the first on."""
    state = np.random.SeedSequence([batch.seed, first]).generate_state(1, np.uint64)
    generator = torch.Generator(like.device).manual_seed(int(state[0] >> np.uint64(1)))
    single = {"dtype": torch.float32, "device": like.device}
    return torch.rand(like.shape, generator=generator, **single)


class GaussianRows:
    """Rows, NaN where missing, each with masks of its own; see `ascent`.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        In single or double precision; blocks are computed with in double.
    n_dims : int
    masks : callable, or None for the log marginal likelihood
    batch_size : int or "auto"
    floor : Tensor
        Least log noise.
    weight : ndarray of shape (n,), or None
    """

    longest = math.inf
    expand = True
    least = 10
    idle = IDLE
    n_turns = 1  # that a step takes together, the second of complements

    def __init__(self, X, n_dims, masks, batch_size, floor, weight=None):
        self.X = X
        self.weights = Weights.of(weight, X)
        self.masks = masks
        self.floor = floor
        self.symmetric = Symmetric(n_dims, X.device)
        self.is_worth_trials = bool(torch.isnan(X.min()))
        n_rows, n_features = X.shape
        self.n_rows = n_rows
        n_copies = 1 if masks is None else max(1, MIN_PAIRS // n_rows)
        self.n_pairs = n_copies * n_rows
        size = min(self.n_pairs, MAX_BATCH) if batch_size == "auto" else batch_size
        self.n_batches = math.ceil(self.n_pairs / size)
        row_bytes = 8 * (8 * n_features + 4 * n_dims**2)
        self.n_block = max(64, BLOCK_BYTES // row_bytes)
        self._turn = 0

    def start(self, point):
        return point

    @property
    def is_noisy(self):
        return self.masks is not None or self.n_batches > 1

    def batches(self, rng):
        if self._turn % 2 == 0 or self.masks is None:
            self._order = self._shuffled(rng)
            self._seeds = rng.integers(2**63, size=self.n_batches)
        if self._turn == 0:
            self._shift = rng.random()
        turn, self._turn = self._turn, self._turn + self.n_turns
        for index, seed in zip(self._order, self._seeds, strict=True):
            yield Batch(index, turn, int(seed), self._shift)

    def _shuffled(self, rng):
        order = np.arange(self.n_pairs)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order % len(self.X)).to(self.X.device)
        return torch.tensor_split(order, self.n_batches)

    def sums(self, point, batch):
        """Sums of a batch, by orthogonal weights: so that precisions are near diagonal.

        Otherwise strong and weak components would mix, and the weak ones be lost.
        """
        rotation = axes_of(point)
        turned = point._replace(coefs=point.coefs @ rotation)
        sums = self._sums(turned, batch)
        is_lml = self.masks is None or self.masks.is_uniform
        is_shared = point.log_noise.ndim == 0
        is_joint = not self.is_noisy and len(point.coefs) <= MOST_JOINT_NOISES
        if sums.information is not None and is_lml and (is_shared or is_joint):
            of_row = self._noise_information(turned)
            information = sums.information._replace(own=sums.n_rows * of_row)
            sums = sums._replace(information=information)
        return sums.turned(rotation.T)

    def _noise_information(self, point):
        r"""Observed information of the log noise variances, per row.

        That of EM takes z as known, and most of the noise is not, where components
        explain nearly all of a feature. If all share their noise, this is
        :math:`\frac{1}{2} \sigma^4 \mathrm{tr} \, C^{-2}` of the covariance C of what
        is present. Otherwise it is a matrix, :math:`\frac{1}{2} (\Psi^{1/2} C^{-1}
        \Psi^{1/2})^2` entry by entry, that of complete rows times the share of the rows
        in which two features are present.
        """
        present, weight = self._patterns
        of = Model(point)
        if of.is_shared:
            C = self.symmetric.covariance(present, of.scaled)
            trace = present.sum(1) - C.shape[1] + (C**2).sum((1, 2))
            return 0.5 * (weight * trace).sum()
        both = present.T @ (weight[:, None] * present)
        return 0.5 * both * whitened_precision(of.scaled) ** 2

    @functools.cached_property
    def _patterns(self):
        """Which entries of some rows are present, and the shares of these rows."""
        places = np.linspace(0, len(self.X) - 1, min(len(self.X), NOISE_ROWS))
        rows = torch.from_numpy(places.astype(int)).to(self.X.device)
        weight = self.weights.each[rows]
        return (~torch.isnan(self.X[rows])).double(), weight / weight.sum()

    def _sums(self, point, batch):
        starts = range(0, len(batch.rows), self.n_block)
        parts = (self._block(point, batch, first) for first in starts)
        return functools.reduce(operator.add, parts)

    def _block(self, point, batch, first):
        rows = batch.rows[first : first + self.n_block]
        X, weight = self.X[rows].double(), self.weights.each[rows]
        present = (~torch.isnan(X)).to(X.dtype)
        X = torch.nan_to_num(X)
        if self.masks is None:
            return likelihood_sums(X, present, point, self.symmetric, weight)
        seen, target = self.masks(present, batch, first)
        informed = batch.turn % 2 == 0  # that of the complements is much the same
        of = X, present, seen, target, point, self.symmetric
        return masked_sums(*of, informed, weight)

    def without_masks(self):
        """Return the same objective as a sum over all sizes, if masks estimate that."""
        if self.masks is None or not self.masks.is_uniform:
            return None
        exact = copy.copy(self)
        exact.masks, exact.idle = None, IDLE_FOR_MASKS
        exact.n_pairs, exact.n_batches = self.n_rows, 1
        exact._turn = 0
        return exact

    def slopes(self, point):
        """Return V -> the mean of s s' V over rows, and the information of locations.

        s are the posterior means of the slopes in the locations; see `saddles`.
        """
        rows = self._some_rows()
        X, weight = self.X[rows].double(), self.weights.each[rows]
        present = (~torch.isnan(X)).to(X.dtype)
        turned = point._replace(coefs=point.coefs @ axes_of(point))
        slopes = mean_slopes(torch.nan_to_num(X), present, turned, self.symmetric)
        share = weight[:, None] / weight.sum()
        information = (share * present).sum(0) / point.log_noise.exp()
        return (lambda V: slopes.T @ (share * (slopes @ V))), information

    def _some_rows(self):
        """Evenly spaced rows, all unless they are many."""
        n_rows = max(1, min(len(self.X), SLOPE_NUMBERS // self.X.shape[1]))
        places = np.linspace(0, len(self.X) - 1, n_rows).astype(np.int64)
        return torch.from_numpy(places).to(self.X.device)


class GaussianMoments(GaussianRows):
    """Complete rows through their second moments: masks stand where rows stood."""

    least = 20  # steps cost little
    n_rows = math.inf  # so noise is worth removing to the end
    is_worth_trials = False

    def __init__(self, moments, n_masks, n_dims, masks, floor):
        self.masks = masks
        self.floor = floor
        self.symmetric = Symmetric(n_dims, moments.mean.device)
        self.moments = moments
        self.all = moments.mean.new_ones(n_masks, len(moments.mean))
        self._patterns = self.all[:1], self.all.new_ones(1)
        self.n_turns = 2 if masks.is_uniform and n_masks > 1 else 1
        self.n_batches = 1
        self._turn = 0

    def start(self, point):
        """The mean of the rows is where the score of every mask is largest."""
        weights, mean = point.coefs[:, :-1], self.moments.mean[:, None]
        return point._replace(coefs=torch.cat([weights, mean], 1))

    def slopes(self, point):
        """Return what `GaussianRows.slopes` does, by the moments."""
        of = Model(point)
        size = of.noise.sqrt()[:, None]
        axes, explained = explained_axes(of.scaled)

        def inverse(V):
            """The inverse of the model's covariance, times V."""
            V = V / size
            return (V - axes @ (explained[:, None] * (axes.T @ V))) / size

        return (lambda V: inverse(self.moments.product(inverse(V).T).T)), 1 / of.noise

    def _masks(self, batch):
        """Those of a step: in two turns, the second half complements the first."""
        halves = self.all.tensor_split(self.n_turns)
        turns = [batch._replace(turn=batch.turn + i) for i in range(self.n_turns)]
        parts = [self.masks(h, t, 0) for h, t in zip(halves, turns, strict=True)]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def _shuffled(self, rng):
        return [None]

    def without_masks(self):
        exact = super().without_masks()
        if exact is not None:
            exact.n_turns = 1
        return exact

    def _sums(self, point, batch):
        if self.masks is None:
            product, variance = self.moments.product, self.moments.variance
            of = product, variance, len(self.all), point, self.symmetric
            return moment_likelihood_sums(*of)
        seen, target = self._masks(batch)
        product, variance = self.moments.product, self.moments.variance
        return moment_sums(product, variance, seen, target, point, self.symmetric)


def uniform_or_fixed(mask_rate, n_features, few=None):
    if mask_rate == "uniform":
        return UniformMasks(few)
    return FixedMasks(fixed_size(mask_rate, n_features))


def closed_form(X, units, n_components, noise_floor, weight=None):
    """The maximum likelihood solution on mean-imputed rows (Tipping and Bishop).

    units : mean of each column, and the scale to divide it by, or None.
    """
    total = len(X) if weight is None else weight.sum()
    blocks = (
        (np.nan_to_num(_standard(block, *units)), share[:, None] / total)
        for block, share in row_blocks(X, weight)
    )
    values, vectors = eigh(sum(b.T @ (share * b) for b, share in blocks))
    values, vectors = values[::-1], vectors[:, ::-1]
    rest = values[n_components:] if n_components < len(values) else values[-1:]
    noise_variance = max(float(rest.mean()), noise_floor)
    lengths = np.sqrt(np.maximum(values[:n_components] - noise_variance, 0))
    return {
        "components_": principal_axes((vectors[:, :n_components] * lengths).T),
        "mean_": units[0],
        "noise_variance_": noise_variance,
    }


def _standard(X, mean, scale):
    return X - mean if scale is None else (X - mean) / scale


def principal_axes(components):
    """Rotate components to orthogonal ones, longest first, with definite signs."""
    U, lengths, axes = np.linalg.svd(components, full_matrices=False)
    _, axes = svd_flip(U, axes, u_based_decision=False)
    rotated = np.zeros_like(components)  # more components than features: zero rows
    rotated[: len(lengths)] = lengths[:, None] * axes
    return rotated


def simple_axes(components, rotation):
    """Rotate to the principal axes, or on to those of "varimax" or "quartimax"."""
    components = principal_axes(components)
    if rotation is None or len(components) == 1:
        return components
    from sklearn.decomposition._factor_analysis import _ortho_rotation

    return _ortho_rotation(components.T, method=rotation)


def check_rotation(rotation):
    if rotation is not None:
        check_choice(rotation, "rotation", ["varimax", "quartimax"])
