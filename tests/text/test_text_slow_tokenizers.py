"""Tokenizers written in Python: pairs, words and positions of tokens."""

import pytest
from numpy.testing import assert_allclose, assert_array_equal
from text_models import TEXTS, make_model, make_tokenizer
from transformers import EsmTokenizer, PreTrainedTokenizer

from sklearn_mpt import MPTScorer
from sklearn_mpt._text.slow_tokenizers import align
from sklearn_mpt._text.windows import tokenize

NAMES = ["input_ids", "attention_mask", "token_type_ids"]
PAIRS = [("the cat", "sat on unhappily"), ("a dog", "ran"), ("", "the mat")]


def make_fast():
    return make_tokenizer(with_pairs=True, model_input_names=NAMES)


class SlowWords(PreTrainedTokenizer):
    """The tokenizer of the tests, [CLS] A [SEP] B [SEP], in Python."""

    model_input_names = NAMES

    def __init__(self, **kwargs):
        self.fast = make_fast()
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        special = {name: getattr(self.fast, name) for name in names}
        super().__init__(**{**special, **kwargs})

    @property
    def vocab_size(self):
        return len(self.fast)

    def get_vocab(self):
        return self.fast.get_vocab()

    def _tokenize(self, text, **kwargs):
        return self.fast.tokenize(text)

    def _convert_token_to_id(self, token):
        return self.fast.convert_tokens_to_ids(token)

    def _convert_id_to_token(self, index):
        return self.fast.convert_ids_to_tokens(index)

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        more = [] if token_ids_1 is None else [*token_ids_1, self.sep_token_id]
        return [self.cls_token_id, *token_ids_0, self.sep_token_id, *more]

    def create_token_type_ids_from_sequences(self, token_ids_0, token_ids_1=None):
        n_more = 0 if token_ids_1 is None else len(token_ids_1) + 1
        return [0] * (len(token_ids_0) + 2) + [1] * n_more


@pytest.mark.parametrize(
    "texts", [TEXTS, PAIRS, ["the xyz cat", "", "THE [MASK] dogs"]]
)
def test_windows_are_those_of_a_fast_tokenizer(texts):
    slow, fast = (
        tokenize(tokenizer, texts, NAMES)[0] for tokenizer in (SlowWords(), make_fast())
    )
    for one, other in zip(slow, fast, strict=True):
        assert one.inputs.keys() == other.inputs.keys()
        for name in ("is_fixed", "is_maskable", "positions", "words", "offsets"):
            found, expected = getattr(one, name), getattr(other, name)
            if name == "offsets":  # of tokens that were added, they do not matter
                found, expected = found[~one.is_fixed], expected[~one.is_fixed]
            assert_array_equal(found, expected, err_msg=name)
        for name, ids in one.inputs.items():
            assert_array_equal(ids, other.inputs[name], err_msg=name)


@pytest.mark.parametrize("method", ["pll", "pll_word_l2r", "mpt"])
def test_scores_of_pairs_are_those_of_a_fast_tokenizer(method):
    model = make_model().eval()
    scores = [
        MPTScorer(model, tokenizer, method=method).fit().score_samples(PAIRS)
        for tokenizer in (SlowWords(), make_fast())
    ]
    assert_allclose(*scores, rtol=1e-5)


@pytest.fixture
def proteins(tmp_path):
    vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>", *"ACDEFGHIKLMNPQ"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = EsmTokenizer(str(tmp_path / "vocab.txt"))
    return MPTScorer(make_model("esm", pad_token_id=1), tokenizer, method="pll").fit()


def test_proteins_have_positions_contexts_and_words(proteins):
    (part,) = proteins.token_scores(["ACDA"])
    assert_array_equal(part.offsets, [[0, 1], [1, 2], [2, 3], [3, 4]])
    assert part.pieces == part.by_word().tokens == list("ACDA")
    assert_allclose(part.log_prob.sum(), proteins.score(["ACDA"]))
    given, pair = proteins.token_scores([("ACD", "GHI"), ("ACD", "GHI")])
    assert given.tokens == list("GHI")
    assert pair.text == "GHI"
    # ESM joins two proteins by <eos>
    hidden = [[False] * 3 + [i == j for i in range(3)] for j in range(3)]
    texts = ["ACD<eos>GHI"] * 3  # of which <eos> is never hidden
    by_hand = sum(sum(own) for own in proteins.conditional_log_prob(texts, hidden))
    assert_allclose(proteins.score([("ACD", "GHI")]), by_hand, rtol=1e-5)
    message = "To EsmTokenizer, each token is a word: method='pll' is then the same"
    with pytest.raises(ValueError, match=message):
        proteins.set_params(method="pll_word_l2r").fit()


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        (["▁the", "▁ca", "ts"], "the cats", [(0, 3), (4, 6), (6, 8)]),
        (["th@@", "e", "cat"], "the  Cat ", [(0, 2), (2, 3), (5, 8)]),
        (["[UNK]", "cat"], "xcat cat", [(0, 4), (5, 8)]),
        (["a", "[UNK]"], "a b c ", [(0, 1), (2, 5)]),
        ([], "", []),
        (["cafe"], "café", [(0, 4)]),
        (["cafe", "cafe"], "café café", [(-1, -1)] * 2),
        (["a", "cat"], "a big cat", [(-1, -1)] * 2),
        (["[UNK]", "[UNK]", "a"], "x y a", [(-1, -1)] * 3),
    ],
)
def test_tokens_are_found_in_their_text(tokens, text, expected):
    assert align(tokens, text) == expected


def test_what_a_tokenizer_adds_must_be_known():
    class Strange(SlowWords):
        def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
            if token_ids_0 and token_ids_0[0] < 0:
                return token_ids_0
            return super().build_inputs_with_special_tokens(token_ids_0, token_ids_1)

    with pytest.raises(ValueError, match=r"Strange makes 4 tokens .* where 2 are exp"):
        tokenize(Strange(), ["the cat"], NAMES)
