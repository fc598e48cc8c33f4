"""Standard errors of parameters: against derivatives by other routes, and R's ltm."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from tables import some_table

from sklearn_mpt import MPTItemResponse, MPTLinearVAE, MPTMixture, MPTProbabilisticPCA

# Bock and Lieberman (1970): right answers of 1000 people to five questions.
LSAT = """00000 3 00001 6 00010 2 00011 11 00100 1 00101 1 00110 3 00111 4 01000 1
01001 8 01011 16 01101 3 01110 2 01111 15 10000 10 10001 29 10010 14 10011 81 10100 3
10101 28 10110 15 10111 80 11000 16 11001 56 11010 21 11011 173 11100 11 11101 61
11110 28 11111 298""".split()
ANSWERS = np.array([list(map(int, pattern)) for pattern in LSAT[::2]], dtype=float)
COUNTS = np.array(LSAT[1::2], dtype=int)


def second_derivatives(function, theta, step=1e-4):
    """Central differences of a function of vectors; (p, p)."""
    steps = step * np.eye(len(theta))
    return np.array(
        [
            [
                function(theta + a + b)
                - function(theta + a - b)
                - function(theta - a + b)
                + function(theta - a - b)
                for a in steps
            ]
            for b in steps
        ]
    ) / (4 * step**2)


NODES = np.linspace(-7, 7, 141)


def log_prob_of_table(theta, X):
    """Log p(x) of rows of a number, a yes or no and a count, by a fine grid; (n,)."""
    location = np.outer(NODES, theta[:3]) + theta[3:6]
    number, answer, count = (column[:, None] for column in np.nan_to_num(X).T)
    logs = [
        norm.logpdf(number, location[:, 0], np.exp(theta[6] / 2)),
        -np.logaddexp(0, (1 - 2 * answer) * location[:, 1]),
        count * location[:, 2] - np.exp(location[:, 2]) - gammaln(count + 1),
    ]
    joint = norm.logpdf(NODES) + np.log(NODES[1] - NODES[0])
    for column, log_prob in zip(X.T, logs, strict=True):
        joint = joint + np.where(np.isnan(column)[:, None], 0, log_prob)
    return logsumexp(joint, axis=1)


def test_errors_of_a_table_are_those_of_second_derivatives():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 1))
    X = np.hstack([z + rng.normal(size=z.shape), z > rng.logistic(size=z.shape)])
    X = np.hstack([X, rng.poisson(np.exp(0.5 * z + 0.3))])
    X[rng.random(X.shape) < 0.1] = np.nan
    X = X[~np.isnan(X).all(axis=1)]
    kinds, weight = ["gaussian", "bernoulli", "poisson"], 0.5 + rng.random(len(X))
    model = MPTLinearVAE(1, likelihood=kinds, tol=1e-9, slope_prior=None)
    model.fit(X, sample_weight=weight)
    noise_variance = model.noise_variance_[0]
    theta = [*model.components_[0], *model.intercept_, np.log(noise_variance)]
    matrix = second_derivatives(lambda t: weight @ log_prob_of_table(t, X), theta)
    expected = np.sqrt(np.linalg.inv(-matrix).diagonal())
    errors = model.standard_errors(X, sample_weight=weight)
    assert_allclose(errors.components[0], expected[:3], rtol=2e-3)
    assert_allclose(errors.intercept, expected[3:6], rtol=2e-3)
    assert_allclose(errors.noise_variance[0], noise_variance * expected[6], rtol=2e-3)


def factor_rows(n_components, n_features=6, n_samples=400):
    rng = np.random.default_rng(0)
    W = rng.normal(size=(n_components, n_features))
    noise = rng.normal(size=(n_samples, n_features)) * np.linspace(0.5, 1, n_features)
    return rng.normal(size=(n_samples, n_components)) @ W + noise + 3


def axes_of_two(components, rotation):
    """Principal axes of two components, or their rotation by Kaiser (1958)."""
    axes = np.linalg.svd(components @ components.T)[0].T @ components
    if rotation is not None:
        square = (axes[0] + 1j * axes[1]) ** 2
        fourth = (square**2).sum()
        if rotation == "varimax":
            fourth -= square.sum() ** 2 / len(square)
        cos, sin = np.cos(np.angle(fourth) / 4), np.sin(np.angle(fourth) / 4)
        axes = np.array([[cos, sin], [-sin, cos]]) @ axes
    return axes


@pytest.mark.parametrize("rotation", [None, "varimax", "quartimax"])
def test_errors_of_rotated_components_are_those_of_rotating(rotation):
    """By the information of any axes, and the derivatives of the rotation."""
    X, unit = factor_rows(2), factor_rows(2).std(axis=0)
    model = MPTLinearVAE(2, noise="per_feature", rotation=rotation, objective="lml")
    W = model.set_params(tol=1e-10).fit(X).components_

    def log_prob(theta):
        W, noise_variance = theta[:12].reshape(2, 6), np.exp(theta[12:])
        covariance = W.T @ W + np.diag(noise_variance)
        return multivariate_normal(model.mean_, covariance).logpdf(X).sum()

    def rotated(theta):
        """Rotate in units of the columns; keep the order and signs of the fit."""
        axes = axes_of_two(theta[:12].reshape(2, 6) / unit, rotation) * unit
        inner = axes @ W.T
        order = np.abs(inner).argmax(axis=0)
        return (np.sign(inner[order, [0, 1]])[:, None] * axes[order]).ravel()

    theta = np.concatenate([W.ravel(), np.log(model.noise_variance_)])
    assert_allclose(rotated(theta), W.ravel(), atol=1e-3)
    tangent = np.concatenate([W[1], -W[0], np.zeros(6)])  # of rotations
    away = np.eye(18) - np.outer(tangent, tangent) / (tangent @ tangent)
    matrix = -away @ second_derivatives(log_prob, theta) @ away
    steps = 1e-5 * np.eye(18)
    slopes = [(rotated(theta + a) - rotated(theta - a)) / 2e-5 for a in steps]
    variance = (np.transpose(slopes) @ np.linalg.pinv(matrix) @ slopes).diagonal()
    errors = model.standard_errors(X).components.ravel()
    assert_allclose(errors, np.sqrt(variance), rtol=2e-3)


@pytest.mark.parametrize("gaps", [0, 0.2])
@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_errors_of_numbers_are_those_of_a_normal_density_of_what_is_there(noise, gaps):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) * [1, 0.8, 1.2] + rng.normal(size=(300, 3))
    X[rng.random(X.shape) < gaps] = np.nan
    weight, seen = 0.5 + rng.random(300), ~np.isnan(X)
    model = MPTLinearVAE(1, noise=noise, objective="lml", tol=1e-10)
    model.fit(X, sample_weight=weight)

    def log_prob(theta):
        W, mean, total = theta[:3], theta[3:6], 0.0
        covariance = np.outer(W, W) + np.exp(theta[6:]) * np.eye(3)
        for p in np.unique(seen[seen.any(axis=1)], axis=0):
            rows = (seen == p).all(axis=1)
            law = multivariate_normal(mean[p], covariance[np.ix_(p, p)])
            total += weight[rows] @ law.logpdf(X[np.ix_(rows, p)])
        return total

    variance = np.atleast_1d(model.noise_variance_)
    theta = np.concatenate([model.components_[0], model.mean_, np.log(variance)])
    expected = np.sqrt(np.linalg.inv(-second_derivatives(log_prob, theta)).diagonal())
    errors = model.standard_errors(X, sample_weight=weight)
    assert_allclose(errors.components[0], expected[:3], rtol=2e-3)
    assert_allclose(errors.mean, expected[3:6], rtol=2e-3)
    assert_allclose(errors.noise_variance, variance * expected[6:], rtol=2e-3)
    assert np.shape(errors.noise_variance) == np.shape(model.noise_variance_)


@pytest.fixture(scope="module")
def lsat():
    model = MPTLinearVAE(1, likelihood="bernoulli", random_state=0, tol=1e-7)
    return model.fit(ANSWERS, sample_weight=COUNTS)


def test_items_have_the_published_errors(lsat):
    """Those of the R package ltm, whose slopes have no prior."""
    errors = lsat.standard_errors(ANSWERS, sample_weight=COUNTS)
    assert 1000 * lsat.score(ANSWERS, sample_weight=COUNTS) == pytest.approx(
        -2466.65, abs=0.01
    )
    slopes, slope_errors = lsat.components_[0], errors.components[0]
    published = np.array([0.8254, 0.7229, 0.8905, 0.6886, 0.6575])
    assert_allclose(slopes, published, atol=0.02 * 0.26)
    assert_allclose(slope_errors, [0.2581, 0.1867, 0.2326, 0.1852, 0.2100], rtol=0.005)
    difficulty = -lsat.intercept_ / slopes
    gradient = np.column_stack([-difficulty / slopes, -1 / slopes])
    variance = np.einsum("li,lij,lj->l", gradient, errors.covariance, gradient)
    assert_allclose(
        difficulty, [-3.3597, -1.3696, -0.2799, -1.8659, -3.1236], rtol=0.01
    )
    published = [0.8669, 0.3073, 0.0997, 0.4341, 0.8700]
    assert_allclose(np.sqrt(variance), published, rtol=0.01)


def test_errors_of_weighted_rows_are_those_of_repeated_ones(lsat):
    weighted = lsat.standard_errors(ANSWERS, sample_weight=COUNTS)
    rows = np.repeat(ANSWERS, COUNTS, axis=0)
    repeated = lsat.standard_errors(rows)
    assert_allclose(weighted.covariance, repeated.covariance, rtol=1e-6)
    blocks = np.diagonal(repeated.covariance, axis1=1, axis2=2)
    assert_allclose(blocks[:, 0], repeated.components[0] ** 2)
    assert_allclose(blocks[:, 1], repeated.intercept**2)


def test_errors_of_a_table_are_in_the_units_of_its_columns():
    frame = some_table(60)
    model = MPTLinearVAE(1, likelihood="from_dtype", random_state=0)
    errors = model.fit(frame).standard_errors(frame)
    shapes = model.components_.shape, model.intercept_.shape
    assert (errors.components.shape, errors.intercept.shape) == shapes
    metres = frame.assign(height=frame["height"] / 100)
    other = model.fit(metres).standard_errors(metres)
    shrunk = np.array([100, 1, 1, 1, 1, 1])
    assert_allclose(errors.intercept / other.intercept, shrunk, rtol=1e-3)
    assert_allclose(errors.components[0] / other.components[0], shrunk, rtol=1e-3)
    noise = errors.noise_variance / other.noise_variance
    assert_allclose(noise, [1e4, np.nan, np.nan, 1], rtol=1e-3)


def test_constant_features_have_no_errors(lsat):
    X = np.column_stack([ANSWERS, np.ones(len(ANSWERS))])
    model = MPTLinearVAE(1, likelihood="bernoulli", objective="lml", tol=1e-7)
    errors = model.fit(X, None, COUNTS).standard_errors(X, COUNTS)
    assert np.isnan(errors.components[0, 5])
    assert np.isnan(errors.intercept[5])
    expected = lsat.standard_errors(ANSWERS, sample_weight=COUNTS).components[0]
    assert_allclose(errors.components[0, :5], expected, rtol=1e-3)


def test_features_that_nobody_has_have_no_errors(lsat):
    X = np.where(np.arange(5) == 2, np.nan, ANSWERS)
    with pytest.warns(UserWarning, match="are not those of fit"):
        errors = lsat.standard_errors(X, sample_weight=COUNTS)
    assert np.isnan(errors.components[0]).tolist() == [j == 2 for j in range(5)]


def test_components_without_axes_have_no_errors():
    X = factor_rows(2)
    model = MPTLinearVAE(2, max_iter=0).fit(X)
    with pytest.raises(ValueError, match=r"The components are as `init` left them"):
        model.standard_errors(X)


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_rows_of_gaps_alone_say_nothing_of_the_errors(noise):
    X = factor_rows(1, 4, n_samples=600)  # so many that no feature is the factor itself
    model = MPTLinearVAE(1, noise=noise, objective="lml", random_state=0, tol=1e-3)
    more = np.vstack([X, np.full((3, 4), np.nan)])
    complete, beside = (model.fit(X).standard_errors(rows) for rows in (X, more))
    assert np.isfinite(beside.covariance).all()
    assert_allclose(beside.covariance, complete.covariance, rtol=1e-6, atol=1e-12)
    assert_allclose(beside.noise_variance, complete.noise_variance, rtol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "n_features", "n_components", "is_told"),
    [
        ("gaussian", 2, 1, False),
        ("gaussian", 3, 1, True),
        ("gaussian", 4, 2, False),
        ("gaussian", 5, 2, True),
        ("bernoulli", 2, 1, False),
        ("bernoulli", 3, 1, True),
    ],
)
def test_what_no_number_of_rows_determines_has_no_errors(
    likelihood, n_features, n_components, is_told
):
    """Numbers: (d - k)^2 >= d + k [Ledermann]; answers: 2^d - 1 shares."""
    X = factor_rows(n_components, n_features)
    X = X if likelihood == "gaussian" else (X > 3).astype(float)
    model = MPTLinearVAE(n_components, likelihood=likelihood, random_state=0)
    model.set_params(noise="per_feature", tol=1e-7, max_iter=500)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = model.fit(X).standard_errors(X)
    said = " ".join(str(warning.message) for warning in caught)
    assert ("parameters, however many rows" in said) == (not is_told)
    assert np.isnan(errors.components).any() == (not is_told)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_features_that_are_never_seen_together_have_no_errors(likelihood):
    X = factor_rows(1, 4)
    X = X if likelihood == "gaussian" else (X > 3).astype(float)
    X[:200, :2] = X[200:, 2:] = np.nan
    model = MPTLinearVAE(1, likelihood=likelihood, noise="per_feature", tol=1e-7)
    with pytest.warns(UserWarning, match="parameters, however many rows there are"):
        errors = model.set_params(max_iter=500).fit(X).standard_errors(X)
    assert np.isnan(errors.components).all()


def test_errors_of_many_patterns_of_gaps_do_not_depend_on_the_order_of_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2)) @ rng.normal(size=(2, 9))
    X += 0.5 * rng.normal(size=X.shape)
    X[rng.random(X.shape) < 0.5] = np.nan
    X = X[~np.isnan(X).all(axis=1)]
    assert len(np.unique(np.isnan(X), axis=0)) > 300
    given = {"max_iter": 200, "tol": 1e-7, "random_state": 0}
    errors, reverse = (
        MPTLinearVAE(2, **given).fit(table).standard_errors(table)
        for table in (X, X[:, ::-1])
    )
    assert_allclose(errors.mean, reverse.mean[::-1], rtol=1e-3)
    assert_allclose(errors.components, reverse.components[:, ::-1], rtol=1e-3)


def outcomes_of(model, X, sample_weight=None):
    return model.class_outcomes(X, np.arange(len(X)) % 7, sample_weight)


def effects_on(model, X, sample_weight=None):
    return model.covariate_effects(X, np.arange(len(X))[:, None] % 7, sample_weight)


def ratio_to_smaller(model, X, sample_weight=None):
    nested = clone(model).set_params(model="rasch")
    nested.fit(X, sample_weight=sample_weight)
    return model.likelihood_ratio_test(nested, X, sample_weight)


@pytest.mark.parametrize(
    ("model", "errors_of"),
    [
        (MPTLinearVAE(1, likelihood="bernoulli"), MPTLinearVAE.standard_errors),
        (MPTProbabilisticPCA(1), MPTProbabilisticPCA.factor_loadings),
        (MPTItemResponse("2pl"), ratio_to_smaller),
        (MPTMixture(2, likelihood="bernoulli"), MPTMixture.standard_errors),
        (MPTMixture(2, likelihood="bernoulli"), outcomes_of),
        (MPTMixture(2, likelihood="bernoulli"), effects_on),
    ],
)
def test_errors_are_for_the_rows_and_weights_of_fit(model, errors_of):
    rng = np.random.default_rng(0)
    X = (rng.random((200, 5)) < 0.2 + 0.6 * rng.random((200, 1)).round()).astype(float)
    weight = 1 + np.arange(200) % 3
    model.set_params(random_state=0).fit(X)
    errors_of(model, X)
    errors_of(model, *np.unique(X, axis=0, return_counts=True))
    for part in (X[:120], np.vstack([X, X]), 1 - X):
        message = rf"\({len(part)} rows in all\) are not those of fit \(200\)"
        with pytest.warns(UserWarning, match=message):
            errors_of(model, part)
    model.fit(X, sample_weight=weight)
    errors_of(model, X, sample_weight=weight)
    with pytest.warns(UserWarning, match="are not those of fit"):
        errors_of(model, X)
