"""Loadings of latent responses, by linear models and by item response models."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sklearn_mpt import MPTItemResponse, MPTLinearVAE

N_ROWS = 5000
# Of eight responses on two factors, and the levels that they are cut into.
LOADINGS = np.array([
    [0.8, 0.0], [0.7, 0.0], [0.6, 0.1], [0.75, 0.0],
    [0.0, 0.8], [0.1, 0.6], [0.0, 0.7], [0.0, 0.75],
])  # fmt: skip
CUTS = {"bernoulli": [0.2], "ordinal": [-0.6, 0.1, 0.7]}
NAMES = {"bernoulli": "2pl", "ordinal": "graded"}


def rows(likelihood, n_factors, seed=0):
    rng = np.random.default_rng(seed)
    truth = LOADINGS[:, :n_factors] if n_factors > 1 else LOADINGS.sum(1)[:, None]
    noise = np.sqrt(1 - (truth**2).sum(1))
    errors = rng.logistic(size=(N_ROWS, 8)) / np.sqrt(np.pi**2 / 3)
    responses = rng.normal(size=(N_ROWS, n_factors)) @ truth.T + errors * noise
    return np.digitize(responses, CUTS[likelihood]).astype(float), truth


def aligned(found, truth):
    """Columns in the order of the truth."""
    order = np.abs(truth.T @ found).argmax(1)
    return found[:, order]


@pytest.mark.parametrize(
    ("likelihood", "n_factors"), [("bernoulli", 1), ("bernoulli", 2), ("ordinal", 1)]
)
def test_loadings_are_those_that_made_the_rows(likelihood, n_factors):
    X, truth = rows(likelihood, n_factors)
    rotation = None if n_factors == 1 else "varimax"
    linear = MPTLinearVAE(
        n_factors, likelihood=likelihood, objective="lml", random_state=0
    ).fit(X)
    items = MPTItemResponse(NAMES[likelihood], n_factors).fit(X)
    solutions = [m.factor_loadings(X, rotation=rotation) for m in (linear, items)]
    for solution in solutions:
        found = aligned(solution.loadings, truth)
        assert_allclose(np.abs(found), truth, atol=0.05)
        errors = aligned(solution.loadings_error, truth)
        assert ((0.005 < errors) & (errors < 0.04)).all()
        assert_allclose(solution.communality, (truth**2).sum(1), atol=0.07)
    assert_allclose(
        solutions[0].communality_error, solutions[1].communality_error, rtol=0.05
    )


@pytest.mark.slow
def test_errors_are_the_spread_of_loadings():
    found, errors = [], []
    for seed in range(12):
        X, _ = rows("bernoulli", 1, seed)
        solution = MPTItemResponse().fit(X[:1000]).factor_loadings(X[:1000])
        found.append(solution.loadings[:, 0])
        errors.append(solution.loadings_error[:, 0])
    spread = np.sqrt(np.var(found, axis=0, ddof=1).mean())
    assert_allclose(np.sqrt(np.mean(np.square(errors))), spread, rtol=0.25)


def test_axes_are_those_of_the_fit_unless_a_rotation_is_given():
    X, truth = rows("bernoulli", 2)
    oblique = MPTItemResponse("2pl", 2, rotation="oblimin").fit(X)
    kept = oblique.factor_loadings()
    slopes, correlation = oblique.discrimination_, oblique.factor_correlation_
    length = np.sqrt((slopes @ correlation * slopes).sum(1) + np.pi**2 / 3)
    assert_allclose(kept.factor_correlation, oblique.factor_correlation_, atol=1e-12)
    assert_allclose(kept.loadings, slopes / length[:, None])
    assert_allclose(kept.rotation_matrix, np.eye(2), atol=1e-12)
    again = oblique.factor_loadings(rotation="varimax")
    assert_allclose(again.communality, kept.communality)
    assert_allclose(np.abs(aligned(again.loadings, truth)), truth, atol=0.05)


def test_columns_of_several_kinds_have_loadings():
    rng, truth = np.random.default_rng(0), LOADINGS.sum(1)[:, None]
    z = rng.normal(size=(N_ROWS, 1))
    slopes = truth[:, 0] / np.sqrt(1 - truth[:, 0] ** 2)
    logits = np.sqrt(np.pi**2 / 3) * slopes * z
    X = np.c_[
        (logits[:, :4] + rng.logistic(size=(N_ROWS, 4)) > 0),
        10 * (slopes[4:] * z + rng.normal(size=(N_ROWS, 4))),
    ].astype(float)
    kinds = ["bernoulli"] * 4 + ["gaussian"] * 4
    model = MPTLinearVAE(1, likelihood=kinds, objective="lml").fit(X)
    solution = model.factor_loadings(X)
    assert_allclose(np.abs(solution.loadings), truth, atol=0.05)
    errors = solution.loadings_error[:, 0]
    assert (errors[4:] < errors[:4].min()).all()


@pytest.mark.parametrize("name", ["3pl", "gpcm", "nominal"])
def test_items_without_a_response_say_so(name):
    X = np.random.default_rng(0).integers(0, 2 if name == "3pl" else 3, (60, 4))
    model = MPTItemResponse(name, slope_prior=1.0).fit(X)
    with pytest.raises(ValueError, match=f"are \\['{name}'\\]"):
        model.factor_loadings()


def test_kinds_without_a_response_say_so():
    X = np.random.default_rng(0).poisson(2.0, (60, 4)).astype(float)
    model = MPTLinearVAE(1, likelihood="poisson", max_iter=0).fit(X)
    with pytest.raises(ValueError, match="got \\['poisson'\\]"):
        model.factor_loadings()
