"""Objectives of linear Gaussian models: of rows, or of their second moments."""

import functools
import math
import operator
from abc import abstractmethod

import numpy as np
import torch
from scipy.linalg import helmert

from sklearn_mpt._factors.density import density_of
from sklearn_mpt._factors.saddles import with_missing_components
from sklearn_mpt._factors.sums import (
    LinearGaussianParts,
    likelihood_sums,
    location_gradients,
    moment_likelihood_sums,
    packing_of,
)
from sklearn_mpt._fitting.natural_gradient import axes_of
from sklearn_mpt._fitting.objective import Objective
from sklearn_mpt._fitting.weights import SampleWeights
from sklearn_mpt._matrices import explained_fractions, identity, inverse_product
from sklearn_mpt._numbers import CHUNK_ENTRIES, KEPT_ENTRIES


class GaussianObjective(Objective):
    """Log marginal likelihood of a linear Gaussian model, from rows or moments."""

    # joins_noises : whether the information of up to `max_joint_noises` noise variances
    # is inverted as a matrix, which enlarges the noise of gradients of a part of the
    # rows. trial : least gain of a direction that is tried, as a fraction of the loss
    # by removing the component, and number of epochs.

    max_joint_noises = 500
    trial = 0.25, 16
    joins_noises = True
    has_gaps = False

    def __init__(self, n_dims, floor, device, log_scale):
        self.log_scale = log_scale
        self.n_dims = n_dims
        self.floor = floor
        self.symmetric = packing_of(n_dims, device)

    @staticmethod
    def density(coefs, log_noise):
        """Return the density of a point."""
        return density_of(coefs[:, :-1].T, coefs[:, -1], log_noise.exp())

    def sums(self, point, batch):
        """Return the sums of a batch."""
        # Orthogonal axes make precisions nearly diagonal. Otherwise rounding errors of
        # strong components would affect weak ones.
        rotation = axes_of(point)
        rotated = point._replace(coefs=point.coefs @ rotation)
        sums = functools.reduce(operator.add, self._parts(rotated, batch))
        is_shared = point.shape_params.ndim == 0
        is_joint = self.joins_noises and len(point.coefs) <= self.max_joint_noises
        if is_shared or is_joint:
            row_information = self._noise_information(rotated)
            information = sums.information._replace(
                shape_params=sums.n_rows * row_information
            )
            sums = sums._replace(information=information)
        return sums.rotated(rotation.T)

    def _noise_information(self, point):
        """Return the information of the log noise variances, per row."""
        # EM's, which takes z as known, is much too large if components explain nearly
        # all of a feature. With a shared noise variance this is sigma^4 tr(C^-2) / 2,
        # with the covariance C of the present entries; otherwise the entrywise square
        # of Psi^(1/2) C^-1 Psi^(1/2), times 1/2 and the fraction of rows that have both
        # features.
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

    def escapes(self, point, min_gain):
        """Yield points with directions that explain more than weak components."""
        # With gaps, gains are approximate, and two directions that explain about as
        # much can each be part of a local maximum: one that may explain less is tried
        # for some epochs.
        moments = self.gradient_moments(point)
        trials = ((1.0, 0), self.trial) if self.has_gaps else ((1.0, 0),)
        for fraction, n_epochs in trials:
            candidate = with_missing_components(point, *moments, min_gain, fraction)
            if candidate is not None:
                yield candidate, n_epochs

    @abstractmethod
    def gradient_moments(self, point):
        """Return a function from V to the mean of s s' V over rows, and information."""
        # s : posterior means of the gradient of a row in its locations, as in
        # `saddles`. The information is that of the locations.


class GaussianRows(GaussianObjective):
    """Log marginal likelihood of rows, NaN where missing."""

    # X : (n, d), in single or double precision. max_batch : rows in a step, if
    # `batch_size` is "auto". noise_rows : from which the information of the noise is
    # estimated.

    max_batch = 2**17
    noise_rows = 1000

    def __init__(
        self,
        X,
        n_dims,
        batch_size,
        floor,
        weight=None,
        units=None,
        is_all=True,
    ):
        log_scale = 0.0 if units is None else units.mean_log_scale(X, weight)
        super().__init__(n_dims, floor, X.device, log_scale)
        self.X, self.units = X, units
        self.weights = SampleWeights.from_array(weight, X)
        n_rows, n_features = X.shape
        self.n_rows = n_rows
        size = min(n_rows, self.max_batch) if batch_size == "auto" else batch_size
        self.n_batches = math.ceil(n_rows / size)
        row_entries = 8 * n_features + 4 * n_dims**2
        self.n_block = max(64, CHUNK_ENTRIES // row_entries)
        self.is_noisy = self.n_batches > 1
        self.joins_noises = is_all and self.n_batches == 1
        self.has_gaps = bool(torch.isnan(X.min()))

    def rows(self, index):
        """Return some rows, standardised, and their weights."""
        X, weight = self.X[index].double(), self.weights.values[index]
        return X if self.units is None else self.units.standardise(X), weight

    def _spaced_rows(self, n_rows):
        """Return the indices of evenly spaced rows."""
        rows = np.linspace(0, len(self.X) - 1, n_rows).astype(np.int64)
        return torch.from_numpy(rows).to(self.X.device)

    def batches(self, rng):
        order = np.arange(self.n_rows)
        if self.n_batches > 1:
            order = rng.permutation(order)
        order = torch.from_numpy(order).to(self.X.device)
        return torch.tensor_split(order, self.n_batches)

    @functools.cached_property
    def _patterns(self):
        rows = self._spaced_rows(min(len(self.X), self.noise_rows))
        weight = self.weights.values[rows]
        return (~torch.isnan(self.X[rows])).double(), weight / weight.sum()

    def _parts(self, point, batch):
        for index in batch.split(self.n_block):
            X, weight = self.rows(index)
            present = (~torch.isnan(X)).to(X.dtype)
            if present.all():
                present = present[:1]  # rows have one posterior covariance
            X = torch.nan_to_num(X)
            yield likelihood_sums(X, present, point, self.symmetric, weight)

    def gradient_moments(self, point):
        """Return a function from V to the mean of s s' V over rows, and information."""
        n_rows = max(1, min(len(self.X), KEPT_ENTRIES // self.X.shape[1]))
        rows = self._spaced_rows(n_rows)
        X, weight = self.rows(rows)
        present = (~torch.isnan(X)).to(X.dtype)
        rotated = point._replace(coefs=point.coefs @ axes_of(point))
        X = torch.nan_to_num(X)
        gradients = location_gradients(X, present, rotated, self.symmetric)
        fraction = weight[:, None] / weight.sum()
        information = (fraction * present).sum(0) / point.shape_params.exp()
        return (lambda V: gradients.T @ (fraction * (gradients @ V))), information


class GaussianMoments(GaussianObjective):
    """Log marginal likelihood of complete rows, from their second moments."""

    # The mean of the rows must be that of the model: it maximises the score of every
    # mask.

    has_all_masks = True
    n_rows = math.inf  # noise from masks is removed whatever the number of rows
    n_batches, is_noisy = 1, False

    def __init__(self, moments, n_dims, floor, log_scale=0.0):
        super().__init__(n_dims, floor, moments.mean.device, log_scale)
        self.moments = moments

    @functools.cached_property
    def _equivalent_rows(self):
        """At most d + 1 rows of the same mean and second moments."""
        # Scores of masks are quadratic in the row, so their means are those of all
        # rows.
        left, *right = self.moments.covariance_factors
        root = right[0] if right else root_of(left)
        centred = torch.from_numpy(helmert(len(root) + 1).T).to(root)
        return self.moments.mean + math.sqrt(len(centred)) * (centred @ root)

    def rows(self, index):
        """Return some of the rows with these moments, and their weights."""
        X = self._equivalent_rows
        return X[index], X.new_full((len(index),), 1 / len(X))

    def batches(self, rng):
        left = self.moments.covariance_factors[-1]
        return [torch.arange(len(left) + 1, device=left.device)]

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

    @property
    def _patterns(self):
        return torch.ones_like(self.moments.mean)[None], self.moments.mean.new_ones(1)

    def _parts(self, point, batch):
        args = self.moments.product, self.moments.variance
        yield moment_likelihood_sums(*args, 1, point, self.symmetric)


def root_of(covariance):
    """Return a matrix R with R' R = covariance, (d, d)."""
    values, vectors = torch.linalg.eigh(covariance)
    return values.clamp(min=0).sqrt()[:, None] * vectors.T
