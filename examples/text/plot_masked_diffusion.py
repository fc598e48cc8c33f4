"""
==================================================
Masked diffusion and left-to-right models, in bits
==================================================

A masked diffusion language model, such as LLaDA or MDLM, is trained to predict masked
tokens at every mask rate, and writes texts by filling in masks. It is usually evaluated
by the NELBO, which is minus a lower bound of the log-probability of a text. The score
of `~sklearn_mpt.MPTScorer` is minus the NELBO, with a standard error.
`~sklearn_mpt.MPTScorer` also computes the log-probability in one order of the tokens,
which is exact.

In this example, a small diffusion model is trained on sentences of a simulated grammar,
and compared with a left-to-right model of the same size.

It needs ``pip install ".[text]"``.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import logsumexp
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sklearn_mpt import DataCollatorForMPT, MaskedDiffusionLM, MPTScorer, mpt_loss

# %%
# Sentences of known probability
# ------------------------------
#
# Sentences have eight words. Articles and verbs agree with their nouns in number,
# adjectives suit the noun, and adverbs suit the verb. All sentences are equally
# probable, so the smallest possible number of bits per word is known.

ARTICLES = {"singular": ["a", "this"], "plural": ["these", "some"]}
NOUNS = {
    "animal": {"singular": ["cat", "dog", "fox"], "plural": ["cats", "dogs", "foxes"]},
    "thing": {"singular": ["cup", "lamp", "box"], "plural": ["cups", "lamps", "boxes"]},
}
ADJECTIVES = {"animal": ["hungry", "shy", "old"], "thing": ["broken", "blue", "old"]}
VERBS = {"singular": ["sees", "finds", "hides"], "plural": ["see", "find", "hide"]}
ADVERBS = [["clearly", "often"], ["early", "often"], ["quietly", "well"]]
rng = np.random.default_rng(0)


def draw_phrase(number):
    kind = rng.choice(list(NOUNS))
    parts = ARTICLES[number], ADJECTIVES[kind], NOUNS[kind][number]
    return [str(rng.choice(part)) for part in parts]


def draw_sentence():
    first, second = rng.choice(list(VERBS), 2)
    verb = rng.integers(3)
    words = [*draw_phrase(first), VERBS[first][verb], *draw_phrase(second)]
    return " ".join([*words, str(rng.choice(ADVERBS[verb]))])


def is_phrase(article, adjective, noun):
    return any(
        article in ARTICLES[number]
        and adjective in ADJECTIVES[kind]
        and noun in NOUNS[kind][number]
        for kind in NOUNS
        for number in ARTICLES
    )


def is_sentence(text):
    *subject, verb, article, adjective, noun, adverb = text.split()
    number = "singular" if subject[0] in ARTICLES["singular"] else "plural"
    return (
        is_phrase(*subject)
        and is_phrase(article, adjective, noun)
        and verb in VERBS[number]
        and adverb in ADVERBS[VERBS[number].index(verb)]
    )


N_SENTENCES = (2 * 2 * 2 * 3 * 3) ** 2 * 3 * 2
LENGTH = 8
least_bits = np.log2(N_SENTENCES) / LENGTH
texts = [draw_sentence() for _ in range(4000)]
held_out = [draw_sentence() for _ in range(100)]
print(texts[0], texts[1], sep="\n")
print(f"{N_SENTENCES} sentences: {least_bits:.3f} bits per word at best")

# %%
# Two models of one size
# ----------------------
#
# Both are transformers of two layers. The denoiser attends to all words, and also takes
# the time t, which is the share of words that are masked. The other model attends to
# earlier words only, and predicts the next one.

words = sorted({word for text in texts for word in text.split()})
vocabulary = {w: i for i, w in enumerate(["[PAD]", "[MASK]", *words])}
backend = Tokenizer(models.WordLevel(vocabulary))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]"
)


class Transformer(torch.nn.Module):
    def __init__(self, is_causal, width=64):
        super().__init__()
        self.is_causal = is_causal
        self.embedding = torch.nn.Embedding(len(vocabulary), width)
        self.positions = torch.nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.time = torch.nn.Linear(1, width)
        layer = torch.nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, len(vocabulary))

    def forward(self, input_ids, t):
        states = self.embedding(input_ids) + self.positions[: input_ids.shape[1]]
        states = states + self.time(t[:, None])[:, None]
        mask = None
        if self.is_causal:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(len(states[0]))
        return self.head(self.layers(states, mask=mask))


torch.manual_seed(0)
denoiser, causal = Transformer(is_causal=False), Transformer(is_causal=True)


def train(model, loss_of, n_steps=600):
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, n_steps)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss_of(
            [tokenizer(texts[i]) for i in rng.integers(len(texts), size=64)]
        ).backward()
        optimizer.step()
        schedule.step()
    model.eval()


# %%
# The denoiser is trained by `~sklearn_mpt.mpt_loss`, through the adapter that calls it
# with ids and time, `~sklearn_mpt.MaskedDiffusionLM`.

diffusion = MaskedDiffusionLM(denoiser, tokenizer)
collate = DataCollatorForMPT(tokenizer, random_state=0)


def loss_of_masks(batch):
    batch = collate(batch)
    return mpt_loss(diffusion(batch["input_ids"]), batch["labels"])


def next_word_log_prob(ids):
    """Log-probabilities of the words of texts, from left to right; the mask starts."""
    start = torch.full((len(ids), 1), tokenizer.mask_token_id)
    logits = causal(torch.cat([start, ids[:, :-1]], 1), torch.zeros(len(ids)))
    return logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]


def loss_of_next_words(batch):
    ids = torch.tensor([encoded["input_ids"] for encoded in batch])
    return -next_word_log_prob(ids).sum(1).mean()


train(diffusion, loss_of_masks)
train(causal, loss_of_next_words)

# %%
# Bits per word
# -------------
#
# The NELBO of the denoiser is the mean over orders of its bits in one order. Each order
# is a model of its own, whose bits can be computed exactly, as from left to right. The
# mixture of orders is another model, and needs fewer bits than the mean.

bits = {}
bits_per_nat = 1 / (np.log(2) * LENGTH)
scorer = MPTScorer(diffusion, tokenizer, random_state=0).fit()
log_prob, errors = scorer.score_samples(held_out, return_std=True)
bits["NELBO"] = -log_prob.mean() * bits_per_nat
error = np.linalg.norm(errors) / len(held_out) * bits_per_nat
ordered = MPTScorer(diffusion, tokenizer, method="ordered").fit()
bits["order: left to right"] = -ordered.score(held_out) * bits_per_nat
one_order_each = [
    MPTScorer(diffusion, tokenizer, method="chain", n_masks=1, random_state=seed)
    .fit()
    .score_samples(held_out)
    for seed in range(16)
]
mixture = logsumexp(one_order_each, axis=0) - np.log(len(one_order_each))
bits["mixture of 16 orders"] = -mixture.mean() * bits_per_nat
with torch.no_grad():
    ids = torch.tensor([tokenizer(text)["input_ids"] for text in held_out])
    left_to_right = next_word_log_prob(ids).sum(1).mean().item()
bits["left-to-right model"] = -left_to_right * bits_per_nat
for name, value in bits.items():
    print(f"{name:22s} {value:.3f} bits per word")
print(f"standard error of the NELBO: {error:.4f}")

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
names = list(bits)
axis.barh(names, [bits[name] - least_bits for name in names], color="C0")
axis.errorbar(bits["NELBO"] - least_bits, 0, xerr=1.96 * error, color="k", capsize=3)
axis.invert_yaxis()
axis.set(xlabel="Bits per word above the entropy of the sentences")

# %%
# Sentences written by both
# -------------------------
#
# `~sklearn_mpt.MPTScorer.fill` writes texts by filling in masks one after the other,
# here in random order.


def write_left_to_right(n_texts):
    ids = torch.full((n_texts, LENGTH + 1), tokenizer.mask_token_id)
    for position in range(LENGTH):
        logits = causal(ids[:, : position + 1], torch.zeros(n_texts))[:, -1]
        ids[:, position + 1] = torch.multinomial(logits.softmax(-1), 1)[:, 0]
    return [tokenizer.decode(row[1:]) for row in ids]


blank = " ".join([tokenizer.mask_token] * LENGTH)
(fills,) = scorer.fill([blank], 200, random_state=0)
samples = [fill.text for fill in fills]
with torch.no_grad():
    others = write_left_to_right(200)
for name, written in {"denoiser": samples, "left-to-right model": others}.items():
    print(
        f"{name}: {np.mean([is_sentence(text) for text in written]):.0%} are sentences"
    )
print(*samples[:3], sep="\n")
plt.show()
