"""Free parameters of covariances, counted by the rank of their derivatives."""

import numpy as np
import pytest

from sklearn_mpt import MPTLinearVAE, MPTMixture, MPTProbabilisticPCA

N_FEATURES = 4


def directions(n_factors, is_shared):
    """Return the rank of derivatives of a covariance in loadings and noises."""
    W = np.random.default_rng(0).normal(size=(N_FEATURES, n_factors))
    changes = []
    for unit in np.eye(W.size).reshape(-1, *W.shape):
        changes.append(unit @ W.T + W @ unit.T)
    noise = [np.diag(unit) for unit in np.eye(N_FEATURES)]
    changes += [sum(noise)] if is_shared else noise
    return np.linalg.matrix_rank(np.reshape(changes, (len(changes), -1)))


def count(model, X):
    """Return the number of parameters from the criterion."""
    return (model.aic(X) + 2 * len(X) * model.score(X)) / 2


@pytest.mark.filterwarnings("ignore:n_components=|The variance|Maximum")
@pytest.mark.parametrize("n_factors", [2, 4])
def test_no_more_parameters_count_than_a_covariance_has(n_factors):
    X = np.exp(0.3 * np.random.default_rng(1).normal(size=(60, N_FEATURES)))
    fits = {
        True: [MPTProbabilisticPCA(n_factors), MPTLinearVAE(n_factors)],
        False: [MPTLinearVAE(n_factors, noise="per_feature")],
    }
    for is_shared, models in fits.items():
        expected = N_FEATURES + directions(n_factors, is_shared)
        for model in models:
            found = count(model.set_params(max_iter=1, random_state=0).fit(X), X)
            assert found == pytest.approx(expected)
    for kind in ("lognormal", "interval"):
        model = MPTLinearVAE(n_factors, likelihood=kind, max_iter=1, random_state=0)
        assert count(model.fit(X), X) == pytest.approx(expected)
    how = {"covariance_type": "low_rank", "n_factors": n_factors, "max_iter": 1}
    mixture = MPTMixture(2, random_state=0, **how).fit(X)
    expected = 1 + 2 * (N_FEATURES + directions(n_factors, False))
    assert count(mixture, X) == pytest.approx(expected)
