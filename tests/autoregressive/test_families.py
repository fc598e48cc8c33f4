"""Distributions by means and variances, against those of SciPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from sklearn_mpt._autoregressive.conditionals import FAMILIES

COUNTS = "poisson", "negative_binomial"


def distribution(kind, mean, variance):
    """Return SciPy's distribution of the target."""
    if kind in ("gaussian", "lognormal"):
        return stats.norm(mean, np.sqrt(variance))
    if kind == "poisson":
        return stats.poisson(mean)
    return stats.nbinom(mean**2 / (variance - mean), mean / variance)


@pytest.mark.parametrize("kind", FAMILIES)
def test_families_are_the_distributions_of_scipy(kind):
    rng, family = np.random.default_rng(0), FAMILIES[kind]
    mean = rng.gamma(3, size=(20, 7))
    variance = mean * (1.5 + rng.random((20, 7)))
    x = rng.poisson(mean[:, :1]) + (0.0 if kind in COUNTS else 0.5)
    y, known = family.target(x), distribution(kind, mean, variance)
    of_target = known.logpmf if kind in COUNTS else known.logpdf
    log_prob = family.log_prob(x, mean, variance)
    assert_allclose(log_prob, of_target(y) + family.log_jacobian(x), rtol=1e-9)
    uniform = rng.random((20, 1))
    drawn = family.target(family.draw(uniform, mean, variance))
    assert_allclose(drawn, known.ppf(uniform), rtol=1e-9)
    expected = family.expect(mean, variance)
    if kind == "lognormal":
        known = stats.lognorm(np.sqrt(variance), scale=np.exp(mean))
    assert_allclose(expected, known.mean(), rtol=1e-9)
