from inspect import signature

import matplotlib.pyplot as plt
import numpy as np
import pytest

from sklearn_mpt import MPTCurve, MPTCurveDisplay, mpt_curve


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def filled_area(display):
    heights, edges, _ = display.fill_.get_data()
    return heights @ np.diff(edges)


def test_bars_add_up_to_the_lml(known):
    model, X = known
    display = MPTCurveDisplay.from_estimator(model, X, n_masks=3, random_state=0)
    assert np.isclose(filled_area(display), display.curve.lml)
    assert f"{display.curve.lml:.2f}" in display.line_.get_label()


def test_the_curve_takes_all_its_parameters(known):
    parameters = signature(mpt_curve).parameters.keys()
    assert parameters <= signature(MPTCurveDisplay.from_estimator).parameters.keys()
    model, X = known
    display = MPTCurveDisplay.from_estimator(model, X, mask_blocks="span")
    assert display.curve.has_blocks


def test_axes_are_labelled_and_the_model_is_named(known):
    model, X = known
    display = MPTCurveDisplay.from_estimator(model, X, n_masks=2, random_state=0)
    assert display.figure_ is display.ax_.figure
    assert display.ax_.get_xlabel() == "Number of hidden features $m$"
    assert "nats" in display.ax_.get_ylabel()
    assert display.line_.get_label().startswith("MPTProbabilisticPCA\n")


def test_plots_on_given_axes_without_fill(known):
    model, X = known
    _, ax = plt.subplots()
    display = MPTCurveDisplay.from_estimator(
        model, X, n_masks=2, ax=ax, fill=False, name="mine", line_kw={"color": "red"}
    )
    assert display.ax_ is ax
    assert display.fill_ is None
    assert display.line_.get_color() == "red"
    assert display.line_.get_label().startswith("mine")


def test_ticks_are_whole_numbers_of_features_unless_the_user_sets_them():
    curve = MPTCurve(np.arange(1, 6), np.zeros(5), np.zeros(5), n_features=5)
    ax = MPTCurveDisplay(curve).plot().ax_
    assert np.all(ax.get_xticks() % 1 == 0)
    _, ax = plt.subplots()
    ax.set_xticks([1, 2.5])
    MPTCurveDisplay(curve).plot(ax=ax)
    assert ax.get_xticks().tolist() == [1, 2.5]


def test_bars_of_a_partial_curve_still_add_up():
    curve = MPTCurve(
        mask_sizes=np.array([2, 4]),
        scores=np.array([-2.0, -4.0]),
        std_errors=np.full(2, np.nan),
        n_features=5,
    )
    display = MPTCurveDisplay(curve).plot()
    assert np.isclose(filled_area(display), curve.lml)
    assert "±" not in display.line_.get_label()
