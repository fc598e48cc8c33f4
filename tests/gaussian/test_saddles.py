"""Directions that explain more than weak components take their place."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.preprocessing import scale

torch = pytest.importorskip("torch")

from sklearn_mpt._gaussian.likelihood import (  # noqa: E402
    GaussianRows,
    gain_of,
    with_missing_components,
)
from sklearn_mpt._gaussian.moments import moments_of  # noqa: E402
from sklearn_mpt._optim.natural import Point  # noqa: E402

VARIANCES = np.array([9.0, 5.0, 4.0, 1.5, 1.0, 0.5])


def rows():
    """Rows whose second moments are exactly those variances."""
    X = np.linalg.qr(scale(np.random.default_rng(0).normal(size=(60, 6))))[0]
    return np.sqrt(len(X) * VARIANCES) * X


def point_with(axes, noise=1.0):
    """Components of the right length along some axes, and others that died."""
    coefs = np.zeros((6, 4))
    for k, axis in enumerate(axes):
        if axis is not None:
            coefs[axis, k] = np.sqrt(VARIANCES[axis] - noise)
    return Point(torch.tensor(coefs), torch.tensor(noise).double().log())


def objective(by_moments):
    X = torch.tensor(rows())
    if not by_moments:
        return GaussianRows(X, 3, "auto", floor=-30.0)
    return GaussianRows.of_moments(moments_of(X), 3, torch.tensor(-30.0))


def found_at(point, by_moments, min_gain=1e-6):
    gradients = objective(by_moments).location_gradients(point)
    return with_missing_components(point, *gradients, min_gain)


@pytest.mark.parametrize("by_moments", [True, False])
@pytest.mark.parametrize("axes", [(0, 1, None), (0, 1, 3), (None, 3, None)])
def test_missing_components_are_set(axes, by_moments):
    """To the leading axes, at the length that the noise leaves them."""
    found = found_at(point_with(axes), by_moments)
    W = found.coefs[:, :3].numpy()
    expected = np.diag([8.0, 4.0, 3.0, 0, 0, 0])
    assert_allclose(W @ W.T, expected, atol=1e-8)


@pytest.mark.parametrize("by_moments", [True, False])
def test_the_optimum_is_left_alone(by_moments):
    noise = VARIANCES[3:].mean()
    assert found_at(point_with((0, 1, 2), noise), by_moments) is None


def test_a_replacement_that_gains_too_little_is_not_made():
    """Axis 3 for axis 2: half of (b - log(1 + b)) for b = 3, less that for 0.5."""
    gain = 0.5 * (3 - np.log(4)) - 0.5 * (0.5 - np.log(1.5))
    assert_allclose(gain_of(torch.tensor([3.0])) - gain_of(torch.tensor([0.5])), gain)
    assert found_at(point_with((0, 1, 3)), True, 0.99 * gain) is not None
    assert found_at(point_with((0, 1, 3)), True, 1.01 * gain) is None
