"""The log marginal likelihood split over features."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_scalar

from sklearn_mpt._measure.contract import conditional_log_prob_of, own_setting
from sklearn_mpt._seeds import N_BLOCKS, RandomState, spawn_seeds


def feature_contributions(
    estimator: object,
    X: ArrayLike,
    *,
    n_orders: int = 50,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> np.ndarray:
    r"""Split the log marginal likelihood of each row into contributions of features.

    The contribution of feature :math:`j` is its Shapley value in the game
    :math:`v(R) = \log p(x_R)`: the average, over random orders of the features, of

    .. math:: \log p(x_j \mid x_{\text{before } j}).

    A feature with a low contribution is one that makes the row unlikely. Orders are
    drawn in pairs of an order and its reverse, which lowers the variance.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function of
        that form.
    X : array-like of shape (n_samples, n_features)
        Rows to explain; NaN marks missing entries, which contribute 0.
    n_orders : int, default=50
        Number of random orders of the features.
    random_state : int, RandomState instance or None, default=None
        Determines the orders. None takes the estimator's own.
    n_jobs : int, default=None
        Number of joblib workers. None takes the estimator's own.

    Returns
    -------
    contributions : ndarray of shape (n_samples, n_features)
        Contributions in nats. When the conditionals are exact, each row sums to
        its log marginal likelihood, whatever `n_orders`.

    See Also
    --------
    mpt_curve : The log marginal likelihood split over mask sizes.

    Notes
    -----
    The cost is ``n_orders * n_features`` calls of ``conditional_log_prob``.

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
    check_scalar(n_orders, "n_orders", int, min_val=1)
    conditional = conditional_log_prob_of(estimator)
    n_pairs = (n_orders + 1) // 2
    seeds = spawn_seeds(own_setting(estimator, "random_state", random_state), n_pairs)
    orders = np.concatenate([_order_pair(seed, np.shape(X)[1]) for seed in seeds])
    parallel = Parallel(n_jobs=own_setting(estimator, "n_jobs", n_jobs))
    totals = parallel(
        delayed(_sum_over_orders)(conditional, X, block)
        for block in np.array_split(orders[:n_orders], min(N_BLOCKS, n_orders))
    )
    return np.sum(totals, axis=0) / n_orders


def _order_pair(seed, n_features):
    order = np.random.default_rng(seed).permutation(n_features)
    return np.stack([order, order[::-1]])


def _sum_over_orders(conditional, X, orders):
    """Sum log p(x_j | features before j) over the orders; (n_samples, n_features)."""
    total = np.zeros(np.shape(X))
    for order in orders:
        mask = np.ones(len(order), dtype=bool)
        for feature in order:
            total[:, feature] += conditional(X, mask)[:, feature]
            mask[feature] = False
    return total
