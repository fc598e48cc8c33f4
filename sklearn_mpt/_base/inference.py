"""Information criteria and standard errors of the parameters of fitted models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import Bunch

from sklearn_mpt._base.density import as_tensor, torch_modes
from sklearn_mpt._base.fitted_density import FittedDensityMixin
from sklearn_mpt._checks import check_device
from sklearn_mpt._optim.information import Information
from sklearn_mpt._tables.weights import check_sample_weight, warn_of_row_labels


def bayesian(log_likelihood, n_parameters, X, weight):
    """Return -2 times the log-likelihood (nats), plus log(n) for each parameter.

    n is the sum of the weights of the rows of X, (n_samples, d), that have an entry.
    """
    n_rows = weight[~np.isnan(X).all(axis=1)].sum()
    if n_rows == 0:
        raise ValueError("X has no entries: all of them are missing.")
    return float(-2 * log_likelihood + np.log(n_rows) * n_parameters)


class InformationCriteriaMixin(FittedDensityMixin):
    """Mixin that adds `aic` and `bic` to models of rows."""

    @abstractmethod
    def _n_parameters(self) -> int:
        """Return the number of free parameters."""

    def aic(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the Akaike information criterion on X; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        aic : float
            -2 times the log-likelihood (nats), plus 2 for each free parameter.
            Rotations of components are not free: they change nothing. A covariance has
            at most as many as it has different entries.
        """
        log_prob = self.score_samples(X)
        weight = check_sample_weight(sample_weight, X)
        return float(-2 * (weight @ log_prob) + 2 * self._n_parameters())

    def bic(self, X: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Compute the Bayesian information criterion on X; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None is 1.

        Returns
        -------
        bic : float
            -2 times the log-likelihood (nats), plus for each free parameter the
            logarithm of the number of rows that have an entry, or of the sum of their
            weights. Rotations of components are not free: they change nothing. A
            covariance has at most as many as it has different entries.

        Raises
        ------
        ValueError
            If all entries are missing.
        """
        log_prob = self.score_samples(X)
        weight = check_sample_weight(sample_weight, X)
        rows = self._validate_rows(X)
        return bayesian(weight @ log_prob, self._n_parameters(), rows, weight)


class StandardErrorsMixin(FittedDensityMixin):
    """Mixin that adds `standard_errors` to estimators with `_information`."""

    _n_features_out: Any
    n_iter_: int
    rotation: str | None
    _scale: Any
    _likelihood: Callable
    _information: Callable[..., Information]

    def standard_errors(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Bunch:
        r"""Compute standard errors of the fitted parameters, by observed information.

        The covariance of the estimates is the inverse of the observed information [1]_,
        minus the second derivatives of :math:`\sum_i \log p(x_i)` at the fitted
        parameters, by automatic differentiation. It is that of the rows alone: the
        prior of slopes (`slope_prior`) is not in it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, as in `fit`.

        Returns
        -------
        errors : Bunch
            Standard errors, of the shapes of the fitted attributes: ``components``;
            ``intercept``, or ``mean`` if all features are Gaussian; and
            ``noise_variance``, ``dispersion`` and ``thresholds``, those that the model
            has, the latter as they stand beside the intercept. NaN, with a warning, for
            parameters that these rows, or any number of rows, do not determine; NaN
            without a warning
            for features that are constant. Also ``covariance``, of shape
            (n_locations, n_components + 1, n_components + 1): the covariance of the
            weights and the intercept of each location, from which errors of functions
            of them, such as a difficulty, follow.

        Raises
        ------
        ValueError
            If there are several components and ``max_iter=0``: then the components
            have not been rotated to axes that the rows determine.

        Warns
        -----
        UserWarning
            If X and `sample_weight` are not those of the last `fit`. If the rows do not
            determine some parameters, or the model is not at a maximum: fit with a
            smaller `tol`. If no number of rows determines some parameters. For example,
            two items do not determine two slopes, and four Gaussian columns with a
            noise variance each do not determine two components.

        Notes
        -----
        All rotations of several components have the same likelihood. The errors are
        those of components on the axes that `rotation` chooses (by default the
        principal axes), with the signs of the fit. They are large if two axes have
        nearly the same length.

        With up to three components, quadrature nodes are refined until the information
        changes by less than a relative 1e-4, unless rows of categories share a grid;
        with more, samples of importance sampling, until it changes by less than 1e-2. P
        parameters cost P passes over the rows. If all features are Gaussian, the second
        derivatives are exact.

        Parameters that no number of rows determines are found as follows. If all
        features are Gaussian, from their expected information, in closed form.
        Otherwise, from the gradients of the log-probabilities of all possible rows with
        the gaps of X, or of rows drawn from the model if there are more than 1024.
        Directions along which all these gradients are zero at the fitted parameters
        have no standard errors. With more than three components and features that are
        not Gaussian, this check is left out.

        References
        ----------
        .. [1] B. Efron and D. V. Hinkley, "Assessing the accuracy of the maximum
           likelihood estimator: observed versus expected Fisher information",
           Biometrika 65, 1978.
        """
        warn_of_row_labels(X, sample_weight, "sample_weight")
        X = self._validate_rows(X)
        weight = self._check_training_weight(X, sample_weight)
        if self.n_iter_ == 0 and self._n_features_out > 1:
            raise ValueError(
                "The components are as `init` left them (max_iter=0): they were not "
                "rotated to axes that the rows determine, so they have no standard "
                "errors. Fit with max_iter >= 1."
            )
        device = check_device(self.device)
        with torch_modes(with_grad=True):
            tensors = as_tensor(X, device), as_tensor(weight, device)
            information = self._information(*tensors)
        covariance = information.covariance(self.rotation)
        n_locations, width = information.coefs.shape
        n_coefs, index = n_locations * width, np.arange(n_locations)
        by_location = covariance[:n_coefs, :n_coefs].reshape((n_locations, width) * 2)
        blocks = information.scale[:, None, None] ** 2 * by_location[index, :, index]
        deviations = np.sqrt(np.diagonal(blocks, axis1=1, axis2=2))
        where = "mean" if hasattr(self, "mean_") else "intercept"
        errors = {"components": deviations[:, :-1].T, where: deviations[:, -1]}
        # those of functions of shape parameters, by the delta method
        likelihood = self._likelihood().from_attributes(vars(self), self._scale)
        shape_params = likelihood.shape_params.detach().cpu()
        shape_covariance = covariance[n_coefs:, n_coefs:]
        attributes = likelihood.shape_attributes(self._scale)
        jacobians = attributes and torch.autograd.functional.jacobian(
            lambda at: tuple(likelihood.at(at).shape_attributes(self._scale).values()),
            shape_params,
        )
        for (name, value), jacobian in zip(attributes.items(), jacobians, strict=True):
            jacobian = jacobian.reshape(value.numel(), shape_params.numel()).numpy()
            is_used = jacobian != 0  # the covariance of others may be NaN
            variances = [
                row[used] @ shape_covariance[np.ix_(used, used)] @ row[used]
                for row, used in zip(jacobian, is_used, strict=True)
            ]
            is_nan = value.detach().isnan().flatten().cpu()
            found = np.where(is_nan, np.nan, np.sqrt(variances)).reshape(value.shape)
            errors[name.rstrip("_")] = found if value.ndim else float(found)
        return Bunch(**errors, covariance=blocks)
