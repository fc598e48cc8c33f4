"""Solvers of mixtures: EM on whole rows, and steps of EM on masked rows."""

import math
from functools import reduce
from operator import add
from typing import NamedTuple

import torch

from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.em import (
    SufficientStatistics,
    expected_derivatives,
    gradient_of,
    m_step,
    statistics_of_gradient,
    statistics_of_rows,
)
from sklearn_mpt._mixture.patterns import pattern_order
from sklearn_mpt._numbers import CHUNK_BYTES, chunk_slices
from sklearn_mpt._optim.loop import Solver, best_of_runs, gain_to_come
from sklearn_mpt._optim.masks import masked_sums
from sklearn_mpt._optim.natural import error_of_groups
from sklearn_mpt._optim.steps import NoisySteps, backtrack, falling_size


class MixtureRows:
    """The training rows, and the steps of EM on them."""

    max_tries = 20

    def __init__(self, X, weight, step_params):
        # Rows with the same gaps share matrices, so they are made neighbours.
        order = pattern_order(~X[:, step_params.layout.gaussian].isnan())
        self.X, self.weight = X[order], weight[order]
        self.n_rows = float(self.weight.sum())
        self.step_params = step_params
        self._parts = None  # blocks of rows, with their patterns

    def statistics(self, components):
        """Return the statistics of whole rows."""
        density = MixtureDensity(components, self.step_params.layout)
        if self._parts is None:
            self._parts = density.parts(~self.X.isnan())
        statistics = (
            statistics_of_rows(
                density,
                self.X[part].double(),
                self.weight[part],
                1 / self.n_rows,
                patterns,
            )
            for part, patterns in self._parts
        )
        return reduce(add, statistics)

    def rows(self, index):
        """Return some rows and their weights."""
        return self.X[index].double(), self.weight[index]

    def masked_statistics(self, components, pairs):
        """Return the statistics of masked rows, and sums of their values by mask."""
        layout, hidden = self.step_params.layout, pairs.masks[pairs.of_mask]
        observed = ~(self.X[pairs.rows].isnan() | hidden)
        order = pattern_order(observed[:, layout.gaussian])
        hidden = hidden[order]
        pairs = pairs._replace(rows=pairs.rows[order], of_mask=pairs.of_mask[order])

        def density_of(*params):
            return MixtureDensity(Components(*params, *components[4:]), layout)

        density = density_of(*components[:4])
        blocks = density.blocks(observed[order])
        chunks = ((part, hidden[part]) for part in blocks)
        scores = masked_sums(density_of, components[:4], pairs, self.rows, chunks)
        scale = self.n_rows / scores.by_mask[1].sum()
        *gradient, of_locations = (scale * part for part in scores.gradient)
        locations = of_locations, torch.zeros_like(of_locations)
        if layout.likelihood is not None:
            derivatives = (
                expected_derivatives(density, *self.rows(part), 1 / self.n_rows)
                for part in chunk_slices(len(self.X), density.row_bytes, CHUNK_BYTES)
            )
            of_prior, information = map(sum, zip(*derivatives, strict=True))
            locations = of_locations + of_prior, information
        return statistics_of_gradient(components, gradient, locations), scores.by_mask

    def value_of(self, statistics):
        """Return the mean value of a row, in nats."""
        value = float(statistics.value) / self.n_rows
        if not math.isfinite(value):
            raise FloatingPointError
        return value

    def m_step(self, components, statistics, size=1.0, are_differences=False):
        """Return the components after an M-step, or None; see `m_step`."""
        args = components, statistics, self.n_rows, size
        return m_step(*args, self.step_params, are_differences)

    def moved(self, components, statistics, size=1.0, are_differences=False):
        """Return the components after an M-step whose size leads to a valid mixture."""
        _, candidate = backtrack(
            lambda size: self.m_step(components, statistics, size, are_differences),
            self.max_tries,
            size,
        )
        if candidate is None:
            raise FloatingPointError
        return candidate


def best_of_starts(rows, starts, tol, max_iter):
    """Train each of several starts by EM, and return the components of the best."""
    if len(starts) == 1:
        return starts[0]
    runs = [EM(rows, [start], tol=tol) for start in starts]
    return best_of_runs(runs, max_iter).components


class EM(Solver):
    """EM on whole rows.

    Training ends when the last step gained less than `tol`, and all steps to come are
    expected to gain less.
    """

    def __init__(self, rows, starts, *, tol, learning_rate=1.0, n_before=0):
        self.rows, self.starts = rows, starts
        self.tol, self.learning_rate = tol, learning_rate
        self.loss_curve = []
        self.components = self._start = starts[0]
        self._n_steps, self._gain = n_before, 0.0

    @property
    def result(self):
        return self.components

    def init(self, max_iter):
        best = best_of_starts(self.rows, self.starts, self.tol, max_iter)
        self.components = self._start = best

    def step(self):
        statistics = self.rows.statistics(self.components)
        self.loss_curve.append(-self.rows.value_of(statistics))
        self._start = self.components  # its value is finite
        self.components = self.rows.moved(self.components, statistics)

    def step_on_part(self):
        """Mix the statistics of a part of a stream with those of the model."""
        statistics = self.rows.statistics(self.components)
        value = self.rows.value_of(statistics)
        size = self.learning_rate * falling_size(self._n_steps, delay=1)
        self.components = self.rows.moved(self.components, statistics, size)
        self.loss_curve.append(-value)

    def terminate(self):
        if len(self.loss_curve) < 2:
            return False
        before, self._gain = self._gain, self.loss_curve[-2] - self.loss_curve[-1]
        remaining_gain = gain_to_come(before, self._gain)
        if remaining_gain == math.inf:
            remaining_gain = abs(self._gain)
        return self._gain < self.tol and remaining_gain < self.tol

    def recover(self):
        """Go back to the last components whose value is finite."""
        self.components = self._start


class MaskedStep(NamedTuple):
    """An M-step on masked rows, in nats per row; see `NoisySteps`."""

    value: float
    error: float
    gain: float
    gradient: torch.Tensor
    step: torch.Tensor
    statistics: SufficientStatistics

    @property
    def is_finite(self):
        return math.isfinite(self.value) and bool(self.step.isfinite().all())


class MaskedEM(NoisySteps):
    """Steps of EM on masked rows, which EM on whole rows may follow."""

    def __init__(self, rows, starts, source, **params):
        super().__init__(starts[0], **params)
        self.rows, self.starts, self.source = rows, starts, source

    def init(self, max_iter):
        best = best_of_starts(self.rows, self.starts, self.tol, max_iter)
        self.point = self._average = best

    def batches(self):
        rows = torch.arange(len(self.rows.X), device=self.rows.X.device)
        return [self.source.pairs(rows, self.rng)]

    def move(self, point, batch):
        rows = self.rows
        statistics, by_mask = rows.masked_statistics(point, batch)
        value, total = by_mask.sum(1)
        gradient = gradient_of(point, statistics, rows.n_rows, rows.step_params)
        size, full = backtrack(
            lambda size: rows.m_step(point, statistics, size, are_differences=True),
            rows.max_tries,
        )
        step = torch.full_like(gradient, math.nan)
        if full is not None:
            step = (full.parameters() - point.parameters()) / size
        gain = 0.5 * float(gradient @ step)
        error = error_of_groups(*by_mask)
        return MaskedStep(float(value / total), error, gain, gradient, step, statistics)

    def moved(self, point, move, size):
        return self.rows.moved(point, move.statistics, size, are_differences=True)

    def flat(self, move):
        return move.gradient, move.step

    def mixed(self, point, other, weight):
        pairs = zip(point, other, strict=True)
        mixed = Components(*(torch.lerp(a, b, weight) for a, b in pairs))
        form = self.rows.step_params.layout.form
        return mixed._replace(covariances=form.covariances_of(*form.free(mixed), mixed))

    def following(self):
        return EM(self.rows, [self.point], tol=self.tol)
