r"""Moderated variances: errors of single texts that borrow from the texts of `fit`.

Few orders say little about the variance of the score of a text. The variances of the
texts of `fit` say which variances are usual. Both are combined as in limma [1]_: let
:math:`s_i^2` be an estimate of the variance :math:`V_i` with d degrees of freedom, so
that :math:`d s_i^2 / V_i` has a chi-square distribution, and let the prior of
:math:`V_i` be that of :math:`d_0 s_{0i}^2 / \chi^2_{d_0}`. Then the moderated variance

.. math:: \tilde s_i^2 = \frac{d_0 s_{0i}^2 + d s_i^2}{d_0 + d}

has :math:`d_0 + d` degrees of freedom in Student's t. Here :math:`s_{0i}^2` is in
proportion to a number that is known for each text, its `scale`.

Antithetic orders are no independent draws, so their spread within a text is no unbiased
estimate of the variance. The texts of `fit` are scored by several groups of orders, and
the spread between groups gives the factor that corrects it.

References
----------
.. [1] G. K. Smyth, "Linear models and empirical Bayes methods for assessing
   differential expression in microarray experiments", Statistical Applications in
   Genetics and Molecular Biology 3, 2004.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

FEWEST = 4  # texts: their spread has a posterior mean if there are so many
MOST_FREEDOM = 1e6  # of the prior; more is as good as infinite
EM_STEPS = 100  # each halves the error, or better


@dataclass(frozen=True)
class Moderation:
    """The prior of the variances of single texts, and the factor of groups of orders.

    Parameters
    ----------
    factor : float
        The variance of the mean of a group of orders, in units of the estimate that
        takes its orders as independent; for a usual text.
    factor_of_sums : float
        The same for sums over texts, in which texts with large variances count more.
    factor_freedom : float
        Degrees of freedom with which it is known; inf for orders that are independent.
    group : int
        Number of orders in a group.
    prior : float
        The usual variance, in units of the scale of a text.
    prior_freedom : float
        Degrees of freedom of the prior.
    most_freedom : float
        Degrees of freedom of all estimates from which the prior was found.
    """

    factor: float
    factor_of_sums: float
    factor_freedom: float
    group: int
    prior: float
    prior_freedom: float
    most_freedom: float

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

    def moderate(self, variances, scales, n_orders):
        """Return the moderated variances and their degrees of freedom.

        Parameters
        ----------
        variances : ndarray of shape (n,)
            Variances of means of `n_orders` orders, estimated as if these were
            independent. 0 means that all orders are drawn, and stays 0.
        scales : ndarray of shape (n,)
        n_orders : int

        Returns
        -------
        moderated : ndarray of shape (n,)
        freedom : float
            Without the uncertainty of the factor, which all texts share.
        """
        own, prior = n_orders - 1, self.prior_freedom
        usual = np.where(variances > 0, self.prior * scales, 0.0)
        moderated = (prior * usual + own * variances) / (prior + own)
        freedom = min(prior + own, self.most_freedom)
        return self.factor_of(n_orders, self.factor) * moderated, freedom

    def with_factor(self, freedom):
        """Return degrees of freedom with the uncertainty of the factor."""
        rate = 1 / freedom + 1 / self.factor_freedom
        return 1 / rate if rate > 0 else np.inf


def find_moderation(totals, variances, scales, n_orders, is_antithetic):
    """Return the `Moderation` from texts with several groups of orders each.

    Parameters
    ----------
    totals : ndarray of shape (n_texts, n_groups)
        Scores by each group.
    variances : ndarray of shape (n_texts, n_groups)
        Variances of these, as if the orders of a group were independent.
    scales : ndarray of shape (n_texts,)
    n_orders : int
        Number of orders in a group.
    is_antithetic : bool
        Whether the orders of a group are not independent.

    Returns
    -------
    Moderation or None
        None if less than `FEWEST` texts have a variance.
    """
    pooled = variances.mean(axis=1)
    is_random = np.isfinite(pooled) & (pooled > 0) & (scales > 0)
    if is_random.sum() < FEWEST:
        return None
    totals, pooled, scales = totals[is_random], pooled[is_random], scales[is_random]
    n_texts, n_groups = totals.shape
    freedom = n_groups * (n_orders - 1)
    prior, prior_freedom = prior_of_variances(pooled / scales, freedom)
    factor, of_sums, factor_freedom = 1.0, 1.0, np.inf
    if is_antithetic:
        between = totals.var(axis=1, ddof=1)
        of_sums = between.sum() / pooled.sum()
        ratios = between / pooled
        factor, factor_freedom = factor_of_ratios(ratios, n_groups - 1, freedom)
    return Moderation(
        float(factor),
        float(of_sums),
        float(factor_freedom),
        n_orders,
        float(prior),
        float(prior_freedom),
        float(freedom * n_texts),
    )


def factor_of_ratios(ratios, freedom, other_freedom):
    """Estimate the factor from ratios of two variances, one of each text.

    They have the factor times an F distribution with these degrees of freedom. EM finds
    the maximum of the likelihood.

    Returns
    -------
    factor, freedom : float
        The degrees of freedom are those of the Fisher information.
    """
    factor, both = ratios.mean(), freedom + other_freedom
    for _ in range(EM_STEPS if factor > 0 else 0):
        weights = both / (other_freedom + freedom * ratios / factor)
        factor = np.mean(weights * ratios)
    return factor, freedom * len(ratios) * other_freedom / (both + 2)


def prior_of_variances(variances, freedom):
    """Fit the prior to variances by the moments of their logarithms.

    The spread of the logarithms beyond that of estimates with `freedom` degrees of
    freedom tells the degrees of freedom of the prior. As few texts say little about the
    spread, its posterior mean under Jeffreys' prior is taken, which is larger.

    Returns
    -------
    location, freedom : float
    """
    n = len(variances)
    logs = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)
    spread = np.sum((logs - logs.mean()) ** 2) / (n - 3)
    prior = 2 * inverse_trigamma(spread - polygamma(1, freedom / 2))
    return np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2)), prior


def inverse_trigamma(value):
    """Return x with trigamma(x) = value; large if the value is not positive."""
    most = MOST_FREEDOM / 2
    if value <= polygamma(1, most):
        return most
    least = min(1e-3, value**-0.5)  # where trigamma, about 1 / x**2, is at least value
    return np.exp(
        brentq(
            lambda log: polygamma(1, np.exp(log)) - value, np.log(least), np.log(most)
        )
    )
