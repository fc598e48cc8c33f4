import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import conditional_log_density, covariance_of

from sklearn_mpt import MPTCurve, MPTProbabilisticPCA, mpt_curve
from sklearn_mpt._measure.allocation import _share


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


def test_area_sums_over_the_rates():
    curve = curve_of(np.arange(1, 101), -np.arange(1.0, 101), 100)
    assert_allclose(curve.area(), -0.01 * 512 * np.arange(1, 100).sum())
    assert_allclose(curve.area(10), -0.01 * 10 * np.arange(1, 100).sum())


def test_any_function_is_a_model(known):
    model, X = known
    mean, covariance = model.mean_, covariance_of(model)

    def conditional(X, mask):
        return conditional_log_density(X, mask, mean, covariance)

    curve = mpt_curve(conditional, X, n_masks=4, random_state=3)
    expected = mpt_curve(model, X, n_masks=4, random_state=3)
    assert_allclose(curve.scores, expected.scores)
    assert_allclose(curve.std_errors, expected.std_errors)


@pytest.mark.parametrize("allocation", ["equal", "neyman"])
def test_lml_is_unbiased_and_its_interval_covers(known, allocation):
    model, X = known
    truth = model.score(X)
    curves = [
        mpt_curve(model, X, n_masks=8, allocation=allocation, random_state=seed)
        for seed in range(200)
    ]
    error = np.array([curve.lml for curve in curves]) - truth
    std_error = np.array([curve.lml_std_error for curve in curves])
    assert abs(error.mean()) < 4 * error.std(ddof=1) / np.sqrt(200)
    assert 0.87 < np.mean(np.abs(error) < 1.96 * std_error) <= 0.99


def test_neyman_allocation_spends_the_same_and_varies_less():
    rng = np.random.default_rng(0)
    start = {
        "components": rng.normal(size=(3, 40)),
        "mean": np.zeros(40),
        "noise_variance": 0.2,
    }
    model = MPTProbabilisticPCA(n_components=3, init=start, max_iter=0)
    model.fit(rng.normal(size=(10, 40)))
    X = model.sample(20, random_state=0)
    spent, lml = {}, {}
    for allocation in ("equal", "neyman"):
        n_calls = 0

        def counting(X, mask):
            nonlocal n_calls
            n_calls += 1
            return model.conditional_log_prob(X, mask)

        lml[allocation] = [
            mpt_curve(
                counting, X, n_masks=6, allocation=allocation, random_state=seed
            ).lml
            for seed in range(25)
        ]
        spent[allocation] = n_calls
    assert spent["neyman"] == spent["equal"] == 25 * 6 * 40
    assert np.var(lml["neyman"]) < np.var(lml["equal"])


def test_shares_are_proportional_and_spend_all():
    assert_array_equal(_share(10, np.array([3.0, 1.0, 0.0])), [8, 2, 0])
    assert_array_equal(_share(3, np.zeros(3)), [1, 1, 1])


def test_curve_with_missing_entries_sums_to_the_observed_part(known):
    model, X = known
    X[:5, 2] = np.nan
    curve = mpt_curve(model, X, n_masks=100, random_state=0)
    assert abs(curve.lml - model.score(X)) < 4 * curve.lml_std_error


def test_the_same_masks_and_numbers_for_every_n_jobs(known):
    model, X = known
    one, two = (
        mpt_curve(model, X, n_masks=5, random_state=0, n_jobs=n_jobs)
        for n_jobs in (1, 2)
    )
    assert_allclose(one.scores, two.scores, rtol=1e-10)
    assert_allclose(one.std_errors, two.std_errors, rtol=1e-10, atol=1e-14)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # distributed's own
def test_the_same_numbers_on_a_dask_cluster(known):
    distributed = pytest.importorskip("distributed")
    model, X = known
    expected = mpt_curve(model, X, n_masks=3, random_state=0)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster):
        with joblib.parallel_config(backend="dask"):
            curve = mpt_curve(model, X, n_masks=3, random_state=0)
    assert_allclose(curve.scores, expected.scores, rtol=1e-10)


def test_random_state_defaults_to_that_of_the_estimator(known):
    model, X = known
    curve = mpt_curve(model, X, n_masks=2)
    again = mpt_curve(model, X, n_masks=2, random_state=model.random_state)
    assert_array_equal(curve.scores, again.scores)


def test_one_mask_per_size_has_no_standard_error(known):
    model, X = known
    curve = mpt_curve(model, X, n_masks=1, mask_sizes=[4, 2])
    assert_array_equal(curve.mask_sizes, [2, 4])
    assert np.isnan(curve.std_errors).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"mask_sizes": [0, 2]},
            r"mask_sizes must lie in 1\.\.n_features=6, got 0\.\.",
        ),
        ({"mask_sizes": [7]}, r"mask_sizes must lie in 1\.\.n_features=6"),
        ({"mask_sizes": [0.5]}, "mask_sizes must be integers"),
        ({"mask_sizes": []}, "mask_sizes must be integers"),
        ({"n_masks": 0}, "n_masks"),
        ({"allocation": "best"}, "allocation must be 'equal' or 'neyman', got 'best'"),
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
    with pytest.raises(ValueError, match="infinity"):
        mpt_curve(lambda X, mask: X, np.full((2, 2), np.inf))
