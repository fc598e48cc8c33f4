"""ImputationDisplay: what it draws."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import ImputationDisplay, MPTImputer, MPTLinearVAE

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
    display = ImputationDisplay.from_estimator(imputer, X, random_state=0)
    titles = [ax.get_title() for ax in display.ax_]
    assert titles == ["number", "whole", "word", "yes", "day", "took (days)"]
    assert display.figure_.axes == display.ax_.tolist()
    assert all(ax.has_data() for ax in display.ax_)
    display.figure_.canvas.draw()
    [legend] = display.figure_.legends
    assert [text.get_text() for text in legend.texts] == ["observed", "filled in"]
    place = legend.get_window_extent()
    assert not any(place.overlaps(ax.get_tightbbox()) for ax in display.ax_)
    for column in display.columns:
        place = column.name.removesuffix(" (days)")
        assert len(column.filled) == X[place].isna().sum()
        assert len(column.observed) == X[place].notna().sum()
    assert display.ax_[2].get_xticklabels()[0].get_text() == "a"
    bars = [bar.get_height() for bar in display.ax_[2].containers[0]]
    assert_allclose(bars, X["word"].value_counts(normalize=True)[["a", "b"]])
    again = ImputationDisplay.from_estimator(imputer, X, random_state=0)
    for first, second in zip(display.columns, again.columns, strict=True):
        assert_array_equal(first.filled, second.filled)


def test_columns_and_axes_of_the_user(imputer):
    X = table()
    _, axes = plt.subplots(1, 1, squeeze=False)
    display = ImputationDisplay.from_estimator(
        imputer, X, columns=["word"], method="mean", ax=axes[0]
    )
    assert display.ax_.tolist() == axes[0].tolist()
    filled = imputer.transform(X)["word"][X["word"].isna()]
    assert_array_equal(display.columns[0].filled, (filled == "b").astype(float))
    with pytest.raises(
        ValueError, match=r"gaps that .* fills in, got \['name', 'known'"
    ):
        ImputationDisplay.from_estimator(imputer, X, columns=["name", "known"])
    with pytest.raises(ValueError, match="ax must hold 6 axes, got 1"):
        ImputationDisplay.from_estimator(imputer, X, ax=axes[0])
    with pytest.raises(ValueError, match="X has no gaps"):
        ImputationDisplay.from_estimator(imputer, imputer.transform(X))


def test_arrays_and_estimators_of_the_user():
    X = np.random.default_rng(0).normal(size=(40, 3)).cumsum(axis=1)
    X[::4, 1] = np.nan
    imputer = MPTImputer(MPTLinearVAE(1, init="pca"), random_state=0).fit(X)
    display = ImputationDisplay.from_estimator(imputer, X)
    assert [column.name for column in display.columns] == [1]
    assert len(display.ax_) == 1


@pytest.mark.parametrize("n_rows", [1, 40])
def test_columns_without_entries_show_what_is_filled_in(imputer, n_rows):
    rows = table().iloc[:n_rows].assign(number=np.nan, word=None, day=pd.NaT)
    display = ImputationDisplay.from_estimator(
        imputer, rows, columns=["number", "word", "day"], random_state=0
    )
    for axis in display.ax_:
        assert axis.patches
        assert axis.get_legend_handles_labels()[1] == ["filled in"]
    plt.close("all")
