"""Log-probabilities of rows along orders of the features, and their Shapley values."""

from __future__ import annotations

import math
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from sklearn_mpt._checks import (
    RandomState,
    check_bool,
    check_int,
    spawn_seeds,
)
from sklearn_mpt._measure.checking import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    chain_log_prob,
    check_rows,
    feature_names,
    given_or_parameter,
    refuse_texts,
    wants_row_orders,
)
from sklearn_mpt._measure.curve import std_error_of_mean
from sklearn_mpt._measure.masks import all_orders, count_orders, draw_order
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import as_objects, map_tasks, map_workers
from sklearn_mpt._numbers import CACHE_ENTRIES, CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._tables.frames import array_of_objects, column_index


@overload
def lml_samples(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 10,
    return_std: Literal[False] = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> np.ndarray: ...
@overload
def lml_samples(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 10,
    return_std: Literal[True],
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> tuple[np.ndarray, np.ndarray]: ...
def lml_samples(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 10,
    return_std: bool = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    r"""Compute the log marginal likelihood of each row from conditionals.

    It is the mean, over random orders of the features, of

    .. math:: \log p(x) = \sum_j \log p(x_j \mid x_{\text{before } j}).

    If the conditionals belong to one joint density, the sum is the same in every order.
    Otherwise each order defines a model of its own, and the mean over orders is a lower
    bound of the logarithm of their mixture. :func:`mpt_curve` measures the same for a
    set of rows.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, a function or torch
        module with these arguments, or a fitted `MPTScorer`, whose features are tokens.
    X : array-like or DataFrame of shape (n_samples, n_features), or list of str
        Rows to score. Missing entries (NaN, or the missing value of a DataFrame) are
        integrated out. For `MPTScorer`, or a Pipeline that ends in one, texts.
    n_orders : int, default=10
        Number of random orders of the features, at most as many as exist. 1 is enough
        for exact conditionals.
    return_std : bool, default=False
        Whether to return the standard error over orders too.
    random_state : int, RandomState instance or None, default=None
        Determines the orders. None takes the `random_state` of the estimator.
    n_jobs : int, default=None
        Number of joblib workers. None takes the `n_jobs` of the estimator.

    Returns
    -------
    log_prob : ndarray of shape (n_samples,)
        Log marginal likelihoods in nats; -inf if a conditional log-probability is.
    std_error : ndarray of shape (n_samples,)
        Standard error over orders. If the model takes a mask for each row, each row has
        its own orders, and the errors of the rows average out; otherwise rows have the
        same orders. NaN with one order if more exist, and if `log_prob` is -inf. Only
        if `return_std` is True.

    Raises
    ------
    TypeError
        If the estimator is not callable and has no ``conditional_log_prob``.
    ValueError
        If an argument is not allowed, or if the conditionals have the wrong shape or
        contain NaN or infinity; the message names the row, the feature and the mask.

    See Also
    --------
    feature_contributions : The terms of each feature.
    compare_lml : Compare models.

    Notes
    -----
    The cost is ``n_orders * n_features`` calls of ``conditional_log_prob``; an
    estimator with a method ``chain_log_prob`` computes them together. If the estimator
    has ``score_samples``, that is faster or more accurate.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, lml_samples
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> log_prob = lml_samples(model.conditional_log_prob, X, n_orders=1)
    >>> bool(np.allclose(log_prob, model.score_samples(X)))
    True
    """
    check_bool(return_std, "return_std")
    check_int(n_orders, "n_orders")
    estimator = resolve_model(estimator)
    options = int(n_orders), random_state, n_jobs
    if ask := getattr(estimator, "_lml_along_orders", None):
        value, error = ask(X, *options)
    else:
        rows = check_rows(estimator, X)
        sums, n_all = sums_along_orders(estimator, rows, *options)
        value, error = sums.mean(axis=0), std_error_of_mean(sums, n_all)
    return (value, error) if return_std else value


@overload
def order_log_prob(
    model: object,
    X: ArrayLike,
    order: str | int | ArrayLike,
    *,
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
    return_std: Literal[True],
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> tuple[np.ndarray, np.ndarray]: ...
def order_log_prob(
    model: object,
    X: ArrayLike,
    order: str | int | ArrayLike,
    *,
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
        that number of random orders, which are distinct if few exist.
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
    lml_samples : Mean over random orders, which is a lower bound.

    Notes
    -----
    The cost is ``n_orders * n_features`` calls of ``conditional_log_prob``; an
    estimator with a method ``chain_log_prob`` computes them together. All rows have the
    same orders.

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
    refuse_texts(model, "order_log_prob", ": use MPTScorer(method='ordered')")
    rows = check_rows(model, X)
    check_hidden_values(model, rows)
    if np.ndim(order) == 0 and not isinstance(order, str):
        check_int(order, "order")
        # all rows have the same orders, so that the mixture is one model of the rows
        draws, n_all = order_draws(
            model, rows.shape[1], np.asarray(order), random_state, per_row=False
        )
    else:
        orders = _read_orders(order, model, X, rows.shape[1])
        draws, n_all = [partial(given_order, o) for o in orders], None
    sums = sums_along(model, rows, draws, n_jobs)
    value, error = logsumexp(sums, axis=0) - np.log(len(sums)), np.zeros(len(rows))
    if n_all is not None:  # by the delta method
        relative = np.exp(sums - np.where(np.isfinite(value), value, np.nan))
        error = std_error_of_mean(relative, n_all)
    return (value, error) if return_std else value


def _read_orders(order, model, X, n_features):
    """Return orders as indices, of shape (n_orders, n_features)."""
    if isinstance(order, str):
        if order != "left_to_right":
            raise ValueError(
                "order must be 'left_to_right', an int, or an array of features, got "
                f"{order!r}."
            )
        return np.arange(n_features)[None]
    given = orders = np.atleast_2d(order)
    if given.dtype.kind not in "iu":
        given = np.atleast_2d(np.asarray(order, dtype=object))
        names = feature_names(model, X) or list(range(n_features))
        orders = np.array(
            [[column_index(key, names, "order") for key in one] for one in given]
        )
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


def sums_along_orders(
    estimator, rows, n_orders, random_state, n_jobs, is_compared=False
):
    """Return log-probabilities (n_orders, n_samples), and the number of all orders."""
    check_hidden_values(estimator, rows, is_compared)
    per_row = wants_row_orders(CheckedConditional(estimator), rows)
    draws, n_all = order_draws(
        estimator, rows.shape[1], n_orders, random_state, per_row
    )
    return sums_along(estimator, rows, draws, n_jobs), n_all


def order_draws(estimator, n_features, n_orders, random_state, per_row):
    """Return draws of distinct orders, at most of all, and the number of all orders."""
    random_state = given_or_parameter(estimator, "random_state", random_state)
    seed, n_all = spawn_seeds(random_state, 1)[0], count_orders(n_features)
    numbers = range(min(int(n_orders), n_all))
    return [partial(draw_order, i, seed, per_row) for i in numbers], n_all


def sums_along(estimator, rows, draws, n_jobs):
    """Return log-probabilities of the rows along each order, (n_orders, n_samples)."""
    n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
    add_up = partial(_sums_along, CheckedConditional(estimator))
    return np.stack(map_tasks(add_up, rows, draws, n_jobs))


def given_order(order, n_rows, n_features):
    """Return an order for all rows, as one of the draws of `terms_along`."""
    return order[None, None]


def terms_along(conditional, rows, draws):
    """Score rows along the orders of draws, a few draws and rows at a time.

    A draw is a function of the numbers of rows and features, which returns orders of
    shape (k, n_rows or 1, n_features).
    """
    for block in chunk_slices(len(draws), math.prod(rows.shape), CHUNK_ENTRIES):
        drawn = [draw(*rows.shape) for draw in draws[block]]
        orders, counts = np.concatenate(drawn), np.array([len(part) for part in drawn])
        is_shared = orders.shape[1] == 1
        for batch in chunk_slices(*rows.shape, CACHE_ENTRIES):
            part = rows.slice(batch.start, batch.stop)
            of_part = orders[:, 0] if is_shared else orders[:, batch]
            yield block, counts, batch, chain_log_prob(conditional, part, of_part)


def _sums_along(conditional, rows, draws):
    sums = np.empty((len(draws), len(rows)))
    for block, _, batch, terms in terms_along(conditional, rows, draws):
        sums[block, batch] = terms.sum(axis=2)
    return sums


@overload
def feature_contributions(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 50,
    return_std: Literal[False] = False,
    as_explanation: bool = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> Any: ...
@overload
def feature_contributions(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 50,
    return_std: Literal[True],
    as_explanation: Literal[False] = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> tuple[Any, Any]: ...
def feature_contributions(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 50,
    return_std: bool = False,
    as_explanation: bool = False,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> Any:
    r"""Split the log marginal likelihood of each row into contributions of features.

    The contribution of feature :math:`j` is its Shapley value in the game
    :math:`v(R) = \log p(x_R)`: the average, over random orders of the features, of

    .. math:: \log p(x_j \mid x_{\text{before } j}).

    A feature with a low contribution makes the row unlikely. Orders are drawn in pairs
    of an order and its reverse, which lowers the variance.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, a function or torch
        module with these arguments, or a fitted `MPTScorer`, whose features are tokens.
    X : array-like or DataFrame of shape (n_samples, n_features), or list of str
        Rows to explain. Missing entries (NaN, or the missing value of a DataFrame)
        contribute 0. For `MPTScorer`, or a Pipeline that ends in one, texts.
    n_orders : int, default=50
        Number of random orders of the features; all of them, if there are no more.
    return_std : bool, default=False
        Whether to return the standard errors over orders too.
    as_explanation : bool, default=False
        Whether to return an object for the plots of the package shap, see below.
    random_state : int, RandomState instance or None, default=None
        Determines the orders. None takes the `random_state` of the estimator.
    n_jobs : int, default=None
        Number of joblib workers. None takes the `n_jobs` of the estimator.

    Returns
    -------
    contributions : ndarray of shape (n_samples, n_features)
        Contributions in nats; -inf if a conditional log-probability is. If the
        conditionals are exact, the sum of each row is its log marginal likelihood for
        any `n_orders`. For texts, a list of arrays of shape (n_tokens,).
    std_errors : ndarray of shape (n_samples, n_features)
        Standard errors over pairs of orders (for texts, over orders). 0 with all
        orders, NaN with fewer than two pairs, and if the contribution is -inf. Only if
        `return_std` is True.
    explanation : shap.Explanation
        Returned instead of both if `as_explanation` is True, with `values`,
        `error_std`, `base_values` of 0, `data` (the rows, or the pieces of the texts)
        and `feature_names`. If shap is not installed, an object with these attributes.

    Raises
    ------
    TypeError
        If the estimator is not callable and has no ``conditional_log_prob``.
    ValueError
        If an argument is not allowed, or if the conditionals have the wrong shape or
        contain NaN or infinity; the message names the row, the feature and the mask.

    See Also
    --------
    lml_samples : The sums of the contributions.
    mpt_curve : The log marginal likelihood split over mask sizes.

    Notes
    -----
    The cost is ``n_orders * n_features`` calls of ``conditional_log_prob``; an
    estimator with a method ``chain_log_prob`` computes them together. For texts
    the contributions are those of ``token_scores`` by method "chain".

    References
    ----------
    .. [1] L. S. Shapley, "A value for n-person games", Contributions to the Theory of
       Games 2, 1953.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, feature_contributions
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> contributions = feature_contributions(model, X, n_orders=4, random_state=0)
    >>> contributions.shape
    (150, 4)
    >>> bool(np.allclose(contributions.sum(axis=1), model.score_samples(X)))
    True
    """
    check_bool(as_explanation, "as_explanation")
    check_bool(return_std, "return_std")
    check_int(n_orders, "n_orders")
    estimator = resolve_model(estimator)
    n_orders = int(n_orders)
    if ask := getattr(estimator, "_token_contributions", None):
        values, errors, data, names = ask(X, n_orders, random_state, n_jobs)
    else:
        rows, names = check_rows(estimator, X), feature_names(estimator, X)
        check_hidden_values(estimator, rows)
        random_state = given_or_parameter(estimator, "random_state", random_state)
        n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
        conditional = CheckedConditional(estimator)
        per_row = wants_row_orders(conditional, rows)
        if n_orders >= count_orders(rows.shape[1]):
            draws = [partial(given_order, order) for order in all_orders(rows.shape[1])]
            n_orders, degrees = len(draws), np.inf  # the mean has no error
        else:
            n_pairs = (n_orders + 1) // 2
            seeds, counts = spawn_seeds(random_state, n_pairs), [2] * n_pairs
            counts[-1] -= n_orders % 2
            pairs = zip(seeds, counts, strict=True)
            draws = [partial(_order_pair, seed, per_row, n) for seed, n in pairs]
            degrees = n_pairs - 1 if n_pairs > 1 else np.nan
        add_up = partial(_moments_of_pairs, conditional)
        moments = reduce(np.add, map_workers(add_up, rows, draws, n_jobs))
        values, squares = moments / n_orders
        finite = np.where(np.isfinite(values), values, np.nan)
        errors = np.sqrt(np.maximum(squares - finite**2, 0) / degrees)
        data = as_objects(rows.values) if as_explanation else None
    if not as_explanation:
        return (values, errors) if return_std else values
    try:
        from shap import Explanation
    except ImportError:
        Explanation = SimpleNamespace
    return Explanation(
        values=_as_array(values),
        base_values=np.zeros(len(values)),
        data=_as_array(data),
        error_std=_as_array(errors),
        feature_names=None if names is None else list(names),
    )


def _as_array(rows):
    """Return an array; for rows of several lengths, an array of objects."""
    return rows if isinstance(rows, np.ndarray) else array_of_objects(rows)


def _order_pair(seed, per_row, n_orders, n_rows, n_features):
    """Draw an order and its reverse, the same for all rows or for each row."""
    orders = np.tile(np.arange(n_features), (n_rows if per_row else 1, 1))
    orders = np.random.default_rng(seed).permuted(orders, axis=1)
    return np.stack([orders, orders[:, ::-1]])[:n_orders]


def _moments_of_pairs(conditional, rows, draws):
    """Sum the terms over draws of orders, and the squares of the sums of draws."""
    moments = np.zeros((2, *rows.shape))
    for _, counts, batch, terms in terms_along(conditional, rows, draws):
        totals = np.add.reduceat(terms, np.cumsum(counts) - counts, axis=0)
        squares = totals**2 / counts[:, None, None]
        moments[:, batch] += totals.sum(axis=0), squares.sum(axis=0)
    return moments
