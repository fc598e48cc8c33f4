"""Evidence of a model and its prior, by cross-validation of all sizes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import softmax
from sklearn.base import clone
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import column_or_1d

from sklearn_mpt._checks import (
    check_int,
    check_n_jobs,
    check_real,
    check_verbose,
)
from sklearn_mpt._measure.comparison import check_measures
from sklearn_mpt._measure.contract import measures_of_columns
from sklearn_mpt._measure.display import CumulativeCVDisplay, EvidenceComparisonDisplay
from sklearn_mpt._measure.pipelines import check_pipeline, last_step, resolve_model
from sklearn_mpt._measure.rows import digest_of
from sklearn_mpt._measure.standard_errors import std_error_of_mean, student_quantile
from sklearn_mpt._messages import listed, text_table
from sklearn_mpt._seeds import RandomState, draw_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

START_FRACTION = 0.1  # "auto": of the rows, those before the first scored row
MAX_LINES = 12  # largest number of lines in the table of a result


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
    draw : tuple, default=()
        Identifies the random orders: results with the same `draw` have the same orders
        and are compared in pairs.
    target : str, default=""
        Identifies the values whose probabilities are scored: "X" or "y", and a digest.
    measures : tuple of str or None, default=None
        For each column that is scored, "density", "probability" or "density and
        probability". None if it is not known.

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
    compare_evidence : Log Bayes factors and posterior probabilities of models.

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
    draw: tuple = ()
    target: str = ""
    measures: tuple[str, ...] | None = None

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
            In nats per row: the score of the block that contains place
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
        n_lines = min(MAX_LINES, len(mean))
        shown = np.linspace(0, len(mean) - 1, n_lines).round().astype(int)
        names = [f"{n:11d}" for n in self.n_seen[shown]]
        columns = [("nats per row", 16, mean[shown]), ("std_error", 13, error[shown])]
        return f"{head}\n{text_table(names, columns, title='  rows seen')}"

    def plot(self, ax: Axes | None = None, *, name: str | None = None):
        """Draw the predictive score per row by the number of rows seen.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.
        name : str, default=None
            Name of the model in the legend.

        Returns
        -------
        display : CumulativeCVDisplay
            The display, with its axes and figure.
        """
        return CumulativeCVDisplay(self, name=name).plot(ax)


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
        that returns the log predictive probability of several rows together.
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
    compare_evidence : Log Bayes factors and posterior probabilities of models.
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
    check_verbose(verbose)
    score = _scoring_of(estimator, y)
    (X,) = indexable(X if hasattr(X, "shape") else np.asarray(X))
    n_samples = np.shape(X)[0]
    y = None if y is None else column_or_1d(y)
    if y is not None and len(y) != n_samples:
        raise ValueError(
            f"y must have a value for each of the {n_samples} rows, got the shape "
            f"{np.shape(y)}."
        )
    is_classes = score is _log_proba
    start = _check_start(n_start, X, y if is_classes else None)
    n_seen = _block_starts(start, n_samples, steps)
    seed = draw_seed(random_state)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n_samples) for _ in range(n_orders)]
    if is_classes:
        orders = [_with_all_classes(order, np.asarray(y), start) for order in orders]
    ends = [*n_seen[1:], n_samples]
    results = Parallel(n_jobs=n_jobs, verbose=int(verbose))(
        delayed(_score_block)(score, estimator, X, y, order[:first], order[first:end])
        for order in orders
        for first, end in zip(n_seen, ends, strict=True)
    )
    scores, measures = zip(*results, strict=True)
    block_scores = np.array(scores).reshape(n_orders, len(n_seen))
    draw = seed, n_orders, n_samples, tuple(n_seen), is_classes
    target = f"X {digest_of(X)}" if score is _log_density else f"y {digest_of(y)}"
    return CumulativeCV(
        np.array(n_seen), block_scores, n_samples, draw, target, measures[0]
    )


def _scoring_of(estimator, y):
    """Return the function that computes log predictive probabilities of rows.

    Its result is an array, or the log-probability of all rows together.
    """
    kind, is_joint = _kind(estimator), hasattr(estimator, "joint_log_prob")
    if y is None or kind == "density_estimator":
        is_joint = hasattr(last_step(estimator), "joint_log_prob")
        has_scores = is_joint or hasattr(estimator, "score_samples")
        if has_scores and kind != "outlier_detector":
            check_pipeline(estimator)
            return _log_density
        needed = "a density estimator with score_samples, if y is None"
    elif kind == "classifier":
        if is_joint or hasattr(estimator, "predict_log_proba"):
            return _log_proba
        needed = "a classifier with predict_log_proba"
    else:
        if is_joint or _predicts_std(estimator):
            return _log_normal
        needed = "a regressor with predict(X, return_std=True)"
    raise TypeError(f"estimator must be {needed}, got {estimator!r}.")


def _kind(estimator):
    return get_tags(estimator).estimator_type if _has_tags(estimator) else None


def _has_tags(estimator):
    return hasattr(estimator, "__sklearn_tags__")


def _predicts_std(estimator):
    predict = getattr(estimator, "predict", None)
    return predict is not None and _takes(predict, "return_std", by_keywords=True)


def _takes(method, name, by_keywords=False):
    """Return whether a method has an argument, or if `by_keywords` takes any."""
    parameters = inspect.signature(method).parameters.values()
    return any(
        p.name == name or (by_keywords and p.kind is inspect.Parameter.VAR_KEYWORD)
        for p in parameters
    )


def _log_density(model, X, y):
    model = resolve_model(model)
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X)
    return model.score_samples(X)


def _log_proba(model, X, y):
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X, y)
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
    if hasattr(model, "joint_log_prob"):
        return model.joint_log_prob(X, y)
    y = np.asarray(y)
    if len(y) > 1 and _takes(last_step(model).predict, "return_cov"):
        return _log_joint_normal(y, *_predict(model, X, "return_cov"))
    return stats.norm.logpdf(y, *_predict(model, X, "return_std"))


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


def _log_joint_normal(y, mean, covariance):
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


def _check_start(n_start, X, y):
    n_samples = np.shape(X)[0]
    if isinstance(n_start, str):
        if n_start != "auto":
            raise ValueError(f"n_start must be 'auto' or an int, got {n_start!r}.")
        n_classes = 0 if y is None else len(np.unique(np.asarray(y)))
        n_features = X.shape[1] if len(X.shape) > 1 else 1
        least = max(int(START_FRACTION * n_samples), n_features + 1, 2 * n_classes)
        return min(least, n_samples // 2)
    check_int(n_start, "n_start", min_val=0)
    if n_start >= n_samples:
        raise ValueError(
            f"n_start must be less than the {n_samples} rows of X, got {n_start}."
        )
    return int(n_start)


def _block_starts(start, n_samples, steps):
    n_scored = n_samples - start
    if steps is not None:
        check_int(steps, "steps")
        if steps > n_scored:
            raise ValueError(
                f"steps must be at most the {n_scored} rows after the first {start}, "
                f"got {steps}."
            )
    n_blocks = n_scored if steps is None else int(steps)
    limits = np.linspace(start, n_samples, n_blocks + 1)[:-1]
    return np.floor(limits + 0.5).astype(int).tolist()


def _with_all_classes(order, y, n_start):
    """Return the order with a row of each class among the first, if possible.

    The first row of a class that comes later is exchanged with one of the first
    `n_start` rows that is not the first of its class.
    """
    order = order.copy()
    first = np.unique(y[order], return_index=True)[1]
    late, starting = first[first >= n_start], set(first.tolist())
    free = [place for place in range(n_start - 1, -1, -1) if place not in starting]
    for one, other in zip(late.tolist(), free, strict=False):
        order[[one, other]] = order[[other, one]]
    return order


def _score_block(score, estimator, X, y, seen, block):
    """Fit a clone to the rows `seen`, and score a block.

    Returns the sum of the scores of its rows, and the measures of the columns.
    """
    part = [None if v is None else _safe_indexing(v, seen) for v in (X, y)]
    later = [None if v is None else _safe_indexing(v, block) for v in (X, y)]
    model = clone(estimator)
    model = model.fit(part[0]) if y is None else model.fit(*part)
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
    return scores.sum(), _measures(score, model)


def _measures(score, model):
    if score is _log_density:
        measures = measures_of_columns(resolve_model(model), None)
        return None if measures is None else tuple(measures)
    return ("probability",) if score is _log_proba else ("density",)


@dataclass(frozen=True, eq=False)
class EvidenceComparison:
    """Log evidence of several models of the same rows, best first.

    Created by :func:`compare_evidence`. Printing it shows a table.

    Parameters
    ----------
    names : list of str
        Names of the models; the other arrays are in this order.
    scores : ndarray of shape (n_models, n_orders)
        Log evidence of each model along each order of the rows, in nats.
    is_paired : bool
        Whether the models have the same orders. If so, errors of differences are those
        of the differences along each order.
    prior : ndarray of shape (n_models,), default=None
        Prior probability of each model. None is the same for all.

    Attributes
    ----------
    log_evidence, std_error : ndarray of shape (n_models,)
        Means of `scores`, and their standard errors over orders.
    log_bayes_factor, log_bayes_factor_std_error : ndarray of shape (n_models,)
        `log_evidence` less that of the best model, 0 or negative, and its standard
        error.
    probability, probability_std_error : ndarray of shape (n_models,)
        Posterior probability of each model, and standard errors by the delta method.

    See Also
    --------
    compare_evidence : Compare models.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import EvidenceComparison
    >>> EvidenceComparison(["b", "a"], np.array([[-8.0, -9], [-9, -10]]), True)
          log_evidence  std_error  log_bayes_factor  std_error  probability  std_error
    b          -8.5000     0.5000            0.0000     0.0000       0.7311     0.0000
    a          -9.5000     0.5000           -1.0000     0.0000       0.2689     0.0000
    """

    names: list[str]
    scores: np.ndarray
    is_paired: bool
    prior: np.ndarray | None = None

    @property
    def log_evidence(self) -> np.ndarray:
        """Log evidence of each model, in nats; (n_models,)."""
        return self.scores.mean(axis=1)

    @property
    def std_error(self) -> np.ndarray:
        """Standard errors of `log_evidence` over orders; (n_models,)."""
        return std_error_of_mean(self.scores.T)

    @property
    def log_bayes_factor(self) -> np.ndarray:
        """Log evidence less that of the best model, in nats; (n_models,)."""
        with np.errstate(invalid="ignore"):  # NaN where both are -inf
            return self.log_evidence - self.log_evidence[0]

    @property
    def log_bayes_factor_std_error(self) -> np.ndarray:
        """Standard errors of `log_bayes_factor`; (n_models,)."""
        difference = np.eye(len(self.names)) - np.eye(len(self.names))[0]
        return self._error_of(difference)

    @property
    def probability(self) -> np.ndarray:
        """Posterior probability of each model; (n_models,)."""
        prior = np.ones(len(self.names)) if self.prior is None else self.prior
        with np.errstate(divide="ignore"):
            return softmax(self.log_evidence + np.log(prior))

    @property
    def probability_std_error(self) -> np.ndarray:
        """Standard errors of `probability`; (n_models,)."""
        prob = self.probability  # d p_k = p_k (d l_k - sum_j p_j d l_j)
        return self._error_of(np.diag(prob) - np.outer(prob, prob))

    def _error_of(self, weights):
        """Return standard errors of weighted sums of the log evidences; (n_sums,).

        NaN for sums with a log evidence of -inf. Those in which it has no weight do not
        contain it.
        """
        is_finite = np.isfinite(self.log_evidence)
        finite = weights[:, is_finite]
        if self.is_paired:
            errors = std_error_of_mean((finite @ self.scores[is_finite]).T)
        else:
            errors = np.sqrt(finite**2 @ self.std_error[is_finite] ** 2)
        return np.where(weights[:, ~is_finite].any(axis=1), np.nan, errors)

    def __repr__(self):
        columns = [
            ("log_evidence", 17, self.log_evidence),
            ("std_error", 11, self.std_error),
            ("log_bayes_factor", 18, self.log_bayes_factor),
            ("std_error", 11, self.log_bayes_factor_std_error),
            ("probability", 13, self.probability),
            ("std_error", 11, self.probability_std_error),
        ]
        return text_table(self.names, columns)

    def plot(self, ax: Axes | None = None):
        """Draw the log Bayes factors to the best model, with two standard errors.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : EvidenceComparisonDisplay
            The display, with its axes and figure.
        """
        return EvidenceComparisonDisplay(self).plot(ax)


def compare_evidence(
    results: Mapping[str, CumulativeCV], *, prior: Mapping[str, float] | None = None
) -> EvidenceComparison:
    r"""Compare models by their log evidence from cumulative cross-validation.

    A difference of log evidences is a log Bayes factor. Together with prior
    probabilities of the models it gives their posterior probabilities, by Bayes' rule.

    Parameters
    ----------
    results : dict from names to CumulativeCV
        The result of :func:`cumulative_cv_score` for each model, on the same rows and
        with the same number of rows before the first scored one. With the same integer
        `random_state` and `steps` they have the same orders, and errors of differences
        are paired.
    prior : dict from names to float, default=None
        Prior weight of each model. None is the same for all.

    Returns
    -------
    EvidenceComparison
        The models, best first.

    Raises
    ------
    TypeError
        If a result is not a `CumulativeCV`.
    ValueError
        If there are fewer than two models, their rows do not agree, or `prior` does
        not name the same models with positive weights. Also if some results are for X
        and some for y, or for other values of them, and if one model has densities
        where another has probabilities.

    Warns
    -----
    UserWarning
        If a density estimator that is not of this package stands beside a model that
        has probabilities.

    See Also
    --------
    cumulative_cv_score : Log evidence of one model.
    compare_lml : Compare fitted models on held-out rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA
    >>> from sklearn_mpt import compare_evidence, cumulative_cv_score
    >>> X = load_iris().data
    >>> options = {"n_start": 50, "steps": 2, "n_orders": 3, "random_state": 0}
    >>> models = {f"K = {k}": MPTProbabilisticPCA(k, objective="lml") for k in (1, 3)}
    >>> table = compare_evidence(
    ...     {name: cumulative_cv_score(m, X, **options) for name, m in models.items()}
    ... )
    >>> table.names
    ['K = 3', 'K = 1']
    """
    if not isinstance(results, Mapping) or len(results) < 2:
        raise ValueError(
            f"results must be a dict of at least two models, got {results!r}."
        )
    for name, result in results.items():
        if not isinstance(result, CumulativeCV):
            raise TypeError(
                f"results[{name!r}] must be a result of cumulative_cv_score, got "
                f"{result!r}."
            )
    rows = {(int(r.n_seen[0]), r.n_samples) for r in results.values()}
    if len(rows) > 1:
        raise ValueError(
            "The models must be scored on the same rows, with the same number of rows "
            f"before the first; (n_start, n_samples) are {sorted(rows)}."
        )
    _check_targets(results)
    weights = _check_prior(prior, results)
    names = sorted(results, key=lambda name: -results[name].log_evidence)
    draws = {results[name].draw for name in names}
    is_paired = len(draws) == 1 and () not in draws
    scores = [results[name].scores for name in names]
    if len({len(model_scores) for model_scores in scores}) > 1:
        raise ValueError(
            "The models must have the same number of orders, got "
            f"{[len(model_scores) for model_scores in scores]}."
        )
    ordered_prior = None if weights is None else np.array([weights[n] for n in names])
    names = [str(name) for name in names]
    return EvidenceComparison(names, np.stack(scores), is_paired, ordered_prior)


def _check_targets(results):
    """Refuse results for other values, and densities beside probabilities."""
    targets = {name: r.target for name, r in results.items() if r.target}
    if len({target[0] for target in targets.values()}) > 1:
        kinds = {name: target[0] for name, target in targets.items()}
        raise ValueError(
            "The models must score the same values: the evidence is that of X, or of y "
            f"given X, got {kinds}."
        )
    if len(set(targets.values())) > 1:
        raise ValueError(
            "The models must score the same values, in the same order of the rows; the "
            f"tables (or targets) of {list(targets)} differ."
        )
    density_estimators = {
        name for name, target in targets.items() if target.startswith("X")
    }
    measures = {name: result.measures for name, result in results.items()}
    check_measures(measures, density_estimators)


def _check_prior(prior, results):
    if prior is None:
        return None
    if set(prior) != set(results):
        raise ValueError(
            f"prior must have the names of the models, {list(results)}, got "
            f"{list(prior)}."
        )
    for name, value in prior.items():
        check_real(value, f"prior[{name!r}]", "neither")
    total = sum(prior.values())
    return {name: value / total for name, value in prior.items()}
