"""The base of estimators that train in epochs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

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
    warn_caller,
)
from sklearn_mpt._optim.steps import DIVERGENCE, Training, warn_diverged
from sklearn_mpt._tables.weights import rows_that_count, rows_with_entries


class IterativeMPT(BaseMPT):
    """Base of the models that are trained epoch by epoch, or on a stream.

    A subclass fills four methods: `_start` and `_density_of` of `BaseMPT`, and
    `_epochs` and `_trained_attributes`.
    """

    n_iter_: int
    loss_curve_: list[float]

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
    def _epochs(self, data: TrainingData, training: Training) -> Generator[bool]:
        """Train from the attributes of `data`; yield whether training is over."""

    @abstractmethod
    def _trained_attributes(self, result: Any, fitted: Mapping) -> dict:
        """Return the fitted attributes that the parameters of a `Training` are."""

    # What a model may change

    def _warn_of_limits(self, fitted, n_samples):
        """Warn where the fitted parameters are at a limit."""

    # Training

    def _train(self, data, context):
        fitted = data.fitted | {"loss_curve_": [], "n_iter_": 0}
        if self.max_iter == 0:
            return fitted
        data = data._replace(fitted=fitted)
        training = Training(self.max_iter)
        losses, epochs = training.loss_curve, self._epochs(data, training)

        def attributes():
            trained = self._trained_attributes(training.params, fitted)
            history = {"loss_curve_": list(losses), "n_iter_": len(losses)}
            return fitted | trained | history

        try:
            for _ in range(self.max_iter):
                task = context.subcontext(task_name="epoch")
                task.call_on_fit_task_begin(estimator=self, X=data.given)
                is_over = next(epochs)
                if self.verbose:
                    print(f"Iteration {len(losses)}, loss = {losses[-1]:.8f}")
                is_ended = task.call_on_fit_task_end(
                    estimator=self,
                    X=data.given,
                    reconstruction_attributes=attributes,
                )
                if is_ended or is_over:
                    break
            else:
                warn_caller(
                    f"Maximum iterations (max_iter={self.max_iter}) reached and the "
                    "optimization hasn't converged yet.",
                    ConvergenceWarning,
                )
        except DIVERGENCE:
            warn_diverged(len(losses))
        except KeyboardInterrupt:
            if len(losses) < (self.n_iter_no_change if data.is_refit else 1):
                raise
            warn_caller("Training interrupted by user.")
        finally:
            epochs.close()
        fitted = attributes() | {"_optimizer_state": training.state}
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
            training = Training(1, state=fitted["_optimizer_state"])
            epochs = self._epochs(data, training)
            try:
                next(epochs)
            except DIVERGENCE:
                warn_diverged(len(training.loss_curve))
            finally:
                epochs.close()
            fitted |= self._trained_attributes(training.params, fitted)
            loss_curve = fitted["loss_curve_"] + training.loss_curve
            fitted |= {"loss_curve_": loss_curve, "n_iter_": len(loss_curve)}
            fitted["_training_sums"] = None  # which later parts add to
            self.__dict__.update(fitted, _optimizer_state=training.state)
        return self

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_iter_")
