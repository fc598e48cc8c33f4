"""Filled blanks and lists of fills, against a joint distribution and transformers."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import chisquare
from text_models import (
    SPECIAL,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

from sklearn_mpt import MPTScorer

ORDERS = ["random", "left_to_right", "confident"]


def scorer_of(log_joint, **settings):
    how = {"dtype": "float64", "random_state": 0} | settings
    return MPTScorer(JointModel(log_joint), make_letter_tokenizer(), **how).fit()


@pytest.mark.parametrize("order", ORDERS)
def test_draws_are_from_the_joint_distribution(order):
    log_joint = random_joint(4)
    scorer = scorer_of(log_joint)
    (fills,) = scorer.fill(["[MASK] b [MASK] [MASK]"], n_samples=1500, order=order)
    given = log_joint[:, 1] - log_joint[:, 1].logsumexp((0, 1, 2))
    expected = {
        letters: float(given[tuple("abc".index(letter) for letter in letters)])
        for letters in itertools.product("abc", repeat=3)
    }
    for fill in fills[:50]:
        assert_allclose(fill.log_prob, expected[tuple(fill.tokens)])
        assert fill.text == f"{fill.tokens[0]} b {fill.tokens[1]} {fill.tokens[2]}"
    counts = np.array([sum(tuple(f.tokens) == k for f in fills) for k in expected])
    prob = np.exp(list(expected.values()))
    likely = prob * 1500 > 5
    found = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(prob[likely], prob[~likely].sum()) * 1500
    assert chisquare(found, wanted).pvalue > 1e-3


def test_no_temperature_takes_the_most_probable_token():
    log_joint = random_joint(3)
    (fills,) = scorer_of(log_joint).fill(["a [MASK] c"], 4, temperature=0)
    best = "abc"[int(log_joint[0, :, 2].argmax())]
    assert [fill.tokens for fill in fills] == [[best]] * 4
    (hot,) = scorer_of(log_joint).fill(["a [MASK] c"], 300, temperature=1e6)
    counts = np.array([sum(f.tokens == [t] for f in hot) for t in "abc"])
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("order", ORDERS)
def test_draws_do_not_depend_on_batches_or_other_texts(order):
    texts = ["the [MASK] sat on [MASK]", "[MASK]", "the [MASK] sat on [MASK]"]
    large, small = (
        MPTScorer(make_model(), make_tokenizer(), batch_tokens=n, random_state=0).fit()
        for n in (4096, 16)
    )
    fills = large.fill(texts, 3, order=order)
    for one, other in zip(fills, small.fill(texts, 3, order=order), strict=True):
        assert [f.tokens for f in one] == [f.tokens for f in other]
        assert_allclose([f.log_prob for f in one], [f.log_prob for f in other], 1e-4)
    for one, other in zip(fills, large.fill(texts[:2], 3, order=order), strict=False):
        assert [f.text for f in one] == [f.text for f in other]
    special = set(make_tokenizer().all_special_tokens)
    assert not special & {t for each in fills for f in each for t in f.tokens}
    again = large.fill(texts, 3, order=order, random_state=1)
    assert [f.text for f in fills[0]] != [f.text for f in again[0]]


def test_bad_arguments_are_refused():
    scorer = scorer_of(random_joint(3), max_length=3)
    with pytest.raises(ValueError, match="order must be one of 'random', 'left_to_r"):
        scorer.fill(["a [MASK]"], order="magic")
    with pytest.raises(ValueError, match=r"temperature must be a float in the range"):
        scorer.fill(["a [MASK]"], temperature=-1.0)
    with pytest.raises(ValueError, match=r"texts\[0\] has 4 tokens, more than max_l"):
        scorer.fill(["a b c [MASK]"])
    with pytest.raises(TypeError, match="list of str"):
        scorer.fill("a [MASK]")


def make_byte_tokenizer(lstrip=True):
    """Byte-level tokens, which own the space before a word, or before a mask token."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokens = [
        "<mask>",
        "<unk>",
        *sorted(alphabet),
        "Ġd",
        "og",
        "Ġdog",
        "Ġs",
        "at",
        "Ġsat",
    ]
    merges = [
        ("Ġ", "d"),
        ("o", "g"),
        ("Ġd", "og"),
        ("Ġ", "s"),
        ("a", "t"),
        ("Ġs", "at"),
    ]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    mask = AddedToken("<mask>", lstrip=lstrip, special=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token=mask, unk_token="<unk>"
    )


class Says(torch.nn.Module):
    """Predicts the tokens of one text, wherever they are hidden."""

    def __init__(self, ids, n_tokens):
        super().__init__()
        logits = 100.0 * torch.nn.functional.one_hot(ids, n_tokens)
        self.logits = torch.nn.Parameter(logits)

    def forward(self, input_ids):
        more = torch.zeros(input_ids.shape[1], self.logits.shape[1])
        logits = torch.cat([self.logits, more])[: input_ids.shape[1]]
        return logits.expand(len(input_ids), -1, -1)


@pytest.mark.parametrize(
    ("tokenizer", "text", "tokens", "expected"),
    [
        (make_tokenizer(), "The zebra\n [MASK]!", ["dog"], "The zebra\n dog!"),
        (make_tokenizer(), "un [MASK] x", ["##ly"], "unly x"),
        (make_tokenizer(), "a [MASK] [MASK] x", ["un", "##ly"], "a unly x"),
        (make_tokenizer(), "a[MASK][MASK].", ["dog", "fast"], "a dog fast."),
        (make_tokenizer(), "dog[MASK]", ["."], "dog."),
        (make_tokenizer(), "[MASK] [SEP] Zoë", ["the"], "the [SEP] Zoë"),
        (
            make_tokenizer(with_pairs=True),
            ("a zebra [MASK]", "[MASK] ran"),
            ["dog", "cat"],
            ("a zebra dog", "cat ran"),
        ),
        (make_letter_tokenizer(), "a[MASK]  [MASK]z", ["b", "c"], "ab  cz"),
        (make_byte_tokenizer(), "A <mask> Ω", ["Ġdog"], "A dog Ω"),
        (make_byte_tokenizer(), "A<mask>  é", ["Ġsat"], "A sat  é"),
        (make_byte_tokenizer(), "d <mask> <mask>", ["og", "Ġsat"], "dog sat"),
        (make_byte_tokenizer(), "<mask><mask>", ["Ã", "©"], "é"),
        (make_byte_tokenizer(False), "d <mask> <mask>", ["og", "Ġsat"], "d og sat"),
    ],
)
def test_fills_stand_where_the_masks_stood(tokenizer, text, tokens, expected):
    parts = [text] if isinstance(text, str) else text
    ids = torch.tensor(tokenizer(*parts)["input_ids"])
    ids[ids == tokenizer.mask_token_id] = torch.tensor(
        tokenizer.convert_tokens_to_ids(tokens)
    )
    scorer = MPTScorer(Says(ids, len(tokenizer)), tokenizer).fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unknown words
        ((fill,),) = scorer.fill([text], temperature=0)
    assert fill == (expected, tokens, pytest.approx(0, abs=1e-6))


def test_the_given_text_is_filled_and_others_come_back_with_a_warning():
    scorer = MPTScorer(make_model(), make_tokenizer(), random_state=0).fit()
    (fills,) = scorer.fill(["Some zebra [MASK]  today"], 3)
    for fill in fills:
        (token,) = fill.tokens
        space = "" if token.startswith("##") else " "
        assert fill.text == f"Some zebra{space}{token.removeprefix('##')}  today"
    with pytest.warns(
        UserWarning, match=r"texts\[1\] the first, .* Write \[MASK\], th"
    ):
        fills = scorer.fill(["a [MASK]", "a <mask>"])
    assert fills[1][0] == ("a <mask>", [], 0.0)


def test_a_part_is_filled_as_its_whole_text():
    scorer = MPTScorer(make_model(), make_tokenizer()).fit()
    ((fill,),) = scorer.fill(["a [MASK] zz cat"], temperature=0)
    ((part,),) = scorer.fill([("a [MASK] zz cat", 0, 3)], temperature=0)
    assert fill == part
    assert fill.text.endswith(" zz cat")


# The most probable fills, targets, and distributions at mask tokens

TEXT = "the [MASK] sat on the mat ."


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
def test_bad_arguments_of_lists_are_refused(text, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        words_scorer().fill([text], **settings)
