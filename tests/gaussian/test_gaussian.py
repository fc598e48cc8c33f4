from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_less
from reference import (
    by_differences,
    exact_terms,
    log_density,
    low_rank_rows,
    masked_score,
)

from sklearn_mpt._gaussian.density import LinearGaussian
from sklearn_mpt._gaussian.likelihood import GaussianRows, likelihood_sums
from sklearn_mpt._gaussian.moments import moments_of
from sklearn_mpt._optim.natural import Point

N_DIMS, N_FEATURES = 3, 7
LOG_NOISES = [-0.3, np.linspace(-1, 1, N_FEATURES)]  # shared, or of each feature


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(N_DIMS, N_FEATURES)), rng.normal(size=N_FEATURES)
    return LinearGaussian(*map(torch.tensor, (*arrays, np.array(0.4))))


@pytest.fixture
def joint(model):
    return joint_of(model)


def joint_of(model):
    W, noise = model.components.numpy(), model.noise_variance.numpy()
    return model.mean.numpy(), W.T @ W + noise * np.eye(N_FEATURES)


def point_of(model, log_noise):
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    return Point(coefs, torch.tensor(log_noise).double())


def model_at(point):
    return LinearGaussian(
        point.coefs[:, :-1].T, point.coefs[:, -1], point.shape_params.exp()
    )


@pytest.fixture
def X():
    return low_rank_rows(25, N_FEATURES, N_DIMS, 0.4, seed=1)


@pytest.fixture
def gaps(X):
    X[0, 2], X[3, :5], X[4] = np.nan, np.nan, np.nan
    return X


def autograd(value_of, point):
    leaves = Point(*(part.clone().requires_grad_() for part in point))
    return Point(*torch.autograd.grad(value_of(leaves), leaves))


def assert_points_close(actual, expected, **tolerance):
    assert_allclose(actual.coefs, expected.coefs, **tolerance)
    assert_allclose(actual.shape_params, expected.shape_params, **tolerance)


@pytest.mark.parametrize("has_gaps", [True, False])
@pytest.mark.parametrize("log_noise", LOG_NOISES)
def test_gradient_of_likelihood_sums_is_that_of_the_density(
    model, log_noise, has_gaps, gaps
):
    X = gaps if has_gaps else low_rank_rows(25, N_FEATURES, N_DIMS, 0.4, seed=1)
    point, weight = point_of(model, log_noise), torch.linspace(0, 2, 25).double()
    rows, present = torch.tensor(X), torch.tensor(~np.isnan(X)).double()
    if not has_gaps:  # they may share a posterior covariance
        present = present[:1]
    sums = likelihood_sums(rows.nan_to_num(50.0), present, point, weight)
    log_prob = log_density(X, *joint_of(model_at(point)))
    assert_allclose(sums.value, weight.numpy() @ log_prob)
    assert_allclose(sums.square, weight.numpy() @ log_prob**2)
    leaves = Point(*(part.clone().requires_grad_() for part in point))
    value = weight @ model_at(leaves).lml(rows)[0]
    gradient = Point(*torch.autograd.grad(value, leaves))
    assert_points_close(sums.gradient, gradient, atol=1e-9)


def test_noise_information_is_that_of_the_density(model):
    """Half the trace of C^-2, or its entries squared, by differences of slopes."""
    rng = np.random.default_rng(0)
    W, variance = model.components.numpy().T, rng.uniform(0.5, 2, N_FEATURES)
    coefs = torch.cat([model.components.T, model.mean[:, None]], 1)
    X = torch.tensor(rng.normal(size=(5, N_FEATURES)))
    objective = GaussianRows(X, N_DIMS, "auto", floor=-30.0)

    def noise_information(point):
        sums = objective.sums(point, torch.arange(5))
        return sums.information.shape_params / 5

    inverse = np.linalg.inv(W @ W.T + np.diag(variance))
    point = Point(coefs, torch.tensor(variance).log())
    expected = 0.5 * (np.sqrt(variance[:, None] * variance) * inverse) ** 2
    assert_allclose(noise_information(point), expected)
    inverse = np.linalg.inv(W @ W.T + 0.4 * np.eye(N_FEATURES))
    shared = point._replace(shape_params=torch.tensor(0.4).double().log())
    expected = 0.5 * 0.4**2 * np.trace(inverse @ inverse)
    assert_allclose(noise_information(shared), expected)


@pytest.mark.parametrize("n_rows", [25, 3], ids=["many rows", "fewer than features"])
def test_few_rows_have_the_moments_of_all(X, n_rows):
    moments = moments_of(torch.tensor(X[:n_rows]))
    rows = moments.rows().numpy()
    assert len(rows) == min(n_rows, N_FEATURES) + 1
    assert_allclose(rows.mean(0), X[:n_rows].mean(0), atol=1e-12)
    covariance = np.cov(X[:n_rows].T, bias=True)
    assert_allclose(np.cov(rows.T, bias=True), covariance, atol=1e-12)


@pytest.mark.parametrize("n_rows", [25, 3], ids=["many rows", "fewer than features"])
@pytest.mark.parametrize("noise", [0.4, np.linspace(0.1, 2, N_FEATURES)])
def test_moment_form_is_the_mean_over_rows(model, X, n_rows, noise):
    model = LinearGaussian(model.components, model.mean, torch.tensor(noise).double())
    masks = np.random.default_rng(2).random((12, 7)) < 0.5
    masks[:, 0], masks[0] = True, True
    rows = torch.tensor(X[:n_rows])
    by_moments = model.moment_scores(moments_of(rows), torch.tensor(masks))
    for mask, score in zip(torch.tensor(masks), by_moments, strict=True):
        log_prob = model.conditional_log_prob(rows, mask[None])
        assert_allclose(masked_score(log_prob, mask).mean(), score)


def test_conditionals_are_differences_of_densities(model, joint, gaps):
    hidden = np.random.default_rng(2).random(gaps.shape) < 0.5
    hidden[5], hidden[6] = True, False
    log_prob = model.conditional_log_prob(torch.tensor(gaps), torch.tensor(hidden))
    truth = by_differences(gaps, hidden, lambda rows: log_density(rows, *joint))
    assert_allclose(log_prob, truth, atol=1e-10)


def test_tiny_noise_keeps_its_precision():
    """Eigenvalues from 1e-6 to 1e6: the D x D route in longer arithmetic agrees."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0][:3]
    components = np.array([1e3, 30.0, 1.0])[:, None] * axes
    model = LinearGaussian(
        torch.tensor(components),
        torch.zeros(6, dtype=torch.float64),
        torch.tensor(1e-6, dtype=torch.float64),
    )
    X = rng.normal(size=(1, 3)) @ components + 1e-3 * rng.normal(size=(1, 6))
    actual = model.lml(torch.tensor(X))[0].item()
    assert_allclose(actual, exact_log_density(X[0], model), rtol=1e-4)


def exact_log_density(x, model):
    """Of the present entries, with 60 digits."""
    return exact_terms(x, np.flatnonzero(~np.isnan(x)).tolist(), model).sum()


def assert_close_up_to_rounding(actual, expected, X, noise):
    """Compare scores whose residuals may be off by ten roundings of the largest entry.

    The error e of a residual r changes a score by at most (|r| e + e^2) / noise.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    error = 10 * np.finfo(float).eps * np.nanmax(np.abs(X)) / np.sqrt(noise)
    residual = np.sqrt(2 * np.abs(expected))
    allowed = 1e-6 * (1 + np.abs(expected)) + error * (residual + error)
    assert_array_less(np.abs(actual - expected), allowed)


@pytest.mark.parametrize("n_dims", [1, 3, N_FEATURES])
@pytest.mark.parametrize("noise", [1e-14, 1e-9, 1e-6, 1e-2])
def test_rows_far_out_score_alike_by_every_route(n_dims, noise):
    """Joint, conditionals, moments, rank-one updates; along components, and off."""
    rng = np.random.default_rng(4)
    W, mean = rng.normal(size=(n_dims, N_FEATURES)), rng.normal(size=N_FEATURES)
    model = LinearGaussian(*map(torch.tensor, (W, mean, np.array(noise))))
    order = torch.tensor(rng.permutation(N_FEATURES))
    along, off = rng.normal(size=n_dims) @ W, rng.normal(size=N_FEATURES)
    for x in (mean + 1e12 * along, mean + 1e12 * off, mean + along):
        for gaps in ([], [1, 4]):
            X = x.copy()
            X[gaps] = np.nan
            X = torch.tensor(X)[None]
            expected = exact_log_density(X[0].numpy(), model)
            assert_close = partial(
                assert_close_up_to_rounding, X=X.numpy(), noise=noise
            )
            assert_allclose(model.lml(X)[0][0], expected, rtol=1e-9)
            masks = order.argsort() >= torch.arange(N_FEATURES)[:, None]
            log_prob = model.conditional_log_prob(X.expand(N_FEATURES, -1), masks)
            chain = log_prob.gather(1, order[:, None]).sum()
            assert_close(chain, expected)
            own = masked_score(log_prob, masks)
            scores = model.mean_masked_scores(X, masks, 10)
            assert_close(scores, own)
            assert_close(model.chain_log_prob(X, order[None, None]).sum(), expected)


@pytest.mark.parametrize("size", [1e154, 1e200, 1e308])
def test_rows_whose_squares_overflow_have_finite_scores(model, size):
    lowest = np.finfo(float).min
    eye = torch.eye(7, dtype=torch.float64)
    for X in (size * eye.sum(0, keepdim=True), size * eye, -size * eye[:1]):
        log_prob, _ = model.lml(X)
        assert ((lowest <= log_prob) & (log_prob < -1e300)).all()
        hidden = torch.arange(7)[None] == 0
        conditional = model.conditional_log_prob(X, hidden)
        assert conditional.isfinite().all()
        assert conditional[0, 0] < -1e300
