"""Numbers within bounds are drawn and expected by truncated distributions."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from sklearn_mpt import MPTImputer, MPTLinearVAE, MPTProbabilisticPCA

NONE = np.nan
CORRELATION = 0.8


def normal_table(n_rows=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n_rows)
    y = CORRELATION * x + np.sqrt(1 - CORRELATION**2) * rng.normal(size=n_rows)
    return np.column_stack([x, y])


@pytest.mark.parametrize("estimator", [None, MPTProbabilisticPCA(1, objective="lml")])
@pytest.mark.parametrize(
    ("low", "high"), [(-0.5, 0.5), (2.0, 2.5), (-np.inf, -2.0), (1.0, np.inf)]
)
def test_draws_and_expectations_are_those_of_a_truncated_normal(estimator, low, high):
    """Also far out, where almost no draw of the model lies within the bounds."""
    max_models = 2 if estimator is None else None
    how = {"max_models": max_models, "random_state": 0}
    bounds = {"min_value": {1: low}, "max_value": {1: high}}
    rows = np.tile([0.7, NONE], (2000, 1))
    X = normal_table()
    imputer = MPTImputer(estimator, method="sample", **how, **bounds).fit(X)
    drawn = imputer.transform(rows)[:, 1]
    assert ((drawn >= low) & (drawn <= high)).all()
    fit = np.polyfit(X[:, 0], X[:, 1], 1)
    spread = (X[:, 1] - np.polyval(fit, X[:, 0])).std()
    mean = np.polyval(fit, 0.7)
    ends = (low - mean) / spread, (high - mean) / spread
    law = stats.truncnorm(*ends, loc=mean, scale=spread)
    assert_allclose(drawn.mean(), law.mean(), atol=0.06)
    assert_allclose(drawn.std(), law.std(), atol=0.06)
    means = MPTImputer(estimator, **how, **bounds).fit(X).transform(rows[:2])[:, 1]
    assert_allclose(means, law.mean(), atol=0.06)


@pytest.mark.parametrize("estimator", [None, MPTProbabilisticPCA(1, objective="lml")])
def test_several_bounded_gaps_of_a_row_are_drawn_in_turn(estimator):
    """All lie within their bounds, and depend on each other."""
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(np.zeros(3), 0.1 * np.eye(3) + 0.9, 600)
    max_models = 2 if estimator is None else None
    imputer = MPTImputer(
        estimator,
        method="sample",
        max_models=max_models,
        min_value={0: 0.0, 1: 0.5},
        random_state=0,
    ).fit(z)
    drawn = imputer.transform(np.tile([NONE, NONE, NONE], (1000, 1)))
    assert drawn[:, 0].min() >= 0
    assert drawn[:, 1].min() >= 0.5
    assert np.corrcoef(drawn.T)[0, 2] > 0.5
    normal = rng.multivariate_normal(np.zeros(3), np.cov(z.T), 400_000)
    accepted = normal[(normal[:, 0] > 0) & (normal[:, 1] > 0.5)]
    error = np.abs(drawn.mean(axis=0) - accepted.mean(axis=0))
    assert error.max() < 0.3


def test_numbers_of_few_values_are_drawn_from_those_within_the_bounds():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), rng.choice([1.0, 2.0, 5.0], 400)])
    imputer = MPTImputer(
        method="sample", max_models=2, min_value={1: 1.5}, random_state=0
    )
    drawn = imputer.fit(X).transform(np.tile([0.0, NONE], (300, 1)))[:, 1]
    assert set(drawn) == {2.0, 5.0}


def test_draws_end_a_deviation_outside_of_what_is_seen_or_of_a_bound():
    """Numbers above zero at half of the least one, others not negative at zero."""
    rng, x = np.random.default_rng(0), np.linspace(0, 4, 200)
    shifts = {"above": 0.2, "even": 0.0, "any": -2.0}
    table = pd.DataFrame({name: rng.permutation(x) + by for name, by in shifts.items()})
    gaps = pd.DataFrame(np.full((2000, 3), NONE), columns=list(table))
    spread = x.std()

    def ends(**bounds):
        imputer = MPTImputer(max_models=1, method="sample", random_state=0, **bounds)
        drawn = imputer.fit(table).transform(gaps)
        return drawn.min(), drawn.max()

    low, high = ends()
    assert_allclose(low, [0.1, 0, -2 - spread], atol=0.15)
    assert_allclose(high, table.max() + spread, atol=0.15)
    bound = {"above": 0.1, "any": -3.0}
    low, high = ends(max_value=bound)
    assert_allclose(low, [0, 0, -3 - spread], atol=0.15)
    assert_allclose(high, [0.1, table["even"].max() + spread, -3], atol=0.15)
    assert low.min() > -3 - spread
    assert low["above"] > 0


def test_whole_numbers_at_a_bound_are_as_frequent_as_others():
    X = np.random.default_rng(0).permutation(200)[:, None] * 1.0
    bounds = {"min_value": 98.2, "max_value": 102.0}
    imputer = MPTImputer(max_models=1, method="sample", random_state=0, **bounds)
    drawn = imputer.fit(X).transform(np.full((4000, 1), NONE))
    values, counts = np.unique(drawn, return_counts=True)
    assert_array_equal(values, [99, 100, 101, 102])
    assert_allclose(counts, 1000, atol=4 * np.sqrt(750))


def below_a_limit(n_rows=300, limit=0.5):
    rng = np.random.default_rng(0)
    v = np.exp(rng.normal(-0.5, 0.8, n_rows))
    frame = pd.DataFrame({"v": v, "w": np.log(v) + 0.5 * rng.normal(size=n_rows)})
    return frame, frame.assign(v=frame["v"].where(v >= limit))


@pytest.mark.parametrize("estimator", [None, MPTLinearVAE(1, random_state=0)])
@pytest.mark.parametrize("method", ["mean", "sample"])
def test_no_number_below_a_detection_limit_is_filled_in_at_it(estimator, method):
    frame, gaps = below_a_limit()
    missing = gaps["v"].isna()
    bounds = {"min_value": {"v": 0.0}, "max_value": {"v": 0.5}}
    max_models = 3 if estimator is None else None
    imputer = MPTImputer(
        estimator, method=method, max_models=max_models, random_state=0, **bounds
    )
    found = np.asarray(imputer.fit_transform(gaps))[missing, 0]
    assert found.min() > 0
    assert found.max() < 0.5
    assert abs(found.mean() - frame["v"][missing].mean()) < 0.13


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
    assert drawn[::4].nunique() > 2


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
    gaps = below_a_limit(40)[1].assign(c=["a", "b"] * 20)
    wrong = {
        "min_value": {"c": 1.0, "v": [1.0, 2.0], "w": "a"},
        "max_value": np.zeros((40, 3)),
    }
    with pytest.raises(ValueError, match=r"column 'c'.*no numbers") as caught:
        MPTImputer(**wrong).fit(gaps)
    said = str(caught.value)
    assert "min_value of column 'v' must be a finite number, got [1.0, 2.0]" in said
    assert "min_value of column 'w' must be a finite number, got 'a'" in said
    assert "max_value must have shape (n_columns,) = (3,), got shape (40, 3)" in said
    with pytest.raises(ValueError, match=r"is above max_value .* in column"):
        MPTImputer(min_value={"v": 1.0}, max_value={"v": 0.0}).fit(gaps)
