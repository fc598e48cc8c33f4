"""Weights of rows: 2 is a row twice, 0 a row left out, in fit and in score."""

import numpy as np
import pytest
from kinds import LINEAR_KINDS
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mpt import MPTDeepVAE, MPTImputer, MPTLinearVAE, MPTProbabilisticPCA


def rows(n_samples=150, n_features=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_samples, 1)) * np.linspace(0.5, 1.5, n_features)
    return X + rng.normal(size=X.shape)


def holes(X):
    return np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


def binary(n_samples=150, n_features=4):
    return (rows(n_samples, n_features) > 0.3).astype(float)


def table():
    """Counts, counts and one of three categories, with holes."""
    rate = np.exp(0.5 * rows()[:, :2])
    counts = np.random.default_rng(3).poisson(rate).astype(float)
    return holes(np.column_stack([counts, rows()[:, 2].round().clip(-1, 1) + 1]))


KINDS = ["poisson", "poisson", "categorical"]
LINEAR = {
    "ppca with gaps": (MPTProbabilisticPCA(1), holes(rows())),
    "factor analysis": (MPTLinearVAE(1, noise="per_feature"), rows()),
    "shared nodes": (MPTLinearVAE(1, likelihood="bernoulli"), binary(n_features=10)),
    "own nodes": (MPTLinearVAE(1, likelihood=KINDS), table()),
}
WEIGHT = np.random.default_rng(2).integers(0, 4, 150)


def repeated(X):
    index = np.repeat(np.arange(len(X)), WEIGHT)
    return X[index]


@pytest.mark.parametrize("name", LINEAR)
def test_masks_reach_the_same_optimum(name):
    model, X = clone(LINEAR[name][0]).set_params(random_state=0), LINEAR[name][1]
    exact = clone(model).set_params(objective="lml", tol=1e-6)
    best = exact.fit(X, sample_weight=WEIGHT).score(X, sample_weight=WEIGHT)
    unweighted = clone(exact).fit(X).score(X, sample_weight=WEIGHT)
    by_masks = model.fit(X, sample_weight=WEIGHT).score(X, sample_weight=WEIGHT)
    assert best - by_masks < 2e-3
    assert best - unweighted > 5e-3


def test_bound_of_weighted_rows_is_that_of_repeated_ones():
    model = MPTLinearVAE(
        1, likelihood="bernoulli", objective="elbo", random_state=0, tol=1e-8
    )
    weighted, twice = (
        clone(model).fit(binary(), None, WEIGHT),
        model.fit(repeated(binary())),
    )
    assert weighted.loss_curve_[-1] == pytest.approx(twice.loss_curve_[-1], abs=1e-5)


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_starts_of_all_kinds_are_those_of_repeated_rows(kind):
    X = np.exp(rows())
    if kind == "bernoulli":
        X = binary()
    elif kind not in ("gaussian", "interval", "lognormal"):
        X = np.minimum(np.floor(X), 3.0)
    model = MPTLinearVAE(1, likelihood=kind, init="pca", max_iter=0, random_state=0)
    weighted, twice = clone(model).fit(X, None, WEIGHT), clone(model).fit(repeated(X))
    assert_allclose(weighted.components_, twice.components_, atol=1e-10)


def test_a_stream_of_weighted_parts_is_that_of_repeated_ones():
    X, model = rows(), MPTProbabilisticPCA(1, objective="lml", random_state=0)
    weighted, twice = clone(model), clone(model)
    for _ in range(5):
        weighted.partial_fit(X, sample_weight=WEIGHT)
        twice.partial_fit(repeated(X))
    assert_allclose(weighted.components_, twice.components_)


@pytest.mark.parametrize(
    "model",
    [
        MPTProbabilisticPCA(1, max_iter=5),
        MPTDeepVAE(1, hidden_layer_sizes=(4,), max_iter=2, early_stopping=False),
    ],
    ids=["ppca", "deep"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_score_is_a_weighted_mean(model):
    X, model = rows(), clone(model).set_params(random_state=0).fit(rows())
    weighted = model.score(X, sample_weight=WEIGHT)
    assert weighted == pytest.approx(model.score(repeated(X)), rel=1e-12)
    assert model.score(X, sample_weight=np.ones(len(X))) == model.score(X)


@pytest.mark.parametrize("kind", [MPTProbabilisticPCA, MPTDeepVAE])
def test_weights_that_are_none_are_refused(kind):
    model, X = kind(1, max_iter=0), rows(5)
    for wrong, match in (
        (-np.ones(5), "Negative values in data passed to `sample_weight`"),
        (np.zeros(5), "at least one non-zero"),
        (np.ones(4), r"sample_weight.shape == \(4,\), expected \(5,\)"),
        (np.full(5, np.nan), "sample_weight contains NaN"),
        (np.full(5, 1e308), "sample_weight must have a finite sum"),
        (np.full(5, 1e200), r"adds up to 5e\+200, but a weight of 1 is a row"),
        (np.full(5, 1e-200), "adds up to 5e-200, .* divide them by their mean"),
    ):
        with pytest.raises(ValueError, match=match):
            model.fit(X, sample_weight=wrong)
        with pytest.raises(ValueError, match=match):
            model.partial_fit(X, sample_weight=wrong)
        with pytest.raises(ValueError, match=match):
            clone(model).fit(X).score(X, sample_weight=wrong)


SOME = {
    "ppca": MPTProbabilisticPCA(1, objective="lml", random_state=0),
    "deep": MPTDeepVAE(1, hidden_layer_sizes=(4,), max_iter=2, random_state=0),
}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_find_their_way_through_a_pipeline(name):
    with config_context(enable_metadata_routing=True):
        model = clone(SOME[name]).set_fit_request(sample_weight=True)
        pipe = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False), model
        )
        pipe.fit(rows(), sample_weight=WEIGHT)
    Z = StandardScaler().fit_transform(rows())
    expected = clone(model).fit(Z, sample_weight=WEIGHT)
    assert_array_equal(pipe[-1].transform(Z), expected.transform(Z))


@pytest.mark.parametrize("name", SOME)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_imputer_hands_weights_on(name):
    X, model = holes(rows()), clone(SOME[name])
    imputer = MPTImputer(model).fit(X, sample_weight=WEIGHT)
    assert_array_equal(imputer.transform(X), model.fit(X, None, WEIGHT).impute(X))


def test_an_imputer_hands_no_weights_to_who_takes_none():
    class Unweighted(MPTProbabilisticPCA):
        def fit(self, X, y=None):
            return super().fit(X)

    with pytest.raises(TypeError, match=r"Unweighted\.fit takes no sample_weight"):
        MPTImputer(Unweighted()).fit(rows(), sample_weight=WEIGHT)
