"""The adapter to lm-eval, on a stand-in of its base class where it is not installed."""

import abc
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
from numpy.testing import assert_allclose
from text_models import (
    TEXTS,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sklearn_mpt import MPTScorer
from sklearn_mpt._text import harness


class StandIn(abc.ABC):
    """What of lm_eval.api.model.LM the adapter relies on."""

    def __init__(self):
        self.remembered = []
        self.cache_hook = SimpleNamespace(
            add_partial=lambda *args: self.remembered.append(args)
        )

    @abc.abstractmethod
    def loglikelihood(self, requests): ...

    @abc.abstractmethod
    def loglikelihood_rolling(self, requests): ...

    @abc.abstractmethod
    def generate_until(self, requests): ...


@pytest.fixture
def adapter(monkeypatch):
    """The adapter, on lm-eval's base class or on its stand-in."""
    if importlib.util.find_spec("lm_eval") is None:
        names = ("lm_eval", "lm_eval.api", "lm_eval.api.model")
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[names[-1]].LM = StandIn
    spec = importlib.util.spec_from_file_location("harness", harness.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MPTHarnessLM


def ask(*arguments):
    return [SimpleNamespace(args=each) for each in arguments]


def letters(n_letters=4, **kwargs):
    model = JointModel(random_joint(n_letters))
    kwargs = {"dtype": "float64", **kwargs}
    return MPTScorer(model, make_letter_tokenizer(), **kwargs).fit()


def test_continuations_have_their_log_probability(adapter):
    log_joint = random_joint(4)
    given = log_joint[0, 1] - log_joint[0, 1].logsumexp((0, 1))
    best = divmod(int(given.argmax()), 3)
    likely = " ".join("abc"[i] for i in best)
    model = adapter(letters())
    requests = ask(("a b", likely), ("a b", "c c"), ("", "a"), ("a b", likely))
    answers = model.loglikelihood(requests)
    assert_allclose(answers[0][0], given.max())
    assert_allclose(answers[1][0], given[2, 2])
    assert answers[0] == answers[3]
    assert not answers[1][1] or best == (2, 2)
    first = log_joint.logsumexp((1, 2, 3))
    assert_allclose(answers[2][0], first[0])
    assert answers[2][1] == bool(first.argmax() == 0)
    assert model.loglikelihood([]) == []


def test_a_greedy_continuation_is_that_of_the_most_probable_tokens(adapter):
    scorer = MPTScorer(make_model().eval(), make_tokenizer(), method="pll").fit()
    model = adapter(scorer, order="left_to_right")
    (greedy,) = model.generate_until(ask(("the cat", {"max_gen_toks": 3})))
    _, tokenizer = scorer._open_again()
    if len(tokenizer.tokenize(greedy)) == 3:
        ((_, is_greedy),) = model.loglikelihood(ask(("the cat", greedy)))
        assert is_greedy
    ((_, is_greedy),) = model.loglikelihood(ask(("the cat", "mat mat mat")))
    assert is_greedy == (greedy == "mat mat mat")


def test_documents_are_scored_whole(adapter):
    scorer = letters(3, max_length=3, overflow="split")
    (found,) = adapter(scorer).loglikelihood_rolling(ask(("a b c a b",)))
    assert_allclose(found, scorer.score_samples(["a b c", "a b"]).sum())
    assert adapter(scorer).loglikelihood_rolling([]) == []


def test_what_is_written_ends_before_the_words_of_the_task(adapter):
    model = adapter(letters(), max_gen_toks=2)
    whole, cut = model.generate_until(
        ask(("a b", {}), ("a b", {"until": [" "], "temperature": 0.0}))
    )
    assert len(whole.split()) == 2
    assert cut == whole.split()[0]
    (sampled,) = model.generate_until(ask(("a", {"temperature": 1, "max_gen_toks": 3})))
    assert len(sampled.split()) == 3


def test_a_long_context_is_cut_from_the_left(adapter):
    tokenizer = make_tokenizer(with_pairs=True)
    model = make_model().eval()
    scorer = MPTScorer(model, tokenizer, max_length=8, method="pll").fit()
    (found,) = adapter(scorer).loglikelihood(ask((" ".join(TEXTS), "a dog")))
    # [CLS], twice [SEP] and two tokens leave three of the context
    assert_allclose(found[0], scorer.score_samples([("mat ? fast", "a dog")])[0])
    assert found[0] != scorer.score_samples([("? fast", "a dog")])[0]


def test_a_continuation_that_fills_the_model_leaves_no_context(adapter):
    tokenizer = make_tokenizer(with_pairs=True)
    model = make_model().eval()
    scorer = MPTScorer(model, tokenizer, max_length=8, method="pll").fit()
    exact, shorter = "a dog ran fast on", "a dog ran fast"  # with [CLS], [SEP], [SEP]
    found = adapter(scorer).loglikelihood(ask(("the cat", exact), ("the cat", shorter)))
    expected = scorer.score_samples([("", exact), ("cat", shorter)])
    assert_allclose([log_prob for log_prob, _ in found], expected, rtol=1e-5)
    (text,) = adapter(scorer).generate_until(ask(("the cat", {"max_gen_toks": 5})))
    assert text == adapter(scorer).generate_until(ask(("", {"max_gen_toks": 5})))[0]


def test_a_joiner_takes_part_of_the_room(adapter):
    settings = {"max_length": 8, "method": "pll", "joiner": " . "}
    tokenizer = make_tokenizer(with_pairs=True)
    scorer = MPTScorer(make_model().eval(), tokenizer, **settings).fit()
    (found,) = adapter(scorer).loglikelihood(ask(("the cat sat on the", "a dog")))
    # [CLS], [SEP], the joiner and two tokens leave three of the context
    assert_allclose(found[0], scorer.score_samples([("sat on the", "a dog")])[0])


def test_what_is_left_of_a_word_may_have_more_tokens(adapter):
    """Of "abcd" = "ab", "##cd", what is left is "cd" = "c", "##d": too long again."""
    words = ["[UNK]", "[MASK]", "ab", "##cd", "c", "##d", "d", "a"]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]"
    )
    model = make_model().eval()
    scorer = MPTScorer(model, tokenizer, max_length=2, method="pll").fit()
    (found,) = adapter(scorer).loglikelihood(ask(("abcd", "a")))
    assert_allclose(found[0], scorer.score_samples([("d", "a")])[0])


def test_equal_requests_are_drawn_anew(adapter):
    model = adapter(letters(random_state=0))
    settings = {"temperature": 1.0, "max_gen_toks": 4}
    requests = ask(*[("", settings)] * 200, ("a", settings), ("", {**settings}))
    answers = model.generate_until(requests)
    drawn = [*answers[:200], answers[-1]]
    assert len(set(drawn)) > 20
    assert answers == model.generate_until(requests)
    # the draws follow the distribution of the model
    log_joint = random_joint(4)
    first = log_joint.logsumexp((1, 2, 3)).exp()[0].item()
    share = sum(text[0] == "a" for text in drawn) / len(drawn)
    assert abs(share - first) < 4 * (first * (1 - first) / len(drawn)) ** 0.5
    greedy = model.generate_until(ask(*[("", {"max_gen_toks": 4})] * 3))
    assert len(set(greedy)) == 1


def test_draws_are_not_kept_for_other_equal_requests(adapter):
    model, kept = adapter(letters()), []
    model.cache_hook = SimpleNamespace(add_partial=lambda *args: kept.append(args))
    drawn, greedy = ({"temperature": t, "max_gen_toks": 2} for t in (0.5, 0))
    _, answer = model.generate_until(ask(("a", drawn), ("a", greedy)))
    assert kept == [("generate_until", ("a", greedy), answer)]


def test_bad_parameters_are_refused(adapter, monkeypatch):
    with pytest.raises(ValueError, match="order must be one of 'random'"):
        adapter(letters(), order="magic")
    monkeypatch.setattr(harness, "LM", object)
    with pytest.raises(ImportError, match=r"pip install '\.\[lm-eval\]'"):
        harness.MPTHarnessLM(letters())
