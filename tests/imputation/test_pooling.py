"""Estimates of imputed tables, pooled by Rubin's rules."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sklearn_mpt import pool_estimates


def test_pooling_by_hand():
    # B = 1, U = 2, T = 2 + 4/3, r = 2/3, share 2/5, Rubin's df = 2 / .16
    pooled = pool_estimates([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert_allclose(pooled.estimate, 2.0)
    assert_allclose(pooled.std_error, np.sqrt(10 / 3))
    assert_allclose(pooled.df, 12.5)
    assert_allclose(pooled.fraction_missing, (2 / 3 + 2 / 15.5) / (5 / 3))
    low, high = pooled.interval(0.9)
    assert_allclose(high - 2.0, stats.t.ppf(0.95, 12.5) * np.sqrt(10 / 3))
    assert_allclose(2.0 - low, high - 2.0)


def test_degrees_of_freedom_of_few_rows():
    # observed: 11/13 * 10 * 3/5 = 66/13
    pooled = pool_estimates([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], df=10)
    assert_allclose(pooled.df, 1 / (1 / 12.5 + 13 / 66))


def test_estimates_that_agree_miss_nothing():
    pooled = pool_estimates([1.0, 1.0], [4.0, 4.0])
    assert pooled == (1.0, 2.0, np.inf, 0.0)
    assert_allclose(pooled.interval(), 1 + stats.norm.ppf([0.025, 0.975]) * 2)


def test_estimates_that_agree_in_few_rows_have_few_degrees_of_freedom():
    """The formula of Barnard and Rubin at r = 0, which the R package mice computes."""
    pooled = pool_estimates([1.0, 1.0], [4.0, 4.0], df=10)
    assert_allclose(pooled.df, 110 / 13)
    assert_allclose(pooled.fraction_missing, 2 / (110 / 13 + 3))
    nearly = pool_estimates([1.0, 1.0 + 1e-9], [4.0, 4.0], df=10)
    assert_allclose(nearly.fraction_missing, pooled.fraction_missing)


def test_arrays_are_pooled_entry_by_entry():
    rng = np.random.default_rng(0)
    estimates, variances = rng.normal(size=(5, 2, 3)), rng.random((5, 2, 3))
    pooled = pool_estimates(estimates, variances, df=20)
    one = pool_estimates(estimates[:, 1, 2], variances[:, 1, 2], df=20)
    assert_allclose([part[1, 2] for part in pooled], one)
    assert_allclose([end[1, 2] for end in pooled.interval(0.5)], one.interval(0.5))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (([1.0], [1.0]), "at least 2 imputed tables"),
        (([1.0, 2.0], [1.0]), "must have shape of estimates"),
        (([1.0, np.nan], [1.0, 1.0]), "must be finite"),
        (([1.0, 2.0], [1.0, -1.0]), "variances must be at least 0, got -1.0"),
        (([1.0, 2.0], [1.0, 1.0], 0), "df must be a float in the range"),
    ],
)
def test_bad_estimates_are_refused(given, match):
    with pytest.raises(ValueError, match=match):
        pool_estimates(*given)


def test_bad_levels_are_refused():
    with pytest.raises(ValueError, match="level must be a float in the range"):
        pool_estimates([1.0, 2.0], [1.0, 1.0]).interval(95)


def test_infinite_degrees_of_freedom_are_those_of_many_rows():
    estimates, variances = [1.0, 2.0, 1.5], [0.1, 0.2, 0.1]
    expected = pool_estimates(estimates, variances)
    assert pool_estimates(estimates, variances, df=np.inf) == expected
    assert pool_estimates(estimates, variances, df=1e12).df == pytest.approx(
        expected.df, rel=1e-6
    )
    for wrong in (-np.inf, np.nan):
        with pytest.raises(ValueError, match="df"):
            pool_estimates(estimates, variances, df=wrong)


@pytest.mark.parametrize("df", [None, 10, np.inf])
def test_estimates_without_variances_vary_between_tables(df):
    """Their mean has the interval of a sample of that many estimates.

    Student's t of the three, with the variance 1 + 1/3 of one of them.
    """
    estimates = np.array([1.0, 2.0, 4.0])
    pooled = pool_estimates(estimates, np.zeros(3), df)
    error = estimates.std(ddof=1) * np.sqrt(1 + 1 / 3)
    low, high = pooled.interval()
    assert pooled.df == pytest.approx(2)
    half = stats.t.ppf(0.975, 2) * error
    assert (low, high) == pytest.approx((7 / 3 - half, 7 / 3 + half))
    assert pool_estimates([1.0, 1.0], [0.0, 0.0], df).interval() == (1.0, 1.0)
