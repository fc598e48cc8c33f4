"""Probabilities of texts from left to right, and of tokenizers written in Python."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from text_models import (
    TEXTS,
    JointModel,
    all_texts,
    make_letter_tokenizer,
    make_model,
    make_protein_tokenizer,
    make_tokenizer,
    random_joint,
)

from sklearn_mpt import MPTScorer, mpt_curve


class Inconsistent(JointModel):
    """Conditionals of three letters that belong to no joint distribution."""

    def forward(self, input_ids):
        output = super().forward(input_ids)
        weights = torch.arange(1.0, input_ids.shape[1] + 1).to(self.dtype)
        visible = (input_ids * weights).sum(1)
        shift = torch.sin(torch.outer(visible, 1 + torch.arange(3).to(self.dtype)))
        output.logits[..., 1:] += 2 * shift[:, None] * weights[:, None]
        return output


def test_probabilities_of_all_texts_add_up_to_one():
    model, tokenizer = Inconsistent(random_joint(4)), make_letter_tokenizer()
    scorer = MPTScorer(model, tokenizer, method="ordered", dtype="float64").fit()
    log_prob, std_error = scorer.score_samples(all_texts(4), return_std=True)
    assert_allclose(np.exp(log_prob).sum(), 1, rtol=1e-9)
    assert not std_error.any()


@pytest.mark.usefixtures("in_threads")
def test_tokens_add_up_in_any_batch():
    settings = {"method": "ordered", "batch_tokens": 12, "n_jobs": 2}
    small = MPTScorer(make_model(), make_tokenizer(), **settings).fit()
    large = MPTScorer(make_model(), make_tokenizer(), method="ordered").fit()
    log_prob = large.score_samples([*TEXTS, TEXTS[0], ""])
    assert_allclose(small.score_samples([*TEXTS, TEXTS[0], ""]), log_prob, rtol=1e-5)
    assert log_prob[-1] == 0
    parts = large.token_scores(TEXTS)
    assert_allclose([p.log_prob.sum() for p in parts], log_prob[: len(TEXTS)])
    assert not any(part.std_error.any() for part in parts)


def test_long_texts_are_scored_given_what_stands_before():
    log_joint = random_joint(3)
    how = {"method": "ordered", "dtype": "float64", "max_length": 3}
    scorer = MPTScorer(
        JointModel(log_joint), make_letter_tokenizer(), overflow="stride", **how
    )
    log_prob = scorer.fit().score_samples(["a c b b"])
    given_two = log_joint - log_joint.logsumexp(2, keepdim=True)
    assert_allclose(log_prob, log_joint[0, 2, 1] + given_two[2, 1, 1])


@pytest.fixture
def proteins(tmp_path):
    """A scorer with a tokenizer written in Python."""
    tokenizer = make_protein_tokenizer(tmp_path)
    return MPTScorer(make_model("esm"), tokenizer, method="pll").fit()


def test_tokenizers_in_python_have_tokens_contexts_and_fills(proteins):
    (part,) = proteins.token_scores(["ACDA"])
    assert proteins._opened[1]("ACDA")["input_ids"] == [0, 5, 6, 7, 5, 2]
    assert part.tokens == part.pieces == part.by_word().tokens == list("ACDA")
    assert_allclose(part.log_prob.sum(), proteins.score(["ACDA"]))
    given, pair = proteins.token_scores([("ACD", "GHI"), ("ACD", "GHI")])
    assert given.tokens == list("GHI")
    assert pair.text == "GHI"
    # ESM joins two proteins by <eos>
    hidden = [[False] * 3 + [i == j for i in range(3)] for j in range(3)]
    texts = ["ACD<eos>GHI"] * 3  # of which <eos> is never hidden
    by_hand = sum(sum(own) for own in proteins.conditional_log_prob(texts, hidden))
    assert_allclose(proteins.score([("ACD", "GHI")]), by_hand, rtol=1e-5)
    ((fill,),) = proteins.fill(["AC<mask>A"])
    assert fill.text.replace(" ", "") == f"AC{fill.tokens[0]}A"
    ratios = proteins.score_variants("ACDA", ["D3A", "A1C:D3A", ""])
    assert_array_equal(ratios != 0, [True, True, False])


def test_what_needs_words_asks_for_a_fast_tokenizer(proteins):
    message = "needs a fast tokenizer, which knows the words of a text, and EsmToken"
    with pytest.raises(ValueError, match=message):
        proteins.set_params(method="pll_word_l2r").fit()
    with pytest.raises(ValueError, match=message):
        mpt_curve(proteins.set_params(method="mpt").fit(), ["ACD"], mask_blocks="word")
    with pytest.raises(ValueError, match="Use a fast tokenizer"):
        proteins.score_samples([("ACDA", 0, 2)])
