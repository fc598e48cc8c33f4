"""Forward passes: heads on hidden tokens alone, memory, and precision."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from text_models import ARCHITECTURES, TEXTS, make_model, make_tokenizer

from sklearn_mpt import MPTScorer


def make_scorer(model, **settings):
    return MPTScorer(model, make_tokenizer(), **{"method": "pll"} | settings).fit()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_scored_by_the_gathered_head(architecture):
    model = make_model(architecture)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scorer = make_scorer(model)
    assert scorer.uses_gathered_head_
    assert np.isfinite(scorer.score(TEXTS))
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


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
    expected = make_scorer(model).score_samples(TEXTS)
    for n_entries in (1, 21 * 8):
        monkeypatch.setattr("sklearn_mpt._text.masked_lm.CHUNK_ENTRIES", n_entries)
        found = make_scorer(model).score_samples(TEXTS)
        assert_allclose(found, expected, rtol=1e-5)


def test_half_precision_is_normalised_in_float32():
    scorer = make_scorer(make_model(), dtype="bfloat16")
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
    scorer = make_scorer(Full(40, error, failed))
    expected = make_scorer(Full()).score_samples(TEXTS)
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
    scorer = make_scorer(Full(16, error, []))
    with pytest.raises(type(error), match=str(error)):
        scorer.score_samples([text])


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cpu, gpu = (make_scorer(make_model(), device=name) for name in ("cpu", "cuda"))
    assert gpu.uses_gathered_head_
    assert_allclose(gpu.score_samples(TEXTS), cpu.score_samples(TEXTS), rtol=1e-4)
