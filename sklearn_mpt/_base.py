"""What every estimator shares: validation, the public methods, the fit loop."""

import warnings
from abc import ABCMeta, abstractmethod
from numbers import Integral, Real

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.utils import check_array, gen_batches
from sklearn.utils.validation import check_is_fitted, check_scalar, validate_data

import sklearn_mpt
from sklearn_mpt._objective import own_setting, spawn_seeds
from sklearn_mpt._training import Trainer, load_optimizer_arrays, optimizer_arrays
from sklearn_mpt._validation import (
    check_batch_size,
    check_choice,
    check_device,
    check_mask,
    check_mask_rate,
)


class BaseMPT(
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    DensityMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base of the latent variable models that are trained by masking.

    A subclass lists its parameters in ``__init__`` and supplies the abstract methods:
    how its fitted attributes begin, how torch trains them, and the maths of a chunk of
    rows. Validation, chunks, callbacks, interruption and persistence are done here.
    """

    _objectives: tuple[str, ...]  # allowed values of `objective`

    @abstractmethod
    def _check_own_parameters(self, n_features):
        """Check the parameters that only this model has."""

    @abstractmethod
    def _initialize(self, X, rng):
        """Set the fitted attributes from which training starts."""

    @abstractmethod
    def _training_problem(self, X):
        """Return a torch model at the fitted attributes, and its objective on X."""

    @abstractmethod
    def _fitted_attributes(self, model):
        """Return the fitted attributes that the state of the torch model stands for."""

    @abstractmethod
    def _score_rows(self, X):
        """Return log p(x) and its standard error: tensor (n,) -> tensor (n, 2)."""

    @abstractmethod
    def _conditional_rows(self, X, mask):
        """Return the contract for tensors of shapes (n, d) and (1 or n, d)."""

    @abstractmethod
    def _transform_rows(self, X):
        """Return the posterior means of z: tensor (n, d) -> tensor (n, k)."""

    @abstractmethod
    def _decode(self, Z):
        """Return E[x | z]: array (n, k) -> array (n, d)."""

    @abstractmethod
    def _expect_rows(self, X):
        """Return E[x | present entries]: tensor (n, d) -> tensor (n, d)."""

    @abstractmethod
    def _draw_rows(self, X, rng):
        """Draw x given the present entries: tensor (n, d) -> tensor (n, d)."""

    @property
    @abstractmethod
    def _row_bytes(self):
        """Memory that scoring one row takes."""

    @with_callbacks
    def fit(self, X, y=None):
        """Fit the model to X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.

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
        X = self._validate_training_rows(X, reset=True, min_samples=2)
        context = self._init_callback_context(max_subtasks=self.max_iter)
        context.call_on_fit_task_begin(estimator=self, X=X)
        rng = np.random.default_rng(spawn_seeds(self.random_state, 1)[0])
        if not (self.warm_start and hasattr(self, "n_iter_")):
            self._initialize(X, rng)
        if self.max_iter > 0:
            self._train(X, rng, context)
        else:
            self._set(_history([]))
        context.call_on_fit_task_end(
            estimator=self, X=X, reconstruction_attributes=dict
        )
        return self

    def partial_fit(self, X, y=None):
        """Update the model by one pass over X.

        The first call initialises the model; later ones go on with the state of the
        optimizer, at a constant step size `learning_rate`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        self : object
            The updated estimator.
        """
        first = not hasattr(self, "_optimizer_state")
        X = self._validate_training_rows(X, reset=first, min_samples=2 if first else 1)
        if first:
            self._seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
            self._optimizer_state, self.loss_curve_ = {}, []
            self._initialize(X, np.random.default_rng(self._seed))
        rng = np.random.default_rng([*self._seed, len(self.loss_curve_)])
        trainer = self._trainer(X, rng)
        load_optimizer_arrays(trainer.optimizer, self._optimizer_state)
        trainer.run_once()
        self._set(self._fitted_attributes(trainer.model))
        self._set(_history(self.loss_curve_ + trainer.loss_curve))
        self._optimizer_state = optimizer_arrays(trainer.optimizer)
        return self

    def score_samples(self, X, return_std=False):
        r"""Compute the log marginal likelihood :math:`\log p(x)` of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score. Missing entries (NaN) are integrated out: the score is the
            log-density of the entries present, and 0.0 where there are none.
        return_std : bool, default=False
            Whether to return the Monte Carlo standard error too.

        Returns
        -------
        log_prob : ndarray of shape (n_samples,)
            In nats.
        std_error : ndarray of shape (n_samples,)
            Zero where the score is exact. Only if `return_std` is True.
        """
        X = self._validate_rows(X)
        log_prob, std_error = self._map_rows(self._score_rows, X).T
        return (log_prob, std_error) if return_std else log_prob

    def score(self, X, y=None):
        """Compute the mean log marginal likelihood of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        float
            In nats per row.
        """
        return float(np.mean(self.score_samples(X)))

    def conditional_log_prob(self, X, mask):
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
        X = self._validate_rows(X)
        mask = np.broadcast_to(check_mask(mask, *X.shape), X.shape)
        return self._map_rows(self._conditional_rows, X, mask)

    def transform(self, X):
        """Compute the posterior mean of the latent variables of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        Z : ndarray of shape (n_samples, n_components)
        """
        X = self._validate_rows(X)
        return self._map_rows(self._transform_rows, X).astype(X.dtype, copy=False)

    def inverse_transform(self, Z):
        """Compute the expected row for given latent variables.

        Parameters
        ----------
        Z : array-like of shape (n_samples, n_components)
            Latent variables.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        Z = check_array(Z, dtype=[np.float64, np.float32])
        if Z.shape[1] != self._n_features_out:
            raise ValueError(
                f"Z must have n_components={self._n_features_out} columns, "
                f"got {Z.shape[1]}."
            )
        return self._decode(Z).astype(Z.dtype, copy=False)

    def impute(self, X, method="mean", random_state=None):
        """Fill in the missing entries of each row, given those present.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.
        method : {"mean", "sample"}, default="mean"
            "mean" is the conditional expectation of each missing entry, "sample" one
            joint draw of all that are missing in a row.
        random_state : int, RandomState instance or None, default=None
            Determines the draws. None takes the estimator's own.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            A copy; present entries are unchanged.
        """
        check_choice(method, "method", ["mean", "sample"])
        X = self._validate_rows(X)
        if method == "mean":
            filled = self._map_rows(self._expect_rows, X)
        else:
            rng = self._own_generator(random_state)
            filled = self._map_rows(lambda rows: self._draw_rows(rows, rng), X)
        return np.where(np.isnan(X), filled, X).astype(X.dtype, copy=False)

    def sample(self, n_samples=1, random_state=None):
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
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        nothing = np.full((n_samples, self.n_features_in_), np.nan)
        rng = self._own_generator(random_state)
        return self._map_rows(lambda rows: self._draw_rows(rows, rng), nothing)

    def _trainer(self, X, rng):
        model, objective = self._training_problem(X)
        return Trainer(model, objective, learning_rate=self.learning_rate, rng=rng)

    def _train(self, X, rng, context):
        trainer = self._trainer(X, rng)
        trainer.run(
            max_iter=self.max_iter,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            around_epoch=self._around_epoch(X, trainer, context),
        )
        self._set(self._fitted_attributes(trainer.model))
        self._set(_history(trainer.loss_curve))
        self._warn_about_fit()

    def _around_epoch(self, X, trainer, context):
        """Wrap an epoch in the callbacks' hooks; the wrapper says whether to stop."""

        def state():
            fitted = self._fitted_attributes(trainer.model)
            return fitted | _history(trainer.loss_curve)

        def run(epoch):
            task = context.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X)
            epoch()
            if self.verbose:
                n_iter, loss = len(trainer.loss_curve), trainer.loss_curve[-1]
                print(f"Iteration {n_iter}, loss = {loss:.8f}")
            return task.call_on_fit_task_end(
                estimator=self, X=X, reconstruction_attributes=state
            )

        return run

    def _set(self, attributes):
        for name, value in attributes.items():
            setattr(self, name, value)

    def _warn_about_fit(self):
        """Warn where the fitted parameters are at a limit."""

    def _own_generator(self, random_state):
        random_state = own_setting(self, "random_state", random_state)
        return np.random.default_rng(spawn_seeds(random_state, 1)[0])

    def _tensor(self, array):
        """Copy an array to the device, floats as float64."""
        dtype = torch.bool if array.dtype == bool else torch.float64
        return torch.tensor(array, dtype=dtype, device=check_device(self.device))

    def _map_rows(self, function, X, *others):
        """Apply a function of tensors to chunks of rows that fit working_memory."""
        chunk = int(get_config()["working_memory"] * 2**20 // self._row_bytes)
        with torch.no_grad():
            chunks = [
                function(*(self._tensor(array[rows]) for array in (X, *others)))
                for rows in gen_batches(len(X), max(1, chunk))
            ]
        return torch.cat(chunks).cpu().numpy()

    def _validate_rows(self, X, reset=False, min_samples=1):
        if not reset:
            check_is_fitted(self)
        return validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=min_samples,
        )

    def _validate_training_rows(self, X, reset, min_samples):
        X = self._validate_rows(X, reset=reset, min_samples=min_samples)
        self._check_shared_parameters(X.shape[1])
        self._check_own_parameters(X.shape[1])
        empty = np.flatnonzero(np.isnan(X).all(axis=0))
        if reset and len(empty):
            raise ValueError(
                f"All entries of column(s) {empty[:10].tolist()} of X are missing; "
                "drop the column(s)."
            )
        return X

    def _check_shared_parameters(self, n_features):
        check_scalar(self.n_components, "n_components", Integral, min_val=1)
        check_mask_rate(self.mask_rate, n_features)
        check_scalar(self.n_masks, "n_masks", Integral, min_val=1)
        check_choice(self.objective, "objective", self._objectives)
        check_scalar(self.max_iter, "max_iter", Integral, min_val=0)
        check_scalar(
            self.learning_rate,
            "learning_rate",
            Real,
            min_val=0,
            include_boundaries="neither",
        )
        check_batch_size(self.batch_size)
        check_scalar(self.tol, "tol", Real, min_val=0)
        check_scalar(self.n_iter_no_change, "n_iter_no_change", Integral, min_val=1)
        check_device(self.device)
        if isinstance(self.mask_rate, float) and self.mask_rate == 1:
            warnings.warn(
                "mask_rate=1.0 hides every feature: training sees the marginals of the "
                "features only, nothing of what relates them.",
                stacklevel=5,
            )

    @property
    def _n_features_out(self):
        return self.components_.shape[0]

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_iter_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = False
        return tags

    def __getstate__(self):
        return {
            **super().__getstate__(),
            "_sklearn_mpt_version": sklearn_mpt.__version__,
        }

    def __setstate__(self, state):
        version = state.pop("_sklearn_mpt_version", "unknown")
        if version != sklearn_mpt.__version__:
            warnings.warn(
                InconsistentVersionWarning(
                    estimator_name=type(self).__name__,
                    current_sklearn_version=f"{sklearn_mpt.__version__} (sklearn_mpt)",
                    original_sklearn_version=f"{version} (sklearn_mpt)",
                ),
                stacklevel=2,
            )
        super().__setstate__(state)


def _history(loss_curve):
    return {"loss_curve_": list(loss_curve), "n_iter_": len(loss_curve)}
