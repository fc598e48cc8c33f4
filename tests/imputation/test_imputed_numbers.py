"""Which numbers MPTImputer fills in: limits, levels, grids, moments of transforms."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from sklearn_mpt import MPTImputer


def left_skewed_months():
    counts = [2, 1, 1, 2, 8, 20, 36, 88, 144, 64, 28, 6]
    month = np.repeat(np.arange(1.0, 13), counts)
    wind = 40 + 10 * np.random.default_rng(0).normal(size=400)
    frame = pd.DataFrame({"month": month, "wind": wind})
    frame.loc[::5, "month"] = np.nan
    return frame


def test_means_and_draws_of_months_are_months():
    gaps = left_skewed_months()
    imputer = MPTImputer(max_models=3, random_state=0).fit(gaps)
    assert imputer.transform(gaps)["month"].between(1, 12).all()
    imputer = clone(imputer).set_params(method="sample").fit(gaps)
    drawn = imputer.transform(gaps)["month"]
    assert drawn.isin(range(1, 13)).all()
    draws, seen = drawn[gaps["month"].isna()], gaps["month"].dropna()
    error = seen.std() / np.sqrt(len(draws))
    assert_allclose(draws.mean(), seen.mean(), atol=3 * error)


def test_heavy_tails_are_not_filled_in_far_outside():
    """A table with an exact linear relation is extended a little beyond its range."""
    x = np.arange(40.0)
    table = pd.DataFrame({"x": x, "y": 2 * x + 0.01 * np.sin(x)})
    table.loc[[39, 20], "y"] = np.nan
    filled = MPTImputer(random_state=0).fit_transform(table)["y"]
    assert_allclose(filled[[39, 20]], [78, 40], atol=0.5)
    rng = np.random.default_rng(0)
    heavy = np.exp(2 * rng.normal(size=(200, 3)) + rng.normal(size=(200, 1)))
    gaps = np.where(rng.random(heavy.shape) < 0.2, np.nan, heavy)
    filled = MPTImputer(max_models=4, random_state=0).fit_transform(gaps)
    assert (filled.max(axis=0) <= np.nanmax(gaps, axis=0) + np.nanstd(gaps, 0)).all()
    assert filled.min() > 0


def test_a_density_is_at_most_one_over_the_step_of_the_numbers():
    """Here two columns of tens are equal, and a density may be as narrow as it can."""
    x = np.random.default_rng(0).integers(0, 50, size=100) * 10.0
    table = np.column_stack([x, x])
    imputer = MPTImputer(max_models=6, random_state=0).fit(table)
    log_prob = imputer.estimator_.conditional_log_prob(table, np.array([True, False]))
    assert log_prob[:, 0].max() <= -np.log(10)
    assert log_prob[:, 0].max() > -np.log(10) - 0.5
    most = np.nanmax(imputer.selection_["log_prob"])  # NaN of trees, which do not gain
    assert most <= np.log(x.std() / 10) + 1e-9


def test_bounds_of_users_replace_limits_of_what_was_seen():
    """A line through positive numbers goes on below zero if a bound lets it."""
    x = np.arange(60.0)
    gaps = np.column_stack([x, np.where(x < 10, np.nan, 3 * (x - 9.5))])
    row = np.array([[0.0, np.nan]])
    bounds = [{}, {"min_value": -np.inf}, {"min_value": 5.0}]
    found = [
        MPTImputer(max_models=6, random_state=0, **of).fit(gaps).transform(row)[0, 1]
        for of in bounds
    ]
    assert_allclose(found[:2], [0.75, -28.5], atol=1)
    assert 5 <= found[2] < 10


@pytest.mark.parametrize("max_models", [2, 5])
def test_draws_of_a_row_are_joint(max_models):
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(np.zeros(3), 0.8 + 0.2 * np.eye(3), 2000)
    gaps = z.copy()
    gaps[:1000, :2] = np.nan
    imputer = MPTImputer(max_models=max_models, method="sample", random_state=0)
    drawn = imputer.fit(gaps).transform(gaps)
    found, error = np.cov(drawn[:1000].T), 4 * np.sqrt(2 / 1000)
    assert_allclose(found, np.cov(z[1000:].T), atol=2 * error)


def test_parts_that_add_up_are_filled_in_by_the_others():
    """Percentages add up to 100, up to .06."""
    parts = np.random.default_rng(0).dirichlet([4, 3, 2, 6, 1], 300) * 100
    is_hidden = np.zeros(parts.shape, bool)
    is_hidden[np.arange(150), np.arange(150) % 5] = True
    gaps = np.where(is_hidden, np.nan, parts)
    filled = MPTImputer(random_state=0).fit_transform(gaps)
    assert np.abs(filled.sum(axis=1) - 100).max() < 0.06


def test_totals_are_filled_in_by_the_sums_of_their_parts():
    X = np.exp(np.random.default_rng(0).normal(size=(300, 4)))
    X = np.column_stack([X, X.sum(axis=1)])
    gaps = X.copy()
    gaps[:60, 4] = np.nan
    error = MPTImputer(random_state=0).fit_transform(gaps)[:60, 4] - X[:60, 4]
    assert np.abs(error).max() < 1e-6 * X[:, 4].std()


def test_a_number_far_outside_of_what_was_seen_costs_tens_of_nats():
    """A left-skewed column, whose transform is convex, has an outlier to the right."""
    numbers = 100 - np.exp(np.random.default_rng(0).normal(size=(200, 2)))
    model = MPTImputer(max_models=3, random_state=0).fit(numbers).estimator_
    outlier = np.array([[1e4, 99.0]])
    log_prob = model.conditional_log_prob(outlier, np.array([True, False]))
    assert -100 < log_prob[0, 0] < -10


@pytest.mark.parametrize("value", [0.0, 12.5])
def test_draws_have_a_value_that_many_rows_share_as_often_as_it_is_hidden(value):
    rng, n = np.random.default_rng(0), 1000
    z = rng.normal(size=n)
    is_shared = rng.random(n) < np.where(z < 0, 0.8, 0.2)
    amount = value + np.where(is_shared, 0.0, np.exp(2 + z + rng.normal(size=n)))
    is_gap = rng.random(n) < 0.5
    gaps = pd.DataFrame({"z": z, "amount": np.where(is_gap, np.nan, amount)})
    imputer = MPTImputer(max_models=3, n_imputations=5, random_state=0).fit(gaps)
    tables = imputer.transform_multiple(gaps)
    for group in is_gap & (z < 0), is_gap & (z >= 0):
        drawn = np.mean([table["amount"][group] == value for table in tables])
        share = (amount[group] == value).mean()
        # entries from which is drawn: at least a fifth of those that are present
        n_effective = 1 / (1 / group.sum() + 1 / (0.2 * group.sum()))
        error = np.sqrt(share * (1 - share) / n_effective)
        assert_allclose(drawn, share, atol=3 * error)
    drawn = np.mean([table["amount"][is_gap] for table in tables])
    error = amount[is_gap].std() / np.sqrt(is_gap.sum() / 6)
    assert_allclose(drawn, amount[is_gap].mean(), atol=3 * error)


def test_numbers_of_equal_expectations_are_drawn_from_all_entries():
    """A column that no other tells of: draws are as spread as what is present."""
    rng = np.random.default_rng(0)
    amount = np.where(rng.random(600) < 0.5, 0.0, 1 + rng.normal(size=600))
    gaps = pd.DataFrame({"z": rng.normal(size=600), "amount": amount})
    gaps.loc[:299, "amount"] = np.nan
    imputer = MPTImputer(max_models=2, method="sample", random_state=0)
    drawn, seen = imputer.fit_transform(gaps)["amount"][:300], amount[300:]
    share = (seen == 0).mean()
    error = np.sqrt(share * (1 - share) / (300 * 0.2))
    assert_allclose((drawn == 0).mean(), share, atol=3 * error)
    assert_allclose(drawn[drawn != 0].std(), seen[seen != 0].std(), rtol=0.3)


def test_no_number_of_a_single_row_is_frequent():
    """So draws of a small table differ, though each number has a tenth of the rows."""
    X = np.random.default_rng(0).normal(size=(9, 2))
    rows = np.tile([np.nan, 0.0], (50, 1))
    imputer = MPTImputer(max_models=1, method="sample", random_state=0).fit(X)
    assert len(np.unique(imputer.transform(rows)[:, 0])) == 50


@pytest.mark.parametrize("origin", [0.0, 1e9])
def test_draws_of_equal_expectations_vary_as_what_was_seen(origin):
    shares, means = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = np.where(rng.random(800) < 0.3, 0.0, rng.exponential(size=800)) + origin
        X[400:] = np.nan
        imputer = MPTImputer(method="sample", max_models=1, random_state=seed)
        drawn = imputer.fit_transform(X[:, None])[400:, 0] - origin
        assert len(np.unique(drawn.round(6))) > 40
        shares.append(np.mean(np.abs(drawn) < 1e-6))
        means.append(drawn.mean())
    assert np.mean(shares) == pytest.approx(0.3, abs=0.05)
    assert np.mean(means) == pytest.approx(0.7, abs=0.15)
    assert np.std(shares) < 0.08


@pytest.mark.parametrize("n_levels", [9, 40])
def test_bounds_between_numbers_of_a_grid_are_no_values(n_levels):
    rng = np.random.default_rng(0)
    v = np.round(rng.exponential(n_levels / 3, 400)).clip(0, n_levels - 1)
    X = np.c_[np.where(v < 1, np.nan, v), v + rng.normal(size=400)]
    how = {"max_models": 2, "max_value": {0: 0.9}, "random_state": 0}
    gaps = np.isnan(X[:, 0])
    drawn = MPTImputer(method="sample", **how).fit_transform(X)[gaps, 0]
    assert len(np.unique(drawn)) == gaps.sum()
    assert (drawn < 0.9).all()
    means = MPTImputer(**how).fit_transform(X)[gaps, 0]
    assert drawn.mean() == pytest.approx(means.mean(), abs=0.1)
