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
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._checks import warn_caller
from sklearn_mpt._items.item_statistics import ranks_of
from sklearn_mpt._items.items import WITHOUT_SLOPE
from sklearn_mpt._numbers import TINY


class LikelihoodRatio(NamedTuple):
    """Likelihood-ratio test: statistic, degrees of freedom and p-value."""

    statistic: float
    df: int
    p_value: float


def model_fit(model, density, group, rows, weight):
    """Test a model on the moments of complete rows; see `MPTItemResponse.model_fit`."""
    # group : index of the group of the rows.
    n_items = rows.shape[1]
    n_moments = int((model.items.n_categories - 1).sum()) + n_items * (n_items - 1) // 2
    if n_moments > MAX_MOMENTS:
        raise ValueError(
            f"model_fit needs the covariance of {n_moments} moments of {n_items} "
            f"items, more than {MAX_MOMENTS}: take fewer items."
        )
    order = model.items.answer_order(density.joint)
    rows = ranks_of(rows, order)
    with torch_modes():
        fitted = _at_nodes(model, density, group, order)
    m2 = moment_statistic(rows, weight, fitted, by_category=False)
    c2 = (math.nan,) * 2
    if model.items.max_categories > 2:
        c2 = moment_statistic(rows, weight, fitted, by_category=True)
    n_rows = weight.sum()
    return ModelFit(
        m2[0],
        m2[1],
        float(chi2.sf(*m2)),
        rmsea(m2[0], m2[1], n_rows),
        rmsea_interval(m2[0], m2[1], n_rows),
        srmsr(rows, weight, fitted),
        c2[0],
        c2[1],
        float(chi2.sf(*c2)),
        rmsea(c2[0], c2[1], n_rows),
    )


def refuse_priors(model, priors, name):
    """Refuse a model whose fit does not maximise the likelihood."""
    # name : of the model, for the message.
    has_slopes = not set(model.items.names) <= {*WITHOUT_SLOPE}
    given = {
        "slope_prior": priors.slope if has_slopes else None,
        "guessing_prior": priors.guessing if len(model.items.guessing) else None,
    }
    for parameter, value in given.items():
        if value is not None:
            raise ValueError(
                "likelihood_ratio_test compares maxima of the likelihood, but "
                f"{name} has {parameter}={value!r}: fit both models without "
                "priors, or compare their score on held-out rows."
            )


def warn_of_bounds(model, nested):
    """Warn where the nested model is at a bound of the other."""
    n_bounds = len(model.items.guessing) - len(nested.items.guessing)
    if n_bounds > 0:
        warn_caller(
            f"Guessing of {n_bounds} item(s) is at its bound, 0, in nested: the "
            "statistic is then smaller than chi-squared, and p_value is an upper "
            "bound of the probability."
        )


def _at_nodes(model, density, group, order):
    """Return the arrays of a model that the statistics of moments use."""
    # order : of the answers of each item, (d, c).
    items, z, moves = model.items, density.z, model.moves
    owner, free = model.item_of_parameters, model.free_population
    prob = np.take_along_axis(density.prob.numpy(force=True), order[..., None], 1)
    scores = items.scores(density.joint, z).numpy(force=True)
    moved = moves[owner >= 0]
    owner = items.item_of_parameters[moved]
    scores = np.take_along_axis(scores[moved], order[owner][..., None], 1)
    of_z = np.zeros((0, len(z)))
    if len(free):
        deviation = np.sqrt(model.variance[group])
        unit = (z.numpy(force=True)[:, 0] - model.mean[group]) / deviation
        of_z = np.stack([unit**2 - 1, unit / deviation])[free[group]]
    weight = density.log_weight.exp().numpy(force=True)
    n_free = model.n_parameters
    return ModelAtNodes(items, prob, owner, scores * prob[owner], of_z, weight, n_free)


MAX_MOMENTS = 8000  # whose covariance has 512 MB
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


class UnivariateMoments(NamedTuple):
    """Univariate functions of the answers, and their moments at nodes.

    means : means of the functions, (m, s). item_index : the item of each, (m,). cross :
    covariance of each with the score of its item, (m, s). item_covariances : for each
    item the covariances of its functions, (k, k, s). observed : observed means, (m,).
    """

    means: np.ndarray
    item_index: np.ndarray
    cross: np.ndarray
    item_covariances: list
    observed: np.ndarray


def scores_of(prob):
    """Return the mean and the variance of each item's score at nodes; (d, s) each."""
    steps = np.arange(prob.shape[1])
    mean = np.einsum("dcs,c->ds", prob, steps)
    return mean, np.einsum("dcs,c->ds", prob, steps**2) - mean**2


def univariate_moments(prob, n_categories, X, weight, by_category):
    """Return the functions of each item: score, or indicators of all answers but 0."""
    mean, _ = scores_of(prob)
    weight, steps = weight / weight.sum(), np.arange(prob.shape[1])
    parts = []
    for j, count in enumerate(n_categories):
        p = prob[j, :count]
        values = np.eye(count)[1:] if by_category else steps[None, :count]
        means = values @ p
        cross = values @ (p * steps[:count, None]) - means * mean[j]
        covariance = np.einsum("ac,bc,cs->abs", values, values, p)
        covariance -= means[:, None] * means
        observed = values[:, X[:, j].astype(int)] @ weight
        parts.append((means, np.full(len(means), j), cross, covariance, observed))
    means, index, cross, covariances, observed = zip(*parts, strict=True)
    joined = (np.concatenate(part) for part in (means, index, cross))
    return UnivariateMoments(*joined, covariances, np.concatenate(observed))


def covariance_of_moments(univariate, mean, variance, means, node_weight):
    """Return the covariance of univariate and bivariate moments of one row; (m, m)."""
    # It is the covariance over z of the conditional means. If two moments share an
    # item, the mean over z of their conditional covariance is added. univariate :
    # UnivariateMoments. mean, variance : of the score of each item at nodes, (d, s).
    # means : of all moments at nodes, (m, s).
    d, m1 = len(mean), len(univariate.means)
    first, second = np.triu_indices(d, 1)
    weighted = means * node_weight
    total = weighted @ means.T
    centre = weighted.sum(axis=1)
    total -= np.outer(centre, centre)
    moment_of_pair = np.full((d, d), -1)
    pair_index = m1 + np.arange(len(first))
    moment_of_pair[first, second] = moment_of_pair[second, first] = pair_index
    for i in range(d):
        functions_of_item = np.flatnonzero(univariate.item_index == i)
        total[np.ix_(functions_of_item, functions_of_item)] += (
            univariate.item_covariances[i] @ node_weight
        )
        others = np.delete(np.arange(d), i)
        pairs = moment_of_pair[i, others]
        cross = (univariate.cross[functions_of_item] * node_weight) @ mean[others].T
        total[np.ix_(functions_of_item, pairs)] += cross
        total[np.ix_(pairs, functions_of_item)] += cross.T
        of_pairs = (mean[others] * (variance[i] * node_weight)) @ mean[others].T
        total[np.ix_(pairs, pairs)] += of_pairs
    total[pair_index, pair_index] += (variance[first] * variance[second]) @ node_weight
    return total


def derivatives_of_moments(fitted, mean, means, by_category):
    """Return derivatives of all moments in all parameters; (m, p)."""
    # fitted : ModelAtNodes. mean : of the score of each item at nodes, (d, s). means :
    # of all moments at nodes, (m, s).
    owner, weight = fitted.owner, fitted.weight
    d, n_categories = len(mean), fitted.items.n_categories
    steps = np.arange(fitted.slopes.shape[1])
    of_scores = np.einsum("pcs,c->ps", fitted.slopes, steps)  # of the mean scores
    first = (owner == np.arange(d)[:, None]) * (of_scores @ weight)
    if by_category:
        of_answers = fitted.slopes @ weight
        first = [
            (owner == j) * of_answers[:, c]
            for j in range(d)
            for c in range(1, n_categories[j])
        ]
    # pairs: the derivative of one mean score, times the mean score of the other
    cross = ((of_scores * weight) @ mean.T).T  # shape: (d, p)
    one, two = np.triu_indices(d, 1)
    pairs = (owner == one[:, None]) * cross[two] + (owner == two[:, None]) * cross[one]
    of_z = (means * weight) @ fitted.density_scores.T
    return np.column_stack([np.concatenate([first, pairs]), of_z])


def statistic(difference, covariance, derivatives, n_free):
    """Return the quadratic form for one row, and how many moments are determined."""
    # n_free : number of parameters, without those that change nothing, such as
    # rotations. Fewer moments are determined if some parameters change them in the same
    # way.
    white = _whitened(covariance, np.column_stack([difference, derivatives]))
    residual, slopes = white[:, 0], white[:, 1:]
    length = np.linalg.norm(slopes, axis=0)
    basis, sizes, _ = np.linalg.svd(
        slopes / np.maximum(length, TINY), full_matrices=False
    )
    rank = min(n_free, int((sizes**2 > SINGULAR * sizes[0] ** 2).sum()))
    value = residual @ residual - np.sum((basis[:, :rank].T @ residual) ** 2)
    return float(value), rank


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


class ModelAtNodes(NamedTuple):
    """A model at nodes of z.

    items : Items. prob : probabilities of answers, (d, c, s). owner : item of each free
    parameter of items, (p,). slopes : derivatives of the probabilities of its answers,
    (p, c, s). density_scores : derivatives of the log density of z, (f, s). weight :
    weights of the nodes, (s,). n_free : number of parameters, without rotations.
    """

    items: object
    prob: np.ndarray
    owner: np.ndarray
    slopes: np.ndarray
    density_scores: np.ndarray
    weight: np.ndarray
    n_free: int


def moment_statistic(X, weight, fitted, by_category):
    """Return M2 (by_category False) or C2, and its degrees of freedom."""
    items, prob, node_weight = fitted.items, fitted.prob, fitted.weight
    mean, variance = scores_of(prob)
    univariate = univariate_moments(prob, items.n_categories, X, weight, by_category)
    one, two = np.triu_indices(X.shape[1], 1)
    n_rows = weight.sum()
    weight = weight / n_rows
    cross = (X * weight[:, None]).T @ X
    observed = np.concatenate([univariate.observed, cross[one, two]])
    means = np.concatenate([univariate.means, mean[one] * mean[two]])
    covariance = covariance_of_moments(univariate, mean, variance, means, node_weight)
    derivatives = derivatives_of_moments(fitted, mean, means, by_category)
    residual = observed - means @ node_weight
    value, rank = statistic(residual, covariance, derivatives, fitted.n_free)
    df = len(means) - rank
    return (float(n_rows * value), df) if df > 0 else (math.nan, 0)


def srmsr(X, weight, fitted):
    """Return the root mean square of observed less expected correlations of scores."""
    mean, variance = scores_of(fitted.prob)
    second = (mean * fitted.weight) @ mean.T
    second[np.diag_indices(len(mean))] = (variance + mean**2) @ fitted.weight
    centre = mean @ fitted.weight
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
