"""What models of continuous latent variables z offer beside the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.metadata_routing import UNUSED

from sklearn_mpt._checks import check_as_fitted
from sklearn_mpt._tables.frames import readable_numbers


class LatentMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Mixin for models of continuous latent variables z."""

    # Z is data: scikit-learn would take it as metadata
    __metadata_request__inverse_transform: ClassVar = {"Z": UNUSED}
    _validate_rows: Callable[..., np.ndarray]
    _density: Callable[[], Any]
    _map_rows: Callable[..., np.ndarray]
    _as_given: Callable[..., np.ndarray]
    _check_is_fitted: Callable[[], None]
    n_components: int
    components_: np.ndarray

    @property
    def _n_features_out(self):
        return len(self.components_)

    def _check_fitted_parameters(self):
        check_as_fitted(self.n_components, self._n_features_out, "n_components")

    def transform(self, X: ArrayLike) -> np.ndarray:
        r"""Compute the posterior mean of the latent variables of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`.
        """
        X, density = self._validate_rows(X), self._density()
        return self._map_rows(density, density.latent_mean, X, dtype=X.dtype)

    def posterior(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        r"""Compute mean and covariance of the latent variables of each row.

        The square roots of the variances are the standard errors of `transform`, of
        abilities for instance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components)
            :math:`E[z \mid x_R]`, as `transform` returns it.
        covariance : ndarray of shape (n_samples, n_components, n_components)
            Covariance of z given the observed features of each row.
        """
        X, density = self._validate_rows(X), self._density()

        def moments(rows):
            mean, covariance = density.latent_moments(rows)
            return torch.cat([mean[:, None], covariance], 1)

        moments_of_z = self._map_rows(density, moments, X)
        return moments_of_z[:, 0], moments_of_z[:, 1:]

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Compute the expected row for given latent variables.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Latent variables.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Expected values, in the units of the training rows; of categories, the most
            probable one.
        """
        self._check_is_fitted()
        Z = check_array(readable_numbers(Z), dtype=[np.float64, np.float32])
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z must have n_components={self._n_features_out} columns, "
                f"got {Z.shape[1]}."
            )
        return self._decoded(self._density(), Z)

    def _decoded(self, density, Z):
        """Return expected rows, in the form in which rows come."""
        return self._as_given(self._map_rows(density, density.decode, Z, dtype=Z.dtype))
