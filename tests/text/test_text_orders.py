"""Probabilities of texts in one order: sums over all texts, and the formula."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from text_models import (  # noqa: E402
    TEXTS,
    JointModel,
    all_texts,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)

from sklearn_mpt import MPTScorer  # noqa: E402

ORDERS = [{"order": "left_to_right"}, {"order": "confident"}]
ORDERS += [{"order": "block", "block_size": size} for size in (1, 2, 3)]


class Inconsistent(JointModel):
    """Conditionals of three letters that belong to no joint distribution."""

    def forward(self, input_ids):
        output = super().forward(input_ids)
        weights = torch.arange(1.0, input_ids.shape[1] + 1).to(self.dtype)
        visible = (input_ids * weights).sum(1)
        shift = torch.sin(torch.outer(visible, 1 + torch.arange(3).to(self.dtype)))
        output.logits[..., 1:] += 2 * shift[:, None] * weights[:, None]
        return output


def scorer_of(log_joint, **how):
    model, tokenizer = Inconsistent(log_joint), make_letter_tokenizer()
    return MPTScorer(model, tokenizer, method="ordered", dtype="float64", **how).fit()


def conditionals(scorer, text, hidden):
    """Log-probabilities of the letters a, b, c at the hidden positions of a text."""
    ids = torch.tensor(["_abc".index(letter) for letter in text.split()])
    ids = torch.where(torch.tensor(hidden), 0, ids)
    with torch.no_grad():
        return scorer.model(ids[None]).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("how", ORDERS)
def test_probabilities_of_all_texts_add_up_to_one(how):
    scorer = scorer_of(random_joint(4), **how)
    log_prob, std_error = scorer.score_samples(all_texts(4), return_std=True)
    assert_allclose(np.exp(log_prob).sum(), 1, rtol=1e-9)
    assert not std_error.any()


def test_orders_of_no_joint_have_probabilities_of_their_own():
    texts = all_texts(4)
    scores = [scorer_of(random_joint(4), **how).score_samples(texts) for how in ORDERS]
    for one, other in itertools.combinations(scores, 2):
        same = np.allclose(one, other)
        assert same == (one is scores[0] and other is scores[2])  # blocks of 1


def test_the_surest_token_is_the_next():
    scorer, text = scorer_of(random_joint(4), order="confident"), "b a c c"
    ids, hidden, total = [2, 1, 3, 3], np.ones(4, dtype=bool), 0.0
    while hidden.any():
        table = conditionals(scorer, text, hidden)
        position = np.where(hidden, table.max(1), -np.inf).argmax()
        total += table[position, ids[position]]
        hidden[position] = False
    assert_allclose(scorer.score_samples([text]), total)


def test_blocks_are_products():
    scorer = scorer_of(random_joint(4), order="block", block_size=3)
    text = "b a c c"
    first = conditionals(scorer, text, [True] * 4)
    last = conditionals(scorer, text, [False, False, False, True])
    total = first[0, 2] + first[1, 1] + first[2, 3] + last[3, 3]
    assert_allclose(scorer.score_samples([text]), total)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("how", ORDERS)
def test_tokens_add_up_in_any_batch(how):
    settings = {"method": "ordered", "batch_tokens": 12, "n_jobs": 2}
    small = MPTScorer(make_model(), make_tokenizer(), **settings, **how).fit()
    large = MPTScorer(make_model(), make_tokenizer(), method="ordered", **how).fit()
    log_prob = large.score_samples([*TEXTS, TEXTS[0], ""])
    assert_allclose(small.score_samples([*TEXTS, TEXTS[0], ""]), log_prob, rtol=1e-5)
    assert log_prob[-1] == 0
    parts = large.token_scores(TEXTS)
    assert_allclose([p.log_prob.sum() for p in parts], log_prob[: len(TEXTS)])
    assert not any(part.std_error.any() for part in parts)


@pytest.mark.parametrize("order", ["left_to_right", "confident"])
def test_long_texts_are_scored_given_what_stands_before(order):
    log_joint = random_joint(3)
    how = {"method": "ordered", "order": order, "dtype": "float64"}
    scorer = MPTScorer(
        JointModel(log_joint),
        make_letter_tokenizer(),
        max_length=3,
        overflow="stride",
        **how,
    )
    log_prob = scorer.fit().score_samples(["a c b b"])
    given_two = log_joint - log_joint.logsumexp(2, keepdim=True)
    assert_allclose(log_prob, log_joint[0, 2, 1] + given_two[2, 1, 1])
