import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference import (
    bernoulli_log_prob,
    bernoulli_posterior_average,
    binary_rows,
    by_differences,
)
from scipy.special import expit

torch = pytest.importorskip("torch")

from sklearn_mpt._latent import integration as _integration  # noqa: E402
from sklearn_mpt._latent.rules import GaussHermite  # noqa: E402
from sklearn_mpt._likelihoods import Bernoulli  # noqa: E402
from sklearn_mpt._linear.integrated_training import (  # noqa: E402
    BoundRows,
    LeaveOneOut,
    LinearModule,
    evidence_lower_bound,
    variational_posterior,
)
from sklearn_mpt._linear.map import LinearMap, laplace  # noqa: E402
from sklearn_mpt._measure.masks import enumerate_masks  # noqa: E402

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
    return _integration.rows_of(
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
    log_prob, error = _integration.integrate_log_prob(rows_of(X), rule, parameters)
    assert_allclose(log_prob, bernoulli_log_prob(X, *arrays), atol=1e-6)
    assert (error < 1e-4).all()


def test_conditionals_are_differences_of_densities(parameters, arrays, X, mask, rule):
    log_prob, _ = _integration.integrate_conditionals(
        rows_of(X, mask), rule, parameters
    )
    truth = by_differences(X, mask, lambda rows: bernoulli_log_prob(rows, *arrays))
    assert_allclose(log_prob, truth, atol=1e-6)


def test_posterior_average_is_that_of_a_dense_grid(parameters, arrays, X, rule):
    average, _ = _integration.integrate_average(
        lambda z: z, rows_of(X), rule, parameters
    )
    truth = bernoulli_posterior_average(lambda z: z, X, *arrays)
    assert_allclose(average, truth, atol=1e-6)


def test_numbers_do_not_depend_on_blocks_of_nodes(
    parameters, X, mask, rule, monkeypatch
):
    rows = rows_of(X, mask)
    whole = _integration.integrate_conditionals(rows, rule, parameters)[0]
    monkeypatch.setattr(_integration, "BLOCK_BYTES", 8 * rows.X.numel() * 100)
    assert_allclose(
        _integration.integrate_conditionals(rows, rule, parameters)[0], whole
    )


def leave_one_out(parameters, X, mask, rule):
    rows = rows_of(X, mask)
    nodes = rule.place(rule.groups[-1], parameters.propose(rows))
    log_prob = LeaveOneOut.apply(
        parameters.components, parameters.intercept, rows, nodes
    )
    return torch.where(rows.present, log_prob, 0.0)


def test_leave_one_out_conditions_on_the_other_observed_entries(
    parameters, arrays, X, mask, rule
):
    result = leave_one_out(parameters, X, mask, rule)
    for j in range(N_FEATURES):
        without_j = mask | (np.arange(N_FEATURES) == j)
        truth = by_differences(X, without_j, lambda r: bernoulli_log_prob(r, *arrays))
        assert_allclose(result[:, j], truth[:, j], atol=1e-5)


def test_leave_one_out_averaged_over_all_masks_is_the_log_marginal_likelihood(
    parameters, arrays, X, rule
):
    total = torch.zeros(len(X), dtype=torch.float64)
    for size in range(N_FEATURES + 1):
        masks = enumerate_masks(N_FEATURES, size)
        for mask in masks:
            log_prob = leave_one_out(parameters, X, np.tile(mask, (len(X), 1)), rule)
            total += log_prob.sum(1) / len(masks) / (N_FEATURES + 1)
    assert_allclose(total, bernoulli_log_prob(X, *arrays), atol=1e-5)


def test_gradient_of_leave_one_out_is_that_of_its_formula(parameters, X, mask):
    """Nodes fixed, finite differences."""
    rows = rows_of(X, mask)
    rule = GaussHermite([3], 2, "cpu")
    nodes = rule.place(rule.groups[0], parameters.propose(rows))
    weight = torch.tensor(np.random.default_rng(3).random(X.shape))
    both = parameters.components, parameters.intercept
    inputs = [tensor.clone().requires_grad_() for tensor in both]

    def weighted(components, intercept):
        log_prob = LeaveOneOut.apply(components, intercept, rows, nodes)
        return (weight * torch.where(rows.present, log_prob, 0.0)).sum(1)

    assert torch.autograd.gradcheck(weighted, inputs)


def test_gradient_of_the_training_losses_is_that_of_the_exact_ones(arrays, X, mask):
    """Nodes are placed without a gradient: the finite difference moves them too."""
    grid = GaussHermite([41], 1, "cpu").groups[0]

    def model_at(shift):
        latent = binary_map(arrays[0] + shift, arrays[1])
        return LinearModule(
            latent, torch.ones(N_FEATURES), GaussHermite([41], 2, "cpu")
        )

    rows, hidden = torch.tensor(X), torch.tensor(mask)
    bound = BoundRows(rows, len(rows), grid).bound
    direction = np.random.default_rng(4).normal(size=arrays[0].shape)
    for value in (
        lambda model: model.log_prob(rows).sum(),
        lambda model: model.leave_one_out_log_prob(rows, hidden).sum(),
        lambda model: bound(model, rows).sum(),
    ):
        model = model_at(0.0)
        value(model).backward()
        slope = (model.components.grad * torch.tensor(direction)).sum()
        ends = [value(model_at(s * 1e-4 * direction)).item() for s in (1, -1)]
        assert_allclose(slope, (ends[0] - ends[1]) / 2e-4, rtol=1e-3)


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


def test_constant_features_keep_their_parameters(arrays, X):
    varies = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    model = LinearModule(binary_map(*arrays), varies, GaussHermite([5], 2, "cpu"))
    model.log_prob(torch.tensor(X)).sum().backward()
    assert_array_equal(model.components.grad[:, 1], 0.0)
    assert model.intercept.grad[1] == 0.0
    assert (model.intercept.grad[[0, 2, 3, 4]] != 0).all()
