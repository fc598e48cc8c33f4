"""Components that are weak, or zero at the start, are found."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.preprocessing import scale

pytest.importorskip("torch")

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA


@pytest.mark.parametrize(
    ("X", "n_components"),
    [
        (load_iris().data, 3),
        (load_wine().data, 8),
        (load_wine().data, 12),
        (load_diabetes().data, 9),
        (load_breast_cancer().data, 12),
    ],
    ids=["iris", "wine", "nearly all of wine", "diabetes", "cancer"],
)
def test_weak_components_are_found_from_a_random_start(X, n_components):
    best = MPTProbabilisticPCA(n_components, init="pca", max_iter=0).fit(X).score(X)
    model = MPTProbabilisticPCA(n_components, random_state=0).fit(X)
    assert abs(best - model.score(X)) < 1e-3
    assert model.n_iter_ < 100


def test_weak_components_are_found_with_gaps():
    X = load_wine().data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    exact = MPTProbabilisticPCA(5, objective="lml", init="pca", tol=1e-6).fit(X)
    model = MPTProbabilisticPCA(5, random_state=0).fit(X)
    assert exact.score(X) - model.score(X) < 0.01


def test_weak_components_are_found_in_a_warm_start():
    X = load_wine().data
    start = MPTProbabilisticPCA(5, init="pca", max_iter=0).fit(X)
    init = {"components": start.components_.copy(), "mean": start.mean_}
    init["components"][3:] = 0
    init["noise_variance"] = start.noise_variance_
    model = MPTProbabilisticPCA(5, init=init, random_state=0).fit(X)
    assert abs(start.score(X) - model.score(X)) < 1e-3


def test_a_stream_finds_weak_components():
    X = load_wine().data
    best = MPTProbabilisticPCA(5, init="pca", max_iter=0).fit(X).score(X)
    model, rng = MPTProbabilisticPCA(5, random_state=0), np.random.default_rng(0)
    for _ in range(20):
        for part in np.array_split(rng.permutation(len(X)), 3):
            model.partial_fit(X[part])
    assert best - model.score(X) < 0.1


@pytest.mark.slow
def test_a_stream_of_small_parts_finds_weak_components():
    """The last of 12 components gains .2 nats per row, which 50 rows do not show."""
    X, rng = load_wine().data, np.random.default_rng(0)
    model = MPTProbabilisticPCA(12, random_state=0)
    for _ in range(250):
        model.partial_fit(X[rng.choice(len(X), 50, replace=False)])
    best = MPTProbabilisticPCA(12, init="pca", max_iter=0).fit(X)
    assert best.score(X) - model.score(X) < 0.05


@pytest.mark.filterwarnings("ignore:Heywood case")
@pytest.mark.parametrize("n_components", [4])
def test_factors_are_no_worse_than_those_of_scikit_learn(n_components):
    X = scale(load_wine().data)
    settings = {"tol": 1e-6, "max_iter": 20000, "svd_method": "lapack"}
    other = FactorAnalysis(n_components, **settings).fit(X)
    model = MPTLinearVAE(n_components, noise="per_feature", random_state=0).fit(X)
    assert other.score(X) - model.score(X) < 1e-3


def test_binary_components_that_died_are_set():
    rng = np.random.default_rng(0)
    W, z = rng.choice([-1.5, 1.5], size=(2, 10)), rng.normal(size=(400, 2))
    X = (rng.random((400, 10)) < 1 / (1 + np.exp(-z @ W))).astype(float)
    settings = {"likelihood": "bernoulli", "random_state": 0}
    best = MPTLinearVAE(2, objective="lml", **settings).fit(X)
    init = {"components": best.components_.copy(), "intercept": best.intercept_}
    init["components"][1] = 0
    model = MPTLinearVAE(2, init=init, **settings).fit(X)
    assert abs(best.score(X) - model.score(X)) < 1e-3


def test_many_items_end_within_a_tenth_of_a_log_likelihood_unit():
    rng = np.random.default_rng(0)
    W, z = rng.normal(size=(1, 20)), rng.normal(size=(1000, 1))
    X = (rng.random((1000, 20)) < 1 / (1 + np.exp(-z @ W))).astype(float)
    settings = {"likelihood": "bernoulli", "random_state": 0}
    best = MPTLinearVAE(1, objective="lml", tol=1e-8, **settings).fit(X)
    model = MPTLinearVAE(1, **settings).fit(X)
    assert len(X) * (best.score(X) - model.score(X)) < 0.1


def indicators(n_components):
    """Rows with exactly collinear columns and gaps, and a model that fits them."""
    rng = np.random.default_rng(0)
    levels = [np.eye(size)[rng.integers(0, size, 80)] for size in (3, 4)]
    X = np.hstack([*levels, rng.normal(size=(80, 2))])
    X[rng.random(X.shape) < 0.15] = np.nan
    X = (X - np.nanmean(X, axis=0)) / np.nanstd(X, axis=0)
    return X, MPTLinearVAE(
        n_components, noise="per_feature", init="pca", objective="lml", random_state=0
    )


@pytest.mark.parametrize("n_components", [7])
@pytest.mark.filterwarnings("ignore:Maximum iterations", "ignore:Heywood")
@pytest.mark.filterwarnings("ignore:n_components=")
def test_no_fit_ends_below_the_ones_before_it(n_components):
    """Also where a component is replaced after a step that overshot."""
    X, model = indicators(n_components)
    scores = [model.set_params(max_iter=n).fit(X).score(X) for n in range(13)]
    assert (np.diff(scores) >= 0).all()
