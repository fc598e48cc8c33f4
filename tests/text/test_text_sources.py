"""Scorers of folders and hub names: what is refused, and what a pickle gives later."""

import os
import pickle
import shutil
import time

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_array_equal
from safetensors.torch import load_file
from text_models import TEXTS, make_empty_tokenizer, make_model, make_tokenizer

from sklearn_mpt import DataCollatorForMPT, MPTScorer

SHORT = ["the cat"]


def save(folder, model=None, tokenizer=None):
    (model or make_model()).save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def other_model():
    model = make_model()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(-1)
    return model


def fitted(folder, **kwargs):
    return MPTScorer(folder, local_files_only=True, random_state=0, **kwargs).fit()


def copy_of(scorer):
    return pickle.loads(pickle.dumps(scorer))


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "bert")


# Folders without a tokenizer


@pytest.mark.parametrize("architecture", ["bert", "roberta", "albert", "mpnet"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, architecture):
    """transformers makes an empty one, which finds unknown words or none.

    Before version 5 it asks for a package that reads other tokenizers.
    """
    make_model(architecture).save_pretrained(tmp_path)
    message = (
        r"tokenizer must know other tokens than special ones, but .*Tokenizer kn"
        "|could not be loaded as a masked language model with its tokenizer"
    )
    with pytest.raises((ValueError, OSError, ImportError), match=message):
        fitted(tmp_path)
    assert MPTScorer(tmp_path, make_tokenizer()).fit().score(SHORT) < 0


def test_a_tokenizer_folder_without_a_tokenizer_is_refused(folder, tmp_path):
    make_model().save_pretrained(tmp_path / "bare")
    # Old versions of transformers ask for a package that reads other tokenizers.
    errors = (ValueError, OSError, ImportError)
    message = r"tokenizer\.save_pretrained\(folder\), or|be loaded as a tokenizer"
    with pytest.raises(errors, match=message):
        fitted(folder, tokenizer=tmp_path / "bare")
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors, match="could not be loaded as a tokeniz"):
        fitted(folder, tokenizer=tmp_path / "empty")


def test_a_bare_vocabulary_gets_the_line_that_makes_a_tokenizer(folder, tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(make_tokenizer().get_vocab()))
    with pytest.raises((ValueError, OSError), match=r"BertTokenizer\(vocab={token"):
        fitted(folder, tokenizer=file)


def test_a_loaded_tokenizer_without_words_is_refused():
    empty = make_empty_tokenizer()
    for use in (
        lambda tokenizer: MPTScorer(make_model(), tokenizer).fit(),
        DataCollatorForMPT,
    ):
        message = r"tokenizer must know other tokens than.*BertTokenizer\(vocab={token"
        with pytest.raises(ValueError, match=message):
            use(empty)


def with_mask(token, *, is_added=False):
    tokenizer = make_tokenizer()
    tokenizer.mask_token = token
    if is_added:
        tokenizer.add_special_tokens({"mask_token": token})
    return tokenizer


def with_many_words():
    tokenizer = make_tokenizer()
    tokenizer.get_vocab = lambda: {"[MASK]": 4, "the": 5, "cat": 30}
    return tokenizer


NO_TOKENIZER = "tokenizer must be a tokenizer of transformers"


@pytest.mark.parametrize(
    ("tokenizer", "match"),
    [
        (3, NO_TOKENIZER),
        (make_tokenizer().backend_tokenizer, NO_TOKENIZER),
        (make_tokenizer(unk_token="[MASK]"), r"must have a mask token, .* has none"),
        (
            with_mask("[NEW]", is_added=True),
            r"\[NEW\] is new to the model: name the one",
        ),
        (with_mask("[NEW]"), r"reads '\[NEW\]' as unknown. Set tokenizer.mask_token"),
        (with_many_words(), "31 tokens and BertForMaskedLM 21"),
    ],
)
def test_tokenizers_that_do_not_fit_are_refused(tokenizer, match):
    with pytest.raises((TypeError, ValueError), match=match):
        MPTScorer(make_model(), tokenizer).fit()


def test_a_folder_of_pickled_weights_says_how_to_convert_them(folder):
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(OSError, match=r"load it by AutoModelForMaskedLM.*save_pretra"):
        fitted(folder)


def test_no_network_is_said_at_once(monkeypatch):
    """In place of asking again, as transformers does."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(OSError, match=r"a folder written by .* There is no network"):
        MPTScorer("no-one/no-model").fit()
    assert time.monotonic() - start < 10


# Adapters


@pytest.mark.parametrize("is_alone", [True, False])
def test_an_adapter_is_not_left_out(folder, monkeypatch, is_alone):
    monkeypatch.setattr("transformers.utils.is_peft_available", lambda: False)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if is_alone:
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        (folder / "config.json").unlink()
    with pytest.raises(ImportError, match=r"holds an adapter, .* pip install peft"):
        fitted(folder)


# Pickles of folders


def test_a_pickle_of_a_folder_scores_as_it_did(folder):
    scorer = fitted(folder)
    copy = copy_of(copy_of(scorer))
    assert_array_equal(copy.score_samples(TEXTS), scorer.score_samples(TEXTS))
    n_bytes_of_weights = (folder / "model.safetensors").stat().st_size
    assert len(pickle.dumps(scorer)) < n_bytes_of_weights / 10
    again = copy_of(copy)  # now that it has been opened
    assert_array_equal(again.score_samples(TEXTS), scorer.score_samples(TEXTS))


def keep_times(folder, change):
    """Change files, but leave their sizes and the times of the last write."""
    before = {path: path.stat() for path in folder.iterdir()}
    change(folder)
    for path, stat in before.items():
        assert path.stat().st_size == stat.st_size
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def swap_words(folder):
    path = folder / "tokenizer.json"
    text = path.read_text("utf-8")
    path.write_text(text.replace('"cat":7', '"cat":8').replace('"cat": 7', '"cat": 8'))


def other_weights(folder):
    other_model().save_pretrained(folder)


def other_config(folder):
    path = folder / "config.json"
    path.write_text(path.read_text("utf-8").replace('"gelu"', '"relu"'))


@pytest.mark.parametrize("change", [other_weights, other_config, swap_words])
@pytest.mark.parametrize("when", ["before pickling", "after pickling"])
def test_a_pickle_refuses_a_folder_that_has_changed(folder, change, when):
    scorer = fitted(folder)
    expected = scorer.score(SHORT)
    if when == "before pickling":
        keep_times(folder, change)
        data = pickle.dumps(scorer)
    else:
        data = pickle.dumps(scorer)
        keep_times(folder, change)
    copy = pickle.loads(data)
    for use in (copy.score, copy.transform, copy.token_scores, copy.perplexity):
        with pytest.raises(ValueError, match="have changed since the scorer read them"):
            use(SHORT)
    assert scorer.score(SHORT) == expected
    assert copy.fit().score(SHORT) != expected


def test_a_pickle_refuses_a_folder_that_is_gone(folder):
    data = pickle.dumps(fitted(folder))
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"have changed .* or are gone"):
        pickle.loads(data).score(SHORT)


def test_a_pickle_takes_files_that_were_copied_and_does_not_mind_others(folder):
    scorer = fitted(folder)
    data = pickle.dumps(scorer)
    shutil.copytree(folder, folder.parent / "kept")
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "kept", folder, copy_function=shutil.copyfile)
    for name in ("README.md", "pytorch_model.bin", ".gitattributes"):
        (folder / name).write_text("new")
    (folder / "checkpoint-1").mkdir()
    assert pickle.loads(data).score(SHORT) == scorer.score(SHORT)


def test_a_pickle_refuses_a_tokenizer_folder_that_has_changed(folder):
    scorer = MPTScorer(make_model(), folder).fit()
    data = pickle.dumps(scorer)
    other_model().save_pretrained(folder)  # weights are none of a tokenizer's business
    assert pickle.loads(data).score(SHORT) == scorer.score(SHORT)
    swap_words(folder)
    with pytest.raises(ValueError, match="have changed since the scorer read them"):
        pickle.loads(data).score(SHORT)


def test_a_pickle_holds_the_model_of_fit_not_of_parameters_set_later(folder):
    other = save(folder.parent / "other", other_model())
    scorer = fitted(folder)
    expected = scorer.score(SHORT)
    for later in ({"model": other}, {"dtype": "bfloat16"}, {"tokenizer": "nowhere"}):
        scorer.set_params(**later)
        assert scorer.score(SHORT) == copy_of(scorer).score(SHORT) == expected
    loaded = MPTScorer(make_model(), make_tokenizer()).fit()
    loaded.set_params(model=other_model())
    assert copy_of(loaded).score(SHORT) == loaded.score(SHORT) == expected


# Names on the hub


COMMITS = ["a" * 40, "b" * 40]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub with two commits of one model; the second is the newest."""
    repository = tmp_path / "models--someone--bert"
    for commit, model in zip(COMMITS, (make_model(), other_model()), strict=True):
        save(repository / "snapshots" / commit, model)
    (repository / "refs").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    before_5 = {"name": "TRANSFORMERS_CACHE", "value": str(tmp_path)}
    monkeypatch.setattr(transformers.utils.hub, **before_5, raising=False)
    point_to(repository, COMMITS[0])
    return repository


def point_to(repository, commit):
    (repository / "refs" / "main").write_text(commit)


def test_a_pickle_of_a_hub_name_holds_its_commit(hub):
    scorer = fitted("someone/bert")
    expected = scorer.score(SHORT)
    assert expected == MPTScorer(
        make_model(), make_tokenizer(), random_state=0
    ).fit().score(SHORT)
    point_to(hub, COMMITS[1])
    copy = copy_of(scorer)
    assert COMMITS[0].encode() in pickle.dumps(copy)
    assert copy.score(SHORT) == expected
    assert copy.revision is None
    assert copy.fit().score(SHORT) != expected


def test_a_folder_named_as_a_hub_model_was_does_not_replace_it(hub, monkeypatch):
    copy = copy_of(fitted("someone/bert"))
    other = hub.parent / "here"
    save(other / "someone" / "bert", other_model())
    monkeypatch.chdir(other)
    with pytest.raises(ValueError, match="have changed since the scorer read them"):
        copy.score(SHORT)


# Weights and predictions that are no numbers


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.nan, "float32"), (np.inf, "bfloat16"), (-np.inf, "auto")]
)
def test_weights_that_are_not_finite_are_refused(tmp_path, value, dtype):
    """Also in the row of a word that no probe and no text holds."""
    model = make_model()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[20, 3] = value
    message = r"model must have finite weights, but bert\.embeddings\.word_embedd"
    save(tmp_path, model)
    for scorer in (MPTScorer(tmp_path), MPTScorer(model, make_tokenizer())):
        with pytest.raises(ValueError, match=message):
            scorer.set_params(dtype=dtype).fit()


def test_weights_too_large_for_a_dtype_are_refused():
    model = make_model()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[20, 3] = 1e5
    assert np.isfinite(MPTScorer(model, make_tokenizer()).fit().score(SHORT))
    scorer = MPTScorer(model, make_tokenizer(), dtype="float16")
    with pytest.raises(ValueError, match=r"NaN or infinity in torch\.float16"):
        scorer.fit()


def test_predictions_that_are_no_numbers_are_refused_by_scores():
    model = make_model(tie_word_embeddings=False)
    scorer = MPTScorer(model, make_tokenizer(), method="chain").fit()
    texts = ["a dog", "the cat", "?", "the cat", ". cat"]
    assert np.isfinite(scorer.score(texts))
    with torch.no_grad():  # of "cat", while the scorer shares the weights
        model.bert.embeddings.word_embeddings.weight[7] = torch.nan
    for use in (scorer.score, scorer.transform, scorer.token_scores):
        with pytest.raises(ValueError, match=r"for texts\[1\] are not finite, but NaN"):
            use(texts)
    assert np.isfinite(scorer.score(["a dog", "?"]))
    with pytest.raises(ValueError, match=r"for texts\[1\] are not finite"):
        scorer.conditional_log_prob(["a", "the cat"], [[True], [True, False]])
