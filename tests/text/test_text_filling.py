"""Filled blanks: frequencies and probabilities against a joint distribution."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import chisquare
from text_models import (
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)
from transformers import PreTrainedTokenizerFast

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
