import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt._latent.quadrature import (
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


def test_standard_error_of_pooled_replicates_is_honest():
    rng = np.random.default_rng(0)
    means = 1 + 0.01 * rng.normal(size=(8, 100_000))
    value, error = pool(torch.tensor(np.log(means)))
    covered = np.mean(np.abs(value.numpy()) < 1.96 * error.numpy())
    # by Student's t: standard errors of eight replicates are too small as they are
    assert abs(covered - 0.95) < 4 * (0.95 * 0.05 / 100_000) ** 0.5
