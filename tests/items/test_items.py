"""Item response models: published figures, and enumeration as a second route."""

import copy
import itertools
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog
from scipy.special import expit
from scipy.stats import chi2, norm
from sklearn.exceptions import ConvergenceWarning

from sklearn_mpt import ItemCurveDisplay, MPTItemResponse, MPTLinearVAE, mpt_curve
from sklearn_mpt._items.item_statistics import collapse_cells

PATTERNS = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
# Sections 6 and 7 of the Law School Admission Test (Bock and Lieberman, 1970).
LSAT6 = np.array(
    "3 6 2 11 1 1 3 4 1 8 0 16 0 3 2 15 10 29 14 81 3 28 15 80 16 56 21 173 11 61 28 "
    "298".split(),
    dtype=float,
)
LSAT7 = np.array(
    "12 19 1 7 3 19 3 17 10 5 3 7 7 23 8 28 7 39 11 34 14 51 15 90 6 25 7 35 18 136 32 "
    "308".split(),
    dtype=float,
)
WITHOUT_SLOPE = ("rasch", "partial_credit")
NAMES = ("rasch", "2pl", "3pl", "graded", "partial_credit", "gpcm", "nominal")


@pytest.fixture(scope="module")
def lsat7():
    return MPTItemResponse().fit(PATTERNS, sample_weight=LSAT7)


@pytest.fixture(scope="module")
def lsat6():
    return MPTItemResponse("rasch").fit(PATTERNS, sample_weight=LSAT6)


def mixed_items():
    """Items of several kinds with given parameters, with two to four answers."""
    nan = np.nan
    return MPTItemResponse.from_items(
        model=["2pl", "3pl", "graded", "gpcm", "nominal"],
        discrimination=[1.2, 1.5, 0.9, 0.7, 0.6],
        intercept=[
            [0.3, nan, nan],
            [-0.5, nan, nan],
            [1.0, -0.4, nan],
            [0.5, 0.2, -0.3],
            [0.4, -0.1, nan],
        ],
        guessing=[0, 0.2, 0, 0, 0],
        category_scores=[[0, 1, 2, 3]] * 4 + [[0, -0.7, 2, 3]],
        random_state=0,
    )


def probabilities(model, z):
    """Of all answers at abilities, by the formulas; a list of arrays (c, s)."""
    found = []
    d = len(model.n_categories_)
    intercepts = model.intercept_.reshape(d, -1)
    for j, (name, count) in enumerate(
        zip(model.model, model.n_categories_, strict=True)
    ):
        a, b = model.discrimination_[j], intercepts[j, : count - 1]
        if name in ("2pl", "graded", "3pl", "rasch"):
            above = expit(a * z + b[:, None])
            if name == "3pl":
                above = model.guessing_[j] + (1 - model.guessing_[j]) * above
            ends = np.ones((1, len(z))), np.zeros((1, len(z)))
            found.append(-np.diff(np.concatenate([ends[0], above, ends[1]]), axis=0))
        else:
            scores = model.category_scores_[j, :count]
            logits = scores[:, None] * a * z + np.append(0, b)[:, None]
            share = np.exp(logits)
            found.append(share / share.sum(axis=0))
    return found


def all_rows(model):
    return np.array(
        list(itertools.product(*(range(c) for c in model.n_categories_))), float
    )


def pattern_probabilities(model, rows, mean=0.0, deviation=1.0):
    """p(row) by a fine grid over z."""
    z = mean + deviation * np.linspace(-9, 9, 2001)
    weight = norm.pdf(z, mean, deviation) * (z[1] - z[0])
    prob = probabilities(model, z)
    each = [prob[j][rows[:, j].astype(int)] for j in range(rows.shape[1])]
    return np.prod(each, axis=0) @ weight


# Published figures


def test_lsat7_is_that_of_mirt(lsat7):
    weights = {"sample_weight": LSAT7}
    assert_allclose(lsat7.log_likelihood(PATTERNS, LSAT7), -2658.8051, atol=1e-3)
    slopes = [0.988, 1.081, 1.706, 0.7651, 0.7358]
    assert_allclose(lsat7.discrimination_, slopes, atol=2e-3)
    assert_allclose(lsat7.model_fit(PATTERNS, **weights).m2, 11.93841, atol=1e-3)
    fit = lsat7.item_fit(PATTERNS, **weights)
    s_x2 = [4.749440, 14.451071, 1.270381, 5.237400, 0.941125]
    assert_allclose(fit.s_x2, s_x2, atol=1e-2)
    assert fit.df_s_x2.tolist() == [2] * 5
    zh = [1.431838, 6.354917, 5.310844, 5.804449, 0.696139]
    assert_allclose(fit.zh, zh, atol=1e-2)
    eap = [-1.8665957, -1.5266920, -1.5134024, -1.1852276, -1.0946830, -0.7666992]
    assert_allclose(lsat7.transform(PATTERNS[:6])[:, 0], eap, atol=4e-3)
    modes = [-1.8165552, -1.4946906, -1.4822982, -1.1789899, -1.0958928, -0.7951026]
    found = lsat7.abilities(PATTERNS[:6], method="map").theta[:, 0]
    assert_allclose(found, modes, atol=2e-3)
    errors = lsat7.item_parameters(PATTERNS, LSAT7).discrimination_std_error
    limits = np.array([1.3354, 1.4119, 2.334, 1.028, 1.032])
    limits -= [0.6406, 0.7501, 1.0779, 0.5022, 0.4395]
    assert_allclose(errors, limits / (2 * 1.96), atol=2e-3)


def test_lsat6_with_equal_slopes_is_that_of_mirt(lsat6):
    assert_allclose(lsat6.intercept_, [2.73, 0.999, 0.24, 1.306, 2.099], atol=2e-3)
    assert_allclose(lsat6.latent_variance_, [[0.57]], atol=2e-3)
    fit = lsat6.model_fit(PATTERNS, sample_weight=LSAT6)
    assert_allclose([fit.m2, fit.df], [5.291576, 9], atol=1e-3)
    two = MPTItemResponse().fit(PATTERNS, sample_weight=LSAT6)
    assert_allclose(two.item_fit(PATTERNS, LSAT6).p_s_x2[0], 0.7984, atol=1e-3)
    test = two.likelihood_ratio_test(lsat6, PATTERNS, LSAT6)
    assert test.df == 4
    assert_allclose(test.p_value, chi2.sf(test.statistic, 4))


def test_abilities_of_mirt_by_maximum_likelihood():
    model = MPTItemResponse("rasch").fit(PATTERNS, sample_weight=LSAT7)
    rows = np.repeat(PATTERNS, LSAT7.astype(int), 0)[[0, 12, 33, 39, 999]]
    theta, error = model.abilities(rows, method="ml")
    unit = np.sqrt(model.latent_variance_[0, 0])
    expected = [-np.inf, -2.783489, -1.750890, -2.783489, np.inf]
    assert_allclose(theta[:, 0] / unit, expected, atol=1e-2)
    assert np.isinf(error[[0, -1]]).all()
    assert np.isnan(model.abilities(np.full((1, 5), np.nan), method="ml").theta).all()


def test_gaps_are_integrated_out_as_in_mirt():
    rows = np.repeat(PATTERNS, LSAT7.astype(int), 0)
    rows[0, 0] = rows[1, 1] = np.nan
    model = MPTItemResponse().fit(rows)
    slopes = [0.969, 1.074, 1.717, 0.763, 0.731]
    assert_allclose(model.discrimination_, slopes, atol=2e-3)


def test_linear_models_have_no_hidden_prior(lsat7):
    """The optimum of item models is one of linear models, which stay there."""
    separated = np.repeat(PATTERNS[[0, 1, 15, 31]], 5, 0)
    with pytest.warns(ConvergenceWarning, match="exceed 10"):
        steep = MPTItemResponse().fit(separated)
    assert 10 < np.abs(steep.discrimination_).max() < 13
    for items, rows, weight in ((lsat7, PATTERNS, LSAT7), (steep, separated, None)):
        start = {
            "components": items.discrimination_[None],
            "intercept": items.intercept_,
        }
        linear = MPTLinearVAE(1, likelihood="bernoulli", objective="lml", init=start)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            linear.fit(rows, sample_weight=weight)
        assert_allclose(linear.components_[0], items.discrimination_, rtol=0.01)
        assert (items is steep) == any("exceed 10" in str(w.message) for w in caught)


# Densities


def test_rows_of_all_kinds_have_the_probabilities_of_the_formulas():
    model = mixed_items()
    rows = all_rows(model)
    log_prob, error = model.score_samples(rows, return_std=True)
    assert_allclose(np.exp(log_prob).sum(), 1)
    assert_allclose(np.exp(log_prob), pattern_probabilities(model, rows), rtol=1e-6)
    assert (error == 0).all()


def test_conditionals_are_ratios_of_sums_of_rows():
    model = mixed_items()
    rows, row = all_rows(model), np.array([[1.0, np.nan, 2, 0, 1]])
    prob = np.exp(model.score_samples(rows))
    mask = np.array([False, False, True, False, True])
    seen = (rows[:, 0] == 1) & (rows[:, 3] == 0)
    found = model.conditional_log_prob(row, mask)[0]
    for j in (2, 4):
        expected = prob[seen & (rows[:, j] == row[0, j])].sum() / prob[seen].sum()
        assert_allclose(np.exp(found[j]), expected)
    assert_allclose(found[[0, 1, 3]], 0)
    curve = mpt_curve(model, rows[:40], design="all")
    assert_allclose(curve.lml, model.score(rows[:40]))


def test_gaps_are_filled_with_the_median_and_nominal_ones_with_the_mode():
    model = mixed_items()
    rows = all_rows(model)
    prob = np.exp(model.score_samples(rows))
    filled = model.impute(np.array([[1, 0, np.nan, np.nan, np.nan]]))[0]
    seen = (rows[:, 0] == 1) & (rows[:, 1] == 0)
    for j in (2, 3):
        below = [
            prob[seen & (rows[:, j] <= c)].sum() / prob[seen].sum() for c in range(4)
        ]
        assert filled[j] == np.argmax(np.array(below) >= 0.5)
    counts = [prob[seen & (rows[:, 4] == c)].sum() for c in range(3)]
    assert filled[4] == np.argmax(counts)


def test_draws_have_the_probabilities_of_the_model():
    model = mixed_items()
    drawn = model.sample(4000, random_state=0)
    for j, prob in enumerate(_marginals(model)):
        share = [np.mean(drawn[:, j] == c) for c in range(len(prob))]
        assert_allclose(share, prob, atol=4 * np.sqrt(0.25 / 4000))


def _marginals(model):
    z = np.linspace(-9, 9, 2001)
    weight = norm.pdf(z) * (z[1] - z[0])
    return [prob @ weight for prob in probabilities(model, z)]


# Statistics, by enumeration of all rows


def test_m2_and_c2_by_enumeration():
    """Covariance of moments, and their derivatives, from probabilities of all rows."""
    model = MPTItemResponse("graded").fit(_graded_rows(300, 4))
    rows, rng = all_rows(model), np.random.default_rng(1)
    observed = rng.multinomial(500, np.exp(model.score_samples(rows)) / 1.0).astype(
        float
    )
    fit = model.model_fit(rows, sample_weight=observed)
    pairs = list(itertools.combinations(range(4), 2))
    products = [rows[:, i] * rows[:, j] for i, j in pairs]
    indicators = [rows[:, j] == c for j in range(4) for c in (1, 2)]
    prob = np.exp(model.score_samples(rows))
    slopes = _derivatives(model, rows)
    for univariate, found, df in (
        (list(rows.T), fit.m2, fit.df),
        (indicators, fit.c2, fit.df_c2),
    ):
        T = np.array([*univariate, *products], dtype=float)
        off = T @ (observed / 500 - prob)
        xi = (T * prob) @ T.T - np.outer(T @ prob, T @ prob)
        delta = T @ slopes
        inverse = np.linalg.inv(xi)
        if len(T) <= slopes.shape[1]:
            assert df == 0
            assert np.isnan(found)
            continue
        inner = np.linalg.inv(delta.T @ inverse @ delta)
        middle = inverse - inverse @ delta @ inner @ delta.T @ inverse
        assert df == len(T) - slopes.shape[1]
        assert_allclose(found, 500 * off @ middle @ off, rtol=1e-4)


def _graded_rows(n, d, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 1, 1))
    cuts = np.array([0.8, -0.8]) + np.linspace(-0.5, 0.5, d)[:, None]
    chance = expit(np.linspace(1, 1.8, d)[:, None] * z + cuts)
    return (rng.random((n, d, 1)) < chance).sum(axis=2).astype(float)


def _derivatives(model, rows, step=1e-4):
    """Of the probabilities of rows in slopes and intercepts; (n, p)."""
    given = np.column_stack([model.discrimination_, model.intercept_])

    def prob(at):
        made = MPTItemResponse.from_items(
            model=model.model, discrimination=at[:, 0], intercept=at[:, 1:]
        )
        return np.exp(made.score_samples(rows))

    steps = step * np.eye(given.size).reshape(-1, *given.shape)
    return np.stack(
        [(prob(given + s) - prob(given - s)) / (2 * step) for s in steps], 1
    )


def test_expected_answers_by_sum_score_by_enumeration():
    model = MPTItemResponse("gpcm").fit(_graded_rows(200, 4))
    rows = all_rows(model)
    prob, total = np.exp(model.score_samples(rows)), rows.sum(axis=1)
    weight = np.random.default_rng(0).multinomial(400, prob).astype(float)
    fit = model.item_fit(rows, sample_weight=weight)
    for j in range(4):
        observed, expected = np.zeros((2, 7, 3))
        for row, k in enumerate(range(1, 8)):
            here = total == k
            for c in range(3):
                chosen = here & (rows[:, j] == c)
                observed[row, c] = weight[chosen].sum()
                share = (
                    prob[chosen].sum() / prob[here].sum() if chosen.any() else np.nan
                )
                expected[row, c] = weight[here].sum() * share
        observed, expected = collapse_cells(observed, expected)
        value = np.nansum((observed - expected) ** 2 / expected)
        df = np.count_nonzero(~np.isnan(expected)) - len(expected) - 3
        assert fit.df_s_x2[j] == df
        assert_allclose(fit.s_x2[j], value, rtol=1e-6)


@pytest.mark.slow
def test_s_x2_of_few_items_with_equal_slopes_rejects_at_its_level():
    true = MPTItemResponse.from_items(
        model="rasch", difficulty=np.linspace(-1.5, 1.5, 4)
    )
    p = []
    for seed in range(150):
        X = true.sample(1000, random_state=seed)
        p.append(MPTItemResponse("rasch").fit(X).item_fit(X).p_s_x2)
    share = np.mean(np.array(p) < 0.05)
    error = np.sqrt(0.05 * 0.95 / len(p))  # as if the items of a fit agreed
    assert abs(share - 0.05) < 3 * error


CELLS = {  # observed and expected numbers, and these after collapsing
    "of less than one person": (
        [[3.0, 0], [5, 1], [6, 4], [1, 9], [0, 5]],
        [[2.6, 0.4], [4.8, 1.2], [5.5, 4.5], [1.4, 8.6], [0.3, 4.7]],
        [[8, 1], [6, 4], [1, 14]],
        [[7.4, 1.6], [5.5, 4.5], [1.7, 13.3]],
    ),
    "of scores that exclude an answer": (
        [[1.0, 0], [5, 5], [6, 4], [2, 8], [0, 2]],
        [[np.nan, 1], [5, 5], [5, 5], [3, 7], [2, np.nan]],
        [[6, 5], [6, 4], [2, 10]],
        [[5, 6], [5, 5], [5, 7]],
    ),
    "of rare categories": (
        [[1.0, 3, 4], [2, 3, 5]],
        [[0.2, 3.8, 4], [2, 3, 5]],
        [[4, 4, 0], [2, 3, 5]],
        [[4, 4, np.nan], [2, 3, 5]],
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_join_their_neighbours(name):
    observed, expected, *collapsed = map(np.array, CELLS[name])
    for found, other in zip(collapse_cells(observed, expected), collapsed, strict=True):
        assert_allclose(found, other)


def test_srmsr_is_that_of_enumerated_correlations(lsat7):
    prob = np.exp(lsat7.score_samples(PATTERNS))
    covariances = [np.cov(PATTERNS.T, aweights=share) for share in (prob, LSAT7)]
    units = [np.sqrt(np.diag(each)) for each in covariances]
    expected, observed = (
        each / np.outer(unit, unit)
        for each, unit in zip(covariances, units, strict=True)
    )
    off = (observed - expected)[np.triu_indices(5, 1)]
    found = lsat7.model_fit(PATTERNS, sample_weight=LSAT7).srmsr
    assert found == pytest.approx(np.sqrt(np.mean(off**2)), rel=1e-5)


def test_infit_outfit_and_zh_by_their_formulas(lsat7):
    theta = lsat7.transform(PATTERNS)
    prob = expit(theta * lsat7.discrimination_ + lsat7.intercept_)
    off, variance = PATTERNS - prob, prob * (1 - prob)
    fit = lsat7.item_fit(PATTERNS, sample_weight=LSAT7)
    assert_allclose(fit.outfit, LSAT7 @ (off**2 / variance) / 1000)
    assert_allclose(fit.infit, LSAT7 @ off**2 / (LSAT7 @ variance))
    people = lsat7.person_fit(PATTERNS)
    assert_allclose(people.infit, (off**2).sum(1) / variance.sum(1))
    log_prob = np.where(PATTERNS == 1, np.log(prob), np.log1p(-prob)).sum(1)
    mean = (prob * np.log(prob) + (1 - prob) * np.log1p(-prob)).sum(1)
    spread = (variance * np.log(prob / (1 - prob)) ** 2).sum(1)
    assert_allclose(people.zh, (log_prob - mean) / np.sqrt(spread))
    q3 = lsat7.residual_correlations(PATTERNS, LSAT7)
    centred = off - LSAT7 @ off / 1000
    cross = (LSAT7[:, None] * centred).T @ centred
    unit = 1 / np.sqrt(np.diag(cross))
    assert_allclose(q3, cross * unit * unit[:, None])


def test_errors_of_too_many_parameters_are_refused():
    model = MPTItemResponse.from_items(difficulty=np.zeros(1001))
    with pytest.raises(ValueError, match=r"errors of 2002 parameters.*fit fewer items"):
        model.item_parameters(np.eye(1001)[:3])


# Training


def three_parameter_answers(seed, n_items, max_slope):
    places = np.random.default_rng(0).permutation(n_items)
    true = MPTItemResponse.from_items(
        model="3pl",
        discrimination=np.linspace(0.8, max_slope, n_items),
        difficulty=np.linspace(-2, 2, n_items)[places],
        guessing=np.full(n_items, 0.2),
    )
    return true.sample(1000, random_state=seed)


def test_guessing_at_its_bound_takes_errors_from_its_item_alone():
    """The errors of other items are those with guessing of these items fixed at 0."""
    X = three_parameter_answers(seed=2, n_items=12, max_slope=1.6)
    model = MPTItemResponse("3pl", tol=1e-9).fit(X)
    lost = model.guessing_ < 1e-4
    assert 0 < lost.sum() < 6
    with pytest.warns(UserWarning, match="guessing_prior") as caught:
        found = model.item_parameters(X)
    (warning,) = caught
    assert str(np.flatnonzero(lost).tolist()) in str(warning.message)
    for error in (found.difficulty_std_error, found.guessing_std_error):
        assert np.array_equal(np.isnan(error), lost)
    names = np.where(lost, "2pl", "3pl").tolist()
    other = MPTItemResponse(names, tol=1e-9).fit(X)
    assert_allclose(model.log_likelihood(X), other.log_likelihood(X), atol=1e-3)
    expected = other.item_parameters(X)
    for name in ("discrimination", "difficulty", "guessing"):
        error, other_error = (
            getattr(result, f"{name}_std_error")[~lost] for result in (found, expected)
        )
        assert_allclose(error, other_error, rtol=0.02)


def test_errors_of_other_items_outlive_guessing_that_is_hardly_determined():
    X = three_parameter_answers(seed=27, n_items=20, max_slope=2.0)
    model = MPTItemResponse("3pl", slope_prior=3.0).fit(X)
    with pytest.warns(UserWarning, match="guessing_prior"):
        found = model.item_parameters(X)
    known = model.guessing_ > 0.02
    assert known.sum() > 10
    assert np.isfinite(found.difficulty_std_error[known]).all()


def test_a_variance_at_its_bound_has_no_standard_error():
    X = (np.random.default_rng(0).random((400, 4)) < 0.5).astype(float)
    model = MPTItemResponse("rasch").fit(X)
    assert model.latent_variance_[0, 0] < 1e-3
    with pytest.warns(UserWarning, match="variance of z is at its bound"):
        found = model.item_parameters(X)
    assert np.isnan(found.latent_variance_std_error).all()
    # answers that do not depend on each other: those of proportions
    share = X.mean(axis=0)
    error = 1 / np.sqrt(len(X) * share * (1 - share))
    assert_allclose(found.difficulty_std_error, error, rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_difficulties_of_items_with_one_answer_are_infinite(name):
    X = (np.random.default_rng(0).random((200, 5)) < 0.6).astype(float)
    X[:, 0], X[:, 1] = 1, 0
    with pytest.warns(ConvergenceWarning, match=r"\[0, 1\].*infinite"):
        model = MPTItemResponse(name, slope_prior=2.0).fit(X)
    if name != "nominal":
        assert model.difficulty_[:2].tolist() == [-np.inf, np.inf]
        assert np.isfinite(model.difficulty_[2:]).all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = model.item_parameters(X)
    assert any("[0, 1] are the same" in str(w.message) for w in caught)
    for error in (found.intercept_std_error, found.difficulty_std_error):
        assert np.isnan(error[:2]).all()
    if name != "3pl":
        assert np.isfinite(found.intercept_std_error[2:]).all()


def test_thresholds_with_all_answers_on_one_side_are_infinite():
    """Easy without the lowest answer, hard without the highest; else if reversed.

    The slope of an item with one answer has no sign.
    """
    answers = _graded_rows(300, 6, seed=1).clip(max=2)
    answers[:, :2] = 2 - answers[:, :2]
    answers[:, [0, 2]] = answers[:, [0, 2]].clip(min=1)
    answers[:, [1, 3]] = answers[:, [1, 3]].clip(max=1)
    answers[:, 4] = 1
    levels = pd.CategoricalDtype([0, 1, 2], ordered=True)
    table = pd.DataFrame(answers.astype(int)).add_prefix("q").astype(levels)
    with pytest.warns(ConvergenceWarning, match="Nobody gave"):
        model = MPTItemResponse("graded").fit(table)
    assert (model.discrimination_[:4] < 0).tolist() == [True, True, False, False]
    infinite = np.where(np.isinf(model.difficulty_), model.difficulty_, 0)
    inf = np.inf
    expected = [[inf, 0], [0, -inf], [-inf, 0], [0, inf], [-inf, inf], [0, 0]]
    assert infinite.tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_fits_end_where_no_parameter_gains(name):
    count = 2 if name in ("rasch", "2pl", "3pl") else 3
    rows = np.minimum(_graded_rows(300, 5, seed=1), count - 1)
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = np.nan
    prior = (-1.5, 1.0) if name == "3pl" else None
    model = MPTItemResponse(name, guessing_prior=prior).fit(rows)
    rng = np.random.default_rng(1)
    for size in (0.01, -0.01):
        slopes = model.discrimination_ * (1 + (name not in WITHOUT_SLOPE) * size)
        moved = MPTItemResponse.from_items(
            model=name,
            discrimination=slopes,
            intercept=model.intercept_ + size * rng.normal(size=model.intercept_.shape),
            guessing=model.guessing_,
            category_scores=model.category_scores_,
            latent_variance=model.latent_variance_[0, 0],
        )
        assert moved.score(rows) < model.score(rows)
    assert model.discrimination_.sum() > 0
    assert np.isfinite(model.impute(rows)).all()


def test_groups_differ_in_mean_and_variance():
    """Against the likelihood itself: moving either parameter gains nothing."""
    items = MPTItemResponse.from_items(
        discrimination=np.linspace(0.8, 1.6, 6), intercept=np.linspace(-1, 1, 6)
    )
    one = items.sample(300, random_state=0)
    far = MPTItemResponse.from_items(
        discrimination=np.linspace(0.8, 1.6, 6),
        intercept=np.linspace(-1, 1, 6),
        latent_mean=0.8,
        latent_variance=1.5,
    ).sample(300, random_state=1)
    rows, groups = np.concatenate([one, far]), np.repeat(["a", "b"], 300)
    model = MPTItemResponse().fit(rows, groups=groups)
    assert model.latent_mean_[0] == 0
    assert model.latent_variance_[0] == 1
    errors = model.item_parameters(rows, groups=groups)
    distance = (model.latent_mean_[1] - 0.8) / errors.latent_mean_std_error[1]
    assert abs(distance[0]) < 3
    named = MPTItemResponse.from_items(
        model=["2pl"] * 6,
        discrimination=model.discrimination_,
        intercept=model.intercept_,
    )
    deviation = np.sqrt(model.latent_variance_[1, 0])
    expected = pattern_probabilities(named, far, model.latent_mean_[1, 0], deviation)
    expected = np.log(expected).sum() + named.score_samples(one).sum()
    assert_allclose(model.log_likelihood(rows, groups=groups), expected, rtol=1e-8)
    assert model._n_parameters == 14
    half_right = np.array([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0]])
    there = model.abilities(half_right, groups=["b"]).theta
    assert there > model.abilities(half_right, groups=["a"]).theta
    for group in "ab":
        mean, error = model.abilities(rows[:1], groups=[group])
        params = {"groups": [group], "n_draws": 2000, "random_state": 0}
        drawn = model.abilities(rows[:1], "plausible", **params).theta
        assert drawn.shape == (2000, 1, 1)
        assert_allclose(drawn.mean(), mean[0, 0], atol=4 * error[0, 0] / 2000**0.5)
        assert_allclose(drawn.std(), error[0, 0], atol=0.05)
    with pytest.raises(ValueError, match="groups must be among those of fit"):
        model.abilities(rows[:1], groups=["c"])


@pytest.mark.parametrize("name", ["2pl", "rasch", "3pl"])
def test_the_reference_group_sets_the_scale(answers_of_groups, name):
    """Abilities z of the one scale are mu + sigma z of the other."""
    X, groups = answers_of_groups
    params = {"slope_prior": None, "tol": 1e-10}
    if name == "3pl":
        params["guessing_prior"] = (-1.5, 0.5)
    first = MPTItemResponse(name, **params).fit(X, groups=groups)
    label = first.groups_[1]
    other = MPTItemResponse(name, reference_group=label, **params)
    other.fit(X, groups=groups)
    assert (first.reference_group_, other.reference_group_) == (first.groups_[0], label)
    assert_array_equal(first.groups_, other.groups_)
    args = (X, None)
    assert_allclose(
        other.log_likelihood(*args, groups=groups),
        first.log_likelihood(*args, groups=groups),
        atol=1e-5,
    )
    mu = first.latent_mean_[1, 0]
    sigma = 1.0 if name == "rasch" else np.sqrt(first.latent_variance_[1, 0])
    close = {"atol": 2e-3, "rtol": 2e-3}
    assert_allclose(other.difficulty_, (first.difficulty_ - mu) / sigma, **close)
    assert_allclose(other.discrimination_, first.discrimination_ * sigma, **close)
    assert_allclose(other.latent_mean_, (first.latent_mean_ - mu) / sigma, **close)
    assert_allclose(other.latent_variance_, first.latent_variance_ / sigma**2, **close)
    errors = other.item_parameters(X, groups=groups)
    assert (errors.latent_mean_std_error[:, 0] > 0).tolist() == [True, False]


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan])
def test_missing_labels_of_groups_are_refused(missing, answers_of_groups):
    X, groups = answers_of_groups
    labels = groups.astype(object)
    labels[::2] = missing
    with pytest.raises(ValueError, match="groups must not contain missing labels"):
        MPTItemResponse().fit(X, groups=labels)


def test_groups_that_are_not_known_are_refused(answers_of_groups):
    X, groups = answers_of_groups
    with pytest.raises(ValueError, match="reference_group must be one of the groups"):
        MPTItemResponse(reference_group="none").fit(X, groups=groups)
    with pytest.raises(ValueError, match="groups was not given"):
        MPTItemResponse(reference_group=groups[0]).fit(X)
    model = MPTItemResponse(warm_start=True, max_iter=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    with pytest.raises(ValueError, match="groups must be those of the fitted model"):
        model.fit(X, groups=groups)


@pytest.mark.parametrize(
    ("name", "answer", "reference"),
    [(name, i % 2, "ab"[i // 2 % 2]) for i, name in enumerate(NAMES)],
)
def test_group_with_all_answers_at_one_end_is_warned_of(name, answer, reference):
    """Answers to one item are reversed, so that its slope is negative."""
    X, group = 1.0 * (_graded_rows(200, 4) > 0), np.repeat(["a", "b"], 100)
    is_reversed = name in ("2pl", "graded", "gpcm", "nominal")
    X[100:] = answer
    if is_reversed:
        X[:, 3] = 1 - X[:, 3]
    X[100, 0] = np.nan
    model = MPTItemResponse(
        name, reference_group=reference, guessing_prior=(-2.0, 0.5), max_iter=30
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, groups=group)
    assert sum("answers of ['b'] are" in str(w.message) for w in caught) == 1
    X[100, 1] = 1 - answer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, groups=group)
    assert not any("answers of" in str(w.message) for w in caught)


def test_free_population_with_all_answers_at_one_end_is_warned_of():
    fixed = {j: {"discrimination": 1.0, "intercept": 0.0} for j in range(3)}
    model = MPTItemResponse(fixed=fixed, population="free", max_iter=20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.ones((50, 3)))
    assert any("All answers are those" in str(w.message) for w in caught)


def test_differential_functioning_is_found():
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 500)
    z = rng.normal(size=(1000, 1)) + 0.5 * group[:, None]
    difficulty = np.tile(np.linspace(-1, 1, 6), (1000, 1))
    difficulty[:, 2] += 1.0 * group
    rows = 1.0 * (rng.random((1000, 6)) < expit(1.2 * (z - difficulty)))
    model = MPTItemResponse().fit(rows)
    test = model.dif(rows, group)
    assert np.argmin(test.p_value) == 2
    assert test.df.tolist() == [2] * 6
    anchored = model.dif(rows, group, anchors=[0, 1, 3])
    assert np.isnan(anchored.p_value[[0, 1, 3]]).all()
    assert anchored.p_value[2] < 0.01 < np.min(anchored.p_value[[4, 5]])


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The slopes of:sklearn.exceptions.ConvergenceWarning"
)
def test_differential_functioning_where_a_group_is_all_right():
    """Against fits of items that are split by hand, and of this one without the group.

    The likelihood has several maxima, as one item nearly separates the groups.
    """
    rng = np.random.default_rng(0)
    intercept = -np.sort(-rng.normal(size=(5, 2)), axis=1)
    true = MPTItemResponse.from_items(
        model="graded", discrimination=rng.uniform(0.8, 1.8, 5), intercept=intercept
    )
    X, group = true.sample(300, random_state=0), np.repeat([0, 1], 150)
    X[150:, 2] = 2
    found = MPTItemResponse("graded").fit(X).dif(X, group).statistic
    equal = (
        MPTItemResponse("graded").fit(X, groups=group).log_likelihood(X, groups=group)
    )
    without = X.astype(float)
    without[150:, 2] = np.nan
    alone = [np.where(group == g, X[:, 1], np.nan) for g in (0, 1)]
    split = np.column_stack([*alone, np.delete(X, 1, axis=1)])
    for j, rows in ((2, without), (1, split)):
        free = MPTItemResponse("graded").fit(rows, groups=group)
        gain = free.log_likelihood(rows, groups=group) - equal
        assert_allclose(found[j], 2 * gain, atol=1e-2)


def test_differential_functioning_without_one_answer_in_a_group():
    """An answer nobody gave: the item is fitted again as items of one group each."""
    X, group = _graded_rows(400, 5, seed=2), np.repeat([0, 1], 200)
    X[200:, 0] = X[200:, 0].clip(max=1)
    found = MPTItemResponse("graded").fit(X).dif(X, group, anchors=[1, 2, 3, 4])
    alone = [np.where(group == g, X[:, 0], np.nan) for g in (0, 1)]
    split = np.column_stack([*alone, X[:, 1:]])
    names = ["graded", "2pl", *["graded"] * 4]
    free = MPTItemResponse(names).fit(split, groups=group)
    equal = MPTItemResponse("graded").fit(X, groups=group)
    gain = free.log_likelihood(split, groups=group)
    gain -= equal.log_likelihood(X, groups=group)
    assert_allclose(found.statistic[0], 2 * gain, atol=1e-3)
    assert found.df[0] == 3


def test_differential_functioning_has_no_priors():
    X, group = 1.0 * (_graded_rows(200, 4) > 0), np.arange(200) % 2
    found = MPTItemResponse(slope_prior=0.5).fit(X).dif(X, group, anchors=[2, 3])
    expected = MPTItemResponse().fit(X).dif(X, group, anchors=[2, 3])
    assert_allclose(found.statistic, expected.statistic, atol=1e-3)
    assert (found.statistic[:2] > 0).all()


def test_groups_without_answers_to_an_item_add_no_freedom():
    X, group = 1.0 * (_graded_rows(150, 4) > 0), np.repeat([0, 1, 2], 50)
    X[:50, 0] = X[:100, 1] = np.nan
    found = MPTItemResponse("rasch").fit(X).dif(X, group)
    assert found.df.tolist() == [1, 0, 2, 2]
    assert np.isnan(found.p_value).tolist() == [False, True, False, False]
    assert_allclose(found.p_value[0], chi2.sf(found.statistic[0], 1))


def test_several_abilities_and_their_rotations():
    slopes = np.zeros((8, 2))
    slopes[:4, 0] = slopes[4:, 1] = [0.9, 1.2, 1.5, 1.1]
    true = MPTItemResponse.from_items(
        discrimination=slopes,
        intercept=np.linspace(-1, 1, 8),
        factor_correlation=[[1, 0.5], [0.5, 1]],
    )
    rows = true.sample(1500, random_state=0)
    oblique = MPTItemResponse(n_components=2, rotation="oblimin").fit(rows)
    assert abs(oblique.factor_correlation_[0, 1] - 0.5) < 0.15
    small = np.abs(oblique.discrimination_)[slopes[:, ::-1] == 0]
    plain = MPTItemResponse(n_components=2).fit(rows)
    few = rows[:50]
    assert_allclose(oblique.score_samples(few), plain.score_samples(few), atol=1e-3)
    assert plain._n_parameters == 23
    axes = plain.discrimination_.T @ plain.discrimination_
    assert abs(axes[0, 1]) < 1e-8
    errors = oblique.item_parameters(rows).discrimination_std_error
    assert errors.shape == (8, 2)
    assert np.isfinite(errors).all()
    assert np.median(small / errors[slopes[:, ::-1] == 0]) < 30
    theta = oblique.abilities(rows[:3], method="map").theta
    assert_allclose(theta, oblique.transform(rows[:3]), atol=0.4)


def test_rotation_finds_simple_structure():
    simple = np.array([[1.5, 0], [1, 0], [0.5, 0], [0, 1], [0, 0.8], [0, 1.2]])
    angle = np.array([[np.cos(0.6), -np.sin(0.6)], [np.sin(0.6), np.cos(0.6)]])
    model = MPTItemResponse.from_items(
        discrimination=simple @ angle, intercept=np.zeros(6)
    )
    length = np.sqrt((simple**2).sum(1, keepdims=True) + np.pi**2 / 3)
    for method in ("varimax", "quartimax", "oblimin", "promax"):
        solution = model.factor_loadings(rotation=method)
        found = np.abs(solution.loadings)
        order = np.argsort(-found[0])
        assert_allclose(found[:, order], simple / length, atol=1e-4)
        assert_allclose(solution.factor_correlation, np.eye(2), atol=1e-4)


def test_likelihoods_of_several_abilities_without_a_maximum_are_at_infinity():
    slopes = np.array([[1.0, 0.0]] * 4 + [[0.0, 1.5]] * 4)
    model = MPTItemResponse.from_items(
        discrimination=slopes, intercept=np.tile([-1.0, 0, 0.5, 1], 2)
    )
    rows = np.array([[1] * 8, [0] * 8, [1] * 4 + [0] * 4, [1] * 4 + [1, 0, 1, 0]])
    theta, error = model.abilities(rows, method="ml")
    assert_allclose(theta[:3], np.inf * np.array([[1, 1], [-1, -1], [1, -1]]))
    assert np.isposinf(error[:3]).all()
    assert theta[3, 0] == np.inf
    alone = MPTItemResponse.from_items(
        discrimination=slopes[4:, 1], intercept=[-1.0, 0, 0.5, 1]
    ).abilities(rows[3:, 4:], method="ml")
    assert_allclose(theta[3, 1], alone.theta[0, 0], atol=1e-6)
    assert_allclose(error[3, 1], alone.std_error[0, 0], rtol=1e-5)


@pytest.mark.parametrize("n_dims", [2, 3])
def test_abilities_are_infinite_where_a_direction_separates_answers(n_dims):
    """By linear programs: in the direction u no answer becomes less likely."""
    rng = np.random.default_rng(n_dims)
    slopes = rng.normal(size=(6, n_dims))
    model = MPTItemResponse.from_items(discrimination=slopes, intercept=np.zeros(6))
    rows = all_rows(model)[::4]
    signed = np.where(rows[..., None] == 1, slopes, -slopes)
    bounds = {"b_ub": np.zeros(6), "bounds": [(-1, 1)] * n_dims}
    ends = [
        [linprog(-sign * axis, -one, **bounds).fun for axis in np.eye(n_dims)]
        for one in signed
        for sign in (1, -1)
    ]
    is_infinite = (np.reshape(ends, (16, 2, n_dims)) < -1e-9).any(1)
    assert 0.1 < is_infinite.mean() < 0.9
    theta, error = model.abilities(rows, method="ml")
    assert_array_equal(np.isinf(theta), is_infinite)
    assert_array_equal(np.isinf(error), is_infinite)


def test_several_abilities_of_a_wide_population_have_a_wide_grid():
    slopes = np.array([[1.0, 0.2], [0.8, 0.0], [0.1, 1.2], [0.0, 0.9]]) / 4
    given = {"intercept": np.zeros(4)}
    wide = MPTItemResponse.from_items(
        discrimination=slopes, latent_variance=16.0, **given
    )
    unit = MPTItemResponse.from_items(discrimination=4 * slopes, **given)
    rows = all_rows(unit)
    expected = unit.score_samples(rows)
    assert_allclose(wide.score_samples(rows), expected, atol=1e-6)


@pytest.mark.parametrize("groups", [None, 0, 1])
def test_modes_of_posteriors_in_groups_are_the_highest_ones(groups):
    """On a fine grid; those of guessed answers have several modes."""
    mean, difficulty = np.array([-1.0, 3.0]), [2.0, 2.2, 2.4, 2.6, -1.0, -1.2]
    model = MPTItemResponse.from_items(
        model="3pl",
        discrimination=np.full(6, 3.0),
        difficulty=difficulty,
        guessing=np.full(6, 0.2),
        latent_mean=mean,
    )
    rows = all_rows(model)
    z = np.linspace(-6, 8, 14001)
    right = 0.2 + 0.8 * expit(3 * (z - np.array(difficulty)[:, None]))
    density = norm.pdf(z, mean[:, None])
    log_prior = np.log(density.mean(0) if groups is None else density[groups])
    log_posterior = rows @ np.log(right) + (1 - rows) @ np.log1p(-right) + log_prior
    labels = None if groups is None else np.full(len(rows), groups)
    found = model.abilities(rows, method="map", groups=labels)
    assert_allclose(found.theta[:, 0], z[log_posterior.argmax(1)], atol=1e-3)
    at = log_posterior.argmax(1)
    row = np.arange(len(rows))
    curvature = sum(
        sign * log_posterior[row, at + shift]
        for sign, shift in ((2, 0), (-1, 10), (-1, -10))
    )
    assert_allclose(found.std_error[:, 0], 0.01 / np.sqrt(curvature), rtol=0.02)


def test_information_of_the_test_is_the_variance_of_the_slope(lsat7):
    theta = np.array([-1.0, 0.3])
    prob = expit(theta[:, None] * lsat7.discrimination_ + lsat7.intercept_)
    expected = lsat7.discrimination_**2 * prob * (1 - prob)
    found = lsat7.information(theta)
    assert_allclose(found.items, expected)
    assert_allclose(found.test, expected.sum(axis=1))
    reliability = lsat7.reliability(PATTERNS, LSAT7)
    assert 0.4 < reliability.marginal[0] < reliability.empirical[0] < 0.5


@pytest.mark.parametrize("method", ["information", "item_probabilities"])
def test_given_abilities_have_a_column_for_each_dimension(lsat7, method):
    with pytest.raises(ValueError, match="n_components=1 columns, got 2"):
        getattr(lsat7, method)(np.zeros((3, 2)))


def test_parameters_as_a_frame(lsat7):
    frame = lsat7.item_parameters(PATTERNS, LSAT7, as_frame=True)
    assert frame.shape == (5, 8)
    assert_allclose(frame["difficulty"], -lsat7.intercept_ / lsat7.discrimination_)
    assert np.isnan(lsat7.item_parameters().discrimination_std_error).all()


# Refusals and displays


@pytest.mark.parametrize(
    ("model", "priors"),
    [("3pl", {"guessing_prior": (-1, 1)}), ("2pl", {"slope_prior": 2.0})],
)
def test_likelihood_ratio_tests_refuse_priors(lsat7, model, priors):
    args = PATTERNS, LSAT7
    with_prior = MPTItemResponse(model, **priors).fit(PATTERNS, sample_weight=LSAT7)
    (parameter,) = priors
    with pytest.raises(ValueError, match=f"this model has {parameter}"):
        with_prior.likelihood_ratio_test(lsat7, *args)
    with pytest.raises(ValueError, match=f"nested has {parameter}"):
        lsat7.likelihood_ratio_test(with_prior, *args)


def test_priors_and_the_variance_of_z_take_no_freedom_from_rasch_items(lsat7):
    """Four sum scores of two cells each, less one for each score and an intercept."""
    rasch = MPTItemResponse("rasch", slope_prior=2.0, guessing_prior=(-1, 1))
    rasch.fit(PATTERNS, sample_weight=LSAT7)
    assert lsat7.likelihood_ratio_test(rasch, PATTERNS, LSAT7).df == 4
    assert rasch.item_fit(PATTERNS, LSAT7).df_s_x2.tolist() == [3] * 5


def test_likelihood_ratio_tests_say_that_guessing_is_at_its_bound(lsat7):
    args = PATTERNS, LSAT7
    model = MPTItemResponse(["3pl", "2pl", "3pl", "2pl", "2pl"])
    model.fit(PATTERNS, sample_weight=LSAT7)
    with pytest.warns(UserWarning, match=r"Guessing of 2 item.*upper bound"):
        test = model.likelihood_ratio_test(lsat7, *args)
    gain = model.log_likelihood(*args) - lsat7.log_likelihood(*args)
    assert_allclose(test.statistic, 2 * gain)
    assert test.df == 2


LEVELS = np.array(["never", "rarely", "often", "always"])


def survey(seed=0):
    """Answers 0 to 3 to four items of a survey."""
    true = MPTItemResponse.from_items(
        model="graded",
        discrimination=[1.0, 1.3, 0.9, 1.6],
        difficulty=np.tile(np.linspace(-1.5, 1.5, 3), (4, 1)),
    )
    return true.sample(150, random_state=seed)


def as_categories(codes, levels, **params):
    columns = {
        f"q{j}": pd.Categorical(levels[column.astype(int)], levels, **params)
        for j, column in enumerate(codes.T)
    }
    return pd.DataFrame(columns)


FORMS = {  # of answers 0 to 3
    "1 to 4": lambda codes: codes + 1,
    "polars": lambda codes: pl.DataFrame(codes.astype(int) - 5, schema=list("abcd")),
    "pandas": lambda codes: as_categories(codes, LEVELS, ordered=True),
    "enums": lambda codes: pl.DataFrame(
        [
            pl.Series(f"q{j}", LEVELS[c.astype(int)], pl.Enum(LEVELS))
            for j, c in enumerate(codes.T)
        ]
    ),
}


LOWEST = {"1 to 4": 1, "polars": -5}


def results_of_answers(model, X):
    """Results of all methods that take answers, and give numbers."""
    mask = np.arange(4) < 2
    return [
        model.score_samples(X),
        model.conditional_log_prob(X, mask),
        model.transform(X),
        model.abilities(X, "map").theta,
        model.person_fit(X),
        model.item_fit(X),
        model.residual_correlations(X),
        model.dif(X, np.arange(len(X)) % 2, anchors=[0, 1, 2]).statistic,
        model.item_parameters(X).difficulty_std_error,
        model.bic(X),
        mpt_curve(model, X, random_state=0).lml,
    ]


@pytest.fixture(scope="module")
def answered():
    """Codes of answers, the model of them, and its results."""
    codes = survey()
    model = MPTItemResponse("graded").fit(codes)
    return codes, model, results_of_answers(model, codes)


@pytest.mark.parametrize("form", FORMS)
def test_answers_in_every_form_are_those_of_their_codes(form, answered):
    codes, plain, expected_of_codes = answered
    X = FORMS[form](codes)
    model = MPTItemResponse("graded").fit(X)
    assert model.n_categories_.tolist() == [4] * 4
    for result, expected in zip(
        results_of_answers(model, X), expected_of_codes, strict=True
    ):
        assert_allclose(result, expected, rtol=1e-6)
    if form in LOWEST:  # expected answers are numbers of the scale
        at = [[-1.0], [0.3]]
        expected = plain.item_probabilities(at) @ np.arange(4)
        assert_allclose(model.inverse_transform(at), expected + LOWEST[form])
    drawn, drawn_codes = (m.sample(50, random_state=0) for m in (model, plain))
    coded = np.asarray(FORMS[form](drawn_codes))
    assert_array_equal(np.asarray(drawn), coded)
    plain = copy.deepcopy(plain).partial_fit(codes)
    assert_allclose(model.partial_fit(X).score(X), plain.score(codes))


def test_gaps_in_ordered_categories_are_filled_with_categories():
    codes = survey()
    X, gaps = as_categories(codes, LEVELS, ordered=True), np.arange(30).reshape(-1, 3)
    model, plain = (
        MPTItemResponse("graded").fit(X),
        MPTItemResponse("graded").fit(codes),
    )
    X.iloc[gaps[:, 0], 1] = codes[gaps[:, 0], 1] = np.nan
    filled = model.impute(X)
    assert filled.dtypes.equals(X.dtypes)
    assert_array_equal(filled, LEVELS[plain.impute(codes).astype(int)])
    medians = model.inverse_transform([[0.3]])
    level = plain.item_probabilities([[0.3]])[0].cumsum(1)
    assert medians[0].tolist() == LEVELS[(level < 0.5).sum(1)].tolist()


def test_two_ordered_categories_are_right_and_wrong():
    codes = (survey() > 1).astype(float)
    X = as_categories(codes, np.array(["wrong", "right"]), ordered=True)
    model, plain = MPTItemResponse("2pl").fit(X), MPTItemResponse("2pl").fit(codes)
    assert_allclose(model.score_samples(X), plain.score_samples(codes))
    with pytest.raises(ValueError, match=r"'q0' has 4 levels.*'2pl' takes two"):
        MPTItemResponse("2pl").fit(as_categories(survey(), LEVELS, ordered=True))


def test_statistics_of_nominal_items_do_not_depend_on_the_codes_of_answers():
    rng = np.random.default_rng(0)
    slopes = np.array([[0.0, 1.5, -0.8], [0.0, -1.0, 1.2], [0.0, 0.7, 2.0]]).repeat(
        3, 0
    )
    intercepts = np.array([0.0, 0.4, -0.3]) + 0.0 * slopes

    def model(order):
        slope, intercept = (
            np.take_along_axis(part, order, 1) for part in (slopes, intercepts)
        )
        slope, intercept = slope - slope[:, :1], intercept - intercept[:, :1]
        discrimination = slope[:, -1] / 2
        return MPTItemResponse.from_items(
            model="nominal",
            discrimination=discrimination,
            intercept=intercept[:, 1:],
            category_scores=slope / discrimination[:, None],
        )

    same = np.tile(np.arange(3), (9, 1))
    other = rng.permuted(same, axis=1)
    one, two = model(same), model(other)
    X = one.sample(300, random_state=0).astype(int)
    Y = other.argsort(axis=1)[np.arange(9), X]
    assert_allclose(two.score(Y), one.score(X))
    for method in ("item_fit", "person_fit", "residual_correlations", "model_fit"):
        found, expected = (getattr(m, method)(rows) for m, rows in ((two, Y), (one, X)))
        for part, part_expected in zip(found, expected, strict=True):
            assert_allclose(part, part_expected, rtol=1e-6, atol=1e-8, err_msg=method)


def test_nominal_items_take_strings_beside_others():
    codes = survey()
    X = as_categories(codes, np.sort(LEVELS)).astype({"q0": "str"})
    X["q3"] = codes[:, 3] > 1
    plain = np.c_[codes[:, :3], codes[:, 3] > 1]
    names = ["nominal"] * 3 + ["2pl"]
    model = MPTItemResponse(names, slope_prior=2.0).fit(X)
    other = MPTItemResponse(names, slope_prior=2.0).fit(plain)
    assert_allclose(model.score_samples(X), other.score_samples(plain), rtol=1e-6)


def test_levels_that_nobody_chose_are_at_the_end_of_the_scale():
    """Of an ordered dtype; they change nothing for those who answer otherwise."""
    codes = survey()
    levels = np.array(["not asked", *LEVELS])
    X = as_categories(codes + 1, levels, ordered=True)
    with pytest.warns(ConvergenceWarning, match="Nobody gave some of the answers"):
        model = MPTItemResponse("graded").fit(X)
    assert (model.difficulty_[:, 0] == -np.inf).all()
    plain = MPTItemResponse("graded").fit(codes)
    assert_allclose(model.difficulty_[:, 1:], plain.difficulty_, atol=0.07)


def test_answers_outside_the_scale_are_refused():
    model = MPTItemResponse("graded").fit(survey() + 1)
    with pytest.raises(ValueError, match=r"not in fit: \[0.0\]; it had \[1.0, 2.0"):
        model.score(survey())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Exactly one of intercept and difficulty"),
        (
            {"model": "graded", "intercept": [[0.0, 1.0]]},
            "Thresholds of graded items must be in order",
        ),
        (
            {"difficulty": [0.0, np.inf]},
            r"item 1: difficulty must be 1 finite .* \[inf\]",
        ),
        (
            {"difficulty": [0.0], "latent_variance": 0.0},
            "latent_variance must be finite and > 0",
        ),
        (
            {"discrimination": np.eye(2), "factor_correlation": [1, 0.5]}
            | {"intercept": [0.0, 0.0]},
            "positive definite matrix of correlations",
        ),
    ],
)
def test_parameters_that_are_not_valid_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        MPTItemResponse.from_items(**given)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MPTItemResponse("4pl"), "model must be one of 'rasch'"),
        (MPTItemResponse("rasch", 2), "n_components must be 1 where items are 'rasch'"),
        (MPTItemResponse(["2pl"] * 2), "one name for each of the 5 items, got 2"),
    ],
)
def test_models_that_are_not_valid_are_refused(model, message, lsat7):
    with pytest.raises(ValueError, match=message):
        model.fit(PATTERNS)
    with pytest.raises(ValueError, match=r"item 4 \(model '2pl'\) must be codes 0..1"):
        lsat7.transform(PATTERNS + 1)
    with pytest.raises(ValueError, match="nested must have fewer parameters"):
        lsat7.likelihood_ratio_test(lsat7, PATTERNS)


def test_displays():
    plt = pytest.importorskip("matplotlib.pyplot")
    model = mixed_items()
    theta = np.array([-1.0, 1.0])
    display = ItemCurveDisplay.from_estimator(model, items=2, theta=theta)
    assert_allclose(display.curves.sum(axis=0), 1)
    display = ItemCurveDisplay.from_estimator(model, theta=theta)
    mean = [np.arange(len(p)) @ p for p in probabilities(model, theta)]
    assert_allclose(display.curves, mean)
    with pytest.raises(ValueError, match="items names an item 'age', which"):
        ItemCurveDisplay.from_estimator(model, items="age")
    plt.close("all")


@pytest.fixture(scope="module")
def answers_of_groups():
    """Answers to six items, and labels of two groups."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 1))
    X = (rng.random((200, 6)) < expit(z + np.linspace(-1, 1, 6))).astype(float)
    return X, np.where(np.arange(200) < 100, "b", "c")


@pytest.mark.parametrize("light", [0.0, 1e-12])
def test_rows_without_weight_are_left_out_with_their_groups(answers_of_groups, light):
    X, groups = answers_of_groups
    more = np.r_[X, X[:5], X[:20]]
    more_groups = np.r_[groups, groups[:5], np.repeat("a", 20)]
    weight = np.r_[np.ones(200), np.full(25, light)]
    without = MPTItemResponse("rasch").fit(X, groups=groups)
    model = MPTItemResponse("rasch").fit(more, groups=more_groups, sample_weight=weight)
    assert model.groups_.tolist() == ["b", "c"]
    assert_allclose(model.intercept_, without.intercept_, atol=1e-6)
    assert_allclose(model.latent_mean_, without.latent_mean_, atol=1e-6)
    anchors = [0, 1, 2, 3, 4]
    found = model.dif(more, more_groups, anchors=anchors, sample_weight=weight)
    expected = model.dif(X, groups, anchors=anchors)
    assert_allclose(found.p_value, expected.p_value, atol=1e-6)
    assert found.df.tolist() == expected.df.tolist()
    with pytest.raises(ValueError, match="group must have at least two labels in rows"):
        model.dif(X, groups, sample_weight=np.where(groups == "b", 1.0, light))


def test_rows_without_weight_change_no_result(answers_of_groups):
    """Not even with gaps, other answers or labels of groups that `fit` has not seen."""
    X, groups = answers_of_groups
    X = np.c_[X, np.ones(200)]
    more = np.r_[X, np.zeros((1, 7)), np.full((1, 7), np.nan)]
    more_groups, weight = np.append(groups, ["a", "a"]), np.append(np.ones(200), [0, 0])
    with pytest.warns(ConvergenceWarning, match="Nobody gave"):
        model = MPTItemResponse("rasch").fit(X)
    with pytest.warns(ConvergenceWarning, match="Nobody gave"):
        grouped = MPTItemResponse("rasch").fit(X, groups=groups)
    results = []
    for args, labels in (((X,), groups), ((more, weight), more_groups)):
        with pytest.warns(UserWarning, match="are the same"):
            errors = grouped.item_parameters(*args, groups=labels)
        results.append(
            [
                errors.difficulty_std_error,
                grouped.log_likelihood(*args, groups=labels),
                grouped.bic(*args, groups=labels),
                np.hstack(model.model_fit(*args)),
                model.item_fit(*args),
                model.residual_correlations(*args),
            ]
        )
    for found, expected in zip(*results, strict=True):
        assert_allclose(found, expected, rtol=1e-9)
    assert np.isnan(model.model_fit(X).srmsr)  # all answers to an item are the same


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_marginal_reliability_is_the_share_of_variance_that_abilities_keep(correlation):
    matrix = np.array([[1, correlation], [correlation, 1]])
    slopes = np.repeat([[1.2, 0.0], [0.4, 0.9]], 8, axis=0)
    intercept = np.tile(np.linspace(-1.5, 1.5, 8), 2)
    model = MPTItemResponse.from_items(
        discrimination=slopes, intercept=intercept, factor_correlation=matrix
    )
    rng = np.random.default_rng(0)
    theta = rng.multivariate_normal(np.zeros(2), matrix, 4000)
    X = (rng.random((4000, 16)) < expit(theta @ slopes.T + intercept)).astype(float)
    kept = 1 - ((model.transform(X) - theta) ** 2).mean(axis=0)
    # standard errors of the shares are about 0.01; the posterior is nearly normal
    assert_allclose(model.reliability(X[:10]).marginal, kept, atol=0.03)


def test_reliability_needs_more_than_one_person(lsat7):
    share = LSAT7 / LSAT7.sum()
    for rows, weight in (
        (PATTERNS[:1], None),
        (PATTERNS, share),
        (PATTERNS, share / 2),
    ):
        with pytest.raises(ValueError, match="more than one person, but rows, or"):
            lsat7.reliability(rows, weight)
