"""The base of every estimator: parameters and training; see also `fitted_density`."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from sklearn_mpt._base.density import Density, torch_modes
from sklearn_mpt._base.epochs import EpochCallbacks
from sklearn_mpt._base.fitted_density import FittedDensityMixin
from sklearn_mpt._callbacks import CallbackMixin, in_callback_context
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    COUNT_OR_0,
    N_JOBS,
    POSITIVE,
    POSITIVE_OR_0,
    VERBOSE,
    bound_parameters,
    check_columns_present,
    check_device,
    check_mask_rate,
    rows_that_count,
    warn_of_mask_rate,
)
from sklearn_mpt._fitting.fit_loop import Solver, fit_loop, fit_part
from sklearn_mpt._frames import ADVICE, readable_numbers
from sklearn_mpt._persistence import VersionedPickleMixin, all_or_nothing, forget
from sklearn_mpt._seeds import RandomState, spawn_seeds


class TrainingData(NamedTuple):
    """The rows, the start and the device of a training.

    X : rows, NaN where missing. fitted : the attributes to start from. is_all : whether
    X has all rows, and is not a part of a stream. is_new : whether the model has not
    been trained before. weight : the sample weights, (n,); None is 1.
    """

    X: np.ndarray
    fitted: Mapping
    is_all: bool
    is_new: bool
    device: torch.device
    rng: np.random.Generator
    weight: np.ndarray | None


class BaseMPT(
    CallbackMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    FittedDensityMixin,
    VersionedPickleMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base of the models that are trained by masking.

    A subclass lists its parameters in ``__init__``, and their constraints as
    scikit-learn's estimators do. It fills four methods: `_start`, `_solver`,
    `_trained_attributes` and `_density_of`. Fitted attributes are a dict, `fitted`, and
    are set together once training ends.
    """

    n_iter_: int
    loss_curve_: list[float]
    lml_method_: str
    n_features_in_: int
    feature_names_in_: np.ndarray
    n_components: int
    max_iter: int
    n_iter_no_change: int
    warm_start: bool
    verbose: bool | int
    device: str | torch.device
    random_state: RandomState

    _parameter_constraints: ClassVar[dict] = {
        "n_components": [COUNT],
        "n_masks": [COUNT, AUTO],
        "batch_size": [COUNT, AUTO],
        "max_iter": [COUNT_OR_0],
        "learning_rate": [POSITIVE],
        "tol": [POSITIVE_OR_0],
        "n_iter_no_change": [COUNT],
        "warm_start": ["boolean"],
        "verbose": VERBOSE,
        "n_jobs": N_JOBS,
    }
    # Parameters that results of a fitted model do not depend on. All others are
    # remembered, and a model whose parameters were changed after `fit` refuses to work.
    _free_parameters: tuple[str, ...] = (
        "n_components",
        "mask_rate",
        "n_masks",
        "objective",
        "init",
        "max_iter",
        "learning_rate",
        "batch_size",
        "tol",
        "n_iter_no_change",
        "early_stopping",
        "validation_fraction",
        "warm_start",
        "verbose",
        "device",
        "random_state",
        "n_jobs",
    )
    # Whether it has the parameters `max_iter` and `warm_start`; if not, it replaces
    # `_train`.
    _has_epochs = True
    _takes_parts = True  # whether it offers `partial_fit`
    _advice_on_strings = ADVICE  # ends the error message for a column of strings

    # What a model fills in

    @abstractmethod
    def _start(self, X: np.ndarray, rng: np.random.Generator, weight) -> dict:
        """Return the fitted attributes from which training starts.

        weight : what each row counts, (n,); None is 1.
        """

    @abstractmethod
    def _solver(self, data: TrainingData) -> Solver:
        """Return a solver that starts from the attributes of `data`."""

    @abstractmethod
    def _trained_attributes(self, result: Any, fitted: Mapping) -> dict:
        """Return the fitted attributes that a solver's result stands for."""

    @abstractmethod
    def _density_of(self, fitted: Mapping, device: torch.device) -> Density:
        """Return the density of the fitted attributes."""

    # What a model may change

    def _read_rows(self, X, reset=False, min_samples=1):
        """Check rows as scikit-learn does; return an array of numbers, NaN if missing.

        reset : whether the model takes its columns from them.
        """
        return validate_data(
            self,
            readable_numbers(X, self._advice_on_strings),
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
        )

    def _check_parameters(self, n_features):
        """Refuse parameters that do not suit each other, or the rows."""

    def _check_values(self, X):
        """Refuse rows with values that no feature takes."""

    def _check_fitted_parameters(self):
        """Refuse parameters with which the fitted model cannot be trained further."""

    def _warn_of_limits(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""

    def _as_given(self, rows, X=None):
        """Return rows of numbers in the form of X: an array, or a table."""
        return rows

    # Training

    @in_callback_context
    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the model to X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts: 2 is the row twice, and 0 leaves it out. None is 1.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError, TypeError
            If a parameter or X is not valid; the message says what is.

        Warns
        -----
        ConvergenceWarning
            If the objective still improved when `max_iter` was reached, or diverged.
        """
        was_fitted = self.__sklearn_is_fitted__()
        is_warm_start = self._has_epochs and self.warm_start and was_fitted
        n_epochs = self.max_iter if self._has_epochs else 1
        with all_or_nothing(self), torch_modes(with_grad=True):
            X, weight = rows_that_count(X, sample_weight)
            if is_warm_start:
                self._check_is_fitted()
            else:
                forget(self)
            X = self._read_training_rows(X, not is_warm_start, min_samples=2)
            context = self._callback_context(n_epochs)
            context.call_on_fit_task_begin(estimator=self, X=X)
            fitted = self._new_state()
            rng = np.random.default_rng(fitted["_seed"])
            if is_warm_start:
                fitted = vars(self) | fitted
            else:
                fitted |= self._start(X, rng, weight)
            device = check_device(self.device)
            data = TrainingData(X, fitted, True, not is_warm_start, device, rng, weight)
            is_refit = was_fitted and not is_warm_start
            fitted = self._train(data, context, is_refit)
            self.__dict__.update(fitted)
            context.call_on_fit_task_end(
                estimator=self, X=X, reconstruction_attributes=dict
            )
        return self

    def _train(self, data, context, is_refit):
        """Return the fitted attributes after training, and tell callbacks of epochs.

        is_refit : whether a fitted model is lost if training is interrupted.
        """
        fitted = data.fitted | {"loss_curve_": [], "n_iter_": 0}
        if self.max_iter == 0:
            return fitted
        solver = self._solver(data._replace(fitted=fitted))
        epochs = EpochCallbacks(self, data.X, solver, context, fitted)
        fit_loop(
            solver, self.max_iter, epochs, self.n_iter_no_change if is_refit else 1
        )
        fitted = epochs.attributes() | {"_optimizer_state": solver.state()}
        self._warn_of_limits(vars(self) | fitted, len(data.X))
        return fitted

    @available_if(lambda self: self._takes_parts)
    def partial_fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Update the model by one pass over X.

        The first call initialises the model, unless it is fitted; later ones go on
        where the last one left off. Steps of linear models get smaller with all those
        before, and are averaged; parts of the stream should be alike. A later part
        whose entries are all missing changes nothing.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts beside the others of this part. None is 1.

        Returns
        -------
        self : object
            The updated estimator.
        """
        first = not hasattr(self, "n_iter_")
        with all_or_nothing(self), torch_modes(with_grad=True):
            X, weight = rows_that_count(X, sample_weight)
            if not first:
                self._check_is_fitted()
            X = self._read_training_rows(X, first, min_samples=2 if first else 1)
            if np.isnan(X).all():  # averages of earlier gradients would still move it
                return self
            fitted = vars(self).copy()
            if first:
                fitted |= self._new_state()
                rng = np.random.default_rng(fitted["_seed"])
                fitted |= self._start(X, rng, weight)
                fitted |= {"loss_curve_": [], "n_iter_": 0}
            rng = np.random.default_rng([*fitted["_seed"], fitted["n_iter_"]])
            device = check_device(self.device)
            data = TrainingData(X, fitted, False, first, device, rng, weight)
            solver = self._solver(data)
            solver.load(fitted["_optimizer_state"])
            fit_part(solver)
            fitted |= self._trained_attributes(solver.result, fitted)
            loss_curve = fitted["loss_curve_"] + solver.loss_curve
            fitted |= {"loss_curve_": loss_curve, "n_iter_": len(loss_curve)}
            self.__dict__.update(fitted, _optimizer_state=solver.state())
        return self

    def _new_state(self):
        seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
        bound = bound_parameters(self, self._free_parameters)
        return {"_seed": seed, "_optimizer_state": {}, "_bound": bound}

    def _read_training_rows(self, X, is_new, min_samples):
        """Read rows and check parameters before training; return an array of numbers.

        is_new : whether the model has not been trained before.
        """
        self._validate_params()
        check_device(self.device)
        X = self._read_rows(X, reset=is_new, min_samples=min_samples)
        self._check_values(X)
        check_mask_rate(self.mask_rate, X.shape[1])
        warn_of_mask_rate(self.mask_rate, X.shape[1])
        self._check_parameters(X.shape[1])
        if is_new:
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
            check_columns_present(X, names)
        else:
            self._check_fitted_parameters()
        return X

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_iter_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = False
        return tags
