r"""Moderated variances: errors of single texts that borrow from the texts of `fit`.

The variance of the score of a text, estimated from few draws of masks, has a large
error. It is combined with the variances of the texts of `fit`, as in limma [1]_: let
:math:`s_i^2` be an estimate of the variance :math:`V_i` with d degrees of freedom, so
that :math:`d s_i^2 / V_i` has a chi-square distribution, and let the prior of
:math:`V_i` be that of :math:`d_0 s_{0i}^2 / \chi^2_{d_0}`. Then the moderated variance

.. math:: \tilde s_i^2 = \frac{d_0 s_{0i}^2 + d s_i^2}{d_0 + d}

has :math:`d_0 + d` degrees of freedom in Student's t. Here :math:`s_{0i}^2` is in
proportion to a number that is known for each text, its `scale`.

The texts of `fit` are scored by several groups of draws. Antithetic orders are no
independent draws, so their spread within a text is no unbiased estimate of the
variance; the spread between groups gives the factor that corrects it. The estimate from
independent masks is a sum over sizes, and its degrees of freedom follow from how much
it differs between groups.

References
----------
.. [1] G. K. Smyth, "Linear models and empirical Bayes methods for assessing
   differential expression in microarray experiments", Statistical Applications in
   Genetics and Molecular Biology 3, 2004.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import betaln, digamma, polygamma

# The posterior mean of the spread of n texts is a sum of squares over n - 3.
MIN_TEXTS = 4
# Degrees of freedom of the prior at most: more change quantiles by about a millionth.
MAX_DEGREES = 1e6
MIN_DEGREES = 4.0  # of Student's t, whose kurtosis is infinite with fewer


@dataclass(frozen=True)
class Moderation:
    """The prior of the variances of single texts, and the factor of groups of orders.

    Parameters
    ----------
    prior : float
        The usual variance, in units of the scale of a text.
    prior_degrees : float
        Degrees of freedom of the prior.
    factor : float
        The variance of the mean of a group of draws, in units of the moderated one that
        takes its draws as independent; for a usual text.
    factor_of_sums : float
        The same for sums over texts, in which texts with large variances count more.
    degrees : float
        Degrees of freedom of Student's t of a score divided by its moderated error.
    factor_degrees : float
        Degrees of freedom with which the factor is known; inf for independent draws,
        whose factor is 1.
    group : int
        Number of draws in a group.
    degrees_per_draw : float
        Degrees of freedom of an estimate of the variance, for each draw after the
        first.
    """

    prior: float
    prior_degrees: float
    factor: float
    factor_of_sums: float
    degrees: float
    factor_degrees: float
    group: int
    degrees_per_draw: float = 1.0

    def degrees_of(self, n_draws):
        """Return the degrees of freedom of an estimate from a number of draws."""
        return self.degrees_per_draw * (n_draws - 1)

    def factor_of(self, n_orders, factor):
        r"""Return one of the factors for another number of orders than that of a group.

        Let orders of one group have the correlation r, and those of different groups
        none. Then the variance of the mean of n orders, in units of that of one, is
        :math:`v_n = 1/n + r p_n / n^2`, with the number :math:`p_n` of pairs in a
        common group, and the expectation of the estimate :math:`(1 - v_n) / (n - 1)`.
        """
        r = (factor - 1) / (factor + self.group - 1)
        n_groups, rest = divmod(n_orders, self.group)
        n_pairs = n_groups * self.group * (self.group - 1) + rest * (rest - 1)
        variance = 1 / n_orders + r * n_pairs / n_orders**2
        return variance * (n_orders - 1) / (1 - variance)

    def moderate(self, variances, scales, n_draws):
        """Return the moderated variances.

        Parameters
        ----------
        variances : ndarray of shape (n,)
            Variances of means of `n_draws` draws, estimated as if these were
            independent.
        scales : ndarray of shape (n,)
            0 where all orders, or masks, are drawn.
        n_draws : int

        Returns
        -------
        ndarray of shape (n,)
        """
        prior = self.prior, self.prior_degrees
        moderated = _moderate(variances, scales, *prior, self.degrees_of(n_draws))
        return self.factor_of(n_draws, self.factor) * moderated

    def with_factor(self, degrees):
        """Return degrees of freedom with the uncertainty of the factor."""
        rate = 1 / degrees + 1 / self.factor_degrees
        return 1 / rate if rate > 0 else np.inf


def find_moderation(
    totals, variances, scales, n_draws, is_antithetic, degrees_per_draw=1.0
):
    """Return the `Moderation` from texts with several groups of draws each.

    Parameters
    ----------
    totals : ndarray of shape (n_texts, n_groups)
        Scores by each group.
    variances : ndarray of shape (n_texts, n_groups)
        Variances of these, as if the draws of a group were independent.
    scales : ndarray of shape (n_texts, n_groups)
    n_draws : int
        Number of draws in a group.
    is_antithetic : bool
        Whether the draws of a group are not independent.
    degrees_per_draw : float or None
        As in `Moderation`; None estimates it.

    Returns
    -------
    Moderation or None
        None if less than `MIN_TEXTS` texts have a variance.
    """
    pooled, scale = variances.mean(axis=1), scales.mean(axis=1)
    is_random = np.isfinite(pooled) & (pooled > 0) & (scale > 0)
    if is_random.sum() < MIN_TEXTS:
        return None
    totals, variances, scales = (
        array[is_random] for array in (totals, variances, scales)
    )
    pooled, scale = pooled[is_random], scale[is_random]
    n_texts, n_groups = totals.shape
    if degrees_per_draw is None:
        degrees_per_draw = degrees_of_variances(variances) / (n_draws - 1)
    degrees_within = degrees_per_draw * (n_draws - 1)
    prior, prior_degrees = prior_of_variances(pooled / scale, n_groups * degrees_within)
    degrees = min(prior_degrees + degrees_within, n_texts * n_groups * degrees_within)
    factor, of_sums, factor_degrees = 1.0, 1.0, np.inf
    if is_antithetic:
        between = totals.var(axis=1, ddof=1)
        of_sums = between.sum() / pooled.sum()
        moderated = _moderate(variances, scales, prior, prior_degrees, degrees_within)
        # each group against the mean of the others
        deviations = (totals - totals.mean(axis=1, keepdims=True)) / np.sqrt(moderated)
        ratios = deviations.ravel() * np.sqrt(n_groups / (n_groups - 1))
        factor, degrees = scale_of_ratios(ratios, degrees)
        of_estimates = np.log(moderated).var(axis=1, ddof=1).mean()
        factor_degrees = degrees_of_factor(n_texts, n_groups, degrees, of_estimates)
    numbers = prior, prior_degrees, factor, of_sums, degrees, factor_degrees
    return Moderation(*map(float, numbers), n_draws, float(degrees_per_draw))


def _moderate(variances, scales, prior, prior_degrees, degrees):
    total = prior_degrees * prior * scales + degrees * variances
    return total / (prior_degrees + degrees)


def scale_of_ratios(ratios, most_degrees):
    """Fit Student's t around 0 to ratios of deviations and their errors.

    Its degrees of freedom say how much the errors, too, are in error: `most_degrees`
    would be right if variances within and between groups were in one proportion.

    Returns
    -------
    factor, degrees : float
        The squared scale and the degrees of freedom, of the largest likelihood.
    """
    if not ratios.any():
        return 0.0, most_degrees
    squares, least_degrees = ratios**2, min(MIN_DEGREES, most_degrees)

    def loss(logs):
        """Return minus the mean log-density, without constants, and its gradient."""
        degrees, factor = np.exp(logs)
        q = squares / (degrees * factor)
        mean_log, mean_weight = np.log1p(q).mean(), (q / (1 + q)).mean()
        value = (logs.sum() + (degrees + 1) * mean_log) / 2 + betaln(degrees / 2, 0.5)
        of_factor = (1 - (degrees + 1) * mean_weight) / 2
        psi = digamma(degrees / 2) - digamma((degrees + 1) / 2)
        return value, np.array([of_factor + degrees / 2 * (psi + mean_log), of_factor])

    start = np.log([least_degrees, squares.mean()])
    bounds = [np.log([least_degrees, most_degrees]), (None, None)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    degrees, factor = np.exp(found.x)
    return factor, degrees


def degrees_of_factor(n_texts, n_groups, degrees, of_estimates):
    """Return the degrees of freedom with which the factor is known.

    The variance of the logarithm of the factor has two parts. One is that of the scale
    of Student's t with `degrees` degrees of freedom, by its Fisher information. The
    other is that all groups of a text share its variance, which differs from the
    moderated ones. This t takes the logarithm of their ratio to have the variance
    trigamma(degrees / 2), of which the groups do not share what the moderated variances
    differ between them.

    of_estimates : float
        Variance between groups of a text of the logarithm of the moderated variance.
    """
    shared = max(polygamma(1, degrees / 2) - of_estimates, 0)
    of_groups = 2 * (degrees + 3) / degrees / (n_groups - 1)
    return 2 * inverse_trigamma((shared + of_groups) / n_texts)


def degrees_of_variances(variances):
    """Return the degrees of freedom of estimates of the variance of each text.

    variances : ndarray of shape (n_texts, n_estimates). The variance of the logarithm
    of an estimate with d degrees of freedom is trigamma(d / 2). Texts with an estimate
    of 0 are left out; if none is left, there is one degree of freedom.
    """
    positive = variances[(variances > 0).all(axis=1)]
    if not len(positive):
        return 1.0
    return 2 * inverse_trigamma(np.log(positive).var(axis=1, ddof=1).mean())


def prior_of_variances(variances, degrees):
    """Fit the prior to variances by the moments of their logarithms.

    The degrees of freedom of the prior follow from the spread of the logarithms beyond
    that of estimates with `degrees` degrees of freedom. As the spread of few texts has
    a large error, its posterior mean under Jeffreys' prior is taken, which is larger.

    Returns
    -------
    location, degrees : float
    """
    n = len(variances)
    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    spread = np.sum((logs - logs.mean()) ** 2) / (n - 3)
    prior = 2 * inverse_trigamma(spread - polygamma(1, degrees / 2))
    return np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2)), prior


def inverse_trigamma(value):
    """Return x with trigamma(x) = value; large if the value is not positive."""
    most = MAX_DEGREES / 2
    if value <= polygamma(1, most):
        return most
    least = min(1e-3, value**-0.5)  # where trigamma, about 1 / x**2, is at least value
    return np.exp(
        brentq(
            lambda log: polygamma(1, np.exp(log)) - value, np.log(least), np.log(most)
        )
    )
