"""Where factor analysis starts: at regressions of the columns on each other."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from sklearn_mpt import MPTLinearVAE


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
