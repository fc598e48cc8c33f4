"""Parameters of items and populations that the user gives, checked."""

import reprlib
from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_finite, check_floats, check_shape, listed
from sklearn_mpt._items.items import BINARY, WITHOUT_SLOPE, Items, length_of
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._tables.frames import aligned, by_column, first_labels

NAMES = ("discrimination", "intercept", "difficulty", "guessing", "category_scores")


class FixedParameters(NamedTuple):
    """Values of some parameters, and which of the flat parameters they are.

    values : arrays as `Items.describe` returns them, NaN where parameters are free.
    is_fixed : bool (p,).
    """

    values: dict
    is_fixed: np.ndarray

    @classmethod
    def of_items(cls, given, items, labels, is_whole=False):
        """Return what a dict fixes; see `MPTItemResponse`."""
        # labels : of the items. is_whole : whether the dict has all parameters of all
        # items, by their indices.
        d, steps = len(items), items.max_categories - 1
        values = {
            "discrimination": np.full((d, items.n_dims), np.nan),
            "intercept": np.full((d, steps), np.nan),
            "guessing": np.full(d, np.nan),
            "category_scores": np.full((d, steps + 1), np.nan),
        }
        fixed = cls(values, np.zeros(len(items.item_of_parameters), dtype=bool))
        if not is_whole:
            given = by_column(given, labels, "fixed", "item")
        for j, parameters in given.items():
            label = repr(labels[j])
            where = f"item {label}" if is_whole else f"fixed[{label}]"
            if not isinstance(parameters, dict) or not set(parameters) <= set(NAMES):
                raise ValueError(
                    f"{where} must be a dict with keys among {', '.join(NAMES)}, got "
                    f"{parameters!r}."
                )
            _check_names(parameters, where, items.names[j], items.n_dims, is_whole)
            fixed._fix(parameters, where, items, j, is_whole)
        return fixed

    @property
    def sets_scale(self):
        """Whether they determine mean and variance of z."""
        has_intercept = ~np.isnan(self.values["intercept"][:, 0])
        has_both = has_intercept & ~np.isnan(self.values["discrimination"][:, 0])
        return has_both.any() or has_intercept.sum() > 1

    def flat(self, items, flat):
        """Return flat parameters of items with the fixed values in them."""
        attributes = items.describe(flat)
        return items.flat(
            **{
                name: np.where(np.isnan(value), attributes[name], value)
                for name, value in self.values.items()
            }
        )

    def _fix(self, parameters, where, items, j, is_whole):
        """Fix some parameters of item j, or all that it has."""
        values, is_fixed = self
        index, count = items.parameters(j), items.n_categories[j] - 1
        kind, n_dims = items.names[j], items.n_dims
        sizes = {"intercept": count, "difficulty": count, "category_scores": count + 1}
        sizes |= {"discrimination": n_dims, "guessing": 1}
        arrays = {}
        for name, value in parameters.items():
            array = np.atleast_1d(check_floats(value, f"{where}: {name}"))
            if array.shape != (sizes[name],) or not np.isfinite(array).all():
                raise ValueError(
                    f"{where}: {name} must be {sizes[name]} finite number(s), got "
                    f"{np.asarray(value).tolist()}."
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
    """Check that an item of this kind has these parameters, and what they need."""
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
    lacks_slope = "discrimination" in allowed - set(parameters)
    if "difficulty" in parameters and (lacks_slope or "intercept" in parameters):
        raise ValueError(
            f"{where} has the difficulty: give the discrimination, too, and no "
            "intercept."
        )
    if "category_scores" in parameters and lacks_slope:
        raise ValueError(
            f"{where} has the category_scores: give the discrimination, too."
        )


def item_arrays(given):
    """Return slopes (d, K) and thresholds (d, c - 1), and the name of the latter."""
    names = [name for name in ("intercept", "difficulty") if given[name] is not None]
    if len(names) != 1:
        raise ValueError(
            "Exactly one of intercept and difficulty must be given, got "
            f"{'both' if names else 'neither'}."
        )
    thresholds = check_floats(given[names[0]], names[0])
    if thresholds.ndim not in (1, 2) or len(thresholds) == 0:
        raise ValueError(
            f"{names[0]} must have shape (n_items,) or (n_items, n_categories - 1), "
            f"got {thresholds.shape}."
        )
    slopes, d = given["discrimination"], len(thresholds)
    slopes = check_floats(np.ones(d) if slopes is None else slopes, "discrimination")
    if slopes.ndim not in (1, 2) or len(slopes) != d:
        raise ValueError(
            f"discrimination must have shape ({d},) or ({d}, n_components), got "
            f"{slopes.shape}."
        )
    return slopes.reshape(d, -1), thresholds.reshape(d, -1), names[0]


def known_items(given, names, labels):
    """Return items, and all of their flat parameters, given as arrays, or None."""
    # given : as `MPTItemResponse.from_items` takes them. names : the model of each
    # item. labels : of the items.
    slopes, thresholds, name = item_arrays(given)
    counts = (~np.isnan(thresholds)).sum(axis=1) + 1
    for label, model, count in zip(labels, names, counts, strict=True):
        if count < 2 or (model in BINARY and count > 2):
            least = "" if model in BINARY else "at least "
            raise ValueError(
                f"item {label!r} is {model!r} and must have {least}one threshold, got "
                f"{count - 1} in {name}."
            )
    items = Items(names, counts, slopes.shape[1])
    d, width = len(items), items.max_categories
    default = {
        "guessing": np.zeros(d),
        "category_scores": np.tile(np.arange(width, dtype=float), (d, 1)),
    }
    arrays = {}
    for key, array in default.items():
        arrays[key] = array if given[key] is None else check_floats(given[key], key)
        axes = "(n_items,)" if array.ndim == 1 else "(n_items, n_categories)"
        check_shape(arrays[key], key, array.shape, axes)
    by_item = {}
    for j, count in enumerate(counts):
        kept = thresholds[j][~np.isnan(thresholds[j])]
        scores, guessing = arrays["category_scores"][j, :count], arrays["guessing"][j]
        parameters = by_item[j] = {name: kept}
        if names[j] not in WITHOUT_SLOPE or (slopes[j] != 1).any():
            parameters["discrimination"] = slopes[j]
        if names[j] == "nominal" or (scores != np.arange(count)).any():
            parameters["category_scores"] = scores
        if names[j] == "3pl" or guessing != 0:
            parameters["guessing"] = guessing
    fixed = FixedParameters.of_items(by_item, items, labels, is_whole=True)
    return items, fixed.flat(items, items.zeros)


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
    is_standard = len(mean) == 1 and mean[0] == 0 and variance[0] == 1
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
