import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import (
    bernoulli_log_prob,
    bernoulli_posterior_average,
    binary_rows,
    by_differences,
)
from scipy.special import expit

torch = pytest.importorskip("torch")

from sklearn_mpt._latent import integrals  # noqa: E402
from sklearn_mpt._latent.grids import PriorGrids, prior_grid  # noqa: E402
from sklearn_mpt._latent.linear_map import (  # noqa: E402
    LinearMap,
    evidence_lower_bound,
    laplace,
    variational_posterior,
)
from sklearn_mpt._latent.quadrature import GaussHermite  # noqa: E402
from sklearn_mpt._likelihoods import Bernoulli  # noqa: E402

N_FEATURES = 5


def binary_map(components, intercept):
    return LinearMap(torch.tensor(components), torch.tensor(intercept), Bernoulli())


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return 1.5 * rng.normal(size=(2, N_FEATURES)), 0.5 * rng.normal(size=N_FEATURES)


@pytest.fixture
def parameters(arrays):
    return binary_map(*arrays)


@pytest.fixture
def X(arrays):
    X = binary_rows(12, *arrays, seed=1)
    X[0, 1:4], X[1] = np.nan, np.nan
    return X


@pytest.fixture
def mask(X):
    return np.random.default_rng(2).random(X.shape) < 0.5


@pytest.fixture
def rule():
    return GaussHermite([28, 41], 2, "cpu")


def rows_of(X, mask=None):
    return integrals.rows_of(
        torch.tensor(X), None if mask is None else torch.tensor(mask)
    )


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["gentle", "steep"])
def test_newton_ends_at_the_mode(arrays, X, scale):
    components, intercept = scale * arrays[0], scale * arrays[1]
    parameters = binary_map(components, intercept)
    z = laplace(rows_of(X), parameters).mean.numpy()
    residual = np.where(np.isnan(X), 0, X - expit(z @ components + intercept))
    assert_allclose(residual @ components.T, z, atol=1e-6)


def test_mode_of_a_row_does_not_depend_on_the_others(parameters, X):
    together = laplace(rows_of(X), parameters).mean
    alone = laplace(rows_of(X[3:4]), parameters).mean
    assert_allclose(together[3:4], alone, rtol=1e-12)


def test_log_prob_is_that_of_a_dense_grid(parameters, arrays, X, rule):
    log_prob, error = integrals.integrate_log_prob(rows_of(X), rule, parameters)
    assert_allclose(log_prob, bernoulli_log_prob(X, *arrays), atol=1e-6)
    assert (error < 1e-4).all()


def test_conditionals_are_differences_of_densities(parameters, arrays, X, mask, rule):
    log_prob, _ = integrals.integrate_conditionals(rows_of(X, mask), rule, parameters)
    truth = by_differences(X, mask, lambda rows: bernoulli_log_prob(rows, *arrays))
    assert_allclose(log_prob, truth, atol=1e-6)


def test_errors_of_conditionals_are_in_nats(parameters, X, mask):
    """Of two grids over the prior: by how much their own logs differ."""
    rows, like = rows_of(X, mask), torch.zeros(0).double()
    grids = [prior_grid([0.9, 0.9], like, shift=shift) for shift in (0.0, 0.5)]
    value, error = integrals.integrate_conditionals(
        rows, PriorGrids(grids, [0.1] * 2, 9.0), parameters
    )
    alone = [
        integrals.integrate_conditionals(
            rows, PriorGrids([g, g], [0.1] * 2, 9.0), parameters
        )[0]
        for g in grids
    ]
    assert error.max() > 1e-3
    assert_allclose(error, (alone[0] - alone[1]).abs(), rtol=0.05, atol=1e-5)
    assert_allclose(value, sum(alone) / 2, atol=0.1 * error.max())


def test_errors_of_differences_are_of_both_integrals(parameters, X):
    """A rule that is coarse for either: no error of one hides that of the other."""
    X, which = np.nan_to_num(X), torch.arange(12)
    mask = np.arange(N_FEATURES) == 2
    rows, rule = rows_of(X, mask), GaussHermite([2, 3], 2, "cpu")

    def integrate(rows):
        return integrals.integrate_log_prob(rows, rule, parameters)

    entries = which, torch.full((12,), 2)
    value, error = integrals.conditionals_by_difference(rows, entries, integrate)
    joint, joint_error = integrate(rows_of(X))
    alone, alone_error = integrate(rows)
    assert_allclose(value, joint - alone)
    assert (alone_error > joint_error).any()
    assert_allclose(error**2, joint_error**2 + alone_error**2)


def test_posterior_average_is_that_of_a_dense_grid(parameters, arrays, X, rule):
    average, _ = integrals.integrate_average(lambda z: z, rows_of(X), rule, parameters)
    truth = bernoulli_posterior_average(lambda z: z, X, *arrays)
    assert_allclose(average, truth, atol=1e-6)


def test_numbers_do_not_depend_on_blocks_of_nodes(
    parameters, X, mask, rule, monkeypatch
):
    rows = rows_of(X, mask)
    whole = integrals.integrate_conditionals(rows, rule, parameters)[0]
    monkeypatch.setattr(integrals, "CACHE_ENTRIES", rows.X.numel() * 100)
    assert_allclose(integrals.integrate_conditionals(rows, rule, parameters)[0], whole)


def test_evidence_lower_bound_is_the_best_of_a_gaussian(parameters, arrays, X):
    grid = GaussHermite([41], 1, "cpu").groups[0]
    rows = rows_of(X)
    best = variational_posterior(rows, parameters, grid, n_steps=20)
    bound = evidence_lower_bound(rows, best, parameters, grid)
    start = laplace(rows, parameters)
    assert (bound >= evidence_lower_bound(rows, start, parameters, grid) - 1e-9).all()
    assert (bound.numpy() <= bernoulli_log_prob(X, *arrays) + 1e-9).all()
    moved = best._replace(mean=best.mean + 0.05)
    assert (bound[2:] > evidence_lower_bound(rows, moved, parameters, grid)[2:]).all()
