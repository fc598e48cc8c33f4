"""How an estimator is trained: its family, fit, partial_fit and their callbacks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.callback import CallbackSupportMixin, with_callbacks

from sklearn_mpt._checks import (
    check_columns_present,
    check_device,
    check_fitted_components,
    check_training_parameters,
    rows_that_count,
)
from sklearn_mpt._latent.fit_loop import Solver, fit_loop, fit_part
from sklearn_mpt._latent.model import Model, as_view, own_mode
from sklearn_mpt._persistence import all_or_nothing, forget
from sklearn_mpt._seeds import spawn_seeds


class Problem(NamedTuple):
    """What training goes on with.

    X : rows, NaN where missing. fitted : the attributes to start from. is_all : whether
    X is all there is to learn from, not a part of a stream. is_new : whether nothing
    has been trained before. weight : what each row counts, (n,); None is 1.
    """

    X: np.ndarray
    fitted: Mapping
    is_all: bool
    is_new: bool
    device: torch.device
    rng: np.random.Generator
    weight: np.ndarray | None

    @property
    def has_gaps(self):
        return bool(np.isnan(self.X).any())

    @property
    def rows_to_read(self):
        """The rows without a copy, where X needs none."""
        return as_view(self.X, self.device)


class Family(ABC):
    """How models of one kind start, are trained, and become maths.

    It has no state. `settings` is what has an estimator's parameters as attributes,
    `fitted` a dict of its fitted attributes, `weight` what each row counts, None for 1.
    """

    objectives: tuple[str, ...]  # allowed values of `objective`

    @abstractmethod
    def check_parameters(self, settings, n_features):
        """Check the parameters that only this kind of model has."""

    def check_rows(self, X):
        """Refuse rows with values that no feature takes."""

    @abstractmethod
    def n_components(self, fitted):
        """Return the number of latent variables of a fitted model."""

    @abstractmethod
    def start(self, settings, X, rng, weight=None):
        """Return the fitted attributes from which training starts."""

    @abstractmethod
    def solver(self, settings, problem) -> Solver:
        """Return a solver that starts from the problem's attributes."""

    @abstractmethod
    def trained_attributes(self, result, fitted):
        """Return the fitted attributes that the result of training stands for."""

    @abstractmethod
    def model(self, settings, fitted, device) -> Model:
        """Return the maths of the fitted attributes."""

    def check_fitted(self, settings, fitted):
        """Refuse parameters that a fitted model cannot be trained further with."""

    def has_chains(self, settings) -> bool:
        """Whether models score along orders of the features; see the contract."""
        return True

    def warn(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""


class TrainingMixin(CallbackSupportMixin):
    """Mixin for estimators whose fitted attributes are trained as their `Family` says.

    Fitted attributes are set together, when training is over or was interrupted.
    """

    # Parameters without which the fitted attributes would be another model's.
    _bound_parameters: tuple[str, ...] = ()

    @property
    @abstractmethod
    def _family(self) -> Family:
        """What kind of model this is."""

    @all_or_nothing
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
        X, weight = rows_that_count(X, sample_weight)
        with own_mode(with_grad=True):
            return self._fit(X, weight)

    @with_callbacks
    def _fit(self, X, weight):
        was_fitted = hasattr(self, "n_iter_")
        go_on = self.warm_start and was_fitted
        if not go_on:
            forget(self)
        X = self._validate_training_rows(X, reset=not go_on, min_samples=2)
        context = self._init_callback_context(max_subtasks=self.max_iter)
        context.call_on_fit_task_begin(estimator=self, X=X)
        fitted = self._new_state()
        rng = np.random.default_rng(fitted["_seed"])
        if go_on:
            fitted = vars(self) | fitted
        else:
            fitted |= self._family.start(self, X, rng, weight)
        fitted |= history([])
        if self.max_iter > 0:
            how = {"is_all": True, "is_new": not go_on, "weight": weight}
            problem = self._problem(X, fitted, rng, **how)
            is_refit = was_fitted and not go_on
            n_required = self.n_iter_no_change if is_refit else 1
            fitted |= self._train(problem, context, n_required)
            self._family.warn(vars(self) | fitted, len(X))
        self.__dict__.update(fitted)
        context.call_on_fit_task_end(
            estimator=self, X=X, reconstruction_attributes=dict
        )
        return self

    @all_or_nothing
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
        X, weight = rows_that_count(X, sample_weight)
        with own_mode(with_grad=True):
            return self._partial_fit(X, weight)

    def _partial_fit(self, X, weight):
        first = not hasattr(self, "n_iter_")
        X = self._validate_training_rows(X, reset=first, min_samples=2 if first else 1)
        if np.isnan(X).all():  # a step would still move along the averages of before
            return self
        fitted = vars(self).copy()
        if first:
            fitted |= self._new_state()
            rng = np.random.default_rng(fitted["_seed"])
            fitted |= self._family.start(self, X, rng, weight) | history([])
        rng = np.random.default_rng([*fitted["_seed"], fitted["n_iter_"]])
        how = {"is_all": False, "is_new": first, "weight": weight}
        solver = self._family.solver(self, self._problem(X, fitted, rng, **how))
        solver.load(fitted["_optimizer_state"])
        fit_part(solver)
        fitted |= self._family.trained_attributes(solver.result, fitted)
        fitted |= history(fitted["loss_curve_"] + solver.loss_curve)
        self.__dict__.update(fitted, _optimizer_state=solver.state())
        return self

    def _new_state(self):
        bound = {name: getattr(self, name) for name in self._bound_parameters}
        seed = spawn_seeds(self.random_state, 1)[0].generate_state(4)
        return {"_seed": seed, "_optimizer_state": {}, "_bound": bound}

    def _problem(self, X, fitted, rng, **how):
        return Problem(X, fitted, rng=rng, device=check_device(self.device), **how)

    def _train(self, problem, context, n_required):
        """Train to convergence; return the fitted attributes, changed."""
        solver = self._family.solver(self, problem)

        def fitted_now():
            trained = self._family.trained_attributes(solver.result, problem.fitted)
            return problem.fitted | trained | history(solver.loss_curve)

        around = self._around_epoch(problem.X, solver, context, fitted_now)
        fit_loop(solver, self.max_iter, around, n_required)
        return fitted_now() | {"_optimizer_state": solver.state()}

    def _around_epoch(self, X, solver, context, fitted_now):
        """Wrap an epoch in the callbacks' hooks; the wrapper says whether to stop."""

        def run(epoch):
            task = context.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X)
            epoch()
            if self.verbose:
                n_iter, loss = len(solver.loss_curve), solver.loss_curve[-1]
                print(f"Iteration {n_iter}, loss = {loss:.8f}")
            return task.call_on_fit_task_end(
                estimator=self, X=X, reconstruction_attributes=fitted_now
            )

        return run

    def _validate_training_rows(self, X, reset, min_samples):
        X = self._validate_rows(X, reset=reset, min_samples=min_samples)
        n_features = X.shape[1]
        check_training_parameters(self, self._family.objectives, n_features)
        self._family.check_parameters(self, n_features)
        if not reset:
            check_fitted_components(self.n_components, self._n_features_out)
            self._family.check_fitted(self, vars(self))
            return X
        names = getattr(self, "feature_names_in_", np.arange(n_features))
        check_columns_present(X, names)
        return X


def history(loss_curve):
    return {"loss_curve_": list(loss_curve), "n_iter_": len(loss_curve)}
