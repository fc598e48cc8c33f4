"""Steps on batches of rows, as on all rows at once."""

import numpy as np
import pytest

pytest.importorskip("torch")

from kinds import LINEAR_KINDS

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA

MODELS = {kind: {"likelihood": kind} for kind in LINEAR_KINDS}
MODELS["noise of each feature"] = {"noise": "per_feature"}


def rows_of(kind, n_rows=120):
    rng = np.random.default_rng(0)
    location = rng.normal(size=(n_rows, 1)) * rng.uniform(0.5, 1, size=5)
    X = location + 0.5 * rng.normal(size=location.shape)
    if kind == "bernoulli":
        return (X > 0).astype(float)
    if kind in ("categorical", "ordinal", "partial_credit"):
        return np.digitize(X, [-0.5, 0.5]).astype(float)
    if kind in ("poisson", "negative_binomial"):
        return rng.poisson(np.exp(X)).astype(float)
    return X if kind in ("gaussian", "noise of each feature") else np.exp(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("kind", "objective"),
    [(kind, "mpt") for kind in ("bernoulli", "noise of each feature")]
    + [("poisson", "lml"), ("bernoulli", "elbo")],
)
def test_batches_of_rows_lead_where_all_rows_lead(kind, objective):
    X, params = rows_of(kind), MODELS[kind] | {"objective": objective}
    params |= {"max_iter": 8, "random_state": 0}
    at_once = MPTLinearVAE(1, **params).fit(X).score(X)
    in_batches = MPTLinearVAE(1, batch_size=50, **params).fit(X).score(X)
    assert abs(at_once - in_batches) < 0.05 * abs(at_once)


def test_batches_of_rows_lead_to_principal_components():
    X = rows_of("gaussian")
    at_once = MPTProbabilisticPCA(1, random_state=0).fit(X).score(X)
    in_batches = MPTProbabilisticPCA(1, batch_size=50, random_state=0).fit(X).score(X)
    assert abs(at_once - in_batches) < 0.01
