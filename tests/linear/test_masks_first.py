"""Masks are drawn first, and the sum over sizes finishes; steps on batches of rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

from sklearn_mpt import MPTLinearVAE, MPTMixture, MPTProbabilisticPCA

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def locations():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 1))
    return rng, z * np.linspace(0.5, 1.5, 6)


def rows(kind):
    rng, location = locations()
    drawn = {
        "gaussian": location + rng.normal(size=location.shape),
        "bernoulli": (location > rng.logistic(size=location.shape)) * 1.0,
        "poisson": rng.poisson(np.exp(0.5 * location)).astype(float),
        "lognormal": np.exp(0.5 * location + rng.normal(size=location.shape)),
    }
    if kind == "mixed":
        return np.column_stack([part[:, j] for j, part in enumerate(drawn.values())])
    return drawn[kind]


MIXED = ["gaussian", "bernoulli", "poisson", "lognormal"]
MODELS = {
    "ppca": (MPTProbabilisticPCA(1), rows("gaussian")),
    "factor analysis": (MPTLinearVAE(1, noise="per_feature"), rows("gaussian")),
    "binary": (MPTLinearVAE(1, likelihood="bernoulli"), rows("bernoulli")),
    "counts": (MPTLinearVAE(1, likelihood="poisson"), rows("poisson")),
    "amounts": (MPTLinearVAE(1, likelihood=["lognormal"] * 6), rows("lognormal")),
    "mixed": (MPTLinearVAE(1, likelihood=MIXED), rows("mixed")),
    "mixture": (MPTMixture(2), rows("gaussian")),
}


@pytest.mark.parametrize(
    "name", ["ppca", "factor analysis", "binary", "mixed", "mixture"]
)
def test_masks_are_drawn_first_and_lead_to_the_same_likelihood(name):
    model, X = MODELS[name]
    model = clone(model).set_params(random_state=0)
    by_masks, exact = (
        clone(model).set_params(objective=objective).fit(X)
        for objective in ("mpt", "lml")
    )
    assert by_masks.score(X) == pytest.approx(exact.score(X), abs=1e-3)
    # k-means, short runs of factors, and principal components start near the maximum
    n_masked = {"mixture": 1, "factor analysis": 2, "mixed": 2}.get(name, 4)
    first, last = by_masks.loss_curve_[:n_masked], by_masks.loss_curve_[-1]
    assert not set(first) & set(exact.loss_curve_)
    assert last == pytest.approx(-by_masks.score(X), abs=1e-3)
    other_masks = clone(by_masks).set_params(random_state=1, max_iter=n_masked).fit(X)
    assert not set(first) & set(other_masks.loss_curve_)


@pytest.mark.parametrize("name", ["ppca", "binary"])
def test_with_an_int_all_epochs_draw_masks(name):
    model, X = MODELS[name]
    model = clone(model).set_params(n_masks=8, objective="mpt", random_state=0)
    curve = np.array(model.fit(X).loss_curve_)
    assert np.abs(np.diff(curve[-4:])).min() > 1e-6  # noise until the end


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("ppca", "mpt"),
        ("factor analysis", "mpt"),
        ("binary", "mpt"),
        ("binary", "elbo"),
        ("counts", "lml"),
    ],
)
def test_batches_of_rows_lead_where_all_rows_lead(name, objective):
    model, X = MODELS[name]
    how = {"objective": objective, "max_iter": 8, "random_state": 0}
    at_once, in_batches = (
        clone(model).set_params(batch_size=size, **how).fit(X).score(X)
        for size in ("auto", 50)
    )
    assert in_batches == pytest.approx(at_once, rel=0.05)


RAW = 1.0, 3.0, 10.0, 30.0, 100.0, 300.0


@pytest.mark.parametrize(
    ("name", "scale", "n_masks"),
    [
        ("ppca", RAW, 32),
        ("factor analysis", RAW, 1),
        ("binary", 1.0, 1),
    ],
)
def test_few_masks_in_each_step_lead_to_the_likelihood(name, scale, n_masks):
    model, X = MODELS[name]
    X = X * scale
    model = clone(model).set_params(random_state=0, max_iter=200)
    by_masks = clone(model).set_params(n_masks=n_masks, objective="mpt").fit(X)
    exact = clone(model).set_params(objective="lml").fit(X)
    assert by_masks.n_iter_ < by_masks.max_iter
    assert by_masks.score(X) == pytest.approx(exact.score(X), abs=0.01)


def test_streams_and_few_epochs_keep_to_the_objective():
    model, X = MODELS["binary"]
    model = clone(model).set_params(random_state=0)
    few = clone(model).set_params(max_iter=3).fit(X)
    assert len(few.loss_curve_) == 3
    best = clone(model).fit(X).score(X)
    assert best - 0.1 < few.score(X) <= best + 1e-3
    for _ in range(12):
        model.partial_fit(X)
    assert_allclose(model.score(X), best, atol=0.02)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("batch_size", ["auto", 6])
def test_every_epoch_counts(batch_size):
    """Also where masks are drawn in all of them but the last."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 6)) + rng.normal(size=(60, 6))
    X = 10 * np.where(rng.random(X.shape) < 0.1, np.nan, X) + 5
    scores = [
        MPTProbabilisticPCA(2, max_iter=n, batch_size=batch_size, random_state=0)
        .fit(X)
        .score(X)
        for n in (1, 8)
    ]
    assert scores[1] > scores[0] + 0.5
