"""Linear models with Gaussian noise of one variance, in closed form."""

import math
import warnings

import numpy as np
from scipy.linalg import eigh

from sklearn_mpt._latent.ascent import Ascent
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import as_tensor
from sklearn_mpt._latent.steps import Point
from sklearn_mpt._likelihoods.gaussian import Gaussian, row_blocks
from sklearn_mpt._linear.gaussian import LinearGaussian, moments_of
from sklearn_mpt._linear.gaussian_training import (
    FEW,
    GaussianMoments,
    GaussianRows,
    uniform_or_fixed,
)
from sklearn_mpt._linear.map import check_init, initial_arrays, principal_axes

# Smallest noise variance, relative to the mean variance of the features.
NOISE_FLOOR = 1e-9


class GaussianFamily(Family):
    """Linear models with Gaussian noise of one variance.

    Parameters
    ----------
    objectives : tuple of str
        Allowed values of `objective`; all but "mpt" are the log marginal likelihood.
    """

    def __init__(self, objectives):
        self.objectives = objectives

    def check_parameters(self, settings, n_features):
        check_init(settings.init)
        if settings.n_components > n_features:
            raise ValueError(
                f"n_components={settings.n_components} must be at most "
                f"n_features={n_features}."
            )

    def n_components(self, fitted):
        return len(fitted["components_"])

    def start(self, settings, X, rng):
        init = settings.init
        shift, scale = Gaussian.units(X)
        shape = (settings.n_components, X.shape[1])
        own = {"lml_method_": "exact", "_noise_floor": NOISE_FLOOR * scale**2}
        if isinstance(init, dict):
            shapes = {"components": shape, "mean": shape[1:], "noise_variance": ()}
            return own | initial_arrays(init, shapes)
        if init == "pca":
            return own | closed_form(X, shift, shape[0], own["_noise_floor"])
        return own | {
            "components_": scale * rng.normal(size=shape) / np.sqrt(shape[0]),
            "mean_": shift,
            "noise_variance_": scale**2,
        }

    def model(self, settings, fitted, device):
        return _model(fitted, device)

    def trainer(self, settings, problem):
        if settings.objective != "mpt" and problem.is_all and not problem.has_gaps:
            return ClosedForm(problem, settings.n_components)
        posed = _pose(settings, problem)
        point = posed.start(_point(problem.fitted, problem.device))
        return Ascent(
            posed,
            point,
            learning_rate=settings.learning_rate,
            rng=problem.rng,
            n_before=problem.fitted["n_iter_"],
        )

    def trained_attributes(self, result, fitted):
        coefs = result.coefs.cpu().numpy()
        return {
            "components_": principal_axes(coefs[:, :-1].T),
            "mean_": coefs[:, -1].copy(),
            "noise_variance_": math.exp(result.log_noise.item()),
        }

    def warn(self, fitted, n_samples):
        n_components, n_features = fitted["components_"].shape
        noise_variance, floor = fitted["noise_variance_"], fitted["_noise_floor"]
        rank = min(n_samples - 1, n_features)
        if noise_variance < 10 * floor or rank < min(n_components + 1, n_features):
            warnings.warn(
                f"n_components={n_components} explain the n_samples={n_samples} "
                "without error: the likelihood has no maximum, and noise_variance_="
                f"{noise_variance:.3g} fell towards its floor of {floor:.3g}. Use "
                "fewer components.",
                stacklevel=5,
            )


class ClosedForm:
    """The maximum likelihood solution of complete rows, in place of an `Ascent`."""

    def __init__(self, problem, n_components):
        self.problem = problem
        self.n_components = n_components
        self.result = _point(problem.fitted, problem.device)
        self.loss_curve = []

    def run(self, *, around_epoch, **settings):
        around_epoch(self.epoch)

    def epoch(self):
        floor, device = self.problem.fitted["_noise_floor"], self.problem.device
        mean = Gaussian.start_location(self.problem.X)
        solution = closed_form(self.problem.X, mean, self.n_components, floor)
        self.result = _point({"_noise_floor": floor, **solution}, device)
        moments = moments_of(self.problem.rows_to_read)
        self.loss_curve.append(-float(_model(solution, device).mean_log_prob(moments)))

    def state(self):
        return {}


def _model(fitted, device):
    names = ("components_", "mean_", "noise_variance_")
    return LinearGaussian(
        *(as_tensor(np.asarray(fitted[name]), device) for name in names)
    )


def _point(fitted, device):
    coefs = np.column_stack([fitted["components_"].T, fitted["mean_"]])
    log_noise = np.log(max(fitted["noise_variance_"], fitted["_noise_floor"]))
    return Point(as_tensor(coefs, device), as_tensor(np.asarray(log_noise), device))


def _pose(settings, problem):
    n_features, n_dims = problem.X.shape[1], settings.n_components
    floor = math.log(problem.fitted["_noise_floor"])
    rate = settings.mask_rate
    if settings.objective != "mpt":
        return GaussianRows(problem.rows, n_dims, None, settings.batch_size, floor)
    if problem.has_gaps or not problem.is_all:
        masks = uniform_or_fixed(rate, n_features)
        return GaussianRows(problem.rows, n_dims, masks, settings.batch_size, floor)
    moments = moments_of(problem.rows_to_read)
    masks = uniform_or_fixed(rate, n_features, few=FEW * n_dims / n_features)
    return GaussianMoments(moments, settings.n_masks, n_dims, masks, floor)


def closed_form(X, mean, n_components, noise_floor):
    """The maximum likelihood solution on mean-imputed rows (Tipping and Bishop)."""
    blocks = (np.nan_to_num(block - mean) for block in row_blocks(X))
    values, vectors = eigh(sum(block.T @ block for block in blocks) / len(X))
    values, vectors = values[::-1], vectors[:, ::-1]
    rest = values[n_components:] if n_components < len(values) else values[-1:]
    noise_variance = max(float(rest.mean()), noise_floor)
    lengths = np.sqrt(np.maximum(values[:n_components] - noise_variance, 0))
    return {
        "components_": principal_axes((vectors[:, :n_components] * lengths).T),
        "mean_": mean,
        "noise_variance_": noise_variance,
    }
