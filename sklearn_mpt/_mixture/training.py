"""Solvers of mixtures: EM on whole rows, and steps of EM on masked rows."""

import math
from functools import reduce
from operator import add
from typing import NamedTuple

import torch

from sklearn_mpt._fitting.fit_loop import Solver
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.natural_gradient import error_of_groups
from sklearn_mpt._fitting.noisy_steps import NoisySteps
from sklearn_mpt._fitting.phases import best_of_runs
from sklearn_mpt._fitting.schedules import falling_size
from sklearn_mpt._fitting.stopping import gain_to_come
from sklearn_mpt._likelihoods.interval_codes import has_codes
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.em import (
    SufficientStatistics,
    gradient_of,
    m_step,
    statistics_of_masks,
    statistics_of_rows,
)
from sklearn_mpt._mixture.patterns import pattern_order


class MixtureRows:
    """The training rows, and the steps of EM on them.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        NaN where missing.
    weight : Tensor of shape (n,)
    step_params : MStepParams

    Attributes
    ----------
    max_tries : int
        Number of sizes of a step that are tried: it is halved if it leads to invalid
        parameters.
    """

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

    def mean_log_scale(self, log_scale):
        """Return the mean over rows of the sum of these numbers of present columns."""
        return float(self.weight @ (self._numbers(self.X) @ log_scale)) / self.n_rows

    def _numbers(self, X):
        """Return 1.0 where there is an entry with a density, else 0.0; (n, d)."""
        return (~(X.isnan() | has_codes(X))).double()

    def masked_statistics(self, components, rows, mask_index, masks, log_scale):
        """Return the statistics of masked rows, their value, and its standard error.

        Rows that share a mask depend on each other, so the masks are what is drawn. The
        value, in nats per row, is that of columns that are divided by their scales, on
        whose units the error would depend otherwise.

        rows : indices of rows, each equally often, (m,). mask_index : that of the mask
        of each, (m,). masks : bool, (n_masks, d), True where hidden. log_scale :
        logarithms of the scales, (d,).
        """
        layout = self.step_params.layout
        density = MixtureDensity(components, layout)
        observed = ~(self.X[rows].isnan() | masks[mask_index])
        order = pattern_order(observed[:, layout.gaussian])
        rows, mask_index = rows[order], mask_index[order]
        X, weight = self.X[rows], self.weight[rows] / (len(rows) / len(self.X))
        hidden = masks[mask_index] & ~X.isnan()
        inflation = layout.n_features / masks.double().sum(1, keepdim=True)[mask_index]
        parts, values = [], weight.new_zeros(len(masks))
        for part in density.blocks(observed[order]):
            statistics, value = statistics_of_masks(
                density,
                X[part].double(),
                weight[part],
                hidden[part],
                inflation[part],
                1 / self.n_rows,
            )
            parts.append(statistics)
            numbers = inflation[part] * hidden[part] * self._numbers(X[part])
            value = value + numbers @ log_scale
            values.index_add_(0, mask_index[part], weight[part] * value)
        weights = weight.new_zeros(len(masks)).index_add_(0, mask_index, weight)
        mean = float(values.sum()) / self.n_rows
        return reduce(add, parts), mean, error_of_groups(values, weights)

    def value_of(self, statistics):
        """Return the mean value of a row, in nats.

        Raises
        ------
        FloatingPointError
            If it is not finite.
        """
        value = float(statistics.value) / self.n_rows
        if not math.isfinite(value):
            raise FloatingPointError
        return value

    def m_step(self, components, statistics, size=1.0, are_differences=False):
        """Return the components after an M-step, or None; see `m_step`."""
        args = components, statistics, self.n_rows, size
        return m_step(*args, self.step_params, are_differences)

    def moved(self, components, statistics, size=1.0, are_differences=False):
        """Return the components after an M-step whose size leads to a valid mixture.

        Raises
        ------
        FloatingPointError
            If none of `max_tries` sizes does.
        """
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

    Parameters
    ----------
    rows : MixtureRows
    starts : sequence of Components
        Parameters to start from: those of the best, if there are several.
    tol : float
        Gain, in nats per row, below which training ends.
    learning_rate : float
        Size of the first steps on a stream.
    n_before : int
        Number of steps on earlier parts of a stream.
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
    """An M-step on masked rows, in nats per row; see `NoisySteps`.

    gradient, step : in the parameters of `Components`, flat. statistics : of the rows.
    """

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
    """Steps of EM on masked rows, which EM on whole rows may follow.

    Parameters
    ----------
    rows : MixtureRows
    starts : sequence of Components
        As in `EM`.
    draw_masks : callable
        Takes rows (n, d) and `rng`, and returns the arguments of
        `MixtureRows.masked_statistics`.
    params : dict
        Of `NoisySteps`.
    """

    def __init__(self, rows, starts, draw_masks, **params):
        super().__init__(starts[0], **params)
        self.rows, self.starts, self.draw_masks = rows, starts, draw_masks

    def init(self, max_iter):
        best = best_of_starts(self.rows, self.starts, self.tol, max_iter)
        self.point = self._average = best
        layout = self.rows.step_params.layout
        self._log_scale = layout.log_scale(best)
        self.log_scale = self.rows.mean_log_scale(self._log_scale)

    def batches(self):
        return [self.draw_masks(self.rows.X, self.rng)]

    def move(self, point, batch):
        rows = self.rows
        statistics, value, error = rows.masked_statistics(
            point, *batch, self._log_scale
        )
        gradient = gradient_of(point, statistics, rows.n_rows, rows.step_params)
        size, full = backtrack(
            lambda size: rows.m_step(point, statistics, size, are_differences=True),
            rows.max_tries,
        )
        step = torch.full_like(gradient, math.nan)
        if full is not None:
            step = (full.parameters() - point.parameters()) / size
        gain = 0.5 * float(gradient @ step)
        return MaskedStep(value, error, gain, gradient, step, statistics)

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
