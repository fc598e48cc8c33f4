"""Trends of losses, and gains that are still to come."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import ttest_ind, ttest_rel

from sklearn_mpt._optim.loop import fall_of_lowest, gain_to_come, trend, trend_of_rows


def test_a_trend_is_that_of_a_test_of_two_samples():
    losses = np.random.default_rng(0).normal(size=30)
    fall, noise = trend(losses, 10)
    assert_allclose(fall / noise, ttest_ind(losses[10:20], losses[20:]).statistic)


def test_a_single_loss_has_the_variance_of_the_last_window():
    fall, noise = trend([3.0, 1.0, 2.0], 2)
    assert_allclose([fall, noise], [1.5, np.sqrt(0.5 + 0.5 / 2)])


def test_the_lowest_losses_of_two_windows_are_compared():
    assert fall_of_lowest([5.0, 2.0, 4.0, 1.5, 3.0], 2) == 0.5


@pytest.mark.parametrize("factor", [0.1, 0.9])
def test_gains_to_come_are_a_geometric_series(factor):
    gains = 3.0 * factor ** np.arange(500)
    assert_allclose(gain_to_come(*gains[:2]), gains[2:].sum(), rtol=1e-9)
    assert gain_to_come(1.0, 1.0) == np.inf


def test_the_trend_of_rows_is_that_of_pairs():
    before, now = np.random.default_rng(0).normal(size=(2, 20))
    fall, noise = trend_of_rows(before, now)
    t = fall / noise * np.sqrt(19 / 20)
    assert np.isclose(t, ttest_rel(before, now).statistic)
    assert trend_of_rows(before, before - 0.5) == pytest.approx((0.5, 0.0))
