"""Fits in other units of the columns are the same model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_mpt import MPTLinearVAE, MPTMixture, MPTProbabilisticPCA

N = 80


def numbers(noise):
    """Return columns of one factor, the first of which has this much noise."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, 1))
    return z * [1, 0.7, -0.5, 0.3] + rng.normal(size=(N, 4)) * [noise, 0.5, 1, 0.8]


def with_gaps(X):
    return np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)


def with_binary(X):
    chance = 1 / (1 + np.exp(-2 * X[:, :1]))
    return np.c_[X, np.random.default_rng(2).random((N, 2)) < chance]


AMOUNTS = np.exp(0.5 * numbers(0.3))


def factors(**settings):
    settings = {"noise": "per_feature", "random_state": 0} | settings
    return lambda unit: MPTLinearVAE(1, **settings)


def ppca(**settings):
    return lambda unit: MPTProbabilisticPCA(2, **({"random_state": 0} | settings))


def mixture(**settings):
    """`reg_covar` is in squared units of the columns."""
    settings = {"random_state": 0, "max_iter": 20} | settings
    return lambda unit: MPTMixture(2, reg_covar=1e-6 * unit**2, **settings)


# models in which each column may have a unit of its own, and others
EACH = {
    "factors": factors(),
    "factors, lml": factors(objective="lml"),
    "factors, masks": factors(n_masks=4, max_iter=30),
    "factors, fixed size": factors(mask_rate=2, max_iter=30),
    "factors, pca": factors(init="pca", max_iter=0),
}
ALL = EACH | {
    "ppca": ppca(),
    "ppca, lml": ppca(objective="lml"),
    "ppca, masks": ppca(n_masks=4, max_iter=30),
    "ppca, pca": ppca(init="pca", max_iter=0),
    "mixture, full": mixture(),
    "mixture, tied": mixture(covariance_type="tied"),
    "mixture, diag": mixture(covariance_type="diag"),
    "mixture, low_rank": mixture(covariance_type="low_rank"),
}
TABLES = {
    "gaussian": with_binary(numbers(0.3)),
    "lognormal": AMOUNTS,
}


def assert_same(make, X, scale, shift, tolerance):
    """Compare fits in two units, and their losses; binary columns and 0 have none."""
    has_unit = (X % 1 != 0) & ~np.isnan(X)
    scale = np.where(has_unit.any(0), scale, 1.0)
    Y = X * scale + np.where(has_unit.any(0), shift * scale, 0.0)
    before, after = make(1.0).fit(X), make(scale[0]).fit(Y)
    mask = np.random.default_rng(3).random(X.shape) < 0.5
    log_scale = has_unit * np.log(scale)
    pairs = [
        (
            after.conditional_log_prob(Y, mask) + mask * log_scale,
            before.conditional_log_prob(X, mask),
        ),
        (after.score_samples(Y) + log_scale.sum(1), before.score_samples(X)),
        (
            np.subtract(after.loss_curve_[-1:], log_scale.sum(1).mean()),
            before.loss_curve_[-1:],
        ),
    ]
    for a, b in pairs:
        assert_allclose(a, b, atol=tolerance)


@pytest.mark.filterwarnings("ignore")  # Heywood cases, few epochs
@pytest.mark.parametrize("name", ALL)
def test_powers_of_two_change_nothing(name):
    """They are exact in binary: so are all steps, even where rounding errors grow."""
    X = with_gaps(numbers(1e-6))
    scale = 2.0 ** np.array([-20, 20, 0, 7]) if name in EACH else 2.0**-20
    assert_same(ALL[name], X, np.broadcast_to(scale, 4), 0.0, tolerance=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL)
def test_other_units_change_nothing_but_rounding_errors(name):
    scale = np.array([1e-6, 1e6, 1, 1e3]) if name in EACH else np.full(4, 1e-6)
    assert_same(ALL[name], with_gaps(numbers(0.3)), scale, 4.0, tolerance=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", TABLES)
def test_other_units_of_tables_change_nothing(kind):
    """Amounts have no shift."""
    X, is_number = TABLES[kind], kind == "gaussian"
    likelihood = [kind] * 4 + ["bernoulli"] * (X.shape[1] - 4)
    scale = np.resize([1e-6, 1e6, 1, 1e3], X.shape[1])
    model = factors(likelihood=likelihood, max_iter=4)
    assert_same(model, X, scale, 4.0 * is_number, tolerance=1e-9)
