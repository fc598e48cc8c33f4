"""Measure the score of every mask size, of any model with conditionals."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import check_choice, check_int, check_n_jobs
from sklearn_mpt._measure import designs
from sklearn_mpt._measure.contract import (
    Conditional,
    check_rows,
    own_setting,
    ragged_hook,
    takes_row_masks,
)
from sklearn_mpt._measure.curve import MPTCurve
from sklearn_mpt._seeds import RandomState, spawn_seeds

DESIGNS = ["auto", "chain", "balanced", "independent"]


def mpt_curve(
    estimator: object,
    X: ArrayLike,
    *,
    mask_sizes: ArrayLike | None = None,
    n_masks: int | None = None,
    design: str = "auto",
    allocation: str = "equal",
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> MPTCurve:
    r"""Measure the mean masked log-probability at every mask size.

    For each size m random masks M are drawn, each as likely as any other, and
    :math:`\frac{1}{m} \sum_{j \in M} \log p(x_j \mid x_R)` is averaged over masks and
    rows. The sum over all sizes is an unbiased estimate of the log marginal
    likelihood when the conditionals are those of one joint distribution ([1]_,
    Proposition 1); for other conditionals it is a lower bound of the log-density of
    the mixture over feature orders. `design` says how masks depend on one another.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, or a function of
        that form: it takes rows and a boolean mask of shape (n_features,), True where
        hidden, and returns the log-probabilities of the hidden entries, an array or a
        torch tensor of the shape of X, with 0 at other entries. A function that also
        takes masks of shape (n_samples, n_features) needs fewer of them for the same
        error. The rows it gets are copies: an array of numbers, or a DataFrame if X is
        one with columns of other kinds. Or a fitted `MPTScorer`.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows to score. NaN, or what a DataFrame has in its place, marks missing
        entries. For `MPTScorer` a list of texts: they differ in length, so their curve
        is at the mask rates 0.01 to 0.99, averaged over texts, and its `lml` is the
        mean of the sums of each text.
    mask_sizes : array-like of int, default=None
        Sizes to measure. None measures all of 1..n_features; between the given
        sizes the curve interpolates linearly. Must be None for texts.
    n_masks : int, default=None
        Number of masks per size; None means 10, or the `n_masks` of `MPTScorer`. No
        more are drawn than there are.
    design : {"auto", "chain", "balanced", "independent"}, default="auto"
        "chain" hides what comes later in random orders of the features, `n_masks` of
        them, and takes the log-probability of the next feature alone as a control
        variate: the sum has no error if the conditionals are exact. "balanced" draws
        masks of one size that hide all features equally often, and for each row its
        own if the function takes such masks and is seen to tell them apart on a few
        rows: its answers must change with what is visible. "independent" draws masks of
        each size independently, as in [1]_, but none twice. "auto" is "chain" for a
        model with the method `mean_chain_scores` if `mask_sizes` is None, else
        "balanced". With missing entries chains too are drawn for each row.
    allocation : {"equal", "neyman"}, default="equal"
        "neyman" spends the same number of masks in total, but after a pilot puts them
        where the scores vary, in proportion to their standard deviation [2]_. Masks
        are then independent: `design` must be that or "auto".
    random_state : int, RandomState instance or None, default=None
        Determines the masks. None takes the estimator's own.
    n_jobs : int, default=None
        Number of joblib workers. None takes the estimator's own. The masks are the
        same for all, and for every backend chosen by ``joblib.parallel_config``.

    Returns
    -------
    MPTCurve
        Sizes, scores, standard errors, and their sum `lml`. Curves of several models
        with the same masks can be subtracted, those of texts too. For texts
        `mask_sizes` are percentages of the tokens, and `n_features` is 100. A score,
        and with it `lml`, is -inf if a conditional is; its standard error is NaN.

    Raises
    ------
    TypeError
        If the estimator has no conditionals.
    ValueError
        If an argument is not allowed, or the conditionals have the wrong shape or are
        NaN or infinity; the message names the row, the feature and the mask.

    See Also
    --------
    compare_lml : Compare the log marginal likelihoods of several models.
    lml_samples : The log marginal likelihood of each row.
    check_masked_model : Check that a function is a masked model.
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
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTProbabilisticPCA, mpt_curve
    >>> X = load_iris().data
    >>> model = MPTProbabilisticPCA(init="pca", max_iter=0).fit(X)
    >>> curve = mpt_curve(model, X, n_masks=50, random_state=0)
    >>> bool(np.isclose(curve.lml, model.score(X)))
    True
    >>> paper = mpt_curve(model, X, n_masks=2, design="independent", random_state=0)
    >>> paper.lml_std_error > 1000 * curve.lml_std_error
    True
    """
    if ask := ragged_hook(estimator, "_masked_score_curve"):
        _check_ragged(mask_sizes, design, allocation)
        return ask(X, n_masks, random_state, n_jobs)
    rows = check_rows(estimator, X)
    sizes = _check_mask_sizes(mask_sizes, rows.shape[1])
    n_masks = 10 if n_masks is None else n_masks
    check_int(n_masks, "n_masks")
    n_jobs = own_setting(estimator, "n_jobs", n_jobs)
    check_n_jobs(n_jobs)
    is_chain = mask_sizes is None and hasattr(estimator, "mean_chain_scores")
    design = _choose_design(design, allocation, is_chain)
    what = designs.Measurement(
        estimator,
        rows,
        rows.shape,
        sizes,
        int(n_masks),
        spawn_seeds(own_setting(estimator, "random_state", random_state), 1)[0],
        n_jobs,
        _is_per_row(estimator, rows, design),
    )
    scores, noise = getattr(designs, design)(what)
    noise = replace(noise, draw=_identify(what, design, noise))
    return MPTCurve(sizes, scores, noise.std_errors, what.shape[1], noise=noise)


def _check_ragged(mask_sizes, design, allocation):
    if mask_sizes is not None or design != "auto" or allocation != "equal":
        raise ValueError(
            "For texts, which differ in length, mask_sizes must be None, design 'auto' "
            f"and allocation 'equal', got {mask_sizes!r}, {design!r} and "
            f"{allocation!r}. The curve is at the mask rates 0.01 to 0.99."
        )


def _choose_design(design, allocation, is_chain):
    """Return the name of a function of `designs`."""
    check_choice(design, "design", DESIGNS)
    check_choice(allocation, "allocation", ["equal", "neyman"])
    if allocation == "neyman":
        if design not in ("auto", "independent"):
            raise ValueError(
                "allocation='neyman' needs design='independent', got design="
                f"{design!r}."
            )
        return "neyman"
    if design == "auto":
        return "chain" if is_chain else "balanced"
    return design


def _is_per_row(estimator, rows, design):
    """Whether each row has its own masks: without gaps, rows may share the work."""
    if design not in ("chain", "balanced"):
        return False
    hook = "mean_chain_scores" if design == "chain" else "mean_masked_scores"
    if not hasattr(estimator, hook):
        return takes_row_masks(Conditional(estimator), rows)
    if rows.missing is None:
        return False
    return design == "chain" or takes_row_masks(Conditional(estimator), rows)


def _identify(what, design, noise):
    """Tell the masks from all others, so that curves with the same can be subtracted.

    How many masks a size has may depend on the model: the degrees of freedom show it.
    """
    entropy = tuple(np.atleast_1d(what.seed.entropy).tolist())
    return (
        ("design", design),
        ("random_state", entropy),
        ("n_masks", what.n_masks),
        ("mask_sizes", tuple(what.sizes.tolist())),
        ("masks for each row", what.per_row),
        ("number of rows with masks", what.shape[0] if what.per_row else None),
        ("number of masks of each size", tuple(noise.degrees.tolist())),
    )


def _check_mask_sizes(mask_sizes, n_features):
    if mask_sizes is None:
        return np.arange(1, n_features + 1)
    sizes = np.unique(mask_sizes)
    if sizes.dtype.kind not in "iu" or not len(sizes) or np.ndim(mask_sizes) > 1:
        raise ValueError(f"mask_sizes must be integers, got {mask_sizes!r}.")
    if sizes[0] < 1 or sizes[-1] > n_features:
        raise ValueError(
            f"mask_sizes must lie in 1..n_features={n_features}, "
            f"got {sizes[0]}..{sizes[-1]}."
        )
    return sizes
