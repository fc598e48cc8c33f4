"""Components that died, or stand where others would explain more."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.decomposition import FactorAnalysis
from sklearn.preprocessing import scale

torch = pytest.importorskip("torch")

from sklearn_mpt import MPTLinearVAE, MPTProbabilisticPCA  # noqa: E402
from sklearn_mpt._factors.objective import (  # noqa: E402
    GaussianMoments,
    GaussianRows,
)
from sklearn_mpt._factors.sums import moments_of  # noqa: E402
from sklearn_mpt._fitting.natural_gradient import Point  # noqa: E402
from sklearn_mpt._fitting.saddles import (  # noqa: E402
    gain_of,
    with_missing_components,
)
from sklearn_mpt._fitting.stream import UnexplainedSlopes  # noqa: E402

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
        return GaussianRows(X, 3, None, "auto", floor=-30.0)
    return GaussianMoments(moments_of(X), 8, 3, Uniform(), torch.tensor(-30.0))


class Uniform:
    is_uniform = True


def found_at(point, by_moments, min_gain=1e-6, n_rows=np.inf):
    product, information = objective(by_moments).slopes(point)
    return with_missing_components(point, product, information, min_gain, n_rows)


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


def test_what_few_rows_show_by_chance_is_not_followed():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(20, 6)))
    part = GaussianRows(X, 3, None, "auto", floor=-30.0)
    point = point_with((None, None, None))
    assert with_missing_components(point, *part.slopes(point), 1e-3) is not None
    assert with_missing_components(point, *part.slopes(point), 1e-3, len(X)) is None


def test_parts_of_a_stream_add_up_to_all_rows():
    """Also where arrays carry what is known from one part to the next."""
    X, point = rows(), point_with((0, None, None))
    together = None
    for part in np.split(X, [10, 35]):
        of_part = GaussianRows(torch.tensor(part), 3, None, "auto", floor=-30.0)
        together = UnexplainedSlopes(*of_part.slopes(point), len(part)).averaged_with(
            together
        )
        together = UnexplainedSlopes.from_arrays(together.as_arrays(), torch.tensor)
    product, _ = objective(True).slopes(point)
    V = torch.eye(6, dtype=torch.float64)
    assert_allclose(together.product(V), product(V), atol=1e-12)
    assert together.n_rows == len(X)


def test_features_that_tell_nothing_are_left_out():
    point = point_with((0, 1, None))
    information = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]).double()
    product = objective(True).slopes(point)[0]
    found = with_missing_components(point, product, information, 1e-6)
    assert not found.coefs[2].any()
    assert found.coefs[3].any()


@pytest.mark.parametrize(
    ("X", "n_components"),
    [(load_iris().data, 3), (load_wine().data, 8), (load_diabetes().data, 9)],
    ids=["iris", "wine", "diabetes"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_weak_components_are_found_from_a_random_start(X, n_components, seed):
    best = MPTProbabilisticPCA(n_components, init="pca", max_iter=0).fit(X).score(X)
    model = MPTProbabilisticPCA(n_components, random_state=seed).fit(X)
    assert abs(best - model.score(X)) < 1e-3
    assert model.n_iter_ < 80


@pytest.mark.parametrize("seed", [0, 1])
def test_weak_components_are_found_with_gaps(seed):
    X = load_wine().data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    exact = MPTProbabilisticPCA(5, objective="lml", init="pca", tol=1e-6).fit(X)
    model = MPTProbabilisticPCA(5, random_state=seed).fit(X)
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
@pytest.mark.parametrize("n_components", [2, 4])
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


def test_another_component_is_tried_where_gaps_make_local_maxima():
    X = load_diabetes().data
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    by_em = MPTProbabilisticPCA(5, objective="lml", init="pca", tol=1e-8).fit(X)
    model = MPTProbabilisticPCA(5, random_state=1).fit(X)
    assert model.score(X) > by_em.score(X) - 1e-3


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


@pytest.mark.parametrize("n_components", [5, 7])
@pytest.mark.filterwarnings("ignore:Maximum iterations", "ignore:Heywood")
@pytest.mark.filterwarnings("ignore:n_components=")
def test_no_fit_ends_below_the_ones_before_it(n_components):
    """Also where a component is replaced after a step that overshot."""
    X, model = indicators(n_components)
    scores = [model.set_params(max_iter=n).fit(X).score(X) for n in range(13)]
    assert (np.diff(scores) >= 0).all()


def test_eigenvectors_that_converge_are_enough(monkeypatch):
    """ARPACK may not find all of them, as of collinear features."""
    calls = []

    def partly(*args, **params):
        values, vectors = eigsh(*args, **params)
        calls.append(len(values))
        raise ArpackNoConvergence("too many steps", values[1:], vectors[:, 1:])

    monkeypatch.setattr("sklearn_mpt._fitting.saddles.eigsh", partly)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 1)) + rng.normal(size=(80, 140))
    X[rng.random(X.shape) < 0.1] = np.nan
    model = MPTProbabilisticPCA(2, objective="lml", random_state=0).fit(X)
    assert calls
    assert np.isfinite(model.score(X))
