"""The base of every estimator: training, scores, conditionals, imputation."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils import check_array
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_mpt._base.density import Density, as_tensor, as_view, torch_modes
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
    check_bool,
    check_bound_parameters,
    check_choice,
    check_columns_present,
    check_device,
    check_fitted_components,
    check_int,
    check_mask,
    check_mask_rate,
    check_orders,
    check_sample_weight,
    rows_that_count,
    warn_caller,
    warn_of_mask_rate,
)
from sklearn_mpt._fitting.fit_loop import Solver, fit_loop, fit_part
from sklearn_mpt._frames import ADVICE, readable_numbers
from sklearn_mpt._measure.contract import given_or_parameter
from sklearn_mpt._persistence import VersionedPickleMixin, all_or_nothing, forget
from sklearn_mpt._seeds import RandomState, spawn_seeds

CHUNK_BYTES = 2**25  # larger chunks of rows are slower: they leave the caches
UNSURE = 0.5  # standard error, in nats, from which on scores come with a warning


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
    DensityMixin,
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
    _has_chains = True  # whether it offers `mean_chain_scores`
    _takes_parts = True  # whether it offers `partial_fit`
    _of_strings = ADVICE  # end of the error message for a column of strings

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
            readable_numbers(X, self._of_strings),
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
        check_fitted_components(self.n_components, self._n_features_out)

    def _warn_of_limits(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""

    def _as_given(self, rows, X=None):
        """Return rows of numbers in the form of X: an array, or a table."""
        return rows

    @property
    def _n_features_out(self):
        return len(vars(self)["components_"])

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
        was_fitted = hasattr(self, "n_iter_")
        go_on = self.warm_start and was_fitted
        with all_or_nothing(self), torch_modes(with_grad=True):
            X, weight = rows_that_count(X, sample_weight)
            if go_on:
                self._check_is_fitted()
            else:
                forget(self)
            X = self._read_training_rows(X, not go_on, min_samples=2)
            context = self._callback_context(self.max_iter)
            context.call_on_fit_task_begin(estimator=self, X=X)
            fitted = self._new_state()
            rng = np.random.default_rng(fitted["_seed"])
            if go_on:
                fitted = vars(self) | fitted
            else:
                fitted |= self._start(X, rng, weight)
            fitted |= {"loss_curve_": [], "n_iter_": 0}
            if self.max_iter > 0:
                device = check_device(self.device)
                data = TrainingData(X, fitted, True, not go_on, device, rng, weight)
                solver = self._solver(data)
                epochs = EpochCallbacks(self, X, solver, context, fitted)
                is_refit = was_fitted and not go_on
                n_required = self.n_iter_no_change if is_refit else 1
                fit_loop(solver, self.max_iter, epochs, n_required)
                fitted = epochs.attributes() | {"_optimizer_state": solver.state()}
                self._warn_of_limits(vars(self) | fitted, len(X))
            self.__dict__.update(fitted)
            context.call_on_fit_task_end(
                estimator=self, X=X, reconstruction_attributes=dict
            )
        return self

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

    # Scores

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
            Whether to return the error of the integration over z, too. It is no
            standard deviation of the density over rows.

        Returns
        -------
        log_prob : ndarray of shape (n_samples,)
            In nats.
        std_error : ndarray of shape (n_samples,)
            Standard error of the integration, in nats; zero where the score is exact,
            or a quadrature accurate to 1e-4. By importance sampling, from independent
            scramblings of the points, so large that 1.96 of them cover 95%. Only if
            `return_std` is True.

        Warns
        -----
        UserWarning
            If a standard error exceeds 0.5 nats.
        """
        check_bool(return_std, "return_std")
        X, density = self._validate_rows(X), self._density()
        scored = self._map_rows(density, lambda x: torch.stack(density.lml(x), 1), X)
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

    # Conditionals

    def conditional_log_prob(self, X: ArrayLike, mask: ArrayLike) -> np.ndarray:
        r"""Compute :math:`\log p(x_j \mid x_R)` for the hidden entries of each row.

        R are the features that are neither hidden nor missing. A hidden value enters
        only its own term.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        mask : array-like of bool, of shape (n_features,) or (n_samples, n_features)
            True where a feature is hidden.

        Returns
        -------
        log_prob : ndarray of shape (n_samples, n_features)
            In nats; 0.0 where not hidden, or missing.
        """
        X, density = self._validate_rows(X), self._density()
        mask = check_mask(mask, *X.shape)
        if len(mask) == len(X):
            return self._map_rows(density, density.conditional_log_prob, X, mask)
        shared = self._tensor(mask)
        return self._map_rows(
            density, lambda rows: density.conditional_log_prob(rows, shared), X
        )

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
        X, density, masks = self._validate_rows(X), self._density(), np.asarray(masks)
        masks = self._tensor(check_mask(masks, len(masks), X.shape[1]))
        with torch_modes():
            rows = as_view(X, masks.device)
            scores = density.mean_masked_scores(rows, masks, _n_rows(density))
        return scores.cpu().numpy()

    @available_if(lambda self: self._has_chains)
    def mean_chain_scores(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Compute the scores along orders of the features, averaged over rows.

        `MPTDeepVAE` has it unless ``conditional="encode_decode"``.

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
        X, device = self._validate_rows(X), check_device(self.device)
        with torch_modes():
            orders = torch.from_numpy(np.require(orders, None, ["C", "W"])).to(device)
            scores = self._density().mean_chain_scores(as_view(X, device), orders)
        return scores.cpu().numpy()

    def chain_log_prob(self, X: ArrayLike, orders: ArrayLike) -> np.ndarray:
        """Compute the log-probability of each feature given those before it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        orders : array-like of int, of shape (n_orders, n_features) or \
                (n_orders, n_samples, n_features)
            Orders of the features, for all rows or for each.

        Returns
        -------
        log_prob : ndarray of shape (n_orders, n_samples, n_features)
            In nats, by feature; 0.0 where missing. The sum over features is the
            log-probability of the row, along each order.
        """
        X, density = self._validate_rows(X), self._density()
        orders = check_orders(orders, *X.shape).swapaxes(0, 1)

        def along(rows, order):
            return density.chain_log_prob(rows, order.long())

        if len(orders) == len(X):
            log_prob = self._map_rows(density, along, X, orders)
        else:
            shared = self._tensor(orders)
            log_prob = self._map_rows(density, lambda rows: along(rows, shared), X)
        return log_prob.swapaxes(0, 1)

    # Imputation and samples

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
            A copy; present entries are unchanged. It is a DataFrame if X is one and
            the model's `likelihood` tells kinds of columns. Its columns keep their
            dtypes where these can hold all values of the imputation, and otherwise get
            those of `fit`: integers that gaps turned into floats are integers again.
            Integers are rounded, and kept within the range of the dtype in `fit`. The
            imputation of a row does not depend on other rows.
        """
        check_choice(method, "method", ["mean", "sample"])
        rows, density = self._validate_rows(X), self._density()
        fill = density.expect
        if method == "sample":
            fill = partial(density.draw, rng=self._generator_for(random_state))

        def filled(part):
            return torch.where(torch.isnan(part), fill(part), part)

        return self._as_given(
            self._map_rows(density, filled, rows, dtype=rows.dtype), X
        )

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
        rng, density = self._generator_for(random_state), self._density()
        drawn = self._map_rows(density, lambda rows: density.draw(rows, rng), nothing)
        return self._as_given(drawn)

    # Rows and fitted attributes

    def _generator_for(self, random_state):
        random_state = given_or_parameter(self, "random_state", random_state)
        return np.random.default_rng(spawn_seeds(random_state, 1)[0])

    def _validate_rows(self, X):
        """Return rows to score as an array of numbers, NaN where missing."""
        self._check_is_fitted()
        X = self._read_rows(X)
        self._check_values(X)
        return X

    def _check_is_fitted(self):
        check_is_fitted(self)
        check_bound_parameters(self, self._bound)

    def _density(self):
        """Return the density of the fitted attributes."""
        with torch_modes():
            return self._density_of(vars(self), check_device(self.device))

    def _tensor(self, array):
        with torch_modes():
            return as_tensor(array, check_device(self.device))

    def _map_rows(self, density, function, *arrays, dtype=None):
        """Apply a function of tensors in double precision to chunks of rows.

        dtype : of the result; None is what the function returns.
        """
        result = None
        with torch_modes():
            device, n_rows = check_device(self.device), _n_rows(density)
            for start in range(0, len(arrays[0]), n_rows):
                rows = slice(start, start + n_rows)
                part = function(*(as_tensor(array[rows], device) for array in arrays))
                part = part.cpu().numpy()
                if result is None:
                    shape = len(arrays[0]), *part.shape[1:]
                    result = np.empty(shape, dtype or part.dtype)
                result[rows] = part
        return result

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
    _density: Callable[[], Any]
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
        """
        self._check_is_fitted()
        Z = check_array(readable_numbers(Z), dtype=[np.float64, np.float32])
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z must have n_components={self._n_features_out} columns, "
                f"got {Z.shape[1]}."
            )
        density = self._density()
        return self._as_given(self._map_rows(density, density.decode, Z, dtype=Z.dtype))


class EpochCallbacks:
    """Calls callbacks around the epochs of a fit, and prints losses if verbose."""

    def __init__(self, estimator, X, solver, context, fitted):
        self.estimator = estimator
        self.X = X
        self.solver = solver
        self.context = context
        self.fitted = fitted

    def begin(self):
        self._task = self.context.subcontext(task_name="epoch")
        self._task.call_on_fit_task_begin(estimator=self.estimator, X=self.X)

    def end(self):
        """Return whether a callback ends training."""
        if self.estimator.verbose:
            n_iter, loss = len(self.solver.loss_curve), self.solver.loss_curve[-1]
            print(f"Iteration {n_iter}, loss = {loss:.8f}")
        return self._task.call_on_fit_task_end(
            estimator=self.estimator,
            X=self.X,
            reconstruction_attributes=self.attributes,
        )

    def attributes(self):
        """Return the fitted attributes of the best parameters so far."""
        result = self.solver.result
        trained = self.estimator._trained_attributes(result, self.fitted)
        loss_curve = list(self.solver.loss_curve)
        history = {"loss_curve_": loss_curve, "n_iter_": len(loss_curve)}
        return self.fitted | trained | history


def _n_rows(density):
    """Return the number of rows that fit working_memory and CHUNK_BYTES."""
    budget = min(get_config()["working_memory"] * 2**20, CHUNK_BYTES)
    return max(1, int(budget // density.row_bytes))


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
