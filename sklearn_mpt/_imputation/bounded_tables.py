"""Bounds of the numbers that a user's estimator fills in."""

import numpy as np

from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._imputation.truncation import Conditionals, draw_within, expect_within
from sklearn_mpt._measure.contract import given_or_parameter, measures_of_columns
from sklearn_mpt._measure.rows import missing_entries, take
from sklearn_mpt._seeds import seed_from, spawn_seeds
from sklearn_mpt._tables.filling import INTEGERS
from sklearn_mpt._tables.reader import TableReader


def unlimited(X, reader: TableReader) -> Limits:
    """Return infinite limits of the numbers of a table; whole ones are on a grid."""
    is_number = np.array([kind == "gaussian" for kind in reader.kinds])
    limits = Limits.from_rows(reader.encode(X), is_number)
    is_whole = [storage["numbers"] == INTEGERS for storage in reader.storage]
    infinite = np.full(len(is_number), np.inf)
    return limits._replace(
        low=-infinite, high=infinite, step=np.where(is_whole & is_number, 1.0, 0.0)
    )


def filled_within(estimator, X, filled, reader, limits, method, random_state):
    """Return a table that an estimator filled in, within limits.

    Entries beyond them are drawn or expected anew, if the estimator has conditionals
    and their column a density. Others are moved to the nearest limit.

    filled : what the estimator's `impute` returned for X. reader : `TableReader`.
    limits : `Limits` of columns, or of entries. method, random_state : of `impute`.
    """
    is_bound = np.isfinite(limits.low) | np.isfinite(limits.high)
    if not is_bound.any():
        return filled
    rows, completed = reader.encode(X), reader.encode(filled)
    is_bound = np.broadcast_to(is_bound, rows.shape)
    within = completed
    if hasattr(estimator, "conditional_log_prob"):
        has_density = _has_density(estimator, rows.shape[1])
        of_densities = limits._replace(
            low=np.where(has_density, limits.low, -np.inf),
            high=np.where(has_density, limits.high, np.inf),
        )
        state = given_or_parameter(estimator, "random_state", random_state)
        rng = np.random.default_rng(spawn_seeds(state, 1)[0])
        model = _conditionals(estimator, X, reader, rng)
        if method == "sample":
            draws = of_densities.of_draws()
            within = draw_within(model, rows, completed, draws, rng)
        else:
            is_dense = is_bound & has_density
            within = expect_within(model, rows, completed, of_densities, is_dense)
    within = limits.clip(within)
    return reader.fill(filled, within, np.isnan(rows) & (within != completed))


def _has_density(estimator, n_columns):
    """Return which columns have densities; those of an unknown measure have."""
    measures = measures_of_columns(estimator, n_columns)
    return np.array([measure in (None, "density") for measure in measures])


def _conditionals(estimator, X, reader, rng):
    """Return conditionals of rows of numbers, some of which fill gaps of X."""
    missing = missing_entries(X)

    def table(rows, index):
        return reader.fill(take(X, index), rows, missing[index] & ~np.isnan(rows))

    def draw(rows, index):
        filled = table(rows, index)
        seed = seed_from(rng)
        return reader.encode(estimator.impute(filled, "sample", random_state=seed))

    def log_prob(rows, index, mask):
        return estimator.conditional_log_prob(table(rows, index), mask)

    return Conditionals(draw, log_prob, {})
