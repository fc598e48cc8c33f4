"""Masks of whole words: batches, the loss and curves, against all sets of words."""

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from text_models import make_model, make_protein_tokenizer, make_tokenizer

from sklearn_mpt import DataCollatorForMPT, MPTScorer, mpt_curve, mpt_loss

TEXT = "unhappily the dogs sat ."  # un ##happi ##ly, the, dog ##s, sat, .
WORDS = [0, 0, 0, 1, 2, 2, 3, 4]


def is_hidden(batch):
    return (batch["labels"] != -100).numpy()


def sets_of_words(words):
    """Masks of all sets of words, by their numbers of words."""
    kinds = np.unique(words)
    return {
        size: [np.isin(words, chosen) for chosen in itertools.combinations(kinds, size)]
        for size in range(1, len(kinds) + 1)
    }


def sum_over_sizes(scorer, text, words):
    """The sum over numbers of words of the mean log-probability of a hidden word."""
    total = 0.0
    for size, masks in sets_of_words(words).items():
        scores = scorer.conditional_log_prob([text] * len(masks), masks)
        total += np.mean([np.sum(score) for score in scores]) / size
    return total


def test_every_set_of_words_of_a_size_is_as_probable():
    collate = DataCollatorForMPT(make_tokenizer(), random_state=0, mask_blocks="word")
    hidden = is_hidden(collate([make_tokenizer()(TEXT)] * 4000))[:, 1:-1]
    found = [tuple(row) for row in hidden.tolist()]
    masks = sets_of_words(WORDS)
    expected = {
        tuple(mask.tolist()): 4000 / 5 / len(of_size)
        for of_size in masks.values()
        for mask in of_size
    }
    assert set(found) == set(expected)
    counts = np.array([found.count(mask) for mask in expected])
    wanted = np.array(list(expected.values()))
    assert np.abs((counts - wanted) / np.sqrt(wanted)).max() < 4


def test_a_rate_is_one_of_words():
    collate = DataCollatorForMPT(make_tokenizer(), 0.4, mask_blocks="word")
    hidden = is_hidden(collate([make_tokenizer()(TEXT)] * 20))[:, 1:-1]
    assert all(len(set(np.array(WORDS)[row])) == 2 for row in hidden)


@pytest.mark.parametrize("side", ["right", "left"])
def test_words_are_the_same_wherever_they_come_from(side):
    texts = [TEXT, "dogs", "the cats sat fast"]
    fast = make_tokenizer(padding_side=side)
    encoded = [fast(text) for text in texts]
    plain = [dict(feature) for feature in encoded]
    given = [{**dict(feature), "word_ids": feature.word_ids()} for feature in encoded]
    sources = {
        "fast": (fast, encoded),
        "plain": (fast, plain),
        "given": (fast, given),
    }
    batches = {
        name: DataCollatorForMPT(tokenizer, random_state=0, mask_blocks="word")(rows)
        for name, (tokenizer, rows) in sources.items()
    }
    first = batches.pop("fast")["labels"]
    for batch in batches.values():
        assert_array_equal(batch["labels"], first)
        assert_array_equal(batch["labels"].weights, first.weights)
    # entries that say otherwise count
    pairs = {**plain[0], "word_ids": [None, 0, 0, 0, 0, 1, 1, 1, 1, None]}
    collate = DataCollatorForMPT(fast, random_state=0, mask_blocks="word")
    hidden = is_hidden(collate([pairs] * 20))[:, 1:-1]
    assert (hidden[:, :4].sum(axis=1) % 4 == 0).all()
    assert (hidden[:, 4:].sum(axis=1) % 4 == 0).all()


def test_fixed_masks_keep_words_and_visible_tokens():
    tokenizer = make_tokenizer()
    feature = tokenizer(TEXT)
    labels = np.array(feature["input_ids"])
    labels[:3] = -100  # the first two tokens of the first word stay visible
    collate = DataCollatorForMPT(tokenizer, random_state=0, mask_blocks="word")
    made = collate.fix_masks([{**feature, "labels": labels.tolist()}], n_masks=30)
    batch = collate(made)
    hidden = is_hidden(batch)
    assert not hidden[:, :3].any()
    words = np.array([-1, *WORDS, -1])
    n_words = [len(set(words[row])) for row in hidden]
    assert set(n_words) == {1, 2, 3, 4, 5}
    assert_allclose(batch["labels"].weights, 5 / np.array(n_words))
    assert all((row[words == 2] == row[5]).all() for row in hidden)


def test_the_loss_estimates_minus_the_sum_over_sizes():
    tokenizer, model = make_tokenizer(), make_model().eval()
    scorer = MPTScorer(model, tokenizer).fit()
    expected = sum_over_sizes(scorer, TEXT, WORDS)
    collate = DataCollatorForMPT(tokenizer, random_state=0, mask_blocks="word")
    batch = collate([tokenizer(TEXT)] * 1500)
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model(**batch).logits
    losses = np.array([mpt_loss({"logits": logits}, labels)])
    each = [
        float(mpt_loss({"logits": logits[i : i + 1]}, labels[i : i + 1]))
        for i in range(0, 1500, 5)
    ]
    assert abs(losses[0] + expected) < 4 * np.std(each) / np.sqrt(1500)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (TEXT, WORDS),
        (("the dogs", "unhappily sat"), [0, 0, 0, 1]),
        ((f"a dog {TEXT}", 2, 23), [0, 1, 1, 1, 2, 3]),
    ],
)
def test_curves_are_those_of_all_sets_of_words(text, own):
    scorer = MPTScorer(make_model(), make_tokenizer()).fit()
    curve = mpt_curve(scorer, [text], n_masks=100, mask_blocks="word")
    total = sum_over_sizes(scorer, text, own)
    assert_allclose(curve.total, total, rtol=1e-5)
    with pytest.raises(ValueError, match="do not add up to the log marginal"):
        _ = curve.lml
    n_words, n_tokens = own[-1] + 1, len(own)
    size = {1: max(1, int(np.floor(0.01 * n_words + 0.5))), 50: (n_words + 1) // 2}
    for percent, n_hidden in size.items():
        masks = sets_of_words(own)[n_hidden]
        scores = scorer.conditional_log_prob([text] * len(masks), masks)
        of_word = np.mean([np.sum(score) for score in scores]) / n_hidden
        score = curve.scores[percent - 1]
        assert_allclose(score, of_word * n_words / n_tokens, rtol=1e-5)
    assert "sum over sizes" in repr(curve)


def test_curves_of_words_of_one_token_are_those_of_tokens():
    scorer = MPTScorer(make_model(), make_tokenizer()).fit()
    texts = ["the cat sat", "a mat ."]
    words = mpt_curve(scorer, texts, n_masks=50, mask_blocks="word")
    tokens = MPTScorer(make_model(), make_tokenizer()).fit()
    tokens = mpt_curve(tokens, texts, n_masks=50)
    assert_allclose(words.scores, tokens.scores, rtol=1e-5)
    assert_allclose(words.total, tokens.lml, rtol=1e-5)
    with pytest.raises(ValueError, match="needs the same masks"):
        words - tokens


def test_errors_of_curves_of_words_are_those_of_draws():
    scorer = MPTScorer(make_model(), make_tokenizer()).fit()
    exact = mpt_curve(scorer, [TEXT], n_masks=100, mask_blocks="word").total
    curves = [
        mpt_curve(scorer, [TEXT], n_masks=3, mask_blocks="word", random_state=seed)
        for seed in range(60)
    ]
    totals = np.array([curve.total for curve in curves])
    error = np.sqrt(np.mean([curve.text_noise.of_sum(1.0)[0] ** 2 for curve in curves]))
    assert abs(totals.mean() - exact) < 4 * totals.std() / np.sqrt(60)
    assert 0.7 < error / totals.std() < 1.4


def test_words_that_are_not_known_are_refused(tmp_path):
    tokenizer = make_protein_tokenizer(tmp_path)
    collate = DataCollatorForMPT(tokenizer, mask_blocks="word")
    with pytest.raises(ValueError, match=r"features\[0\] has none, as the tokens of E"):
        collate([tokenizer("ACD")])
    known = {**tokenizer("ACD"), "word_ids": [None, 0, 0, 1, None]}
    assert collate([known])["labels"].shape == (1, 5)
    known["word_ids"] = [0, 1]
    with pytest.raises(ValueError, match="an entry for each of its 5 tokens, got 2"):
        collate([known])
    scorer = MPTScorer(make_model(), make_tokenizer()).fit()
    with pytest.raises(ValueError, match="mask_blocks must be one of 'word', got 'spa"):
        mpt_curve(scorer, ["a dog"], mask_blocks="span")
