"""A scikit-learn callback that follows the log marginal likelihood."""

from __future__ import annotations

from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_int


class LMLMonitor:
    """Callback that records the log marginal likelihood during training.

    Register it with ``estimator.set_callbacks(monitor)``, which needs scikit-learn 1.9
    or newer. Unlike scikit-learn's ``ScoringMonitor`` it needs no y.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), default=None
        Rows to score, for example validation rows. None scores the training rows.
    every : int, default=1
        Number of epochs from one record to the next.

    Attributes
    ----------
    log_ : list of dict
        One record for each scored epoch: "fit" is the index of the fit and "epoch" the
        index of the epoch, both from 0; "lml" is the mean log marginal likelihood in
        nats per row. ``pandas.DataFrame(monitor.log_)`` makes a table of them.

    Notes
    -----
    Clones of an estimator share its callbacks, so in a grid search one monitor records
    all fits. Records of fits in other processes are lost, because those write to a
    copy of the monitor: use ``n_jobs=1`` or threads.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import LMLMonitor, MPTProbabilisticPCA
    >>> monitor = LMLMonitor(every=2)
    >>> model = MPTProbabilisticPCA(random_state=0).set_callbacks(monitor)
    >>> model = model.fit(load_iris().data)
    >>> [record["epoch"] for record in monitor.log_][:2]
    [0, 2]
    """

    def __init__(self, X: ArrayLike | None = None, every: int = 1):
        check_int(every, "every")
        self.X = X
        self.every = every
        self.log_: list[dict] = []
        self._n_fits = 0
        self._fits: dict = {}  # context of a running fit -> its number

    def setup(self, estimator, context):
        """Give the fit that begins a number."""
        self._fits[context] = self._n_fits
        self._n_fits += 1

    def teardown(self, estimator, context):
        """Forget the fit that ends."""
        self._fits.pop(context, None)

    def on_fit_task_begin(self, estimator, context):
        """Do nothing: epochs are recorded when they end."""

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        """Record the score after an epoch."""
        is_epoch = context.parent in self._fits
        if not is_epoch or context.task_id % self.every:
            return
        record = {"fit": self._fits[context.parent], "epoch": context.task_id}
        X = X if self.X is None else self.X
        self.log_.append({**record, "lml": fitted_estimator.score(X)})
