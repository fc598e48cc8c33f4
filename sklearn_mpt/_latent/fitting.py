"""How an estimator is trained: fit, partial_fit and their callbacks."""

from abc import abstractmethod
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.callback import CallbackSupportMixin, with_callbacks

from sklearn_mpt._checks import check_training_parameters
from sklearn_mpt._latent.trainer import Trainer, load_optimizer_arrays, optimizer_arrays
from sklearn_mpt._seeds import spawn_seeds


class TrainingMixin(CallbackSupportMixin):
    """Mixin for estimators whose fitted attributes torch trains.

    A subclass says how its fitted attributes begin (`_initialize`), how torch goes on
    from them (`_training_problem`), and how to read them back (`_fitted_attributes`).
    """

    _objectives: tuple[str, ...]  # allowed values of `objective`

    @abstractmethod
    def _check_own_parameters(self, n_features):
        """Check the parameters that only this model has."""

    @abstractmethod
    def _initialize(self, X, rng):
        """Set the fitted attributes from which training starts."""

    @abstractmethod
    def _training_problem(self, X, is_all):
        """Return a torch model at the fitted attributes, and its objective on X.

        is_all : whether X is all there is to learn from, not a part of a stream.
        """

    @abstractmethod
    def _fitted_attributes(self, model):
        """Return the fitted attributes that the state of the torch model stands for."""

    @with_callbacks
    def fit(self, X: ArrayLike, y: object = None) -> Self:
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
        go_on = self.warm_start and hasattr(self, "n_iter_")
        X = self._validate_training_rows(X, reset=not go_on, min_samples=2)
        context = self._init_callback_context(max_subtasks=self.max_iter)
        context.call_on_fit_task_begin(estimator=self, X=X)
        self._seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
        self._optimizer_state = {}
        rng = np.random.default_rng(self._seed)
        if not go_on:
            self._initialize(X, rng)
        if self.max_iter > 0:
            self._train(X, rng, context)
        else:
            self._set(_history([]))
        context.call_on_fit_task_end(
            estimator=self, X=X, reconstruction_attributes=dict
        )
        return self

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Update the model by one pass over X.

        The first call initialises the model, unless it is fitted; later ones go on with
        the state of the optimizer. The step size is constant at `learning_rate`.

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
        first = not hasattr(self, "n_iter_")
        X = self._validate_training_rows(X, reset=first, min_samples=2 if first else 1)
        if first:
            self._seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
            self._optimizer_state, self.loss_curve_ = {}, []
            self._initialize(X, np.random.default_rng(self._seed))
        rng = np.random.default_rng([*self._seed, len(self.loss_curve_)])
        trainer = self._trainer(X, rng, is_all=False)
        load_optimizer_arrays(trainer.optimizer, self._optimizer_state)
        trainer.run_once()
        self._set(self._fitted_attributes(trainer.model))
        self._set(_history(self.loss_curve_ + trainer.loss_curve))
        self._optimizer_state = optimizer_arrays(trainer.optimizer)
        return self

    def _trainer(self, X, rng, is_all):
        model, objective = self._training_problem(X, is_all)
        return Trainer(model, objective, learning_rate=self.learning_rate, rng=rng)

    def _train(self, X, rng, context):
        trainer = self._trainer(X, rng, is_all=True)
        trainer.run(
            max_iter=self.max_iter,
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            around_epoch=self._around_epoch(X, trainer, context),
        )
        self._set(self._fitted_attributes(trainer.model))
        self._set(_history(trainer.loss_curve))
        self._warn_about_fit(len(X))

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

    def _warn_about_fit(self, n_samples):
        """Warn where the fitted parameters are at a limit."""

    def _validate_training_rows(self, X, reset, min_samples):
        X = self._validate_rows(X, reset=reset, min_samples=min_samples)
        check_training_parameters(self, self._objectives, X.shape[1])
        self._check_own_parameters(X.shape[1])
        empty = np.flatnonzero(np.isnan(X).all(axis=0))
        if not reset and self._n_features_out != self.n_components:
            raise ValueError(
                f"n_components={self.n_components} differs from the "
                f"{self._n_features_out} of the fitted model that training goes on "
                "with; set warm_start=False, or clone the estimator, to start anew."
            )
        if reset and len(empty):
            raise ValueError(
                f"All entries of column(s) {empty[:10].tolist()} of X are missing; "
                "drop the column(s)."
            )
        return X


def _history(loss_curve):
    return {"loss_curve_": list(loss_curve), "n_iter_": len(loss_curve)}
