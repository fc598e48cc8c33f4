"""Draws of the missing entries of rows, one after the other."""

import numpy as np
from scipy.special import softmax

from sklearn_mpt._matrices import drawn_codes
from sklearn_mpt._numbers import CHUNK_ENTRIES, chunk_slices

N_CELLS, N_ZOOMS = 48, 2  # the last cells are 1 / 48^2 of the interval, or wider
MIN_MASS = 1e-4  # of a cell, relative to the largest, where the next cells are


def drawn_in_turn(numbers, columns, draw):
    """Return rows whose gaps in some columns are drawn, each given those before it."""
    # draw : draws the column j of rows whose index in the table is given.
    drawn = numbers.copy()
    for j in columns:
        index = np.flatnonzero(np.isnan(numbers[:, j]))
        if len(index):
            drawn[index, j] = draw(drawn[index], index, j)
    return drawn


class CellLaw:
    """The law of one number in each row between finite limits, on cells."""

    # log_prob : of points (n, k). low, high : (n,).

    def __init__(self, log_prob, low, high):
        low, high = low[:, None], high[:, None]
        for _ in range(N_ZOOMS):
            self.width = (high - low) / N_CELLS
            self.points = low + self.width * (np.arange(N_CELLS) + 0.5)
            log_probs = log_prob(self.points)
            is_empty = ~np.isfinite(log_probs).any(axis=1, keepdims=True)
            self.probs = softmax(np.where(is_empty, 0.0, log_probs), axis=1)
            has_mass = self.probs > MIN_MASS * self.probs.max(axis=1, keepdims=True)
            first = has_mass.argmax(axis=1, keepdims=True)
            last = N_CELLS - has_mass[:, ::-1].argmax(axis=1, keepdims=True)
            low, high = low + first * self.width, low + last * self.width

    @property
    def mean(self):
        return (self.points * self.probs).sum(axis=1)

    def draw(self, rng):
        cell = drawn_codes(self.probs, rng.random((len(self.probs), 1)))
        shift = (rng.random(len(cell)) - 0.5) * self.width[:, 0]
        return np.take_along_axis(self.points, cell[:, None], axis=1)[:, 0] + shift


def log_prob_at(log_prob, rows, j, points):
    """Return log-densities of column j at points, (n, k), given rows, (n, d)."""
    # log_prob : of hidden entries, (m, d), given rows, the indices of theirs, and a
    # mask, (d,).
    n_points, n_columns = points.shape[1], rows.shape[1]
    mask, found = np.arange(n_columns) == j, np.empty(points.shape)
    for chunk in chunk_slices(len(rows), n_columns * n_points, CHUNK_ENTRIES):
        repeated = np.repeat(rows[chunk], n_points, axis=0)
        repeated[:, j] = points[chunk].ravel()
        index = np.repeat(np.arange(len(rows))[chunk], n_points)
        log_probs = log_prob(repeated, index, mask)[:, j]
        found[chunk] = log_probs.reshape(-1, n_points)
    return found
