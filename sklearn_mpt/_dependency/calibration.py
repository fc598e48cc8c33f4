r"""The distribution of a number given a forest, fitted to rows left out of trees.

The mixture of the distributions in the leaves of all trees is wider than the errors of
the forest, because a mean of trees is better than one tree: linear pools of calibrated
distributions are too wide [1]_. It is also too narrow where few columns are visible,
and of the wrong shape for numbers that repeat. So it is one of several shapes with the
same mean:

- ``leaves``: a component with the mean and the variance of the leaf of each tree;
- one for each of `SCALES`: a component with the mean of the forest, and this factor
  times the standard deviation of the mixture over trees;
- ``values``: the numbers in the leaves themselves [2]_, uniform within the resolution,
  if the column is rounded to a step.

The weights of the shapes maximise the log-density of rows that the trees have not seen:
those out of their bags, or, without bootstrap, those of folds. Then all standard
deviations get a factor with which 90% intervals cover 90% of these rows. Both are
fitted for rows of which nothing is visible and for those of which all
is, and are linear in the share of visible columns between these.

.. [1] R. Ranjan and T. Gneiting, "Combining probability forecasts", Journal of the
   Royal Statistical Society B 72, 2010.
.. [2] N. Meinshausen, "Quantile regression forests", Journal of Machine Learning
   Research 7, 2006.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq

from sklearn_mpt._fitting.mixture_weights import stacking_weights
from sklearn_mpt._probabilities import drawn_codes

# Factors of standard deviations. What the shapes gain, and what finer factors lose, is
# in benchmarks/RESULTS.rst, "Dependency networks" and "Numbers of the calibration".
SCALES = np.array([0.25, 0.5, 1.0])
LEVEL = 0.9  # of the intervals whose coverage is calibrated
# Least and largest factor of standard deviations: half and twice the variance. What
# narrower and wider limits change is in benchmarks/RESULTS.rst, too.
SPREADS = 0.5**0.5, 2.0**0.5
# Copies of rows that are used: the coverage of as many has a standard error of 0.01.
MAX_COPIES = 1000


class HeldOut(NamedTuple):
    """Rows, and what trees that have not seen them predict.

    x : (n,). mean, variance : of leaves, (n, n_trees). counts : whether a tree has not
    seen the row, bool (n, n_trees). values_below, values_near : shares of the numbers
    in the leaves of these trees that are below x, and equal to it, within the
    resolution, or 0 if the numbers in leaves are not used; (n,). visible : share of
    visible columns, (n,). weight : (n,).
    """

    x: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    counts: np.ndarray
    values_below: np.ndarray
    values_near: np.ndarray
    visible: np.ndarray
    weight: np.ndarray


class NumberComponents(NamedTuple):
    """Components of each row: means, variances and weights, (n, n_components) each."""

    mean: np.ndarray
    variance: np.ndarray
    weight: np.ndarray

    def log_prob(self, family, x):
        """Return the logarithms of the weighted sums of densities; (n,)."""
        return _log_sums(self.log_probs(family, x))

    def log_probs(self, family, x):
        """Return the logarithms of weighted densities; (n, n_components)."""
        log_prob = family.log_prob(x[:, None], self.mean, self.variance)
        with np.errstate(divide="ignore"):
            return log_prob + np.log(self.weight)

    def cdf(self, family, y):
        """Return the weighted sums of distribution functions of targets; (n,)."""
        prob = family.cdf(y[:, None], self.mean, self.variance)
        return (self.weight * prob).sum(axis=1)

    def mean_of(self, family):
        """Return the weighted sums of expectations; (n,)."""
        expected = family.expect(self.mean, self.variance)
        return (self.weight * expected).sum(axis=1)

    def draw(self, family, choice, uniform):
        """Draw from the components, given noise for the component and the number."""
        chosen = drawn_codes(self.weight, choice[:, None])
        mean, variance = (
            np.take_along_axis(part, chosen[:, None], axis=1)[:, 0]
            for part in (self.mean, self.variance)
        )
        return family.draw(uniform, mean, variance)


def _log_sums(log_probs):
    """Return the logarithms of sums of components, (n,); SciPy's function is slower."""
    return torch.logsumexp(torch.from_numpy(log_probs), 1).numpy()


def mixture_of_leaves():
    """Return what the conditional of a forest needs without calibration."""
    weights = np.zeros((2, 1 + len(SCALES)))
    weights[:, 0] = 1.0
    return {"shape_weights": weights, "spreads": np.ones(2), "values": None}


def forest_components(mean, variance, counts, shape_weights, spread):
    """Return the components of forests: those of leaves, and those of `SCALES`.

    mean, variance : of leaves, (n, n_trees). counts : what each tree counts, of this
    shape. shape_weights : of leaves and `SCALES`, (n, 1 + n_scales). spread : factor of
    standard deviations, (n,).
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    center = (share * mean).sum(axis=1, keepdims=True)
    between = (share * (mean - center) ** 2).sum(axis=1, keepdims=True)
    total = (share * variance).sum(axis=1, keepdims=True) + between
    # a mixture of a part of the trees has a mean of larger variance than that of all
    n_trees = counts.sum(axis=1, keepdims=True)
    added = between / n_trees - between / mean.shape[1]
    means = np.hstack([mean, center.repeat(len(SCALES), 1)])
    variances = np.hstack([variance + added, total * SCALES**2 + added])
    variances *= spread[:, None] ** 2
    weight = np.hstack([share * shape_weights[:, :1], shape_weights[:, 1:]])
    return NumberComponents(means, variances, weight)


def limited(components, limits):
    """Return components whose means and variances are not less than the least ones."""
    min_mean, min_variance = limits
    return components._replace(
        mean=np.maximum(components.mean, min_mean),
        variance=np.maximum(components.variance, min_variance),
    )


def resolution(min_variance):
    """Return the width of the uniform distribution of this variance."""
    return np.sqrt(12 * min_variance)


def cell(family, x, min_variance):
    """Return the ends of what is equal to x within the resolution, as targets."""
    y, half = family.target(x), resolution(min_variance) / 2
    return y - half, y + half


def values_log_prob(family, x, near, min_variance):
    """Return log-densities of the numbers in leaves, uniform within the resolution.

    near : shares of the numbers that are equal to x, within the resolution; (n,).
    """
    with np.errstate(divide="ignore"):
        return np.log(near / resolution(min_variance)) + family.log_jacobian(x)


def end_shares(visible):
    """Return the parts of what holds with nothing and with all visible; (2, n)."""
    return np.stack([1 - visible, visible])


def interpolated(ends, visible):
    """Return what is linear in the share of visible columns; (n, ...).

    ends : with nothing and with all visible, (2, ...).
    """
    visible = visible.reshape(-1, *[1] * (ends.ndim - 1))
    return (1 - visible) * ends[0] + visible * ends[1]


class Calibration:
    """Fits of the weights of shapes, and of factors of their components.

    Parameters
    ----------
    family : ResidualFamily
    held_out : HeldOut
    limits : tuple of float
        Least mean and variance.
    wide : WideComponent
    has_values : bool
        Whether the numbers in leaves are one of the shapes.
    """

    def __init__(self, family, held_out, limits, wide, has_values):
        self.has_values = has_values
        self.family, self.held_out, self.limits = family, held_out, limits
        self.wide = wide
        self.cell = cell(family, held_out.x, limits[1])

    def fit(self):
        """Return weights of shapes, (2, n_shapes), and factors, (2,).

        If the numbers in leaves are used, theirs is the last shape.
        """
        visible = self.held_out.visible
        weights = stacking_weights(
            self._log_probs(), self.held_out.weight, end_shares(visible)
        )
        return weights, self.spreads(interpolated(weights, visible))

    @property
    def end_weights(self):
        """What each row counts at each end, none and all visible; (2, n)."""
        return self.held_out.weight * end_shares(self.held_out.visible)

    def _components(self, shape_weights):
        """Return the components of rows; shape_weights is (n, 1 + n_scales)."""
        held_out = self.held_out
        return forest_components(
            held_out.mean,
            held_out.variance,
            held_out.counts,
            shape_weights,
            np.ones(len(held_out.x)),
        )

    def _log_probs(self):
        """Return log-densities of mixtures of each shape and the wide component."""
        x = self.held_out.x
        each = self._components(np.ones((len(x), 1 + len(SCALES))))
        log_prob = limited(each, self.limits).log_probs(self.family, x)
        n_trees = self.held_out.mean.shape[1]
        shapes = [_log_sums(log_prob[:, :n_trees]), *log_prob[:, n_trees:].T]
        if self.has_values:
            near = self.held_out.values_near
            shapes.append(values_log_prob(self.family, x, near, self.limits[1]))
        return self.wide.add_to_log_prob(np.stack(shapes), x)

    def spreads(self, shape_weights, *, n_rounds=2, tol=0.01):
        """Return the factors with which intervals cover rows as often as they should.

        Each is that of its end given the other, in turn, as rows between the ends have
        a part of both.

        shape_weights : of rows, (n, n_shapes). n_rounds : with a uniform mask rate a
        round has a tenth of the error of the one before. tol : error of a factor.
        """
        components = self._components(shape_weights[:, : 1 + len(SCALES)])
        values_weight = shape_weights[:, 1 + len(SCALES) :].sum(axis=1)
        spreads = np.ones(2)
        for ends in [[0, 1], *[[1], [0]] * n_rounds]:
            entry_weight = self.end_weights[ends].sum(axis=0)

            def excess(spread, ends=ends, entry_weight=entry_weight):
                trial = spreads.copy()
                trial[ends] = spread
                inside = self._inside(components, values_weight, trial)
                return np.average(inside, weights=entry_weight) - LEVEL

            if entry_weight.any():
                spreads[ends] = _root(excess, SPREADS, tol)
        return spreads

    def _inside(self, components, values_weight, spreads):
        """Return the shares of the probabilities of numbers within central intervals.

        A number is known up to the resolution, and its probability is that of as much.
        """
        spread = interpolated(spreads, self.held_out.visible)
        variance = components.variance * spread[:, None] ** 2
        components = limited(components._replace(variance=variance), self.limits)
        below, near = self.held_out.values_below, self.held_out.values_near
        ends = []
        for y, share_below in zip(self.cell, (below, below + near), strict=True):
            prob = components.cdf(self.family, y) + values_weight * share_below
            ends.append(self.wide.add_to_cdf(prob, y))
        low, high = ends
        tail = (1 - LEVEL) / 2
        inside = np.minimum(high, 1 - tail) - np.maximum(low, tail)
        width = np.maximum(high - low, np.finfo(np.float64).tiny)
        return np.clip(inside / width, 0, 1)


def _root(increasing, limits, tol):
    """Return where an increasing function is zero, or the nearest limit."""
    low, high = limits
    increasing = cache(increasing)  # brentq asks for both limits again
    if increasing(low) >= 0:
        return low
    if increasing(high) <= 0:
        return high
    return brentq(increasing, low, high, xtol=tol)
