"""Numbers within bounds are drawn and expected by truncated distributions."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone

from sklearn_mpt import MPTImputer, MPTLinearVAE
from sklearn_mpt._imputation.adjustments import Adjustments
from sklearn_mpt._imputation.limits import Limits
from sklearn_mpt._imputation.truncation import (
    Conditionals,
    draw_within,
    expect_within,
    truncated,
)
from sklearn_mpt._tables.reader import TableReader

NONE = np.nan


class Normal:
    """Columns 0 and 1, jointly normal with unit variances; 1 alone can be missing."""

    correlation = 0.8

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.std = np.sqrt(1 - self.correlation**2)
        self.model = Conditionals(self.draw, self.log_prob, {})

    def draw(self, rows, index):
        noise = self.std * self.rng.normal(size=len(rows))
        drawn = np.where(
            np.isnan(rows[:, 1]), self.correlation * rows[:, 0] + noise, rows[:, 1]
        )
        return np.column_stack([rows[:, 0], drawn])

    def log_prob(self, rows, index, mask):
        assert_array_equal(mask, [False, True])
        mean = self.correlation * rows[:, 0]
        log_prob = stats.norm.logpdf(rows[:, 1], mean, self.std)
        return np.column_stack([np.zeros(len(rows)), log_prob])

    def law(self, x, low, high):
        mean = self.correlation * x
        bounds = (low - mean) / self.std, (high - mean) / self.std
        return stats.truncnorm(*bounds, loc=mean, scale=self.std)


def limits_of(low, high):
    """Return limits of the second of two columns, of each entry."""
    one = np.ones(2)
    free = np.full(len(low), np.inf)
    low, high = np.column_stack([-free, low]), np.column_stack([free, high])
    return Limits(low, high, -3 * one, 3 * one, one, 0 * one)


@pytest.mark.parametrize(
    ("low", "high"), [(-0.5, 0.5), (2.0, 2.5), (-np.inf, -2.0), (1.0, np.inf), (4, 9)]
)
def test_draws_and_expectations_are_those_of_a_truncated_normal(low, high):
    """Also far out, where almost no draw of the model lies within the bounds."""
    normal, x, n_rows = Normal(), 0.7, 4000
    rows = np.column_stack([np.full(n_rows, x), np.full(n_rows, NONE)])
    limits = limits_of(np.full(n_rows, low), np.full(n_rows, high))
    law = normal.law(x, low, high)
    drawn = draw_within(
        normal.model,
        rows,
        normal.draw(rows, None),
        limits,
        np.random.default_rng(1),
    )
    assert stats.kstest(drawn[:, 1], law.cdf).pvalue > 0.01
    assert_allclose(drawn[:, 0], x)
    expected = np.column_stack([rows[:, 0], normal.correlation * rows[:, 0]])
    is_bound = np.array([[False, True]] * n_rows)
    found = expect_within(normal.model, rows[:3], expected[:3], limits, is_bound[:3])
    assert_allclose(found[:, 1], law.mean(), atol=2e-3)
    assert_array_equal(found[:, 0], x)


def test_bounds_of_entries_are_those_of_their_rows():
    normal = Normal()
    x = np.linspace(-1, 1, 50)
    rows = np.column_stack([x, np.full(50, NONE)])
    low, high = x - 0.3, x + 0.1
    expected = np.column_stack([x, normal.correlation * x])
    is_bound = np.array([[False, True]] * 50)
    limits = limits_of(low, high)
    found = expect_within(normal.model, rows, expected, limits, is_bound)[:, 1]
    laws = [normal.law(*of_row).mean() for of_row in zip(x, low, high, strict=True)]
    assert_allclose(found, laws, atol=1e-4)
    drawn = normal.draw(rows, None)
    drawn = draw_within(normal.model, rows, drawn, limits, np.random.default_rng(0))
    assert (drawn[:, 1] >= low).all()
    assert (drawn[:, 1] <= high).all()


def test_other_gaps_of_a_row_are_drawn_given_the_number_within_its_bounds():
    """Two gaps of one row, of which one is bounded: both have the truncated law."""
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    rng = np.random.default_rng(0)

    def draw(rows, index):
        joint = rng.multivariate_normal([0, 0], covariance, len(rows))
        given = 0.9 * rows[:, 0] + np.sqrt(0.19) * rng.normal(size=len(rows))
        joint[:, 1] = np.where(np.isnan(rows[:, 0]), joint[:, 1], given)
        return np.where(np.isnan(rows), joint, rows)

    def log_prob(rows, index, mask):
        return stats.norm.logpdf(rows)  # of column 0, where column 1 is missing

    rows = np.full((4000, 2), NONE)
    one, wide = np.ones(2), np.array([np.inf, np.inf])
    limits = Limits(np.array([1.0, -np.inf]), wide, -3 * one, 3 * one, one, 0 * one)
    model = Conditionals(draw, log_prob, {})
    drawn = draw_within(model, rows, draw(rows, None), limits, rng)
    assert drawn[:, 0].min() >= 1
    law = stats.truncnorm(1, np.inf)
    assert_allclose(drawn[:, 0].mean(), law.mean(), atol=4 * law.std() / 4000**0.5)
    assert_allclose(drawn[:, 1].mean(), 0.9 * law.mean(), atol=0.04)


def test_numbers_of_few_values_are_drawn_from_those_within_the_bounds():
    values = np.array([1.0, 2.0, 5.0])

    def log_prob(rows, index, mask):
        return np.log(np.array([0.5, 0.3, 0.2])[np.searchsorted(values, rows)])

    rows, bounds = np.full((3, 1), NONE), np.array([[1.5, 6], [0, 2.2], [7, 8]])
    model = Conditionals(None, log_prob, {0: values})
    law = truncated(model, rows, np.arange(3), 0, bounds)
    assert_allclose(law.probs, [[0, 0.6, 0.4], [0.625, 0.375, 0], [1 / 3] * 3])
    assert_allclose(law.mean[:2], [3.2, 1.375])
    assert set(law.draw(np.random.default_rng(0))[:2]) <= set(values)


def test_limits_of_numbers_above_zero_dates_and_bounds_beyond_what_was_seen():
    rows = np.array([[2.0, 0.0, -4.0, 5.0], [6.0, 3.0, 4.0, 9.0]])
    is_number = np.ones(4, dtype=bool)
    has_margin = np.array([True, True, True, False])
    limits = Limits.from_rows(rows, is_number, has_margin)
    assert_allclose(limits.low, [1, 0, -8, 5])
    assert_allclose(limits.high, [8, 4.5, 8, 9])
    high = np.array([1.0, NONE, -5.0, NONE])
    below = limits.with_bounds(np.full(4, NONE), high)
    assert_allclose(below.low, [0.5, 0, -9, 5])
    assert_allclose(below.high, [1, 4.5, -5, 9])
    above = limits.with_bounds(np.array([NONE, 10.0, NONE, NONE]), np.full(4, NONE))
    assert_allclose(above.high, [8, 11.5, 8, 9])
    of_rows = limits.with_bounds(
        np.tile(np.array([3.0, NONE, NONE, NONE]), (2, 1)), high
    )
    assert of_rows.low.shape == of_rows.high.shape == (2, 4)


def test_whole_numbers_at_a_bound_are_as_frequent_as_others():
    limits = Limits.from_rows(np.array([[3.0], [4.0], [9.0]]), np.array([True]))
    limits = limits.with_bounds(np.array([2.2]), np.array([6.0]))
    draws = limits.of_draws()
    assert_allclose([draws.low[0], draws.high[0]], [2.5, 6.5])
    numbers = np.linspace(draws.low[0] + 1e-9, draws.high[0] - 1e-9, 4001)[:, None]
    values, counts = np.unique(limits.nearest_existing(numbers), return_counts=True)
    assert_array_equal(values, [3, 4, 5, 6])
    assert np.ptp(counts) <= 2


def below_a_limit(n_rows=300):
    rng = np.random.default_rng(0)
    v = np.exp(rng.normal(-0.5, 0.8, n_rows))
    frame = pd.DataFrame({"v": v, "w": np.log(v) + 0.5 * rng.normal(size=n_rows)})
    limit = rng.uniform(0.3, 0.8, n_rows)
    return frame, frame.assign(v=frame["v"].where(v >= limit)), limit


def test_detection_limits_of_rows_in_all_forms_are_the_same():
    """A table of bounds, an array, a dict of columns, another library."""
    _, gaps, limit = below_a_limit(100)
    table = np.column_stack([limit, np.full(len(limit), NONE)])
    bounds = pd.DataFrame(table, columns=["v", "w"])
    reader, _ = TableReader.learn(gaps, "from_dtype")
    forms = table, bounds, bounds[["w", "v"]], {"v": limit}, pl.DataFrame(bounds)
    for max_value in (*forms, {0: limit.tolist()}):
        _, high = Adjustments.from_parameters(
            None, None, max_value, reader, gaps
        ).bounds
        assert_array_equal(high, table)
    array = gaps.to_numpy()
    reader, _ = TableReader.learn(array, "from_dtype")
    found = Adjustments.from_parameters(None, bounds, {1: 3}, reader, array)
    assert_array_equal(found.low, table)
    assert_array_equal(found.high, [NONE, 3])


def test_models_learn_from_numbers_that_are_known_to_lie_below_a_limit():
    """Models of the other rows alone expect .42, where .34 is true."""
    frame, gaps, limit = below_a_limit(400)
    missing = gaps["v"].isna()
    imputer = MPTImputer(
        max_models=2, n_imputations=1, max_value={"v": limit}, random_state=0
    ).fit(gaps)
    truth = frame["v"][missing].mean()
    for filled in (imputer.transform(gaps), *imputer.transform_multiple(gaps)):
        found = filled["v"][missing]
        assert_allclose(found.mean(), truth, atol=0.06)
        assert (found < limit[missing]).all()
        assert found.min() > 0


@pytest.mark.parametrize("method", ["mean", "sample"])
def test_bounds_of_an_estimator_given_by_the_user_truncate(method):
    _, gaps, limit = below_a_limit(100)
    missing = gaps["v"].isna()
    estimator = MPTLinearVAE(1)
    bounds = {"min_value": {"v": 0.0}, "max_value": {"v": limit}}
    imputer = MPTImputer(estimator, method=method, random_state=0, **bounds)
    found = np.asarray(imputer.fit_transform(gaps))[missing, 0]
    assert (found > 0).all()
    assert (found < limit[missing]).all()
    assert not imputer.estimator_.warm_start


def test_whole_numbers_of_a_table_stay_whole_within_bounds():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    frame = pd.DataFrame(
        {"x": x, "n": pd.array(np.rint(10 + 3 * x).astype(int), dtype="Int64")}
    )
    frame.loc[::4, "n"] = pd.NA
    imputer = MPTImputer(
        MPTLinearVAE(1, likelihood="from_dtype"),
        method="sample",
        max_value={"n": 8},
        random_state=0,
    )
    drawn = imputer.fit_transform(frame)["n"]
    assert drawn.dtype == "Int64"
    assert (drawn[::4] <= 8).all()
    assert drawn[::4].nunique() > 3


def test_a_shift_is_added_before_bounds_are_kept():
    _, gaps, limit = below_a_limit(80)
    missing = gaps["v"].isna()
    imputer = MPTImputer(
        max_models=2, method="sample", delta={"v": -0.1}, max_value={"v": limit}
    ).set_params(random_state=0)
    drawn = imputer.fit_transform(gaps)["v"][missing]
    assert (drawn < limit[missing]).all()
    assert (drawn < limit[missing] - 0.01).any()


@pytest.mark.parametrize("estimator", [None, MPTLinearVAE(1, random_state=0)])
def test_a_shift_changes_only_what_fills_its_column(estimator):
    _, gaps, limit = below_a_limit(60)
    X = gaps.to_numpy()
    missing = np.isnan(X[:, 0])
    X[~missing, 1] = np.where(np.arange((~missing).sum()) % 5, X[~missing, 1], np.nan)
    max_models = 2 if estimator is None else None
    how = {"max_models": max_models, "max_value": {0: limit}, "random_state": 0}
    filled, shifted = (
        MPTImputer(estimator, delta={0: delta}, **how).fit_transform(X)
        for delta in (0.0, 0.2)
    )
    assert_array_equal(shifted[~missing], filled[~missing])
    expected = np.minimum(filled[:, 0] + 0.2, limit)[missing]
    assert_allclose(shifted[missing, 0], expected)


def test_dates_end_where_they_ended():
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(90), unit="D")
    x = np.arange(90.0)
    frame = pd.DataFrame({"date": dates, "x": x})
    frame.loc[:88:3, "date"] = pd.NaT
    frame.loc[[87, 88], "x"] = 200.0
    for method in ("mean", "sample"):
        imputer = MPTImputer(max_models=2, method=method, random_state=0)
        filled = imputer.fit_transform(frame)["date"]
        assert filled.max() == dates[89]
        assert filled.min() >= frame["date"].min()


def test_all_problems_of_bounds_are_in_one_message():
    _, gaps, limit = below_a_limit(40)
    gaps = gaps.assign(c=["a", "b"] * 20)
    wrong = {
        "min_value": {"c": limit, "v": limit[:3], "w": ["a"] * 40},
        "max_value": np.zeros((3, 3)),
    }
    with pytest.raises(ValueError, match=r"column 'c'.*no numbers") as caught:
        MPTImputer(**wrong).fit(gaps)
    said = str(caught.value)
    assert "min_value of column 'v' must be a number or 40 of them" in said
    assert "min_value of column 'w' must be a finite number, got 'a'" in said
    assert "max_value must have a number for each of 3 columns" in said
    assert r"of shape (40, 3), the shape of X, got shape (3, 3)" in said
    with pytest.raises(ValueError, match=r"is above max_value .* in column"):
        MPTImputer(min_value={"v": limit}, max_value={"v": limit - 1}).fit(gaps)
    named = pd.DataFrame(np.zeros((40, 3)), columns=["v", "w", "other"])
    with pytest.raises(ValueError, match=r"only in one of them: \['c', 'other'\]"):
        MPTImputer(min_value=named).fit(gaps)
    fitted = MPTImputer(max_models=1, max_value={"v": limit}).fit(gaps)
    with pytest.raises(ValueError, match="must be a number or 20 of them, got shape"):
        clone(fitted).fit(gaps[:20])
    with pytest.raises(ValueError, match="max_value has bounds of entries, but X is n"):
        fitted.transform(gaps[:20])
