"""The log marginal likelihood of each row, and contributions of features to it."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._checks import check_bool, check_int, check_n_jobs
from sklearn_mpt._measure.consistency import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    chain_log_prob,
    check_rows,
    given_or_parameter,
    ragged_hook,
    row_blocks,
    wants_row_orders,
)
from sklearn_mpt._measure.masks import count_orders, draw_order
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import Rows, as_objects, column_names
from sklearn_mpt._measure.standard_errors import std_error_of_mean
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._seeds import RandomState, spawn_seeds


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
        integrated out. For `MPTScorer`, texts.
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
    ask = ragged_hook(estimator, "_lml_along_orders")
    arguments = (X, int(n_orders), random_state, n_jobs)
    value, error = ask(*arguments) if ask else _lml_of_rows(estimator, *arguments)
    return (value, error) if return_std else value


def _lml_of_rows(estimator, X, *options):
    rows = check_rows(estimator, X)
    sums, n_all = sums_along_orders(estimator, rows, *options)
    return sums.mean(axis=0), std_error_of_mean(sums, n_all)


def sums_along_orders(
    estimator, rows, n_orders, random_state, n_jobs, is_compared=False
):
    """Return log-probabilities (n_orders, n_samples), and the number of all orders.

    The latter is infinity if there are many.
    """
    check_hidden_values(estimator, rows, is_compared)
    per_row = wants_row_orders(CheckedConditional(estimator), rows)
    draws, n_all = order_draws(
        estimator, rows.shape[1], n_orders, random_state, per_row
    )
    return sums_along(estimator, rows, draws, n_jobs), n_all


def order_draws(estimator, n_features, n_orders, random_state, per_row):
    """Return draws of distinct orders, at most of all, and the number of all orders.

    The latter is infinity if there are many. per_row : whether rows have orders of
    their own.
    """
    random_state = given_or_parameter(estimator, "random_state", random_state)
    seed, n_all = spawn_seeds(random_state, 1)[0], count_orders(n_features)
    n_drawn = min(int(n_orders), n_all)
    return [OrderDraw(seed, i, per_row) for i in range(n_drawn)], n_all


def sums_along(estimator, rows, draws, n_jobs):
    """Return log-probabilities of the rows along each order, (n_orders, n_samples)."""
    return np.concatenate(map_orders(_sums_along, estimator, rows, draws, n_jobs))


class OrderDraw(NamedTuple):
    """One random order of a seed, either the same for all rows or one for each row."""

    seed: np.random.SeedSequence
    number: int
    per_row: bool

    def draw(self, n_rows, n_features):
        """Return orders of shape (n_rows or 1, n_features)."""
        n_rows = n_rows if self.per_row else 1
        return draw_order(self.number, self.seed, n_rows, n_features)


class GivenOrder(NamedTuple):
    """A given order for all rows."""

    order: np.ndarray

    def draw(self, n_rows, n_features):
        return self.order[None]


def map_orders(function, estimator, rows, orders, n_jobs):
    """Apply a function to the conditional, the rows and shares of orders."""
    n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
    check_n_jobs(n_jobs)
    n_shares = min(len(orders), effective_n_jobs(n_jobs))
    conditional = CheckedConditional(estimator)
    # joblib sends a large array once, but only if it is an argument by itself.
    large = rows.values, rows.missing
    return Parallel(n_jobs=n_jobs)(
        delayed(_on_rows)(function, conditional, *large, [orders[i] for i in share])
        for share in np.array_split(np.arange(len(orders)), n_shares)
    )


def _on_rows(function, conditional, values, missing, orders):
    return function(conditional, Rows(values, missing), orders)


def _sums_along(conditional, rows, draws):
    sums = np.empty((len(draws), len(rows)))
    for block in chunk_slices(len(draws), math.prod(rows.shape), CHUNK_ENTRIES):
        orders = np.stack([draw.draw(*rows.shape) for draw in draws[block]])
        for batch, part in row_blocks(rows):
            terms = chain_log_prob(conditional, part, _part(orders, batch))
            sums[block, batch] = terms.sum(axis=2)
    return sums


def _part(orders, batch):
    """Return the orders, if all rows share them, or those of a batch of rows."""
    return orders[:, 0] if orders.shape[1] == 1 else orders[:, batch]


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
        contribute 0. For `MPTScorer`, texts.
    n_orders : int, default=50
        Number of random orders of the features.
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
        Standard errors over pairs of orders (for texts, over orders). NaN with fewer
        than two pairs, and if the contribution is -inf. Only if `return_std` is True.
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
    ask = ragged_hook(estimator, "_token_contributions")
    arguments = (X, int(n_orders), random_state, n_jobs)
    parts = ask(*arguments) if ask else _contributions_of_rows(estimator, *arguments)
    if as_explanation:
        return _explain(parts)
    return (parts.values, parts.std_errors) if return_std else parts.values


class Contributions(NamedTuple):
    """Result of `feature_contributions`; lists of arrays for texts."""

    values: Any
    std_errors: Any
    data: Any  # the rows, or the tokens of texts
    names: Any = None


def _contributions_of_rows(estimator, X, n_orders, random_state, n_jobs):
    rows = check_rows(estimator, X)
    check_hidden_values(estimator, rows)
    n_pairs = (n_orders + 1) // 2
    seeds = spawn_seeds(
        given_or_parameter(estimator, "random_state", random_state), n_pairs
    )
    per_row = wants_row_orders(CheckedConditional(estimator), rows)
    sizes = [2] * (n_orders // 2) + [1] * (n_orders % 2)
    pairs = [(seed, per_row, size) for seed, size in zip(seeds, sizes, strict=True)]
    moments = map_orders(_moments_of_pairs, estimator, rows, pairs, n_jobs)
    mean, variance = functools.reduce(np.add, moments)  # so far, sums
    mean /= n_orders
    degrees = n_pairs - 1 if n_pairs > 1 else np.nan
    variance /= n_orders
    variance[np.isinf(mean)] = np.nan
    np.subtract(variance, mean**2, out=variance, where=np.isfinite(mean))
    variance /= degrees
    errors = np.sqrt(np.maximum(variance, 0, out=variance), out=variance)
    names = column_names(X)
    if names is None:
        names = getattr(estimator, "feature_names_in_", None)
    return Contributions(mean, errors, rows, names)


def _explain(parts):
    try:
        from shap import Explanation
    except ImportError:
        Explanation = SimpleNamespace
    return Explanation(
        values=_rectangular(parts.values),
        base_values=np.zeros(len(parts.values)),
        data=_data_of(parts.data),
        error_std=_rectangular(parts.std_errors),
        feature_names=None if parts.names is None else list(parts.names),
    )


def _data_of(rows):
    return as_objects(rows.values) if isinstance(rows, Rows) else _rectangular(rows)


def _rectangular(rows):
    """Return an array; for rows of several lengths, an array of objects."""
    if isinstance(rows, np.ndarray):
        return rows
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


def _order_pair(seed, n_rows, n_features):
    """Return an order and its reverse for each row; (2, n_rows, n_features)."""
    orders = np.tile(np.arange(n_features), (n_rows, 1))
    orders = np.random.default_rng(seed).permuted(orders, axis=1)
    return np.stack([orders, orders[:, ::-1]])


def _moments_of_pairs(conditional, rows, pairs):
    """Sum the terms over pairs of orders, and the squares of the sums of pairs."""
    moments = np.zeros((2, *rows.shape))
    for block in chunk_slices(len(pairs), math.prod(rows.shape), CHUNK_ENTRIES):
        drawn = [
            _order_pair(seed, len(rows) if per_row else 1, rows.shape[1])[:size]
            for seed, per_row, size in pairs[block]
        ]
        orders, sizes = np.concatenate(drawn), np.array([len(pair) for pair in drawn])
        for batch, part in row_blocks(rows):
            terms = chain_log_prob(conditional, part, _part(orders, batch))
            totals = np.add.reduceat(terms, np.cumsum(sizes) - sizes, axis=0)
            squares = totals**2 / sizes[:, None, None]
            moments[:, batch] += totals.sum(axis=0), squares.sum(axis=0)
    return moments
