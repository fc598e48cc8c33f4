"""Levels and categories that a dtype declares and no row has."""

import numpy as np
import pandas as pd
import pytest

from sklearn_mpt import (
    MPTDeepVAE,
    MPTDependencyNetwork,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
)

N = 100
MODELS = {
    "mixture": MPTMixture(2),
    "mixture by EM": MPTMixture(2, objective="lml"),
    "linear": MPTLinearVAE(1),
    "deep": MPTDeepVAE(1, hidden_layer_sizes=(8,), max_iter=10),
    "masked": MPTMaskedAutoencoder(max_iter=60),
    "network": MPTDependencyNetwork(),
}


def table(ordered):
    """Three columns of two values each, of which the first declares a third one."""
    z = np.arange(N) % 2
    codes = np.stack([z, np.where(np.arange(N) % 5, z, 1 - z), z], 1)
    codes[::7, 2] = 1 - codes[::7, 2]
    values = np.array(list("xyz"))[codes].T
    levels = list("xyz"), list("xy"), list("xy")
    return pd.DataFrame(
        {
            name: pd.Categorical(column, declared, ordered=ordered)
            for name, column, declared in zip("abc", values, levels, strict=True)
        }
    )


@pytest.mark.parametrize(
    ("name", "ordered"),
    [*((name, False) for name in MODELS), ("mixture", True), ("linear", True)],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:2 components have:UserWarning")
def test_a_level_that_no_row_has_counts_as_half_an_observation(name, ordered):
    X = table(ordered)
    model = MODELS[name].set_params(likelihood="from_dtype", random_state=0).fit(X)
    unseen = X.assign(a=pd.Categorical(["z"] * N, list("xyz"), ordered=ordered))
    prob = np.exp(model.conditional_log_prob(unseen, [True, True, True])[:, 0])
    if ordered:  # the neighbour of a frequent level is more frequent elsewhere
        assert 0.4 / N < prob.mean() < 1 / N
        return
    assert prob.mean() == pytest.approx(0.5 / (N + 0.5), rel=0.2)
    prob = np.exp(model.conditional_log_prob(unseen, [True, False, False])[:, 0])
    assert prob.mean() == pytest.approx(0.5 / (N + 0.5), rel=0.2)


@pytest.mark.filterwarnings("ignore:Nobody gave::")
def test_an_answer_that_nobody_gave_counts_as_half_an_observation():
    X = np.random.default_rng(0).integers(0, 3, (200, 4)).astype(float)
    X[X[:, 0] == 1, 0] = 2
    model = MPTItemResponse("partial_credit").fit(X)
    X[:, 0] = 1
    prob = np.exp(model.conditional_log_prob(X, [True] * 4)[:, 0])
    assert prob.mean() == pytest.approx(0.5 / 200.5, rel=0.2)
