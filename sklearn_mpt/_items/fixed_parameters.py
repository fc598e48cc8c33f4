"""Parameters of items that `fit` keeps as the user gives them, checked."""

from typing import NamedTuple

import numpy as np

from sklearn_mpt._checks import check_floats
from sklearn_mpt._items.curves import WITHOUT_SLOPE
from sklearn_mpt._items.given_parameters import intercepts_of
from sklearn_mpt._messages import listed

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
        """Return what a dict fixes; see `MPTItemResponse`.

        given : dict from items, by label or index, to dicts. labels : of the items, as
        their keys.
        """
        d, steps = len(items), items.max_categories - 1
        values = {
            "discrimination": np.full((d, items.n_dims), np.nan),
            "intercept": np.full((d, steps), np.nan),
            "guessing": np.full(d, np.nan),
            "category_scores": np.full((d, steps + 1), np.nan),
        }
        is_fixed = np.zeros(items.n_parameters, dtype=bool)
        positions = {label: j for j, label in enumerate(labels)}
        for key, parameters in given.items():
            j = positions.get(key)
            if j is None:
                raise ValueError(
                    f"fixed has the item {key!r}, which is not one of "
                    f"{listed(list(positions))}."
                )
            _fix(values, is_fixed, items, j, _checked(parameters, key, items, j))
        return cls(values, is_fixed)

    @property
    def sets_scale(self):
        """Whether they determine mean and variance of z."""
        slopes, intercept = (self.values[n] for n in ("discrimination", "intercept"))
        is_anchor = ~np.isnan(intercept[:, 0])
        n_anchors, has_slope = is_anchor.sum(), ~np.isnan(slopes[:, 0])
        return bool((is_anchor & has_slope).any() or n_anchors > 1)

    def of(self, attributes):
        """Return what `Items.point` takes: attributes with the fixed values in them.

        attributes : as `Items.describe` returns them.
        """
        return {
            name: np.where(np.isnan(value), attributes[name], value)
            for name, value in self.values.items()
        }


def _checked(parameters, key, items, j):
    """Return the fixed parameters of an item, as arrays."""
    if not isinstance(parameters, dict) or not set(parameters) <= set(NAMES):
        raise ValueError(
            f"fixed[{key!r}] must be a dict with keys among {', '.join(NAMES)}, got "
            f"{parameters!r}."
        )
    _check_names(parameters, key, items, j)
    count = items.n_categories[j] - 1
    sizes = {"intercept": count, "difficulty": count, "category_scores": count + 1}
    arrays = {
        name: _finite(value, f"fixed[{key!r}][{name!r}]", sizes.get(name, 1))
        for name, value in parameters.items()
    }
    if "guessing" in arrays and not 0 <= arrays["guessing"][0] < 1:
        raise ValueError(
            f"fixed[{key!r}]['guessing'] must be in [0, 1), got "
            f"{parameters['guessing']!r}."
        )
    scores = arrays.get("category_scores", [0, count])
    if scores[0] != 0 or scores[-1] != count:
        raise ValueError(
            f"fixed[{key!r}]['category_scores'] must be 0 for the first answer and "
            f"{count} for the last, got {parameters['category_scores']!r}."
        )
    return arrays


def _check_names(parameters, key, items, j):
    """Check that an item has these parameters, and that they determine others."""
    kind = items.names[j]
    allowed = _allowed_names(kind, items.n_dims)
    not_allowed = sorted(set(parameters) - allowed)
    if not_allowed:
        reason = ""
        if items.n_dims > 1:
            reason = " Slopes of several abilities are known up to a rotation only."
        raise ValueError(
            f"fixed[{key!r}] has {listed(not_allowed)}: {kind!r} items of "
            f"{items.n_dims} abilities can have fixed {listed(sorted(allowed))}."
            f"{reason}"
        )
    lacks_slope = "discrimination" not in parameters
    if "difficulty" in parameters and (
        "intercept" in parameters or ("discrimination" in allowed and lacks_slope)
    ):
        raise ValueError(
            f"fixed[{key!r}] has the difficulty: give the discrimination, too, and no "
            "intercept."
        )
    if "category_scores" in parameters and lacks_slope:
        raise ValueError(
            f"fixed[{key!r}] has the category_scores: give the discrimination, too."
        )


def _allowed_names(kind, n_dims):
    """Return the names of the parameters that can be fixed."""
    names = {"intercept"}
    if n_dims == 1:
        names |= {"category_scores"} if kind == "nominal" else {"difficulty"}
        names |= set() if kind in WITHOUT_SLOPE else {"discrimination"}
    return names | ({"guessing"} if kind == "3pl" else set())


def _finite(value, name, size):
    array = np.atleast_1d(check_floats(value, name))
    if array.shape != (size,) or not np.isfinite(array).all():
        raise ValueError(f"{name} must be {size} finite number(s), got {value!r}.")
    return array


def _fix(values, is_fixed, items, j, parameters):
    index, count = items.parameter_index(j), items.n_categories[j] - 1
    kind = items.names[j]
    n_slopes = 0 if kind in WITHOUT_SLOPE else items.n_dims
    if kind == "nominal":
        n_slopes = count
    if "discrimination" in parameters:
        values["discrimination"][j] = parameters["discrimination"]
        is_fixed[index[n_slopes - 1]] = True  # of the last answer, if nominal
    if "category_scores" in parameters:
        values["category_scores"][j, : count + 1] = parameters["category_scores"]
        is_fixed[index[:n_slopes]] = True
    thresholds = parameters.get("intercept")
    if "difficulty" in parameters:
        slope = parameters.get("discrimination", np.ones(1))
        difficulty = parameters["difficulty"][None]
        thresholds = intercepts_of([kind], slope[None], difficulty)[0]
    if thresholds is not None:
        values["intercept"][j, :count] = thresholds
        is_fixed[index[n_slopes : n_slopes + count]] = True
    if "guessing" in parameters:
        values["guessing"][j] = parameters["guessing"][0]
        is_fixed[index[-1]] = True
