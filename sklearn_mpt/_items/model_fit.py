r"""Fit of a whole model: to the moments of single items and of pairs, and to others.

Let e be the observed less the expected moments of N rows, :math:`\Xi` the covariance of
the moments of one row, and :math:`\Delta` the derivatives of the moments in the
parameters. Then

.. math:: M_2 = N e^\top \bigl(\Xi^{-1} - \Xi^{-1} \Delta (\Delta^\top \Xi^{-1}
    \Delta)^{-1} \Delta^\top \Xi^{-1} \bigr) e .

Moments are :math:`E[x_i]` and :math:`E[x_i x_j]`; the statistic is M2 for two answers
[1]_ and M2* for more [2]_. C2 uses the probabilities of answers instead of
:math:`E[x_i]` [3]_.

References
----------
.. [1] A. Maydeu-Olivares and H. Joe, "Limited information goodness-of-fit testing in
   multidimensional contingency tables", Psychometrika 71, 2006.
.. [2] L. Cai and M. Hansen, "Limited-information goodness-of-fit testing of
   hierarchical item factor models", British Journal of Mathematical and Statistical
   Psychology 66, 2013.
.. [3] L. Cai and S. Monroe, "A new statistic for evaluating item response theory models
   for ordinal data", CRESST Report 839, 2014.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._numbers import TINY


class LikelihoodRatio(NamedTuple):
    """Likelihood-ratio test: statistic, degrees of freedom and p-value."""

    statistic: float
    df: int
    p_value: float


def model_fit(model, density, group, rows, weight, *, max_moments=8000):
    """Test a model on the moments of complete rows; see `MPTItemResponse.model_fit`."""
    # group : index of the group of the rows. max_moments : their covariance has 512 MB.
    items, n_items = model.items, rows.shape[1]
    n_moments = int((items.n_categories - 1).sum()) + n_items * (n_items - 1) // 2
    if n_moments > max_moments:
        raise ValueError(
            f"model_fit needs the covariance of {n_moments} moments of {n_items} "
            f"items, more than {max_moments}: take fewer items."
        )
    order = items.answer_order(density.joint)
    rows = ranks_of(rows, order)
    z, free, is_item = density.z, model.free_population, model.item_of_parameters >= 0
    with torch_modes():
        prob = np.take_along_axis(density.prob.numpy(force=True), order[..., None], 1)
        scores = torch.cat(density.joint.scores(items.codes(z), z)).numpy(force=True)
    # derivatives of probabilities in free parameters, and of log densities of z
    moves = model.moves[is_item]
    owner = items.item_of_parameters[moves]
    slopes = np.take_along_axis(scores[moves], order[owner][..., None], 1) * prob[owner]
    of_z = np.zeros((0, len(z)))
    if len(free):
        deviation = np.sqrt(model.variance[group])
        unit = (z.numpy(force=True)[:, 0] - model.mean[group]) / deviation
        of_z = np.stack([unit**2 - 1, unit / deviation])[free[group]]
    node_weight = density.log_weight.exp().numpy(force=True)
    fitted = prob, node_weight, owner, slopes, of_z, model.n_parameters
    # univariate functions of answers, (m, c): scores, and indicators of all but 0
    steps, c2 = np.arange(items.max_categories), (math.nan,) * 2
    each = np.arange(n_items)
    m2 = moment_statistic(rows, weight, each, np.tile(steps, (n_items, 1)), *fitted)
    if items.max_categories > 2:
        of_item, answer = np.nonzero(steps[1:] < items.n_categories[:, None])
        values = np.eye(len(steps))[answer + 1]
        c2 = moment_statistic(rows, weight, of_item, values, *fitted)
    n_rows = weight.sum()
    return ModelFit(
        *m2,
        float(chi2.sf(*m2)),
        rmsea(*m2, n_rows),
        rmsea_interval(*m2, n_rows),
        srmsr(rows, weight, prob, node_weight),
        *c2,
        float(chi2.sf(*c2)),
        rmsea(*c2, n_rows),
    )


# Relative variance below which a moment follows from others, or a parameter changes
# moments in a way in which others do.
SINGULAR = 1e-12


class ModelFit(NamedTuple):
    """Fit of a model; fields with c2 are NaN for items with two answers."""

    m2: float
    df: int
    p: float
    rmsea: float
    rmsea_interval: tuple[float, float]
    srmsr: float
    c2: float
    df_c2: int | float
    p_c2: float
    rmsea_c2: float


def scores_of(prob):
    """Return the mean and the variance of each item's score at nodes; (d, s) each."""
    steps = np.arange(prob.shape[1])
    mean = np.einsum("dcs,c->ds", prob, steps)
    return mean, np.einsum("dcs,c->ds", prob, steps**2) - mean**2


def moment_statistic(
    X, weight, item, values, prob, node_weight, owner, slopes, of_z, n_free
):
    """Return M2 or C2, and its degrees of freedom."""
    # item, values : univariate functions of answers: the item of each, (m,), and its
    # values, (m, c). prob : probabilities of answers at nodes, (d, c, s). owner : item
    # of each free parameter of items, (p,). slopes : derivatives of the probabilities
    # of its answers, (p, c, s). of_z : those of the log density of z, (f, s). n_free :
    # number of parameters, without those that change nothing, such as rotations.
    n_rows, (d, c, _), m = weight.sum(), prob.shape, len(item)
    weight, codes = weight / n_rows, X.astype(int)
    one, two = np.triu_indices(d, 1)
    mean, variance = scores_of(prob)
    of_item = prob[item]
    first = np.einsum("mc,mcs->ms", values, of_item)
    means = np.concatenate([first, mean[one] * mean[two]])
    # residuals
    shares = np.stack([np.bincount(x, weight, c) for x in codes.T])
    pairs = (X * weight[:, None]).T @ X
    observed = np.concatenate([(values * shares[item]).sum(1), pairs[one, two]])
    centre = means @ node_weight
    residual = observed - centre
    # Their covariance is that over z of the conditional means. If two moments share an
    # item, the mean over z of their conditional covariance is added.
    covariance = (means * node_weight) @ means.T - np.outer(centre, centre)
    within = (values * (of_item @ node_weight)) @ values.T
    within -= (first * node_weight) @ first.T
    covariance[:m, :m] += (item[:, None] == item) * within
    cross = np.einsum("mc,mcs->ms", values * np.arange(c), of_item) - first * mean[item]
    cross = (cross * node_weight) @ mean.T  # shape: (m, d)
    is_one, is_two = (item[:, None] == part for part in (one, two))
    cross = is_one * cross[:, two] + is_two * cross[:, one]
    covariance[:m, m:] += cross
    covariance[m:, :m] += cross.T
    number = np.zeros((d, d), dtype=int)  # of the moment of each pair
    number[one, two] = number[two, one] = m + np.arange(len(one))
    for i in range(d):
        others = np.delete(np.arange(d), i)
        with_i = np.ix_(number[i, others], number[i, others])
        weighted = mean[others] * (variance[i] * node_weight)
        covariance[with_i] += weighted @ mean[others].T
    both = np.arange(m, len(means))
    covariance[both, both] += (variance[one] * variance[two]) @ node_weight
    # derivatives of all moments in all parameters: for pairs that of one mean score,
    # times the mean score of the other
    of_first = (item[:, None] == owner) * (values @ (slopes @ node_weight).T)
    of_scores = np.einsum("pcs,c->ps", slopes, np.arange(c))
    product = mean @ (of_scores * node_weight).T  # shape: (d, p)
    of_pairs = (owner == one[:, None]) * product[two]
    of_pairs += (owner == two[:, None]) * product[one]
    of_means = (means * node_weight) @ of_z.T
    derivatives = np.column_stack([np.concatenate([of_first, of_pairs]), of_means])
    white = _whitened(covariance, np.column_stack([residual, derivatives]))
    residual, derivatives = white[:, 0], white[:, 1:]
    length = np.maximum(np.linalg.norm(derivatives, axis=0), TINY)
    basis, sizes, _ = np.linalg.svd(derivatives / length, full_matrices=False)
    # fewer moments are determined if some parameters change them in the same way
    rank = min(n_free, int((sizes**2 > SINGULAR * sizes[0] ** 2).sum()))
    df = len(means) - rank
    if df <= 0:
        return math.nan, 0
    value = residual @ residual - np.sum((basis[:, :rank].T @ residual) ** 2)
    return float(n_rows * value), df


def _whitened(covariance, columns):
    """Multiply columns by a root of the inverse of a covariance."""
    try:
        return solve_triangular(np.linalg.cholesky(covariance), columns, lower=True)
    except np.linalg.LinAlgError:  # moments that follow from others
        values, vectors = np.linalg.eigh(covariance)
        is_positive = values > SINGULAR * values[-1]
        return (vectors[:, is_positive] / np.sqrt(values[is_positive])).T @ columns


def rmsea(value, df, n_rows):
    """Return the root mean square error of approximation."""
    if df <= 0:
        return math.nan
    return math.sqrt(max(value / df - 1, 0.0) / (n_rows - 1))


def rmsea_interval(value, df, n_rows, level=0.9):
    """Return the limits of an interval, by the noncentral chi-squared distribution."""
    if df <= 0:
        return math.nan, math.nan

    def limit(probability):
        def excess(centre):
            return ncx2.cdf(value, df, centre) - probability

        if excess(0.0) <= 0:
            return 0.0
        high = max(4 * value, 10.0)
        while excess(high) > 0:
            high *= 2
        return math.sqrt(brentq(excess, 0.0, high) / (df * (n_rows - 1)))

    return limit(0.5 + level / 2), limit(0.5 - level / 2)


def srmsr(X, weight, prob, node_weight):
    """Return the root mean square of observed less expected correlations of scores."""
    mean, variance = scores_of(prob)
    second = (mean * node_weight) @ mean.T
    second[np.diag_indices(len(mean))] = (variance + mean**2) @ node_weight
    centre = mean @ node_weight
    expected = _correlation(second - np.outer(centre, centre))
    weight = weight / weight.sum()
    deviation = X - weight @ X
    deviation[:, (X == X[0]).all(axis=0)] = 0.0  # without errors of rounding
    observed = _correlation((deviation * weight[:, None]).T @ deviation)
    pairs = np.triu_indices(len(mean), 1)
    return float(np.sqrt(np.mean((observed - expected)[pairs] ** 2)))


def _correlation(covariance):
    """Return correlations, NaN of what is constant."""
    variance = np.diagonal(covariance)
    unit = 1 / np.sqrt(np.where(variance > 0, variance, np.nan))
    return covariance * unit * unit[:, None]
