"""Linear models with Gaussian noise of one variance, in closed form."""

import warnings

import numpy as np
import torch

from sklearn_mpt._latent.family import Family
from sklearn_mpt._latent.model import as_tensor
from sklearn_mpt._latent.objectives import LMLRows, MaskDraw, MaskedRows
from sklearn_mpt._latent.trainer import Trainer
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._linear.gaussian import LinearGaussian, moments_of
from sklearn_mpt._linear.gaussian_training import (
    GaussianModule,
    LMLMoments,
    MaskedMoments,
)
from sklearn_mpt._linear.start import (
    check_init,
    closed_form,
    initial_arrays,
    principal_axes,
)

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
        names = ("components_", "mean_", "noise_variance_")
        return LinearGaussian(
            *(as_tensor(np.asarray(fitted[name]), device) for name in names)
        )

    def trainer(self, settings, problem):
        fitted, device = problem.fitted, problem.device
        floor = as_tensor(np.asarray(fitted["_noise_floor"]), device)
        module = GaussianModule(self.model(settings, fitted, device), floor)
        has_gaps = np.isnan(problem.X).any()
        pose = _pose_by_rows if has_gaps else _pose_by_moments
        objective = pose(settings, problem, module)
        trainer = Trainer(
            module, objective, learning_rate=settings.learning_rate, rng=problem.rng
        )
        trainer.optimizer.register_step_post_hook(lambda *_: module.fold())
        return trainer

    def trained_attributes(self, module, fitted):
        with torch.no_grad():
            now = module.now
        return {
            "components_": principal_axes(now.components.cpu().numpy()),
            "mean_": now.mean.cpu().numpy(),
            "noise_variance_": now.noise_variance.item(),
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


def _draw_masks(settings, problem):
    return MaskDraw(
        settings.mask_rate, settings.n_masks, problem.X.shape[1], problem.device
    )


def _pose_by_rows(settings, problem, module):
    size = settings.batch_size
    if size == "auto":
        size = int(np.clip(len(problem.X) // 16, 256, 4096))
    if settings.objective == "mpt":
        return MaskedRows(problem.rows, _draw_masks(settings, problem), size)
    return LMLRows(problem.rows, size, GaussianModule.log_prob)


def _pose_by_moments(settings, problem, module):
    moments = moments_of(problem.rows)
    if problem.is_all:  # the score of every mask is largest at the mean of the rows
        module.fix_mean(moments.mean)
    if settings.objective == "mpt":
        return MaskedMoments(moments, _draw_masks(settings, problem))
    return LMLMoments(moments)
