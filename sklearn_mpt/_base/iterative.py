"""The base of estimators whose solvers train for several epochs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._base.estimator import BaseMPT, TrainingData
from sklearn_mpt._base.state import all_or_nothing
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    COUNT_OR_0,
    POSITIVE,
    POSITIVE_OR_0,
    VERBOSE,
    check_device,
)
from sklearn_mpt._optim.loop import Solver, fit_loop, fit_part
from sklearn_mpt._tables.weights import rows_that_count, rows_with_entries


class EpochCallbacks:
    """Calls callbacks around the epochs of a fit, and prints losses if verbose."""

    def __init__(self, estimator, X, solver, context, fitted):
        self.estimator, self.X, self.solver = estimator, X, solver
        self.context, self.fitted = context, fitted

    def begin(self):
        self._task = self.context.subcontext(task_name="epoch")
        self._task.call_on_fit_task_begin(estimator=self.estimator, X=self.X)

    def end(self):
        """Return whether a callback ends training."""
        if self.estimator.verbose:
            n_iter, loss = len(self.solver.all_losses), self.solver.all_losses[-1]
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
        loss_curve = self.solver.all_losses
        history = {"loss_curve_": loss_curve, "n_iter_": len(loss_curve)}
        return self.fitted | trained | history


class IterativeMPT(BaseMPT):
    """Base of the models that a solver trains, epoch by epoch, or on a stream.

    A subclass fills four methods: `_start` and `_density_of` of `BaseMPT`, and
    `_solver` and `_trained_attributes`.
    """

    n_iter_: int
    loss_curve_: list[float]
    n_components: int
    max_iter: int
    n_iter_no_change: int
    warm_start: bool
    verbose: bool | int

    _parameter_constraints: ClassVar[dict] = BaseMPT._parameter_constraints | {
        "n_components": [COUNT],
        "batch_size": [COUNT, AUTO],
        "max_iter": [COUNT_OR_0],
        "learning_rate": [POSITIVE],
        "tol": [POSITIVE_OR_0],
        "n_iter_no_change": [COUNT],
        "warm_start": ["boolean"],
        "verbose": VERBOSE,
    }
    _free_parameters = (
        *BaseMPT._free_parameters,
        "n_components",
        "objective",
        "init",
        "max_iter",
        "learning_rate",
        "batch_size",
        "tol",
        "n_iter_no_change",
        "warm_start",
        "verbose",
    )

    # What a model fills in

    @abstractmethod
    def _solver(self, data: TrainingData) -> Solver:
        """Return a solver that starts from the attributes of `data`."""

    @abstractmethod
    def _trained_attributes(self, result: Any, fitted: Mapping) -> dict:
        """Return the fitted attributes that a solver's result stands for."""

    # What a model may change

    def _warn_of_limits(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""

    # Training

    @property
    def _max_epochs(self):
        return self.max_iter

    @property
    def _is_warm_start(self):
        return self.warm_start and self.__sklearn_is_fitted__()

    def _train(self, data, context):
        fitted = data.fitted | {"loss_curve_": [], "n_iter_": 0}
        if self.max_iter == 0:
            return fitted
        solver = self._solver(data._replace(fitted=fitted))
        epochs = EpochCallbacks(self, data.given, solver, context, fitted)
        n_required = self.n_iter_no_change if data.is_refit else 1
        solver = fit_loop(solver, self.max_iter, epochs, n_required)
        fitted = epochs.attributes() | {"_optimizer_state": solver.state()}
        self._warn_of_limits(vars(self) | fitted, len(data.X))
        return fitted

    def partial_fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Update the model by one pass over X; `MPTDeepVAE` passes over few rows again.

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
            X, weight = rows_with_entries(X, weight)
            fitted = vars(self).copy()
            if first:
                fitted |= self._new_state()
                rng = np.random.default_rng(fitted["_seed"])
                fitted |= self._start(X, rng, weight)
                fitted |= {"loss_curve_": [], "n_iter_": 0}
            rng = np.random.default_rng([*fitted["_seed"], fitted["n_iter_"]])
            data = TrainingData(
                X,
                fitted,
                is_all=False,
                is_new=first,
                device=check_device(self.device),
                rng=rng,
                weight=weight,
            )
            solver = self._solver(data)
            solver.load(fitted["_optimizer_state"])
            fit_part(solver)
            fitted |= self._trained_attributes(solver.result, fitted)
            loss_curve = fitted["loss_curve_"] + solver.loss_curve
            fitted |= {"loss_curve_": loss_curve, "n_iter_": len(loss_curve)}
            fitted["_training_sums"] = None  # which later parts add to
            self.__dict__.update(fitted, _optimizer_state=solver.state())
        return self

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_iter_")
