"""The choice between orders and independent masks, by texts that `fit` is given."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("transformers")

import torch
from test_text_estimates import window_of
from text_models import JointModel, all_texts, make_letter_tokenizer, random_joint

from sklearn_mpt import MPTScorer
from sklearn_mpt._text.masks import MaskDraw
from sklearn_mpt._text.variances import RULES, count_groups

LONG = [" ".join("a" * n_tokens) for n_tokens in range(8, 16)]


class Moody(torch.nn.Module):
    """Sure that each letter is a, unless just one of the first two letters is hidden.

    Along an order this lasts for some steps, so the means of hidden tokens vary
    together.
    """

    def __init__(self):
        super().__init__()
        self.sure = torch.nn.Parameter(torch.tensor([0.0, 3.0, 0.0, 0.0]))

    def forward(self, input_ids):
        is_hidden = input_ids[:, :2] == 0
        is_moody = is_hidden[:, 0] != is_hidden[:, 1]
        logits = self.sure * (~is_moody).float()[:, None]
        return logits[:, None, :].expand(*input_ids.shape, -1)


def joint_model():
    return JointModel(random_joint(4))


def make_scorer(model, **kwargs):
    return MPTScorer(model, make_letter_tokenizer(), **kwargs)


def test_orders_are_chosen_for_a_joint_distribution():
    texts = all_texts(4)[::8]
    scorer = make_scorer(joint_model()).fit(texts)
    assert scorer.design_ == "chain"
    variances = scorer.design_variances_
    assert variances["independent"] > 5 * variances["chain"]
    alone = make_scorer(joint_model(), design="independent", n_masks=4).fit()
    scores = alone._score_texts(texts, alone._draw()).scores
    noise = [np.sum(score.contrasts**2) for score in scores]
    assert_allclose(variances["independent"], np.mean(noise))


def test_independent_masks_are_chosen_where_the_means_of_an_order_vary_together():
    scorer = make_scorer(Moody()).fit(LONG)
    assert scorer.design_ == "independent"
    assert (
        scorer.design_variances_["chain"] > 2 * scorer.design_variances_["independent"]
    )
    asked = make_scorer(Moody(), design="independent", n_masks=4).fit()
    assert_allclose(scorer.score_samples(LONG), asked.score_samples(LONG))


def test_scores_do_not_depend_on_the_other_texts_of_a_call():
    scorer = make_scorer(Moody()).fit(LONG)
    alone = [scorer.score_samples([text])[0] for text in LONG]
    assert_allclose(scorer.score_samples(LONG), alone)


@pytest.mark.parametrize(
    ("settings", "texts"),
    [({}, None), ({"design": "chain"}, LONG), ({"method": "pll"}, LONG)],
)
def test_nothing_is_measured(settings, texts):
    scorer = make_scorer(Moody(), **settings).fit(texts)
    assert (scorer.design_, scorer.design_variances_) == ("chain", None)


@pytest.mark.parametrize(
    ("settings", "texts", "n_known"),
    [
        ({}, LONG[:3], 3),
        ({}, ["a", "b", "c", "a"], 0),
        ({"max_length": 7}, LONG, 0),
    ],
)
def test_too_few_texts_to_measure_are_warned_of(settings, texts, n_known):
    with pytest.warns(UserWarning, match=f"needs 4 different texts .* has {n_known}"):
        scorer = make_scorer(Moody(), **settings).fit(texts)
    assert (scorer.design_, scorer.design_variances_) == ("chain", None)


@pytest.mark.parametrize(
    ("n_tokens", "n_whole", "limit"),
    [(70, 70, RULES.max_tokens), (300, 156, RULES.max_tokens_of_few)],
)
def test_long_texts_are_measured_whole_within_the_budget(n_tokens, n_whole, limit):
    """The budget holds for independent masks, which take no more groups."""
    shapes = []

    class Counting(Moody):
        def forward(self, input_ids):
            shapes.append(input_ids.shape)
            return super().forward(input_ids)

    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abc"), n_tokens)) for _ in range(20)]
    scorer = make_scorer(Counting()).fit()
    n_probes = len(shapes)
    scorer = make_scorer(Counting()).fit(texts)
    assert scorer.design_ == "independent"
    for_sample = 2 * len(texts) * n_tokens  # whether all tokens can be hidden
    spent = shapes[2 * n_probes :]
    assert limit / 2 < sum(n * length for n, length in spent) - for_sample <= limit
    assert {length for _, length in spent} == {n_whole, n_tokens}


def test_few_texts_are_scored_by_more_groups_of_orders():
    """As many as have room in the budget, and four at least."""
    masks = MaskDraw("mpt", 0, 4, design="independent")
    orders = replace(masks, design="chain")
    assert [
        count_groups([window_of(length)] * n_texts, draw)
        for draw in (masks, orders)
        for length, n_texts in [(20, 32), (20, 4), (90, 4), (150, 4)]
    ] == [2, 2, 2, 2, 3, 10, 6, 4]
    assert count_groups([window_of(20)] * 4, replace(masks, n_masks=2)) == 4


def test_documents_are_measured_by_their_parts():
    scorer = make_scorer(Moody(), max_length=6, overflow="split").fit(LONG[:2])
    assert scorer.design_variances_ is not None


def test_a_design_that_there_is_not():
    with pytest.raises(ValueError, match="'design' parameter of MPTScorer must be"):
        make_scorer(Moody(), design="pairs").fit()
