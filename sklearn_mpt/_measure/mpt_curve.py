"""Measure the masked score of any model at every mask size."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    RandomState,
    check_choice,
    check_int,
    check_n_jobs,
    spawn_seeds,
)
from sklearn_mpt._measure import designs
from sklearn_mpt._measure.consistency import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    check_rows,
    feature_names,
    given_or_parameter,
    ragged_hook,
    takes_row_masks,
)
from sklearn_mpt._measure.curve import MPTCurve
from sklearn_mpt._measure.masks import read_blocks
from sklearn_mpt._measure.pipelines import resolve_model

DESIGNS = ["auto", "all", "balanced", "independent"]
# With so many features, `draw_distinct` lists at most 924 masks of a size.
MAX_FEATURES_FOR_ALL = 12


def mpt_curve(
    estimator: object,
    X: ArrayLike,
    *,
    mask_sizes: ArrayLike | None = None,
    n_masks: int | None = None,
    design: str = "auto",
    allocation: str = "equal",
    mask_blocks: ArrayLike | str | None = None,
    random_state: RandomState = None,
    n_jobs: int | None = None,
) -> MPTCurve:
    r"""Measure the mean masked log-probability at every mask size.

    For each size m, masks M are drawn uniformly, and
    :math:`\frac{1}{m} \sum_{j \in M} \log p(x_j \mid x_R)` is averaged over masks and
    rows. The sum over all sizes is an unbiased estimate of the log marginal
    likelihood if the conditionals belong to one joint distribution ([1]_,
    Proposition 1). Otherwise it estimates a lower bound of the log-density of the
    mixture over orders of the features. `design` sets how masks depend on one another.

    Parameters
    ----------
    estimator : object or callable
        A fitted estimator with ``conditional_log_prob(X, mask)``, a function with these
        arguments, a torch module, or a fitted `MPTScorer` or Pipeline that ends in one,
        or in an estimator after scalers. The function takes rows and a boolean mask of
        shape (n_features,), True where hidden. It returns an array or a torch tensor of
        the shape of X: log-probabilities of the hidden entries, 0 at other entries. If
        it also takes masks of shape (n_samples, n_features), fewer masks are needed for
        the same error. It gets copies of the rows: a DataFrame if X is one with columns
        that are not numbers, else an array of numbers. A torch module gets tensors in
        its dtype and on its device, and runs in evaluation mode.
    X : array-like or DataFrame of shape (n_samples, n_features)
        Rows to score. NaN, or the missing value of a DataFrame, marks missing entries.
        For `MPTScorer`, a list of texts. As they differ in length, their curve is
        measured at the mask rates 0.01 to 0.99 and averaged over texts; `lml` is the
        mean over texts of the sum over the sizes of each text.
    mask_sizes : array-like of int, default=None
        Sizes to measure. None measures all of 1..n_features; between the given
        sizes the curve is interpolated linearly. Must be None for texts.
    n_masks : int, default=None
        Number of masks of each size, at most as many as exist. None is 10, or the
        `n_masks` of `MPTScorer`. Must be None with ``design="all"``.
    design : {"auto", "all", "balanced", "independent"}, default="auto"
        How masks are drawn. "all": none are drawn, because all that exist are scored,
        without any error; for at most 12 features, which have 4,095 masks. "balanced":
        each row gets masks of its own, and those of one size hide all features about
        equally often, if the function takes a mask for each row and, in a trial on a
        few rows, its results change with the visible entries; otherwise as
        "independent". "independent": masks of each size are drawn independently, as in
        [1]_, without repetition. "auto": "balanced", or "independent" with
        `mask_blocks` or ``allocation="neyman"``.
    allocation : {"equal", "neyman"}, default="equal"
        How the masks are divided among the sizes. "neyman" keeps their total number and
        draws more of them at sizes where scores vary more, in proportion to the
        standard deviation in a pilot [2]_. It needs `design` "independent" or "auto".
    mask_blocks : array-like of shape (n_features,), "span" or "word", default=None
        Structure of the masks. An array has a label for each feature, a Series or dict
        one for each name of a feature: features of one label, such as columns of one
        topic or pixels of one patch, are hidden together. Blocks come in random order;
        a mask hides whole blocks, and some features of one more if its size needs it.
        With "span", a mask hides consecutive features, such as steps of time, from a
        random one on; a span that reaches the last feature goes on at the first. None
        hides every set of one size with the same probability. With blocks or spans the
        sum of the scores is not the log marginal likelihood, and the curve has no
        `lml`. It is lower if hidden features depend more on those hidden with them than
        on others, as neighbours do. They need `design` "independent" or "auto". For
        texts only "word", which hides whole words of the tokenizer and counts words in
        mask sizes: `total` is then a lower bound of the log-probability given where
        words begin.
    random_state : int, RandomState instance or None, default=None
        Determines the masks. None takes the `random_state` of the estimator.
    n_jobs : int, default=None
        Number of joblib workers. None takes the `n_jobs` of the estimator. The masks
        are the same for any number of workers and for every backend that
        ``joblib.parallel_config`` chooses.

    Returns
    -------
    MPTCurve
        Sizes, scores and standard errors; `lml` is the sum over all sizes. Curves that
        were measured with the same masks can be subtracted. For texts, `mask_sizes` are
        percentages of the tokens and `n_features` is 100. If a conditional
        log-probability is -inf, so are the score and `lml`, and their standard errors
        are NaN.

    Raises
    ------
    TypeError
        If the estimator is not callable and has no ``conditional_log_prob``.
    ValueError
        If an argument is not allowed, or if the conditionals have the wrong shape or
        contain NaN or infinity; the message names the row, the feature and the mask.

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
    estimator = resolve_model(estimator)
    if ask := ragged_hook(estimator, "_masked_score_curve"):
        _check_ragged(mask_sizes, design, allocation)
        return ask(X, n_masks, mask_blocks, random_state, n_jobs)
    rows = check_rows(estimator, X)
    check_hidden_values(estimator, rows)
    sizes = _check_mask_sizes(mask_sizes, rows.shape[1])
    names = feature_names(estimator, X)
    blocks = read_blocks(mask_blocks, names or range(rows.shape[1]))
    check_choice(design, "design", DESIGNS)
    is_all = design == "all"
    design = _choose_design(design, allocation, blocks)
    if is_all:
        n_masks = _count_for_all(n_masks, rows.shape[1])
        random_state = 0  # it decides in which order masks are added up, no more
    n_masks = 10 if n_masks is None else n_masks
    check_int(n_masks, "n_masks")
    n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
    check_n_jobs(n_jobs)
    measurement = designs.Measurement(
        estimator,
        rows,
        rows.shape,
        sizes,
        int(n_masks),
        spawn_seeds(given_or_parameter(estimator, "random_state", random_state), 1)[0],
        n_jobs,
        _is_per_row(estimator, rows, design),
        blocks,
    )
    scores, noise = getattr(designs, design)(measurement)
    noise = replace(noise, draw=_identify(measurement, design, noise))
    return MPTCurve(
        sizes,
        scores,
        noise.std_errors,
        measurement.shape[1],
        noise=noise,
        has_blocks=blocks is not None,
    )


def _check_ragged(mask_sizes, design, allocation):
    if mask_sizes is not None or design != "auto" or allocation != "equal":
        raise ValueError(
            "For texts, which differ in length, mask_sizes must be None, design 'auto' "
            f"and allocation 'equal', got {mask_sizes!r}, {design!r} and "
            f"{allocation!r}. The curve is measured at the mask rates 0.01 to 0.99."
        )


def _choose_design(design, allocation, blocks):
    """Return the name of the function in `designs` to call."""
    check_choice(allocation, "allocation", ["equal", "neyman"])
    if blocks is not None and design not in ("auto", "independent"):
        raise ValueError(
            f"mask_blocks needs design='independent' or 'auto', got {design!r}."
        )
    if allocation == "neyman":
        if design not in ("auto", "independent"):
            raise ValueError(
                "allocation='neyman' needs design='independent', got design="
                f"{design!r}."
            )
        return "neyman"
    if design == "auto" and blocks is None:
        return "balanced"
    # All masks are independent ones, without repetition, as many as there are.
    return "independent" if design in ("all", "auto") else design


def _count_for_all(n_masks, n_features):
    """Return the largest number of masks of one size; refuse too many features."""
    if n_masks is not None:
        raise ValueError(f"n_masks must be None with design='all', got {n_masks!r}.")
    if n_features > MAX_FEATURES_FOR_ALL:
        raise ValueError(
            f"design='all' scores all masks of at most {MAX_FEATURES_FOR_ALL} "
            f"features, got {n_features}, which have 2^{n_features} - 1 masks. "
            "Use design='auto'."
        )
    return math.comb(n_features, n_features // 2)


def _is_per_row(estimator, rows, design):
    """Return whether to draw masks for each row.

    Complete rows of models with a hook share masks, and computations with them.
    """
    if design != "balanced":
        return False
    if rows.missing is None and hasattr(estimator, "mean_masked_scores"):
        return False
    return takes_row_masks(CheckedConditional(estimator), rows)


def _identify(measurement, design, noise):
    """Return a key that is equal for curves of as many rows with the same masks.

    The number of masks of a size may depend on the model ("neyman"), so the key
    includes the degrees of freedom.
    """
    entropy = tuple(np.atleast_1d(measurement.seed.entropy).tolist())
    return (
        ("design", design),
        ("random_state", entropy),
        ("n_masks", measurement.n_masks),
        ("mask_sizes", tuple(measurement.sizes.tolist())),
        ("mask_blocks", _identify_blocks(measurement.blocks)),
        ("masks for each row", measurement.per_row),
        ("number of rows", measurement.shape[0]),
        ("number of masks of each size", tuple(noise.degrees.tolist())),
    )


def _identify_blocks(blocks):
    if blocks is None:
        return None
    return "span" if blocks.is_span else tuple(blocks.numbers.tolist())


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
