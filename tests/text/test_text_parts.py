"""Parts of texts given the rest, and pairs in two columns."""

from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from text_models import (
    SPECIAL,
    JointModel,
    framed,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sklearn_mpt import MPTScorer, compare_lml, mpt_curve

METHODS = ["mpt", "pll", "chain", "ordered"]
PAIRS = [("the cat", "sat on the mat"), ("a dog", "ran fast ."), ("the mat", "dogs")]
TEXT = "the cat sat on the mat ."


def make_scorer(**kwargs):
    return MPTScorer(make_model(), make_tokenizer(with_pairs=True), **kwargs)


class Dataset:
    """What a `Dataset` of datasets offers: columns by their names, rows as dicts."""

    def __init__(self, *columns):
        self.columns = dict(zip("abc", map(list, columns), strict=False))
        self.column_names = list(self.columns)
        self.shape = len(self), len(columns)

    def __len__(self):
        return len(self.columns.get("a", []))

    def __getitem__(self, key):
        return self.columns[key]

    def __iter__(self):
        rows = zip(*self.columns.values(), strict=True)
        return (dict(zip(self.column_names, row, strict=True)) for row in rows)


def arrow_batch(*columns):
    pyarrow = pytest.importorskip("pyarrow")
    names = list("abc"[: len(columns)])
    return pyarrow.RecordBatch.from_arrays(list(map(pyarrow.array, columns)), names)


@pytest.mark.parametrize("method", METHODS)
def test_parts_are_scored_given_the_rest(method):
    """By the exact conditionals of a joint distribution of letters."""
    log_joint = random_joint(4)
    scorer = MPTScorer(
        JointModel(log_joint), make_letter_tokenizer(), method=method, n_masks=4
    ).fit()
    text, letters = "a c b a", (0, 2, 1, 0)
    middle, end = scorer.score_samples([(text, 2, 5), (text, 4, 7)])
    if method == "pll":
        axes = [(1,), (2,)], [(2,), (3,)]
    else:
        axes = [(1, 2)], [(2, 3)]
    for found, groups in ((middle, axes[0]), (end, axes[1])):
        total = 0.0
        for group in groups:
            seen = tuple(
                slice(None) if i in group else letter
                for i, letter in enumerate(letters)
            )
            table = log_joint[seen]
            own = tuple(letters[i] for i in group)
            total += float(table[own] - table.logsumexp(list(range(table.ndim))))
        assert_allclose(found, total, rtol=1e-5)


def test_parts_that_make_up_a_text_share_its_tokens():
    scorer = make_scorer(method="pll").fit()
    cuts = [0, 3, 9, 14, len(TEXT)]  # at spaces, and within words
    parts = [(TEXT, a, b) for a, b in pairwise(cuts)]
    with pytest.warns(UserWarning, match="1 of 4 different parts, texts"):
        found = scorer.token_scores(parts)
    tokens = [token for part in found for token in part.tokens]
    (whole,) = scorer.token_scores([TEXT])
    assert tokens == whole.tokens
    scores = np.concatenate([part.log_prob for part in found])
    assert_allclose(scores, whole.log_prob, rtol=1e-5)
    assert_allclose(scores.sum(), scorer.score_samples([TEXT])[0])


def test_the_whole_text_as_a_part():
    scorer = make_scorer().fit()
    whole = scorer.score_samples([(TEXT, 0, len(TEXT))])
    assert_array_equal(whole, scorer.score_samples([TEXT]))


def test_an_empty_part_scores_nothing():
    scorer = make_scorer().fit()
    assert scorer.score_samples([(TEXT, 4, 4), (TEXT, 4, 7)])[0] == 0.0
    assert np.isnan(scorer.transform([(TEXT, 3, 3)])).all()


@pytest.mark.parametrize(
    "make",
    [
        np.array,
        lambda pairs: np.array(pairs, dtype=object),
        lambda pairs: pd.DataFrame(pairs, columns=["context", "text"]),
        lambda pairs: pl.DataFrame(pairs, schema=["a", "b"], orient="row"),
        lambda pairs: Dataset(*zip(*pairs, strict=True)),
        lambda pairs: arrow_batch(*zip(*pairs, strict=True)),
    ],
)
def test_pairs_in_two_columns(make):
    scorer = make_scorer().fit()
    expected = scorer.score_samples(PAIRS)
    table = make(PAIRS)
    assert_array_equal(scorer.score_samples(table), expected)
    assert len(scorer.token_scores(table)) == len(PAIRS)


@pytest.mark.parametrize(
    "make",
    [
        Dataset,
        arrow_batch,
        lambda texts: arrow_batch(texts)["a"],
        lambda texts: pytest.importorskip("pyarrow").chunked_array([texts]),
        lambda texts: pd.DataFrame({"text": texts}),
        lambda texts: pl.DataFrame({"text": texts}),
        lambda texts: np.array(texts)[:, None],
        pd.Series,
        lambda texts: pd.Series(texts, index=list("fedcba")),
        pl.Series,
        np.array,
        lambda texts: np.array(texts, dtype=object),
        tuple,
        iter,
    ],
)
def test_texts_in_one_column(make):
    scorer = make_scorer().fit()
    texts = [text for pair in PAIRS for text in pair]
    expected = scorer.score_samples(texts)
    table = make(texts)
    assert_array_equal(scorer.score_samples(table), expected)


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (
            [["the", "cat"], ["a", "dog"]],
            r"of type list. Write a \(context",
        ),
        ([["the", 0, 2]], "join the words"),
        (iter(Dataset(["the", "cat"])), r"of type dict. Take the text out of it"),
        (Dataset(["the", "cat"], [0, 1]), r"pass the columns with texts"),
        (
            pd.DataFrame({"text": ["the"], "label": [1.0]}),
            "pass the columns with texts",
        ),
        (Dataset(), "two columns, of contexts and texts, .* Got a Dataset of shape"),
        (np.array([[["the"]]]), r"Got a ndarray of shape \(1, 1, 1\)"),
    ],
)
def test_other_tables_say_what_to_pass(texts, match):
    scorer = make_scorer().fit()
    with pytest.raises((TypeError, ValueError), match=match):
        scorer.score_samples(texts)


def test_parts_in_three_columns():
    scorer = make_scorer().fit()
    parts = [(TEXT, 0, 7), (TEXT, 8, 11)]
    table = pd.DataFrame(parts, columns=["text", "start", "stop"])
    assert_array_equal(scorer.score_samples(table), scorer.score_samples(parts))


def test_missing_texts_in_a_table_are_named():
    table = pd.DataFrame({"context": ["a", "b"], "text": ["the", None]})
    with pytest.raises(TypeError, match=r"texts\[1\] .* missing must be dropped"):
        make_scorer().fit().score_samples(table)


def test_measures_of_any_model_take_parts():
    scorer = make_scorer().fit()
    parts = [(TEXT, 0, 7), (TEXT, 8, 18)]
    other = clone(scorer).set_params(method="ordered").fit()
    table = compare_lml({"a": scorer, "b": other}, parts, random_state=0)
    assert table.row_lml.shape == (2, 2)
    curve = mpt_curve(scorer, pd.DataFrame(parts))
    assert_allclose(curve.lml, scorer.score(parts))


@pytest.mark.parametrize("method", METHODS)
def test_a_part_of_a_text_that_is_too_long(method):
    """It is scored in the middle of a window; so is its neighbourhood as a text."""
    settings = {"method": method, "max_length": 6, "overflow": "stride"}
    scorer = make_scorer(**settings).fit()
    parts = [(TEXT, 8, 11), (TEXT, 0, 3), (TEXT, 23, 24)]  # "sat", "the", "."
    around = [
        ("cat sat on the", 4, 7),
        ("the cat sat on", 0, 3),
        ("on the mat .", 11, 12),
    ]
    whole = make_scorer(method=method).fit()
    found = scorer.score_samples(parts)
    assert_allclose(found, whole.score_samples(around), rtol=1e-5)


def test_a_long_context_beside_a_text_is_cut_on_the_left():
    scorer = make_scorer(max_length=7, overflow="stride").fit()
    (found,) = scorer.score_samples([("the cat sat on a mat", "the dog")])
    (expected,) = scorer.score_samples([("a mat", "the dog")])
    assert_allclose(found, expected, rtol=1e-5)


def test_a_context_without_room_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Shorten its context, or set overflow"):
        make_scorer(max_length=6).fit().score_samples([(TEXT, 4, 7)])
    scorer = make_scorer(max_length=6, overflow="split").fit()
    with pytest.raises(ValueError, match=r"no room for text.*set overflow to 'stride'"):
        scorer.score_samples([(TEXT, 4, 7)])


def make_byte_scorer(**kwargs):
    """A model of bytes, of which a line break is one, and of the token "he"."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [("h", "e")], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    model = make_model(vocab_size=len(tokens), num_hidden_layers=1)
    return MPTScorer(model, framed(backend), method="pll", **kwargs).fit()


def test_white_space_belongs_to_the_part_that_holds_it():
    scorer = make_byte_scorer()
    (tokens,) = scorer.token_scores([("a\nb\n", 2, 4)])
    assert tokens.pieces == ["b", "\n"]
    assert scorer.count_tokens([("a\n\nb", 0, 2), ("a\n\nb", 2, 4)]).tolist() == [2, 2]


def test_characters_of_several_tokens_belong_to_one_part():
    scorer, text = make_byte_scorer(), "aé日🙂"
    parts = [(text, i, i + 1) for i in range(4)]
    assert scorer.count_tokens(parts).tolist() == [1, 2, 3, 4]
    pieces = ["".join(part.pieces) for part in scorer.token_scores(parts)]
    assert pieces == list(text)


def test_tokens_that_begin_before_a_part_are_warned_of():
    scorer, texts = make_byte_scorer(), [("she", 1, 2), ("she", 2, 3)]
    message = r"1 of 2 different parts, texts\[1\] the first, begin within a token"
    with pytest.warns(UserWarning, match=message):
        scores = scorer.score_samples(texts)
    assert scores[0] < 0 == scores[1]
