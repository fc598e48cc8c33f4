"""Linear models that are integrated over z: features of any likelihood."""

import numpy as np
import torch
from scipy.special import expit

from sklearn_mpt._latent.ascent import Ascent
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import IntegratedModel, Units, as_tensor
from sklearn_mpt._latent.rules import PriorGrids, importance, quadrature
from sklearn_mpt._linear.gaussian_family import closed_form
from sklearn_mpt._linear.integrated_training import (
    MANY_FEATURES,
    MAX_QUADRATURE_DIMS,
    point_of,
    pose,
)
from sklearn_mpt._linear.map import (
    LinearMap,
    check_init,
    initial_arrays,
    n_nodes_of,
    principal_axes,
    prior_grid,
    spacing,
)

# In each replicate, around the mode and from the prior.
IMPORTANCE_POINTS = [(2**power, 2 ** (power - 3)) for power in range(5, 11)]
# Grids over the prior: in standard deviations of the narrowest posterior; radii; nodes.
SCORING_SPACING, SCORING_RADII, MAX_SHARED = 1.0, (7.0, 6.0), 2**13
CONDITIONAL_TOLERANCE = 0.1  # nats, by importance sampling
# A random start is the best of short runs, from components of rows drawn at random.
N_SHORT_RUNS, N_SHORT_STEPS, SHORT_ROWS = 3, 8, 500
START_ROWS, START_NOISE = 5000, 0.1


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
        elif settings.max_iter == 0:
            components = START_NOISE * rng.normal(size=shape) * _varies(X)
        else:
            components = self._best_of_short_runs(settings, X, intercept, rng)
        return own | {"components_": components, "intercept_": intercept}

    def _best_of_short_runs(self, settings, X, intercept, rng):
        """Components of which a few steps come farthest: there are local maxima."""
        rows = torch.from_numpy(
            np.array(X[rng.permutation(len(X))[:SHORT_ROWS]], float)
        )
        runs = []
        if X.shape[1] >= MANY_FEATURES:  # a run would cost as much as it saves
            return binary_components(X, intercept, settings.n_components)
        for k in range(N_SHORT_RUNS):
            drawn = rng.choice(len(X), min(len(X), START_ROWS), replace=k > 0)
            start = binary_components(X[drawn], intercept, settings.n_components)
            start += k * START_NOISE * rng.normal(size=start.shape) * _varies(X)
            runs.append(self._short_run(settings, rows, start, intercept))
        return max(runs, key=lambda run: run[0])[1]

    def _short_run(self, settings, rows, components, intercept):
        """Value after some steps on the same masks for all, and where they started."""
        posed = pose(rows, self.likelihood(), settings, len(components))
        start = torch.from_numpy(components), torch.from_numpy(intercept)
        rng = np.random.default_rng(0)
        run = Ascent(posed, point_of(*start), learning_rate=1.0, rng=rng)
        for _ in range(N_SHORT_STEPS):
            run.epoch()
        coefs = run.point.coefs.numpy()
        return -np.mean(run.loss_curve[-2:]), coefs[:, :-1].T.copy()

    def model(self, settings, fitted, device):
        latent = self._latent(fitted, device)
        units, seed = Units(0.0, 1.0), tuple(fitted["_seed"].tolist())
        if latent.n_dims <= MAX_QUADRATURE_DIMS:
            scoring = _shared_first(latent, quadrature(latent.n_dims, device))
            return IntegratedModel(latent, units, scoring, scoring, seed)
        scoring = importance(IMPORTANCE_POINTS, latent.n_dims, device, seed)
        predicting = scoring._replace(tolerance=CONDITIONAL_TOLERANCE)
        return IntegratedModel(latent, units, scoring, predicting, seed)

    def _latent(self, fitted, device):
        arrays = (fitted["components_"], fitted["intercept_"])
        return LinearMap(*(as_tensor(a, device) for a in arrays), self.likelihood())

    def trainer(self, settings, problem):
        latent = self._latent(problem.fitted, problem.device)
        seed = (*problem.fitted["_seed"].tolist(), 1)
        posed = pose(
            problem.rows, latent.likelihood, settings, settings.n_components, seed
        )
        if not problem.is_all:  # what is constant here may vary in another part
            posed.varies = torch.ones_like(posed.varies)
        return Ascent(
            posed,
            point_of(latent.components, latent.intercept),
            learning_rate=settings.learning_rate,
            rng=problem.rng,
            n_before=problem.fitted["n_iter_"],
        )

    def trained_attributes(self, result, fitted):
        coefs = result.coefs.cpu().numpy()
        return {
            "components_": principal_axes(coefs[:, :-1].T),
            "intercept_": coefs[:, -1].copy(),
        }


def _shared_first(latent, accuracy):
    """Try grids that all rows share before those around each row, where they are few.

    The two grids have different radii, so that they differ where a posterior reaches
    the edge.
    """
    if latent.likelihood.values is None:
        return accuracy
    steps = spacing(latent, SCORING_SPACING)
    if n_nodes_of(steps, SCORING_RADII[0]) > MAX_SHARED:
        return accuracy
    grids = [
        prior_grid(steps, latent.components, radius, shift)
        for radius, shift in zip(SCORING_RADII, (0.0, 0.5), strict=True)
    ]

    def rules():
        yield PriorGrids(grids)
        yield from accuracy.rules()

    n_shared = len(grids[0][0]) // latent.width  # a node for each feature counts once
    return accuracy._replace(rules=rules, n_nodes=max(accuracy.n_nodes, n_shared))


def binary_components(X, intercept, n_components):
    """Components under which the features correlate as they do, to first order.

    With small logits, entries standardised by their Bernoulli deviation s_j have the
    correlations s_i w_i' w_j s_j; steep components are cut at length 3.
    """
    prob = expit(intercept)
    std = np.sqrt(prob * (1 - prob))
    standardised = closed_form((X - prob) / std, np.zeros(len(std)), n_components, 0)
    components = standardised["components_"] / std
    lengths = np.linalg.norm(components, axis=0)
    components *= np.minimum(1, 3 / np.maximum(lengths, 1e-12)) * _varies(X)
    more = np.zeros((n_components - len(components), X.shape[1]))
    return np.concatenate([components, more])


def _varies(X):
    return (np.nanmin(X, axis=0) != np.nanmax(X, axis=0)).astype(float)
