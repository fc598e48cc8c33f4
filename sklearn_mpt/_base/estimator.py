"""The base of every estimator: rows, checks of parameters, and `fit`.

`fitted_density` has what fitted models compute, `iterative` how they train in epochs.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import sklearn
import torch
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import validate_data

from sklearn_mpt._base.density import Density, torch_modes
from sklearn_mpt._base.fitted_density import FittedDensityMixin
from sklearn_mpt._base.state import (
    VersionedPickleMixin,
    all_or_nothing,
    bound_parameters,
    forget,
)
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    N_JOBS,
    check_device,
    check_mask_rate,
    listed,
    spawn_seeds,
    warn_caller,
)
from sklearn_mpt._tables.frames import (
    ADVICE,
    column_names,
    frame_of_numbers,
    library_of,
    readable_numbers,
)
from sklearn_mpt._tables.weights import (
    rows_that_count,
    rows_with_entries,
    sums_of_rows,
)

Method = TypeVar("Method", bound=Callable[..., Any])

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Refuses callbacks."""

        def set_callbacks(self, *callbacks):
            """Raise an error that says which scikit-learn has callbacks."""
            if callbacks:
                raise ImportError(
                    "Callbacks need the module sklearn.callback of scikit-learn 1.9, "
                    f"and scikit-learn {sklearn.__version__} does not have it: "
                    "fit without callbacks, or pip install 'scikit-learn>=1.9'."
                )
            return self

    def with_callbacks(method):
        """Return the method as it is."""
        return method


class NoCallbacks:
    """The context of a task that no callback follows."""

    def subcontext(self, **kwargs):
        """Return the context of a part of the task."""
        return self

    def call_on_fit_task_begin(self, **kwargs):
        """Do nothing before the task."""

    def call_on_fit_task_end(self, **kwargs):
        """Do nothing after the task; no callback ends it."""
        return False


class CallbackMixin(CallbackSupportMixin):
    """Gives a fit the context that calls the callbacks of its estimator."""

    def _callback_context(self, n_epochs):
        """Return the context of a fit of at most n_epochs epochs."""
        if not getattr(self, "_skl_callbacks", None):
            return NoCallbacks()
        return self._init_callback_context(max_subtasks=n_epochs)


def in_callback_context(method: Method) -> Method:
    """Apply scikit-learn's `with_callbacks`, and keep the type of the method."""
    return with_callbacks(method)


class TrainingData(NamedTuple):
    """The rows, the start and the device of a training.

    X : rows, NaN where missing. fitted : the attributes to start from. is_all : whether
    X has all rows, and is not a part of a stream. is_new : whether the model has not
    been trained before. weight : the sample weights, (n,); None is 1. is_refit :
    whether a model that is fitted already is lost if training is interrupted. groups :
    those of the rows, of models that tell groups apart. given : the rows as they were
    given, for callbacks.
    """

    X: np.ndarray
    fitted: Mapping
    is_all: bool
    is_new: bool
    device: torch.device
    rng: np.random.Generator
    weight: np.ndarray | None
    is_refit: bool = False
    groups: Any = None
    given: Any = None


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
    scikit-learn's estimators do. It fills three methods: `_start`, `_train` and
    `_density_of`. Models that train in epochs derive from `IterativeMPT`, which
    fills `_train`. Fitted attributes are a dict, `fitted`, and
    are set together once training ends.
    """

    lml_method_: str
    feature_names_in_: np.ndarray

    _parameter_constraints: ClassVar[dict] = {
        "n_masks": [COUNT, AUTO],
        "n_jobs": N_JOBS,
    }
    # Parameters that results of a fitted model do not depend on. All others are
    # remembered, and a model whose parameters were changed after `fit` refuses to work.
    _free_parameters: tuple[str, ...] = (
        "mask_rate",
        "n_masks",
        "device",
        "random_state",
        "n_jobs",
    )
    _least_rows = 2  # of a fit
    _advice_on_strings = ADVICE  # ends the error message for a column of strings

    # What a model fills in

    @abstractmethod
    def _start(self, X: np.ndarray, rng: np.random.Generator, weight) -> dict:
        """Return the fitted attributes from which training starts."""

    @abstractmethod
    def _train(self, data: TrainingData, context: Any) -> dict:
        """Return the fitted attributes after training, and tell callbacks of epochs."""

    @abstractmethod
    def _density_of(self, fitted: Mapping, device: torch.device) -> Density:
        """Return the density of the fitted attributes."""

    # What a model may change

    def _read_rows(self, X, reset=False, min_samples=1):
        """Check rows as scikit-learn does; return numbers, NaN if missing."""
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

    def _has_priors(self, n_features):
        """Return whether priors of the fit count as rows beside those of X."""
        return False

    def _check_fitted_parameters(self):
        """Refuse parameters with which the fitted model cannot be trained further."""

    def _as_given(self, rows, X=None):
        """Return rows of numbers in the form of X: an array, or a table."""
        return rows

    def _frame(self, rows, names, backend):
        """Return a DataFrame of rows of numbers."""
        return frame_of_numbers(rows, names, backend)

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
        UserWarning
            If priors count as rows, and the weights add up to fewer than ten rows.
        """
        with all_or_nothing(self), torch_modes(with_grad=True):
            data, context = self._start_training(X, sample_weight)
            self.__dict__.update(self._train(data, context))
            self._tell_of_end(data, context)
        return self

    def _start_training(self, X, sample_weight, **groups):
        """Read rows, and start from them; return what `_train` takes."""
        was_fitted = self.__sklearn_is_fitted__()
        is_warm_start = was_fitted and getattr(self, "warm_start", False)
        given, weight = rows_that_count(X, sample_weight)
        if is_warm_start:
            self._check_is_fitted()
        else:
            forget(self)
        X = self._read_training_rows(given, not is_warm_start, self._least_rows)
        if groups.get("groups") is None:  # which have a label for each row
            X, weight = rows_with_entries(X, weight)
        n_rows = None if weight is None else weight.sum()
        # priors count as about one row
        if self._has_priors(X.shape[1]) and n_rows and n_rows < min(10, len(X)):
            warn_caller(
                f"sample_weight of {len(X)} rows adds up to {n_rows:.3g}. A weight "
                "of 1 is a row, and priors of this model count as rows, too, which "
                "outweigh so few. If only the ratios of the weights matter, divide "
                "them by their mean."
            )
        context = self._callback_context(getattr(self, "max_iter", 1))
        context.call_on_fit_task_begin(estimator=self, X=given)
        fitted = self._new_state()
        fitted["_training_sums"] = sums_of_rows(X, weight)
        rng = np.random.default_rng(fitted["_seed"])
        if is_warm_start:
            fitted = vars(self) | fitted
        else:
            fitted |= self._start(X, rng, weight, **groups)
        data = TrainingData(
            X,
            fitted,
            is_all=True,
            is_new=not is_warm_start,
            device=check_device(self.device),
            rng=rng,
            weight=weight,
            is_refit=was_fitted and not is_warm_start,
            given=given,
            **groups,
        )
        return data, context

    def _tell_of_end(self, data, context):
        """Tell callbacks that a fit has ended."""
        context.call_on_fit_task_end(
            estimator=self, X=data.given, reconstruction_attributes=dict
        )

    def _new_state(self):
        seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
        bound = bound_parameters(self, self._free_parameters)
        return {"_seed": seed, "_optimizer_state": {}, "_bound": bound}

    def _read_training_rows(self, X, is_new, min_samples):
        """Read rows and check parameters before training; return numbers."""
        self._validate_params()
        check_device(self.device)
        if is_new:
            self._library = library_of(X)
            self._table_names = column_names(X) if self._library else None
        given, X = X, self._read_rows(X, reset=is_new, min_samples=min_samples)
        self._check_names(given)
        self._check_values(X)
        if hasattr(self, "mask_rate"):
            check_mask_rate(self.mask_rate, X.shape[1])
        self._check_parameters(X.shape[1])
        if not is_new:
            self._check_fitted_parameters()
        elif np.isnan(X[0]).any():
            empty = np.flatnonzero(np.isnan(X).all(axis=0))
            if len(empty):
                names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
                raise ValueError(
                    f"All entries of column(s) {listed(names[empty])} of X are "
                    "missing; drop the column(s)."
                )
        return X

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the model is fitted, as scikit-learn asks."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
