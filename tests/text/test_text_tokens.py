"""Scores of tokens and words, contexts, and perplexity."""

import itertools
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from text_models import (
    TEXTS,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import AddedToken

from sklearn_mpt import MPTScorer, feature_contributions, lml_samples

(METHOD,) = MPTScorer._parameter_constraints["method"]
METHODS = sorted(METHOD.options)
N_TOKENS = [7, 7, 2, 9, 1]  # of TEXTS
PAIRS = [("the cat", "sat on"), ("a dog", "ran"), ("", "the mat")]


def make_scorer(**kwargs):
    settings = {"random_state": 0} | kwargs
    return MPTScorer(make_model(), make_tokenizer(), **settings).fit()


def log_prob_by_hand(ids, types, hidden, target):
    masked = ids.clone()
    masked[hidden] = 4
    with torch.no_grad():
        model = make_model().eval()
        logits = model(input_ids=masked[None], token_type_ids=types[None]).logits
    return float(logits[0, target].log_softmax(-1)[ids[target]])


@pytest.mark.parametrize("limits", [{}, {"max_length": 5, "overflow": "stride"}])
@pytest.mark.parametrize("method", METHODS)
def test_tokens_sum_to_the_score_of_their_text(method, limits):
    scorer = make_scorer(method=method, n_masks=3, **limits)
    texts = [*TEXTS, "", TEXTS[0]]
    parts = scorer.token_scores(texts)
    sums = [part.log_prob.sum() for part in parts]
    score = scorer.score_samples(texts)
    assert_allclose(sums, score, rtol=1e-10)
    n_tokens = sum(map(len, parts))
    assert_allclose(scorer.perplexity(texts), np.exp(-score.sum() / n_tokens))
    assert parts[-1] is parts[0]
    for text, part in zip(texts, parts, strict=True):
        assert part.tokens == make_tokenizer().tokenize(text)
        assert len(part) == len(part.offsets) == len(part.words) == len(part.log_prob)
        for token, (start, stop) in zip(part.tokens, part.offsets, strict=True):
            assert text[start:stop] == token.removeprefix("##")


@pytest.mark.parametrize("method", ["mpt", "chain"])
def test_tokens_of_exact_conditionals_have_their_shapley_values(method):
    log_joint = random_joint(3)
    tokenizer, text = make_letter_tokenizer(), "b a c"
    scorer = MPTScorer(
        JointModel(log_joint), tokenizer, dtype="float64", n_masks=6, method=method
    )
    (part,) = scorer.fit().token_scores([text])
    index = (1, 0, 2)

    def value(seen):
        others = [position for position in range(3) if position not in seen]
        table = log_joint.logsumexp(others, keepdim=True) if others else log_joint
        return float(table[tuple(index[i] if i in seen else 0 for i in range(3))])

    shares = np.zeros(3)
    for order in itertools.permutations(range(3)):
        for step, token in enumerate(order):
            shares[token] += value(order[: step + 1]) - value(order[:step])
    assert_allclose(part.log_prob, shares / 6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mpt", "chain"])
def test_standard_errors_of_tokens_and_words_are_over_masks(method):
    parts = [
        make_scorer(method=method, n_masks=4, random_state=seed).token_scores(
            TEXTS[1:2]
        )
        for seed in range(200)
    ]
    for split in (lambda part: part, lambda part: part.by_word()):
        found = [split(part) for (part,) in parts]
        spread = np.var([part.log_prob for part in found], axis=0, ddof=1)
        expected = np.mean([part.std_error**2 for part in found], axis=0)
        ratio = expected / spread
        assert ratio.min() > 0.65
        assert ratio.max() < 1.35


def test_standard_errors_of_tokens_where_nothing_is_random_or_known():
    (part,) = make_scorer(method="pll").token_scores(TEXTS[:1])
    assert_array_equal(part.std_error, np.zeros(7))
    (part,) = make_scorer(n_masks=1).token_scores(TEXTS[:1])
    assert np.isnan(part.std_error).all()
    (part,) = make_scorer(method="chain", n_masks=2).token_scores(["a dog"])
    assert_array_equal(part.std_error, np.zeros(2))  # both orders
    for limits in ({}, {"max_length": 5, "overflow": "stride"}):
        parts = make_scorer(method="chain", n_masks=4, **limits).token_scores(TEXTS)
        assert [part.std_error.any() for part in parts] == [n > 2 for n in N_TOKENS]


def test_feature_contributions_of_texts_are_scores_of_tokens_along_orders():
    scorer = make_scorer(random_state=3)
    texts = [*TEXTS, ""]
    values, std_errors = feature_contributions(
        scorer, texts, n_orders=np.int64(5), return_std=True
    )
    chain = make_scorer(method="chain", n_masks=5, random_state=3)
    parts = chain.token_scores(texts)
    for value, std_error, part in zip(values, std_errors, parts, strict=True):
        assert_array_equal(value, part.log_prob)
        assert_array_equal(std_error, part.std_error)
    assert_allclose([sum(value) for value in values], chain.score_samples(texts))
    found = lml_samples(scorer, texts, n_orders=5, return_std=True)
    assert_array_equal(found, chain.score_samples(texts, return_std=True))
    other = feature_contributions(scorer, texts, n_orders=5, random_state=4)
    assert (other[0] != values[0]).any()
    with pytest.raises(ValueError, match="n_orders must be an int in the range"):
        feature_contributions(scorer, texts, n_orders=0)


def test_an_explanation_of_texts_has_their_pieces(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    explanation = feature_contributions(
        make_scorer(), [*TEXTS, ""], n_orders=2, as_explanation=True
    )
    assert list(explanation.data[1]) == [
        "un",
        "happi",
        "ly ",
        "the ",
        "dog",
        "s ",
        "ran",
    ]
    assert ["".join(pieces) for pieces in explanation.data] == [*TEXTS, ""]
    assert [len(row) for row in explanation.values] == [7, 7, 2, 9, 1, 0]
    assert [len(row) for row in explanation.error_std] == [7, 7, 2, 9, 1, 0]
    assert_array_equal(explanation.base_values, np.zeros(6))


def test_an_explanation_of_texts_is_drawn_by_shap():
    shap = pytest.importorskip("shap")
    explanation = feature_contributions(
        make_scorer(), TEXTS, n_orders=2, as_explanation=True
    )
    assert "happi" in shap.plots.text(explanation, display=False)


def test_words_add_up_their_tokens():
    scorer = make_scorer(method="pll")
    (part,) = scorer.token_scores(["unhappily the dogs"])
    words = part.by_word()
    assert words.tokens == ["unhappily", "the", "dogs"]
    assert_array_equal(words.offsets, [[0, 9], [10, 13], [14, 18]])
    expected = np.add.reduceat(part.log_prob, [0, 3, 4])
    assert_allclose(words.log_prob, expected)
    (empty,) = scorer.token_scores([""])
    assert empty.by_word().tokens == []


def test_special_tokens_in_a_text_are_left_out():
    with pytest.warns(UserWarning, match=r"hold \[MASK\]: it stays hidden and is not"):
        (part,) = make_scorer().token_scores(["the [MASK] cat [SEP]"])
    assert part.tokens == ["the", "cat"]
    assert_array_equal(part.offsets, [[0, 3], [11, 14]])


def test_special_tokens_that_were_added_are_left_out():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("<e>", special=True), "zebra"])
    scorer = MPTScorer(make_model(vocab_size=23), tokenizer, method="pll").fit()
    (part,) = scorer.token_scores(["the <e> zebra"])
    assert part.tokens == ["the", "zebra"]
    types = torch.zeros(5, dtype=torch.long)
    ids = torch.tensor([2, 5, 21, 22, 3])
    model = scorer.model.eval()
    with torch.no_grad():
        for position, found in zip((1, 3), part.log_prob, strict=True):
            masked = ids.clone()
            masked[position] = 4
            logits = model(input_ids=masked[None], token_type_ids=types[None]).logits
            expected = logits[0, position].log_softmax(-1)[ids[position]]
            assert_allclose(found, expected, rtol=1e-5)


def test_scores_do_not_depend_on_what_is_done_with_the_tokenizer_later():
    tokenizer = make_tokenizer()
    scorer = MPTScorer(make_model(), tokenizer, method="pll").fit()
    expected = scorer.score(["the cat"])
    tokenizer(["the cat"], truncation=True, max_length=3)
    tokenizer.add_tokens(["the cat"])
    tokenizer.mask_token = "the"
    assert scorer.score(["the cat"]) == expected
    assert scorer.mask_token_id_ == scorer._opened[1].mask_token_id


# Chosen tokens


def test_hidden_tokens_are_predicted_from_the_visible_ones():
    scorer = make_scorer(method="chain")
    texts = ["the cat sat", "a dog", "the cat sat", "", "the [MASK] mat"]
    masks = [[True, False, True], [False, False], [False, True, False], [], [True] * 2]
    found = scorer.conditional_log_prob(texts, masks)
    types = torch.zeros(5, dtype=torch.long)
    the_cat_sat = torch.tensor([2, 5, 7, 9, 3])  # [CLS] the cat sat [SEP]
    by_hand = [
        log_prob_by_hand(the_cat_sat, types, hidden, target)
        for hidden, target in [([1, 3], 1), ([1, 3], 3), ([2], 2)]
    ]
    assert_allclose(found[0], [by_hand[0], 0, by_hand[1]], rtol=1e-5)
    assert_array_equal(found[1], [0, 0])
    assert_allclose(found[2], [0, by_hand[2], 0], rtol=1e-5)
    assert_array_equal(found[3], [])
    everything = scorer.set_params(method="mpt").fit().token_scores(["the mat"])[0]
    assert len(found[4]) == len(everything) == 2
    context = scorer.conditional_log_prob(PAIRS[:1], [[True, False]])[0]
    assert context[0] < 0 == context[1]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([], "mask must hold one mask for each text, got 0 for 1 texts"),
        ([[True]], r"mask\[0\] must hold a bool for each of the 2 .* shape \(1,\)"),
        ([[0, 1]], r"mask\[0\] must hold a bool .* dtype int64"),
        ([True], r"mask\[0\] must hold a bool for .* shape \(\) and"),
        (None, "mask must be a list of boolean arrays"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_scorer().conditional_log_prob(["a dog"], masks)


def test_masks_are_of_whole_texts():
    scorer = make_scorer(max_length=4, overflow="stride")
    with pytest.raises(ValueError, match=r"texts\[1\] has 5 tokens, more than max_len"):
        scorer.conditional_log_prob(["a", "a dog ran"], [[True], [True] * 3])


# Contexts


def test_a_context_is_visible_and_not_scored():
    ids = torch.tensor([2, 5, 7, 3, 9, 11, 3])  # [CLS] the cat [SEP] sat on [SEP]
    types = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = make_tokenizer(with_pairs=True, model_input_names=names)
    scorer = MPTScorer(make_model(), tokenizer, method="pll").fit()
    encoded = tokenizer(*PAIRS[0])
    assert (encoded["input_ids"], encoded["token_type_ids"]) == (
        ids.tolist(),
        types.tolist(),
    )
    expected = [
        log_prob_by_hand(ids, types, [position], position) for position in (4, 5)
    ]
    (part,) = scorer.token_scores(PAIRS[:1])
    assert part.tokens == ["sat", "on"]
    assert part.text == "sat on"
    assert_array_equal(part.offsets, [[0, 3], [4, 6]])
    assert_allclose(part.log_prob, expected, rtol=1e-5)
    assert_allclose(scorer.score_samples(PAIRS[:1]), sum(expected), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_pairs_are_scored_alone_as_together(method):
    scorer = make_scorer(method=method, n_masks=2)
    together = scorer.score_samples(PAIRS)
    alone = [scorer.score([pair]) for pair in PAIRS]
    assert_allclose(together, alone, rtol=1e-5)
    assert scorer.transform(PAIRS).shape == (3, 99)


def test_long_texts_after_a_context_keep_it_in_view():
    tokenizer = make_tokenizer(with_pairs=True)
    scorer = MPTScorer(
        make_model(), tokenizer, method="pll", max_length=9, overflow="stride"
    ).fit()
    pair = ("the cat", "sat on the mat a dog ran fast")
    (part,) = scorer.token_scores([pair])  # windows of four tokens after the context
    assert part.tokens == pair[1].split()
    start = scorer.token_scores([("the cat", "sat on the mat")])[0]
    assert_allclose(part.log_prob[:2], start.log_prob[:2], rtol=1e-5)
    scorer.set_params(overflow="truncate").fit()
    with pytest.warns(UserWarning, match="1 of 1 different texts are cut"):
        assert_allclose(scorer.score([pair]), start.log_prob.sum(), rtol=1e-5)


def test_a_context_longer_than_the_model_is_refused():
    scorer = make_scorer(max_length=5, overflow="truncate")
    message = r"texts\[1\] has 6 context and special .* no room for text in max_len"
    with pytest.raises(ValueError, match=message):
        scorer.score_samples([("a", "dog"), ("the cat sat on a mat", "a")])
    scorer.set_params(overflow="error").fit()
    with pytest.raises(ValueError, match=r"texts\[0\] has 6 tokens, more than max_len"):
        scorer.score_samples([("the cat sat on a", "mat")])


# Perplexity


def test_the_perplexity_of_a_uniform_model_is_its_vocabulary():
    uniform = torch.full((3, 3), -np.log(9.0), dtype=torch.float64)
    scorer = MPTScorer(JointModel(uniform), make_letter_tokenizer(), dtype="float64")
    assert_allclose(scorer.fit().perplexity(["a b", "c", ""]), 3.0)
    with pytest.warns(UserWarning, match=r"texts\[1\] the first, hold \[MASK\]"):
        assert np.isnan(scorer.perplexity(["", "[MASK]"]))
    with pytest.raises(ValueError, match="at least one text, got none"):
        scorer.perplexity([])


def test_a_perplexity_too_large_for_a_float_is_infinite():
    model = make_model()
    with torch.no_grad():
        model.cls.predictions.decoder.bias[5] = 1e6
    scorer = MPTScorer(model, make_tokenizer(), method="pll").fit()
    assert scorer.perplexity(["a dog"]) == np.inf


@pytest.fixture(scope="module")
def pll():
    return make_scorer(method="pll", overflow="stride")


@pytest.mark.filterwarnings("ignore:.* hold .UNK.")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "the  cat",
        "cat\n\tsat.",
        "naïve café",
        "\x00",
        "\u2167 \u200b猫",
        "a" * 40,
    ],
)
def test_any_text_is_scored_by_its_tokens(pll, text):
    (part,) = pll.token_scores([text])
    assert_allclose(part.log_prob.sum(), pll.score([text]), rtol=1e-5, atol=1e-5)
    assert_allclose(part.by_word().log_prob.sum(), part.log_prob.sum(), rtol=1e-6)
    stops = part.offsets[:, 1]
    assert (part.offsets[:, 0] <= stops).all()
    assert (stops <= len(text)).all()


@pytest.mark.parametrize("make", [make_tokenizer, make_letter_tokenizer])
def test_a_frame_of_tokens_has_a_row_for_each(make):
    scorer = MPTScorer(make_model(), make(), method="pll").fit()
    texts = [*(TEXTS if make is make_tokenizer else ["a b c", "c"]), ""]
    frame = scorer.token_scores(texts, as_frame=True)
    parts = scorer.token_scores(texts)
    assert frame["token"].tolist() == [t for part in parts for t in part.tokens]
    sums = frame.groupby("text")["log_prob"].sum()
    assert_allclose(sums, scorer.score_samples(texts[:-1]), rtol=1e-6)
    cut = [texts[row.text][row.start : row.end] for row in frame.itertuples()]
    assert cut[0] == texts[0].split()[0]
    for column in ("start", "end", "word"):
        assert np.issubdtype(frame[column].dtype, np.integer)
    nothing = scorer.token_scores([""], as_frame=True)
    assert list(nothing) == list(frame)
    assert nothing.empty
