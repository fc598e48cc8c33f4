"""Variants of proteins: log-ratios to the wild type, against enumeration."""

import itertools

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from text_models import (
    JointModel,
    ModelWithoutOneLetter,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sklearn_mpt import MPTScorer

CONVENTIONS = [
    "joint",
    "masked-marginal",
    "wild-type-marginal",
]
LOG_JOINT = random_joint(4, seed=3)
WILD = "a b c a"


def make_scorer(log_joint=LOG_JOINT, **kwargs):
    tokenizer, model = make_letter_tokenizer(), JointModel(log_joint)
    return MPTScorer(model, tokenizer, dtype="float64", **kwargs).fit()


def log_prob(text):
    return LOG_JOINT[tuple("abc".index(letter) for letter in text.split())].item()


def test_joint_is_the_log_ratio_of_a_joint_distribution():
    mutants = {
        "a1b": "b b c a",
        "a1b:b2c": "b c c a",
        "a1c:c3a:a4b": "c b a b",
        "c b a b": "c b a b",
        "": WILD,
        "a1a": WILD,
    }
    expected = [log_prob(text) - log_prob(WILD) for text in mutants.values()]
    found, errors = make_scorer().score_variants(WILD, list(mutants), return_std=True)
    assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert_array_equal(errors, 0)


@pytest.mark.parametrize("method", CONVENTIONS)
def test_residues_of_probability_zero(method):
    model, tokenizer = ModelWithoutOneLetter(LOG_JOINT), make_letter_tokenizer()
    scorer = MPTScorer(model, tokenizer, dtype="float64").fit()
    variants = ["c1a", "c1b:b2a", "c1a:b2c"]
    ratio, error = scorer.score_variants(
        "c b a b", variants, method=method, return_std=True
    )
    assert_array_equal(ratio, [np.inf, np.inf, np.nan])
    assert_allclose(error, 0, atol=1e-12)
    assert_array_equal(scorer.score_variants("a b a", ["a1c"]), [-np.inf])


def test_a_few_orders_estimate_all_and_their_errors_say_how_well():
    tokenizer = make_tokenizer()
    model = make_model(initializer_range=1.0).eval()
    wild, variant = "the cat sat on mat", "a dog ran fast happy"
    all_orders = MPTScorer(model, tokenizer).fit()
    exact, error = all_orders.score_variants(
        wild, [variant], n_orders=120, return_std=True
    )
    assert error == 0
    z_scores = []
    for seed in range(12):
        scorer = MPTScorer(model, tokenizer, random_state=seed).fit()
        found, error = scorer.score_variants(
            wild, [variant], n_orders=10, return_std=True
        )
        z_scores.append((found - exact) / error)
    assert np.abs(z_scores).max() < 4
    assert 0.3 < np.std(z_scores) < 2


def test_a_sequence_has_one_score_however_it_is_written():
    scorer = make_scorer(n_masks=2)
    written = ["b2c", "b2c:a1a", "a c c a", " a c c a "]
    for method in ("joint", "masked-marginal"):
        found, errors = scorer.score_variants(
            WILD, written, method=method, return_std=True
        )
        assert_allclose(found, found[0], rtol=0, atol=1e-12)
        assert_array_equal(errors, 0)


# Proteins that are longer than the model


def test_a_long_protein_is_scored_in_the_window_around_its_mutations():
    model, tokenizer = make_model().eval(), make_tokenizer()
    short = MPTScorer(model, tokenizer).fit()
    long = MPTScorer(model, tokenizer, max_length=7, overflow="stride").fit()
    words = "the a cat dog sat ran on mat fast happy the".split()
    wild = " ".join(words)
    for site, start in ((0, 0), (1, 0), (5, 3), (10, 6)):
        mutant = words.copy()
        mutant[site] = "." if site % 2 else "?"
        window = slice(start, start + 5)
        for method in ("joint", "masked-marginal"):
            found = long.score_variants(wild, [" ".join(mutant)], method=method)
            expected = short.score_variants(
                " ".join(words[window]), [" ".join(mutant[window])], method=method
            )
            assert_allclose(found, expected, rtol=1e-4, err_msg=method)


def test_sites_of_later_windows_see_those_before():
    model, tokenizer = make_model().eval(), make_tokenizer()
    scorer = MPTScorer(model, tokenizer, max_length=7, overflow="stride").fit()
    wild = "the a cat dog sat ran on mat fast happy the".split()
    mutant = wild.copy()
    mutant[0], mutant[4], mutant[6] = "?", ".", "fast"  # 6 has a window from 4 to 8
    first = scorer.score_variants(" ".join(wild[:5]), [" ".join(mutant[:5])])[
        0
    ]  # what fits into one window is scored together
    hidden = np.arange(4, 9) == 6
    parts = [" ".join(words[4:9]) for words in (mutant, wild)]
    second = [own[2] for own in scorer.conditional_log_prob(parts, [hidden, hidden])]
    found = scorer.score_variants(" ".join(wild), [" ".join(mutant)])
    assert_allclose(found, first + second[0] - second[1], rtol=1e-4)


@pytest.mark.parametrize("method", CONVENTIONS)
def test_long_proteins_have_every_method(method):
    marginal = np.log([0.5, 0.3, 0.2])
    table = sum(np.ix_(*[marginal] * 5))
    table = LOG_JOINT.new_tensor(table)
    scorer = make_scorer(table, max_length=5, overflow="stride")
    wild, variants = "a b c a b c a b c", ["a1b:c9a", "a4c:b5a", "a b c a b c a b c"]
    found = scorer.score_variants(wild, variants, method=method)
    expected = [marginal[1] - marginal[2], marginal[2] - marginal[1], 0]
    assert_allclose(found, expected, rtol=0, atol=1e-10)
    alone = MPTScorer(scorer.model, scorer.tokenizer, max_length=5).fit()
    with pytest.raises(ValueError, match="set overflow='stride', or cut it"):
        alone.score_variants(wild, variants, method=method)


# What is no variant


@pytest.mark.parametrize("word", ["WT", "NA", "wt", "nan", "None"])
def test_a_word_in_the_place_of_a_sequence_is_refused(word):
    message = rf"variants\[1\], '{word}', would be the sequence of a protein of"
    with pytest.raises(ValueError, match=message):
        make_scorer().score_variants(WILD, ["a1b", word])


@pytest.mark.parametrize("variant", ["b2del", "b2_c3insbc", "b2delinscc", "a c a"])
def test_variants_of_another_length_are_refused_with_what_to_do(variant):
    with pytest.raises(ValueError, match="the difference of their score_samples"):
        make_scorer().score_variants(WILD, [variant])


def test_arguments_are_checked():
    listed = ", ".join(map(repr, CONVENTIONS))
    with pytest.raises(ValueError, match=f"method must be one of {listed}, got"):
        make_scorer().score_variants(WILD, ["a1b"], method="magic")
    with pytest.raises(TypeError, match="a single 'a1b'"):
        make_scorer().score_variants(WILD, "a1b")


@pytest.mark.parametrize("method", CONVENTIONS[1:])
def test_marginals_add_up_what_is_predicted_site_by_site(method):
    model, tokenizer = make_model().eval(), make_tokenizer()
    scorer = MPTScorer(model, tokenizer).fit()
    wild, mutant = "the cat sat on mat", "the dog sat a mat"
    (ids, others) = (
        tokenizer(t, return_tensors="pt").input_ids for t in (wild, mutant)
    )
    expected = 0.0
    for position in (2, 4):
        seen = ids.clone()
        if method == "masked-marginal":
            seen[0, position] = tokenizer.mask_token_id
        logits = model(seen).logits[0, position].detach()
        expected += float(logits[others[0, position]] - logits[ids[0, position]])
    found = scorer.score_variants(wild, [mutant], method=method)
    assert_allclose(found, expected, rtol=1e-4)


def test_a_table_of_variants_is_refused():
    table = pd.DataFrame({"variant": ["a1b"]})
    with pytest.raises(TypeError, match=r"one column of a table, got a DataFrame"):
        make_scorer().score_variants(WILD, table)
    assert make_scorer().score_variants(WILD, table["variant"]).shape == (1,)


@pytest.mark.parametrize("column", [iter, np.array, lambda v: pd.Series(v, [1, 0])])
def test_variants_in_a_column_or_a_generator(column):
    scorer, variants = make_scorer(), ["a1b", "b2c"]
    expected = scorer.score_variants(WILD, variants)
    assert_array_equal(scorer.score_variants(WILD, column(variants)), expected)
    with pytest.raises(ValueError, match=r"variants\[1\] must be 'K3R' for a subst"):
        scorer.score_variants(WILD, column(["a1b", "b2del"]))


def test_positions_can_start_elsewhere():
    scorer = make_scorer()
    first = scorer.score_variants(WILD, ["c103b"], first_position=101)
    assert_array_equal(first, scorer.score_variants(WILD, ["c3b"]))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("b1c", r"variants\[0\] has 'b1c', but the wild type has a at position 1"),
        ("a9b", "positions run from 1 to 4"),
        ("a1b:a1c", "must change each position once"),
        ("x1", "'K3R' for a substitution"),
        ("a1z", "'z' have no token of their own"),
        ("a b c z", "'z' have no token of their own"),
    ],
)
def test_what_cannot_be_read_is_refused(variant, message):
    with pytest.raises(ValueError, match=message):
        make_scorer().score_variants(WILD, [variant])


def test_an_unknown_residue_is_refused_by_a_tokenizer_that_has_a_token_for_it():
    scorer = MPTScorer(make_model().eval(), make_tokenizer()).fit()
    with pytest.raises(ValueError, match="'xyz' have no token of their own"):
        scorer.score_variants("the cat", ["the xyz"])
    with pytest.raises(ValueError, match="one token for each residue"):
        scorer.score_variants("the dogs", ["the cat"])


def test_variants_that_are_many_are_scored_as_each_alone():
    scorer = make_scorer(batch_tokens=16)
    variants = [
        ":".join(
            f"{old}{i + 1}{new}"
            for i, (old, new) in enumerate(zip("abca", row, strict=True))
        )
        for row in itertools.islice(itertools.product("abc", repeat=4), 10)
    ]
    found = scorer.score_variants(WILD, variants)
    alone = [scorer.score_variants(WILD, [variant])[0] for variant in variants]
    assert_allclose(found, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ["a1c", "acdd", "A1c"])
def test_residues_in_small_letters_say_what_to_do(variant):
    vocabulary = {token: i for i, token in enumerate(["[MASK]", "[UNK]", *"ACD"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token="[MASK]", unk_token="[UNK]"
    )
    scorer = MPTScorer(make_model(vocab_size=5), tokenizer).fit()
    with pytest.raises(ValueError, match="in capital letters"):
        scorer.score_variants("ACDD", [variant])
