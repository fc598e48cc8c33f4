"""Items and populations whose parameters the user gives, checked."""

import reprlib

import numpy as np
import torch

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._integration.quadrature import MAX_GRID_DIMS
from sklearn_mpt._items.curves import BINARY, Items, length_of
from sklearn_mpt._labels import aligned, first_labels
from sklearn_mpt._messages import listed
from sklearn_mpt._numbers import MAX_GIVEN_ERROR, ROUNDING


def by_item(**parameters):
    """Return names of items, and a dict of their parameters in the order of these.

    Values are arrays, Series, DataFrames with a row for each item, dicts, or None. The
    names are the labels of the first that has any; None if none has.
    """
    names = first_labels(parameters.values())
    return names, {
        key: aligned(value, [names], key, "items") for key, value in parameters.items()
    }


def given_shape(given):
    """Return the numbers of items and of abilities, given a result of `by_item`."""
    return _slopes(given, len(_thresholds(given)[1])).shape


def given_items(names, n_dims, given):
    """Return the items and their flat parameters.

    names : the model of each item. n_dims : number of abilities. given : a result of
    `by_item`.
    """
    name, thresholds = _thresholds(given)
    slopes, counts = _slopes(given, len(names)), _counts(names, thresholds)
    items = Items(names, counts, n_dims)
    guessing = _guessing(given["guessing"], len(items))
    scores = _scores(given["category_scores"], items)
    checked = {"discrimination": slopes, name: thresholds}
    checked |= {"guessing": guessing, "category_scores": scores}
    if name == "difficulty":
        thresholds = intercepts_of(names, slopes, thresholds)
    # the first score of a nominal item is 0, because only differences of scores matter
    point = items.point(slopes, thresholds, guessing, scores - scores[:, :1])
    if not items.is_valid(torch.from_numpy(point)):
        raise ValueError(
            "Thresholds of graded items must be in order: intercepts decrease, and "
            f"difficulties of positive slopes increase; got {reprlib.repr(thresholds)}."
        )
    _check_kept(items.describe(point), checked, names)
    return items, point


def _thresholds(given):
    """Return "intercept" or "difficulty", whichever is given, and its values.

    The values have the shape (d, c - 1).
    """
    names = [name for name in ("intercept", "difficulty") if given[name] is not None]
    if len(names) != 1:
        raise ValueError(
            "Exactly one of intercept and difficulty must be given, got "
            f"{'both' if names else 'neither'}."
        )
    (name,) = names
    thresholds = check_floats(given[name], name)
    if thresholds.ndim not in (1, 2) or len(thresholds) == 0:
        raise ValueError(
            f"{name} must have shape (n_items,) or (n_items, n_categories - 1), got "
            f"{thresholds.shape}."
        )
    if np.isinf(thresholds).any():
        raise ValueError(
            f"{name} must not hold infinite numbers, got {reprlib.repr(given[name])}."
        )
    return name, thresholds.reshape(len(thresholds), -1)


def _slopes(given, d):
    """Return the slopes of d items, 1 if none are given; (d, K)."""
    slopes = given["discrimination"]
    slopes = check_floats(np.ones(d) if slopes is None else slopes, "discrimination")
    has_shape = slopes.ndim in (1, 2) and len(slopes) == d
    if not has_shape or not np.isfinite(slopes).all():
        raise ValueError(
            f"discrimination must hold finite numbers, of shape ({d},) or ({d}, "
            f"n_components), got shape {slopes.shape}."
        )
    return slopes.reshape(d, -1)


def _check_kept(fitted, given, names):
    """Refuse parameters that the models of the items do not have.

    Slopes and scores of nominal items are kept in their product, less that of the first
    category.
    """
    is_nominal = np.array([name == "nominal" for name in names])
    for attributes in (fitted, given):
        products = attributes["discrimination"][:, :1] * attributes["category_scores"]
        products = products - products[:, :1]
        attributes["category_scores"] = np.where(
            is_nominal[:, None], products, attributes["category_scores"]
        )
        attributes["discrimination"] = np.where(
            is_nominal[:, None], 1.0, attributes["discrimination"]
        )
    problems = []
    for name, values in given.items():
        kept = np.isclose(
            fitted[name], values, rtol=MAX_GIVEN_ERROR, atol=ROUNDING, equal_nan=True
        )
        wrong = np.flatnonzero(~kept.reshape(len(names), -1).all(axis=1))
        if len(wrong):
            j = wrong[0]
            problems.append(
                f"{name} of item {j}, which is {names[j]!r}, cannot be "
                f"{values[j].tolist()}: such an item would have "
                f"{np.round(fitted[name][j], 9).tolist()}."
            )
    if problems:
        raise ValueError(" ".join(problems))


def _scores(category_scores, items):
    """Return the scores of categories, NaN beyond those that an item has; (d, c)."""
    default = np.tile(np.arange(items.max_categories, dtype=float), (len(items), 1))
    default[default >= items.n_categories[:, None]] = np.nan
    if category_scores is None:
        return default
    scores = check_floats(category_scores, "category_scores")
    if scores.shape != default.shape:
        raise ValueError(
            "category_scores must have shape (n_items, n_categories) = "
            f"{default.shape}, got {scores.shape}."
        )
    scores = np.where(np.isnan(default), np.nan, scores)
    check_finite(scores[~np.isnan(default)], "category_scores")
    return scores


def _counts(names, thresholds):
    """Return the number of answers of each item."""
    counts = (~np.isnan(thresholds)).sum(axis=1) + 1
    if (counts < 2).any():
        empty = listed(np.flatnonzero(counts < 2))
        raise ValueError(
            f"Each item must have at least one finite threshold, got none for {empty}."
        )
    for j, (name, count) in enumerate(zip(names, counts, strict=True)):
        if name in BINARY and count != 2:
            raise ValueError(
                f"Item {j} is {name!r} and must have one threshold, got {count - 1}."
            )
    return counts


def intercepts_of(names, slopes, difficulty):
    """Return the intercepts that belong to difficulties; (d, c - 1)."""
    intercepts = -difficulty * length_of(slopes)
    for j, name in enumerate(names):
        if name == "nominal":
            raise ValueError("difficulty is not for nominal items: give intercept.")
        if name in ("gpcm", "partial_credit"):
            intercepts[j] = np.cumsum(intercepts[j])
    return intercepts


def _guessing(guessing, d):
    given = np.zeros(d) if guessing is None else check_floats(guessing, "guessing")
    if given.shape != (d,) or not ((given >= 0) & (given < 1)).all():
        raise ValueError(
            f"guessing must be in [0, 1), of shape ({d},), got {given.tolist()}."
        )
    return given


def given_population(latent_mean, latent_variance, factor_correlation, n_dims):
    """Return the fitted attributes that describe the distribution of the abilities."""
    groups = [first_labels([latent_mean, latent_variance])]
    latent_mean = aligned(latent_mean, groups, "latent_mean", "groups")
    latent_variance = aligned(latent_variance, groups, "latent_variance", "groups")
    mean, variance = np.broadcast_arrays(
        np.atleast_1d(check_floats(latent_mean, "latent_mean")),
        np.atleast_1d(check_floats(latent_variance, "latent_variance")),
    )
    if not np.isfinite(mean).all():
        raise ValueError(f"latent_mean must be finite, got {mean.tolist()}.")
    if not (np.isfinite(variance) & (variance > 0)).all():
        raise ValueError(
            f"latent_variance must be finite and > 0, got {variance.tolist()}."
        )
    is_standard = len(mean) == 1 and (mean == 0).all() and (variance == 1).all()
    if n_dims > MAX_GRID_DIMS and not is_standard:
        raise ValueError(
            "latent_mean must be 0 and latent_variance 1 for more than "
            f"{MAX_GRID_DIMS} abilities, got {latent_mean!r} and {latent_variance!r} "
            f"for {n_dims}."
        )
    correlation = np.eye(n_dims)
    if factor_correlation is not None:
        correlation = _correlation(factor_correlation, n_dims)
    n_groups = len(mean)
    groups = np.array(["all"]) if n_groups == 1 else np.arange(n_groups)
    return {
        "factor_correlation_": correlation,
        "latent_mean_": np.repeat(mean[:, None], n_dims, 1),
        "latent_variance_": np.repeat(variance[:, None], n_dims, 1),
        "groups_": groups,
        "reference_group_": groups.tolist()[0],
        "_group_weight": np.full(n_groups, 1 / n_groups),
    }


def _correlation(factor_correlation, n_dims):
    given = check_floats(factor_correlation, "factor_correlation")
    is_one = (
        given.shape == (n_dims, n_dims)
        and np.allclose(given, given.T)
        and np.allclose(np.diag(given), 1)
        and np.linalg.eigvalsh(given)[0] > 0
    )
    if not is_one:
        raise ValueError(
            f"factor_correlation must be a positive definite matrix of correlations, "
            f"of shape ({n_dims}, {n_dims}), got {given.tolist()}."
        )
    return given
