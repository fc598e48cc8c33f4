"""Items of more than three abilities; averages over the prior are a second route."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import expit, logsumexp

from sklearn_mpt import MPTItemResponse, MPTLinearVAE, lml_samples
from sklearn_mpt._items.objective import ItemRows
from sklearn_mpt._latent.quadrature import normal_points

K = 4
NAMES = ["2pl"] * 4 + ["3pl"] * 2


def made_items():
    rng = np.random.default_rng(0)
    return MPTItemResponse.from_items(
        model=NAMES,
        discrimination=rng.normal(size=(6, K)),
        intercept=rng.normal(size=6),
        guessing=[0.0] * 4 + [0.2, 0.1],
        factor_correlation=0.7 * np.eye(K) + 0.3,
        random_state=0,
    )


def answers(n=40, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (n, 6)).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[0] = np.nan
    return X


@pytest.fixture(scope="module")
def items():
    return made_items()


@pytest.fixture(scope="module")
def prior(items):
    """Abilities drawn from the population, and p(x_j = 1 | z) of all items there."""
    (unit,) = normal_points(2**15, K, [0], 1)
    theta = unit @ np.linalg.cholesky(items.factor_correlation_).T
    logistic = expit(theta @ items.discrimination_.T + items.intercept_)
    return theta, items.guessing_ + (1 - items.guessing_) * logistic


def log_joint(X, prob):
    """Log-probability of rows at each of the abilities; (n, s)."""
    right, wrong = (X == 1).astype(float), (X == 0).astype(float)
    return right @ np.log(prob).T + wrong @ np.log1p(-prob).T


def test_scores_along_orders_add_up_to_the_score(items):
    """To the errors of integrals: each row has points of its own."""
    X = answers(15)
    along = lml_samples(items, X, n_orders=1, random_state=0)
    score = items.score_samples(X)
    assert_allclose(along, np.broadcast_to(score, along.shape), atol=0.15)
    mask = np.arange(6) == 0
    given = items.score_samples(np.where(mask, np.nan, X))
    conditional = items.conditional_log_prob(X, mask)[:, 0]
    assert_allclose(
        conditional, np.where(np.isnan(X[:, 0]), 0, score - given), atol=0.1
    )


def test_scores_conditionals_and_abilities_are_averages_over_the_prior(items, prior):
    X, (theta, prob) = answers(), prior
    joint = log_joint(X, prob)
    score, error = items.score_samples(X, return_std=True)
    expected = logsumexp(joint, 1) - np.log(len(theta))
    assert items.lml_method_ == "importance"
    assert (np.abs(score - expected) < 4 * error + 2e-3).all()
    assert score[0] == 0
    share = np.exp(joint - logsumexp(joint, 1, keepdims=True))
    mean = share @ theta
    found = items.abilities(X)
    assert_allclose(found.theta, mean, atol=0.1)
    assert np.sqrt(np.mean((found.theta - mean) ** 2)) < 0.03
    assert_allclose(found.std_error**2, share @ theta**2 - mean**2, atol=0.1)
    assert_allclose(items.transform(X), found.theta)
    mask = np.arange(6) % 2 == 0
    given = log_joint(np.where(mask, np.nan, X), prob)
    share = np.exp(given - logsumexp(given, 1, keepdims=True))
    right = share @ prob
    expected = np.log(np.where(X == 1, right, 1 - right))
    expected = np.where(mask & ~np.isnan(X), expected, 0)
    assert_allclose(items.conditional_log_prob(X, mask), expected, atol=0.05)


def test_four_abilities_of_items_of_their_own_are_four_models():
    """Exactly, on any axes: rows have the product of four probabilities."""
    rng = np.random.default_rng(0)
    slopes, intercept, of = rng.uniform(0.5, 2, 8), rng.normal(size=8), np.arange(8) % 4
    axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    X = np.where(rng.random((40, 8)) < 0.2, np.nan, rng.integers(0, 2, (40, 8)))
    expected = 0
    for k in range(4):
        one = {"discrimination": slopes[of == k], "intercept": intercept[of == k]}
        expected += MPTItemResponse.from_items(**one).score_samples(X[:, of == k])
    model = MPTItemResponse.from_items(
        discrimination=slopes[:, None] * axes[of], intercept=intercept, random_state=0
    )
    score, error = model.score_samples(X, return_std=True)
    assert error.max() < 0.05
    assert (np.abs(score - expected) < 4 * error + 1e-9).all()


def test_rows_are_scored_by_themselves(items):
    X = answers()
    whole = items.score_samples(X)
    assert_allclose(items.score_samples(X[::-3]), whole[::-3], rtol=1e-9)


def test_draws_have_the_moments_of_the_model(items, prior):
    _, prob = prior
    drawn = items.sample(3000, random_state=0)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert_allclose(drawn.mean(0), prob.mean(0), atol=0.04)
    X = answers(4)
    values = items.abilities(X, "plausible", n_draws=300, random_state=0).theta
    assert_allclose(values.mean(0), items.transform(X), atol=0.2)
    filled = items.impute(X, method="sample", random_state=0)
    assert_allclose(filled[~np.isnan(X)], X[~np.isnan(X)])


def test_the_information_is_minus_the_hessian_over_the_prior(items):
    """Of slopes, intercepts and logits of guessing, by automatic differentiation."""
    model, X = items._model_of(vars(items)), answers(8)
    groups = np.zeros(len(X), dtype=int)
    objective = ItemRows(model, X, np.ones(len(X)), groups, items._priors, "cpu")
    scoring = items._density().scoring
    found = objective.observed_information(model.start("cpu"), scoring)
    (unit,) = normal_points(2**12, K, [0], 1)
    z, rows = torch.from_numpy(unit), torch.from_numpy(X)

    def log_likelihood(flat):
        coefs = flat[:30].view(6, 5)
        logits = z @ coefs[:, :K].T + coefs[:, K]
        guessed = torch.nn.functional.pad(flat[30:].sigmoid(), (4, 0))
        right = guessed + (1 - guessed) * logits.sigmoid()
        chosen = torch.where(rows[:, None] == 1, right, 1 - right)
        log_prob = torch.where(rows[:, None].isnan(), 0.0, chosen.log()).sum(2)
        return log_prob.logsumexp(1).sum()

    flat = model.start("cpu").flat()
    hessian = torch.autograd.functional.hessian(log_likelihood, flat)
    expected = -hessian.numpy()
    assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_are_rows_that_are_repeated():
    X, params = answers(30), {"n_components": K, "slope_prior": 2.0, "max_iter": 5}
    twice = MPTItemResponse(random_state=0, **params).fit(np.concatenate([X, X]))
    model = MPTItemResponse(random_state=0, **params)
    model.fit(X, sample_weight=np.full(30, 2.0))
    assert_allclose(model.discrimination_, twice.discrimination_, atol=1e-6)
    errors = model.item_parameters(X, np.full(30, 2.0)).discrimination_std_error
    assert_allclose(
        errors,
        twice.item_parameters(np.concatenate([X, X])).discrimination_std_error,
        rtol=1e-4,
    )
    assert (errors > 0).all()


def test_the_fit_is_that_of_the_linear_model():
    rng = np.random.default_rng(2)
    z, slopes = rng.normal(size=(90, K)), 1.5 * rng.normal(size=(8, K))
    X = (rng.random((90, 8)) < expit(z @ slopes.T)).astype(float)
    priors = {"slope_prior": 1.0, "random_state": 0}
    model = MPTItemResponse(n_components=K, **priors).fit(X)
    linear = MPTLinearVAE(K, likelihood="bernoulli", objective="lml", **priors).fit(X)

    def with_penalty(score, slopes):
        return len(X) * score - 0.5 * (slopes**2).sum()

    ours = with_penalty(model.score(X), model.discrimination_)
    theirs = with_penalty(linear.score(X), linear.components_)
    assert ours > theirs - 0.7  # nats of all rows, where a parameter fits half a nat
    same = MPTLinearVAE(
        K,
        likelihood="bernoulli",
        init={"components": model.discrimination_.T, "intercept": model.intercept_},
        max_iter=0,
        random_state=0,
    ).fit(X)
    score, error = model.score_samples(X, return_std=True)
    other, other_error = same.score_samples(X, return_std=True)
    assert (np.abs(score - other) < 5 * np.hypot(error, other_error) + 1e-3).all()


def test_no_more_abilities_than_items():
    with pytest.raises(ValueError, match="n_components=7 must be at most n_items=6"):
        MPTItemResponse(n_components=7).fit(answers())


@pytest.mark.parametrize(
    "population",
    [{"latent_mean": 2.0}, {"latent_variance": 4.0}, {"latent_mean": [0.0, 0.0]}],
)
def test_another_population_of_many_abilities_is_refused(population):
    with pytest.raises(ValueError, match="for more than 3 abilities"):
        MPTItemResponse.from_items(
            discrimination=np.ones((6, K)), intercept=np.zeros(6), **population
        )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_and_log_likelihoods_are_those_of_averages_over_the_prior():
    rng = np.random.default_rng([0, 150])
    slopes = rng.uniform(0.6, 2, (K, 10)) * rng.choice([-1, 1], (K, 10))
    logits = rng.normal(size=(150, K)) @ slopes + rng.normal(size=10)
    X = (logits + rng.logistic(size=logits.shape) > 0).astype(float)
    (unit,) = normal_points(2**15, K, [5], 1)
    values = []
    for seed in (0, 1):
        model = MPTItemResponse(n_components=K, random_state=seed).fit(X)
        prob = expit(unit @ model.discrimination_.T + model.intercept_)
        prob = prob.clip(1e-12, 1 - 1e-12)
        expected = logsumexp(log_joint(X, prob), 1).sum() - len(X) * np.log(len(unit))
        values.append(expected)
        assert_allclose(model.log_likelihood(X), expected, atol=0.3)
    # whatever the seed, to less than the half nat that each of 44 parameters fits
    assert_allclose(values[0], values[1], atol=1.0)
