"""Shapley values: of the log-density of a row, and draws for those of a predictor."""

from __future__ import annotations

import warnings
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    RandomState,
    check_bool,
    check_floats,
    check_int,
    check_n_jobs,
    draw_seed,
    spawn_seeds,
)
from sklearn_mpt._measure.checking import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    check_rows,
    feature_names,
    given_or_parameter,
    wants_row_orders,
)
from sklearn_mpt._measure.masks import all_orders, count_orders
from sklearn_mpt._measure.orders import given_order, terms_along
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import Rows, as_objects, map_workers
from sklearn_mpt._tables.labels import check_columns


class ConditionalMasker:
    r"""Draw hidden features of a row given the visible ones, for Shapley values.

    Shapley values of a prediction f(x) use its average when only the features R of a
    row are known. The maskers of the package shap draw the other features from a
    background data set, independently of R. This one draws them jointly from the
    conditional distribution :math:`p(x_M \mid x_R)` of a model, which gives conditional
    Shapley values [1]_. Pass it to shap as ``shap.Explainer(f, masker)``, or pass its
    :meth:`game` to shapiq.

    Parameters
    ----------
    model : estimator
        A fitted model of the rows with a method
        ``impute(X, method="sample", random_state=...)``, such as those of this package.
    n_samples : int, default=100
        Number of draws for each set of visible features.
    random_state : int, RandomState instance or None, default=None
        Determines the draws. The random numbers are the same in every call, so all sets
        of features are compared on the same random numbers.

    See Also
    --------
    feature_contributions : Shapley values of the log-density of a row.

    References
    ----------
    .. [1] K. Aas, M. Jullum and A. Løland, "Explaining individual predictions when
       features are dependent: more accurate approximations to Shapley values",
       Artificial Intelligence 298, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import ConditionalMasker, MPTProbabilisticPCA
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> masker = ConditionalMasker(model, n_samples=3, random_state=0)
    >>> (drawn,) = masker(np.array([True, True, False, False]), X[0])
    >>> drawn.shape, bool((drawn[:, :2] == X[0, :2]).all())
    ((3, 4), True)
    """

    immutable_outputs = True  # shap may keep the returned arrays

    def __init__(
        self, model: object, *, n_samples: int = 100, random_state: RandomState = None
    ):
        check_int(n_samples, "n_samples")
        if not hasattr(model, "impute"):
            raise TypeError(
                "model must have a method impute(X, method='sample', random_state=...)"
                f", got {model!r}."
            )
        self.model = model
        self.n_samples = int(n_samples)
        self.seed = draw_seed(random_state)

    def __call__(self, mask: ArrayLike, x: ArrayLike) -> tuple[np.ndarray]:
        """Return draws of a row, given its visible features.

        Parameters
        ----------
        mask : array-like of bool of shape (n_features,)
            True where a feature is visible. This is the convention of shap; everywhere
            else in this package True means hidden. A single True or False is for all
            features.
        x : array-like of shape (n_features,)
            The row.

        Returns
        -------
        draws : tuple of one ndarray of shape (n_samples, n_features)
            The draws, as shap expects them.
        """
        names = feature_names(self.model, None)
        check_columns(x, names, "x")
        check_columns(mask, names, "mask")
        x = check_floats(x, "x").reshape(-1)
        hidden = ~np.broadcast_to(np.asarray(mask, dtype=bool), x.shape)
        rows = np.tile(np.where(hidden, np.nan, x), (self.n_samples, 1))
        if not hidden.any():
            return (rows,)
        options = {"method": "sample", "random_state": self.seed}
        with warnings.catch_warnings():  # shap gives arrays, whatever `fit` was given
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return (np.asarray(self.model.impute(rows, **options)),)

    def shape(self, x: ArrayLike) -> tuple[int, int]:
        """Return the number of draws and of features, for shap.

        Parameters
        ----------
        x : array-like of shape (n_features,)
            A row.

        Returns
        -------
        shape : tuple of int
            `n_samples`, and the number of features of `x`.
        """
        return self.n_samples, np.size(x)

    def game(self, predict, x: ArrayLike):
        """Return the game of a row: the mean prediction given sets of visible features.

        Parameters
        ----------
        predict : callable
            Function from rows (n, n_features) to predictions (n,).
        x : array-like of shape (n_features,)
            The row.

        Returns
        -------
        callable
            Function from sets, bool of shape (n_sets, n_features), to values (n_sets,),
            for the approximators and exact computers of shapiq.
        """

        def value(sets):
            sets = np.atleast_2d(np.asarray(sets, dtype=bool))
            rows = np.concatenate([self(one, x)[0] for one in sets])
            predictions = np.asarray(predict(rows), dtype=float)
            return predictions.reshape(len(sets), self.n_samples).mean(axis=1)

        return value


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
    arguments = (X, int(n_orders), random_state, n_jobs)
    if ask := getattr(estimator, "_token_contributions", None):
        parts = ask(*arguments)
    else:
        parts = _contributions_of_rows(estimator, *arguments)
    if not as_explanation:
        return (parts.values, parts.std_errors) if return_std else parts.values
    try:
        from shap import Explanation
    except ImportError:
        Explanation = SimpleNamespace
    is_table = isinstance(parts.data, Rows)
    return Explanation(
        values=_rectangular(parts.values),
        base_values=np.zeros(len(parts.values)),
        data=as_objects(parts.data.values) if is_table else _rectangular(parts.data),
        error_std=_rectangular(parts.std_errors),
        feature_names=None if parts.names is None else list(parts.names),
    )


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
        draws = [partial(given_order, order) for order in all_orders(rows.shape[1])]
        degrees = np.inf  # the mean has no error
    else:
        n_pairs = (n_orders + 1) // 2
        seeds, counts = spawn_seeds(random_state, n_pairs), [2] * n_pairs
        counts[-1] -= n_orders % 2
        pairs = zip(seeds, counts, strict=True)
        draws = [partial(_order_pair, seed, per_row, n) for seed, n in pairs]
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


def _rectangular(rows):
    """Return an array; for rows of several lengths, an array of objects."""
    if isinstance(rows, np.ndarray):
        return rows
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


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
