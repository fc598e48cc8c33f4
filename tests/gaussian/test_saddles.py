"""Fits that start without some components, at saddles, find them."""

import numpy as np
import pytest
from sklearn.preprocessing import scale

from sklearn_mpt import MPTLinearVAE

VARIANCES = np.array([9.0, 5.0, 4.0, 1.5, 1.0, 0.5])


def rows():
    """Rows whose second moments are nearly those variances, one of them with a gap."""
    X = np.linalg.qr(scale(np.random.default_rng(0).normal(size=(60, 6))))[0]
    X *= np.sqrt(len(X) * VARIANCES)
    X[0, 0] = np.nan
    return X


@pytest.mark.parametrize("noise", ["shared", "per_feature"])
@pytest.mark.parametrize("axes", [(0, 1, None), (0, 1, 3), (None, 3, None)])
def test_missing_components_are_found(axes, noise):
    """From some of the axes, and components that are zero, as from scratch."""
    X, components = rows(), np.zeros((3, 6))
    for k, axis in enumerate(axes):
        if axis is not None:
            components[k, axis] = np.sqrt(VARIANCES[axis] - 0.4)
    noise_variance = 0.4 if noise == "shared" else np.full(6, 0.4)
    init = {"components": components, "mean": np.zeros(6)}
    init["noise_variance"] = noise_variance
    model = MPTLinearVAE(3, noise=noise, objective="lml", random_state=0, tol=1e-7)
    model.set_params(max_iter=500)
    expected = model.fit(X).score(X)
    found = model.set_params(init=init).fit(X).score(X)
    assert found == pytest.approx(expected, abs=1e-3)
