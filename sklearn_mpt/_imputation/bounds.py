"""Bounds that users set for the numbers that are filled in."""

from collections.abc import Mapping

import numpy as np

from sklearn_mpt._checks import seed_from, spawn_seeds
from sklearn_mpt._imputation.draws import CellLaw, drawn_in_turn, log_prob_at
from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._measure.contract import given_or_parameter, measures_of_columns
from sklearn_mpt._measure.rows import missing_entries, take
from sklearn_mpt._messages import listed, plain
from sklearn_mpt._tables.filling import INTEGERS
from sklearn_mpt._tables.kinds import CATEGORIES
from sklearn_mpt._tables.labels import by_column, labels_of
from sklearn_mpt._tables.reader import TableReader

KINDS_WITHOUT_NUMBERS = {None, "bernoulli", *CATEGORIES}


def read_bounds(min_value, max_value, reader: TableReader, names):
    """Return lower and upper bounds of columns, (d,) each, NaN where none is set."""
    problems: list[str] = []
    bounds = []
    for parameter, value in (("min_value", min_value), ("max_value", max_value)):
        bounds.append(_bounds(parameter, value, reader, names, problems))
    low, high = bounds
    above = np.flatnonzero(low > high)
    if len(above) and not problems:
        problems.append(
            f"min_value {low[above[0]]} is above max_value {high[above[0]]} in "
            f"column(s) {listed([names[j] for j in above])}."
        )
    if problems:
        raise ValueError(" ".join(problems))
    return low, high


def _bounds(parameter, value, reader, names, problems):
    """Return the bounds of one parameter, and add what is wrong to `problems`."""
    bounds = np.full(len(names), np.nan)
    is_number = np.array([_is_of_numbers(reader, j) for j in range(len(names))])
    if value is None:
        return bounds
    try:
        if np.ndim(value) == 0 and not isinstance(value, Mapping):
            return np.where(is_number, _number(value, parameter, parameter), np.nan)
        labels, is_dict = labels_of(value), isinstance(value, Mapping)
        is_numbered = labels is None or labels == list(range(len(labels)))
        if np.ndim(value) == 2 or (is_numbered and not is_dict):
            shape = tuple(map(int, np.shape(value)))
            if shape != (len(names),):
                raise ValueError(
                    f"{parameter} must have a number for each of {len(names)} columns, "
                    f"got shape {shape}. Bounds of single entries are for "
                    "MPTLinearVAE, whose tables hold intervals."
                )
        if labels is None and not is_dict:
            given = dict(enumerate(np.asarray(value).tolist()))
        else:
            given = by_column(value, names, parameter)
    except (TypeError, ValueError) as error:
        problems.append(str(error))
        return bounds
    for j, number in given.items():
        name = f"{parameter} of column {names[j]!r}"
        try:
            bounds[j] = _number(number, name, parameter)
        except ValueError as error:
            problems.append(str(error))
            continue
        if np.isfinite(bounds[j]) and not is_number[j]:
            problems.append(f"{name}: the column holds no numbers.")
    return bounds


def _is_of_numbers(reader, j):
    is_number = reader.kinds[j] not in KINDS_WITHOUT_NUMBERS
    return is_number and not reader.storage[j]["days"]


def _number(value, name, parameter):
    """Return a finite number, or an infinite bound, which is none."""
    try:
        number = np.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = np.nan
    no_bound = {"min_value": -np.inf, "max_value": np.inf}[parameter]
    if not np.isfinite(number) and number != no_bound:
        raise ValueError(f"{name} must be a finite number, got {plain(value)!r}.")
    return number


def unlimited(X, reader: TableReader) -> Limits:
    """Return infinite limits of the numbers of a table; whole ones are on a grid."""
    is_number = np.array([kind == "gaussian" for kind in reader.kinds])
    limits = Limits.from_rows(reader.encode(X), np.ones(len(X)), is_number)
    is_whole = [storage["numbers"] == INTEGERS for storage in reader.storage]
    infinite = np.full(len(is_number), np.inf)
    return limits._replace(
        low=-infinite, high=infinite, step=np.where(is_whole & is_number, 1.0, 0.0)
    )


def filled_within(estimator, X, filled, reader, limits, method, random_state):
    """Return a table that a user's estimator filled in, within limits."""
    # Columns with bounds are drawn, or expected, anew by the conditionals of the
    # estimator, if it has any; draws each given those before. Others move to the
    # nearest bound.
    is_bound = np.isfinite(limits.low) | np.isfinite(limits.high)
    if not is_bound.any():
        return filled
    rows, missing = reader.encode(X), missing_entries(X)
    completed = reader.encode(filled)
    if hasattr(estimator, "conditional_log_prob"):
        measures = measures_of_columns(estimator, rows.shape[1])
        has_density = np.array([measure in (None, "density") for measure in measures])
        columns = np.flatnonzero(is_bound & has_density).tolist()
        low, high = (limits.of_draws() if method == "sample" else limits).reached()

        def table(numbers, index):
            gaps = missing[index] & ~np.isnan(numbers)
            return reader.fill(take(X, index), numbers, gaps)

        def law(given, index, j):
            def log_prob(points, position, mask):
                return estimator.conditional_log_prob(
                    table(points, index[position]), mask
                )

            return CellLaw(
                lambda points: log_prob_at(log_prob, given, j, points),
                np.full(len(given), low[j]),
                np.full(len(given), high[j]),
            )

        if method == "sample":
            state = given_or_parameter(estimator, "random_state", random_state)
            rng = np.random.default_rng(spawn_seeds(state, 1)[0])
            drawn = drawn_in_turn(rows, columns, lambda *of: law(*of).draw(rng))
            drawn = np.where(np.isnan(drawn), np.nan, limits.nearest_existing(drawn))
            again = table(drawn, np.arange(len(rows)))
            again = estimator.impute(again, method=method, random_state=seed_from(rng))
            filled, completed = again, reader.encode(again)
        else:
            for j in columns:
                index = np.flatnonzero(missing[:, j])
                if len(index):
                    completed[index, j] = law(rows[index], index, j).mean
    within = limits.clip(completed)
    return reader.fill(filled, within, missing & is_bound & ~np.isnan(within))
