"""What linear latent variable models share, and the Gaussian one."""

import warnings
from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_choice, check_mask
from sklearn_mpt._latent.estimator import BaseMPT
from sklearn_mpt._latent.objectives import LikelihoodRows, MaskDraw, MaskedRows
from sklearn_mpt._linear import gaussian as _gaussian
from sklearn_mpt._linear import start as _linear_start
from sklearn_mpt._linear.gaussian_chain import mean_scores
from sklearn_mpt._measure.contract import loop_over_masks

# Smallest noise variance, relative to the mean variance of the features.
NOISE_FLOOR = 1e-9


class LinearMPT(BaseMPT):
    """Base of the models whose features depend linearly on z, through `components_`.

    What depends on the distribution of the features is in `_likelihood`.
    """

    @property
    @abstractmethod
    def _likelihood(self):
        """The maths of this estimator: a `LinearLikelihood`."""

    def mean_masked_scores(self, X: ArrayLike, masks: ArrayLike) -> np.ndarray:
        """Average the masked score over rows, for each of several masks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        masks : array-like of bool, of shape (n_masks, n_features)
            True where a feature is hidden.

        Returns
        -------
        scores : ndarray of shape (n_masks,)
            In nats per hidden feature.
        """
        X = self._validate_rows(X)
        masks = np.asarray(masks)
        masks = check_mask(masks, len(masks), X.shape[1])
        return self._likelihood.mean_masked_scores(X, masks)

    def _loop_over_masks(self, X, masks):
        """Compute `mean_masked_scores` of rows that are validated."""

        def conditional(X, mask):
            shared = self._tensor(mask[None])
            return self._map_rows(lambda rows: self._conditional_rows(rows, shared), X)

        return loop_over_masks(conditional, X, masks)

    def mean_chain_scores(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Average over rows what is scored while features become visible in order.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        orders : array-like of int, of shape (n_orders, n_features) or \
                (n_orders, n_samples, n_features)
            Orders of the features, for all rows or for each.

        Returns
        -------
        scores : ndarray of shape (2, n_orders, n_features)
            Given the first t features of an order, in nats: the mean score of all
            others, and the log-probability of the next one alone.
        """
        X = self._validate_rows(X)
        return self._likelihood.mean_chain_scores(X, np.asarray(orders))

    def _validate_rows(self, X, reset=False, min_samples=1):
        X = super()._validate_rows(X, reset=reset, min_samples=min_samples)
        self._likelihood.check_rows(X)
        return X

    @property
    def _row_bytes(self):
        return self._likelihood.row_bytes

    def _score_rows(self, X):
        return torch.stack(self._likelihood.log_prob(X), dim=1)

    def _conditional_rows(self, X, mask):
        return self._likelihood.conditional_log_prob(X, mask)

    def _transform_rows(self, X):
        return self._likelihood.posterior_mean(X)

    def _decode(self, Z):
        return self._likelihood.decode(Z)

    def _expect_rows(self, X):
        return self._likelihood.expect(X)

    def _draw_rows(self, X, rng):
        return self._likelihood.draw(X, rng)

    def _check_own_parameters(self, n_features):
        if not isinstance(self.init, dict):
            check_choice(self.init, "init", ["random", "pca"])
        self._likelihood.check_parameters(n_features)

    def _initialize(self, X, rng):
        self._set(self._likelihood.start(X, rng))

    def _training_problem(self, X, is_all):
        return self._likelihood.training_problem(X, is_all)

    def _fitted_attributes(self, model):
        with torch.no_grad():
            return self._likelihood.fitted_attributes(model)

    def _warn_about_fit(self, n_samples):
        self._likelihood.warn_about_fit(n_samples)


class LinearGaussian:
    """How an estimator with Gaussian noise of one variance starts, trains and scores.

    Parameters
    ----------
    estimator : LinearMPT
        Holds the parameters and the fitted attributes.
    """

    def __init__(self, estimator):
        self.estimator = estimator

    @property
    def parameters(self):
        as_tensor = self.estimator._tensor
        return _gaussian.Gaussian(
            as_tensor(self.estimator.components_),
            as_tensor(self.estimator.mean_),
            as_tensor(np.asarray(self.estimator.noise_variance_)),
        )

    @property
    def row_bytes(self):
        n_components, n_features = self.estimator.components_.shape
        return 8 * (6 * n_features * n_components + 4 * n_components**2)

    def mean_masked_scores(self, X, masks):
        estimator = self.estimator
        if np.isnan(X).any():
            return estimator._loop_over_masks(X, masks)
        moments, parameters = _gaussian.moments(estimator._tensor(X)), self.parameters
        return estimator._map_rows(
            lambda rows: _gaussian.mean_masked_scores(moments, rows, parameters), masks
        )

    def mean_chain_scores(self, X, orders):
        as_tensor, device = self.estimator._tensor, self.parameters.mean.device
        orders = torch.tensor(orders, device=device)
        return mean_scores(as_tensor(X), orders, self.parameters).cpu().numpy()

    def log_prob(self, X):
        log_prob = _gaussian.log_prob(X, self.parameters)
        return log_prob, torch.zeros_like(log_prob)

    def conditional_log_prob(self, X, mask):
        return _gaussian.conditional_log_prob(X, mask, self.parameters)

    def posterior_mean(self, X):
        return _gaussian.posterior_mean(X, self.parameters)

    def decode(self, Z):
        return Z @ self.estimator.components_ + self.estimator.mean_

    def expect(self, X):
        parameters = self.parameters
        Z = _gaussian.posterior_mean(X, parameters)
        return Z @ parameters.components + parameters.mean

    def draw(self, X, rng):
        n_components = len(self.estimator.components_)
        latent_noise = rng.normal(size=(len(X), n_components))
        noise = rng.normal(size=tuple(X.shape))
        as_tensor = self.estimator._tensor
        return _gaussian.draw(
            X, self.parameters, as_tensor(latent_noise), as_tensor(noise)
        )

    def check_parameters(self, n_features):
        n_components = self.estimator.n_components
        if n_components > n_features:
            raise ValueError(
                f"n_components={n_components} must be at most n_features={n_features}."
            )

    def check_rows(self, X):
        """Any real number is a value."""

    def start(self, X, rng):
        """Return the fitted attributes from which training starts."""
        init = self.estimator.init
        shift, scale = _linear_start.location_and_scale(X)
        shape = (self.estimator.n_components, X.shape[1])
        own = {"lml_method_": "exact", "_noise_floor": NOISE_FLOOR * scale**2}
        if isinstance(init, dict):
            return own | _linear_start.check_init(
                init,
                {"components": shape, "mean": shape[1:], "noise_variance": ()},
            )
        if init == "pca":
            floor = own["_noise_floor"]
            return own | _linear_start.closed_form(X, shift, shape[0], floor)
        return own | {
            "components_": scale * rng.normal(size=shape) / np.sqrt(shape[0]),
            "mean_": shift,
            "noise_variance_": scale**2,
        }

    def training_problem(self, X, is_all):
        estimator = self.estimator
        floor = estimator._tensor(np.asarray(estimator._noise_floor))
        model = _gaussian.GaussianModel(*self.parameters, floor)
        rows, has_gaps = estimator._tensor(X), np.isnan(X).any()
        draw_masks = MaskDraw(
            estimator.mask_rate, estimator.n_masks, X.shape[1], rows.device
        )
        size = estimator.batch_size
        if size == "auto":
            size = int(np.clip(len(X) // 16, 256, 4096))
        if has_gaps and estimator.objective == "mpt":
            return model, MaskedRows(rows, draw_masks, size)
        if has_gaps:
            return model, LikelihoodRows(rows, size, _gaussian.GaussianModel.log_prob)
        moments = _gaussian.moments(rows)
        if is_all:  # the score of every mask is largest at the mean of the rows
            model.fix_mean(moments.mean)
        if estimator.objective == "mpt":
            return model, _gaussian.MaskedMoments(moments, draw_masks)
        return model, _gaussian.LikelihoodMoments(moments)

    def fitted_attributes(self, model):
        components, mean, noise_variance = (
            tensor.cpu().numpy() for tensor in model.parameters_now
        )
        return {
            "components_": _linear_start.principal_axes(components),
            "mean_": mean,
            "noise_variance_": float(noise_variance),
        }

    def warn_about_fit(self, n_samples):
        estimator = self.estimator
        n_components, n_features = estimator.components_.shape
        at_floor = estimator.noise_variance_ < 10 * estimator._noise_floor
        rank = min(n_samples - 1, n_features)
        if at_floor or rank < min(n_components + 1, n_features):
            warnings.warn(
                f"n_components={n_components} explain the n_samples={n_samples} "
                "without error: the likelihood has no maximum, and noise_variance_="
                f"{estimator.noise_variance_:.3g} fell towards its floor of "
                f"{estimator._noise_floor:.3g}. Use fewer components.",
                stacklevel=6,
            )
