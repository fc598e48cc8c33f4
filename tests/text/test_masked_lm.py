import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from text_models import ARCHITECTURES, TEXTS, make_model, make_tokenizer

from sklearn_mpt import MPTScorer
from sklearn_mpt._text import masked_lm as _masked_lm
from sklearn_mpt._text.masked_lm import MaskedLM, TokenBatch, view_of

MASK = 4


def make_batch(with_mask=True):
    """Three rows, one padded, with some tokens hidden and some of them targets."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 20, size=(3, 7))
    ids[:, 0], ids[:, 6] = 2, 3
    attention = np.ones_like(ids)
    ids[2, 4:], attention[2, 4:] = 0, 0
    hidden = np.zeros(ids.shape, dtype=bool)
    hidden[[0, 0, 1, 2, 2], [1, 4, 2, 1, 3]] = True
    target = hidden.copy()
    target[0, 4] = False
    return TokenBatch({"input_ids": ids, "attention_mask": attention}, hidden, target)


def by_hand(model, batch):
    """Log-probabilities of the targets, each row on its own.

    Padded rows stay so: not every model ignores padding in all versions.
    """
    log_prob = []
    for row in range(len(batch)):
        inputs = {k: torch.tensor(v[row : row + 1]) for k, v in batch.inputs.items()}
        ids = inputs["input_ids"]
        inputs["input_ids"] = ids.clone()
        inputs["input_ids"][0, batch.hidden[row]] = MASK
        with torch.no_grad():
            logits = view_of(model)(**inputs).logits[0]
        positions = batch.target[row].nonzero()[0]
        log_prob += logits.log_softmax(-1)[positions, ids[0, positions]].tolist()
    return log_prob


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gathered_head_gives_what_full_logits_give(architecture):
    model = make_model(architecture).double()
    expected = by_hand(model, make_batch())
    for gathered in (True, False):
        language_model = MaskedLM(view_of(model), MASK, 4096, gathered)
        assert_allclose(language_model.log_prob(make_batch()), expected, rtol=1e-8)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_scored_by_the_gathered_head(architecture):
    model = make_model(architecture)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scorer = MPTScorer(model, make_tokenizer(), method="pll").fit()
    assert scorer.uses_gathered_head_
    together = scorer.score_samples(TEXTS)
    alone = [scorer.score_samples([text])[0] for text in TEXTS]
    assert_allclose(together, alone, rtol=1e-4)
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_view_shares_tensors_and_leaves_the_mode_alone():
    model = make_model()
    view = view_of(model)
    assert model.training
    assert not any(module.training for module in view.modules())
    pairs = zip(model.parameters(), view.parameters(), strict=True)
    assert all(mine is shared for mine, shared in pairs)


def test_numbers_do_not_depend_on_chunks_of_logits(monkeypatch):
    language_model = MaskedLM(view_of(make_model()), MASK, 4096)
    expected = language_model.log_prob(make_batch())
    for gathered in (True, False):
        language_model.gathered = gathered
        for n_bytes in (1, 4 * 21 * 8):
            monkeypatch.setattr(_masked_lm, "LOGIT_BYTES", n_bytes)
            assert_allclose(language_model.log_prob(make_batch()), expected, rtol=1e-5)


def test_half_precision_is_normalised_in_float32():
    model = make_model().bfloat16()
    exact = MaskedLM(view_of(model), MASK, 4096).log_prob(make_batch())
    assert exact.dtype == torch.float32
    rounded = exact.bfloat16().float()
    assert (exact != rounded).any()


class OutOfMemory:
    """Wrap a forward: it fails for more than so many tokens, and counts."""

    def __init__(self, forward, most, error):
        self.forward, self.most, self.error = forward, most, error
        self.n_failed = 0

    def __call__(self, input_ids, attention_mask=None):
        if input_ids.numel() > self.most:
            self.n_failed += 1
            raise self.error
        return self.forward(input_ids=input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_out_of_memory_halves_the_batch_and_later_ones(error):
    language_model = MaskedLM(view_of(make_model()), MASK, 4096, gathered=False)
    expected = language_model.log_prob(make_batch())
    forward = OutOfMemory(language_model.model.forward, 14, error)
    language_model.model.forward = forward
    for _ in range(2):
        assert_allclose(language_model.log_prob(make_batch()), expected, rtol=1e-5)
    assert forward.n_failed == 1
    assert language_model.batch_tokens == 10


def test_out_of_memory_with_a_single_row_is_an_error():
    language_model = MaskedLM(view_of(make_model()), MASK, 4096, gathered=False)
    error = torch.OutOfMemoryError("CUDA out of memory")
    language_model.model.forward = OutOfMemory(None, 1, error)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        language_model.log_prob(make_batch())


def test_other_errors_are_not_taken_for_out_of_memory():
    language_model = MaskedLM(view_of(make_model()), MASK, 4096, gathered=False)
    language_model.model.forward = OutOfMemory(None, 1, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        language_model.log_prob(make_batch())
    assert language_model.model.forward.n_failed == 1


def load_bert():
    return view_of(make_model())


def test_a_checkpoint_is_pickled_in_place_of_the_model():
    language_model = MaskedLM(load_bert(), MASK, 4096, checkpoint=load_bert)
    data = pickle.dumps(language_model)
    assert len(data) < 1000 < len(pickle.dumps(language_model.model))
    first, second = pickle.loads(data), pickle.loads(data)
    assert first.model is second.model  # loaded once
    batch = make_batch()
    assert_array_equal(first.log_prob(batch), language_model.log_prob(batch))


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    settings = {"method": "pll", "n_masks": 2}
    cpu = MPTScorer(make_model(), make_tokenizer(), device="cpu", **settings).fit(TEXTS)
    gpu = MPTScorer(make_model(), make_tokenizer(), device="cuda", **settings).fit(
        TEXTS
    )
    assert gpu.uses_gathered_head_
    assert_allclose(gpu.score_samples(TEXTS), cpu.score_samples(TEXTS), rtol=1e-4)
