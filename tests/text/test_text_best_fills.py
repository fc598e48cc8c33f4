"""The most probable fills, targets, and distributions at mask tokens."""

import itertools

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from text_models import (
    SPECIAL,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from transformers import pipeline

from sklearn_mpt import MPTScorer

ORDERS = ["random", "left_to_right", "confident"]
TEXT = "the [MASK] sat on the mat ."


def scorer_of(log_joint):
    model = JointModel(log_joint)
    return MPTScorer(model, make_letter_tokenizer(), dtype="float64").fit()


def words_scorer(**settings):
    return MPTScorer(make_model(), make_tokenizer(), random_state=0, **settings).fit()


@pytest.mark.parametrize("order", ORDERS)
def test_the_best_fills_are_those_of_the_joint_distribution(order):
    log_joint = random_joint(4)
    texts = ["[MASK] b [MASK] [MASK]", "a [MASK] c"]
    given = log_joint[:, 1] - log_joint[:, 1].logsumexp((0, 1, 2))
    short = log_joint.logsumexp(3)[0, :, 2]
    short = short - short.logsumexp(0)
    expected = {
        letters: float(given[tuple("abc".index(letter) for letter in letters)])
        for letters in itertools.product("abc", repeat=3)
    }
    ranked = sorted(expected, key=lambda letters: -expected[letters])
    long, few = scorer_of(log_joint).fill(texts, top_k=5, order=order)
    assert [tuple(fill.tokens) for fill in long] == ranked[:5]
    assert_allclose([fill.log_prob for fill in long], [expected[k] for k in ranked[:5]])
    assert [fill.text for fill in long] == [f"{a} b {b} {c}" for a, b, c in ranked[:5]]
    assert [fill.tokens for fill in few] == [["abc"[i]] for i in (-short).argsort()]
    assert_allclose([fill.prob for fill in few], short.exp().sort(descending=True)[0])


def test_a_narrow_beam_takes_the_most_probable_token_each_time():
    scorer = scorer_of(random_joint(4, seed=3))
    settings = {"order": "left_to_right", "random_state": 0}
    texts = ["[MASK] [MASK] [MASK] [MASK]"]
    ((greedy,),) = scorer.fill(texts, temperature=0, **settings)
    ((narrow,),) = scorer.fill(texts, top_k=1, beam_size=1, **settings)
    ((best,),) = scorer.fill(texts, top_k=1, **settings)
    assert narrow == greedy
    assert best.log_prob >= greedy.log_prob


def of_pipeline(scorer, tokenizer, text, **settings):
    """Words and probabilities of transformers, among tokens that are not special."""
    fill_mask = pipeline("fill-mask", scorer.model, tokenizer=tokenizer)
    found = fill_mask(text, **settings)
    every = fill_mask(text, top_k=len(tokenizer))
    allowed = sum(one["score"] for one in every if one["token_str"] not in SPECIAL)
    return [(one["token_str"], one["score"] / allowed) for one in found]


def test_fills_are_those_of_transformers():
    tokenizer = make_tokenizer(clean_up_tokenization_spaces=False)
    scorer = MPTScorer(make_model().eval(), tokenizer).fit()
    every = of_pipeline(scorer, tokenizer, TEXT, top_k=len(tokenizer))
    every = [pair for pair in every if pair[0] not in SPECIAL]
    (fills,) = scorer.fill([TEXT], top_k=4)
    assert [fill.tokens for fill in fills] == [[word] for word, _ in every[:4]]
    assert_allclose([fill.prob for fill in fills], [p for _, p in every[:4]], 1e-4)
    targets = ["dog", "cat", "mat"]
    expected = of_pipeline(scorer, tokenizer, TEXT, targets=targets)
    (fills,) = scorer.fill([TEXT], targets=targets)
    assert [fill.tokens for fill in fills] == [[word] for word, _ in expected]
    assert [fill.text for fill in fills] == [
        TEXT.replace("[MASK]", word) for word, _ in expected
    ]
    assert_allclose([fill.prob for fill in fills], [p for _, p in expected], 1e-4)
    (few,) = scorer.fill([TEXT], targets=targets, top_k=2)
    assert few == fills[:2]
    (log_prob,) = scorer.fill_log_prob([TEXT])
    for word, prob in every:
        index = tokenizer.convert_tokens_to_ids(word)
        assert_allclose(np.exp(log_prob[0, index]), prob, 1e-4)


def test_targets_of_several_tokens_have_their_joint_probability():
    log_joint = random_joint(4)
    targets = ["a b", "c", "b c a", "c c", "a a"]
    (fills,) = scorer_of(log_joint).fill(["b [MASK]"], targets=targets)
    expected = {}
    for target in targets:
        letters = tuple("abc".index(letter) for letter in target.split())
        given = log_joint[1] - log_joint[1].logsumexp((0, 1, 2))
        expected[target] = float(given[letters].exp().sum().log())
    ranked = sorted(targets, key=lambda target: -expected[target])
    assert [fill.text for fill in fills] == [f"b {target}" for target in ranked]
    assert [fill.tokens for fill in fills] == [target.split() for target in ranked]
    assert_allclose([fill.log_prob for fill in fills], [expected[t] for t in ranked])


@pytest.mark.parametrize("random_state", [0, 1, 2])
def test_all_targets_are_scored_from_left_to_right(random_state):
    """Conditionals that belong to no joint distribution differ between orders."""
    scorer = words_scorer()
    targets = ["cat sat", "the dog", "on mat a", "sat"]
    (fills,) = scorer.fill(["a [MASK]"], targets=targets, random_state=random_state)
    for fill in fills:
        expected = 0.0
        for i, token in enumerate(fill.tokens):
            n_left = len(fill.tokens) - i
            visible = " ".join(["a", *fill.tokens[:i]])
            (given,) = scorer.fill_log_prob([visible + " [MASK]" * n_left])
            expected += given[0, make_tokenizer().convert_tokens_to_ids(token)]
        assert_allclose(fill.log_prob, expected, rtol=1e-5)


def test_distributions_are_those_of_the_joint_distribution():
    log_joint = random_joint(3)
    texts = ["a [MASK] c", "[MASK] b [MASK]"]
    one, two = scorer_of(log_joint).fill_log_prob(texts)
    given = log_joint[0, :, 2] - log_joint[0, :, 2].logsumexp(0)
    assert_allclose(one[0], [-np.inf, *given])
    table = log_joint[:, 1] - log_joint[:, 1].logsumexp((0, 1))
    assert_allclose(two[:, 1:], [table.logsumexp(1), table.logsumexp(0)])
    with pytest.warns(UserWarning, match="have no mask token"):
        (nothing,) = scorer_of(log_joint).fill_log_prob(["a b"])
    assert nothing.shape == (0, 4)


def test_pairs_and_words_of_several_tokens():
    scorer = words_scorer()
    pairs = [("the [MASK]", "sat"), ("the dog", "ran [MASK] .")]
    for of_pair, (context, text) in zip(
        scorer.fill(pairs, targets=["unhappily", "fast"]), pairs, strict=True
    ):
        assert sorted(len(fill.tokens) for fill in of_pair) == [1, 3]
        for fill in of_pair:
            word = "fast" if len(fill.tokens) == 1 else "unhappily"
            expected = context.replace("[MASK]", word), text.replace("[MASK]", word)
            assert fill.text == expected
    lists = scorer.fill(pairs, top_k=2)
    assert [len(fills) for fills in lists] == [2, 2]
    (alone,) = scorer.fill(pairs[1:], top_k=2)
    assert_allclose([f.prob for f in alone], [f.prob for f in lists[1]], rtol=1e-5)


@pytest.mark.parametrize("column", [iter, pd.Series, lambda t: pd.Series(t, [1, 0])])
def test_targets_in_a_column_or_a_generator(column):
    scorer, targets = words_scorer(), ["cat", "dog"]
    expected = scorer.fill(["a [MASK] sat"], targets=targets)
    assert scorer.fill(["a [MASK] sat"], targets=column(targets)) == expected
    with pytest.raises(ValueError, match=r"not know targets\[1\], 'zebra', in"):
        scorer.fill(["a [MASK] sat"], targets=column(["cat", "zebra"]))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a [MASK]", {"top_k": 2, "n_samples": 2}, "n_samples and temperature are tho"),
        ("a [MASK]", {"targets": ["cat"], "temperature": 0}, "n_samples and temperat"),
        ("a [MASK]", {"top_k": 0}, "top_k must be an int in the range"),
        ("a [MASK]", {"top_k": 1, "beam_size": 0}, "beam_size must be an int in"),
        ("a [MASK]", {"targets": ["cat"], "order": "confident"}, "targets are filled"),
        ("a [MASK]", {"targets": "cat"}, "targets must be a sequence of str, got a si"),
        ("a [MASK]", {"targets": []}, "targets must be a non-empty sequence"),
        (
            "a [MASK]",
            {"targets": pd.DataFrame({"t": ["cat"]})},
            "one column of a table",
        ),
        ("a [MASK]", {"targets": ["cat", 3]}, r"targets\[1\] must be a str with a w"),
        ("a cat", {"targets": ["cat"]}, "need texts with one mask token"),
        ("[MASK] [MASK]", {"targets": ["cat"]}, r"there are 2 for targets\[0\], 'cat'"),
        (
            "a [MASK]",
            {"targets": ["a", "zebra"]},
            r"not know targets\[1\], 'zebra', in",
        ),
        ("[MASK]ly", {"targets": ["un"]}, "together with what is beside it"),
    ],
)
def test_bad_arguments_are_refused(text, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        words_scorer().fill([text], **settings)
