"""Models of groups of people: what takes the groups, and what says so."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sklearn_mpt import MPTItemResponse

DIFFERENCE = 0.9


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    groups = np.repeat(["a", "b"], 2000)
    z = rng.normal(size=4000) + DIFFERENCE * (groups == "b")
    logits = 1.2 * z[:, None] - np.linspace(-1.5, 1.5, 8)
    return (rng.random((4000, 8)) < 1 / (1 + np.exp(-logits))).astype(float), groups


@pytest.fixture(scope="module")
def model(people):
    X, groups = people
    return MPTItemResponse(random_state=0).fit(X, groups=groups)


def _difference(theta, groups):
    theta = np.ravel(theta)
    return theta[groups == "b"].mean() - theta[groups == "a"].mean()


def test_abilities_with_their_groups_keep_the_difference_of_groups(model, people):
    X, groups = people
    means = model.transform(X, groups=groups)
    drawn = model.abilities(X, "plausible", groups=groups, random_state=0).theta
    mean, covariance = model.posterior(X, groups=groups)
    np.testing.assert_allclose(mean, means, atol=1e-12)
    errors = model.abilities(X, groups=groups).std_error
    np.testing.assert_allclose(covariance[:, 0, 0], errors[:, 0] ** 2, atol=1e-12)
    for theta in (means, drawn):
        assert _difference(theta, groups) == pytest.approx(DIFFERENCE, abs=0.08)


@pytest.mark.parametrize("method", ["transform", "abilities", "posterior"])
def test_abilities_without_groups_are_warned_of(model, people, method):
    X, groups = people
    with pytest.warns(UserWarning, match="groups= was not given"):
        theta = getattr(model, method)(X)[0:]
    if method == "transform":
        assert _difference(theta, groups) < DIFFERENCE - 0.15
    model.abilities(X[:5], "ml")  # has no prior


def test_routing_brings_groups_to_transform(model, people):
    X, groups = people
    with config_context(enable_metadata_routing=True):
        last = clone(model).set_fit_request(groups=True)
        last.set_transform_request(groups=True)
        pipe = make_pipeline(FunctionTransformer(), last).fit(X, groups=groups)
        np.testing.assert_allclose(
            pipe.transform(X, groups=groups), model.transform(X, groups=groups)
        )
        np.testing.assert_allclose(
            last.fit_transform(X, groups=groups), model.transform(X, groups=groups)
        )


def test_fit_statistics_are_those_of_each_group_by_itself(model, people):
    X, groups = people
    rows, labels = X[groups == "b"], groups[groups == "b"]
    alone = MPTItemResponse.from_items(
        discrimination=model.discrimination_,
        intercept=model.intercept_,
        latent_mean=model.latent_mean_[1, 0],
        latent_variance=model.latent_variance_[1, 0],
    )
    of_items, of_model = (
        getattr(model, name)(rows, groups=labels) for name in ("item_fit", "model_fit")
    )
    np.testing.assert_allclose(of_items, alone.item_fit(rows), rtol=1e-4)
    expected = alone.model_fit(rows)
    assert of_model.m2 == pytest.approx(expected.m2, rel=1e-4)
    assert of_model.df == expected.df == 20
    assert of_model.srmsr == pytest.approx(expected.srmsr, rel=1e-4)


@pytest.mark.parametrize("name", ["item_fit", "model_fit"])
def test_fit_statistics_of_several_groups_say_how(model, people, name):
    X, groups = people
    for labels in (None, groups):
        with pytest.raises(ValueError, match=f"{name} tests one group at a time"):
            getattr(model, name)(X, groups=labels)


def test_the_fit_of_a_model_is_that_of_complete_rows(people):
    X, _ = people
    X = X[:2000].copy()
    model = MPTItemResponse().fit(X)
    expected = model.model_fit(X[100:])
    X[:100, 3] = np.nan
    with pytest.warns(UserWarning, match="1900 complete rows of 2000"):
        fit = model.model_fit(X)
    assert fit.m2 == pytest.approx(expected.m2, rel=1e-9)
    with pytest.raises(ValueError, match="all rows have missing"):
        model.model_fit(X[:100])


def test_one_person_suffices_where_all_items_are_fixed():
    fixed = {
        j: {"discrimination": 1.0 + 0.2 * j, "difficulty": j - 1.0} for j in range(3)
    }
    model = MPTItemResponse(fixed=fixed).fit([[1, 0, 1]])
    known = MPTItemResponse.from_items(
        discrimination=[1.0, 1.2, 1.4], difficulty=[-1.0, 0.0, 1.0]
    )
    rows = [[1, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(model.score_samples(rows), known.score_samples(rows))
    np.testing.assert_allclose(model.transform(rows), known.transform(rows))
    for params in ({"fixed": fixed, "population": "free"}, {"fixed": {0: fixed[0]}}):
        with pytest.raises(ValueError, match="fit needs 2 or more"):
            MPTItemResponse(**params).fit([[1, 0, 1]])
