"""Comparison of models by their log marginal likelihoods, with standard errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import get_tags

from sklearn_mpt._checks import (
    RandomState,
    check_int,
    check_n_jobs,
    draw_seed,
    listed,
    plain,
    text_table,
    warn_caller,
)
from sklearn_mpt._measure.contract import (
    check_rows,
    kind_of_scores,
    measures_of_columns,
)
from sklearn_mpt._measure.curve import degrees_of_sum, student_quantile
from sklearn_mpt._measure.display import axes_or_new
from sklearn_mpt._measure.orders import sums_along_orders
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import copy_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class LMLComparison:
    """Log marginal likelihoods of several models on the same rows, best first.

    Created by :func:`compare_lml`. Printing it shows a table.

    Parameters
    ----------
    names : list of str
        Names of the models; the other arrays are in this order.
    lml : ndarray of shape (n_models,)
        Mean log marginal likelihood per row, in nats.
    lml_std_error : ndarray of shape (n_models,)
        Standard error of `lml`, over samples of rows and of orders.
    lml_diff : ndarray of shape (n_models,)
        `lml` less that of the best model, 0 or negative.
    lml_diff_std_error : ndarray of shape (n_models,)
        Standard error of `lml_diff`, from the differences of each row between the two
        models.
    row_lml : ndarray of shape (n_models, n_samples)
        Log marginal likelihood of each row.
    lml_degrees : ndarray of shape (n_models,), default=None
        Degrees of freedom of `lml_std_error`. None is ``n_samples - 1``, for sampling
        of rows alone.
    lml_diff_degrees : ndarray of shape (n_models,), default=None
        Degrees of freedom of `lml_diff_std_error`; None as above.

    See Also
    --------
    compare_lml : Compare models.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import LMLComparison
    >>> table = LMLComparison(["b", "a"], np.array([-1.0, -1.5]), np.array([0.2, 0.2]),
    ...                       np.array([0.0, -0.5]), np.array([0.0, 0.1]),
    ...                       np.array([[-1.0, -1.0], [-1.4, -1.6]]))
    >>> table
              lml  std_error      diff  diff_std_error
    b     -1.0000     0.2000    0.0000          0.0000
    a     -1.5000     0.2000   -0.5000          0.1000
    >>> low, high = table.lml_diff_interval(0.5)
    >>> low.round(2).tolist(), high.round(2).tolist()
    ([0.0, -0.6], [0.0, -0.4])
    """

    names: list[str]
    lml: np.ndarray
    lml_std_error: np.ndarray
    lml_diff: np.ndarray
    lml_diff_std_error: np.ndarray
    row_lml: np.ndarray
    lml_degrees: np.ndarray | None = field(default=None, kw_only=True)
    lml_diff_degrees: np.ndarray | None = field(default=None, kw_only=True)

    def lml_interval(self, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals for the log marginal likelihoods, over rows and orders.

        They are computed as in :meth:`lml_diff_interval`.

        Parameters
        ----------
        confidence : float, default=0.95
            Fraction of the samples of rows for which an interval covers.

        Returns
        -------
        low, high : ndarray of shape (n_models,)
            In nats per row.
        """
        return self._interval(
            self.lml, self.lml_std_error, self.lml_degrees, self.row_lml, confidence
        )

    def lml_diff_interval(
        self, confidence: float = 0.95
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals for the differences to the best model.

        They are intervals of Student's t, corrected for the skewness of the rows [1]_.
        If a few rows are very unlikely under one model, the distribution of the mean is
        skewed, and symmetric intervals cover too rarely. Each interval is for a single
        difference: it is not corrected for choosing the best of several models on the
        same rows.

        Parameters
        ----------
        confidence : float, default=0.95
            Fraction of the samples of rows for which an interval covers.

        Returns
        -------
        low, high : ndarray of shape (n_models,)
            In nats per row; both 0 for the best model.

        References
        ----------
        .. [1] P. Hall, "On the removal of skewness by transformation", Journal of the
           Royal Statistical Society B 54, 1992.
        """
        return self._interval(
            self.lml_diff,
            self.lml_diff_std_error,
            self.lml_diff_degrees,
            self.row_lml - self.row_lml[0],
            confidence,
        )

    def _interval(self, mean, std_error, degrees, rows, confidence):
        degrees = rows.shape[1] - 1 if degrees is None else degrees
        quantile = student_quantile(confidence, degrees)
        centred = rows - rows.mean(axis=1, keepdims=True)
        third, scale = np.mean(centred**3, axis=1) / rows.shape[1] ** 2, std_error**3
        skewness = np.divide(third, scale, out=np.zeros(len(rows)), where=scale > 0)
        low, high = (_unskewed(q, skewness) for q in (quantile, -quantile))
        return mean - std_error * low, mean - std_error * high

    def __repr__(self):
        columns = [
            ("lml", 12, self.lml),
            ("std_error", 11, self.lml_std_error),
            ("diff", 10, self.lml_diff),
            ("diff_std_error", 16, self.lml_diff_std_error),
        ]
        return text_table(self.names, columns)

    def to_arviz(self) -> dict[str, Any]:
        """Return the row scores in the format of ArviZ, for its tables and weights.

        ``arviz_stats.compare(table.to_arviz())`` adds up the scores of all rows and
        computes weights for stacking the models. Scores of held-out rows are log
        predictive densities, like the ELPD of ArviZ.

        Returns
        -------
        dict from names to arviz_stats.utils.ELPDData
            The effective number of parameters, `p`, is NaN.

        Raises
        ------
        ImportError
            If arviz-stats or xarray is not installed.
        """
        from arviz_stats.utils import ELPDData
        from xarray import DataArray

        n_rows = self.row_lml.shape[1]
        return {
            name: ELPDData(
                kind="lml",
                elpd=float(rows.sum()),
                se=float(np.sqrt(n_rows * rows.var())),  # the definition of ArviZ
                p=np.nan,
                n_samples=1,
                n_data_points=n_rows,
                scale="log",
                warning=False,
                good_k=np.nan,
                elpd_i=DataArray(rows, dims=["row"]),
            )
            for name, rows in zip(self.names, self.row_lml, strict=True)
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the differences to the best model, with their 95% intervals.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        ax : matplotlib Axes
            The axes, with the best model at the top.
        """
        n_models = len(self.names)
        ax = axes_or_new(ax, figsize=(6.4, 1.2 + 0.35 * n_models))
        low, high = self.lml_diff_interval()
        errors = np.stack([self.lml_diff - low, high - self.lml_diff]).clip(0)
        places = np.arange(n_models)
        ax.errorbar(self.lml_diff, places, xerr=errors, fmt="o", capsize=3)
        ax.axvline(0, color="0.5", linewidth=0.8)
        ax.set_yticks(places, self.names)
        best = f"{self.names[0]}, {self.lml[0]:.2f}"
        ax.set_xlabel(f"LML less that of {best} (nats per row)")
        ax.margins(y=0.1)
        ax.invert_yaxis()
        return ax


def compare_lml(
    estimators: Mapping[str, object] | Sequence[object],
    X: ArrayLike,
    *,
    n_orders: int = 10,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> LMLComparison:
    r"""Compare the log marginal likelihoods of models on the same rows.

    Use held-out rows to compare how well models predict: on the training rows, models
    with more parameters score better. A density estimator scores the rows by its own
    ``score_samples``. Any other masked model scores them by its conditionals along
    random orders of the features (see :func:`lml_samples`). The orders are the same for
    all models that take masks in the same way. Models of texts score them by their
    `method`, on the same masks if they have the same tokens.

    Parameters
    ----------
    estimators : dict from names to models, or list of models
        Each a fitted density estimator (of this package, a `MPTScorer`, or another
        with ``score_samples``, such as `sklearn.mixture.GaussianMixture`,
        `sklearn.neighbors.KernelDensity` or `sklearn.decomposition.PCA`), an object
        with ``conditional_log_prob(X, mask)``, or a function or torch module of that
        form.
    X : array-like of shape (n_samples, n_features), or list of str
        Rows, or for `MPTScorer` texts.
    n_orders : int, default=10
        Number of random orders, for models without ``score_samples``.
    random_state : int, RandomState instance or None, default=None
        Determines the orders, and the masks of each `MPTScorer`, whose own
        `random_state` is not used. All models use the same.
    n_jobs : int, default=None
        Number of joblib workers, for models without ``score_samples`` and for texts.

    Returns
    -------
    LMLComparison
        The models, best first, with standard errors and differences.

    Raises
    ------
    TypeError
        If one of them is neither a density estimator nor a masked model.
    ValueError
        If there are fewer than two models or two rows, if a model has other features
        than X, or if the scores of a model have another number of rows or are not
        finite. Also if one model has a density of a column for which another has a
        probability; this is known for the models of this package only. Also if one
        gives pseudo-log-likelihoods (``method="pll"``), and another log-probabilities
        or bounds of them. Also if a function scores visible entries instead of hidden
        ones, or reads the values of other hidden entries.

    Warns
    -----
    UserWarning
        If another density estimator stands beside a model that has probabilities. Also
        if a density of a function integrates to more than one, on a few rows: it is not
        normalised, or it is computed from the hidden value.

    See Also
    --------
    mpt_curve : The scores of one model by mask size.

    Notes
    -----
    For rows i and orders o, the scores of a model, and the differences between two
    models, have errors :math:`a_i + b_o + e_{io}`. The standard error of the mean
    accounts for the sampling of rows and of orders. The errors of importance sampling
    and of masks of texts differ by row, so they are part of the spread of the rows.

    Log-densities depend on the units of the columns. Compare models of the same rows
    only, and never compare a density with a probability or with a pseudo-log-likelihood
    (``method="pll"``).

    A Pipeline that scales its rows is scored in the units of X: the logarithms of the
    derivatives of its transforms are added to its log-densities. This is possible for
    `StandardScaler`, `MinMaxScaler`, `MaxAbsScaler`, `RobustScaler`,
    `PowerTransformer`, and `FunctionTransformer` of ``np.log``, ``np.log1p`` or
    ``np.sqrt``; other transforms are refused with a TypeError.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.mixture import GaussianMixture
    >>> from sklearn_mpt import MPTProbabilisticPCA, compare_lml
    >>> X = load_iris().data
    >>> ppca = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X[::2])
    >>> table = compare_lml(
    ...     {"PPCA": ppca, "mixture": GaussianMixture(3, random_state=0).fit(X[::2])},
    ...     X[1::2],
    ... )
    >>> table.names
    ['mixture', 'PPCA']
    >>> low, high = table.lml_diff_interval()
    >>> bool(high[1] < 0)
    True
    """
    named = {name: resolve_model(model) for name, model in _name(estimators).items()}
    X = list(X) if isinstance(X, Iterator) else X
    check_int(n_orders, "n_orders")
    check_n_jobs(n_jobs)
    kinds = {name: kind_of_scores(model) for name, model in named.items()}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"a {kind} of {name!r}" for name, kind in kinds.items())
        raise ValueError(
            f"Scores of different kinds cannot be compared, got {found}. A pseudo-log-"
            "likelihood is no log-probability, as the dependence between two tokens "
            "counts twice: give all models of texts the same method."
        )
    seed = draw_seed(random_state)
    options = {"n_orders": n_orders, "random_state": seed, "n_jobs": n_jobs}
    scores = {name: _score(name, model, X, options) for name, model in named.items()}
    _check_measures(named)
    names = sorted(scores, key=lambda name: -scores[name].mean())
    ordered = [scores[name] for name in names]
    differences = [values - ordered[0] for values in ordered]
    std_error, degrees = zip(*map(_std_error, ordered), strict=True)
    diff_std_error, diff_degrees = zip(*map(_std_error, differences), strict=True)
    return LMLComparison(
        names,
        np.array([values.mean() for values in ordered]),
        np.array(std_error),
        np.array([difference.mean() for difference in differences]),
        np.array(diff_std_error),
        np.stack([values.mean(axis=0) for values in ordered]),
        lml_degrees=np.array(degrees),
        lml_diff_degrees=np.array(diff_degrees),
    )


def _name(estimators):
    """Return a dict; models of a list are named by their class or function."""
    if not isinstance(estimators, Mapping):
        if isinstance(estimators, str) or not hasattr(estimators, "__iter__"):
            raise TypeError(
                f"estimators must be a dict or a list of models, got {estimators!r}."
            )
        models = list(estimators)
        names = [getattr(m, "__name__", type(m).__name__) for m in models]
        if len(set(names)) < len(names):
            names = [f"{name} {i}" for i, name in enumerate(names)]
        estimators = dict(zip(names, models, strict=True))
    if len(estimators) < 2:
        raise ValueError(
            f"estimators must be at least two models, got {len(estimators)}."
        )
    named = {str(name): model for name, model in estimators.items()}
    if len(named) < len(estimators):
        raise ValueError(
            "The names of estimators must differ as strings, got "
            f"{[plain(name) for name in estimators]}."
        )
    return named


def _score(name, model, X, options):
    """Log-probability of the rows along each order; (n_orders or 1, n_samples)."""
    n_features = getattr(model, "n_features_in_", None)
    if n_features is not None and np.shape(X)[1:] != (n_features,):
        raise ValueError(
            f"The models must have the same features: {name!r} has {n_features}, X has "
            f"the shape {np.shape(X)}."
        )
    if ask := getattr(model, "_score_samples_on_masks", None):
        scores = ask(X, options["random_state"], options["n_jobs"])[None]
    elif _is_density_estimator(model):
        scores = np.array(model.score_samples(copy_of(X)))[None]
    elif not callable(getattr(model, "conditional_log_prob", model)):
        raise TypeError(
            f"{name!r} must be a density estimator with score_samples, or have "
            f"conditional_log_prob(X, mask) or be such a function, got {model!r}."
        )
    else:
        rows = check_rows(model, X)
        scores = sums_along_orders(model, rows, **options, is_compared=True)[0]
    n_rows = len(X) if hasattr(X, "__len__") else np.shape(X)[0]
    if scores.ndim != 2 or scores.shape[1] != n_rows:
        raise ValueError(
            f"The models must score the same rows: {name!r} returned scores of shape "
            f"{scores.shape[1:]} for {n_rows} rows."
        )
    if n_rows < 2:
        raise ValueError("X must have at least two rows, for standard errors; got 1.")
    if not np.isfinite(scores).all():
        row = np.flatnonzero(~np.isfinite(scores).all(axis=0))[0]
        raise ValueError(
            f"The log marginal likelihood of {name!r} is {scores[:, row].mean()} at "
            f"row {row}: all values must be finite."
        )
    return scores


def _check_measures(named):
    """Raise an error if one model has a density of a column, another a probability."""
    measures_of = {name: measures_of_columns(model) for name, model in named.items()}
    known = [(name, measures) for name, measures in measures_of.items() if measures]
    unknown = sorted(
        name
        for name, model in named.items()
        if not measures_of[name] and _is_density_estimator(model)
    )
    for name, measures in known if unknown else ():
        columns = [j for j, measure in enumerate(measures) if measure == "probability"]
        if columns:
            warn_caller(
                f"{name!r} gives probabilities of the values of the columns "
                f"{listed(columns)}. Density estimators such as {unknown[0]!r} usually "
                "give densities, which have units and must not be compared with "
                "probabilities."
            )
            break
    for name, measures in known[1:]:
        other, first = known[0]
        for j, pair in enumerate(zip(first, measures, strict=False)):
            if None not in pair and len(set(pair)) > 1:
                raise ValueError(
                    "A density cannot be compared with a probability, as it has units: "
                    f"column {j} has a {pair[0]} in {other!r} and a {pair[1]} in "
                    f"{name!r}. Give both models the same kind of likelihood there."
                )


def _is_density_estimator(model):
    """Return whether score_samples is a log-density, as the estimator's tags show.

    The score_samples of an outlier detector is not a log-density.
    """
    if not hasattr(model, "score_samples") or not hasattr(model, "__sklearn_tags__"):
        return False
    return get_tags(model).estimator_type != "outlier_detector"


def _std_error(scores):
    """Return the standard error of the mean over orders and rows, and its degrees."""
    n_orders, n_rows = scores.shape
    rows = scores.mean(axis=0)
    variances, degrees = [rows.var(ddof=1) / n_rows], [n_rows - 1]
    if n_orders > 1:
        orders = scores.mean(axis=1)
        residual = scores - rows - orders[:, None] + scores.mean()
        n_residuals = (n_orders - 1) * (n_rows - 1)
        shared = orders.var(ddof=1) - np.sum(residual**2) / (n_residuals * n_rows)
        variances.append(max(shared, 0.0) / n_orders)
        degrees.append(n_orders - 1)
    variances = np.array(variances)
    return np.sqrt(variances.sum()), degrees_of_sum(variances, np.array(degrees))


def _unskewed(quantile, skewness):
    """Return the quantile t of the studentised mean for a quantile of Hall's g(t).

    For skewness s of the mean, g(t) = t + s t^2 / 3 + s^2 t^3 / 27 + s / 6 has a
    symmetric distribution.
    """
    small = np.abs(skewness) < 1e-6  # g is the identity; s is too small to divide by
    s = np.where(small, 1.0, skewness)
    return np.where(small, quantile, 3 / s * (np.cbrt(1 + s * (quantile - s / 6)) - 1))
