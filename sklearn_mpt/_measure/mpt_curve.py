"""Measure the masked score of any model at every mask size; the designs of masks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    RandomState,
    check_choice,
    check_int,
    spawn_seeds,
)
from sklearn_mpt._measure.checking import check_hidden_values
from sklearn_mpt._measure.contract import (
    CheckedConditional,
    check_rows,
    feature_names,
    given_or_parameter,
    hidden_log_prob,
    masked_score,
    mean_masked_scores,
    takes_row_masks,
)
from sklearn_mpt._measure.curve import (
    MaskNoise,
    MPTCurve,
    contrasts_of_mean,
    size_weights,
)
from sklearn_mpt._measure.masks import (
    MAX_ENUMERATED,
    block_keys,
    child_generator,
    draw_distinct,
    draw_distinct_per_row,
    draw_partitions,
    hide_smallest,
    neighbouring_std,
    read_blocks,
    split_total,
)
from sklearn_mpt._measure.pipelines import resolve_model
from sklearn_mpt._measure.rows import map_tasks
from sklearn_mpt._numbers import CHUNK_ENTRIES, MAX_EXACT_INTEGER, chunk_slices


def count_existing(sizes, n_features, blocks):
    """Return the number of distinct masks of each size; 2^53 if they may be repeated"""
    if blocks is not None:
        return np.where(sizes == n_features, 1, MAX_EXACT_INTEGER)
    counts = (math.comb(n_features, int(size)) for size in sizes)
    return np.array([min(count, MAX_EXACT_INTEGER) for count in counts])


def shared_masks(model, rows, sizes, n_masks, blocks, seed, n_jobs, is_neyman):
    """Draw distinct masks of each size, the same for all rows; return scores and noise.

    With Neyman's allocation more masks are drawn at sizes where the scores vary more. A
    pilot estimates how much. Its scores also enter the means, so to avoid bias the
    number of masks of a size must not depend on its own pilot: even sizes use the
    variation at odd sizes, and odd sizes that at even sizes. The total numbers of masks
    of even and of odd sizes are fixed in advance.
    """
    score = partial(_score_shared, model, sizes, n_masks, blocks, seed)

    def score_drawn(first, last):
        """Score the masks first[i]..last[i] - 1 of the i-th size."""
        tasks = list(enumerate(zip(first, last, strict=True)))
        return map_tasks(score, rows, tasks, n_jobs)

    n_existing = count_existing(sizes, rows.shape[1], blocks)
    first = n_drawn = np.minimum(n_existing, n_masks)
    if is_neyman and len(first) > 1:
        first = np.minimum(max(2, n_masks // 3), n_drawn)
    samples = score_drawn(0 * first, first)
    total = (n_drawn - first).sum()
    if total > 0:
        weights = size_weights(sizes, rows.shape[1]) * (n_existing > first)
        wanted = weights * neighbouring_std(samples)
        last, parity = first.copy(), np.arange(len(first)) % 2
        totals = split_total(total, np.bincount(parity, weights))
        for half, of_half in zip((parity == 0, parity == 1), totals, strict=True):
            last[half] += split_total(of_half, wanted[half])
        others = score_drawn(first, np.minimum(last, n_existing))
        samples = list(map(np.append, samples, others))
    parts = []
    for sample, n_all in zip(samples, n_existing, strict=True):
        ones = np.ones(len(sample))
        mean, contrasts = contrasts_of_mean(sample[:, None], ones, n_all)
        parts.append((mean[0], contrasts, len(sample) - 1))
    return _collect_sizes(parts)


def _score_shared(model, sizes, n_masks, blocks, seed, rows, tasks):
    """Return an array of scores for each task; masks of several are in one call."""
    n_features = rows.shape[1]

    def draw(task):
        index, (first, last) = task
        rng, size = child_generator(seed, index), sizes[index]
        if blocks is not None:
            keys = block_keys(lambda *shape: rng.random(shape), last, blocks)
            return hide_smallest(keys, size)[first:]
        return draw_distinct(size, last, n_features, rng)[first:]

    scores = []
    for part in chunk_slices(len(tasks), n_masks * n_features, CHUNK_ENTRIES):
        masks = [draw(task) for task in tasks[part]]
        values = mean_masked_scores(model, rows, np.concatenate(masks))
        scores += np.split(values, np.cumsum([len(drawn) for drawn in masks])[:-1])
    return scores


def masks_of_rows(model, rows, sizes, n_masks, seed, n_jobs):
    """Draw masks for each row that hide every feature about equally often.

    The masks of a size are drawn as several independent sets, from which the standard
    errors are estimated. The errors of rows are independent and average out. If rows
    share masks, these are independent: balanced ones vary as much.
    """
    score = partial(_score_masks_of_rows, model, sizes, n_masks, seed)
    return _collect_sizes(map_tasks(score, rows, range(len(sizes)), n_jobs))


def _score_masks_of_rows(model, sizes, n_masks, seed, rows, indices):
    """Average scores over masks and rows; with contrasts and degrees of freedom."""
    n_rows, n_features = rows.shape
    # The first row of each group of rows whose errors are added up: with two sets of
    # masks each, the variance of 8 groups has 8 degrees of freedom.
    strata = np.arange(0, n_rows, -(-n_rows // 8))
    n_existing = count_existing(sizes, n_features, None)
    averages, conditional = [], CheckedConditional(model)
    for index in indices:
        size, n_all = sizes[index], n_existing[index]
        n_sets = n_drawn = min(n_all, n_masks)
        is_listed = n_all <= min(MAX_ENUMERATED, max(4 * n_masks, n_features))
        if not is_listed:
            # Student's t with four degrees of freedom is 1.4 times as wide as normal
            n_all, n_sets = np.inf, min(n_drawn, 2 if n_rows > 5 else 5)
        counts = np.array([len(s) for s in np.array_split(np.arange(n_drawn), n_sets)])
        draw = draw_distinct_per_row if is_listed else draw_partitions
        scores = []  # of parts of the rows, (n_drawn, n_rows) each
        for part in chunk_slices(n_rows, n_features, CHUNK_ENTRIES):
            some = rows.slice(part.start, part.stop)
            rng = child_generator(seed, index, part.start)
            masks = chain.from_iterable(
                draw(size, n, *some.shape, rng)
                for n in ([n_drawn] if is_listed else counts)
            )
            scores.append(
                [masked_score(hidden_log_prob(conditional, some, m), m) for m in masks]
            )
        sums = np.concatenate(scores, axis=1)
        sums = np.add.reduceat(sums, np.cumsum(counts) - counts, axis=0)
        means, contrasts = contrasts_of_mean(sums / counts[:, None], counts, n_all)
        by_stratum = np.add.reduceat(contrasts, strata, axis=1) / n_rows
        averages.append((means.mean(), by_stratum, len(strata) * (n_sets - 1)))
    return averages


def _collect_sizes(parts):
    """Collect (mean, contrasts, degrees) of sizes with independent masks."""
    means, of_sizes, degrees = zip(*parts, strict=True)
    contrasts = np.zeros((len(parts), max(of_size.size for of_size in of_sizes)))
    for row, of_size in zip(contrasts, of_sizes, strict=True):
        row[: of_size.size] = of_size.ravel()
    n_strata = of_sizes[0].shape[1]
    return np.array(means), MaskNoise(contrasts, np.array(degrees), n_strata=n_strata)


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
    if ask := getattr(estimator, "_masked_score_curve", None):
        if mask_sizes is not None or design != "auto" or allocation != "equal":
            raise ValueError(
                "For texts, which differ in length, mask_sizes must be None, design "
                f"'auto' and allocation 'equal', got {mask_sizes!r}, {design!r} and "
                f"{allocation!r}. The curve is measured at the mask rates 0.01 to 0.99."
            )
        return ask(X, n_masks, mask_blocks, random_state, n_jobs)
    rows = check_rows(estimator, X)
    n_features = rows.shape[1]
    check_hidden_values(estimator, rows)
    sizes = np.arange(1, n_features + 1)
    if mask_sizes is not None:
        sizes = np.unique(mask_sizes)
        is_list = sizes.dtype.kind in "iu" and len(sizes) and np.ndim(mask_sizes) < 2
        if not is_list or sizes[0] < 1 or sizes[-1] > n_features:
            raise ValueError(
                f"mask_sizes must be integers in 1..n_features={n_features}, got "
                f"{mask_sizes!r}."
            )
    names = feature_names(estimator, X)
    blocks = read_blocks(mask_blocks, names or range(n_features))
    check_choice(design, "design", ["auto", "all", "balanced", "independent"])
    check_choice(allocation, "allocation", ["equal", "neyman"])
    is_neyman = allocation == "neyman"
    if design not in ("auto", "independent") and (is_neyman or blocks is not None):
        name = "allocation='neyman'" if is_neyman else "mask_blocks"
        raise ValueError(
            f"{name} needs design='independent' or 'auto', got {design!r}."
        )
    if design == "all":
        if n_masks is not None:
            raise ValueError(
                f"n_masks must be None with design='all', got {n_masks!r}."
            )
        # the largest number of masks of one size
        n_masks = math.comb(n_features, n_features // 2)
        random_state = 0  # it decides in which order masks are added up, no more
        if n_masks > MAX_ENUMERATED:
            raise ValueError(
                "design='all' scores all masks of at most 12 features, got "
                f"{n_features}, which have 2^{n_features} - 1 masks. Use design='auto'."
            )
    if is_neyman:
        design = "neyman"
    elif design == "auto" and blocks is None:
        design = "balanced"
    elif design != "balanced":  # all masks are independent ones, without repetition
        design = "independent"
    n_masks = 10 if n_masks is None else n_masks
    check_int(n_masks, "n_masks")
    n_jobs = given_or_parameter(estimator, "n_jobs", n_jobs)
    seed = given_or_parameter(estimator, "random_state", random_state)
    (seed,) = spawn_seeds(seed, 1)
    n_masks = int(n_masks)
    # complete rows of models with a hook share masks, and computations with them
    has_shared = rows.missing is None and hasattr(estimator, "mean_masked_scores")
    per_row = design == "balanced" and not has_shared
    per_row = per_row and takes_row_masks(CheckedConditional(estimator), rows)
    if per_row:
        scores, noise = masks_of_rows(estimator, rows, sizes, n_masks, seed, n_jobs)
    else:
        scores, noise = shared_masks(
            estimator, rows, sizes, n_masks, blocks, seed, n_jobs, is_neyman
        )
    # Equal for curves of as many rows with the same masks. The number of masks of a
    # size may depend on the model ("neyman"), so degrees of freedom are included.
    draw = {
        "design": design,
        "random_state": tuple(np.atleast_1d(seed.entropy).tolist()),
        "n_masks": n_masks,
        "mask_sizes": tuple(sizes.tolist()),
        "mask_blocks": blocks
        and ("span" if blocks.is_span else blocks.numbers.tolist()),
        "masks for each row": per_row,
        "number of rows": len(rows),
        "number of masks of each size": tuple(noise.degrees.tolist()),
    }
    return MPTCurve(
        sizes,
        scores,
        noise.std_errors,
        n_features,
        noise=replace(noise, draw=draw),
        has_blocks=blocks is not None,
    )
