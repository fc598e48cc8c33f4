"""Solvers of mixtures: EM on whole rows, and steps of EM on masked rows."""

import math
from functools import reduce
from operator import add

import torch

from sklearn_mpt._fitting.fit_loop import DIVERGENCE, Solver, run
from sklearn_mpt._fitting.line_search import backtrack
from sklearn_mpt._fitting.phases import best_of_runs, best_of_short_runs
from sklearn_mpt._fitting.schedules import falling_size, weight_of_last
from sklearn_mpt._fitting.stopping import Trend, gain_to_come, trend
from sklearn_mpt._mixture.density import Components, MixtureDensity
from sklearn_mpt._mixture.em import m_step, statistics_of_masks, statistics_of_rows
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
        self._known = []  # the last two components, and their statistics of whole rows

    def statistics(self, components):
        """Return the statistics of whole rows; those of the last components are kept.

        They are kept of two, which solvers compare.
        """
        for known, statistics in self._known:
            if known is components:
                return statistics
        density = MixtureDensity(components, self.step_params.layout)
        if self._parts is None:
            self._parts = density.parts(~self.X.isnan())
        total = reduce(
            add,
            (
                statistics_of_rows(
                    density,
                    self.X[part].double(),
                    self.weight[part],
                    1 / self.n_rows,
                    patterns,
                )
                for part, patterns in self._parts
            ),
        )
        self._known = [*self._known[-1:], (components, total)]
        return total

    def masked_statistics(self, components, rows, hidden, inflation):
        """Return the statistics of masked rows, as `statistics_of_masks` does.

        rows : indices of rows, each equally often, (m,). hidden : their hidden entries,
        (m, d). inflation : the factor of each log-probability, (m, 1).
        """
        layout = self.step_params.layout
        density = MixtureDensity(components, layout)
        observed = ~self.X[rows].isnan() & ~hidden
        order = pattern_order(observed[:, layout.gaussian])
        rows, hidden, inflation = rows[order], hidden[order], inflation[order]
        X, weight = self.X[rows], self.weight[rows] / (len(rows) / len(self.X))
        return reduce(
            add,
            (
                statistics_of_masks(
                    density,
                    X[part].double(),
                    weight[part],
                    hidden[part],
                    inflation[part],
                    1 / self.n_rows,
                )
                for part in density.blocks(observed[order])
            ),
        )

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


class MixtureSolver(Solver):
    """Base of the solvers of mixtures: EM on whole rows, and steps on masked rows.

    Parameters
    ----------
    rows : MixtureRows
    starts : sequence of Components
        Parameters to start from. If there are several, each takes `short_epochs` steps
        of EM, and the best is trained on, or the first one if it ends better.
    tol : float
        Gain, in nats per row, below which training ends.
    learning_rate : float
        Size of the first steps with masks, or on a stream.

    Attributes
    ----------
    short_epochs : int
        Number of epochs of each start, before the best is chosen.
    step_delay : int
        Number of steps with masks, or on parts, in which their size hardly falls; see
        `falling_size`.
    """

    short_epochs = 25
    step_delay = 5

    def __init__(self, rows, starts, *, tol, learning_rate=1.0):
        self.rows = rows
        self.starts = starts
        self.tol = tol
        self.learning_rate = learning_rate
        self.loss_curve = []
        self.components = self._start = starts[0]

    @property
    def result(self):
        return self.components

    def init(self, max_iter):
        if len(self.starts) > 1:
            runs = [EM(self.rows, [start], tol=self.tol) for start in self.starts]
            best = best_of_short_runs(runs, min(self.short_epochs, max_iter))
            if best is not runs[0]:
                best = self._unless_first_ends_better(best, runs[0], max_iter)
            self.components = self._start = best.components

    def _unless_first_ends_better(self, best, first, max_iter):
        """Return the run that goes on, so that more starts never end below the first.

        best : that of short runs. first : that of the first start.
        """
        try:
            run(first, max_iter)
        except DIVERGENCE:
            return best
        if best.loss_curve[-1] <= first.loss_curve[-1]:
            return best
        return best_of_runs([best, first], lambda solver: run(solver, max_iter))


class EM(MixtureSolver):
    """EM on whole rows.

    Training ends when the last step gained less than `tol`, and all steps to come are
    expected to gain less.

    Parameters
    ----------
    n_before : int
        Number of steps on earlier parts of a stream.
    """

    def __init__(self, rows, starts, *, n_before=0, **params):
        super().__init__(rows, starts, **params)
        self._n_steps = n_before
        self._gain = 0.0

    def step(self):
        statistics = self.rows.statistics(self.components)
        self.loss_curve.append(-self.rows.value_of(statistics))
        self._start = self.components  # its value is finite
        self.components = self.rows.moved(self.components, statistics)

    def step_on_part(self):
        """Mix the statistics of a part of a stream with those of the model."""
        statistics = self.rows.statistics(self.components)
        value = self.rows.value_of(statistics)
        size = self.learning_rate * falling_size(self._n_steps, delay=self.step_delay)
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


class MaskedEM(MixtureSolver):
    """Base of the solvers whose steps are on masked rows.

    Parameters
    ----------
    draw_masks : callable
        Takes rows (n, d) and `rng`, and returns the arguments of
        `MixtureRows.masked_statistics`.
    rng : numpy.random.Generator
        Source of masks.
    """

    def __init__(self, rows, starts, draw_masks, rng, **params):
        super().__init__(rows, starts, **params)
        self.draw_masks = draw_masks
        self.rng = rng
        self._noise = self._noise_of_fall = 0.0  # standard errors over rows

    def step(self):
        masks = self.draw_masks(self.rows.X, self.rng)
        statistics = self.rows.masked_statistics(self.components, *masks)
        value = self.rows.value_of(statistics)
        variance = float(statistics.square) / self.rows.n_rows - value**2
        noise = math.sqrt(max(0.0, variance) / len(self.rows.X))
        self._noise, self._noise_of_fall = noise, math.hypot(noise, self._noise)
        size = falling_size(len(self.loss_curve), delay=self.step_delay)
        self.components = self.rows.moved(
            self.components, statistics, self.learning_rate * size, are_differences=True
        )
        self.loss_curve.append(-value)


class InitialMaskedEM(MaskedEM):
    """Steps on masked rows until an epoch gains no more than their noise.

    EM on whole rows follows, from the result, or from the start if it is better.
    """

    def terminate(self):
        """Return whether the last epoch gained no more than the noise of its masks.

        The first one is compared with the start on whole rows, without noise.
        """
        curve = self.loss_curve
        if len(curve) > 1:
            return Trend(curve[-2] - curve[-1], self._noise_of_fall).is_flat()
        gain = self._value(self.components) - self._value(self._start)
        return Trend(gain / self.rows.n_rows, self._noise).is_flat()

    def following(self):
        return EM(self.rows, [self._better_than_start()], tol=self.tol)

    def _better_than_start(self):
        """Return the components, or the start if it is better."""
        return max(self.components, self._start, key=self._value)

    def _value(self, components):
        return float(self.rows.statistics(components).value)

    def recover(self):
        """Go back to the start."""
        self.components = self._start

    def close(self):
        """Take a step of EM if training ended with masks, to improve on the start."""
        if self.loss_curve:
            before = self._better_than_start()
            after = self.rows.m_step(before, self.rows.statistics(before))
            self.components = after or before


class AveragedMaskedEM(MaskedEM):
    """Steps on masked rows in all epochs, and the average of their results.

    Parameters
    ----------
    n_iter_no_change : int
        Least number of epochs whose mean loss is compared with that of as many before.

    Attributes
    ----------
    max_epochs : int
        Largest number of epochs. What more of them gain is in benchmarks/RESULTS.rst,
        "Mechanisms".
    """

    max_epochs = 200

    def __init__(self, rows, starts, draw_masks, rng, *, n_iter_no_change, **params):
        super().__init__(rows, starts, draw_masks, rng, **params)
        self.n_iter_no_change = n_iter_no_change
        self._average = None

    @property
    def result(self):
        return self.components if self._average is None else self._average

    def terminate(self):
        curve = self.loss_curve
        self._add_to_average(len(curve))
        if len(curve) < 2 * self.n_iter_no_change:
            return False
        n = len(curve) // 2
        last = trend(curve, n)
        is_settled = last.is_flat(self.tol) and last.noise / math.sqrt(n) < self.tol
        return is_settled or len(curve) >= self.max_epochs

    def _add_to_average(self, n_epochs):
        """Average the components of all epochs; the weights of early epochs fade."""
        weight = weight_of_last(n_epochs, power=1)
        before = self._average or self.components
        mixed = (
            torch.lerp(a, b, weight)
            for a, b in zip(before, self.components, strict=True)
        )
        self._average = Components(*mixed)
