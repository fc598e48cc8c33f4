"""Where factor analysis starts: principal components, and regressions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

torch = pytest.importorskip("torch")

from sklearn_mpt import MPTLinearVAE  # noqa: E402
from sklearn_mpt._gaussian.moments import moments_of, regression_factors  # noqa: E402


def rows(n_rows, n_features):
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, n_features))
    return scale(signal + rng.normal(size=signal.shape))


# more than twice as many features as rows: products of rows in place of covariances
@pytest.mark.parametrize("shape", [(200, 6), (200, 150), (30, 150)])
def test_components_are_the_best_ones_given_the_noise_that_regressions_leave(shape):
    X, ridge = rows(*shape), 1e-3
    S = X.T @ X / len(X)
    W, noise = regression_factors(moments_of(torch.from_numpy(X)), 2, ridge)
    precision = np.linalg.inv(S + ridge * np.eye(len(S)))
    assert_allclose(noise, (1 - 1 / len(S)) / precision.diagonal(), rtol=1e-6)
    model = W.T @ W + np.diag(noise)
    # where the derivative of the likelihood in W is 0
    assert_allclose(S @ np.linalg.solve(model, W.T), W.T, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Heywood")
@pytest.mark.parametrize("n_factors", [3, 4])
def test_fits_reach_the_maximum_that_noise_of_regressions_leads_to(n_factors):
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
