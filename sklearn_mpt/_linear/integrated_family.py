"""Linear models that are integrated over z: features of any likelihood."""

import numpy as np

from sklearn_mpt._latent.family import Family
from sklearn_mpt._latent.model import IntegratedModel, Units, as_tensor
from sklearn_mpt._latent.objectives import MaskDraw
from sklearn_mpt._latent.rules import (
    GaussHermite,
    grids,
    importance,
    mixtures,
    quadrature,
)
from sklearn_mpt._latent.trainer import Trainer
from sklearn_mpt._linear.integrated_training import (
    BoundRows,
    LeaveOneOutTurns,
    LinearModule,
    LMLTurns,
    MaskedTurns,
)
from sklearn_mpt._linear.map import LinearMap
from sklearn_mpt._linear.start import (
    binary_components,
    check_init,
    initial_arrays,
    principal_axes,
)

MAX_QUADRATURE_DIMS = 3
# In each replicate, around the mode and from the prior.
IMPORTANCE_POINTS = [(2**power, 2 ** (power - 3)) for power in range(5, 11)]
CONDITIONAL_TOLERANCE = 0.1  # nats, by importance sampling
TRAINING_POINTS, N_TRAINING_GROUPS = (64, 8), 16
TRAINING_GRID = {1: 15, 2: 7, 3: 5}  # nodes in each of so many dimensions
TRAINING_GRID_IF_MANY, MANY_FEATURES = 5, 200  # whose posteriors are nearly Gaussian
BOUND_NODES = 7
BATCH_BYTES = 2**26  # of a tensor over rows, nodes and features in training


class IntegratedFamily(Family):
    """Linear models with a likelihood whose integrals over z have no closed form.

    Parameters
    ----------
    likelihood : type
        A subclass of `Likelihood`.
    """

    objectives = ("mpt", "elbo", "lml")

    def __init__(self, likelihood):
        self.likelihood = likelihood

    def check_parameters(self, settings, n_features):
        check_init(settings.init)

    def check_rows(self, X):
        self.likelihood.check_rows(X)

    def n_components(self, fitted):
        return len(fitted["components_"])

    def start(self, settings, X, rng):
        shape = (settings.n_components, X.shape[1])
        is_quadrature = shape[0] <= MAX_QUADRATURE_DIMS
        own = {"lml_method_": "quadrature" if is_quadrature else "importance"}
        if isinstance(settings.init, dict):
            shapes = {"components": shape, "intercept": shape[1:]}
            return own | initial_arrays(settings.init, shapes)
        intercept = self.likelihood.start_location(X)
        if settings.init == "pca":
            components = binary_components(X, intercept, shape[0])
        else:
            components = 0.1 * rng.normal(size=shape) * _varies(X)
        return own | {"components_": components, "intercept_": intercept}

    def model(self, settings, fitted, device):
        latent = self._latent(fitted, device)
        units = Units(0.0, 1.0)
        if latent.n_dims <= MAX_QUADRATURE_DIMS:
            scoring = quadrature(latent.n_dims, device)
            return IntegratedModel(latent, units, scoring, scoring)
        seed = tuple(fitted["_seed"].tolist())
        scoring = importance(IMPORTANCE_POINTS, latent.n_dims, device, seed)
        predicting = scoring._replace(tolerance=CONDITIONAL_TOLERANCE)
        return IntegratedModel(latent, units, scoring, predicting)

    def _latent(self, fitted, device):
        arrays = (fitted["components_"], fitted["intercept_"])
        return LinearMap(*(as_tensor(a, device) for a in arrays), self.likelihood())

    def trainer(self, settings, problem):
        X, device = problem.X, problem.device
        varies = _varies(X) if problem.is_all else np.ones(X.shape[1])
        rule = _training_rule(settings.n_components, X.shape[1], problem)
        latent = self._latent(problem.fitted, device)
        module = LinearModule(latent, as_tensor(varies, device), rule)
        size = settings.batch_size
        if size == "auto":
            size = _batch_size(X.shape, max(len(w[0]) for w in rule.groups))
        objective = _objective(settings, problem, size)
        return Trainer(
            module, objective, learning_rate=settings.learning_rate, rng=problem.rng
        )

    def trained_attributes(self, module, fitted):
        components, intercept = (
            parameter.detach().cpu().numpy().copy()
            for parameter in (module.components, module.intercept)
        )
        return {"components_": principal_axes(components), "intercept_": intercept}


def _training_rule(n_dims, n_features, problem):
    if n_dims > MAX_QUADRATURE_DIMS:
        seed = (*problem.fitted["_seed"].tolist(), 1)
        return mixtures(
            TRAINING_POINTS, n_dims, problem.device, seed, N_TRAINING_GROUPS
        )
    n_per_dim = TRAINING_GRID[n_dims]
    if n_dims > 1 and n_features >= MANY_FEATURES:
        n_per_dim = TRAINING_GRID_IF_MANY
    return grids((n_per_dim,), n_dims, problem.device)


def _objective(settings, problem, batch_size):
    if settings.objective == "elbo":
        grid = GaussHermite([BOUND_NODES], 1, problem.device).groups[0]
        return BoundRows(problem.rows, batch_size, grid)
    if settings.objective == "lml":
        return LMLTurns(problem.rows, batch_size)
    masks = settings.mask_rate, settings.n_masks, problem.X.shape[1], problem.device
    if settings.mask_rate == "uniform":
        draw = MaskDraw(*masks, smallest=0)
        return LeaveOneOutTurns(problem.rows, draw, batch_size)
    return MaskedTurns(problem.rows, MaskDraw(*masks), batch_size)


def _varies(X):
    return (np.nanmin(X, axis=0) != np.nanmax(X, axis=0)).astype(float)


def _batch_size(shape, n_nodes):
    """Rows per step: an eighth, in bounds, and few enough for the nodes to fit."""
    n_samples, n_features = shape
    size = np.clip(n_samples // 8, 16, 1024)
    return int(max(16, min(size, BATCH_BYTES // (8 * n_nodes * n_features))))
