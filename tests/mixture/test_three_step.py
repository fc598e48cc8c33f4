"""Covariates and outcomes of classes, against SciPy's maxima and simulated truths."""

import copy

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp

from sklearn_mpt import MPTMixture

CORRECTIONS = ["ml", "bch", "none"]
COEF = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
MEANS, PROBA = np.array([0.0, 1.0, 3.0]), np.array([0.2, 0.5, 0.9])
ITEMS = np.array([[0.8] * 3 + [0.2] * 3, [0.2] * 3 + [0.8] * 3, [0.15] * 6])


def simulated(n=1000):
    """Rows of three classes, their covariates, and outcomes of two kinds."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(n, 2)) * [1.0, 2.0] + [0.0, 5.0]
    logits = (Z - [0.0, 5.0]) / [1.0, 2.0] @ COEF.T
    k = (logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
    X = (rng.random((n, 6)) < ITEMS[k]).astype(float)
    y = MEANS[k] + rng.normal(size=n)
    return X, Z, y, np.where(rng.random(n) < PROBA[k], "yes", "no")


X, Z, Y, WORDS = simulated()
UNITS = Z / [1.0, 2.0]
DATES = np.arange(len(X)).astype("datetime64[D]")


@pytest.fixture(scope="module")
def model():
    params = {"likelihood": "bernoulli", "objective": "lml", "tol": 1e-7}
    model = MPTMixture(3, n_init=3, random_state=0, **params).fit(X)
    errors = ((model.means_[:, None] - ITEMS) ** 2).sum(axis=2)
    order = errors.argmin(axis=0)  # that of ITEMS
    for name in ("weights_", "means_", "locations_"):
        setattr(model, name, getattr(model, name)[order])
    return model


def assigned(model, rows=X):
    """Assignments, and the probabilities of their errors."""
    proba = model.predict_proba(rows)
    chosen = proba.argmax(axis=1)
    joint = proba.T @ np.eye(3)[chosen]
    return chosen, joint / joint.sum(axis=1, keepdims=True)


def class_weights(model, correction, rows=X):
    chosen, errors = assigned(model, rows)
    return np.linalg.inv(errors if correction == "bch" else np.eye(3))[chosen]


def inverse_hessian(function, at):
    """By differences."""
    size, step = len(at), 1e-3

    def second(i, j):
        a, b = step * np.eye(size)[[i, j]]
        ends = function(at + a + b) - function(at + a - b)
        return (ends - function(at - a + b) + function(at - a - b)) / (4 * step**2)

    hessian = [[second(i, j) for j in range(size)] for i in range(size)]
    return np.linalg.inv(hessian)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_effects_are_where_scipy_finds_the_maximum(model, correction):
    found = model.covariate_effects(X, Z, correction=correction)
    chosen, errors = assigned(model)
    design = np.insert(UNITS, 0, 1.0, axis=1)
    log_errors = np.log(errors[:, chosen].T)
    weights = class_weights(model, correction)

    def minus_log_likelihood(theta):
        logits = design @ np.vstack([np.zeros(3), theta[:3], theta[3:]]).T
        log_proba = log_softmax(logits, axis=1)
        if correction == "ml":
            return -logsumexp(log_proba + log_errors, axis=1).sum()
        return -(weights * log_proba).sum()

    best = minimize(minus_log_likelihood, np.zeros(6)).x
    coef = np.c_[found.intercept, found.coef * [1.0, 2.0]]
    assert_allclose(coef[1:].ravel(), best, atol=1e-3)
    assert not coef[0].any()
    variance = inverse_hessian(minus_log_likelihood, best).diagonal()
    third_step = np.sqrt(variance).reshape(2, 3)[:, 1:] / [1.0, 2.0]
    if correction == "ml":  # errors of the assignments' probabilities are small here
        ratio = found.coef_std_error[1:] / third_step
        assert (ratio > 1).all()
        assert ratio.max() < 1.3


def test_effects_are_those_simulated_but_for_no_correction(model):
    found = {c: model.covariate_effects(X, UNITS, correction=c) for c in CORRECTIONS}
    for correction in ("ml", "bch"):
        error = (found[correction].coef - COEF)[1:]
        assert (np.abs(error) < 3.5 * found[correction].coef_std_error[1:]).all()
    assert (np.abs(found["none"].coef) < np.abs(found["ml"].coef))[COEF != 0].all()
    assert found["ml"].p_value.max() < 1e-6
    none = np.random.default_rng(1).normal(size=(len(X), 1))
    assert model.covariate_effects(X, none).p_value > 0.001


def test_the_reference_changes_the_comparison_alone(model):
    first = model.covariate_effects(X, Z)
    last = model.covariate_effects(X, Z, reference=2)
    assert_allclose(last.coef - last.coef[0], first.coef, atol=1e-5)
    assert_allclose(last.statistic, first.statistic, rtol=1e-4)
    assert_allclose(last.coef_std_error[0], first.coef_std_error[2], rtol=1e-4)


@pytest.mark.slow
def test_errors_are_those_of_all_steps_with_rows_drawn_again(model):
    found = model.class_outcomes(X, Y)
    rng, drawn = np.random.default_rng(2), []
    for _ in range(15):
        rows = rng.integers(len(X), size=len(X))
        again = copy.deepcopy(model).set_params(warm_start=True)  # keeps the order
        weights = class_weights(again.fit(X[rows]), "bch", X[rows])
        drawn.append((weights.T @ Y[rows]) / weights.sum(axis=0))
    ratio = found.std_error / np.std(drawn, axis=0, ddof=1)
    assert 0.7 < np.exp(np.log(ratio).mean()) < 1.4


@pytest.mark.parametrize("correction", ["ml", "bch"])
def test_outcomes_are_those_simulated(model, correction):
    means = model.class_outcomes(X, Y, correction=correction)
    words = model.class_outcomes(X, WORDS, correction=correction)
    assert (np.abs(means.estimate - MEANS) < 3.5 * means.std_error).all()
    error = words.estimate - np.c_[1 - PROBA, PROBA]
    assert (np.abs(error) < 3.5 * words.std_error).all()
    assert list(words.categories) == ["no", "yes"]
    assert max(means.p_value, words.p_value) < 1e-6
    naive = model.class_outcomes(X, Y, correction="none").estimate
    assert np.ptp(naive) < np.ptp(means.estimate)


def test_means_of_normals_are_where_scipy_finds_the_maximum(model):
    found = model.class_outcomes(X, Y, correction="ml")
    chosen, errors = assigned(model)
    log_errors = np.log(errors[:, chosen].T)

    def minus_log_likelihood(theta):
        log_proba = log_errors + log_softmax([0.0, *theta[6:]])
        residuals = (Y[:, None] - theta[:3]) / np.exp(theta[3:6])
        entries = -0.5 * residuals**2 - theta[3:6]
        return -logsumexp(log_proba + entries, axis=1).sum()

    best = minimize(minus_log_likelihood, [0.0, 1.0, 3.0, *np.zeros(5)]).x
    assert_allclose(found.estimate, best[:3], atol=1e-3)
    variance = inverse_hessian(minus_log_likelihood, best).diagonal()
    ratio = found.std_error / np.sqrt(variance[:3])
    assert (ratio > 1).all()
    assert ratio.max() < 2


def test_probabilities_by_both_corrections_agree(model):
    """Without covariates both solve the same equations."""
    ml, bch = (model.class_outcomes(X, WORDS, correction=c) for c in ("ml", "bch"))
    assert_allclose(ml.estimate, bch.estimate, atol=1e-5)
    assert_allclose(ml.covariance, bch.covariance, atol=2e-5)
    as_numbers = model.class_outcomes(X, WORDS == "yes")
    assert_allclose(as_numbers.estimate, bch.estimate)
    mean = model.class_outcomes(X, (WORDS == "yes").astype(float))
    assert_allclose(mean.estimate, bch.estimate[:, 1])
    assert_allclose(mean.statistic, bch.statistic)


def test_rows_without_an_outcome_are_left_out(model):
    some = Y.copy()
    some[::2] = np.nan
    found = model.class_outcomes(X, some)
    full = model.class_outcomes(X, Y)
    assert_allclose(found.assignment, full.assignment)
    weights = class_weights(model, "bch")[1::2]
    expected = (weights * Y[1::2, None]).sum(axis=0) / weights.sum(axis=0)
    assert_allclose(found.estimate, expected)


@pytest.mark.parametrize("number", [float, np.float64, np.float32])
def test_objects_that_are_all_numbers_are_numbers(model, number):
    some = np.array([number(y) for y in Y], dtype=object)
    some[::9] = None
    with_nan = np.where(np.arange(len(Y)) % 9 == 0, np.nan, Y.astype(number))
    expected = model.class_outcomes(X, with_nan).estimate
    assert_allclose(model.class_outcomes(X, some).estimate, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.covariate_effects(X, Z, reference=3), "reference must be a class"),
        (lambda m: m.covariate_effects(X, Z, correction="3"), "correction must be"),
        (lambda m: m.covariate_effects(X, Z[1:]), "inconsistent numbers of samples"),
        (lambda m: m.covariate_effects(X, Z * np.nan), "must have a row without gaps"),
        (lambda m: m.class_outcomes(X, Z), "should be a 1d array"),
        (lambda m: m.class_outcomes(X, Y[1:]), "inconsistent numbers of samples"),
        (lambda m: m.class_outcomes(X, Y / 0.0), "outcome must be finite"),
        (lambda m: m.class_outcomes(X, 0 * Y), "two different values, got 1"),
        (lambda m: m.class_outcomes(X, ["a"] * len(X)), "two different values, got 1"),
        (lambda m: m.class_outcomes(X, np.nan * Y), "two different values, got 0"),
        (lambda m: m.class_outcomes(X, DATES), "got dtype datetime64"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_cannot_be_analysed_is_refused(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_one_class_depends_on_nothing(model):
    one = MPTMixture(1, likelihood="bernoulli", random_state=0).fit(X)
    with pytest.raises(ValueError, match="n_components=1 has no classes"):
        one.covariate_effects(X, Z)
    found = one.class_outcomes(X, Y)
    assert_allclose(found.estimate, Y.mean())
    assert_allclose(found.std_error, Y.std() / np.sqrt(len(Y)))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_outcomes_of_tables(model, library):
    frames = pytest.importorskip(library)
    some = [None, *WORDS[1:].tolist()]
    expected = model.class_outcomes(X, np.array(some, dtype=object))
    assert_allclose(
        model.class_outcomes(X, frames.Series(some)).estimate, expected.estimate
    )
    frame = frames.DataFrame({"a": Z[:, 0], "b": Z[:, 1]})
    assert_allclose(
        model.covariate_effects(X, frame).coef, model.covariate_effects(X, Z).coef
    )
    gaps = frames.Series(
        [None, *range(1, len(X))], dtype={"pandas": "Int64"}.get(library)
    )
    counted = model.class_outcomes(X, gaps)
    numbers = np.r_[np.nan, 1.0 : len(X)]
    assert_allclose(counted.estimate, model.class_outcomes(X, numbers).estimate)


def test_classes_of_no_row_are_named(model):
    rows = np.ones((5, 6))
    with pytest.raises(ValueError, match=r"are the most probable ones of no row"):
        model.class_outcomes(rows, np.arange(5))


def test_covariates_of_strings_are_indicators(model):
    """One column as a vector, a Series or a column; the first category is left out."""
    towns = np.array(["Bern", "Chur", "Zug"])[np.arange(len(X)) % 3]
    indicators = (towns[:, None] == ["Chur", "Zug"]).astype(float)
    expected = model.covariate_effects(X, indicators)
    for covariates in (towns, towns.tolist(), pd.Series(towns, name="town")):
        effects = model.covariate_effects(X, covariates)
        assert_allclose(effects.coef, expected.coef, atol=1e-8)
    assert effects.names == ["town=Chur", "town=Zug"]
    order = pd.Categorical(towns, categories=["Zug", "Chur", "Bern"])
    frame = pd.DataFrame({"z": Z[:, 0], "town": order})
    effects = model.covariate_effects(X, frame)
    expected = np.column_stack([Z[:, 0], towns == "Chur", towns == "Bern"])
    assert effects.names == ["z", "town=Chur", "town=Bern"]
    assert_allclose(effects.coef, model.covariate_effects(X, expected).coef, atol=1e-8)
    one = model.covariate_effects(X, Z[:, 0])
    assert_allclose(one.coef, model.covariate_effects(X, Z[:, :1]).coef)
    with pytest.raises(ValueError, match="at least two different values"):
        model.covariate_effects(X, ["Bern"] * len(X))


def test_rows_without_a_covariate_have_no_part_in_the_regression(model):
    gaps = np.arange(len(X)) % 10 == 0
    with pytest.warns(UserWarning, match="100 of 1000 rows of covariates have gaps"):
        effects = model.covariate_effects(
            X, np.where(gaps[:, None], np.nan, Z), correction="none"
        )
    expected = model.covariate_effects(X[~gaps], Z[~gaps], correction="none")
    assert_allclose(effects.coef, expected.coef, atol=1e-8)
