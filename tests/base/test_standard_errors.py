"""Standard errors of parameters: against derivatives by other routes, and R's ltm."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln, log_softmax, logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from tables import some_table, with_gaps

from sklearn_mpt import (
    MPTItemResponse,
    MPTLinearVAE,
    MPTMixture,
    MPTProbabilisticPCA,
)
from sklearn_mpt._gaussian.rotation import (
    simple_axes,
)

torch = pytest.importorskip("torch")

from sklearn_mpt._gaussian.density import (  # noqa: E402
    density_of,
    expected_information,
)
from sklearn_mpt._latent.information import information_by_nodes  # noqa: E402
from sklearn_mpt._latent.integrals import (  # noqa: E402
    importance,
    quadrature,
    rows_of,
)
from sklearn_mpt._latent.linear_map import LinearMap  # noqa: E402
from sklearn_mpt._likelihoods import Columns  # noqa: E402
from sklearn_mpt._optim.information import (  # noqa: E402
    Information,
    information_by_hessian,
)

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


def first_derivatives(function, theta, step=1e-6):
    steps = step * np.eye(len(theta))
    return np.stack(
        [(function(theta + a) - function(theta - a)) / (2 * step) for a in steps], -1
    )


KINDS = ["gaussian", "bernoulli", "categorical", "poisson"]
NODES = np.linspace(-7, 7, 141)


def log_prob_of_table(theta, X):
    """Log p(x) of rows of KINDS, one component, on a fine grid; (n,)."""
    slope, intercept = theta[:-1].reshape(6, 2).T
    location = np.outer(NODES, slope) + intercept
    category = log_softmax(location[:, 2:5], axis=1)
    height, smokes, level, visits = (column[:, None] for column in np.nan_to_num(X).T)
    logs = [
        norm.logpdf(height, location[:, 0], np.exp(theta[-1] / 2)),
        -np.logaddexp(0, (1 - 2 * smokes) * location[:, 1]),
        category[:, level[:, 0].astype(int)].T,
        visits * location[:, 5] - np.exp(location[:, 5]) - gammaln(visits + 1),
    ]
    joint = norm.logpdf(NODES) + np.log(NODES[1] - NODES[0])
    for column, log_prob in zip(X.T, logs, strict=True):
        joint = joint + np.where(np.isnan(column)[:, None], 0, log_prob)
    return logsumexp(joint, axis=1)


@pytest.fixture(scope="module")
def table():
    """Rows of KINDS with gaps, and parameters not at their maximum."""
    frame = with_gaps(some_table(60))
    codes = np.column_stack(
        [
            (frame["height"] - 170) / 10,
            frame["smokes"].astype(float),
            frame["level"].cat.codes.replace(-1, np.nan),
            frame["visits"],
        ]
    ).astype(float)
    theta = np.random.default_rng(0).normal(scale=0.7, size=13)
    return codes, theta


def table_model(theta):
    coefs = torch.tensor(theta[:-1].reshape(6, 2))
    noise_variance = torch.tensor(theta[-1:]).exp()
    likelihood = Columns(KINDS, [1, 1, 3, 1], None, noise_variance)
    return LinearMap(coefs[:, :1].T, coefs[:, 1], likelihood.requires_grad_(False))


def test_information_is_minus_the_second_derivatives_of_a_table(table):
    X, theta = table
    weight = np.random.default_rng(1).random(len(X))
    by_nodes = information_by_nodes(
        rows_of(torch.tensor(X)),
        torch.tensor(weight),
        table_model(theta),
        quadrature(1, "cpu"),
    )
    expected = -second_derivatives(lambda t: weight @ log_prob_of_table(t, X), theta)
    assert_allclose(by_nodes.numpy(), expected, atol=2e-4 * np.abs(expected).max())


def factor_rows(n_components, n_features=6, n_samples=400):
    rng = np.random.default_rng(0)
    W = rng.normal(size=(n_components, n_features))
    noise = rng.normal(size=(n_samples, n_features)) * np.linspace(0.5, 1, n_features)
    return rng.normal(size=(n_samples, n_components)) @ W + noise + 3


@pytest.mark.parametrize("n_components", [2, 4])
def test_both_routes_to_the_information_of_numbers_agree(n_components):
    X = torch.tensor(factor_rows(n_components, n_samples=50))
    rng = np.random.default_rng(1)
    coefs = torch.tensor(rng.normal(scale=0.6, size=(6, n_components + 1)))
    log_noise = torch.tensor(rng.normal(scale=0.2, size=6))
    weight = torch.ones(50, dtype=torch.float64)

    def log_prob(coefs, log_noise):
        model = density_of(coefs[:, :-1].T, coefs[:, -1], log_noise.exp())
        return weight @ model.lml(X)[0]

    by_hessian = information_by_hessian(log_prob, coefs, log_noise)
    likelihood = Columns(["gaussian"] * 6, [1] * 6, None, log_noise.exp())
    likelihood = likelihood.requires_grad_(False)
    is_small = n_components <= 3
    by_nodes = information_by_nodes(
        rows_of(X),
        weight,
        LinearMap(coefs[:, :-1].T, coefs[:, -1], likelihood),
        quadrature(2, "cpu") if is_small else importance([(512, 64)], 4, "cpu", (0,)),
    )
    bar = (1e-6 if is_small else 0.03) * by_hessian.abs().max()
    assert_allclose(by_nodes.numpy(), by_hessian.numpy(), atol=bar)


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_errors_of_numbers_are_those_of_a_normal_density(noise):
    X = factor_rows(1, 4)
    model = MPTLinearVAE(1, noise=noise, objective="lml", tol=1e-9).fit(X)
    W, variance = model.components_[0], np.atleast_1d(model.noise_variance_)

    def log_prob(theta):
        W, mean, log_noise = theta[:4], theta[4:8], theta[8:]
        covariance = np.outer(W, W) + np.eye(4) * np.exp(log_noise)
        return multivariate_normal(mean, covariance).logpdf(X).sum()

    theta = np.concatenate([W, model.mean_, np.log(variance)])
    expected = np.sqrt(np.linalg.inv(-second_derivatives(log_prob, theta)).diagonal())
    errors = model.standard_errors(X)
    assert_allclose(errors.components[0], expected[:4], rtol=1e-3)
    assert_allclose(errors.mean, expected[4:8], rtol=1e-3)
    assert_allclose(errors.noise_variance, variance * expected[8:], rtol=1e-3)
    assert np.shape(errors.noise_variance) == np.shape(model.noise_variance_)


def axes_of_two(components, rotation):
    """Rotate two components, that nearly are, by the angle of Kaiser (1958)."""
    if rotation is None:
        return simple_axes(components, None)
    square = (components[0] + 1j * components[1]) ** 2
    fourth = (square**2).sum()
    if rotation == "varimax":
        fourth -= square.sum() ** 2 / len(square)
    cos, sin = np.cos(np.angle(fourth) / 4), np.sin(np.angle(fourth) / 4)
    return np.array([[cos, sin], [-sin, cos]]) @ components


@pytest.mark.parametrize("rotation", [None, "varimax", "quartimax"])
def test_errors_of_rotated_components_are_those_of_rotating(rotation):
    """By the information of any axes, and the derivatives of the rotation."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 18))
    found = simple_axes(rng.normal(size=(2, 6)), rotation)
    W = axes_of_two(found, rotation)  # the search ends before it is at rest
    assert_allclose(W, found, atol=1e-5)
    coefs = np.column_stack([W.T, np.zeros(6)])
    tangent = np.zeros((18, 1))
    tangent[0::3, 0], tangent[1::3, 0] = W[1], -W[0]
    tangent /= np.linalg.norm(tangent)
    away = np.eye(18) - tangent @ tangent.T
    matrix = away @ root.T @ root @ away  # that knows nothing of rotations

    def rotated(theta):
        moved = theta.reshape(6, 3)
        axes = axes_of_two(moved[:, :2].T, rotation)
        signs = np.sign((axes * W).sum(axis=1, keepdims=True))
        return np.column_stack([(signs * axes).T, moved[:, 2]]).ravel()

    derivative = first_derivatives(rotated, coefs.ravel(), step=1e-5)
    expected = derivative @ np.linalg.pinv(matrix) @ derivative.T
    every = np.ones(6, dtype=bool)
    information = Information(matrix, coefs, np.ones(6), np.eye(6), every)
    covariance = information.covariance(rotation)
    assert_allclose(covariance, expected, atol=1e-6 * np.abs(expected).max())


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


def test_what_the_rows_do_not_determine_has_no_errors():
    """Of two parameters their sum alone is known, and nothing of a third."""
    matrix = np.diag([4.0, 4.0, 0.0, 9.0])
    matrix[0, 1] = matrix[1, 0] = 4.0
    every = np.ones(2, dtype=bool)
    information = Information(matrix, np.ones((2, 2)), np.ones(2), np.eye(2), every)
    with pytest.warns(
        UserWarning, match=r"The rows do not determine 3 of 4 parameters"
    ):
        covariance = information.covariance(None)
    assert np.isnan(covariance[:3]).all()
    assert covariance[3, 3] == pytest.approx(1 / 9)


def test_components_without_axes_have_no_errors():
    X = factor_rows(2)
    model = MPTLinearVAE(2, max_iter=0).fit(X)
    with pytest.raises(ValueError, match=r"The components are as `init` left them"):
        model.standard_errors(X)


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_information_of_numbers_with_gaps_is_that_of_what_is_there(noise):
    rng = np.random.default_rng(1)
    X, weight = factor_rows(1, 3, n_samples=12), rng.random(12)
    X[rng.random(X.shape) < 0.3] = np.nan
    X[0] = np.nan
    log_noise = np.array([-0.3]) if noise == "shared" else rng.normal(size=3)
    theta = np.concatenate([rng.normal(size=6), log_noise])

    def by_scipy(theta):
        (W, mean), noise_variance = theta[:6].reshape(3, 2).T, np.exp(theta[6:])
        covariance = np.outer(W, W) + noise_variance * np.eye(3)
        total = 0.0
        for x, share in zip(X, weight, strict=True):
            seen = ~np.isnan(x)
            if seen.any():
                law = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
                total += share * law.logpdf(x[seen])
        return total

    def log_prob(coefs, log_noise):
        model = density_of(coefs[:, :-1].T, coefs[:, -1], log_noise.exp())
        return torch.tensor(weight) @ model.lml(torch.tensor(X))[0]

    of_noise = torch.tensor(theta[6:])
    if noise == "shared":
        of_noise = of_noise[0]
    coefs = torch.tensor(theta[:6].reshape(3, 2))
    found = information_by_hessian(log_prob, coefs, of_noise)
    assert_allclose(found, -second_derivatives(by_scipy, theta), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_rows_of_gaps_alone_say_nothing_of_the_errors(noise):
    X = factor_rows(1, 4, n_samples=600)  # so many that no feature is the factor itself
    model = MPTLinearVAE(1, noise=noise, objective="lml", random_state=0, tol=1e-3)
    more = np.vstack([X, np.full((3, 4), np.nan)])
    complete, beside = (model.fit(X).standard_errors(rows) for rows in (X, more))
    assert np.isfinite(beside.covariance).all()
    assert_allclose(beside.covariance, complete.covariance, rtol=1e-6, atol=1e-12)
    assert_allclose(beside.noise_variance, complete.noise_variance, rtol=1e-9)


UNTOLD = r"The model does not determine \d+ of \d+ parameters, however many rows"


def expected_of_numbers(n_features, n_components, noise="per_feature", seen=None):
    rng = np.random.default_rng(0)
    W = simple_axes(rng.normal(size=(n_components, n_features)), None)
    coefs = torch.tensor(np.column_stack([W.T, rng.normal(size=n_features)]))
    log_noise = torch.tensor(rng.normal(scale=0.3, size=n_features))
    if noise == "shared":
        log_noise = log_noise[0]
    seen = [torch.ones(n_features, dtype=bool)] if seen is None else seen
    found = sum(expected_information(coefs, log_noise, s) for s in seen)
    return found.numpy(), coefs, log_noise


def errors_by_model(expected, coefs):
    """Those of as many rows as there are patterns, all just as the model says."""
    n_locations = len(coefs)
    every, free = np.ones(n_locations, dtype=bool), np.eye(n_locations)
    of = np.asarray(coefs), np.ones(n_locations), free, every
    return Information(expected, *of, expected).covariance(None).diagonal()


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
def test_expected_information_is_that_of_rows_just_as_the_model_says(noise):
    """Of rows whose mean and covariance are those of the model."""
    expected, coefs, log_noise = expected_of_numbers(4, 2, noise)
    X = np.random.default_rng(1).normal(size=(9, 4))
    X = np.linalg.qr(X - X.mean(axis=0))[0] * 3
    W, noise_variance = coefs[:, :-1].numpy(), log_noise.exp().numpy()
    root = np.linalg.cholesky(W @ W.T + noise_variance * np.eye(4))
    X = torch.tensor(X @ root.T) + coefs[:, -1]

    def log_prob(coefs, log_noise):
        return (
            density_of(coefs[:, :-1].T, coefs[:, -1], log_noise.exp()).lml(X)[0].mean()
        )

    found = information_by_hessian(log_prob, coefs, log_noise)
    assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(
    ("n_features", "n_components"),
    [(2, 1), (3, 1), (4, 2), (5, 2), (5, 3), (6, 3), (7, 4), (8, 4)],
)
def test_factors_are_told_up_to_the_bound_of_ledermann(n_features, n_components):
    """(d - k)^2 >= d + k; means are always told."""
    is_told = (n_features - n_components) ** 2 >= n_features + n_components
    expected, coefs, _ = expected_of_numbers(n_features, n_components)
    if is_told:
        assert np.isfinite(errors_by_model(expected, coefs)).all()
        return
    with pytest.warns(UserWarning, match=UNTOLD):
        variance = errors_by_model(expected, coefs)
    by_feature = variance[: coefs.numel()].reshape(coefs.shape)
    assert np.isnan(by_feature[:, :-1]).any()
    assert np.isfinite(by_feature[:, -1]).all()


def test_features_that_are_never_seen_together_are_not_told():
    """Of three, one pair is missing: two covariances do not tell three weights."""
    pairs = ~torch.eye(3, dtype=torch.bool)
    expected, coefs, _ = expected_of_numbers(3, 1, seen=pairs)
    assert np.isfinite(errors_by_model(expected, coefs)).all()
    expected, coefs, _ = expected_of_numbers(3, 1, seen=pairs[:2])
    with pytest.warns(UserWarning, match=UNTOLD):
        assert np.isnan(errors_by_model(expected, coefs)).any()


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


def model_of(likelihood, X, n_components=1):
    rng, n_locations = np.random.default_rng(0), X.shape[1]
    init = {
        "components": simple_axes(rng.normal(size=(n_components, n_locations)), None),
        "intercept": 0.3 * rng.normal(size=n_locations),
    }
    model = MPTLinearVAE(n_components, likelihood=likelihood, init=init, max_iter=0)
    return model.fit(X)


def expected_of(model, X):
    """What rows of the model say, as its family has it; and its coefficients."""
    tensors = torch.tensor(X), torch.ones(len(X), dtype=torch.float64)
    found = model._information(*tensors)
    return found.expected, found.coefs


@pytest.mark.parametrize(
    ("n_items", "n_components", "is_told"),
    [(2, 1, False), (3, 1, True), (5, 1, True), (3, 2, False), (5, 2, True)],
)
def test_slopes_of_few_items_are_told_if_there_are_enough_answers(
    n_items, n_components, is_told
):
    """2^d - 1 shares; 2 d parameters of one component, 3 d - 1 of two."""
    X = (np.random.default_rng(1).random((30, n_items)) < 0.5).astype(float)
    expected, coefs = expected_of(model_of("bernoulli", X, n_components), X)
    if is_told:
        assert np.isfinite(errors_by_model(expected, coefs)).all()
        return
    with pytest.warns(UserWarning, match=UNTOLD):
        assert np.isnan(errors_by_model(expected, coefs)).any()


def test_items_of_two_halves_that_nobody_answers_together_are_not_told():
    X = (np.random.default_rng(1).random((40, 4)) < 0.5).astype(float)
    X[:20, :2] = X[20:, 2:] = np.nan
    expected, coefs = expected_of(model_of("bernoulli", X), X)
    with pytest.warns(UserWarning, match=UNTOLD):
        assert np.isnan(errors_by_model(expected, coefs)).all()


def test_counts_of_two_kinds_tell_their_slopes():
    """By two variances and a covariance, as counts of one rate vary as their mean."""
    X = np.random.default_rng(1).poisson(1.0, size=(40, 2)).astype(float)
    expected, coefs = expected_of(model_of("poisson", X), X)
    assert np.isfinite(errors_by_model(expected, coefs)).all()


def test_users_are_told_of_two_items():
    X = (np.random.default_rng(1).random((200, 2)) < 0.5).astype(float)
    model = model_of("bernoulli", X)
    with pytest.warns(UserWarning, match=UNTOLD):
        errors = model.standard_errors(X)
    assert np.isnan(errors.components).all()


def test_patterns_are_those_of_all_kinds_of_columns_that_take_few_values():
    kinds = Columns(["categorical", "bernoulli"], [3, 1])
    assert list(map(list, kinds.values_of_each(2))) == [[0, 1, 2], [0, 1]]
    assert Columns(["poisson", "bernoulli"], [1, 1]).values_of_each(2) is None


def outcomes_of(model, X, sample_weight=None):
    return model.class_outcomes(X, np.arange(len(X)) % 7, sample_weight)


def effects_on(model, X, sample_weight=None):
    return model.covariate_effects(X, np.arange(len(X))[:, None] % 7, sample_weight)


def ratio_to_smaller(model, X, sample_weight=None):
    nested = clone(model).set_params(model="rasch")
    nested.fit(X, sample_weight=sample_weight)
    return model.likelihood_ratio_test(nested, X, sample_weight)


def ratio_to_larger(model, X, sample_weight=None):
    larger = clone(model).set_params(model="2pl").fit(X, sample_weight=sample_weight)
    return larger.likelihood_ratio_test(model, X, sample_weight)


@pytest.mark.parametrize(
    ("model", "errors_of"),
    [
        (MPTLinearVAE(1, likelihood="bernoulli"), MPTLinearVAE.standard_errors),
        (MPTProbabilisticPCA(1), MPTProbabilisticPCA.factor_loadings),
        (MPTItemResponse("rasch"), MPTItemResponse.item_parameters),
        (MPTItemResponse("2pl"), ratio_to_smaller),
        (MPTItemResponse("rasch"), ratio_to_larger),
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
    for fitted_with in (weight, weight / weight.mean()):
        model.fit(X, sample_weight=fitted_with)
        errors_of(model, X, sample_weight=fitted_with)
        with pytest.warns(UserWarning, match="are not those of fit"):
            errors_of(model, X)
