import numpy as np
import pytest
from numpy.testing import assert_allclose
from reference import conditional_log_density, log_density, low_rank_rows

torch = pytest.importorskip("torch")

from sklearn_mpt._latent.objectives import MaskedRows  # noqa: E402
from sklearn_mpt._linear.gaussian import LinearGaussian, moments_of  # noqa: E402
from sklearn_mpt._linear.gaussian_training import GaussianModule  # noqa: E402
from sklearn_mpt._measure.contract import masked_score  # noqa: E402


@pytest.fixture
def model():
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 7)), rng.normal(size=7), np.array(0.4)
    return LinearGaussian(*map(torch.tensor, arrays))


@pytest.fixture
def joint(model):
    W = model.components.numpy()
    return model.mean.numpy(), W.T @ W + model.noise_variance.numpy() * np.eye(7)


@pytest.fixture
def X():
    return low_rank_rows(25, 7, 3, 0.4, seed=1)


@pytest.mark.parametrize("n_rows", [25, 3], ids=["many rows", "fewer than features"])
def test_moment_form_is_the_mean_over_rows(model, X, n_rows):
    masks = np.random.default_rng(2).random((12, 7)) < 0.5
    masks[:, 0], masks[0] = True, True
    rows = torch.tensor(X[:n_rows])
    by_moments = model.moment_scores(moments_of(rows), torch.tensor(masks))
    for mask, score in zip(torch.tensor(masks), by_moments, strict=True):
        log_prob = model.conditional_log_prob(rows, mask[None])
        assert_allclose(masked_score(log_prob, mask).mean(), score)


def test_mean_log_prob_is_the_mean_over_rows(model, joint, X):
    mean = model.mean_log_prob(moments_of(torch.tensor(X)))
    assert_allclose(mean, log_density(X, *joint).mean())


def test_tiny_noise_keeps_its_precision():
    """Eigenvalues from 1e-6 to 1e6: the D x D route in longer arithmetic agrees."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(6, 6)))[0][:3]
    components = np.array([1e3, 30.0, 1.0])[:, None] * axes
    model = LinearGaussian(
        torch.tensor(components),
        torch.zeros(6, dtype=torch.float64),
        torch.tensor(1e-6),
    )
    X = rng.normal(size=(1, 3)) @ components + 1e-3 * rng.normal(size=(1, 6))
    with mpmath.workdps(60):
        W = mpmath.matrix(components.tolist())
        S = W.T * W + mpmath.mpf(1e-6) * mpmath.eye(6)
        x = mpmath.matrix(X[0].tolist())
        quadratic = (x.T * mpmath.lu_solve(S, x))[0]
        log_scale = 6 * mpmath.log(2 * mpmath.pi) + mpmath.log(mpmath.det(S))
        expected = float(-(log_scale + quadratic) / 2)
    actual = model.log_prob(torch.tensor(X))[0].item()
    assert_allclose(actual, expected, rtol=1e-4)


def test_a_step_and_its_fold_are_the_same_model(model, X):
    module = GaussianModule(model, torch.tensor(1e-9))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for step in module.parameters():
            step.copy_(0.1 * torch.randn(step.shape, generator=generator))
    stepped = module.now.log_prob(torch.tensor(X)).detach()
    module.fold()
    assert all((step == 0).all() for step in module.parameters())
    assert_allclose(module.now.log_prob(torch.tensor(X)).detach(), stepped)


def test_gradients_are_those_of_finite_differences(model, X):
    X[0, 2] = np.nan
    mask = torch.tensor(np.random.default_rng(3).random(X.shape) < 0.4)

    def loss(components, mean, noise_variance):
        point = LinearGaussian(components, mean, noise_variance)
        return point.conditional_log_prob(torch.tensor(X), mask).sum()

    parameters = model.components, model.mean, model.noise_variance
    leaves = [tensor.clone().requires_grad_() for tensor in parameters]
    assert torch.autograd.gradcheck(loss, leaves)


def test_rows_objective_is_the_contract(model, joint, X):
    X[1, 3] = np.nan
    module = GaussianModule(model, torch.tensor(1e-12))
    masks = torch.tensor(np.eye(7, dtype=bool))
    objective = MaskedRows(torch.tensor(X), lambda rng: masks, batch_size=10)
    for rows, mask in objective.batches(np.random.default_rng(0)):
        losses = objective.losses(module, (rows, mask)).detach()
        log_prob = conditional_log_density(rows.numpy(), mask.numpy(), *joint)
        assert_allclose(losses, -7 * masked_score(log_prob, mask.numpy()), atol=1e-8)


def test_rows_objective_passes_over_all_rows_once(X):
    objective = MaskedRows(torch.tensor(X), lambda rng: torch.ones(1, 7), batch_size=10)
    batches = list(objective.batches(np.random.default_rng(0)))
    assert len(batches) == 3
    seen = np.concatenate([rows.numpy() for rows, _ in batches])
    assert_allclose(np.sort(seen[:, 0]), np.sort(X[:, 0]))
