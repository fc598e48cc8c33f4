"""Objectives of linear Gaussian models: of rows, or of their second moments."""

import functools
import math
import operator
from abc import abstractmethod

import numpy as np
import torch

from sklearn_mpt._factors.saddles import with_missing_components
from sklearn_mpt._factors.sums import (
    LinearGaussianParts,
    likelihood_sums,
    location_gradients,
    masked_sums,
    moment_likelihood_sums,
    moment_sums,
    packing_of,
)
from sklearn_mpt._fitting.masks import MaskedBatch
from sklearn_mpt._fitting.natural_gradient import axes_of
from sklearn_mpt._fitting.objective import Objective
from sklearn_mpt._fitting.weights import SampleWeights
from sklearn_mpt._matrices import explained_fractions, identity, inverse_product
from sklearn_mpt._numbers import CHUNK_ENTRIES, KEPT_ENTRIES
from sklearn_mpt._seeds import N_TORCH_SEEDS


class GaussianObjective(Objective):
    """Objective of a linear Gaussian model, from rows or from their moments.

    masks : callable, or None for the log marginal likelihood. n_dims : number of latent
    variables. floor : smallest log noise variance. device : that of the rows.
    exact_follows : whether the objective without masks follows.
    log_scale : as in `Objective`.

    Attributes
    ----------
    max_joint_noises : int
        Largest number of noise variances whose information is inverted as a matrix.
    joins_noises : bool
        Whether it is inverted as a matrix at all. The inverse would enlarge the noise
        of gradients of a part of the rows.
    trial : tuple of (float, int)
        Least gain of a direction that is tried, as a fraction of the loss by removing
        the component, and number of epochs.
    """

    max_joint_noises = 500
    trial = 0.25, 16
    joins_noises = True
    has_gaps = False

    def __init__(self, masks, n_dims, floor, device, exact_follows, log_scale):
        self.masks = masks
        self.log_scale = log_scale
        self.n_dims = n_dims
        self.floor = floor
        self.symmetric = packing_of(n_dims, device)
        self._exact_follows = exact_follows

    def batches(self, rng):
        seeds = rng.integers(N_TORCH_SEEDS, size=self.n_batches)
        for rows, seed in zip(self._shuffled(rng), seeds, strict=True):
            yield MaskedBatch(rows, int(seed))

    @abstractmethod
    def _shuffled(self, rng):
        """Return the indices of the rows of each batch, in random order."""

    def sums(self, point, batch):
        """Return the sums of a batch.

        They are computed with components on orthogonal axes, so that precisions are
        nearly diagonal. Otherwise rounding errors of strong components would affect
        weak ones.
        """
        rotation = axes_of(point)
        rotated = point._replace(coefs=point.coefs @ rotation)
        sums = functools.reduce(operator.add, self._parts(rotated, batch))
        is_lml = self.masks is None or self.masks.is_uniform
        is_shared = point.shape_params.ndim == 0
        is_joint = self.joins_noises and len(point.coefs) <= self.max_joint_noises
        if is_lml and (is_shared or is_joint):
            row_information = self._noise_information(rotated)
            information = sums.information._replace(
                shape_params=sums.n_rows * row_information
            )
            sums = sums._replace(information=information)
        return sums.rotated(rotation.T)

    def _noise_information(self, point):
        r"""Return the information of the log noise variances, per row.

        The information in EM takes z as known. It is much too large if components
        explain nearly all of a feature. With a shared noise variance, this is
        :math:`\frac{1}{2} \sigma^4 \mathrm{tr} \, C^{-2}`, with the covariance C of the
        present entries. Otherwise it is a matrix: the entrywise square of
        :math:`\Psi^{1/2} C^{-1} \Psi^{1/2}` for complete rows, times 1/2 and the
        fraction of rows in which both features are present.
        """
        present, weight = self._patterns
        model = LinearGaussianParts(point)
        if model.is_shared:
            C = self.symmetric.covariance(present, model.scaled)
            trace = present.sum(1) - C.shape[1] + (C**2).sum((1, 2))
            return 0.5 * (weight * trace).sum()
        axes, lengths, _ = torch.linalg.svd(model.scaled, full_matrices=False)
        product = (axes * explained_fractions(lengths)) @ axes.T
        precision = identity(len(axes), axes) - product
        return 0.5 * self._present_pairs * precision**2

    @functools.cached_property
    def _present_pairs(self):
        """Fractions of rows in which two features are both present; (d, d)."""
        present, weight = self._patterns
        return present.T @ (weight[:, None] * present)

    @property
    @abstractmethod
    def _patterns(self):
        """Which entries of some rows are present, and the weights of these rows."""

    @abstractmethod
    def _parts(self, point, batch):
        """Yield the sums of parts of a batch."""

    def exact_objective(self):
        """Return the objective summed over all sizes, without masks, if it follows."""
        if not self._exact_follows:
            return None
        return self._without_masks()

    @abstractmethod
    def _without_masks(self):
        """Return the log marginal likelihood of the same rows."""

    def escapes(self, point, min_gain):
        """Yield points with directions that explain more than weak components.

        With gaps, gains are approximate, and two directions that explain about as much
        can each be part of a local maximum: a direction that may explain less is tried
        for some epochs.
        """
        moments = self.gradient_moments(point)
        trials = ((1.0, 0), self.trial) if self.has_gaps else ((1.0, 0),)
        for fraction, n_epochs in trials:
            candidate = with_missing_components(point, *moments, min_gain, fraction)
            if candidate is not None:
                yield candidate, n_epochs

    @abstractmethod
    def gradient_moments(self, point):
        """Return a function from V to the mean of s s' V over rows, and information.

        s : posterior means of the gradient of a row in its locations; see `saddles`.
        The information is that of the locations.
        """


class GaussianRows(GaussianObjective):
    """Objective of rows, NaN where missing, with a mask for each row; see `ascent`.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Rows in single or double precision; blocks are converted to double.
    n_dims : int
    masks : callable, or None for the log marginal likelihood
    batch_size : int or "auto"
    floor : Tensor
        Smallest log noise variance.
    weight : ndarray of shape (n,), or None
    exact_follows : bool
        See `GaussianObjective`.
    units : Units, default=None
        Of the rows, if they are not standardised.
    is_all : bool
        Whether these are all rows, and no part of a stream.

    Attributes
    ----------
    min_pairs : int
        Least number of pairs of a row and a mask in a step: few rows have several
        masks.
    max_batch : int
        Largest number of rows in a step, if `batch_size` is "auto".
    noise_rows : int
        Number of rows from which the information of the noise is estimated.
    """

    min_pairs = 2048
    max_batch = 2**17
    noise_rows = 1000

    def __init__(
        self,
        X,
        n_dims,
        masks,
        batch_size,
        floor,
        weight=None,
        exact_follows=False,
        units=None,
        is_all=True,
    ):
        log_scale = 0.0 if units is None else units.mean_log_scale(X, weight)
        super().__init__(masks, n_dims, floor, X.device, exact_follows, log_scale)
        self.X, self.units = X, units
        self._sample_weight = weight
        self.weights = SampleWeights.from_array(weight, X)
        n_rows, n_features = X.shape
        self.n_rows = n_rows
        n_copies = 1 if masks is None else max(1, self.min_pairs // n_rows)
        self.n_pairs = n_copies * n_rows
        size = min(self.n_pairs, self.max_batch) if batch_size == "auto" else batch_size
        self.n_batches = math.ceil(self.n_pairs / size)
        row_entries = 8 * n_features + 4 * n_dims**2
        self.n_block = max(64, CHUNK_ENTRIES // row_entries)
        self.is_noisy = masks is not None or self.n_batches > 1
        self.joins_noises = is_all and self.n_batches == 1
        self.has_gaps = bool(torch.isnan(X.min()))

    def _without_masks(self):
        batch_size, weight = self.n_rows, self._sample_weight  # no noise of batches
        args = self.X, self.n_dims, None, batch_size, self.floor, weight
        return GaussianRows(*args, units=self.units)

    def _standardised_rows(self, rows):
        """Return some rows, standardised, and their weights."""
        X, weight = self.X[rows].double(), self.weights.values[rows]
        return X if self.units is None else self.units.standardise(X), weight

    def _spaced_rows(self, n_rows):
        """Return the indices of evenly spaced rows."""
        rows = np.linspace(0, len(self.X) - 1, n_rows).astype(np.int64)
        return torch.from_numpy(rows).to(self.X.device)

    def _shuffled(self, rng):
        order = np.arange(self.n_pairs)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order % len(self.X)).to(self.X.device)
        return torch.tensor_split(order, self.n_batches)

    @functools.cached_property
    def _patterns(self):
        rows = self._spaced_rows(min(len(self.X), self.noise_rows))
        weight = self.weights.values[rows]
        return (~torch.isnan(self.X[rows])).double(), weight / weight.sum()

    def _parts(self, point, batch):
        for first in range(0, len(batch.rows), self.n_block):
            rows = batch.rows[first : first + self.n_block]
            X, weight = self._standardised_rows(rows)
            present = (~torch.isnan(X)).to(X.dtype)
            if self.masks is None and present.all():
                present = present[:1]  # rows have one posterior covariance
            X = torch.nan_to_num(X)
            if self.masks is None:
                yield likelihood_sums(X, present, point, self.symmetric, weight)
                continue
            visible, target = self.masks(present, batch, first)
            args = X, present, visible, target, point, self.symmetric
            yield masked_sums(*args, weight=weight)

    def gradient_moments(self, point):
        """Return a function from V to the mean of s s' V over rows, and information.

        s : posterior means of the gradient of a row in its locations; see `saddles`.
        The information is that of the locations. If rows are many, evenly spaced ones
        are used.
        """
        n_rows = max(1, min(len(self.X), KEPT_ENTRIES // self.X.shape[1]))
        rows = self._spaced_rows(n_rows)
        X, weight = self._standardised_rows(rows)
        present = (~torch.isnan(X)).to(X.dtype)
        rotated = point._replace(coefs=point.coefs @ axes_of(point))
        X = torch.nan_to_num(X)
        gradients = location_gradients(X, present, rotated, self.symmetric)
        fraction = weight[:, None] / weight.sum()
        information = (fraction * present).sum(0) / point.shape_params.exp()
        return (lambda V: gradients.T @ (fraction * (gradients @ V))), information


class GaussianMoments(GaussianObjective):
    """Objective of complete rows, computed from their second moments for each mask.

    The mean of the rows must be that of the model: it maximises the objective.

    masks : None for the log marginal likelihood. exact_follows, log_scale : as in
    `GaussianObjective`.
    """

    n_rows = math.inf  # noise from masks is removed whatever the number of rows

    def __init__(
        self,
        moments,
        n_masks,
        n_dims,
        masks,
        floor,
        exact_follows=False,
        log_scale=0.0,
    ):
        device = moments.mean.device
        super().__init__(masks, n_dims, floor, device, exact_follows, log_scale)
        self.is_noisy = masks is not None
        self.moments = moments
        self.all = moments.mean.new_ones(n_masks, len(moments.mean))
        self.n_batches = 1

    def _without_masks(self):
        args = self.moments, 1, self.n_dims, None, self.floor
        return GaussianMoments(*args, log_scale=self.log_scale)

    def gradient_moments(self, point):
        """Return what `GaussianRows.gradient_moments` does, from the moments."""
        model = LinearGaussianParts(point)
        size = model.noise.sqrt()[:, None]
        axes, lengths, _ = torch.linalg.svd(model.scaled, full_matrices=False)

        def inverse(V):
            """Multiply V by the inverse of the model's covariance."""
            return inverse_product(axes, lengths, V / size) / size

        return (
            lambda V: inverse(self.moments.product(inverse(V).T).T)
        ), 1 / model.noise

    def _shuffled(self, rng):
        return [None]

    @property
    def _patterns(self):
        return self.all[:1], self.all.new_ones(1)

    def _parts(self, point, batch):
        args = self.moments.product, self.moments.variance
        if self.masks is None:
            n_rows = len(self.all)
            yield moment_likelihood_sums(*args, n_rows, point, self.symmetric)
            return
        visible, target = self.masks(self.all, batch, 0)
        yield moment_sums(*args, visible, target, point, self.symmetric)
