"""ImputationDisplay: what it draws, and the levels of hidden entries."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from sklearn_mpt import ImputationDisplay, MPTImputer, MPTLinearVAE
from sklearn_mpt._imputation.display import _levels_of_codes, _levels_of_numbers

plt = pytest.importorskip("matplotlib.pyplot")

N = 60


def table():
    rng = np.random.default_rng(0)
    z = rng.normal(size=N)
    frame = pd.DataFrame(
        {
            "name": [f"n{i}" for i in range(N)],
            "number": z + 0.3 * rng.normal(size=N),
            "whole": np.rint(2 * z).clip(-3, 3),
            "word": np.where(z > 0, "a", "b"),
            "yes": pd.array(z > 0.5, dtype="boolean"),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.rint(50 * z), "D"),
            "took": pd.to_timedelta(np.rint(30 + 5 * z), "D"),
            "known": z,
        }
    )
    gaps = rng.random(frame.shape) < 0.2
    gaps[:, [0, -1]] = False
    return frame.mask(gaps)


@pytest.fixture(scope="module")
def imputer():
    with pytest.warns(UserWarning, match="does not model"):
        return MPTImputer(max_models=2, random_state=0).fit(table())


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_all_axes_have_artists_and_titles(imputer):
    X = table()
    display = ImputationDisplay.from_estimator(imputer, X, n_draws=5, random_state=0)
    titles = [ax.get_title() for ax in display.ax_]
    assert titles[:2] == ["Pattern of gaps", "Coverage of hidden entries"]
    assert titles[2:] == ["number", "whole", "word", "yes", "day", "took (days)"]
    assert display.figure_.axes == display.ax_.tolist()
    assert all(ax.has_data() for ax in display.ax_)
    assert_array_equal(display.missing, X.isna())
    for column in display.columns:
        place = column.name.removesuffix(" (days)")
        assert len(column.filled) == X[place].isna().sum()
        assert len(column.observed) == X[place].notna().sum()
    assert display.ax_[4].get_xticklabels()[0].get_text() == "a"
    bars = [bar.get_height() for bar in display.ax_[4].containers[0]]
    assert_allclose(bars, X["word"].value_counts(normalize=True)[["a", "b"]])
    again = ImputationDisplay.from_estimator(imputer, X, n_draws=5, random_state=0)
    for kind, levels in display.levels.items():
        assert_array_equal(levels, again.levels[kind])
        assert len(levels) > 0


def test_columns_and_axes_of_the_user(imputer):
    X = table()
    _, axes = plt.subplots(1, 3)
    display = ImputationDisplay.from_estimator(
        imputer, X, columns=["word"], method="mean", n_draws=2, ax=axes
    )
    assert display.ax_.tolist() == axes.tolist()
    filled = imputer.transform(X)["word"][X["word"].isna()]
    assert_array_equal(display.columns[0].filled, (filled == "b").astype(float))
    with pytest.raises(
        ValueError, match=r"gaps that .* fills in, got \['name', 'known'"
    ):
        ImputationDisplay.from_estimator(imputer, X, columns=["name", "known"])
    with pytest.raises(ValueError, match="ax must hold 8 axes, got 3"):
        ImputationDisplay.from_estimator(imputer, X, n_draws=2, ax=axes)
    with pytest.raises(ValueError, match="X has no gaps"):
        ImputationDisplay.from_estimator(imputer, imputer.transform(X))


def test_arrays_and_estimators_of_the_user():
    X = np.random.default_rng(0).normal(size=(40, 3)).cumsum(axis=1)
    X[::4, 1] = np.nan
    imputer = MPTImputer(MPTLinearVAE(1, init="pca"), random_state=0).fit(X)
    display = ImputationDisplay.from_estimator(imputer, X, n_draws=2)
    assert [column.name for column in display.columns] == [1]
    assert len(display.ax_) == 3


def test_levels_are_uniform_if_draws_are_right_and_large_if_they_are_too_narrow():
    rng = np.random.default_rng(0)
    truth, drawn = rng.normal(size=2000), rng.normal(size=(20, 2000))
    assert stats.kstest(_levels_of_numbers(truth, drawn, rng), "uniform").pvalue > 0.01
    assert _levels_of_numbers(truth, drawn / 2, rng).mean() > 0.6
    codes = rng.choice(4, p=[0.5, 0.3, 0.15, 0.05], size=2000).astype(float)
    right = rng.choice(4, p=[0.5, 0.3, 0.15, 0.05], size=(20, 2000))
    levels = _levels_of_codes(codes, right, rng)
    assert_allclose(
        np.quantile(levels, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.05
    )
    assert _levels_of_codes(codes, np.zeros((20, 2000)), rng).mean() > 0.6


@pytest.mark.parametrize("n_rows", [1, 40])
def test_columns_without_entries_show_what_is_filled_in(imputer, n_rows):
    rows = table().iloc[:n_rows].assign(number=np.nan, word=None, day=pd.NaT)
    display = ImputationDisplay.from_estimator(
        imputer, rows, columns=["number", "word", "day"], n_draws=5, random_state=0
    )
    for axis in display.ax_[2:]:
        assert axis.patches
        assert axis.get_legend_handles_labels()[1] == ["filled in"]
    plt.close("all")
