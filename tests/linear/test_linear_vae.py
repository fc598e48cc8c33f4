import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    all_masks,
    bernoulli_log_prob,
    bernoulli_posterior_average,
    binary_rows,
    low_rank_rows,
    ml_optimum,
)
from scipy.special import expit, logsumexp
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA, mpt_curve

# Law School Admission Test, section 6: five items, and how many of 1000 people gave
# each pattern of answers (Bock and Lieberman, 1970, Psychometrika 35, Table 1).
LSAT6 = {
    "00000": 3, "00001": 6, "00010": 2, "00011": 11, "00100": 1, "00101": 1,
    "00110": 3, "00111": 4, "01000": 1, "01001": 8, "01011": 16, "01101": 3,
    "01110": 2, "01111": 15, "10000": 10, "10001": 29, "10010": 14, "10011": 81,
    "10100": 3, "10101": 28, "10110": 15, "10111": 80, "11000": 16, "11001": 56,
    "11010": 21, "11011": 173, "11100": 11, "11101": 61, "11110": 28, "11111": 298,
}  # fmt: skip


def lsat6():
    patterns = np.array([[float(answer) for answer in key] for key in LSAT6])
    return np.repeat(patterns, list(LSAT6.values()), axis=0)


def at(components, intercept, **parameters):
    """A Bernoulli model with known parameters: nothing is trained."""
    return MPTLinearVAE(
        n_components=len(components),
        likelihood="bernoulli",
        init={"components": components, "intercept": intercept},
        max_iter=0,
        **parameters,
    )


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return 1.5 * rng.normal(size=(2, 6)), 0.5 * rng.normal(size=6)


@pytest.fixture
def X(arrays):
    return binary_rows(40, *arrays, seed=1)


@pytest.fixture
def known(arrays, X):
    return at(*arrays, random_state=0).fit(X)


def test_scores_and_averages_are_those_of_a_dense_grid(known, arrays, X):
    gappy = np.where(np.random.default_rng(2).random(X.shape) < 0.3, np.nan, X)
    components, intercept = arrays
    log_prob, std_error = known.score_samples(gappy, return_std=True)
    assert_allclose(log_prob, bernoulli_log_prob(gappy, *arrays), atol=3e-4)
    assert_array_equal(std_error, 0.0)
    means = bernoulli_posterior_average(lambda z: z, gappy, *arrays)
    assert_allclose(known.transform(gappy), means, atol=3e-4)
    prob = bernoulli_posterior_average(
        lambda z: expit(z @ components + intercept), gappy, *arrays
    )
    gaps = np.isnan(gappy)
    assert_allclose(known.impute(gappy)[gaps], prob[gaps], atol=3e-4)


def test_probabilities_of_all_rows_sum_to_one(known):
    every = np.vstack([all_masks(6, size) for size in range(7)]).astype(float)
    assert len(every) == 64
    assert_allclose(np.exp(known.score_samples(every)).sum(), 1, atol=1e-4)


def test_curve_adds_up_to_the_score(known, X):
    curve = mpt_curve(known, X, design="all")
    assert_allclose(curve.lml, known.score(X), rtol=1e-9)


def test_three_steep_components_are_as_accurate_as_they_say():
    """Against a sum over 61^3 nodes."""
    rng = np.random.default_rng(0)
    components, intercept = 1.5 * rng.normal(size=(3, 8)), rng.normal(size=8)
    X = (rng.random((10, 8)) < 0.5).astype(float)
    log_prob, error = at(components, intercept).fit(X).score_samples(X, return_std=True)
    axis = np.linspace(-7, 7, 61)
    node = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    location = node @ components + intercept
    log_joint = X @ location.T - np.logaddexp(0, location).sum(1)
    log_joint += norm.logpdf(node).sum(1) + 3 * np.log(axis[1] - axis[0])
    assert not error.any()
    assert_allclose(log_prob, logsumexp(log_joint, axis=1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [3.0, 20.0])
def test_steep_components_get_as_many_nodes_as_they_need(arrays, scale):
    components = scale * arrays[0][:1]
    X = binary_rows(20, components, arrays[1], seed=3)
    model = at(components, arrays[1]).fit(X)
    assert_allclose(
        model.score_samples(X), bernoulli_log_prob(X, components, arrays[1]), atol=1e-3
    )


@pytest.mark.parametrize(("objective", "tolerance"), [("lml", 0.01), ("mpt", 0.2)])
def test_item_response_model_reaches_the_published_likelihood(objective, tolerance):
    """-2466.653: the R package ltm, D. Rizopoulos, J. Stat. Software 17, 2006."""
    X = lsat6()
    model = MPTLinearVAE(
        n_components=1, likelihood="bernoulli", objective=objective, random_state=0
    ).fit(X)
    total = bernoulli_log_prob(X, model.components_, model.intercept_).sum()
    assert_allclose(total, -2466.653, atol=tolerance)
    assert_allclose(model.score(X), total / 1000, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The likelihood has no finite maximum")
def test_objectives_end_close_together(arrays):
    X = binary_rows(100, *arrays, seed=4)
    scores = {
        objective: MPTLinearVAE(
            likelihood="bernoulli", objective=objective, random_state=0
        )
        .fit(X)
        .score(X)
        for objective in ("mpt", "elbo", "lml")
    }
    assert scores["lml"] > bernoulli_log_prob(X, *arrays).mean()
    assert abs(scores["mpt"] - scores["lml"]) < 0.01
    assert scores["elbo"] < scores["lml"] + 1e-3  # maximises a lower bound


def score_of_independent_columns(X):
    rates = X.mean(axis=0)
    return (X * np.log(rates) + (1 - X) * np.log1p(-rates)).sum(axis=1).mean()


def test_a_fixed_rate_trains_too(arrays):
    X = binary_rows(400, *arrays, seed=4)
    model = MPTLinearVAE(
        likelihood="bernoulli", mask_rate=0.3, tol=0.01, random_state=0
    ).fit(X)
    assert model.score(X) > score_of_independent_columns(X) + 0.1


def test_starts_explain_part_of_the_correlations(arrays):
    X = binary_rows(400, *arrays, seed=4)
    scores = [
        MPTLinearVAE(likelihood="bernoulli", init=init, max_iter=0, random_state=seed)
        .fit(X)
        .score(X)
        for init, seed in (("pca", 0), ("random", 0), ("random", 1))
    ]
    assert min(scores) > score_of_independent_columns(X) + 0.1
    assert len({*scores}) == 3


def test_gaussian_likelihood_is_probabilistic_pca():
    X = low_rank_rows(60, 6, 2, 0.3, seed=0)
    model = MPTLinearVAE(random_state=0).fit(X)
    assert model.score(X) > ml_optimum(X, 2) - 0.01
    start = {
        "components": model.components_,
        "mean": model.mean_,
        "noise_variance": model.noise_variance_,
    }
    ppca = MPTProbabilisticPCA(init=start, max_iter=0).fit(X)
    mask = np.arange(6) < 3
    for method in ("score_samples", "transform"):
        assert_array_equal(getattr(model, method)(X), getattr(ppca, method)(X))
    assert_array_equal(
        model.conditional_log_prob(X, mask), ppca.conditional_log_prob(X, mask)
    )
    elbo = MPTLinearVAE(objective="elbo", random_state=0).fit(X)
    assert_allclose(elbo.score(X), ml_optimum(X, 2), atol=0.01)


@pytest.fixture(scope="module")
def many_components():
    rng = np.random.default_rng(0)
    components, intercept = 0.5 * rng.normal(size=(8, 40)), rng.normal(size=40)
    return components, intercept, binary_rows(60, components, intercept, seed=1)


def test_importance_sampling_is_as_sure_as_it_says(many_components):
    components, intercept, X = many_components
    first, second = (
        at(components, intercept, random_state=seed).fit(X) for seed in (0, 1)
    )
    assert first.lml_method_ == "importance"
    (a, a_error), (b, b_error) = (
        model.score_samples(X, return_std=True) for model in (first, second)
    )
    assert a_error.max() < 0.05
    z = (a - b) / np.hypot(a_error, b_error)
    # errors are 1.2 times the spread, for intervals that cover
    assert 0.5 < np.sqrt(np.mean(z**2)) < 1.4


def test_importance_sampling_agrees_with_quadrature(many_components):
    """Components that are zero change nothing but the method."""
    components, intercept, X = many_components
    padded = np.vstack([components[:2], np.zeros((3, 40))])
    quadrature = at(components[:2], intercept).fit(X)
    importance = at(padded, intercept, random_state=0).fit(X)
    estimate, error = importance.score_samples(X, return_std=True)
    z = (estimate - quadrature.score_samples(X)) / error
    assert 0.4 < np.sqrt(np.mean(z**2)) < 1.8
    mask = np.arange(40) < 20
    assert_allclose(
        importance.conditional_log_prob(X, mask),
        quadrature.conditional_log_prob(X, mask),
        atol=0.2,
    )
    assert_allclose(importance.transform(X)[:, :2], quadrature.transform(X), atol=0.1)


@pytest.mark.filterwarnings("ignore:The likelihood has no finite maximum")
def test_many_components_train(many_components):
    components, intercept, X = many_components
    components, intercept = components[:, :20], intercept[:20]
    X = binary_rows(40, components, intercept, seed=2)
    fitted = [
        MPTLinearVAE(
            n_components=5,
            likelihood="bernoulli",
            objective=objective,
            tol=1e-3,
            random_state=0,
        )
        .fit(X)
        .score(X)
        for objective in ("mpt", "lml")
    ]
    assert abs(fitted[0] - fitted[1]) < 0.3
    truth = at(components, intercept).fit(X).score(X)
    assert min(fitted) > truth - 1


def test_draws_follow_the_model(known, arrays, X):
    drawn = np.concatenate([known.sample(20_000, random_state=s) for s in range(4)])
    assert set(np.unique(drawn)) == {0.0, 1.0}
    rows, counts = np.unique(drawn, axis=0, return_counts=True)
    expected = len(drawn) * np.exp(bernoulli_log_prob(rows, *arrays))
    assert np.mean((counts - expected) ** 2 / expected) < 1.6  # chi-squared per row


def test_draws_of_all_kinds_have_what_is_filled_in_of_a_row_of_gaps():
    rng, kinds = np.random.default_rng(0), ["gaussian", "lognormal", "bernoulli"]
    kinds += ["poisson", "negative_binomial", "ordinal", "categorical"]
    z = rng.normal(size=300)
    X = [z + rng.normal(size=300), np.exp(0.5 * z), z > 0, rng.poisson(np.exp(0.5 * z))]
    X += [rng.negative_binomial(2, 0.4, 300), np.digitize(z, [-1, 0.5]), z > 0.5]
    model = MPTLinearVAE(1, likelihood=kinds, init="pca", max_iter=0)
    model.fit(np.transpose(X).astype(float))
    drawn = model.sample(20000, random_state=0)
    filled = model.impute(np.full((1, 7), np.nan))[0]
    bar = 4.5 * drawn.std(axis=0) / np.sqrt(20000)
    assert (np.abs(drawn.mean(axis=0) - filled) < bar)[:5].all()
    assert_array_equal(np.median(drawn[:, 5:], axis=0), filled[5:])


def test_imputed_draws_have_the_imputed_mean(known):
    row = np.array([[1.0, 0.0, np.nan, 1.0, np.nan, 1.0]])
    draws = known.impute(np.tile(row, (10_000, 1)), method="sample", random_state=0)
    assert_allclose(draws.mean(0), known.impute(row)[0], atol=0.02)
    # jointly: the pair of missing entries is as correlated as p(x) says
    pairs = np.tile(row, (4, 1))
    pairs[:, [2, 4]] = [[0, 0], [0, 1], [1, 0], [1, 1]]
    prob = np.exp(known.score_samples(pairs))
    both = np.mean(draws[:, 2] * draws[:, 4])
    assert_allclose(both, prob[3] / prob.sum(), atol=0.02)


def test_constant_features_keep_half_an_observation(arrays):
    X = binary_rows(100, *arrays, seed=5)
    X[:, 0], X[:, 1] = 0.0, 1.0
    model = MPTLinearVAE(likelihood="bernoulli", random_state=0).fit(X)
    assert_allclose(expit(model.intercept_[:2]), [0.5 / 101, 100.5 / 101])
    assert_allclose(model.components_[:, :2], 0.0, atol=1e-12)
    assert np.isfinite(model.score_samples(1 - X)).all()


@pytest.mark.parametrize("kind", ["bernoulli", "poisson"])
def test_a_column_of_zeros_costs_half_an_observation_at_most(kind):
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(100, 1)) @ rng.normal(size=(1, 4))
    X = np.exp(logs + 0.3 * rng.normal(size=(100, 4))) * (rng.random((100, 4)) < 0.6)
    X = np.floor(X) if kind != "bernoulli" else 1.0 * (X > 0)
    X[:, 2] = 0.0
    others = X[:, [0, 1, 3]]
    model = MPTLinearVAE(1, likelihood=kind, random_state=0)
    lost = model.fit(others).score(others) - model.fit(X).score(X)
    assert -1e-4 < lost < 0.5 / 100 + 1e-4


def test_a_hard_integral_is_reported(many_components):
    _, intercept, X = many_components
    components = 10 * np.random.default_rng(0).normal(size=(20, 40))
    X = X[:10]
    model = at(components, intercept, random_state=0).fit(X)
    message = r"of 10 rows are uncertain by up to [\d.]+ nats, .* effective points"
    with (
        sklearn.config_context(working_memory=1),
        pytest.warns(UserWarning, match=message) as warned,
    ):
        model.score_samples(X)
    assert len(warned) == 1


def test_a_quadrature_out_of_tolerance_says_so(many_components):
    components, intercept, X = many_components
    _, error = at(components[:2], intercept).fit(X).score_samples(X, return_std=True)
    assert_array_equal(error, 0.0)
    steps = at(40000 * components[:1], 40000 * intercept).fit(X)
    with pytest.warns(UserWarning, match="hard to integrate"):
        _, error = steps.score_samples(X, return_std=True)
    assert error.max() > 0.5


def test_missing_entries_in_training_cost_little(arrays):
    X = binary_rows(150, *arrays, seed=6)
    gaps = np.random.default_rng(0).random(X.shape) < 0.3
    model = MPTLinearVAE(likelihood="bernoulli", slope_prior=4.0, random_state=0)
    complete = model.fit(X).score(X)
    assert model.fit(np.where(gaps, np.nan, X)).score(X) > complete - 0.05


@pytest.mark.parametrize("method", ["fit", "score_samples", "transform", "impute"])
def test_other_values_are_refused(known, X, method):
    X[0, 1], X[1, 1] = 0.5, -3
    match = r"Column 1: .* found 2 other values, such as -3, 0\.5"
    with pytest.raises(ValueError, match=match):
        getattr(known, method)(X)


def test_bad_parameters_are_refused(X):
    with pytest.raises(ValueError, match="likelihood must be one of 'gaussian', 'b"):
        MPTLinearVAE(likelihood="binomial").fit(X)
    with pytest.raises(ValueError, match="n_components=7 must be at most n_features=6"):
        MPTLinearVAE(n_components=7).fit(X)
    with pytest.raises(ValueError, match=r"init must have the keys \['components', 'i"):
        at(np.ones((2, 6)), np.ones(6)).set_params(init={"components": 1}).fit(X)
    with pytest.raises(ValueError, match=r"init\['intercept'\] must have shape \(6,\)"):
        at(np.ones((2, 6)), np.ones(5)).fit(X)
    with pytest.raises(ValueError, match="'init' parameter of MPTLinearVAE must be a"):
        MPTLinearVAE(likelihood="bernoulli", init="zeros").fit(X)


def test_more_components_than_features_are_allowed(X):
    model = MPTLinearVAE(n_components=9, likelihood="bernoulli", max_iter=1)
    with pytest.warns(ConvergenceWarning):
        model.fit(X[:12])
    assert model.transform(X).shape == (40, 9)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ordinal", {}),
        ("ordinal", {"n_masks": 2}),
        ("partial_credit", {"objective": "elbo"}),
    ],
)
def test_two_ordered_levels_are_binary(kind, settings):
    """Their thresholds have no free parameters."""
    rng = np.random.default_rng(0)
    X = 1.0 * (rng.normal(size=(60, 1)) + rng.logistic(size=(60, 3)) > 0)
    settings = {"slope_prior": 2.0, "random_state": 0} | settings
    kinds = [kind, kind, "bernoulli"]
    levels, binary = (
        MPTLinearVAE(1, likelihood=likelihood, **settings).fit(X)
        for likelihood in (kinds, "bernoulli")
    )
    assert_allclose(levels.score_samples(X), binary.score_samples(X))
    errors, expected = (model.standard_errors(X) for model in (levels, binary))
    assert_allclose(errors.components, expected.components)
    assert np.nanmax(errors.thresholds) == 0
