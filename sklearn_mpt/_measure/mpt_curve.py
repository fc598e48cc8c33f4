"""Measure the score of every mask size, of any model with conditionals."""

from numbers import Integral

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_array, check_scalar

from sklearn_mpt._measure.allocation import ALLOCATIONS
from sklearn_mpt._measure.contract import (
    conditional_log_prob_of,
    mean_masked_scores,
    own_setting,
)
from sklearn_mpt._measure.curve import MPTCurve, size_weights
from sklearn_mpt._measure.masks import draw_masks
from sklearn_mpt._seeds import N_BLOCKS, RandomState, spawn_seeds


def mpt_curve(
    estimator: object,
    X: ArrayLike,
    *,
    mask_sizes: ArrayLike | None = None,
    n_masks: int | None = None,
    allocation: str = "equal",
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> MPTCurve:
    r"""Measure the mean masked log-probability at every mask size.

    For each size an independent sample of uniform masks is drawn and
    :math:`\frac{1}{m} \sum_{j \in M} \log p(x_j \mid x_R)` is averaged over masks and
    rows. The sum over all sizes is an unbiased estimate of the log marginal
    likelihood when the conditionals are those of one joint distribution ([1]_,
    Proposition 1); for other conditionals it is a lower bound of the log-density of
    the mixture over feature orders.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function of
        that form: it takes rows and a boolean mask of shape (n_features,), True where
        hidden, and returns the log-probabilities of the hidden entries and 0.0
        elsewhere, of the shape of X. Or a fitted `MPTScorer`.
    X : array-like of shape (n_samples, n_features)
        Rows to score; NaN marks missing entries. For `MPTScorer` a list of texts:
        they differ in length, so their curve is at the mask rates 0.01 to 0.99,
        averaged over texts, and its `lml` is the mean of the sums of each text.
    mask_sizes : array-like of int, default=None
        Sizes to measure. None measures all of 1..n_features; between the given
        sizes the curve interpolates linearly. Must be None for texts.
    n_masks : int, default=None
        Number of masks per size; None means 10, or the `n_masks` of `MPTScorer`.
    allocation : {"equal", "neyman"}, default="equal"
        "neyman" spends the same number of masks in total, but after a pilot puts them
        where the scores vary, in proportion to their standard deviation [2]_. Texts
        take "equal" only.
    random_state : int, RandomState instance or None, default=None
        Determines the masks. None takes the estimator's own.
    n_jobs : int, default=None
        Number of joblib workers. None takes the estimator's own. The masks are the
        same for all, and for every backend chosen by ``joblib.parallel_config``.

    Returns
    -------
    MPTCurve
        Sizes, scores, standard errors, and their sum `lml`.

    See Also
    --------
    MPTCurveDisplay.from_estimator : Compute and draw the curve.
    feature_contributions : The log marginal likelihood split over features.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] J. Neyman, "On the two different aspects of the representative method",
       Journal of the Royal Statistical Society 97, 1934.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, mpt_curve
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> curve = mpt_curve(model, X, n_masks=50, random_state=0)
    >>> abs(curve.lml - model.score(X)) < 4 * curve.lml_std_error
    True
    """
    if hasattr(estimator, "_masked_score_curve"):  # rows of several lengths
        _check_ragged(mask_sizes, allocation)
        return estimator._masked_score_curve(X, n_masks, random_state, n_jobs)
    estimator, X = _check_model(estimator, X)
    n_features = np.shape(X)[1]
    sizes = _check_mask_sizes(mask_sizes, n_features)
    n_masks = 10 if n_masks is None else n_masks
    check_scalar(n_masks, "n_masks", Integral, min_val=1)
    if allocation not in ALLOCATIONS:
        raise ValueError(f"allocation must be 'equal' or 'neyman', got {allocation!r}.")
    seeds = spawn_seeds(own_setting(estimator, "random_state", random_state), 2)
    n_jobs = own_setting(estimator, "n_jobs", n_jobs)

    def score(counts, stage):
        """Score counts[i] random masks of sizes[i]; one array per size."""
        repeated = np.repeat(sizes, counts)
        scores = _score_sizes(estimator, X, repeated, seeds[stage], n_jobs)
        return np.split(scores, np.cumsum(counts)[:-1])

    weights = size_weights(sizes, n_features)
    samples = ALLOCATIONS[allocation](score, weights, sizes < n_features, n_masks)
    return MPTCurve(
        mask_sizes=sizes,
        scores=np.array([sample.mean() for sample in samples]),
        std_errors=np.array([_std_error(sample) for sample in samples]),
        n_features=n_features,
    )


def _check_ragged(mask_sizes, allocation):
    if mask_sizes is not None or allocation != "equal":
        raise ValueError(
            "For texts, which differ in length, mask_sizes must be None and allocation "
            f"'equal', got {mask_sizes!r} and {allocation!r}. The curve is at the mask "
            "rates 0.01 to 0.99."
        )


def _check_model(estimator, X):
    """Check the estimator, and the rows unless the estimator does that itself."""
    conditional = conditional_log_prob_of(estimator)
    if conditional is estimator:
        X = check_array(X, ensure_all_finite="allow-nan")
    return estimator, X


def _check_mask_sizes(mask_sizes, n_features):
    if mask_sizes is None:
        return np.arange(1, n_features + 1)
    sizes = np.unique(mask_sizes)
    if sizes.dtype.kind not in "iu" or not len(sizes):
        raise ValueError(f"mask_sizes must be integers, got {mask_sizes!r}.")
    if sizes[0] < 1 or sizes[-1] > n_features:
        raise ValueError(
            f"mask_sizes must lie in 1..n_features={n_features}, "
            f"got {sizes[0]}..{sizes[-1]}."
        )
    return sizes


def _std_error(sample):
    return sample.std(ddof=1) / np.sqrt(len(sample)) if len(sample) > 1 else np.nan


def _score_sizes(estimator, X, sizes, seed, n_jobs):
    """Score one random mask of each size, drawn in blocks with a seed each.

    The blocks do not depend on n_jobs; each worker scores some of them in one go, so
    that an estimator sees X once per worker.
    """
    blocks = np.array_split(sizes, N_BLOCKS)
    draws = list(zip(blocks, seed.spawn(N_BLOCKS), strict=True))
    shares = np.array_split(
        np.arange(N_BLOCKS), min(N_BLOCKS, effective_n_jobs(n_jobs))
    )
    scores = Parallel(n_jobs=n_jobs)(
        delayed(_score_draws)(estimator, X, [draws[i] for i in share])
        for share in shares
    )
    return np.concatenate(scores)


def _score_draws(estimator, X, draws):
    masks = [
        draw_masks(sizes, np.shape(X)[1], np.random.default_rng(seed))
        for sizes, seed in draws
    ]
    return mean_masked_scores(estimator, X, np.concatenate(masks))
