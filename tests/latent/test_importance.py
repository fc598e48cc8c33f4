import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._latent.quadrature import (
    logsumexp_and_softmax,
    normal_points,
    pool,
)

torch = pytest.importorskip("torch")


def test_points_are_normal_reproducible_and_independent_between_replicates():
    points = normal_points(1024, 2, seed=[0])
    assert points.shape == (8, 1024, 2)
    assert_allclose(points.mean(1), 0, atol=0.02)
    assert_allclose((points**2).mean(1), 1, atol=0.05)
    assert_array_equal(points, normal_points(1024, 2, seed=[0]))
    assert (points[0] != points[1]).all()
    assert (points != normal_points(1024, 2, seed=[1])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_near_the_smallest_number_are_zero(dtype):
    # products of matrices with subnormal numbers are slow
    values = torch.linspace(0, -800, 2000, dtype=dtype)[None]
    total, weight = logsumexp_and_softmax(values)
    exact = values.double().softmax(1)
    assert_allclose(total, values.double().logsumexp(1), rtol=1e-6)
    assert_allclose(weight, exact, rtol=1e-4, atol=torch.finfo(dtype).eps ** 2)
    assert weight[weight > 0].min() > torch.finfo(dtype).tiny ** 0.5
    assert_allclose(weight.sum(dtype=torch.float64), 1, rtol=1e-6)


def test_standard_error_of_pooled_replicates_is_honest():
    rng = np.random.default_rng(0)
    means = 1 + 0.01 * rng.normal(size=(8, 100_000))
    value, error = pool(torch.tensor(np.log(means)))
    covered = np.mean(np.abs(value.numpy()) < 1.96 * error.numpy())
    # by Student's t: standard errors of eight replicates are too small as they are
    assert abs(covered - 0.95) < 4 * (0.95 * 0.05 / 100_000) ** 0.5


def test_replicates_that_disagree_by_orders_have_the_error_of_their_logs():
    logs = torch.tensor([[-60.0], [-70.0], [-90.0], [-80.0]])
    _, error = pool(logs)
    assert error > 6
