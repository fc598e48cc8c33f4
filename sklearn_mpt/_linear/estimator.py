"""Base class of estimators that have a linear model."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Bunch
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.density import as_tensor, torch_modes
from sklearn_mpt._base.information_criteria import InformationCriteriaMixin
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._base.latent import LatentMixin
from sklearn_mpt._checks import check_device
from sklearn_mpt._factors import loadings
from sklearn_mpt._factors.rotation import ROTATIONS
from sklearn_mpt._linear.linear_model import LinearModel


class LinearMPT(InformationCriteriaMixin, LatentMixin, IterativeMPT):
    """Base class of estimators that have a linear model.

    A subclass lists its parameters and fills `_model`.
    """

    _scale: np.ndarray
    noise_variance_: float | np.ndarray
    rotation: str | None = None

    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "init": [StrOptions({"random", "pca"}), dict],
        "objective": [StrOptions({"mpt", "elbo", "lml"})],
    }

    @property
    @abstractmethod
    def _model(self) -> LinearModel:
        """The linear model, a `GaussianModel` or an `IntegratedModel`."""

    @property
    def _hooks(self):
        is_gaussian = hasattr(self, "mean_")
        return ("mean_masked_scores", "chain_log_prob") if is_gaussian else ()

    def _check_parameters(self, n_features):
        self._model.check(n_features)

    def _start(self, X, rng, weight):
        return self._model.start(X, rng, weight)

    def _solver(self, data):
        return self._model.solver(data)

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
        uncorrelated factors, the correlations of features and factors.

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
            If some features are not Gaussian.

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
        if not hasattr(self, "mean_"):
            raise ValueError(
                "factor_loadings needs features that are all Gaussian, got likelihood="
                f"{getattr(self, 'likelihood', None)!r}. Read components_, with "
                "standard_errors, or fit MPTItemResponse, which rotates its slopes."
            )
        if rotation is not None and rotation not in ROTATIONS:
            raise ValueError(
                f"rotation must be None or one of {list(ROTATIONS)}, got {rotation!r}."
            )
        noise_variance = self.noise_variance_
        solution = loadings.solution(self.components_.T, noise_variance, rotation)
        if X is None:
            return Bunch(**solution)
        X = self._validate_rows(X)
        weight = self._check_training_weight(X, sample_weight)
        device = check_device(self.device)
        with torch_modes(with_grad=True):
            information = self._information(
                *(as_tensor(a, device) for a in (X, weight))
            )
        covariance = information.covariance(self.rotation)
        known = np.zeros(len(covariance), dtype=bool)
        known[information.coefs.size :] = ~information.shape_params_vary
        covariance[known] = covariance[:, known] = 0
        log_noise = np.log(noise_variance / self._scale**2)
        estimates = information.coefs, log_noise, covariance
        start = solution["rotation_matrix"]
        errors = loadings.solution_errors(*estimates, rotation, start)
        return Bunch(**solution, **errors)
