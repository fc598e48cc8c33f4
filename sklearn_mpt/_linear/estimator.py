"""Base class of estimators that have a linear model."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import Bunch
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.density import as_tensor, torch_modes
from sklearn_mpt._base.fitted_density import LatentMixin
from sklearn_mpt._base.inference import InformationCriteriaMixin
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._checks import check_device, listed
from sklearn_mpt._gaussian import rotation as loadings
from sklearn_mpt._gaussian.rotation import ROTATIONS
from sklearn_mpt._tables.weights import warn_of_row_labels


class LinearMPT(InformationCriteriaMixin, LatentMixin, IterativeMPT):
    """Base class of estimators that have a linear model."""

    _scale: np.ndarray
    noise_variance_: float | np.ndarray
    rotation: str | None = None
    slope_prior: float | None = None

    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "init": [StrOptions({"random", "pca"}), dict],
        "objective": [StrOptions({"mpt", "elbo", "lml"})],
    }

    @property
    @abstractmethod
    def _model(self):
        """A `GaussianModel`, or an `IntegratedModel`, of this estimator."""

    @property
    def _hooks(self):
        is_gaussian = hasattr(self, "mean_")
        return ("mean_masked_scores", "chain_log_prob") if is_gaussian else ()

    def _check_parameters(self, n_features):
        self._model.check(n_features)

    def _start(self, X, rng, weight):
        return self._model.start(X, rng, weight)

    def _epochs(self, data, training):
        return self._model.epochs(data, training)

    def _trained_attributes(self, result, fitted):
        return self._model.trained_attributes(result, fitted)

    def _density_of(self, fitted, device):
        return self._model.density(fitted, device)

    def _n_parameters(self):
        return self._model.n_parameters(vars(self))

    def _information(self, X, weight):
        return self._model.information(vars(self), X, weight)

    def _warn_of_limits(self, fitted, n_samples):
        self._model.warn_of_limits(fitted, n_samples)

    def factor_loadings(
        self,
        X: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        rotation: str | None = None,
    ) -> Bunch:
        r"""Compute standardised loadings, rotated, with communalities.

        Loadings are those of features with variance 1 under the model: with
        uncorrelated factors, the correlations of features and factors. "bernoulli" and
        "ordinal" features have those of a latent response, the location plus logistic
        noise of variance :math:`\pi^2 / 3`, whose levels they are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), default=None
            The training rows; NaN marks missing entries. With them, standard errors are
            computed by the delta method, from the observed information. For fits to a
            covariance matrix, those of `rows_from_covariance`.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, as in `fit`.
        rotation : {"varimax", "quartimax", "oblimin", "promax"}, default=None
            How factors are rotated: "oblimin" (quartimin, gamma 0) and "promax" (power
            4) allow correlated factors. There is no Kaiser normalisation. None leaves
            the axes of `components_`. Rotated factors have loadings with a positive
            sum, and the one with the largest sum of squares comes first.

        Returns
        -------
        solution : Bunch
            ``loadings`` (n_features, n_components), those of the pattern if factors are
            correlated; ``structure``, of the same shape, the correlations of features
            and factors; ``factor_correlation`` (n_components, n_components);
            ``communality`` and ``uniqueness`` (n_features,), the shares of the variance
            of a feature that the factors explain, and do not; ``explained_variance``
            (n_components,), which adds up to the communalities; ``rotation_matrix``
            (n_components, n_components): ``transform(X) @ rotation_matrix`` are the
            scores of the rotated factors. With X also ``loadings_error``,
            ``factor_correlation_error`` and ``communality_error``, standard errors; a
            noise variance at its bound counts as known.

        Raises
        ------
        ValueError
            If some features are neither Gaussian, nor binary, nor ordinal.

        Warns
        -----
        UserWarning
            If X and `sample_weight` are not those of the last `fit`.

        Examples
        --------
        >>> from sklearn.datasets import load_wine
        >>> from sklearn_mpt import MPTLinearVAE
        >>> X = load_wine().data
        >>> model = MPTLinearVAE(2, noise="per_feature", random_state=0).fit(X)
        >>> solution = model.factor_loadings(rotation="oblimin")
        >>> solution.loadings.shape, solution.factor_correlation.shape
        ((13, 2), (2, 2))
        """
        self._check_is_fitted()
        noise_variance = self._noise_of_responses()
        if rotation is not None and rotation not in ROTATIONS:
            raise ValueError(
                f"rotation must be None or one of {list(ROTATIONS)}, got {rotation!r}."
            )
        solution = loadings.solution(self.components_.T, noise_variance, rotation)
        if X is None:
            return Bunch(**solution)
        warn_of_row_labels(X, sample_weight, "sample_weight")
        X = self._validate_rows(X)
        weight = self._check_training_weight(X, sample_weight)
        device = check_device(self.device)
        with torch_modes(with_grad=True):
            information = self._information(
                *(as_tensor(a, device) for a in (X, weight))
            )
        covariance = information.covariance(self.rotation)
        n_coefs, scale = information.coefs.size, self._scale
        if information.shape_params_vary is not None:
            known = n_coefs + np.flatnonzero(~information.shape_params_vary)
            covariance[known] = covariance[:, known] = 0
        if not hasattr(self, "mean_"):  # only noise variances of Gaussian features vary
            likelihood = self._likelihood()
            features = np.array(likelihood.shape_param_features, int)
            is_noise = np.isin(features, np.flatnonzero(self._are_gaussian))
            index = np.r_[:n_coefs, n_coefs + np.flatnonzero(is_noise)]
            place = np.r_[:n_coefs, n_coefs + features[is_noise]]
            whole = np.zeros((n_coefs + len(noise_variance),) * 2)
            whole[np.ix_(place, place)] = covariance[np.ix_(index, index)]
            covariance = whole
            scale = np.where(self._are_gaussian, scale, 1.0)
        log_noise = np.log(noise_variance / scale**2)
        shape, start = information.coefs.shape, solution["rotation_matrix"]

        def solution_at(theta):
            weights = theta[:n_coefs].reshape(shape)[:, :-1].numpy()
            noise = theta[n_coefs:].exp().reshape(np.shape(log_noise)).numpy()
            return loadings.solution(weights, noise, rotation, start)

        theta = np.concatenate([information.coefs.ravel(), np.ravel(log_noise)])
        theta = torch.from_numpy(theta)
        errors = loadings.solution_errors(solution_at, theta, covariance)
        return Bunch(**solution, **errors)

    @property
    def _are_gaussian(self):
        """Which features are Gaussian, bool (d,)."""
        if hasattr(self, "mean_"):
            return np.ones(self.n_features_in_, dtype=bool)
        return np.array([kind == "gaussian" for kind in self._kinds_of_columns])

    @property
    def _kinds_of_columns(self):
        """The kind of each feature, if some are not Gaussian."""
        return []

    def _noise_of_responses(self):
        """Return noise variances of features, or of their latent responses."""
        if hasattr(self, "mean_"):
            return self.noise_variance_
        kinds = self._kinds_of_columns
        others = sorted({*map(str, kinds)} - {"gaussian", "bernoulli", "ordinal"})
        if others:
            raise ValueError(
                "factor_loadings needs features that are 'gaussian', 'bernoulli' or "
                f"'ordinal', with a response that has a variance, got {listed(others)}."
                " Read components_, with standard_errors."
            )
        noise = np.full(len(kinds), loadings.LOGISTIC_VARIANCE)
        is_gaussian = self._are_gaussian
        if is_gaussian.any():
            noise[is_gaussian] = self.noise_variance_[is_gaussian]
        return noise
