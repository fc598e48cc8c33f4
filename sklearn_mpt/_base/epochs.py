"""Callbacks and messages of the epochs of a fit."""


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
