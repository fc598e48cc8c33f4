r"""Draws and expectations of numbers within bounds.

The distribution of a missing number that is known to lie between a and b is

.. math:: p(x_j \mid x_R, a \le x_j \le b) \propto p(x_j \mid x_R), \quad
    a \le x_j \le b.

Its density is computed at the middles of cells, which divide the interval where it has
mass. So only the conditionals of a model are needed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices
from sklearn_mpt._probabilities import drawn_codes

N_CELLS, N_ZOOMS = 48, 2  # the last cells are 1 / 48^2 of the interval, or wider
MIN_MASS = 1e-4  # of a cell, relative to the largest, where the next cells are
MIN_DENSITY = 1e-3  # at a bound, relative to the expectation: below, it is of no effect


class Conditionals(NamedTuple):
    """What a model says of rows of numbers, NaN where missing.

    draw : callable
        Returns rows, (n, d), without gaps, given rows and their indices in the table.
    log_prob : callable
        Returns the log-densities or log-probabilities of hidden entries, (n, d), given
        rows, their indices in the table, and a mask.
    values : dict of ndarray
        All values that the numbers of a column can have, by its index; other numbers
        have densities.
    """

    draw: Callable
    log_prob: Callable
    values: dict[int, np.ndarray]

    def log_prob_at(self, rows, index, j, points):
        """Return the log-density of column j at points, (n, k), given rows."""
        n_points, n_columns = points.shape[1], rows.shape[1]
        mask = np.arange(n_columns) == j
        log_prob = np.empty(points.shape)
        for chunk in chunk_slices(len(rows), n_columns * n_points, CHUNK_ENTRIES):
            repeated = np.repeat(rows[chunk], n_points, axis=0)
            repeated[:, j] = points[chunk].ravel()
            row = np.repeat(index[chunk], n_points)
            found = self.log_prob(repeated, row, mask)[:, j]
            log_prob[chunk] = found.reshape(-1, n_points)
        return log_prob


class Truncated(NamedTuple):
    """Probabilities of cells or of values of one number in each row.

    points : middles of cells, or values, (n, k). probs : theirs, which add up to 1.
    width : of the cells, (n, 1); 0 for values.
    """

    points: np.ndarray
    probs: np.ndarray
    width: np.ndarray

    @property
    def mean(self):
        return (self.points * self.probs).sum(axis=1)

    def draw(self, rng):
        cell = drawn_codes(self.probs, rng.random((len(self.probs), 1)))
        shift = (rng.random(len(cell)) - 0.5) * self.width[:, 0]
        return np.take_along_axis(self.points, cell[:, None], axis=1)[:, 0] + shift


def truncated(model: Conditionals, rows, index, j, bounds) -> Truncated:
    """Return the distribution of missing numbers of column j within finite bounds.

    rows : shape (n, d). index : theirs in the table. bounds : shape (n, 2).
    """
    if j in model.values:
        values = np.tile(model.values[j], (len(rows), 1))
        log_prob = model.log_prob_at(rows, index, j, values)
        is_within = (values >= bounds[:, :1]) & (values <= bounds[:, 1:])
        probs = _normalised(np.where(is_within, log_prob, -np.inf))
        return Truncated(values, probs, np.zeros((len(rows), 1)))
    low, high = bounds[:, :1], bounds[:, 1:]
    for _ in range(N_ZOOMS):
        width = (high - low) / N_CELLS
        points = low + width * (np.arange(N_CELLS) + 0.5)
        probs = _normalised(model.log_prob_at(rows, index, j, points))
        has_mass = probs > MIN_MASS * probs.max(axis=1, keepdims=True)
        first = has_mass.argmax(axis=1, keepdims=True)
        last = N_CELLS - has_mass[:, ::-1].argmax(axis=1, keepdims=True)
        if (last - first == N_CELLS).all():
            break
        low, high = low + first * width, low + last * width
    return Truncated(points, probs, width)


def _normalised(log_prob):
    """Return probabilities; equal ones where all log-probabilities are -inf."""
    largest = log_prob.max(axis=1, keepdims=True)
    probs = np.exp(log_prob - np.where(np.isfinite(largest), largest, 0.0))
    probs = np.where(np.isfinite(largest), probs, 1.0)
    return probs / probs.sum(axis=1, keepdims=True)


def draw_within(model: Conditionals, rows, drawn, limits, rng):
    """Return rows whose gaps are drawn within limits.

    A number beyond its limits is drawn again, from its distribution within them, and
    then the other gaps of its row are, given this number. Numbers that are within their
    limits, and these, together have the truncated distribution.

    rows : shape (n, d), NaN where missing. drawn : rows without gaps, drawn whatever
    the limits are. limits : `Limits`.
    """
    given, drawn = rows.copy(), drawn.copy()
    index = np.arange(len(rows))
    while len(index):
        of_rows = limits.rows(index)
        is_beyond = (drawn[index] < of_rows.low) | (drawn[index] > of_rows.high)
        is_beyond &= np.isnan(given[index])
        has_any = is_beyond.any(axis=1)
        index, is_beyond = index[has_any], is_beyond[has_any]
        if len(index):
            bounds = limits.rows(index).reached(len(index))
            for j in np.flatnonzero(is_beyond.any(axis=0)):
                again = is_beyond[:, j]
                row = index[again]
                law = truncated(model, given[row], row, j, bounds[again, j])
                given[row, j] = law.draw(rng)
            drawn[index] = model.draw(given[index], index)
    return drawn


def expect_within(model: Conditionals, rows, expected, limits, is_bound):
    """Return expected rows, whose numbers with bounds are expected within these.

    rows : shape (n, d), NaN where missing. expected : rows without gaps, expected
    whatever the bounds are. limits : `Limits`. is_bound : entries with bounds, bool,
    (n, d).
    """
    expected, entries = expected.copy(), is_bound & np.isnan(rows)
    for j in np.flatnonzero(entries.any(axis=0)):
        index = np.flatnonzero(entries[:, j])
        bounds = limits.rows(index).reached(len(index))[:, j]
        matters = _matters(model, rows[index], index, j, expected[index, j], bounds)
        index, bounds = index[matters], bounds[matters]
        if len(index):
            expected[index, j] = truncated(model, rows[index], index, j, bounds).mean
    return expected


def _matters(model, rows, index, j, expected, bounds):
    """Return whether numbers have mass beyond bounds, (n, 2); bool (n,)."""
    low, high = bounds.T
    if j in model.values:
        values = model.values[j]
        return (values.min() < low) | (values.max() > high)
    points = np.column_stack([expected, bounds])
    log_prob = model.log_prob_at(rows, index, j, points)
    has_mass = log_prob[:, 1:].max(axis=1) > log_prob[:, 0] + np.log(MIN_DENSITY)
    return has_mass | (expected < low) | (expected > high)
