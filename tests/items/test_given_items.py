"""Parameters of known items are kept, or refused by name."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mpt import MPTItemResponse

STEPS = [[-1.0, 1.0], [0.0, 0.5]]
KEPT = {
    "rasch": {"model": "rasch", "difficulty": [1.0, -1.0], "discrimination": [1, 1]},
    "2pl": {"discrimination": [2.0, 0.5], "difficulty": [1.0, -1.0]},
    "negative slope": {"discrimination": [-2.0, 0.5], "intercept": [1.0, -1.0]},
    "3pl": {"model": "3pl", "difficulty": [1.0, -1.0], "guessing": [0.25, 0.0]},
    "graded": {"model": "graded", "difficulty": STEPS, "discrimination": [2.0, 1.0]},
    "gpcm": {"model": "gpcm", "difficulty": STEPS, "discrimination": [2.0, 1.0]},
    "partial_credit": {"model": "partial_credit", "difficulty": STEPS},
    "two abilities": {
        "discrimination": [[1.0, 0.5], [0.0, 2.0]],
        "difficulty": [1.0, -1.0],
    },
    "mixed": {
        "model": ["graded", "rasch"],
        "difficulty": [[-1.0, 1.0], [0.5, np.nan]],
        "discrimination": [2.0, 1.0],
        "category_scores": [[0, 1, 2], [0, 1, np.nan]],
    },
}


@pytest.mark.parametrize("name", KEPT)
def test_parameters_are_kept(name):
    model = MPTItemResponse.from_items(**KEPT[name])
    for parameter, values in KEPT[name].items():
        if parameter != "model":
            kept = getattr(model, f"{parameter}_")
            assert_allclose(kept, values, rtol=1e-9, atol=1e-9)


def test_scores_of_nominal_items_are_kept_times_slopes():
    scores = np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 4.0]])
    model = MPTItemResponse.from_items(
        model="nominal",
        discrimination=[2.0, 0.5],
        category_scores=scores,
        intercept=[[0.5, -0.5], [0.0, 1.0]],
    )
    theta = 0.7
    logits = theta * scores * [[2.0], [0.5]] + [[0, 0.5, -0.5], [0, 0, 1.0]]
    prob = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = model.item_probabilities([theta])[0]
    assert_allclose(expected, prob)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": "rasch", "discrimination": [1.0, 2.0]},
            r"item 1 has discrimination=\[2.0\]: 'rasch' items of 1 abilities can have",
        ),
        (
            {"model": ["partial_credit", "2pl"], "discrimination": [2.0, 2.0]},
            "item 0 has discrimination=.*: 'partial_credit' items",
        ),
        (
            {"model": "2pl", "guessing": [0.0, 0.25]},
            "item 1 has guessing=0.25: '2pl' items of 1 abilities can have",
        ),
        (
            {"model": "2pl", "category_scores": [[0, 1], [0, 2]]},
            "item 1 has category_scores=.*: '2pl' items",
        ),
        (
            {"model": "2pl", "category_scores": [[0, 1, 2], [0, 1, 2]]},
            r"category_scores must have shape .* \(2, 2\)",
        ),
        (
            {"model": "rasch", "discrimination": [2.0, 1.0], "guessing": [0.2, 0.0]},
            "item 0 has discrimination=.*, guessing=0.2: 'rasch' items",
        ),
        (
            {"discrimination": [0.0, 1.0]},
            "item 0: difficulty is not defined where discrimination is 0",
        ),
    ],
)
def test_parameters_that_items_do_not_have_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        MPTItemResponse.from_items(difficulty=[1.0, -1.0], **given)


def test_anchors_are_indices_or_a_mask():
    items = MPTItemResponse.from_items(
        discrimination=np.ones(4), difficulty=np.zeros(4)
    )
    X, group = items.sample(60, random_state=0), np.repeat([0, 1], 30)
    mask = np.array([False, True, True, True])
    by_mask, by_index = (items.dif(X, group, anchors=a) for a in (mask, [3, 2, 2, 1]))
    assert_array_equal(np.isnan(by_mask.statistic), mask)
    assert_allclose(by_mask.statistic, by_index.statistic)
    for wrong in (mask[:3], [0.0, 1.0], ["0"], [4], [-1], [], 2):
        with pytest.raises(
            ValueError, match=r"anchors must be some of the items 0\.\.3"
        ):
            items.dif(X, group, anchors=wrong)
    with pytest.raises(ValueError, match="anchors must leave items to test"):
        items.dif(X, group, anchors=np.ones(4, dtype=bool))


def test_correlated_abilities_have_the_means_that_are_given():
    slopes = [[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]
    model = MPTItemResponse.from_items(
        discrimination=slopes,
        intercept=np.zeros(4),
        latent_mean=1.0,
        factor_correlation=[[1, 0.6], [0.6, 1]],
    )
    assert_allclose(model.transform(np.full((1, 4), np.nan)), [[1.0, 1.0]], rtol=1e-6)
    alone = MPTItemResponse.from_items(
        discrimination=[2.0], intercept=[0.0], latent_mean=1.0
    )
    expected = alone.score_samples([[1.0]])
    for j in range(4):
        right = np.where(np.arange(4) == j, 1.0, np.nan)
        assert_allclose(model.score_samples([right]), expected, rtol=1e-6)
