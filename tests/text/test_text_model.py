import pickle
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from text_models import SIZES, TEXTS, make_model, make_tokenizer

import sklearn_mpt
from sklearn_mpt import MPTScorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    make_model().save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


def load_spy(monkeypatch):
    """Record the keyword arguments of from_pretrained."""
    seen = []

    def spy(auto_class):
        original = auto_class.from_pretrained

        def from_pretrained(name, **kwargs):
            seen.append((name, kwargs))
            return original(name, **kwargs)

        monkeypatch.setattr(auto_class, "from_pretrained", from_pretrained)

    spy(transformers.AutoModelForMaskedLM)
    spy(transformers.AutoTokenizer)
    return seen


def test_a_folder_gives_what_the_loaded_model_gives(folder):
    loaded = scorer_of(make_model(), make_tokenizer()).fit()
    for name, texts in ((folder, None), (str(folder), TEXTS)):
        named = scorer_of(name).fit(texts)
        expected = loaded.score_samples(TEXTS)
        assert_allclose(named.score_samples(TEXTS), expected, rtol=1e-6)


def test_safety_settings_are_explicit(folder, monkeypatch):
    seen = load_spy(monkeypatch)
    scorer_of(str(folder), local_files_only=True, revision="main").fit()
    (_, for_tokenizer), (_, for_model) = seen
    for kwargs in (for_tokenizer, for_model):
        assert kwargs["trust_remote_code"] is False
        assert kwargs["local_files_only"] is True
        assert kwargs["revision"] == "main"
    assert for_model["use_safetensors"] is True


def test_the_revision_is_that_of_the_model_alone(folder, monkeypatch):
    seen = load_spy(monkeypatch)
    scorer_of(str(folder), tokenizer=folder, revision="main").fit()
    other = folder.parent / "tokenizer"
    make_tokenizer().save_pretrained(other)
    scorer_of(str(folder), tokenizer=other, revision="main").fit()
    assert [kwargs["revision"] for _, kwargs in seen] == ["main", "main", None, "main"]


def scorer_of(*args, **kwargs):
    return MPTScorer(*args, **{"random_state": 0} | kwargs)


def save(model, folder):
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: without_head(), r"missing are 'cls\.predictions\.bias', 'cls\."),
        (lambda: classifier(), r"missing are 'cls\..*; unexpected are 'classifier\.b"),
    ],
)
def test_weights_without_a_head_are_refused(tmp_path, make, message):
    save(make(), tmp_path)
    with pytest.raises(
        ValueError, match=f"not those of a BertForMaskedLM, .* {message}"
    ):
        scorer_of(tmp_path).fit()


def test_weights_of_more_layers_are_refused(tmp_path):
    save(make_model(num_hidden_layers=3), tmp_path)
    make_model().config.save_pretrained(tmp_path)
    message = r"unexpected are 'bert\.encoder\.layer\.2\..*, \.\.\.\. To score"
    with pytest.raises(ValueError, match=message):
        scorer_of(tmp_path).fit()


def test_parts_that_predict_no_token_may_be_left_over(folder, tmp_path):
    """As in checkpoints of BERT itself, which predict the next sentence too."""
    config = transformers.BertConfig(**SIZES)
    model = transformers.BertForPreTraining(config)
    model.load_state_dict(make_model().state_dict(), strict=False)
    scorer = scorer_of(save(model, tmp_path)).fit()
    expected = scorer_of(folder).fit().score_samples(TEXTS)
    np.testing.assert_allclose(scorer.score_samples(TEXTS), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_corrupt_files_are_an_error_that_names_the_folder(tmp_path, name):
    save(make_model(), tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:100])
    message = f"{tmp_path}.* could not be loaded as a masked language model"
    with pytest.raises((OSError, ValueError, ImportError), match=message):
        scorer_of(tmp_path).fit()


def other_model():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def test_replaced_weights_are_read_anew_by_every_fit(tmp_path):
    scorer = scorer_of(save(make_model(), tmp_path)).fit()
    before = scorer.score(TEXTS)
    save(other_model(), tmp_path)
    assert scorer.score(TEXTS) == before  # what was opened by fit
    expected = scorer_of(other_model(), make_tokenizer()).fit().score(TEXTS)
    assert np.isclose(scorer.fit().score(TEXTS), expected, rtol=1e-6)


def test_a_named_model_is_loaded_by_threads(folder):
    expected = scorer_of(folder, method="pll").fit().score(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        scores = list(
            pool.map(
                lambda _: scorer_of(folder, method="pll").fit().score(TEXTS), range(8)
            )
        )
        scorer = pickle.loads(pickle.dumps(scorer_of(folder, method="pll").fit()))
        scores += pool.map(lambda _: scorer.score(TEXTS), range(8))
    assert scores == [expected] * 16


def test_a_repr_names_a_loaded_model_by_its_class_and_size():
    model, tokenizer = make_model(), make_tokenizer()
    scorer = MPTScorer(model, tokenizer, method="pll")
    model_name = f"<BertForMaskedLM of {model.num_parameters():,} parameters>"
    name = f"<{type(tokenizer).__name__} of 21 tokens>"
    expected = f"MPTScorer(method='pll', model={model_name}, tokenizer={name})"
    assert " ".join(repr(scorer).split()) == expected
    assert scorer.model is model
    assert "Linear(" not in repr(scorer.fit())
    assert repr(MPTScorer("name")) == "MPTScorer(model='name')"


def test_a_missing_model_is_named_with_what_to_do():
    scorer = scorer_of("no-such-org/no-such-model", local_files_only=True)
    message = "'no-such-org/no-such-model' could not be .* a folder .*save_pretrained"
    with pytest.raises(OSError, match=message):
        scorer.fit(TEXTS)


def bart():
    names = ("encoder_layers", "decoder_layers")
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    widths = ("d_model", "encoder_ffn_dim", "decoder_ffn_dim")
    settings = {**dict.fromkeys(names, 1), **dict.fromkeys(heads, 2)}
    settings.update(dict.fromkeys(widths, 8))
    config = transformers.BartConfig(vocab_size=SIZES["vocab_size"], **settings)
    return transformers.BartForConditionalGeneration(config)


def gpt2():
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8}
    config = transformers.GPT2Config(vocab_size=SIZES["vocab_size"], **sizes)
    return transformers.GPT2LMHeadModel(config)


def t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=SIZES["vocab_size"], **sizes)
    return transformers.T5ForConditionalGeneration(config)


def decoder():
    return transformers.BertLMHeadModel(
        transformers.BertConfig(is_decoder=True, **SIZES)
    )


def without_head():
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def classifier():
    config = transformers.BertConfig(**SIZES)
    return transformers.BertForSequenceClassification(config)


class Altered(transformers.BertForMaskedLM):
    """Its logits are changed by a function of them and of the tokens."""

    def forward(self, input_ids, attention_mask=None):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        output.logits = self.change(output.logits, input_ids)
        return output


def altered(change):
    model = Altered(transformers.BertConfig(**SIZES))
    model.load_state_dict(make_model().state_dict())
    model.change = change
    return model


def rolls_dice(logits, ids):
    return logits * (1 + ids.new_empty(1).float().uniform_())


def needs_memory(logits, ids):
    raise torch.OutOfMemoryError("CUDA out of memory")


class PeftModel(torch.nn.Module):
    """A wrapper that takes what its model takes, as that of peft does."""

    def __init__(self, model):
        super().__init__()
        self.base_model, self.config = model, model.config

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


def half_on_meta():
    model = make_model()
    model.bert.encoder.layer[0].to("meta")
    return model


def with_few_logits():
    model = make_model()
    model.cls.predictions.decoder = torch.nn.Linear(16, 20)
    return model


OTHER_KINDS = [
    (bart, "an encoder-decoder one, BartForConditionalGeneration"),
    (t5, "an encoder-decoder one, T5ForConditionalGeneration"),
    (gpt2, "a causal one, GPT2LMHeadModel"),
    (decoder, "a causal one, Bert"),
]


@pytest.mark.parametrize(("make", "message"), OTHER_KINDS)
def test_folders_of_other_kinds_of_models_are_refused(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        scorer_of(str(save(make(), tmp_path))).fit(TEXTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *OTHER_KINDS,
        (without_head, "one row of logits per token, got BertModel"),
        (classifier, "one row of logits per token, got BertForSequenceClass"),
        (lambda: 3, "model must be a name, a folder, a loaded"),
        (lambda: make_model(vocab_size=20), "21 tokens and BertForMaskedLM 20"),
        (lambda: altered(rolls_dice), "the same each time; Altered does not"),
        (lambda: altered(needs_memory), "CUDA out of memory"),  # is no bad model
        (lambda: altered(lambda z, ids: z * np.nan), "finite predictions, but .* Alt"),
        (lambda: PeftModel(make_model()), r"by that name, .*model.get_base_model\(\)"),
        (with_few_logits, r"logits of this .* are of 20 tokens"),
        (lambda: make_model().to("meta"), "model must hold its weights, .* 'meta'"),
        (half_on_meta, "model must hold its weights, .* 'meta'"),
    ],
)
def test_models_that_cannot_be_scored_are_refused(make, message):
    kinds = (ValueError, TypeError, torch.OutOfMemoryError)
    with torch.random.fork_rng(), pytest.raises(kinds, match=message):
        scorer_of(make(), make_tokenizer()).fit(TEXTS)


def test_a_loaded_model_needs_its_tokenizer():
    with pytest.raises(ValueError, match=r"tokenizer must be given .*BertForMaskedLM"):
        scorer_of(make_model()).fit(TEXTS)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[text\]'"):
        runpy.run_path(str(Path(sklearn_mpt.__file__).parent / "_text" / "__init__.py"))


def test_max_length_is_the_least_of_model_tokenizer_and_parameter():
    short = make_tokenizer(model_max_length=9)
    assert scorer_of(make_model(), short).fit().max_length_ == 9
    scorer = scorer_of(make_model(), short, max_length=11)
    assert scorer.fit().max_length_ == 11
    for max_length in (2, 513):
        with pytest.raises(ValueError, match=rf"lie in 3\.\.512, .* got {max_length}"):
            scorer.set_params(max_length=max_length).fit(TEXTS)


def test_a_model_of_another_dtype_is_copied_and_one_of_the_same_shared():
    model = make_model()
    pointer = next(model.parameters()).data_ptr()
    for dtype, shared in (("float32", True), ("auto", True), ("bfloat16", False)):
        scorer = scorer_of(model, make_tokenizer(), dtype=dtype, device="cpu")
        scorer.fit(TEXTS)
        mine = next(scorer._opened[0].model.parameters())
        assert (mine.data_ptr() == pointer) == shared
        assert next(model.parameters()).dtype == torch.float32
        assert np.isfinite(scorer.score_samples(TEXTS)).all()


def test_dtype_of_a_checkpoint(folder):
    for dtype in ("bfloat16", "float64"):
        scorer = scorer_of(folder, dtype=dtype).fit()
        assert scorer._opened[0].model.dtype == getattr(torch, dtype)


@pytest.mark.usefixtures("in_threads")
def test_global_torch_state_is_untouched(folder):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    before = torch.get_default_dtype(), torch.get_num_threads()
    scorer = scorer_of(folder, dtype="bfloat16", n_jobs=2, batch_tokens=64).fit(TEXTS)
    scorer.transform(TEXTS)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_head_that_mixes_positions_is_noticed():
    model = altered(lambda logits, ids: logits + logits.mean(dim=1, keepdim=True))
    scorer = scorer_of(model, make_tokenizer(), method="pll").fit()
    assert not scorer.uses_gathered_head_
    (score,) = scorer.score_samples(["a dog"])
    ids = torch.tensor([[2, 6, 8, 3]])
    total = 0
    for position in (1, 2):
        masked = ids.clone()
        masked[0, position] = 4
        with torch.no_grad():
            logits = model.eval()(masked).logits
        total += float(logits.log_softmax(-1)[0, position, ids[0, position]])
    assert np.isclose(score, total, rtol=1e-5)


def test_a_compiled_model_is_scored_as_the_model_itself():
    model = make_model()
    compiled = torch.compile(model, backend="eager")
    scores = [
        scorer_of(each, make_tokenizer()).fit().score_samples(TEXTS)
        for each in (compiled, model)
    ]
    assert np.array_equal(*scores)


class TokenizerOfShapes(transformers.PreTrainedTokenizerFast):
    """Describes the shapes of characters, as that of RoCBert does."""

    def __call__(self, *args, **kwargs):
        encoded = super().__call__(*args, **kwargs)
        return encoded | {"input_shape_ids": encoded["input_ids"]}


def test_a_tokenizer_that_tells_hidden_tokens_is_refused():
    model = transformers.RoCBertForMaskedLM(
        transformers.RoCBertConfig(
            **SIZES, shape_vocab_size=21, pronunciation_vocab_size=21
        )
    )
    tokenizer = make_tokenizer()
    tokenizer.__class__ = TokenizerOfShapes
    with pytest.raises(ValueError, match=r"but .* adds input_shape_ids, which may"):
        scorer_of(model, tokenizer).fit()


def test_texts_are_not_padded():
    model = altered(lambda logits, ids: logits * ids.shape[1])
    scorer = scorer_of(model, make_tokenizer(), method="pll").fit()
    alone = [scorer.score([text]) for text in TEXTS]
    np.testing.assert_allclose(scorer.score_samples(TEXTS), alone, rtol=1e-5)


@pytest.mark.parametrize("error", [MemoryError("full"), ImportError("protobuf")])
def test_errors_that_are_not_of_the_folder_are_passed_on(folder, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(transformers.AutoModelForMaskedLM, "from_pretrained", fail)
    with pytest.raises(type(error), match=str(error)):
        scorer_of(folder).fit()


# Forward passes: chunks of logits, memory and precision


def pll_scorer(model, **settings):
    return MPTScorer(model, make_tokenizer(), **{"method": "pll"} | settings).fit()


class Full(torch.nn.Module):
    """A model whose logits are computed for all tokens; memory may run out."""

    def __init__(self, most=np.inf, error=None, failed=None):
        super().__init__()
        weights = torch.randn(21, 21, generator=torch.Generator().manual_seed(0))
        self.weights = torch.nn.Parameter(weights)
        self.fails = lambda size: size > most and failed.append(size) is None
        self.error = error

    def forward(self, input_ids):
        if self.fails(input_ids.numel()):
            raise self.error
        seen = torch.nn.functional.one_hot(input_ids, 21).to(self.weights)
        return (seen.sum(1, keepdim=True) + seen) @ self.weights


@pytest.mark.parametrize("model", [make_model(), Full()])
def test_numbers_do_not_depend_on_chunks_of_logits(model, monkeypatch):
    expected = pll_scorer(model).score_samples(TEXTS)
    for n_entries in (1, 21 * 8):
        monkeypatch.setattr("sklearn_mpt._text.masked_lm.CHUNK_ENTRIES", n_entries)
        found = pll_scorer(model).score_samples(TEXTS)
        assert_allclose(found, expected, rtol=1e-5)


def test_half_precision_is_normalised_in_float32():
    scorer = pll_scorer(make_model(), dtype="bfloat16")
    exact = torch.tensor(scorer.token_scores(TEXTS[:1])[0].log_prob)
    assert (exact != exact.bfloat16().double()).any()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_out_of_memory_halves_the_batch_and_later_ones(error):
    failed = []
    scorer = pll_scorer(Full(40, error, failed))
    expected = pll_scorer(Full()).score_samples(TEXTS)
    assert_allclose(scorer.score_samples(TEXTS), expected, rtol=1e-5)
    n_failed = len(failed)
    assert n_failed
    assert_allclose(scorer.score_samples(TEXTS), expected, rtol=1e-5)
    assert len(failed) == n_failed


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), " the" * 40),  # a single row
        (RuntimeError("a bug"), TEXTS[0]),
    ],
)
def test_errors_that_smaller_batches_do_not_mend_are_raised(error, text):
    scorer = pll_scorer(Full(16, error, []))
    with pytest.raises(type(error), match=str(error)):
        scorer.score_samples([text])


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cpu, gpu = (pll_scorer(make_model(), device=name) for name in ("cpu", "cuda"))
    assert gpu.uses_gathered_head_
    assert_allclose(gpu.score_samples(TEXTS), cpu.score_samples(TEXTS), rtol=1e-4)
