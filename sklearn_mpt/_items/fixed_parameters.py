"""Parameters of items and populations that the user gives, checked."""

import reprlib
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_finite, check_floats
from sklearn_mpt._items.items import BINARY, WITHOUT_SLOPE, Items, length_of
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._messages import listed
from sklearn_mpt._tables.labels import aligned, first_labels

NAMES = ("discrimination", "intercept", "difficulty", "guessing", "category_scores")


class FixedParameters(NamedTuple):
    """Values of some parameters, and which of the flat parameters they are.

    values : arrays as `Items.describe` returns them, NaN where parameters are free.
    is_fixed : bool (p,).
    """

    values: dict
    is_fixed: np.ndarray

    @classmethod
    def of_items(cls, given, items, labels):
        """Return what a dict fixes; see `MPTItemResponse`. labels : of the items."""
        fixed, positions = (
            cls._none(items),
            {label: j for j, label in enumerate(labels)},
        )
        for key, parameters in given.items():
            j, where = positions.get(key), f"fixed[{key!r}]"
            if j is None:
                raise ValueError(
                    f"fixed has the item {key!r}, which is not one of "
                    f"{listed(list(positions))}."
                )
            if not isinstance(parameters, dict) or not set(parameters) <= set(NAMES):
                raise ValueError(
                    f"{where} must be a dict with keys among {', '.join(NAMES)}, got "
                    f"{parameters!r}."
                )
            _check_determined(parameters, where, items, j)
            fixed._fix(parameters, where, items, j)
        return fixed

    @classmethod
    def of_arrays(cls, arrays, names, labels, n_dims):
        """Return items and all of their parameters, given as arrays, or None."""
        # arrays : as `MPTItemResponse.from_items` takes them. names : the model of each
        # item. labels : of the items.
        name, thresholds = thresholds_of(arrays)
        counts = (~np.isnan(thresholds)).sum(axis=1) + 1
        if (counts < 2).any():
            raise ValueError(
                "Each item must have at least one finite threshold, got none for "
                f"{listed(np.flatnonzero(counts < 2))}."
            )
        for j, (model, count) in enumerate(zip(names, counts, strict=True)):
            if model in BINARY and count != 2:
                raise ValueError(
                    f"Item {j} is {model!r} and must have one threshold, got "
                    f"{count - 1}."
                )
        items = Items(names, counts, n_dims)
        fixed = cls._none(items)
        guessing, scores = (arrays[n] for n in ("guessing", "category_scores"))
        guessing = np.zeros(len(items)) if guessing is None else guessing
        guessing = check_floats(guessing, "guessing")
        shape = len(items), items.max_categories
        if guessing.shape != shape[:1]:
            raise ValueError(
                f"guessing must be in [0, 1), of shape {shape[:1]}, got "
                f"{guessing.tolist()}."
            )
        default = np.arange(items.max_categories, dtype=float)
        scores = np.tile(default, (len(items), 1)) if scores is None else scores
        scores = check_floats(scores, "category_scores")
        if scores.shape != shape:
            raise ValueError(
                f"category_scores must have shape (n_items, n_categories) = {shape}, "
                f"got {scores.shape}."
            )
        slopes = slopes_of(arrays, len(items))
        for j, (label, count) in enumerate(zip(labels, counts, strict=True)):
            kept = thresholds[j][~np.isnan(thresholds[j])]
            parameters = {"discrimination": slopes[j], name: kept}
            parameters["category_scores"] = scores[j, :count]
            if names[j] in WITHOUT_SLOPE and (slopes[j] == 1).all():
                del parameters["discrimination"]
            if names[j] != "nominal" and (scores[j, :count] == default[:count]).all():
                del parameters["category_scores"]
            if names[j] == "3pl" or guessing[j] != 0:
                parameters["guessing"] = guessing[j]
            fixed._fix(parameters, f"item {label!r}", items, j, is_whole=True)
        return items, fixed

    @classmethod
    def _none(cls, items):
        d, steps = len(items), items.max_categories - 1
        values = {
            "discrimination": np.full((d, items.n_dims), np.nan),
            "intercept": np.full((d, steps), np.nan),
            "guessing": np.full(d, np.nan),
            "category_scores": np.full((d, steps + 1), np.nan),
        }
        return cls(values, np.zeros(len(items.item_of_parameters), dtype=bool))

    @property
    def sets_scale(self):
        """Whether they determine mean and variance of z."""
        slopes, intercept = (self.values[n] for n in ("discrimination", "intercept"))
        is_anchor = ~np.isnan(intercept[:, 0])
        n_anchors, has_slope = is_anchor.sum(), ~np.isnan(slopes[:, 0])
        return bool((is_anchor & has_slope).any() or n_anchors > 1)

    def of(self, attributes):
        """Return what `Items.flat` takes: attributes with the fixed values in them."""
        # attributes : as `Items.describe` returns them.
        return {
            name: np.where(np.isnan(value), attributes[name], value)
            for name, value in self.values.items()
        }

    def _fix(self, parameters, where, items, j, is_whole=False):
        """Fix some parameters of item j, or all that it has."""
        # where : names the item in messages.
        values, is_fixed = self
        index, count = items.parameters(j), items.n_categories[j] - 1
        kind, n_dims = items.names[j], items.n_dims
        _check_names(parameters, where, kind, n_dims, is_whole)
        sizes = {"intercept": count, "difficulty": count, "category_scores": count + 1}
        sizes |= {"discrimination": n_dims, "guessing": 1}
        arrays = {}
        for name, value in parameters.items():
            array = np.atleast_1d(check_floats(value, f"{where}: {name}"))
            if array.shape != (sizes[name],) or not np.isfinite(array).all():
                raise ValueError(
                    f"{where}: {name} must be {sizes[name]} finite number(s), got "
                    f"{value!r}."
                )
            arrays[name] = array
        n_slopes = 0 if kind in WITHOUT_SLOPE else n_dims
        if kind == "nominal":  # a row of slope and intercept for each answer
            n_slopes, index = count, index.reshape(count, 2).T.ravel()
        slope = arrays.get("discrimination", np.ones(n_dims))
        if "discrimination" in arrays:
            values["discrimination"][j] = slope
            is_fixed[index[n_slopes - 1]] = True  # of the last answer, if nominal
        scores = arrays.get("category_scores")
        if scores is not None:
            if not is_whole and (scores[0] != 0 or scores[-1] != count):
                raise ValueError(
                    f"{where}: category_scores must be 0 for the first answer and "
                    f"{count} for the last, got {parameters['category_scores']!r}."
                )
            # only differences of scores matter
            values["category_scores"][j, : count + 1] = scores - scores[0]
            is_fixed[index[:n_slopes]] = True
        thresholds = arrays.get("intercept")
        if "difficulty" in arrays:
            if not slope.any():
                raise ValueError(
                    f"{where}: difficulty is not defined where discrimination is 0, "
                    "got both: give intercept."
                )
            thresholds = -arrays["difficulty"] * length_of(slope[None])[0]
            if kind in ("gpcm", "partial_credit"):
                thresholds = np.cumsum(thresholds)
        if thresholds is not None:
            if kind == "graded" and (np.diff(thresholds) >= 0).any():
                raise ValueError(
                    "Thresholds of graded items must be in order: intercepts decrease, "
                    f"and difficulties of positive slopes increase; got {where}: "
                    f"{reprlib.repr(thresholds.tolist())}."
                )
            values["intercept"][j, :count] = thresholds
            is_fixed[index[n_slopes : n_slopes + count]] = True
        if "guessing" in arrays:
            values["guessing"][j] = arrays["guessing"][0]
            if not 0 <= values["guessing"][j] < 1:
                raise ValueError(
                    f"{where}: guessing must be in [0, 1), got "
                    f"{parameters['guessing']!r}."
                )
            is_fixed[index[-1]] = True


def _check_names(parameters, where, kind, n_dims, is_whole):
    """Check that an item of this kind has these parameters."""
    allowed = {"intercept"}
    if n_dims == 1 or is_whole:
        allowed |= {"category_scores"} if kind == "nominal" else {"difficulty"}
        allowed |= set() if kind in WITHOUT_SLOPE else {"discrimination"}
    if kind == "3pl":
        allowed |= {"guessing"}
    not_allowed = sorted(set(parameters) - allowed)
    if not_allowed:
        values = {name: np.asarray(parameters[name]).tolist() for name in not_allowed}
        came = ", ".join(f"{name}={reprlib.repr(v)}" for name, v in values.items())
        reason = ""
        if n_dims > 1 and not is_whole:
            reason = " Slopes of several abilities are known up to a rotation only."
        raise ValueError(
            f"{where} has {came}: {kind!r} items of {n_dims} abilities can have fixed "
            f"{listed(sorted(allowed))}.{reason}"
        )


def _check_determined(parameters, where, items, j):
    """Check that what is fixed determines parameters of the model."""
    lacks_slope = "discrimination" not in parameters
    needs_slope = lacks_slope and items.names[j] not in WITHOUT_SLOPE
    if "difficulty" in parameters and (
        "intercept" in parameters
        or (needs_slope and items.n_dims == 1 and items.names[j] != "nominal")
    ):
        raise ValueError(
            f"{where} has the difficulty: give the discrimination, too, and no "
            "intercept."
        )
    if "category_scores" in parameters and lacks_slope:
        raise ValueError(
            f"{where} has the category_scores: give the discrimination, too."
        )


def by_item(**parameters):
    """Return names of items, and a dict of their parameters in the order of these."""
    # Values are arrays, Series, DataFrames with a row for each item, dicts, or None.
    # The names are the labels of the first that has any; None if none has.
    names = first_labels(parameters.values())
    return names, {
        key: aligned(value, [names], key, "items") for key, value in parameters.items()
    }


def thresholds_of(given):
    """Return "intercept" or "difficulty", whichever is given, and values (d, c - 1)."""
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


def slopes_of(given, d):
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


def given_population(latent_mean, latent_variance, factor_correlation, n_dims):
    """Return the fitted attributes that describe the distribution of the abilities."""
    groups = [first_labels([latent_mean, latent_variance])]
    latent_mean = aligned(latent_mean, groups, "latent_mean", "groups")
    latent_variance = aligned(latent_variance, groups, "latent_variance", "groups")
    mean, variance = np.broadcast_arrays(
        np.atleast_1d(check_floats(latent_mean, "latent_mean")),
        np.atleast_1d(check_floats(latent_variance, "latent_variance")),
    )
    check_finite(mean, "latent_mean")
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
        correlation = check_floats(factor_correlation, "factor_correlation")
        is_one = (
            correlation.shape == (n_dims, n_dims)
            and np.allclose(correlation, correlation.T)
            and np.allclose(np.diag(correlation), 1)
            and np.linalg.eigvalsh(correlation)[0] > 0
        )
        if not is_one:
            raise ValueError(
                "factor_correlation must be a positive definite matrix of "
                f"correlations, of shape ({n_dims}, {n_dims}), got "
                f"{correlation.tolist()}."
            )
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
