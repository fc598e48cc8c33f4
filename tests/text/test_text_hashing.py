"""The hash of a model, by which scores on disk are told apart."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from numpy.testing import assert_allclose
from text_models import TEXTS, make_model, make_tokenizer

from sklearn_mpt import MaskedDiffusionLM, MPTScorer
from sklearn_mpt._text.hashing import hash_of


class Net(torch.nn.Module):
    """A denoiser of the tokens, with a buffer that is not saved."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(21))
        self.scale = scale
        self.register_buffer("shift", torch.zeros(21), persistent=False)

    def forward(self, input_ids, t):
        return self.scale * self.table[input_ids] * (1 + t[:, None, None]) + self.shift


class Doubled(Net):
    def forward(self, input_ids, t):
        return 2 * super().forward(input_ids, t)


class Halved(Net):
    def forward(self, input_ids, t):
        return 0.5 * super().forward(input_ids, t)


def shifted():
    net = Net()
    net.shift += torch.arange(21.0)
    return net


def hooked(factor):
    net = Net()
    net.register_forward_hook(lambda module, args, output: factor * output)
    return net


def diffusion(net=None, **kwargs):
    return MaskedDiffusionLM(net or Net(), make_tokenizer(), **kwargs)


def noise(scale):
    return lambda share: -scale * torch.log1p(-share / 2)


MODELS = {
    "plain": lambda: make_model().eval(),
    "heads": lambda: make_model(num_attention_heads=4).eval(),
    "eps": lambda: make_model(layer_norm_eps=0.5).eval(),
    "activation": lambda: make_model(hidden_act="relu").eval(),
    "diffusion": diffusion,
    "time": lambda: diffusion(time=noise(1.0)),
    "another time": lambda: diffusion(time=noise(3.0)),
    "schedule": lambda: diffusion(time=SimpleNamespace(noise=noise(1.0)).noise),
    "attribute": lambda: diffusion(Net(scale=3.0)),
    "buffer": lambda: diffusion(shifted()),
    "code": lambda: diffusion(Doubled()),
    "other code": lambda: diffusion(Halved()),
    "hook": lambda: diffusion(hooked(2.0)),
    "another hook": lambda: diffusion(hooked(3.0)),
}


def test_models_with_other_predictions_have_other_hashes():
    hashes = {name: hash_of(make()) for name, make in MODELS.items()}
    assert hashes.pop("schedule") == hashes["time"]
    assert len(set(hashes.values())) == len(hashes)


@pytest.mark.parametrize("name", MODELS)
def test_equal_models_have_one_hash(name):
    first, second = MODELS[name](), MODELS[name]()
    assert hash_of(first) == hash_of(second)
    scorer = MPTScorer(first, make_tokenizer()).fit()
    before = scorer._identity()
    scorer.score_samples(TEXTS)
    assert (
        scorer._identity()
        == before
        == MPTScorer(second, make_tokenizer()).fit()._identity()
    )


def test_a_hook_that_counts_calls_does_not_change_the_hash():
    calls, net = [], Net()
    net.register_forward_pre_hook(lambda module, args: calls.append(1))
    before = hash_of(net)
    calls.append(1)
    assert hash_of(net) == before


def test_the_version_of_the_code_counts(monkeypatch):
    before = hash_of(make_model())
    monkeypatch.setattr("transformers.__version__", "0")
    assert hash_of(make_model()) != before
    scorer = MPTScorer(diffusion(), make_tokenizer()).fit()
    before = scorer._identity()
    monkeypatch.setattr("sklearn_mpt._text.streaming.__version__", "0")
    assert scorer._identity() != before


def test_where_a_model_was_read_from_does_not_count(tmp_path):
    tokenizer = make_tokenizer()
    for name in "ab":
        make_model().save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    scorers = [MPTScorer(tmp_path / name, local_files_only=True).fit() for name in "ab"]
    scorers.append(pickle.loads(pickle.dumps(scorers[0])))
    assert len({scorer._identity() for scorer in scorers}) == 1


@pytest.mark.parametrize("other", [{"pad_token": "the"}, {"mask_token": "[UNK]"}])
def test_special_tokens_count(other):
    """The same tokens, of which others are never hidden, or stand for hidden ones."""
    kwargs = {"unk_token": "a"}
    one = MPTScorer(make_model(), make_tokenizer(**kwargs)).fit()
    two = MPTScorer(make_model(), make_tokenizer(**kwargs, **other)).fit()
    assert one._identity() != two._identity()


def test_other_values_have_other_hashes():
    values = [
        *(0, 0.0, "0", None, False, (0,), [0], {0: 0}, {0}, torch.zeros(1), slice(0)),
        *(torch.zeros(1, 1), torch.zeros(1).numpy(), torch.float32, slice(1), len),
    ]
    values += [torch.zeros(1).numpy()[0], object, ("", "0"), ("0", "")]
    hashes = {hash_of(value) for value in values}
    assert len(hashes) == len(values)
    loop = []
    loop.append(loop)
    assert hash_of(loop) == hash_of(loop)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("plain", "heads"),
        ("plain", "eps"),
        ("time", "another time"),
        ("diffusion", "buffer"),
    ],
)
def test_scores_of_another_model_are_not_taken(tmp_path, first, other):
    for name in (first, other, first):
        scorer = MPTScorer(MODELS[name](), make_tokenizer(), method="pll").fit()
        found = [s.log_prob for s in scorer.iter_scores(TEXTS, cache=tmp_path)]
        assert_allclose(found, scorer.score_samples(TEXTS), rtol=1e-5)
