"""Kinds of columns by their values, against fits of SciPy's distributions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sklearn_mpt import MPTLinearVAE
from sklearn_mpt._tables.kinds_of_values import _held_out


def kind_of(values):
    model = MPTLinearVAE(1, likelihood="auto", max_iter=0)
    return model.fit(values[:, None]).likelihoods_[0]


def held_out(kind, values, fit):
    """Return scores of values by fits to halves, and those of a function."""
    first = np.arange(len(values)) % 2 == 0
    halves = [(first, ~first), (~first, first)]
    expected = np.empty(len(values))
    for train, test in halves:
        expected[test] = fit(values[train], values[test])
    return _held_out(kind, values, halves), expected


def test_kinds_are_scored_by_fits_to_other_values():
    rng = np.random.default_rng(0)
    values = 5 + rng.normal(size=50)

    def normal(train, test):
        return stats.norm.logpdf(test, train.mean(), train.std())

    def lognormal(train, test):
        return normal(np.log(train), np.log(test)) - np.log(test)

    def shares(train, test):
        counts = np.bincount(train.astype(int) // 2, minlength=5) + 0.5
        return np.log(counts / counts.sum())[test.astype(int) // 2]

    assert_allclose(*held_out("gaussian", values, normal), rtol=1e-9)
    assert_allclose(*held_out("lognormal", values, lognormal), rtol=1e-9)
    even = 2.0 * np.r_[0, 4, rng.integers(0, 5, size=50)]
    assert_allclose(*held_out("ordinal", even, shares), rtol=1e-9)
    assert_allclose(  # densities of even numbers become their probabilities
        *held_out("gaussian", even, lambda *halves: normal(*halves) + np.log(2)),
        rtol=1e-9,
    )


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_choice_does_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    amounts = rng.lognormal(size=40)
    columns = [
        10 + rng.normal(size=40),
        amounts,
        0.1 + amounts * (amounts > 1),
        0.1 + amounts * (np.arange(40) == 7),  # constant but for one
        0.1 + (np.arange(40) < 20),
        rng.gamma(2, size=40),
    ]
    for values in columns:
        assert kind_of(unit * values) == kind_of(values)


@pytest.mark.parametrize("rate", [1e3, 1e7])
def test_large_counts_are_poisson(rate):
    counts = np.random.default_rng(0).poisson(rate, size=200).astype(float)

    def poisson(train, test):
        return stats.poisson.logpmf(test, train.mean())

    assert_allclose(*held_out("poisson", counts, poisson), rtol=1e-6)
    assert kind_of(counts) == "poisson"
