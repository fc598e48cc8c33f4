"""Fits that keep some parameters, against SciPy with the same ones held fixed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp

pytest.importorskip("torch")

from sklearn_mpt import MPTItemResponse

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(61)
LOG_WEIGHTS = np.log(WEIGHTS / WEIGHTS.sum())


def answers(n=400, mean=0.5, deviation=1.3):
    rng = np.random.default_rng(0)
    z = mean + deviation * rng.normal(size=(n, 1))
    slopes, difficulty = np.array([1, 1.5, 0.8, 1.2]), np.linspace(-1, 1, 4)
    return 1.0 * (rng.random((n, 4)) < 1 / (1 + np.exp(-slopes * (z - difficulty))))


X = answers()
FIXED = {0: {"discrimination": 1.0, "difficulty": -1.0}, 3: {"discrimination": 1.2}}


def loss(free):
    """Minus the log-likelihood, given what FIXED leaves free."""
    slopes, intercepts = np.r_[1.0, free[:2], 1.2], np.r_[1.0, free[2:5]]
    logit = (free[5] + np.exp(free[6]) * NODES)[:, None] * slopes + intercepts
    log_prob = X @ log_expit(logit).T + (1 - X) @ log_expit(-logit).T
    return -logsumexp(log_prob + LOG_WEIGHTS, axis=1).sum()


def hessian(function, x, step=1e-3):
    eye = step * np.eye(len(x))

    def second(a, b):
        signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        parts = (s * t * function(x + s * a + t * b) for s, t in signs)
        return sum(parts) / (4 * step**2)

    return np.array([[second(a, b) for b in eye] for a in eye])


@pytest.fixture(scope="module")
def anchored():
    return MPTItemResponse(fixed=FIXED, population="free").fit(X)


@pytest.fixture(scope="module")
def by_scipy():
    start = np.r_[np.ones(2), np.zeros(5)]
    return minimize(loss, start, options={"gtol": 1e-5}).x


def test_anchored_fits_are_those_of_scipy(anchored, by_scipy):
    assert_allclose(len(X) * anchored.score(X), -loss(by_scipy), atol=1e-4)
    assert_allclose(anchored.discrimination_[[1, 2]], by_scipy[:2], rtol=5e-3)
    assert_allclose(anchored.intercept_[1:], by_scipy[2:5], atol=5e-3)
    assert_allclose(anchored.latent_mean_[0, 0], by_scipy[5], atol=5e-3)
    deviation = np.sqrt(anchored.latent_variance_[0, 0])
    assert_allclose(deviation, np.exp(by_scipy[6]), rtol=5e-3)


def test_standard_errors_are_those_of_the_free_parameters(anchored, by_scipy):
    errors = np.sqrt(np.diag(np.linalg.inv(hessian(loss, by_scipy))))
    found = anchored.item_parameters(X)
    assert_array_equal(found.discrimination_std_error[[0, 3]], 0.0)
    assert (found.intercept_std_error[0], found.difficulty_std_error[0]) == (0.0, 0.0)
    assert_allclose(found.discrimination_std_error[[1, 2]], errors[:2], rtol=0.02)
    assert_allclose(found.intercept_std_error[1:], errors[2:5], rtol=0.02)
    assert_allclose(found.latent_mean_std_error[0, 0], errors[5], rtol=0.02)


def test_only_free_parameters_are_counted(anchored):
    log_likelihood = len(X) * anchored.score(X)
    assert_allclose(anchored.aic(X), -2 * log_likelihood + 2 * 7)
    assert anchored.model_fit(X).df == 10 - 7  # means and pairs of four items


def test_only_the_population_can_be_estimated():
    full = MPTItemResponse().fit(X)
    fixed = {
        j: {"discrimination": a, "difficulty": b}
        for j, (a, b) in enumerate(
            zip(full.discrimination_, full.difficulty_, strict=True)
        )
    }
    model = MPTItemResponse(fixed=fixed, population="free").fit(X)
    assert_allclose(model.discrimination_, full.discrimination_)
    assert_allclose(model.difficulty_, full.difficulty_)
    assert_allclose(model.latent_mean_, 0.0, atol=2e-3)
    assert_allclose(model.latent_variance_, 1.0, atol=5e-3)


def test_guessing_is_fixed_without_a_prior():
    fixed = {j: {"guessing": 0.2} for j in range(4)}
    model = MPTItemResponse("3pl", fixed=fixed).fit(X)
    assert_allclose(model.guessing_, 0.2)
    tight = MPTItemResponse("3pl", guessing_prior=(np.log(0.25), 1e-3)).fit(X)
    assert_allclose(model.discrimination_, tight.discrimination_, rtol=1e-2)
    assert_array_equal(model.item_parameters(X).guessing_std_error, 0.0)


@pytest.mark.parametrize("name", ["graded", "gpcm"])
def test_thresholds_of_levels_are_kept(name):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    noisy = rng.normal(size=(400, 1)) + rng.logistic(size=(400, 4))
    levels = pd.DataFrame(np.digitize(noisy, [-1.0, 1.0]), columns=list("abcd"))
    first = MPTItemResponse(name).fit(levels)
    given = {"discrimination": first.discrimination_[1]}
    given["difficulty"] = first.difficulty_[1]
    model = MPTItemResponse(name, fixed={"b": given}).fit(levels)
    assert_allclose(model.difficulty_[1], first.difficulty_[1])
    assert_allclose(model.score(levels), first.score(levels), atol=1e-6)


def test_parameters_of_nominal_items_are_kept():
    rng = np.random.default_rng(1)
    noisy = rng.normal(size=(400, 1)) + rng.logistic(size=(400, 4))
    levels = np.digitize(noisy, [-1.0, 1.0])
    first = MPTItemResponse("nominal").fit(levels)
    every = {
        "discrimination": first.discrimination_[1],
        "intercept": first.intercept_[1],
        "category_scores": first.category_scores_[1],
    }
    for names in (["intercept"], ["discrimination"], list(every)):
        given = {name: 1.2 * every[name] for name in names}
        if "category_scores" in given:
            given["category_scores"] = np.array([0.0, 0.7, 2.0])
        model = MPTItemResponse("nominal", fixed={1: given}).fit(levels)
        for name, value in given.items():
            assert_allclose(getattr(model, f"{name}_")[1], value, rtol=1e-10)
        assert (model.intercept_[0] != first.intercept_[0]).all()
        kept = {name: every[name] for name in names}
        model = MPTItemResponse("nominal", fixed={1: kept}).fit(levels)
        assert_allclose(model.score(levels), first.score(levels), atol=1e-6)
        errors = model.item_parameters(levels)
        is_kept = errors.intercept_std_error[1] == 0
        assert is_kept.all() == ("intercept" in names)
        assert (errors.discrimination_std_error[1] == 0) == ("discrimination" in names)


def test_groups_can_have_fixed_items():
    groups = np.repeat(["x", "y"], len(X) // 2)
    model = MPTItemResponse(fixed=FIXED, population="free").fit(X, groups=groups)
    assert (model.latent_mean_ != 0).all()
    assert_allclose(model.difficulty_[0], -1.0)


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("2pl", {"fixed": {9: {}}}, "fixed names an item 9, which X does not have"),
        ("2pl", {"fixed": {0: {"slope": 1}}}, "must be a dict with keys among"),
        ("2pl", {"fixed": {0: {"guessing": 0.1}}}, "'2pl' items of 1 abilities can"),
        ("2pl", {"fixed": {0: {"difficulty": 1.0}}}, "give the discrimination, too"),
        ("2pl", {"fixed": {0: {"intercept": [1, 2]}}}, "must be 1 finite number"),
        ("3pl", {"fixed": {0: {"guessing": 1.0}}}, r"must be in \[0, 1\)"),
        ("rasch", {"fixed": {0: {"discrimination": 1.0}}}, "can have fixed"),
        (
            "nominal",
            {"fixed": {0: {"category_scores": [0, 1]}}},
            "category_scores: give the discrimination, too",
        ),
        (
            "nominal",
            {"fixed": {0: {"category_scores": [1, 1], "discrimination": 1}}},
            r"must be 0 for the first answer and 1 for the last, got \[1, 1\]",
        ),
        ("nominal", {"fixed": {0: {"difficulty": 1.0}}}, "'nominal' items of 1"),
        (
            "2pl",
            {"n_components": 2, "fixed": {0: {"discrimination": 1.0}}},
            r"can have fixed \['intercept'\]. Slopes of several abilities are",
        ),
        ("2pl", {"population": "free"}, "to define the scale of z, got fixed=None"),
        (
            "2pl",
            {"population": "free", "fixed": {0: {"intercept": 1.0}}},
            "needs an item with fixed",
        ),
    ],
)
def test_messages(model, params, message):
    with pytest.raises(ValueError, match=message):
        MPTItemResponse(model, **params).fit(X)
