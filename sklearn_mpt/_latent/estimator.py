"""What every estimator shares: validation and the public methods."""

from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_mpt._checks import (
    check_bool,
    check_bound_parameters,
    check_choice,
    check_int,
    check_sample_weight,
    warn_caller,
)
from sklearn_mpt._frames import ADVICE, readable_numbers
from sklearn_mpt._latent.fitting import TrainingMixin
from sklearn_mpt._latent.measured import MeasuredMixin
from sklearn_mpt._measure.contract import fill_masked, own_setting
from sklearn_mpt._persistence import VersionedPickleMixin
from sklearn_mpt._seeds import RandomState, spawn_seeds

UNSURE = 0.5  # a standard error, in nats, that deserves a warning


class BaseMPT(
    TrainingMixin,
    MeasuredMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    DensityMixin,
    VersionedPickleMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base of the models that are trained by masking.

    A subclass lists its parameters in ``__init__`` and names its `Family`.
    """

    n_iter_: int
    loss_curve_: list[float]
    lml_method_: str
    n_features_in_: int
    feature_names_in_: np.ndarray
    _of_strings = ADVICE  # what to do with a column of strings

    @overload
    def score_samples(
        self, X: ArrayLike, return_std: Literal[False] = False
    ) -> np.ndarray: ...
    @overload
    def score_samples(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def score_samples(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        r"""Compute the log marginal likelihood :math:`\log p(x)` of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score. Missing entries (NaN) are integrated out: the score is the
            log-density of the entries present, and 0.0 where there are none.
        return_std : bool, default=False
            Whether to return the standard error of the integration too.

        Returns
        -------
        log_prob : ndarray of shape (n_samples,)
            In nats.
        std_error : ndarray of shape (n_samples,)
            In nats; zero where the score is exact, or a quadrature accurate to 1e-4.
            By importance sampling, from independent scramblings of the points; so large
            that 1.96 of them cover 95%, by Student's t. Only if `return_std` is True.

        Warns
        -----
        UserWarning
            If a standard error exceeds 0.5 nats.
        """
        check_bool(return_std, "return_std")
        X, model = self._validate_rows(X), self._model()
        scored = self._map_rows(model, lambda rows: torch.stack(model.lml(rows), 1), X)
        log_prob, std_error, *n_effective = scored.T
        _warn_if_unsure(std_error, *n_effective)
        return (log_prob, std_error) if return_std else log_prob

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Compute the mean log marginal likelihood of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts in the mean; None is 1.

        Returns
        -------
        float
            In nats per row.
        """
        log_prob = self.score_samples(X)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, log_prob)
        return float(np.average(log_prob, weights=sample_weight))

    def impute(
        self, X: ArrayLike, method: str = "mean", random_state: RandomState = None
    ) -> np.ndarray:
        """Fill in the missing entries of each row, given those present.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        method : {"mean", "sample"}, default="mean"
            "mean" is the conditional expectation of each missing entry, or its most
            probable category; "sample" one joint draw of all that are missing in a row.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            A copy; present entries are unchanged. A DataFrame where X is one and the
            model's `likelihood` tells kinds of columns. Its columns have the dtypes
            they are given in, if these can hold all that gaps may be filled with, and
            otherwise those of `fit`: integers that gaps turned into floats, or a column
            of None alone, come back as in `fit`. Integers are rounded, and kept within
            the range of the dtype in `fit`. A row is filled alone as beside others.
        """
        check_choice(method, "method", ["mean", "sample"])
        rows, model = self._validate_rows(X), self._model()
        fill = model.expect
        if method == "sample":
            fill = partial(model.draw, rng=self._own_generator(random_state))

        def filled(part):
            return torch.where(torch.isnan(part), fill(part), part)

        return self._as_given(self._map_rows(model, filled, rows, dtype=rows.dtype), X)

    def sample(
        self, n_samples: int = 1, random_state: RandomState = None
    ) -> np.ndarray:
        """Draw rows from the model.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        """
        self._check_is_fitted()
        check_int(n_samples, "n_samples")
        nothing = np.broadcast_to(np.nan, (n_samples, self.n_features_in_))
        rng, model = self._own_generator(random_state), self._model()
        drawn = self._map_rows(model, lambda rows: model.draw(rows, rng), nothing)
        return self._as_given(drawn)

    def _as_given(self, rows, X=None):
        """Return rows of numbers in the form in which users give them, such as X."""
        return rows

    def _own_generator(self, random_state):
        random_state = own_setting(self, "random_state", random_state)
        return np.random.default_rng(spawn_seeds(random_state, 1)[0])

    def _validate_rows(self, X, reset=False, min_samples=1):
        if not reset:
            self._check_is_fitted()
        X = validate_data(
            self,
            fill_masked(readable_numbers(X, self._of_strings)),
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
        )
        self._check_values(X)
        return X

    def _check_values(self, X):
        """Refuse rows with values that no feature takes."""
        self._family.check_rows(X)

    def _check_is_fitted(self):
        check_is_fitted(self)
        check_bound_parameters(self, self._bound)

    @property
    def _n_features_out(self):
        return self._family.n_components(vars(self))

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_iter_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = False
        return tags


class LatentMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Mixin for models of continuous latent variables z."""

    _validate_rows: Callable[..., np.ndarray]
    _model: Callable[[], Any]
    _map_rows: Callable[..., np.ndarray]
    _as_given: Callable[..., np.ndarray]
    _check_is_fitted: Callable[[], None]
    _n_features_out: int

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
        X, model = self._validate_rows(X), self._model()
        return self._map_rows(model, model.latent_mean, X, dtype=X.dtype)

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
        X, model = self._validate_rows(X), self._model()

        def moments(rows):
            mean, covariance = model.latent_moments(rows)
            return torch.cat([mean[:, None], covariance], 1)

        both = self._map_rows(model, moments, X)
        return both[:, 0], both[:, 1:]

    def inverse_transform(self, Z: ArrayLike) -> np.ndarray:
        """Compute the expected row for given latent variables.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Latent variables.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        """
        self._check_is_fitted()
        Z = check_array(
            fill_masked(readable_numbers(Z)), dtype=[np.float64, np.float32]
        )
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z must have n_components={self._n_features_out} columns, "
                f"got {Z.shape[1]}."
            )
        model = self._model()
        return self._as_given(self._map_rows(model, model.decode, Z, dtype=Z.dtype))


def _warn_if_unsure(std_error, n_effective=None):
    unsure = std_error > UNSURE
    if not unsure.any():
        return
    points = ""
    if n_effective is not None:
        least = n_effective[unsure].min()
        points = f", and rest on as few as {least:.3g} effective points"
    warn_caller(
        f"The log marginal likelihoods of {np.count_nonzero(unsure)} of "
        f"{len(std_error)} rows are uncertain by up to {std_error.max():.2g} nats"
        f"{points}: the posterior of the latent variables is hard to integrate over.",
    )
