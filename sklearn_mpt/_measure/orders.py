"""Exact likelihoods along orders of the features, and a test whether they agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logsumexp

from sklearn_mpt._checks import check_bool, check_int, check_real
from sklearn_mpt._labels import check_columns
from sklearn_mpt._measure.chosen_orders import along_confident_order, read_candidates
from sklearn_mpt._measure.consistency import check_hidden_values
from sklearn_mpt._measure.contract import (
    MAX_ORDER_CHANGE,
    check_rows,
    feature_names,
    refuse_texts,
)
from sklearn_mpt._measure.display import OrderSpreadDisplay
from sklearn_mpt._measure.lml_samples import (
    GivenOrder,
    order_draws,
    sums_along,
    sums_along_orders,
)
from sklearn_mpt._measure.masks import count_orders
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import copy_of, with_entries
from sklearn_mpt._measure.standard_errors import std_error_of_mean
from sklearn_mpt._messages import listed, text_table
from sklearn_mpt._seeds import RandomState

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@overload
def order_log_prob(
    model: object,
    X: ArrayLike,
    order: str | int | ArrayLike,
    *,
    reference: ArrayLike | None = None,
    return_std: Literal[False] = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> np.ndarray: ...
@overload
def order_log_prob(
    model: object,
    X: ArrayLike,
    order: str | int | ArrayLike,
    *,
    reference: ArrayLike | None = None,
    return_std: Literal[True],
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> tuple[np.ndarray, np.ndarray]: ...
def order_log_prob(
    model: object,
    X: ArrayLike,
    order: str | int | ArrayLike,
    *,
    reference: ArrayLike | None = None,
    return_std: bool = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    r"""Compute the log-probability of each row along given orders of the features.

    Along an order :math:`\pi`, each feature is predicted from those before it. The sum

    .. math:: \log q_\pi(x) = \sum_t \log p(x_{\pi_t} \mid x_{\pi_1 .. \pi_{t-1}})

    is an exact log-likelihood for any conditionals: if each of them is normalised,
    :math:`q_\pi` is normalised. If they belong to one joint density, it is the same for
    all orders. Otherwise each order defines a model of its own. For several orders the
    result is the log-density of their mixture,
    :math:`\log \frac{1}{K} \sum_\pi q_\pi(x)`, which is normalised too [1]_.

    Parameters
    ----------
    model : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function or
        torch module of that form.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows to score. Missing entries (NaN, or the missing value of a DataFrame) are
        integrated out.
    order : str, int or array-like, (n_features,) or (n_orders, n_features)
        One order of the features, as indices or names of columns; its first feature is
        predicted from nothing. "left_to_right" is the order of the columns. An array
        with two dimensions is the mixture of several orders. An int is the mixture of
        that number of random orders, which are distinct if few exist. "confident"
        reveals in each row the feature next whose distribution, given the features
        revealed so far, has the least entropy. The choice depends on no hidden value,
        so the log-probability is normalised too.
    reference : array-like or DataFrame of shape (n_rows, n_features), default=None
        Rows such as those of training, for "confident" alone. The entropy of a feature
        is that over its values in these rows; for numbers with more than eight values,
        that over eight quantiles, of the density divided by the density given nothing.
    return_std : bool, default=False
        Whether to return a standard error too.
    random_state : int, RandomState instance or None, default=None
        Determines random orders. None takes the `random_state` of the model.
    n_jobs : int, default=None
        Number of joblib workers. None takes the `n_jobs` of the model.

    Returns
    -------
    log_prob : ndarray of shape (n_samples,)
        In nats; -inf if a conditional log-probability is.
    std_error : ndarray of shape (n_samples,)
        Standard error of `log_prob` as an estimate of the mixture of all orders, by
        the delta method; NaN for one random order. 0 for given orders, because they
        define the model. The errors of integrals that a model estimates, by importance
        sampling for instance, are not in it: `lml_samples` of several orders shows
        them. Only if `return_std` is True.

    Raises
    ------
    TypeError
        If the model has no conditionals, or is a model of texts.
    ValueError
        If an argument is not allowed, or if the conditionals have the wrong shape or
        are NaN or infinity; the message names the row, the feature and the mask.

    See Also
    --------
    order_spread : Test whether all orders agree.
    learn_order : Learn an order from rows.
    lml_samples : Mean over random orders, which is a lower bound.

    Notes
    -----
    The cost is ``n_orders * n_features`` calls of ``conditional_log_prob``; an
    estimator with a method ``chain_log_prob`` computes them together. All rows have the
    same orders. With "confident" it is ``n_features`` times one more than the largest
    number of values of a feature, and a model that takes one mask for all rows is
    called for each distinct mask.

    References
    ----------
    .. [1] B. Uria, I. Murray and H. Larochelle, "A deep and tractable density
       estimator", ICML 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, order_log_prob
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> log_prob = order_log_prob(model, X, [2, 0, 3, 1])
    >>> bool(np.allclose(log_prob, model.score_samples(X)))
    True
    """
    check_bool(return_std, "return_std")
    model = resolve_model(model)
    advice = ": use MPTScorer(method='ordered', order=...)"
    refuse_texts(model, "order_log_prob", advice)
    rows = check_rows(model, X)
    check_hidden_values(model, rows)
    names = feature_names(model, X) or range(rows.shape[1])
    is_confident = _is_confident(order)
    if not is_confident and reference is not None:
        raise ValueError(
            f"reference is for order='confident' alone, got order={order!r}."
        )
    if is_confident:
        check_columns(reference, names, "reference")
        value = _along_confident(model, rows, reference)
        return (value, np.zeros(len(rows))) if return_std else value
    if np.ndim(order) == 0 and not isinstance(order, str):
        check_int(order, "order")
        # all rows have the same orders, so that the mixture is one model of the rows
        draws, n_all = order_draws(
            model, rows.shape[1], np.asarray(order), random_state, per_row=False
        )
        sums = sums_along(model, rows, draws, n_jobs)
        error = _error_of_mixture(sums, n_all)
    else:
        orders = _read_orders(order, model, X, rows.shape[1])
        sums = sums_along(model, rows, [GivenOrder(o) for o in orders], n_jobs)
        error = np.zeros(len(rows))
    value = _mixture(sums)
    return (value, error) if return_std else value


def _is_confident(order):
    return isinstance(order, str) and order == "confident"


def _along_confident(model, rows, reference):
    if reference is None:
        raise ValueError(
            "order='confident' needs reference, rows with the values that features may "
            "take, such as those of training; got None."
        )
    others = check_rows(model, reference)
    if others.shape[1] != rows.shape[1]:
        raise ValueError(
            f"reference must have the {rows.shape[1]} features of X, got "
            f"{others.shape[1]}."
        )
    _check_same_kind(rows, others)
    log_prob, _ = along_confident_order(model, rows, read_candidates(others))
    return log_prob


def _check_same_kind(rows, others):
    """Check that entries of other rows can stand in these rows."""
    try:
        with_entries(rows.values, others.values, np.full(rows.shape, -1))
    except Exception as error:  # each library of DataFrames has errors of its own
        raise ValueError(
            "reference must be of the type of X, with the same columns of the same "
            f"dtypes, got {type(others.values).__name__} for X of type "
            f"{type(rows.values).__name__}."
        ) from error


def _read_orders(order, model, X, n_features):
    """Return orders as indices, of shape (n_orders, n_features)."""
    if isinstance(order, str):
        if order != "left_to_right":
            raise ValueError(
                "order must be 'left_to_right', 'confident', an int, or an array of "
                f"features, got {order!r}."
            )
        return np.arange(n_features)[None]
    given = np.atleast_2d(np.asarray(order, dtype=_dtype_of(order)))
    names = feature_names(model, X)
    names = np.arange(n_features) if names is None else names
    orders = given if given.dtype.kind in "iu" else _by_name(given, list(names))
    is_permutation = orders.ndim == 2 and orders.shape[1] == n_features
    if not is_permutation or not len(orders):
        raise ValueError(
            f"order must hold each of the {n_features} features once, of shape "
            f"({n_features},) or (n_orders, {n_features}), got shape {np.shape(order)}."
        )
    wrong = (np.sort(orders, axis=1) != np.arange(n_features)).any(axis=1)
    if wrong.any():
        raise ValueError(
            f"order must hold each of the {n_features} features once, got "
            f"{given[wrong][0].tolist()}."
        )
    return orders


def _dtype_of(order):
    """Return the dtype of the array of orders: objects for names, int for indices."""
    return None if np.asarray(order).dtype.kind in "iu" else object


def _by_name(given, names):
    index = {name: j for j, name in enumerate(names)}
    unknown = [name for name in given.ravel().tolist() if name not in index]
    if unknown:
        raise ValueError(
            f"order must hold indices or names of features, got {unknown[0]!r}; the "
            f"features are {listed(names)}."
        )
    return np.array([[index[name] for name in order] for order in given.tolist()])


def _mixture(sums):
    return logsumexp(sums, axis=0) - np.log(len(sums))


def _error_of_mixture(sums, n_all):
    """Return the standard error of the log of the mean over orders (delta method)."""
    value = _mixture(sums)
    relative = np.exp(sums - np.where(np.isfinite(value), value, np.nan))
    return std_error_of_mean(relative, n_all)


@dataclass(frozen=True, eq=False)
class OrderSpread:
    """How the log-probabilities of rows along several orders differ.

    Created by :func:`order_spread`. Printing it shows a table.

    Parameters
    ----------
    log_prob : ndarray of shape (n_orders, n_samples)
        Log-probability of each row along each order, in nats.
    n_all : float, default=inf
        Number of orders that exist; infinity if there are many.
    tolerance : ndarray of shape (n_samples,), default=None
        Standard deviation that is allowed for errors of integration and rounding. None
        is 1e-5 times the log-probability, or 1e-5 nats if that is larger.
    named : dict, default=None
        Log-probabilities of the rows along other orders by name, each of shape
        (n_samples,).

    Attributes
    ----------
    std : ndarray of shape (n_samples,)
        Standard deviation over orders.
    gap : ndarray of shape (n_samples,)
        Log-density of the mixture of the orders less the mean over orders, 0 or more.
        It is the distance of the bound of :func:`lml_samples` to the log-density. It
        increases with the number of orders, on average.
    gap_std_error : ndarray of shape (n_samples,)
        Standard error of `gap` over orders, by the jackknife.
    mean_gap, mean_gap_std_error : float
        Average of `gap` over rows, and its standard error over orders.
    gap_of_named : dict
        For each of `named`, the log-density of the mixture less the log-probability
        along that order, of shape (n_samples,). It is negative in rows for which that
        order is better than the mixture.
    statistic : float
        ``(n_orders - 1)`` times the mean over rows of ``std**2 / tolerance**2``.
    degrees : int
        ``n_orders - 1``.
    p_value : float
        Probability of so large a `statistic` if all orders agree.

    See Also
    --------
    order_spread : Compute the spread of a model.

    Notes
    -----
    If the conditionals belong to one joint density, orders differ by errors of
    integration only. If these are normal with standard deviation `tolerance`, and the
    same for all rows along an order, `statistic` has a chi-squared distribution with
    `degrees` degrees of freedom. If the errors of rows are independent, `statistic` has
    a smaller variance, and the test rejects more rarely than its level.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import OrderSpread
    >>> spread = OrderSpread(np.array([[-1.0, -2.0], [-1.0, -2.5], [-1.0, -1.5]]))
    >>> spread.std.tolist()
    [0.0, 0.5]
    >>> spread.gap.round(3).tolist()
    [0.0, 0.082]
    >>> spread.p_value < 0.001
    True
    """

    log_prob: np.ndarray
    n_all: float = np.inf
    tolerance: np.ndarray | None = None
    named: dict[str, np.ndarray] | None = None

    def __post_init__(self):
        if np.ndim(self.log_prob) != 2 or len(self.log_prob) < 2:
            raise ValueError(
                "log_prob must have the shape (n_orders, n_samples), with two orders "
                f"or more, got {np.shape(self.log_prob)}."
            )

    @property
    def std(self) -> np.ndarray:
        """Standard deviation over orders, in nats; (n_samples,)."""
        low, high = self.log_prob.min(axis=0), self.log_prob.max(axis=0)
        spread = np.where(low == high, 0.0, np.inf)  # where some are -inf
        finite = np.isfinite(low)
        spread[finite] = self.log_prob[:, finite].std(axis=0, ddof=1)
        return spread

    @property
    def gap(self) -> np.ndarray:
        """Log-density of the mixture less the mean over orders, nats; (n_samples,)."""
        return _gap(self.log_prob)

    @property
    def gap_std_error(self) -> np.ndarray:
        """Standard errors of `gap` over orders; (n_samples,)."""
        return self._jackknife(_gap)

    @property
    def gap_of_named(self) -> dict[str, np.ndarray]:
        """Log-density of the mixture less log-probabilities along named orders."""
        mixture = _mixture(self.log_prob)
        with np.errstate(invalid="ignore"):  # NaN where both are -inf
            named = (self.named or {}).items()
            return {name: mixture - log_prob for name, log_prob in named}

    @property
    def mean_gap(self) -> float:
        """Mean of `gap` over rows, in nats."""
        return float(self.gap.mean())

    @property
    def mean_gap_std_error(self) -> float:
        """Standard error of `mean_gap` over orders."""
        return float(self._jackknife(lambda log_prob: _gap(log_prob).mean()))

    def _jackknife(self, function):
        """Return the standard error of a function of the orders, by the jackknife."""
        n_orders = len(self.log_prob)
        if n_orders < 3:
            return np.full(np.shape(function(self.log_prob)), np.nan)
        keep = ~np.eye(n_orders, dtype=bool)
        leaving_one_out = np.stack(
            [function(self.log_prob[kept_orders]) for kept_orders in keep]
        )
        with np.errstate(invalid="ignore"):  # NaN where a gap is infinite
            spread = np.sum(
                (leaving_one_out - leaving_one_out.mean(axis=0)) ** 2, axis=0
            )
        factor = (n_orders - 1) / n_orders * (1 - n_orders / self.n_all)
        return np.sqrt(factor * spread)

    @property
    def _allowed(self):
        least = MAX_ORDER_CHANGE * np.maximum(1, np.abs(self.log_prob).max(axis=0))
        return least if self.tolerance is None else np.asarray(self.tolerance)

    @property
    def statistic(self) -> float:
        """Chi-squared statistic of the hypothesis that all orders agree."""
        std = self.std
        allowed = np.where(np.isinf(std), 1.0, self._allowed)
        return float(self.degrees * np.mean((std / allowed) ** 2))

    @property
    def degrees(self) -> int:
        """Degrees of freedom of `statistic`."""
        return len(self.log_prob) - 1

    @property
    def p_value(self) -> float:
        """Probability of so large a `statistic` if all orders agree."""
        return float(stats.chi2.sf(self.statistic, self.degrees))

    def __repr__(self):
        n_orders, n_rows = self.log_prob.shape
        std, gap = self.std, self.gap
        parts = (
            ("standard deviation over orders", std),
            ("log of the mixture less mean", gap),
            *((f"mixture less {name}", g) for name, g in self.gap_of_named.items()),
        )
        names, values = zip(*parts, strict=True)
        columns = [
            ("mean", 12, [value.mean() for value in values]),
            ("median", 12, [np.median(value) for value in values]),
            ("max", 12, [value.max() for value in values]),
        ]
        agree = "agree" if self.p_value >= 0.05 else "do not agree"
        test = (
            f"The orders {agree}: chi-squared {self.statistic:.4g} on {self.degrees} "
            f"degrees of freedom, p = {self.p_value:.3g}"
        )
        head = f"{n_rows} rows along {n_orders} orders, in nats"
        return "\n".join([head, text_table(names, columns, ".4g"), test])

    def plot(self, ax: Axes | None = None) -> OrderSpreadDisplay:
        """Draw the spread of each row against its mean log-probability.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a figure.

        Returns
        -------
        display : OrderSpreadDisplay
            The display, with its axes and figure.
        """
        return OrderSpreadDisplay(self).plot(ax)


def _gap(log_prob):
    """Return the log of the mean over orders less the mean of the logs, at least 0."""
    mixture, mean = _mixture(log_prob), log_prob.mean(axis=0)
    gap = np.zeros(len(mean))
    np.subtract(mixture, mean, out=gap, where=np.isfinite(mixture))
    return np.maximum(gap, 0.0)


def order_spread(
    model: object,
    X: ArrayLike,
    *,
    n_orders: int = 10,
    orders: Mapping[str, str | ArrayLike] | None = None,
    reference: ArrayLike | None = None,
    tolerance: float | None = None,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> OrderSpread:
    r"""Measure how much log-probabilities of rows depend on the order of the features.

    Conditionals of one joint density give the same log-probability along any order
    (see :func:`order_log_prob`). The conditionals of nets, of nearest neighbours or of
    regressions of each column on the others belong to no joint density in general, and
    each order defines another model. The result shows how much the orders differ, and
    tests whether they agree.

    Parameters
    ----------
    model : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function or
        torch module of that form.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows. Missing entries (NaN, or the missing value of a DataFrame) are integrated
        out.
    n_orders : int, default=10
        Number of random orders, at least 2, and at most as many as exist. Each row has
        its own orders if the model takes a mask for each row.
    orders : dict from str to str or array-like, default=None
        Other orders to set beside the random ones, by names of your choice: as `order`
        of :func:`order_log_prob`, such as "left_to_right", "confident" or the result of
        :func:`learn_order`. They take no part in `std`, `gap` and the test.
    reference : array-like or DataFrame of shape (n_rows, n_features), default=None
        Rows with the values of the features, for an order "confident".
    tolerance : float, default=None
        Standard deviation that is allowed for errors of integration, in nats per row.
        None takes for each row the standard error of the model,
        ``score_samples(X, return_std=True)``, times the square root of the number of
        features, because that many conditionals are integrated. It is at least 1e-5
        times the log-probability and at least 1e-5 nats, which allows for rounding.
    random_state : int, RandomState instance or None, default=None
        Determines the orders. None takes the `random_state` of the model.
    n_jobs : int, default=None
        Number of joblib workers. None takes the `n_jobs` of the model.

    Returns
    -------
    OrderSpread
        For each row the standard deviation over orders, and the gap between mixture
        and mean; a test that all orders agree.

    Raises
    ------
    TypeError
        If the model has no conditionals, or is a model of texts.
    ValueError
        If an argument is not allowed, if there is only one order, or if the
        conditionals have the wrong shape or are NaN or infinity.

    See Also
    --------
    order_log_prob : Log-probability along given orders.
    check_masked_model : Check that a function is a masked model.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, order_spread
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> order_spread(model, X, n_orders=5, random_state=0).p_value > 0.05
    True
    >>> def mean_of_visible(X, mask):
    ...     visible = np.where(mask, 0.0, X).sum(1) / np.maximum(1, (~mask).sum(-1))
    ...     error = X - visible[:, None]
    ...     return np.where(mask, -0.5 * (error**2 + np.log(2 * np.pi)), 0.0)
    >>> spread = order_spread(mean_of_visible, X, n_orders=5, random_state=0)
    >>> spread.p_value < 0.05, bool((spread.gap >= 0).all())
    (True, True)
    """
    check_int(n_orders, "n_orders", min_val=2)
    if tolerance is not None:
        check_real(tolerance, "tolerance", "neither")
    model = resolve_model(model)
    advice = ": use MPTScorer.score_samples(return_std=True)"
    refuse_texts(model, "order_spread", advice)
    rows = check_rows(model, X)
    if count_orders(rows.shape[1]) < 2:
        raise ValueError("X must have at least two features, for orders; got 1.")
    named = _along_named(model, X, orders, reference, n_jobs)
    sums, n_all = sums_along_orders(model, rows, n_orders, random_state, n_jobs)
    return OrderSpread(sums, n_all, _tolerance(model, rows, sums, tolerance), named)


def _along_named(model, X, orders, reference, n_jobs):
    if orders is None:
        return None
    if not isinstance(orders, Mapping) or not all(isinstance(k, str) for k in orders):
        raise TypeError(f"orders must be a dict from names to orders, got {orders!r}.")
    return {
        name: order_log_prob(
            model,
            X,
            named_order,
            reference=reference if _is_confident(named_order) else None,
            n_jobs=n_jobs,
        )
        for name, named_order in orders.items()
    }


def _tolerance(model, rows, sums, tolerance):
    """Return the standard deviation allowed for integration errors; (n_samples,)."""
    if tolerance is not None:
        return np.full(len(rows), float(tolerance))
    least = MAX_ORDER_CHANGE * np.maximum(1, np.abs(sums).max(axis=0))
    try:
        scored = model.score_samples(copy_of(rows.values), return_std=True)
    except (AttributeError, TypeError, ValueError):  # no standard errors
        return least
    if not isinstance(scored, tuple):  # any argument is taken, and this one ignored
        return least
    return np.fmax(least, np.sqrt(rows.shape[1]) * scored[1])
