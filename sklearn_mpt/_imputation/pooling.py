"""Estimates from several imputed tables, pooled by Rubin's rules."""

from __future__ import annotations

from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from numpy.typing import ArrayLike

from sklearn_mpt._checks import (
    FLOATS,
    check_finite,
    check_floats,
    check_real,
    check_shape,
)
from sklearn_mpt._measure.curve import student_quantile
from sklearn_mpt._tables.frames import aligned, labels_of


class PooledEstimate(NamedTuple):
    """Result of `pool_estimates`: an estimate pooled over several imputed tables.

    All fields are floats, or arrays of the shape of one estimate; a Series or DataFrame
    of pandas if that is one.

    Parameters
    ----------
    estimate : float, ndarray, Series or DataFrame
        Mean of the estimates.
    std_error : float, ndarray, Series or DataFrame
        Standard error of the estimate, including the error from missing values.
    df : float, ndarray, Series or DataFrame
        Degrees of freedom of Student's t.
    fraction_missing : float, ndarray, Series or DataFrame
        Fraction of the information that is lost by missing values.

    Examples
    --------
    >>> from sklearn_mpt import PooledEstimate
    >>> pooled = PooledEstimate(2.0, 0.5, float("inf"), 0.2)
    >>> [round(end, 2) for end in pooled.interval(0.95)]
    [1.02, 2.98]
    """

    estimate: Any
    std_error: Any
    df: Any
    fraction_missing: Any

    def interval(self, level: float = 0.95) -> tuple:
        """Return the lower and the upper end of the interval of this level.

        Parameters
        ----------
        level : float, default=0.95
            Probability that such an interval contains the true value.

        Returns
        -------
        low, high : float, ndarray, Series or DataFrame
            Ends of the interval, by Student's t with `df` degrees of freedom.
        """
        half_width = student_quantile(level, self.df, "level") * self.std_error
        low, high = self.estimate - half_width, self.estimate + half_width
        return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


def pool_estimates(
    estimates: ArrayLike, variances: ArrayLike, df: float | None = None
) -> PooledEstimate:
    r"""Pool estimates from several imputed tables by Rubin's rules.

    Parameters
    ----------
    estimates : array-like of shape (n_imputations,) or (n_imputations, ...)
        An estimate, or an array of them, from each table. Entries of Series,
        DataFrames and dicts are found by their labels, whose order may differ.
    variances : array-like of the same shape
        Their squared standard errors, each computed as if its table were complete.
    df : float, default=None
        Degrees of freedom that an estimate would have without missing values, such as
        ``n_samples - 2`` for a slope. None and infinity mean that there are many: if
        there are few, intervals are too short.

    Returns
    -------
    pooled : PooledEstimate
        A named tuple of `estimate`, `std_error`, `df` and `fraction_missing`, with a
        method ``interval(level)``. They have the labels of the first estimate, if it is
        a Series or DataFrame of pandas.

    Raises
    ------
    ValueError
        If there are fewer than two estimates, shapes or sets of labels differ, or
        variances are negative.

    See Also
    --------
    MPTImputer : ``transform_multiple`` makes the tables.

    Notes
    -----
    With m estimates, their variance B and the mean U of `variances`, the squared
    standard error is :math:`T = U + (1 + 1/m) B` [1]_. With
    :math:`r = (1 + 1/m) B / U`, the degrees of freedom are

    .. math:: \nu_m = (m - 1) (1 + 1/r)^2,

    or if `df` is given [2]_, with :math:`\lambda = r / (1 + r)`,

    .. math:: \left(\frac{1}{\nu_m} + \frac{1}{\nu_{obs}}\right)^{-1}, \qquad
        \nu_{obs} = \frac{df + 1}{df + 3} \, df \, (1 - \lambda).

    The fraction of missing information is :math:`(r + 2 / (\nu + 3)) / (1 + r)`. So it
    is above 0 with few degrees of freedom, even if all tables have the same estimate.
    If all `variances` of an estimate are 0, only the variance between tables is left,
    with m - 1 degrees of freedom.

    References
    ----------
    .. [1] D. B. Rubin, "Multiple imputation for nonresponse in surveys", Wiley, 1987.
    .. [2] J. Barnard and D. B. Rubin, "Small-sample degrees of freedom with multiple
       imputation", Biometrika 86, 1999.

    Examples
    --------
    >>> from sklearn_mpt import pool_estimates
    >>> pooled = pool_estimates([1.0, 1.2, 1.1], [0.04, 0.05, 0.04], df=100)
    >>> round(pooled.estimate, 3), round(pooled.std_error, 3)
    (1.1, 0.238)
    >>> low, high = pooled.interval(0.95)
    >>> round(low, 2), round(high, 2)
    (0.61, 1.59)
    """
    estimates, variances, labels = _checked(estimates, variances)
    if isinstance(df, FLOATS) and df == np.inf:
        df = None
    if df is not None:
        check_real(df, "df", "neither")
    n = len(estimates)
    mean, within = estimates.mean(axis=0), variances.mean(axis=0)
    between = (1 + 1 / n) * estimates.var(axis=0, ddof=1)
    total = within + between
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(total > 0, between / total, 0.0)
        degrees = np.where(fraction > 0, (n - 1) / fraction**2, np.inf)
        if df is not None:
            observed = (df + 1) / (df + 3) * df * (1 - fraction)
            # without variances within tables their degrees of freedom do not matter
            observed = np.where(within > 0, observed, np.inf)
            degrees = 1 / (1 / degrees + 1 / observed)
    missing = fraction + (1 - fraction) * 2 / (degrees + 3)
    results = mean, np.sqrt(total), degrees, missing
    if np.ndim(mean) == 0:
        results = tuple(map(float, results))
    return PooledEstimate(*(labels + result for result in results))


def _checked(estimates, variances):
    """Return estimates and variances as arrays, and zeros with labels of pandas."""
    given = {"estimates": _by_table(estimates), "variances": _by_table(variances)}
    lists = [values for values in given.values() if isinstance(values, list)]
    labelled = (one for values in lists for one in values if labels_of(one) is not None)
    first = next(labelled, None)
    names = [labels_of(first, axis) for axis in (0, 1)]
    for parameter, values in given.items():
        if isinstance(values, list):
            how = names, parameter, "first estimate"
            values = [aligned(one, *how) for one in values]
        given[parameter] = check_floats(values, parameter)
        check_finite(given[parameter], parameter)
    estimates, variances = given.values()
    if estimates.ndim == 0 or len(estimates) < 2:
        raise ValueError(
            "estimates must be those of at least 2 imputed tables, got shape "
            f"{estimates.shape}."
        )
    check_shape(variances, "variances", estimates.shape, "of estimates")
    if (variances < 0).any():
        raise ValueError(f"variances must be at least 0, got {variances.min()}.")
    return estimates, variances, 0.0 * first if hasattr(first, "iloc") else 0.0


def _by_table(values):
    """Return a list with the estimates of each table, if they may have labels."""
    if not is_into_dataframe(values):
        return list(values) if isinstance(values, list | tuple) else values
    if hasattr(values, "iloc"):
        return [row for _, row in values.iterrows()]
    return list(nw.from_native(values).iter_rows(named=True))
