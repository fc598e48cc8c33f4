"""The score of every mask size, whose sum is the log marginal likelihood."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_array, check_scalar

from sklearn_mpt._allocation import ALLOCATIONS
from sklearn_mpt._masks import draw_masks, mask_size
from sklearn_mpt._objective import (
    N_BLOCKS,
    RandomState,
    conditional_log_prob_of,
    mean_masked_scores,
    own_setting,
    spawn_seeds,
)


@dataclass(frozen=True, eq=False)
class MPTCurve:
    r"""Mean masked log-probability as a function of the number of hidden features.

    The score at mask size :math:`m` is

    .. math:: S(m) = \mathbb{E}_{|M| = m} \frac{1}{m} \sum_{j \in M}
              \log p(x_j \mid x_{R}),

    averaged over rows, where :math:`R` are the features that the mask :math:`M`
    leaves visible. The area under the curve, :math:`\sum_{m=1}^{D} S(m)`, is the log
    marginal likelihood ([1]_, Proposition 1).

    Parameters
    ----------
    mask_sizes : ndarray of shape (n_sizes,)
        Numbers of hidden features, increasing.
    scores : ndarray of shape (n_sizes,)
        Score at each size, in nats per feature.
    std_errors : ndarray of shape (n_sizes,)
        Standard errors of the scores over masks, given the rows; NaN where fewer
        than two masks were drawn.
    n_features : int
        Number of features D.

    Attributes
    ----------
    mask_rates : ndarray of shape (n_sizes,)
        ``mask_sizes / n_features``.
    lml : float
        Mean log marginal likelihood per row, in nats.
    lml_std_error : float
        Standard error of `lml` over masks.

    See Also
    --------
    mpt_curve : Compute the curve of a model.
    MPTCurveDisplay : Draw it.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTCurve
    >>> curve = MPTCurve(mask_sizes=np.array([2, 4]), scores=np.array([-2.0, -4.0]),
    ...                  std_errors=np.zeros(2), n_features=5)
    >>> float(curve.lml)  # -2 - 2 - 3 - 4 - 4
    -15.0
    >>> curve.fixed_rate(0.4), curve.bias(0.4)
    (-10.0, -5.0)
    """

    mask_sizes: np.ndarray
    scores: np.ndarray
    std_errors: np.ndarray
    n_features: int

    # What the display writes: the sizes, the unit of the scores, the area.
    _labels = ("Number of hidden features $m$", "feature", "area = LML")

    @property
    def mask_rates(self) -> np.ndarray:
        return np.asarray(self.mask_sizes) / self.n_features

    @property
    def lml(self) -> float:
        return float(self.score_at(np.arange(1, self.n_features + 1)).sum())

    @property
    def lml_std_error(self) -> float:
        weights = _size_weights(np.asarray(self.mask_sizes), self.n_features)
        return float(np.sqrt(np.sum((weights * self.std_errors) ** 2)))

    def score_at(self, sizes: ArrayLike) -> np.ndarray:
        """Return the scores at any sizes, interpolated linearly.

        Parameters
        ----------
        sizes : array-like of float
            Numbers of hidden features.

        Returns
        -------
        ndarray
            In nats per feature; constant beyond the measured sizes.
        """
        return np.interp(sizes, self.mask_sizes, self.scores)

    def fixed_rate(self, rate: float) -> float:
        """Return D * S(m), what training at a fixed mask rate maximises.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            In nats per row.
        """
        check_scalar(
            rate, "rate", (float, int), min_val=0, max_val=1, include_boundaries="right"
        )
        size = mask_size(rate, self.n_features)
        return float(self.n_features * self.score_at(size))

    def bias(self, rate: float) -> float:
        """Return by how much the LML exceeds `fixed_rate`.

        Parameters
        ----------
        rate : float
            Mask rate in (0, 1].

        Returns
        -------
        float
            In nats per row; it depends on the model and on the rows.
        """
        return self.lml - self.fixed_rate(rate)

    def area(self, n_tokens: int = 512) -> float:
        """Return the area under the curve over the mask rates 0.01 to 0.99.

        Parameters
        ----------
        n_tokens : int, default=512
            Number of features that the rates refer to; the reference publication
            reports texts of every length at 512 (its Table 2).

        Returns
        -------
        float
            ``0.01 * n_tokens`` times the sum of the scores at the 99 rates, in nats.
        """
        sizes = [mask_size(percent / 100, self.n_features) for percent in range(1, 100)]
        return float(0.01 * n_tokens * self.score_at(sizes).sum())


def _size_weights(mask_sizes, n_features):
    """Weight of each computed size in the interpolated sum over 1..n_features."""
    sizes = np.arange(1, n_features + 1)
    weights = np.zeros(len(mask_sizes))
    position = np.interp(sizes, mask_sizes, np.arange(len(mask_sizes)))
    left = np.floor(position).astype(int)
    right = np.minimum(left + 1, len(mask_sizes) - 1)
    np.add.at(weights, left, 1 - (position - left))
    np.add.at(weights, right, position - left)
    return weights


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

    weights = _size_weights(sizes, n_features)
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
