"""Evidence of a model and its prior, by cross-validation of all sizes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import column_or_1d

from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    COUNT_OR_0,
    VERBOSE,
    RandomState,
    check,
    check_int,
    check_n_jobs,
    draw_seed,
    listed,
    text_table,
)
from sklearn_mpt._measure.curve import std_error_of_mean, student_quantile
from sklearn_mpt._measure.display import axes_or_new, draw_band
from sklearn_mpt._measure.pipelines import check_pipeline, last_step, resolve_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def predictive_score(estimator, y):
    """Return the function that scores rows, or targets y, by a fitted estimator."""
    has_tags = hasattr(estimator, "__sklearn_tags__")
    kind = get_tags(estimator).estimator_type if has_tags else None
    last = last_step(estimator)
    if y is None or kind == "density_estimator":
        has_joint = hasattr(last, "joint_log_prob")
        has_scores = has_joint or hasattr(estimator, "score_samples")
        if has_scores and kind != "outlier_detector":
            check_pipeline(estimator)
            return _log_density
        needed = "a density estimator with score_samples, if y is None"
    elif kind == "classifier":
        if hasattr(estimator, "joint_log_prob"):
            return _log_joint
        if hasattr(estimator, "predict_log_proba"):
            return _log_proba
        needed = "a classifier with predict_log_proba"
    else:
        if hasattr(estimator, "joint_log_prob"):
            return _log_joint
        if {"return_std", "kwargs"} & _arguments(getattr(estimator, "predict", None)):
            is_process = isinstance(last, GaussianProcessRegressor)
            if is_process and not np.array_equal(last.alpha, type(last)().alpha):
                raise ValueError(
                    f"alpha={last.alpha!r} is noise that the predictions of a "
                    "GaussianProcessRegressor leave out, so they are not those of y: "
                    "add a WhiteKernel to its kernel, and leave alpha at its default."
                )
            return _log_normal
        needed = "a regressor with predict(X, return_std=True)"
    raise TypeError(f"estimator must be {needed}, got {estimator!r}.")


def _arguments(method):
    """Return the names of the arguments of a method; "kwargs" if it takes any."""
    parameters = inspect.signature(method).parameters.values() if method else ()
    return {
        "kwargs" if p.kind is inspect.Parameter.VAR_KEYWORD else p.name
        for p in parameters
    }


def _log_density(model, X, y):
    model = resolve_model(model)
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X)
    return model.score_samples(X)


def _log_joint(model, X, y):
    return model.joint_log_prob(X, y)


def _log_proba(model, X, y):
    log_proba = np.asarray(model.predict_log_proba(X))
    column = {label: k for k, label in enumerate(model.classes_.tolist())}
    unseen = [label for label in np.asarray(y).tolist() if label not in column]
    if unseen:
        raise ValueError(
            f"The class {unseen[0]!r} is not among the rows seen before it, and the "
            "classifier gives it no probability: raise n_start."
        )
    columns = [column[label] for label in np.asarray(y).tolist()]
    return log_proba[np.arange(len(columns)), columns]


def _log_normal(model, X, y):
    y = np.asarray(y)
    if len(y) < 2 or "return_cov" not in _arguments(last_step(model).predict):
        return stats.norm.logpdf(y, *_predict(model, X, "return_std"))
    mean, covariance = _predict(model, X, "return_cov")
    try:
        joint = stats.Covariance.from_cholesky(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"The covariance matrix of the predictions of {len(y)} rows, by predict(X, "
            "return_cov=True), is not positive definite: rows of a block are predicted "
            "without noise. Leave steps=None, or give the estimator noise, such as a "
            "WhiteKernel of a Gaussian process."
        ) from error
    return stats.multivariate_normal.logpdf(y, mean, joint)


def _predict(model, X, option):
    """Return the means and standard deviations, or covariances, of predictions."""
    try:
        predicted = model.predict(X, **{option: True})
    except Exception as error:  # of the user's model
        error.add_note(f"It was raised by predict(X, {option}=True).")
        raise
    if not isinstance(predicted, tuple) or len(predicted) != 2:
        raise TypeError(
            f"predict(X, {option}=True) must return a tuple of two arrays, but that of "
            f"{last_step(model)!r} returned a {type(predicted).__name__}: it may take "
            "any argument and ignore this one."
        )
    return predicted


@dataclass(frozen=True, eq=False)
class CumulativeCV:
    r"""Predictive scores of blocks of rows, each by a fit to the rows before it.

    Created by :func:`cumulative_cv_score`. Printing it shows a table.

    Parameters
    ----------
    n_seen : ndarray of int of shape (n_blocks,)
        Number of rows that the estimator was fitted to, for each block.
    block_scores : ndarray of shape (n_orders, n_blocks)
        Sum of the log predictive probabilities of the rows of each block, in nats, or
        the joint one if the estimator has it.
    n_samples : int
        Number of all rows, including those before the first block.

    Attributes
    ----------
    log_evidence : float
        Log-probability of the other rows given the first ``n_seen[0]``, in nats: the
        mean of `scores`. It is below that, on average, if blocks have several rows and
        the estimator has no joint prediction.
    std_error : float
        Standard error of `log_evidence` over orders of the rows; NaN for one order.
    scores : ndarray of shape (n_orders,)
        Log evidence along each order.
    block_sizes : ndarray of int of shape (n_blocks,)
        Number of rows of each block.
    predictive_scores : ndarray of shape (n_blocks,)
        Mean log predictive probability per row, in nats, after `n_seen` rows: a
        learning curve.
    predictive_std_errors : ndarray of shape (n_blocks,)
        Standard errors of `predictive_scores` over orders.

    See Also
    --------
    cumulative_cv_score : Compute the log evidence of an estimator.
    compare_lml : Compare fitted models on held-out rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import CumulativeCV
    >>> CumulativeCV(np.array([2, 4]), np.array([[-3.0, -2.0], [-4.0, -2.5]]), 6)
    log evidence of 4 of 6 rows, 2 orders: -5.750, standard error 0.750 nats
      rows seen    nats per row    std_error
              2         -1.7500       0.2500
              4         -1.1250       0.1250
    """

    n_seen: np.ndarray
    block_scores: np.ndarray
    n_samples: int

    @property
    def scores(self) -> np.ndarray:
        """Log evidence along each order, in nats; (n_orders,)."""
        return self.block_scores.sum(axis=1)

    @property
    def log_evidence(self) -> float:
        """Mean of `scores` over orders, in nats."""
        return float(self.scores.mean())

    @property
    def std_error(self) -> float:
        """Standard error of `log_evidence` over orders."""
        return float(std_error_of_mean(self.scores))

    @property
    def block_sizes(self) -> np.ndarray:
        """Number of rows of each block; (n_blocks,)."""
        return np.diff(self.n_seen, append=self.n_samples)

    @property
    def predictive_scores(self) -> np.ndarray:
        """Mean score per row of each block, in nats; (n_blocks,)."""
        return self.block_scores.mean(axis=0) / self.block_sizes

    @property
    def predictive_std_errors(self) -> np.ndarray:
        """Standard errors of `predictive_scores` over orders; (n_blocks,)."""
        return std_error_of_mean(self.block_scores / self.block_sizes)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return an interval of Student's t for the log evidence, over orders.

        Parameters
        ----------
        confidence : float, default=0.95
            Fraction of the draws of orders for which the interval covers.

        Returns
        -------
        low, high : float
            In nats.
        """
        degrees = max(1, len(self.scores) - 1)
        half_width = float(student_quantile(confidence, degrees)) * self.std_error
        return self.log_evidence - half_width, self.log_evidence + half_width

    def leave_out(self, n_out: int) -> float:
        r"""Return the leave-p-out cross-validated score, for p of `n_out`.

        It is the mean log predictive probability of a row that is left out together
        with p - 1 others, by a fit to the other ``n_samples - p`` rows, over random
        sets of p rows. The log evidence is the sum of these scores over
        p = 1..n_samples - n_seen[0] [1]_.

        Parameters
        ----------
        n_out : int
            Number p of rows left out, in 1..n_samples - n_seen[0].

        Returns
        -------
        float
            In nats per row: the score of the block that contains position
            ``n_samples - p``.

        References
        ----------
        .. [1] E. Fong and C. C. Holmes, "On the marginal likelihood and
           cross-validation", Biometrika 107, 2020.
        """
        check_int(n_out, "n_out")
        most = self.n_samples - self.n_seen[0]
        if n_out > most:
            raise ValueError(
                f"n_out must lie in 1..{most}, as the first {self.n_seen[0]} rows of "
                f"{self.n_samples} are not scored; got {n_out}."
            )
        block = np.searchsorted(self.n_seen, self.n_samples - n_out, side="right") - 1
        return float(self.predictive_scores[block])

    def __repr__(self):
        n_scored = self.n_samples - self.n_seen[0]
        head = (
            f"log evidence of {n_scored} of {self.n_samples} rows, {len(self.scores)} "
            f"orders: {self.log_evidence:.3f}, standard error {self.std_error:.3f} nats"
        )
        mean, error = self.predictive_scores, self.predictive_std_errors
        n_lines = min(12, len(mean))
        shown = np.linspace(0, len(mean) - 1, n_lines).round().astype(int)
        names = [f"{n:11d}" for n in self.n_seen[shown]]
        columns = [("nats per row", 16, mean[shown]), ("std_error", 13, error[shown])]
        return f"{head}\n{text_table(names, columns, title='  rows seen')}"

    def plot(self, ax: Axes | None = None, *, name: str | None = None) -> Axes:
        """Draw the predictive score per row by the number of rows seen.

        The area between the curve and zero is the log evidence; area below zero is
        negative. The band is two standard errors over orders on either side.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        name : str, default=None
            Name of the model in the legend.

        Returns
        -------
        ax : matplotlib Axes
            The axes with the curve.
        """
        ax = axes_or_new(ax)
        middle = self.n_seen + (self.block_sizes - 1) / 2
        mean, error = self.predictive_scores, self.predictive_std_errors
        label = f"log evidence {self.log_evidence:.1f}"
        if self.std_error >= 0.05:  # not nan, and not rounding
            label += f" ± {self.std_error:.1f}"
        label = label if name is None else f"{name}: {label}"
        (line,) = ax.plot(middle, mean, marker=".", label=label)
        draw_band(ax, middle, mean, error, line, alpha=0.2)
        ax.set(xlabel="Number of rows seen", ylabel="Predictive score (nats per row)")
        ax.legend()
        return ax


def cumulative_cv_score(
    estimator: object,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_start: str | int = "auto",
    n_orders: int = 10,
    steps: int | None = None,
    random_state: RandomState = None,
    n_jobs: int | None = None,
    verbose: bool | int = False,
) -> CumulativeCV:
    r"""Estimate the log evidence of an estimator by cumulative cross-validation.

    The rows are put in random order, and each block of rows is scored by a clone of the
    estimator that is fitted to the rows before it. The log predictive probabilities add
    up to

    .. math:: \log p(x_1 .. x_n \mid x_1 .. x_{n_0})
              = \sum_{i > n_0} \log p(x_i \mid x_1 .. x_{i - 1}),

    the log marginal likelihood of the rows over *parameters*, given the first
    :math:`n_0`. It is the sum of leave-p-out cross-validated scores over all p [1]_,
    as the evidence of a row is the sum of masked scores over all mask sizes. For an
    estimator whose predictions integrate over a posterior, the sum is the same for
    every order, if `steps` is None. For others, which predict from a point estimate, it
    is a prequential score [2]_, and its average over orders is reported.

    Parameters
    ----------
    estimator : estimator
        Without `y`, a density estimator with ``score_samples``. With `y`, a classifier
        with ``predict_log_proba``, or a regressor whose ``predict(X, return_std=True)``
        returns the means and standard deviations of Gaussian predictions. Instead of
        these it may have a method ``joint_log_prob(X)``, or ``joint_log_prob(X, y)``,
        that returns the log predictive probability of several rows together. Noise is
        part of the predictions: that of a Gaussian process is a `WhiteKernel`.
    X : array-like, sparse array or DataFrame of shape (n_samples, n_features)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, 1), default=None
        Target of a classifier or regressor: the evidence is that of `y` given `X`.
    n_start : int or "auto", default="auto"
        Number of rows to which the first fit is made, and which are not scored. 0 gives
        the whole evidence, for estimators that can be fitted to 0 rows. "auto" is a
        tenth of the rows, and more than the number of features or classes if there are
        enough rows. The first rows have the role of a prior: with fewer of them, the
        result depends more on the prior of the estimator.
    n_orders : int, default=10
        Number of random orders of the rows.
    steps : int, default=None
        Number of blocks; each takes one fit for each order. None scores one row at a
        time, which takes a fit for each row and order. The rows of a block are scored
        one by one, each as if it came first, unless the estimator has a joint
        prediction; see Notes. The sum is then below the evidence, on average.
    random_state : int, RandomState instance or None, default=None
        Determines the orders. Pass an int to compare models on the same orders.
    n_jobs : int, default=None
        Number of joblib workers, over fits. The orders do not depend on it.
    verbose : bool or int, default=False
        Whether joblib reports the progress.

    Returns
    -------
    CumulativeCV
        Log evidence with its standard error over orders, and the curve.

    Raises
    ------
    TypeError
        If the estimator has no predictive probabilities, or if a transform of a
        Pipeline has no known derivative.
    ValueError
        If an argument is not allowed, or a predictive probability is NaN or infinity.

    See Also
    --------
    compare_lml : Compare fitted models on held-out rows.

    Notes
    -----
    With `steps`, the rows of a block inform each other, and scores of single rows leave
    that out: the sum is below the evidence by the mutual information of the rows of
    each block, on average. In a regression of 40 rows with two coefficients, whose
    prior has standard deviation 10, the evidence is -62.9; the sum is -66.5 with 10
    blocks and -77.4 with 4 (:ref:`details <blocks_of_rows>`). Large blocks near the
    start matter most. Estimators with a joint prediction of several rows have the same
    evidence with any number of blocks: those with ``joint_log_prob``, and regressors
    whose ``predict(X, return_cov=True)`` returns the covariance matrix of the
    predictions, such as Gaussian processes.

    For classifiers the first `n_start` rows of each order include all classes; rows are
    exchanged if necessary. The standard error is that over orders and does not include
    the sampling of rows. A Pipeline that scales rows before a density estimator is
    scored in the units of X, as in :func:`compare_lml`.

    References
    ----------
    .. [1] E. Fong and C. C. Holmes, "On the marginal likelihood and cross-validation",
       Biometrika 107, 2020.
    .. [2] A. P. Dawid, "Present position and potential developments: some personal
       views: statistical theory: the prequential approach", Journal of the Royal
       Statistical Society A 147, 1984.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn_mpt import cumulative_cv_score
    >>> X, y = load_diabetes(return_X_y=True)
    >>> result = cumulative_cv_score(
    ...     BayesianRidge(), X, y, n_start=40, steps=4, n_orders=2, random_state=0
    ... )
    >>> result.scores.shape, result.n_seen.tolist()
    ((2,), [40, 141, 241, 342])
    """
    check_int(n_orders, "n_orders")
    check_n_jobs(n_jobs)
    check(verbose, "verbose", *VERBOSE)
    check(n_start, "n_start", AUTO, COUNT_OR_0)
    check(steps, "steps", COUNT, None)
    score = predictive_score(estimator, y)
    y = None if y is None else column_or_1d(y)
    X, y = indexable(X if hasattr(X, "shape") else np.asarray(X), y)
    n_samples = np.shape(X)[0]
    is_classes = y is not None and is_classifier(estimator)
    if isinstance(n_start, str):
        n_classes = len(np.unique(np.asarray(y))) if is_classes else 0
        n_features = X.shape[1] if len(X.shape) > 1 else 1
        least = max(n_samples // 10, n_features + 1, 2 * n_classes)
        start = min(least, n_samples // 2)
    else:
        start = int(n_start)
    if start >= n_samples:
        raise ValueError(
            f"n_start must be less than the {n_samples} rows of X, got {n_start}."
        )
    n_scored = n_samples - start
    n_blocks = n_scored if steps is None else int(steps)
    if n_blocks > n_scored:
        raise ValueError(
            f"steps must be at most the {n_scored} rows after the first {start}, "
            f"got {steps}."
        )
    limits = np.linspace(start, n_samples, n_blocks + 1)[:-1]
    n_seen = np.floor(limits + 0.5).astype(int).tolist()
    rng = np.random.default_rng(draw_seed(random_state))
    orders = [rng.permutation(n_samples) for _ in range(n_orders)]
    if is_classes:
        orders = [_with_all_classes(order, np.asarray(y), start) for order in orders]
    ends = [*n_seen[1:], n_samples]
    results = Parallel(n_jobs=n_jobs, verbose=int(verbose))(
        delayed(_score_block)(score, estimator, X, y, order[:first], order[first:end])
        for order in orders
        for first, end in zip(n_seen, ends, strict=True)
    )
    block_scores = np.array(results).reshape(n_orders, len(n_seen))
    return CumulativeCV(np.array(n_seen), block_scores, n_samples)


def _with_all_classes(order, y, n_start):
    """Return the order with a row of each class among the first, if possible.

    The first row of a class that comes later is exchanged with one of the first
    `n_start` rows that is not the first of its class.
    """
    order = order.copy()
    first = np.unique(y[order], return_index=True)[1]
    late, starting = first[first >= n_start], set(first.tolist())
    free = [i for i in range(n_start - 1, -1, -1) if i not in starting]
    for one, other in zip(late.tolist(), free, strict=False):
        order[[one, other]] = order[[other, one]]
    return order


def _score_block(score, estimator, X, y, seen, block):
    """Fit a clone to the rows `seen`, and return the sum of the scores of a block."""
    before, later = (
        [None if v is None else _safe_indexing(v, rows) for v in (X, y)]
        for rows in (seen, block)
    )
    model = clone(estimator)
    model = model.fit(before[0]) if y is None else model.fit(*before)
    scores = np.asarray(score(model, *later), dtype=np.float64)
    if scores.shape not in ((len(block),), ()):
        raise ValueError(
            "The estimator must score each row, or all together by joint_log_prob, got "
            f"scores of shape {scores.shape} for {len(block)} rows."
        )
    if not (scores < np.inf).all():
        wrong = int(np.flatnonzero(~(scores < np.inf))[0])
        which = f"row {block[wrong]}" if scores.ndim else f"rows {listed(block)}"
        raise ValueError(
            f"The log predictive probability of {which} is {scores.flat[wrong]} after "
            f"a fit to {len(seen)} rows."
        )
    return scores.sum()
