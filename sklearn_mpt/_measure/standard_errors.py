"""Standard errors of means over draws, their degrees of freedom, and intervals."""

import numpy as np
from scipy.special import ndtri, stdtrit

from sklearn_mpt._checks import check_real

UPPER_PROBABILITY = 0.975  # probability below the upper end of a 95% interval


def contrast_scale(n_drawn, n_all=np.inf):
    r"""Return the factor from deviations from a mean to contrasts.

    The sum of squares of the contrasts of n distinct draws, of N that exist, is an
    unbiased estimate of the variance of their mean. So the factor is

    .. math:: \sqrt{\frac{1 - n / N}{n (n - 1)}},

    0 if all are drawn; NaN for one of several, whose variance is unknown.
    """
    n_drawn, n_all = np.asarray(n_drawn, float), np.asarray(n_all, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (1 - n_drawn / n_all) / n_drawn / (n_drawn - 1)
    squares = np.where(n_drawn == 1, np.nan, squares)
    return np.sqrt(np.where(n_drawn == n_all, 0.0, squares))


def contrasts_of_mean(values, counts, n_all):
    """Return the weighted mean of each column of `values`, and its contrasts."""
    weights = counts / counts.sum()
    mean = weights @ values
    scale = contrast_scale(len(values), n_all) * np.sqrt(len(values) * weights)
    return mean, scale[:, None] * _deviations(values, mean)


def std_error_of_mean(values, n_all=np.inf):
    """Return the standard error of the mean of values along the first axis."""
    lengths = np.linalg.norm(_deviations(values, values.mean(axis=0)), axis=0)
    return contrast_scale(len(values), n_all) * lengths


def _deviations(values, mean):
    return values - np.where(np.isfinite(mean), mean, np.nan)


def degrees_of_sum(variances, degrees):
    """Return degrees of freedom of a sum of independent variance estimates [1]_.

    The result is on the small side: the estimates are used in place of the unknown
    variances, and k estimates of equal variances with f degrees each give about
    ``k * f * f / (f + 2)`` in place of ``k * f``. That is intended, as scores are
    seldom normal.

    References
    ----------
    .. [1] F. E. Satterthwaite, "An approximate distribution of estimates of variance
       components", Biometrics Bulletin 2, 1946.
    """
    spread = np.sum(variances**2 / degrees)
    return variances.sum() ** 2 / spread if spread > 0 else np.inf


def student_quantile(confidence, degrees, name="confidence"):
    """Return half the length of an interval of Student's t, in standard errors."""
    check_real(confidence, name, "neither", 1)
    return _student_ppf(0.5 + 0.5 * confidence, degrees)


def student_factor(degrees):
    """Return by how much to enlarge an estimated standard error."""
    return _student_ppf(UPPER_PROBABILITY, degrees) / ndtri(UPPER_PROBABILITY)


def _student_ppf(probability, degrees):
    """Return `scipy.stats.t.ppf`, without its fixed cost of almost a millisecond."""
    of_normal = np.isinf(degrees)
    return np.where(of_normal, ndtri(probability), stdtrit(degrees, probability))[()]
