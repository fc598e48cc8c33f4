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
those out of their bags, or, without bootstrap, those of folds. They are fitted for rows
of which nothing is visible and for those of which all is, and are linear in the
fraction of visible columns between these.

.. [1] R. Ranjan and T. Gneiting, "Combining probability forecasts", Journal of the
   Royal Statistical Society B 72, 2010.
.. [2] N. Meinshausen, "Quantile regression forests", Journal of Machine Learning
   Research 7, 2006.
"""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._fitting.mixture_weights import stacking_weights
from sklearn_mpt._probabilities import drawn_codes

# Factors of standard deviations. What the shapes gain, and what finer factors lose, is
# in benchmarks/RESULTS.rst, "Dependency networks" and "Numbers of the calibration".
SCALES = np.array([0.5, 1.0, 1.5])
# Copies of rows that are used: mean log-densities of as many have a standard error of
# some 0.03.
MAX_COPIES = 1000


class HeldOut(NamedTuple):
    """Rows, and what trees that have not seen them predict.

    x : (n,). mean, variance : of leaves, (n, n_trees). counts : whether a tree has not
    seen the row, bool (n, n_trees). values_near : fraction of the numbers in the leaves
    of these trees that are equal to x, within the resolution, or 0 if the numbers in
    leaves are not used; (n,). visible : fraction of visible columns, (n,). weight :
    (n,).
    """

    x: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    counts: np.ndarray
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

    def mean_of(self, family):
        """Return the weighted sums of expectations; (n,)."""
        expected = family.expect(self.mean, self.variance)
        return (self.weight * expected).sum(axis=1)

    def draw(self, family, choice, uniform):
        """Draw from the components, given noise for the component and the number."""
        chosen = drawn_codes(self.weight, choice[:, None])
        mean, variance = (
            np.take_along_axis(moment, chosen[:, None], axis=1)[:, 0]
            for moment in (self.mean, self.variance)
        )
        return family.draw(uniform, mean, variance)


def _log_sums(log_probs):
    """Return the logarithms of sums of components, (n,); SciPy's function is slower."""
    return torch.logsumexp(torch.from_numpy(log_probs), 1).numpy()


def mixture_of_leaves():
    """Return what the conditional of a forest needs without calibration."""
    weights = np.zeros((2, 1 + len(SCALES)))
    weights[:, 0] = 1.0
    return {"shape_weights": weights, "values": None}


def forest_components(mean, variance, counts, shape_weights):
    """Return the components of forests: those of leaves, and those of `SCALES`.

    mean, variance : of leaves, (n, n_trees). counts : what each tree counts, of this
    shape. shape_weights : of leaves and `SCALES`, (n, 1 + n_scales).
    """
    fraction = counts / counts.sum(axis=1, keepdims=True)
    center = (fraction * mean).sum(axis=1, keepdims=True)
    between = (fraction * (mean - center) ** 2).sum(axis=1, keepdims=True)
    total = (fraction * variance).sum(axis=1, keepdims=True) + between
    # a mixture of some of the trees has a mean of larger variance than that of all
    n_trees = counts.sum(axis=1, keepdims=True)
    added = between / n_trees - between / mean.shape[1]
    means = np.hstack([mean, center.repeat(len(SCALES), 1)])
    variances = np.hstack([variance + added, total * SCALES**2 + added])
    weight = np.hstack([fraction * shape_weights[:, :1], shape_weights[:, 1:]])
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

    near : fractions of the numbers that are equal to x, within the resolution; (n,).
    """
    with np.errstate(divide="ignore"):
        return np.log(near / resolution(min_variance)) + family.log_jacobian(x)


def end_weights(visible):
    """Return the weights of what holds with nothing and with all visible; (2, n)."""
    return np.stack([1 - visible, visible])


def interpolated(ends, visible):
    """Return what is linear in the fraction of visible columns; (n, ...).

    ends : with nothing and with all visible, (2, ...).
    """
    visible = visible.reshape(-1, *[1] * (ends.ndim - 1))
    return (1 - visible) * ends[0] + visible * ends[1]


def fitted_shape_weights(family, held_out, limits, wide, has_values):
    """Return the weights of shapes, with nothing and with all visible; (2, n_shapes).

    Parameters
    ----------
    family : ResidualFamily
    held_out : HeldOut
    limits : tuple of float
        Least mean and variance.
    wide : WideComponent
    has_values : bool
        Whether the numbers in leaves are the last shape.
    """
    x, n_trees = held_out.x, held_out.mean.shape[1]
    moments = held_out.mean, held_out.variance, held_out.counts
    each = forest_components(*moments, np.ones((len(x), 1 + len(SCALES))))
    log_prob = limited(each, limits).log_probs(family, x)
    shapes = [_log_sums(log_prob[:, :n_trees]), *log_prob[:, n_trees:].T]
    if has_values:
        shapes.append(values_log_prob(family, x, held_out.values_near, limits[1]))
    log_probs = wide.add_to_log_prob(np.stack(shapes), x)
    return stacking_weights(log_probs, held_out.weight, end_weights(held_out.visible))
