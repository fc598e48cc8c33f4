"""Contributions of features to the log marginal likelihood of each row."""

from __future__ import annotations

from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    RandomState,
    check_bool,
    check_int,
    check_n_jobs,
    spawn_seeds,
)
from sklearn_mpt._measure.consistency import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    check_rows,
    feature_names,
    given_or_parameter,
    ragged_hook,
    wants_row_orders,
)
from sklearn_mpt._measure.masks import all_orders, count_orders
from sklearn_mpt._measure.orders import GivenOrder, terms_along
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import Rows, as_objects
from sklearn_mpt._measure.workers import map_workers


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
    random_state = given_or_parameter(estimator, "random_state", random_state)
    n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
    check_n_jobs(n_jobs)
    conditional = CheckedConditional(estimator)
    per_row = wants_row_orders(conditional, rows)
    n_all = count_orders(rows.shape[1])
    if n_orders >= n_all:
        n_orders = int(n_all)
        draws = [GivenOrder(order) for order in all_orders(rows.shape[1])]
        degrees = np.inf  # the mean has no error
    else:
        n_pairs = (n_orders + 1) // 2
        seeds, counts = spawn_seeds(random_state, n_pairs), [2] * n_pairs
        counts[-1] -= n_orders % 2
        pairs = zip(seeds, counts, strict=True)
        draws = [OrderPair(seed, per_row, count) for seed, count in pairs]
        degrees = n_pairs - 1 if n_pairs > 1 else np.nan
    moments = map_workers(partial(_moments_of_pairs, conditional), rows, draws, n_jobs)
    mean, variance = reduce(np.add, moments)  # so far, sums
    mean /= n_orders
    variance /= n_orders
    variance[np.isinf(mean)] = np.nan
    np.subtract(variance, mean**2, out=variance, where=np.isfinite(mean))
    variance /= degrees
    errors = np.sqrt(np.maximum(variance, 0, out=variance), out=variance)
    return Contributions(mean, errors, rows, feature_names(estimator, X))


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


class OrderPair(NamedTuple):
    """A random order and its reverse, either the same for all rows or for each row."""

    seed: np.random.SeedSequence
    per_row: bool
    n_orders: int

    def draw(self, n_rows, n_features):
        """Return orders of shape (n_orders, n_rows or 1, n_features)."""
        orders = np.tile(np.arange(n_features), (n_rows if self.per_row else 1, 1))
        orders = np.random.default_rng(self.seed).permuted(orders, axis=1)
        return np.stack([orders, orders[:, ::-1]])[: self.n_orders]


def _moments_of_pairs(conditional, rows, draws):
    """Sum the terms over draws of orders, and the squares of the sums of draws."""
    moments = np.zeros((2, *rows.shape))
    for _, counts, batch, terms in terms_along(conditional, rows, draws):
        totals = np.add.reduceat(terms, np.cumsum(counts) - counts, axis=0)
        squares = totals**2 / counts[:, None, None]
        moments[:, batch] += totals.sum(axis=0), squares.sum(axis=0)
    return moments
