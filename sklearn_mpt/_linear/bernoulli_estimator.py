"""The linear model of binary features, as the estimators use it."""

import functools
import itertools

import numpy as np
import torch
from scipy.special import expit

from sklearn_mpt._checks import check_binary
from sklearn_mpt._latent.integration import (
    conditional_log_prob,
    draw_latent,
    log_prob,
    posterior_average,
    rows_of,
)
from sklearn_mpt._latent.nodes import (
    GaussHermite,
    PosteriorMixture,
    mixture_nodes,
    refine,
)
from sklearn_mpt._latent.objectives import (
    LeaveOneOutRows,
    LikelihoodRows,
    MaskDraw,
    MaskedRows,
)
from sklearn_mpt._latent.prefixes import mean_scores
from sklearn_mpt._linear import start as _linear_start
from sklearn_mpt._linear.bernoulli import Bernoulli
from sklearn_mpt._linear.bernoulli_training import BernoulliModel

MAX_QUADRATURE_DIMS = 3
GRID_SIZES = [4, 6, 9, 13, 19, 28, 41, 60, 90]  # nodes per dimension, coarse to fine
MAX_GRID_NODES = 2**15
# In each replicate; an eighth as many are from the prior.
IMPORTANCE_POINTS = [2**power for power in range(5, 11)]
QUADRATURE_TOLERANCE = 1e-4
IMPORTANCE_TOLERANCE = 0.02


class LinearBernoulli:
    """How an estimator of binary features starts, trains and scores.

    Parameters
    ----------
    estimator : LinearMPT
        Holds the parameters and the fitted attributes.
    """

    def __init__(self, estimator):
        self.estimator = estimator

    @property
    def parameters(self):
        return Bernoulli(
            self.estimator._tensor(self.estimator.components_),
            self.estimator._tensor(self.estimator.intercept_),
        )

    @property
    def n_dims(self):
        return len(self.estimator.components_)

    @property
    def row_bytes(self):
        n_nodes = 6 ** min(self.n_dims, MAX_QUADRATURE_DIMS)
        return 8 * 3 * n_nodes * self.estimator.n_features_in_

    @property
    def is_quadrature(self):
        return self.n_dims <= MAX_QUADRATURE_DIMS

    def rules(self):
        """Yield rules that place nodes, each finer than the one before."""
        device = self.parameters.components.device
        if not self.is_quadrature:
            for n_points in IMPORTANCE_POINTS:
                counts = (n_points, n_points // 8)
                yield _mixture(counts, self.n_dims, device, self._seed)
            return
        for n_per_dim in itertools.pairwise(GRID_SIZES):
            if n_per_dim[1] ** self.n_dims <= MAX_GRID_NODES:
                yield _grids(n_per_dim, self.n_dims, device)

    @property
    def _seed(self):
        return tuple(self.estimator._seed.tolist())

    def _estimate(self, function, rows, rough=1):
        """Refine a function of rows, rule and parameters; value and error."""
        parameters = self.parameters
        tolerance = (
            QUADRATURE_TOLERANCE if self.is_quadrature else rough * IMPORTANCE_TOLERANCE
        )
        return refine(
            lambda rule, which: function(rows.take(which), rule, parameters),
            self.rules(),
            tolerance,
        )

    def mean_masked_scores(self, X, masks):
        return self.estimator._loop_over_masks(X, masks)

    def mean_chain_scores(self, X, orders):
        as_tensor, parameters = self.estimator._tensor, self.parameters
        orders = torch.tensor(orders, device=parameters.components.device)
        return mean_scores(
            as_tensor(X), orders, parameters, self.n_dims, self._seed
        ).numpy(force=True)

    def log_prob(self, X):
        rows = rows_of(X)
        value, error = self._estimate(log_prob, rows)
        if self.is_quadrature:
            error = torch.where(error > QUADRATURE_TOLERANCE, error, 0.0)
        seen = rows.observed.any(1)
        return torch.where(seen, value, 0.0), torch.where(seen, error, 0.0)

    def conditional_log_prob(self, X, mask):
        return self._estimate(conditional_log_prob, rows_of(X, mask), rough=5)[0]

    def posterior_mean(self, X):
        return self._posterior_average(lambda z: z, X)

    def expect(self, X):
        parameters = self.parameters
        return self._posterior_average(
            lambda z: torch.sigmoid(parameters.logits(z)), X
        ).clamp(0, 1)

    def _posterior_average(self, of_latent, X):
        average = functools.partial(posterior_average, of_latent)
        return self._estimate(average, rows_of(X))[0]

    def decode(self, Z):
        return expit(Z @ self.estimator.components_ + self.estimator.intercept_)

    def draw(self, X, rng):
        """Draw rows given their present entries, z by importance resampling."""
        parameters = self.parameters
        prob = torch.sigmoid(parameters.logits(self._draw_latent(X, rng, parameters)))
        return (self.estimator._tensor(rng.random(tuple(X.shape))) < prob).to(X.dtype)

    def _draw_latent(self, X, rng, parameters):
        rows, as_tensor = rows_of(X), self.estimator._tensor
        if not rows.observed.any():
            return as_tensor(rng.normal(size=(len(X), self.n_dims)))
        points = as_tensor(rng.normal(size=(len(X), 288, self.n_dims)))
        nodes = mixture_nodes(points.split([256, 32], 1), parameters.propose(rows))
        return draw_latent(rows, nodes, as_tensor(rng.random((len(X), 1))), parameters)

    def check_parameters(self, n_features):
        """Any number of components is allowed."""

    def check_rows(self, X):
        check_binary(X)

    def start(self, X, rng):
        """Return the fitted attributes from which training starts."""
        init = self.estimator.init
        shape = (self.estimator.n_components, X.shape[1])
        is_quadrature = shape[0] <= MAX_QUADRATURE_DIMS
        own = {"lml_method_": "quadrature" if is_quadrature else "importance"}
        if isinstance(init, dict):
            shapes = {"components": shape, "intercept": shape[1:]}
            return own | _linear_start.check_init(init, shapes)
        intercept = _linear_start.bernoulli_location(X)
        if init == "pca":
            components = _linear_start.bernoulli_components(X, intercept, shape[0])
        else:
            components = 0.1 * rng.normal(size=shape) * _varies(X)
        return own | {"components_": components, "intercept_": intercept}

    def training_problem(self, X, is_all):
        estimator, rows = self.estimator, self.estimator._tensor(X)
        varies = _varies(X) if is_all else np.ones(X.shape[1])
        rule = self._training_rule(X.shape[1], rows.device)
        model = BernoulliModel(
            *self.parameters,
            estimator._tensor(varies),
            rule,
            GaussHermite([7], 1, rows.device).groups[0],
        )
        size = estimator.batch_size
        if size == "auto":
            size = _batch_size(X.shape, max(len(w[0]) for w in rule.groups))
        if estimator.objective == "elbo":
            bound = BernoulliModel.evidence_lower_bound
            return model, LikelihoodRows(rows, size, bound)
        if estimator.objective == "lml":
            return model, LikelihoodRows(rows, size, BernoulliModel.log_prob)
        masks = (estimator.mask_rate, estimator.n_masks, X.shape[1], rows.device)
        if estimator.mask_rate == "uniform":
            return model, LeaveOneOutRows(rows, MaskDraw(*masks, smallest=0), size)
        return model, MaskedRows(rows, MaskDraw(*masks), size)

    def _training_rule(self, n_features, device):
        if not self.is_quadrature:
            return _mixture((64, 8), self.n_dims, device, (*self._seed, 1), 16)
        n_per_dim = {1: 15, 2: 7 if n_features < 200 else 5, 3: 5}[self.n_dims]
        return _grids((n_per_dim,), self.n_dims, device)

    def fitted_attributes(self, model):
        components, intercept = (
            tensor.cpu().numpy().copy() for tensor in model.parameters_now
        )
        return {
            "components_": _linear_start.principal_axes(components),
            "intercept_": intercept,
        }

    def warn_about_fit(self, n_samples):
        """Any binary rows have a finite fit."""


_grids = functools.lru_cache(maxsize=32)(GaussHermite)
_mixture = functools.lru_cache(maxsize=16)(PosteriorMixture)


def _varies(X):
    return (np.nanmin(X, axis=0) != np.nanmax(X, axis=0)).astype(float)


def _batch_size(shape, n_nodes):
    """Rows per step: an eighth, in bounds, and few enough for the nodes to fit."""
    n_samples, n_features = shape
    size = np.clip(n_samples // 8, 16, 1024)
    return int(max(16, min(size, 2**26 // (8 * n_nodes * n_features))))
