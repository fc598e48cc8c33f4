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
    "mutant-marginal",
    "pseudo-perplexity",
]
LOG_JOINT = random_joint(4, seed=3)
WILD = "a b c a"


def make_scorer(log_joint=LOG_JOINT, **kwargs):
    tokenizer, model = make_letter_tokenizer(), JointModel(log_joint)
    return MPTScorer(model, tokenizer, dtype="float64", **kwargs).fit()


def log_prob(text):
    return LOG_JOINT[tuple("abc".index(letter) for letter in text.split())].item()


def conditional(text, position, hidden):
    """log p of the letter at a position, given those that are not hidden."""
    axes = [slice(None) if i in hidden else "abc".index(x) for i, x in text]
    table = LOG_JOINT[tuple(axes)].numpy()
    axis = sorted(hidden).index(position)
    others = tuple(i for i in range(table.ndim) if i != axis)
    table = np.logaddexp.reduce(table, axis=others) if others else table
    table = table - np.logaddexp.reduce(table)
    return table["abc".index(dict(text)[position])]


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


def test_the_conventions_add_up_what_is_found_site_by_site():
    wild, mutant = (list(enumerate(t.split())) for t in (WILD, "b b c c"))
    sites, everywhere = (0, 3), range(4)

    def ratio(background, hidden_of):
        """Log-ratio of the residues of the sites in the sequence that is seen."""
        total = 0.0
        for site in sites:
            for sequence, sign in ((mutant, 1), (wild, -1)):
                text = list(background)
                text[site] = sequence[site]
                total += sign * conditional(text, site, hidden_of(site))
        return total

    def pll(text):
        return sum(conditional(text, position, {position}) for position in everywhere)

    # a model of exact conditionals does not look at the token that it predicts
    expected = {
        "masked-marginal": ratio(wild, lambda site: set(sites)),
        "wild-type-marginal": ratio(wild, lambda site: {site}),
        "mutant-marginal": ratio(mutant, lambda site: {site}),
        "pseudo-perplexity": pll(mutant) - pll(wild),
    }
    scorer = make_scorer()
    for method, value in expected.items():
        found = scorer.score_variants(WILD, ["a1b:a4c", "a1b:a4c"], method=method)
        assert_allclose(found, [value, value], rtol=0, atol=1e-10, err_msg=method)


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


def test_all_conventions_are_one_for_independent_residues():
    marginals = np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])
    table = sum(np.ix_(*marginals))
    scorer = make_scorer(torch_tensor(table))
    expected = marginals[0, 1] - marginals[0, 0] + marginals[2, 0] - marginals[2, 2]
    for method in ("joint", "masked-marginal", "wild-type-marginal", "mutant-marginal"):
        found = scorer.score_variants("a b c", ["a1b:c3a"], method=method)
        assert_allclose(found, expected, atol=1e-10)


def torch_tensor(array):
    return LOG_JOINT.new_tensor(array)


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


def test_deletions_and_insertions_compare_whole_sequences():
    scorer = make_scorer()
    texts = ["a c a", "c a", "a b b c c a", "a c b a"]
    variants = ["b2del", "a1_b2del", "b2_c3insbc", "b2del:c3_a4insb"]
    expected = scorer.score_samples(texts) - scorer.score_samples([WILD])
    found = scorer.score_variants(WILD, variants)
    assert_allclose(found, expected, rtol=0, atol=1e-10)
    lengths = [4, 4, 4, 3, 3, 2]
    longer = scorer.score_variants(WILD, variants, length_log_prob=lengths)
    term = scorer.score_samples(texts[:1], length_log_prob=lengths) - (
        scorer.score_samples([WILD], length_log_prob=lengths)
    )
    assert_allclose(longer[0], term[0], rtol=0, atol=1e-10)
    pll = MPTScorer(scorer.model, scorer.tokenizer, dtype="float64", method="pll").fit()
    found = scorer.score_variants(WILD, variants[:1], method="pseudo-perplexity")
    expected = pll.score_samples([*texts[:1]]) - pll.score_samples([WILD])
    assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_a_sequence_has_one_score_however_it_is_written():
    scorer = make_scorer(n_masks=2)
    written = ["b2c", "b2del:a1_b2insc", "b2del:b2_c3insc", "b2delinsc", "a c c a"]
    for method in ("joint", "masked-marginal"):
        found, errors = scorer.score_variants(
            WILD, written, method=method, return_std=True
        )
        assert_allclose(found, found[0], rtol=0, atol=1e-12)
        assert_array_equal(errors, 0)
    longer = scorer.score_variants(WILD, ["b2_c3delinsccb", "a c c b a"])
    assert longer[0] == longer[1]
    together = ["b2delinscc:b2_c3insb", "b2_c3insb:b2delinscc", "a c c b c a"]
    assert_array_equal(*scorer.score_variants(WILD, together)[[[0, 1], [2, 2]]])


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
        for method in ("joint", "masked-marginal", "mutant-marginal"):
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
    scorer = make_scorer(torch_tensor(table), max_length=5, overflow="stride")
    wild, variants = "a b c a b c a b c", ["a1b:c9a", "a4c:b5a", "a b c a b c a b c"]
    found = scorer.score_variants(wild, variants, method=method)
    expected = [marginal[1] - marginal[2], marginal[2] - marginal[1], 0]
    assert_allclose(found, expected, rtol=0, atol=1e-10)
    if method in ("joint", "pseudo-perplexity"):
        deleted = scorer.score_variants(wild, ["b5del"], method=method)
        assert_allclose(deleted, -marginal[1], atol=1e-10)
    alone = MPTScorer(scorer.model, scorer.tokenizer, max_length=5).fit()
    with pytest.raises(ValueError, match="set overflow='stride', or cut it"):
        alone.score_variants(wild, variants, method=method)


# What is no variant


@pytest.mark.parametrize("word", ["WT", "NA", "wt", "nan", "None"])
def test_a_word_in_the_place_of_a_sequence_is_refused(word):
    message = rf"variants\[1\] is '{word}', which would be read as the sequence"
    with pytest.raises(ValueError, match=message):
        make_scorer().score_variants(WILD, ["a1b", word])


@pytest.mark.parametrize("text", ["a", " ".join("abcabcabc")])
def test_a_sequence_of_quite_another_length_is_warned_of(text):
    message = rf"1 of 2 variants are whole sequences .* variants\[1\], '{text}', has"
    with pytest.warns(UserWarning, match=message):
        make_scorer().score_variants(WILD, ["a1b", text])


def test_a_table_of_variants_is_refused():
    table = pd.DataFrame({"variant": ["a1b"]})
    with pytest.raises(TypeError, match=r"one column of a table, got a DataFrame"):
        make_scorer().score_variants(WILD, table)
    assert make_scorer().score_variants(WILD, table["variant"]).shape == (1,)


@pytest.mark.parametrize("column", [iter, np.array, lambda v: pd.Series(v, [1, 0])])
def test_variants_in_a_column_or_a_generator(column):
    scorer, variants = make_scorer(), ["a1b", "b2del"]
    expected = scorer.score_variants(WILD, variants)
    assert_array_equal(scorer.score_variants(WILD, column(variants)), expected)
    with pytest.raises(ValueError, match=r"variants\[1\], 'b2del', has another"):
        scorer.score_variants(WILD, column(variants), method="masked-marginal")


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
        ("a1_c3insb", "no neighbours"),
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


def test_sites_need_a_variant_of_the_same_length():
    scorer = make_scorer()
    with pytest.raises(ValueError, match="set it to 'joint' or 'pseudo-perplexity'"):
        scorer.score_variants(WILD, ["b2del"], method="masked-marginal")
    listed = ", ".join(map(repr, CONVENTIONS))
    with pytest.raises(ValueError, match=f"method must be one of {listed}, got"):
        scorer.score_variants(WILD, ["a1b"], method="magic")
    with pytest.raises(TypeError, match="a single 'a1b'"):
        scorer.score_variants(WILD, "a1b")


def test_the_length_term_is_a_distribution():
    scorer = make_scorer()
    texts = [" ".join("a" * n) for n in (1, 3, 4)]
    lengths = scorer.count_tokens(["a b", "a", "a b"])
    assert_array_equal(lengths, [2, 1, 2])
    plain = scorer.score_samples(texts)
    term = scorer.score_samples(texts, length_log_prob=lengths) - plain
    geometric = (5 / 8) ** np.array([1, 3, 4]) * 3 / 8
    assert_allclose(np.exp(term), (np.array([1, 0, 0]) + geometric) / 4)
    given = scorer.score_samples(texts, length_log_prob=lambda n: -1.0 * n)
    assert_allclose(given, plain - [1, 3, 4])
    with pytest.raises(ValueError, match="for each of the 3 numbers of tokens"):
        scorer.score_samples(texts, length_log_prob=lambda n: 0.0)
    with pytest.raises(ValueError, match="ints from 0 on"):
        scorer.score_samples(texts, length_log_prob=[0.5])


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


@pytest.mark.parametrize("variant", ["a1c", "acdd", "a1del", "A1c"])
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
