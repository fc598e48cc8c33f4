import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from sklearn_mpt import MPTCurve, mpt_curve


def curve_of(sizes, scores, n_features):
    return MPTCurve(
        mask_sizes=np.array(sizes),
        scores=np.array(scores, dtype=float),
        std_errors=np.full(len(sizes), 0.5),
        n_features=n_features,
    )


def test_lml_of_a_complete_curve_is_the_plain_sum():
    curve = curve_of([1, 2, 3], [-1, -2, -4], 3)
    assert curve.lml == -7
    assert_allclose(curve.lml_std_error, 0.5 * np.sqrt(3))
    assert_allclose(curve.mask_rates, [1 / 3, 2 / 3, 1])


def test_lml_interpolates_between_sizes_and_is_constant_beyond():
    curve = curve_of([2, 4], [-2, -4], 5)
    assert curve.lml == -2 - 2 - 3 - 4 - 4
    assert_allclose(curve.lml_std_error, 0.5 * np.hypot(2.5, 2.5))


def test_fixed_rate_and_bias():
    curve = curve_of([1, 2, 3, 4], [-1, -2, -3, -4], 4)
    assert curve.fixed_rate(0.5) == -8
    assert curve.bias(0.5) == -10 + 8
    with pytest.raises(ValueError, match="rate"):
        curve.fixed_rate(0.0)


@pytest.mark.parametrize(
    ("rate", "n_features", "size"),
    [(0.15, 200, 30), (0.2, 2, 1), (0.001, 10, 1), (0.25, 10, 3), (1.0, 7, 7)],
)
def test_the_size_of_a_rate_rounds_half_up_and_hides_something(rate, n_features, size):
    sizes = np.arange(1, n_features + 1)
    assert curve_of(sizes, sizes / n_features, n_features).fixed_rate(rate) == (
        pytest.approx(size)
    )


def test_area_sums_over_the_rates():
    curve = curve_of(np.arange(1, 101), -np.arange(1.0, 101), 100)
    assert_allclose(curve.area(), -0.01 * 512 * np.arange(1, 100).sum())
    assert_allclose(curve.area(10), -0.01 * 10 * np.arange(1, 100).sum())


def test_a_curve_shows_a_summary_of_itself():
    curve = MPTCurve(np.array([2, 4]), np.array([-2.0, -4.0]), np.full(2, 0.1), 5)
    shown = (
        "<MPTCurve of 2 mask sizes, 2 to 4 of 5: lml=-15 (standard error 0.35) nats>"
    )
    assert repr(curve) == shown  # sizes 1 to 3 and 3 to 5 weigh 2.5 each


def test_one_mask_per_size_has_no_standard_error(known):
    model, X = known
    curve = mpt_curve(model, X, n_masks=1, mask_sizes=[4, 2])
    assert_array_equal(curve.mask_sizes, [2, 4])
    assert np.isnan(curve.std_errors).all()


@pytest.mark.parametrize(
    ("sizes", "scores", "message"),
    [
        ([2, 1], [-1, -2], r"mask_sizes must be increasing .*got array\(\[2, 1\]\)"),
        ([], [], "mask_sizes must be increasing"),
        ([1, 2], [-1], r"scores must .* that of mask_sizes = \(2,\), got shape \(1,"),
    ],
)
def test_a_curve_checks_its_arrays(sizes, scores, message):
    with pytest.raises(ValueError, match=message):
        curve_of(sizes, scores, 3)


def test_the_interval_is_wide_where_few_masks_tell_the_error(known):
    model, X = known
    few = mpt_curve(
        model, X, mask_sizes=[3], n_masks=2, design="independent", random_state=0
    )
    low, high = few.lml_interval()
    assert_allclose(0.5 * (low + high), few.lml)
    assert_allclose(high - few.lml, 12.706 * few.lml_std_error, rtol=1e-4)  # Student's
    with pytest.raises(ValueError, match=r"confidence must be a float in the range"):
        few.lml_interval(1.0)


def test_curves_of_the_same_masks_are_subtracted(known):
    model, X = known
    wrong = clone(model).set_params(init={**model.init, "noise_variance": 0.4}).fit(X)
    options = {"n_masks": 5, "random_state": 0, "design": "independent"}
    mine, others = (mpt_curve(m, X, **options) for m in (model, wrong))
    difference = mine - others
    truth = model.score(X) - wrong.score(X)
    assert abs(difference.lml - truth) < 5 * difference.lml_std_error
    assert difference.lml_std_error < 0.5 * mine.lml_std_error
    assert_allclose(difference.scores, mine.scores - others.scores)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mask_sizes": [0, 2]}, r"integers in 1\.\.n_features=6, got \[0, 2\]"),
        ({"mask_sizes": [7]}, r"mask_sizes must be integers in 1\.\.n_features=6"),
        ({"mask_sizes": [0.5]}, "mask_sizes must be integers"),
        ({"mask_sizes": []}, "mask_sizes must be integers"),
        ({"n_masks": 0}, "n_masks"),
        ({"allocation": "best"}, "allocation must be one of 'equal', 'neyman', got"),
        ({"design": "best"}, "design must be one of 'auto', 'all', 'balanced'"),
        (
            {"design": "balanced", "allocation": "neyman"},
            "allocation='neyman' needs design='independent' or 'auto', got 'balanced'",
        ),
    ],
)
def test_bad_arguments(known, kwargs, message):
    model, X = known
    with pytest.raises(ValueError, match=message):
        mpt_curve(model, X, **kwargs)


def test_an_estimator_checks_its_own_rows(known):
    model, X = known
    with pytest.raises(ValueError, match="features"):
        mpt_curve(model, X[:, :3])
    with pytest.raises(ValueError, match="Input X contains infinity"):
        mpt_curve(lambda X, mask: X, np.full((2, 2), np.inf))
    for estimator in (model, model.conditional_log_prob):
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            mpt_curve(estimator, X[0])
