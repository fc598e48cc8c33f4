"""Densities: the maths of fitted models, on tensors.

A density holds fitted parameters and knows no estimator. Rows are tensors (n, d), NaN
where missing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._integration.integrals import (
    conditionals_by_difference,
    draw_latent,
    effective_number,
    integrate_average,
    integrate_conditionals,
    integrate_log_prob,
    refine,
    refine_mixtures,
    rows_of,
)
from sklearn_mpt._integration.quadrature import (
    NODES,
    WEIGHTS,
    mean_and_covariance,
    mixture_nodes,
    moments,
)
from sklearn_mpt._likelihoods import Likelihood
from sklearn_mpt._numbers import CHUNK_ENTRIES, FLOAT_BYTES, chunk_slices

N_TENSORS = 3  # over rows, nodes and features, in memory while rows are scored
# Candidates for draws of z: around all posteriors together, and from the prior.
DRAW_POINTS, DRAW_PRIOR_POINTS = 256, 32
# Error of means of z and of standardised features by importance sampling.
AVERAGE_TOLERANCE = 0.05
# Error of an average, over 1 plus its size, from which on it comes with a warning.
MAX_AVERAGE_ERROR = 0.2
# Draws with fewer effective candidates come with a warning.
MIN_CANDIDATES = 10
# Conditionals with a larger error, in nats, are computed as differences of likelihoods.
MAX_CONDITIONAL_ERROR = 0.2
# Largest inverse density at the mean of a standardised number. It bounds the width of
# the normal distribution whose nodes are taken.
MAX_INVERSE_DENSITY = 10.0
# Largest error of the sum of the weights of these nodes, which is 1 for a normal one.
MAX_WEIGHT_ERROR = 0.2


def as_tensor(array, device):
    """Copy an array to the device, floats as float64."""
    dtype = bool if array.dtype == bool else np.float64
    return torch.from_numpy(np.array(array, dtype=dtype, order="C")).to(device)


def as_view(array, device):
    """Return a tensor for reading, without a copy where possible."""
    dtype = np.float32 if array.dtype == np.float32 else np.float64
    array = np.require(array, dtype, ["C"])
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array).to(device)


class _Writable:
    """A view of a read-only array that torch takes without a warning."""

    def __init__(self, array):
        address, _ = array.__array_interface__["data"]
        self._array = array  # keeps the memory
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (address, False),
        }


@contextmanager
def torch_modes(with_grad=False):
    """Set torch's modes in this thread, and restore them afterwards."""
    before = torch.is_grad_enabled()
    try:
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            np.errstate(),
        ):
            torch.set_grad_enabled(with_grad)
            yield
    finally:
        torch.set_grad_enabled(before)


class Density(ABC):
    """The density of a fitted model."""

    row_bytes: int  # memory that scoring a row takes

    @abstractmethod
    def lml(self, X):
        """Return log p(present entries), and its standard error; (n,) each.

        Where it is by importance sampling, also the effective number of points.
        """

    @abstractmethod
    def conditional_log_prob(self, X, mask):
        """Return log p(x_j | x_R) of hidden entries, else 0.0; (n, d).

        mask : bool, of shape (1 or n, d).
        """

    def is_open(self, X):
        """Return which entries have no known value, bool (n, d)."""
        return X.isnan()

    @abstractmethod
    def expect(self, X):
        """Return E[x | present entries]; (n, d)."""

    def complete(self, X, columns, counts, averaged, function):
        """Return what fills gaps, by kinds of columns.

        That is `expect`, (n, d), which holds for other columns than the next; the
        `average` of a function in the columns `averaged`; and log-probabilities of all
        categories of the missing entries of `columns`, (n, sum of counts).

        columns : the columns of categories with gaps, (c,). counts : their numbers of
        categories.
        """
        hidden = X.isnan()
        has_gaps = hidden.any(0)
        average = X[:, averaged]
        if has_gaps[averaged].any():
            average = self.average(X, averaged, function)
        has_gaps[columns] = has_gaps[averaged] = False
        filled = self.expect(X) if has_gaps.any() else X
        if not columns:
            return filled, average, X[:, :0]
        codes = [np.arange(count) for count in counts]
        return filled, average, self._log_prob_of_values(X, columns, codes)

    def average(self, X, columns, function):
        """Return E[f(x_j) | present entries] of missing, standardised numbers; (n, c).

        The nodes are those of a normal distribution with the mean of a number, and with
        the same density there. They are weighted by the densities of the number. If the
        sum of the weights is not near 1, as with several modes, f of the mean is taken.

        columns : columns of numbers, int, (c,). function : of arrays (..., n, c).
        """
        hidden, means = X.isnan(), X.clone()
        means[:, columns] = torch.where(hidden, self.expect(X), X)[:, columns]
        log_peak = self.conditional_log_prob(means, hidden)
        std = (-log_peak).exp().clamp(max=MAX_INVERSE_DENSITY) / math.sqrt(2 * math.pi)
        log_peak = -(math.sqrt(2 * math.pi) * std).log()

        def values_at(points):
            return X.new_tensor(function(points[:, columns].cpu().numpy()))

        total = sums = 0.0
        for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
            points = torch.where(hidden, means + node * std, X)
            log_prob = self.conditional_log_prob(points, hidden)
            log_ratio = log_prob - log_peak + 0.5 * node**2
            weights = weight * log_ratio[:, columns].exp()
            total, sums = total + weights, sums + weights * values_at(points)
        is_accurate = (total - 1).abs() < MAX_WEIGHT_ERROR
        return torch.where(is_accurate, sums / total, values_at(means))

    def log_prob_at(self, X, columns, points):
        """Return log-densities of missing numbers at points; (n, number of points).

        columns : columns of numbers, a list. points : arrays with those of each column,
        in the units of X.
        """
        return self._log_prob_of_values(X, columns, points)

    def _log_prob_of_values(self, X, columns, values):
        """Return log-probabilities of missing entries if they had given values.

        values : arrays with those of each of `columns`. Returns (n, number of values).
        """
        hidden = X.isnan()
        n_values = max(map(len, values))
        rows = X.repeat(n_values, 1, 1)
        for j, of_column in zip(columns, values, strict=True):
            index = np.minimum(np.arange(n_values), len(of_column) - 1)
            rows[:, hidden[:, j], j] = X.new_tensor(of_column[index])[:, None]
        mask = hidden.repeat(n_values, 1)
        log_prob = self.conditional_log_prob(rows.flatten(0, 1), mask)
        log_prob = log_prob.reshape(rows.shape)
        pairs = zip(columns, values, strict=True)
        return torch.cat([log_prob[: len(v), :, j] for j, v in pairs]).T

    @abstractmethod
    def draw(self, X, rng):
        """Draw x given the present entries; (n, d)."""


class LatentDensity(Density):
    """The density of a fitted model of continuous latent variables z."""

    def latent_mean(self, X):
        """Return E[z | present entries]; (n, k)."""
        return self.latent_moments(X)[0]

    @abstractmethod
    def latent_moments(self, X):
        """Return mean (n, k), covariance (n, k, k) of z given the present entries."""

    @abstractmethod
    def decode(self, Z):
        """Return E[x | z], for Z of shape (n, k); (n, d)."""


def unit_attributes(likelihood, X, weight=None):
    """Return fitted attributes: the units of rows, and which columns are constant."""
    shift, scale, constant = likelihood.units(X, weight)
    return {"_shift": shift, "_scale": scale, "_constant": np.flatnonzero(constant)}


def units_of_locations(likelihood, shift, scale):
    """Return shift and scale of the locations, given those of the columns."""
    return (
        likelihood.to_locations(torch.from_numpy(array)).numpy()
        if np.ndim(array)
        else array
        for array in (shift, scale)
    )


class Units(NamedTuple):
    """The shift of each column, and one scale or that of each, that standardise rows.

    shift, scale : tensors of shape (d,) or (). standardised : how a likelihood
    standardises rows.
    """

    shift: torch.Tensor
    scale: torch.Tensor
    standardised: Callable = Likelihood.standardised

    @classmethod
    def from_attributes(cls, fitted, device, likelihood=Likelihood):
        """Return those of `unit_attributes`."""
        arrays = (np.asarray(fitted[name]) for name in ("_shift", "_scale"))
        tensors = (as_tensor(array, device) for array in arrays)
        return cls(*tensors, likelihood.standardised)

    @property
    def log_scale(self):
        return self.scale.log()

    def mean_log_scale(self, X, weight=None):
        """Return the mean over rows of the sum of `log_scale` over present entries."""
        weight = np.ones(len(X)) if weight is None else weight
        weight = as_tensor(weight, X.device)
        counts = sum(
            weight[part] @ (~X[part].isnan()).double()
            for part in chunk_slices(*X.shape, CHUNK_ENTRIES)
        )
        return float((counts * self.log_scale).sum() / weight.sum())

    def standardise(self, X):
        return self.standardised(X, self.shift, self.scale)

    def restore(self, X):
        return self.scale * X + self.shift


class IntegratedDensity(LatentDensity):
    """A density whose integrals over z are sums over nodes.

    Parameters
    ----------
    joint : object
        Joint distribution of z and standardised rows, as `integrals` asks for it,
        with a `likelihood`, ``location(z)``, `n_dims`, the number of latent variables,
        and `width`, the largest number of values that are computed for a node.
    units : Units
    scoring : Accuracy
        Of likelihoods and averages.
    predicting : Accuracy
        Of conditionals. Those that stay unsure are differences of likelihoods.
    seed : tuple of int
        Of quasi-random points.
    """

    def __init__(self, joint, units, scoring, predicting, seed):
        self.joint = joint
        self.seed = seed
        self.units = units
        self.scoring = scoring
        self.predicting = predicting
        by_points = scoring._replace(tolerance=AVERAGE_TOLERANCE)
        self.averaging = scoring if scoring.is_quadrature else by_points

    @property
    def row_bytes(self):
        return FLOAT_BYTES * N_TENSORS * self.scoring.n_nodes * self.joint.width

    def lml(self, X):
        rows = self._rows(X)
        value, error, random_error = self._estimate(
            integrate_log_prob, rows, self.scoring
        )
        n_seen = rows.observed.sum(1)
        value = value - (rows.observed * self.units.log_scale).sum(1)
        value = torch.where(n_seen > 0, value, 0.0)
        if self.scoring.is_quadrature:
            return value, torch.where(error > self.scoring.tolerance, error, 0.0)
        n_effective = effective_number(random_error)
        return value, torch.where(n_seen > 0, error, 0.0), n_effective

    def conditional_log_prob(self, X, mask):
        rows = self._rows(X, mask)
        return self._in_units(rows, self._conditionals(rows, self.predicting))

    def _conditionals(self, rows, accuracy):
        value, error, _ = self._estimate(integrate_conditionals, rows, accuracy)
        largest = (
            accuracy.tolerance if accuracy.is_quadrature else MAX_CONDITIONAL_ERROR
        )
        inaccurate = (error > largest).nonzero()
        if len(inaccurate) == 0:
            return value
        accuracy = self.scoring if accuracy.is_quadrature else accuracy.finest()
        integrate = partial(self._estimate, integrate_log_prob, accuracy=accuracy)
        for row_index, feature in (part.T for part in inaccurate.split(len(value))):
            entries = row_index, feature
            difference, difference_error = conditionals_by_difference(
                rows, entries, integrate
            )
            better = difference_error < error[row_index, feature]
            value[row_index, feature] = torch.where(
                better, difference, value[row_index, feature]
            )
        return value

    def _in_units(self, rows, log_prob):
        """Return log-probabilities of hidden entries in the units of X, else 0.0."""
        is_target = rows.present & ~rows.observed
        return torch.where(is_target, log_prob - self.units.log_scale, 0.0)

    def latent_mean(self, X):
        return self._average(lambda z: z, X, "Means of latent variables")

    def latent_moments(self, X):
        averages = self._average(moments, X, "Moments of latent variables")
        return mean_and_covariance(averages, self.joint.n_dims)

    def expect(self, X):
        kind = self.joint.likelihood
        is_needed = kind.to_means(X.isnan())
        average = self._average(self._mean, X, "Expected values", is_needed)
        return self._with_open_entries(X, self._fill(average))

    def is_open(self, X):
        return self.joint.likelihood.is_open(X)

    def _with_open_entries(self, X, expected):
        """Return expected rows; open entries are given what X tells of them."""
        is_open = self.is_open(X) & ~X.isnan()
        index = is_open.any(1).nonzero()[:, 0]
        if not len(index):
            return expected

        def average(rows, rule, model):
            def mean(z):
                return self.joint.likelihood.within(rows.X[:, None], model.location(z))

            return integrate_average(mean, rows, rule, model)

        accuracy = self.averaging.without_shared()
        mean = self._estimate(average, self._rows(X[index]), accuracy)[0]
        within = expected.index_copy(0, index, self.units.restore(mean))
        return torch.where(is_open, within, expected)

    def decode(self, Z):
        return self._fill(self._mean(Z))

    def _fill(self, mean):
        return self.units.restore(self.joint.likelihood.fill(mean))

    def draw(self, X, rng):
        rows = self._rows(X)
        z = self._draw_latent(rows, rng)
        uniform = X.new_tensor(rng.random(tuple(X.shape)))
        kind, location = self.joint.likelihood, self.joint.location(z)
        return self.units.restore(kind.within(rows.X, location, uniform))

    def _draw_latent(self, rows, rng):
        """Draw z given what is observed, by importance resampling; (n, k)."""
        n_rows, n_dims = len(rows.X), self.joint.n_dims
        if not rows.observed.any():
            return rows.X.new_tensor(rng.normal(size=(n_rows, n_dims)))
        posteriors = rows.posteriors or self.joint.propose(rows)
        counts = [DRAW_POINTS // len(posteriors)] * len(posteriors)
        counts.append(DRAW_PRIOR_POINTS)
        points = rows.X.new_tensor(rng.normal(size=(n_rows, sum(counts), n_dims)))
        nodes = mixture_nodes(points.split(counts, 1), posteriors)
        level = rows.X.new_tensor(rng.random((n_rows, 1)))
        z, n_effective = draw_latent(rows, nodes, level, self.joint)
        few = n_effective < MIN_CANDIDATES
        if few.any():
            warn_caller(
                f"Draws for {int(few.sum())} of {n_rows} rows rest on as few as "
                f"{float(n_effective.min()):.2g} effective points: the posterior of "
                "the latent variables is hard to draw from."
            )
        return z

    def _rows(self, X, mask=None):
        return rows_of(self.units.standardise(X), mask)

    def _mean(self, z):
        return self.joint.likelihood.mean(self.joint.location(z))

    def _average(self, latent_function, X, name, is_needed=None):
        """Return E[f(z) | present entries]; (n, p)."""
        function, rows = partial(integrate_average, latent_function), self._rows(X)
        value, _, error = self._estimate(function, rows, self.averaging)
        if not self.averaging.is_quadrature:
            if is_needed is not None:
                error = torch.where(is_needed, error, 0.0)
            _warn_if_uncertain(name, error.amax(1))
        return value

    def _estimate(self, function, rows, accuracy):
        """Refine a function of rows, rule and joint distribution; see `refine`."""
        if not accuracy.is_quadrature:
            return refine_mixtures(function, rows, accuracy, self.joint)
        return refine(
            lambda rule, index: function(rows.take(index), rule, self.joint),
            accuracy.rules(),
            accuracy.tolerance,
        )


def _warn_if_uncertain(name, error):
    is_uncertain = error > MAX_AVERAGE_ERROR
    if is_uncertain.any():
        warn_caller(
            f"{name} of {int(is_uncertain.sum())} of {len(error)} rows are uncertain "
            f"by up to {float(error.max()):.2g} of 1 plus their size: the posterior of "
            "the latent variables is hard to integrate over."
        )
