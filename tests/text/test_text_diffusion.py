"""Masked diffusion models and other modules, bits per unit, and long documents."""

import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from text_models import (
    TEXTS,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)

from sklearn_mpt import DataCollatorForMPT, MaskedDiffusionLM, MPTScorer, mpt_loss


class Denoiser(torch.nn.Module):
    """Logits of tokens by the sum of those that are visible, and by the time."""

    def __init__(self, n_tokens=4):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(2, n_tokens, n_tokens, generator=generator)
        self.weights = torch.nn.Parameter(weights.double())

    def forward(self, input_ids, t):
        seen = torch.nn.functional.one_hot(input_ids, self.weights.shape[1]).double()
        positions = 1 + torch.arange(input_ids.shape[1])[:, None] / 4
        of_text = seen.sum(1, keepdim=True) @ self.weights[0]
        return positions * (of_text + t[:, None, None] * self.weights[1].sum(0))


class Plain(Denoiser):
    def forward(self, input_ids):
        return super().forward(input_ids, torch.zeros(len(input_ids)))


def make_scorer(module, **kwargs):
    tokenizer = make_letter_tokenizer()
    kwargs = {"dtype": "float64", **kwargs}
    return MPTScorer(module, tokenizer, **kwargs).fit()


def timed(time="share"):
    return MaskedDiffusionLM(Denoiser(), make_letter_tokenizer(), time=time)


def nelbo(ids, conditional):
    """Minus the sum over sizes of the mean over masks, by enumeration."""
    n, total = len(ids), 0.0
    for size in range(1, n + 1):
        scores = []
        for hidden in itertools.combinations(range(n), size):
            masked = [0 if i in hidden else token for i, token in enumerate(ids)]
            logits = conditional(torch.tensor([masked]), size / n)[0, :, 1:]
            log_prob = logits.log_softmax(-1)
            scores.append(np.mean([log_prob[i, ids[i] - 1].item() for i in hidden]))
        total -= np.mean(scores)
    return total


def test_the_nelbo_of_a_timed_model_is_that_of_all_masks():
    module = Denoiser()
    scorer = make_scorer(timed(), n_masks=100)
    for text, ids in {"a b c": [1, 2, 3], "c c": [3, 3]}.items():

        def conditional(masked, share):
            return module(masked, torch.tensor([share])).detach()

        found, error = scorer.score_samples([text], return_std=True)
        assert error == 0
        assert_allclose(-found[0], nelbo(ids, conditional), rtol=1e-6)


def test_time_can_be_what_a_callable_makes_of_the_share():
    shares = []

    def noise(share):
        shares.extend(share.tolist())
        return share

    expected = make_scorer(timed()).score_samples(["a b c"])
    assert_allclose(make_scorer(timed(noise)).score_samples(["a b c"]), expected)
    assert {round(share, 3) for share in shares} >= {0.333, 0.667, 1.0}
    with pytest.raises(ValueError, match="time must be 'share', a callable or None"):
        timed("noise")


def test_a_plain_module_is_taken_as_it_is():
    scorer = make_scorer(Plain(), n_masks=100)
    module = Plain()

    def conditional(masked, share):
        return module(masked).detach()

    found = scorer.score_samples(["a b c"])
    assert_allclose(-found[0], nelbo([1, 2, 3], conditional), rtol=1e-6)
    ordered = make_scorer(Plain(), method="ordered")
    texts = [" ".join(text) for text in itertools.product("abc", repeat=3)]
    assert_allclose(np.exp(ordered.score_samples(texts)).sum(), 1, rtol=1e-10)
    (fills,) = scorer.fill(["a [MASK] [MASK]"], n_samples=5, random_state=0)
    assert {token for fill in fills for token in fill.tokens} <= set("abc")


def test_a_module_that_needs_more_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"needs input_ids, t\. One that takes the"):
        make_scorer(Denoiser())
    with pytest.raises(TypeError, match=r"another torch\.nn\.Module"):
        make_scorer(len)


def test_a_padded_batch_has_the_shares_of_its_texts():
    seen = []

    class Net(torch.nn.Module):
        def forward(self, input_ids, t, attention_mask):
            seen.append((t.tolist(), attention_mask.sum(1).tolist()))
            return torch.zeros(*input_ids.shape, 21)

    tokenizer = make_tokenizer()
    model = MaskedDiffusionLM(Net(), tokenizer)
    batch = tokenizer(["the [MASK]", "a cat sat on mat"], padding=True)
    outputs = model(*(torch.tensor(batch[k]) for k in ("input_ids", "attention_mask")))
    assert seen == [([0.25, 0.0], [4, 7])]
    assert torch.isneginf(outputs.logits[..., tokenizer.mask_token_id]).all()


def test_it_is_trained_by_the_loss_of_masks():
    model = timed()
    tokenizer = make_letter_tokenizer()
    tokenizer.pad_token = "[MASK]"  # nothing is padded
    collate = DataCollatorForMPT(tokenizer, random_state=0)
    encoded = [tokenizer(text) for text in ("a b c", "c b a")]
    losses = []
    with torch.no_grad():
        for _ in range(300):
            batch = collate(encoded)
            losses.append(mpt_loss(model(batch["input_ids"]), batch["labels"]).item())
    truth = -make_scorer(timed(), n_masks=100).score(["a b c", "c b a"])
    error = np.std(losses) / np.sqrt(len(losses))
    assert abs(np.mean(losses) - truth) < 4 * error
    batch = collate(encoded)
    mpt_loss(model(batch["input_ids"]), batch["labels"]).backward()
    assert torch.isfinite(model.model.weights.grad).all()


def test_split_scores_each_block_on_its_own():
    scorer = make_scorer(JointModel(random_joint(3)), max_length=3, overflow="split")
    long, blocks = "a b c b b a c", ["a b c", "b b a", "c"]
    found = scorer.score_samples([long])[0]
    assert_allclose(found, scorer.score_samples(blocks).sum())
    (part,) = scorer.token_scores([long])
    assert_allclose(part.log_prob.sum(), found)
    assert part.tokens == long.split()


@pytest.mark.parametrize("overflow", ["split", "stride"])
def test_long_documents_have_errors(overflow):
    scorer = MPTScorer(
        make_model().eval(), make_tokenizer(), max_length=8, overflow=overflow
    ).fit()
    document = [" ".join(TEXTS)]
    log_prob, error = scorer.score_samples(document, return_std=True)
    assert 0 < error < -log_prob < np.inf
    assert np.isfinite(scorer.perplexity(document, return_std=True)).all()
