"""Where factor analysis starts, and fits that start at saddles."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from sklearn_mpt import MPTLinearVAE


@pytest.mark.filterwarnings("ignore:Heywood")
@pytest.mark.parametrize("n_factors", [3, 4])
def test_fits_reach_the_maximum_that_noise_of_regressions_leads_to(n_factors):
    # at regressions of the columns on each other
    X = scale(load_breast_cancer().data)
    S = X.T @ X / len(X)
    noise = (1 - n_factors / 60) / np.linalg.inv(S).diagonal()
    values, axes = np.linalg.eigh(S / np.sqrt(np.outer(noise, noise)))
    lengths = np.sqrt(values[-n_factors:] - 1)
    init = {
        "components": (np.sqrt(noise)[:, None] * axes[:, -n_factors:] * lengths).T,
        "mean": X.mean(0),
        "noise_variance": noise,
    }
    params = {"noise": "per_feature", "objective": "lml", "random_state": 0}
    reached = MPTLinearVAE(n_factors, init=init, **params).fit(X).score(X)
    assert MPTLinearVAE(n_factors, **params).fit(X).score(X) > reached - 0.01


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
