"""The base of estimators whose nets are trained with validation rows."""

from __future__ import annotations

from typing import ClassVar

from sklearn_mpt._base.density import Units, as_tensor, as_view
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._checks import OPEN_UNIT_INTERVAL
from sklearn_mpt._optim.minibatches import (
    TrainingRows,
)
from sklearn_mpt._optim.net_solver import (
    NetSolver,
)


class NetMPT(IterativeMPT):
    """Base of the models that `NetSolver` trains.

    `_solver` of a subclass splits the rows, builds the losses of both parts, and passes
    them to `_net_solver`.
    """

    early_stopping: bool
    validation_fraction: float
    tol: float

    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "early_stopping": ["boolean"],
        "validation_fraction": [OPEN_UNIT_INTERVAL],
    }
    _free_parameters = (
        *IterativeMPT._free_parameters,
        "early_stopping",
        "validation_fraction",
        "hidden_layer_sizes",
    )

    def _split_rows(self, data):
        """Return training rows and validation rows; parts of streams have none."""
        units = Units.from_attributes(data.fitted, data.device)
        X = units.standardise(as_tensor(data.X, data.device)).float()
        is_used = self.early_stopping and data.is_all
        n_held_out = int(self.validation_fraction * len(X)) if is_used else 0
        rows = TrainingRows.from_arrays(X, data.weight)
        return rows.split(n_held_out, data.fitted["_seed"])

    def _net_solver(
        self, data, module, loss, validation, learning_rate, kind=NetSolver, **params
    ):
        """Return a solver of this kind, with the parameters of the estimator."""
        units = Units.from_attributes(data.fitted, data.device)
        return kind(
            module,
            loss if data.is_all else loss.as_part(),
            learning_rate,
            validation=validation,
            log_scale=units.mean_log_scale(as_view(data.X, data.device), data.weight),
            tol=self.tol,
            n_iter_no_change=self.n_iter_no_change,
            # fits that go on later need the validation rows again
            joins=validation is not None and not self.warm_start,
            **params,
        )
