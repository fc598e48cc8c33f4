"""
======================================
Masked score curves of language models
======================================

A masked language model with random weights finds all tokens equally likely, whatever is
hidden, so its curve is flat. A trained model uses the context, which helps most if few
tokens are hidden, so its curve rises there.

This is the right half of Figure 5 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, for a tiny relative of BERT that is trained in
seconds on the descriptions of scikit-learn's data sets. ``--full`` scores sentences of
GLUE with ``bert-base-uncased``, as the paper does; it needs the package datasets.

It needs transformers (``pip install "sklearn-mpt[text]"``).
"""

import re
import sys
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

from sklearn_mpt import MPTScorer, mpt_curve

FULL = "--full" in sys.argv

# %%
# Texts
# -----
#
# A tenth of the sentences are validation sentences. The vocabulary is small (mostly
# single letters), so that a small model can learn it.

SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}


def read_sentences():
    """Return sentences about scikit-learn's data sets, in random order."""
    folder = files("sklearn.datasets.descr").iterdir()
    pages = sorted(page.read_text("utf-8") for page in folder if page.suffix == ".rst")
    parts = [part for page in pages for part in re.split(r"(?<=[.:])\s|\n\s*\n", page)]
    sentences = [" ".join(part.split()) for part in parts]
    prose = [text for text in sentences if len(re.findall("[a-z]{2,}", text)) >= 5]
    return np.random.default_rng(0).permutation(prose).tolist()


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=list(SPECIAL.values()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


# %%
# Model
# -----
#
# ModernBERT is BERT with relative positions, and is trained in fewer steps. After a
# warm-up with a sixth of the tokens hidden, the size of each mask is drawn uniformly,
# and its tokens share a weight of one: the objective is the mean of the curve.


def random_model(tokenizer):
    torch.manual_seed(0)
    special = dict.fromkeys(["cls_token_id", "sep_token_id", "bos_token_id"])
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        global_attn_every_n_layers=1,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=None,
        **special,
    )
    return ModernBertForMaskedLM(config)


def train(model, tokenizer, texts, n_steps=700, length=32, n_rows=32):
    """Train on random stretches of the texts, joined."""
    tokens = torch.tensor(tokenizer(" ".join(texts))["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=n_steps)
    for step in range(n_steps):
        start = torch.randint(len(tokens) - length, (n_rows, 1))
        rows = tokens[start + torch.arange(length)]
        size = torch.randint(1, length + 1, (n_rows, 1))
        if step < n_steps / 2:
            size[:] = length // 6
        mask = torch.rand(rows.shape).argsort(dim=1) < size
        seen = torch.where(mask, tokenizer.mask_token_id, rows)
        log_prob = model(input_ids=seen).logits.log_softmax(dim=-1)
        targets = log_prob.gather(2, rows[..., None])[..., 0]
        loss = -((targets * mask).sum(dim=1) / size[:, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


# %%
# Curves
# ------
#
# These are curves of validation sentences. As in the paper, areas are scaled to 512
# tokens for texts of any length. The model with random weights is slightly worse than a
# uniform guess, because it prefers some tokens at random.

if FULL:
    from datasets import load_dataset

    name = "bert-base-uncased"
    tokenizer = AutoTokenizer.from_pretrained(name)
    texts = load_dataset("glue", "cola", split="validation")["sentence"]
    config = AutoConfig.from_pretrained(name)
    language_models = {
        "random weights": AutoModelForMaskedLM.from_config(config),
        "trained": AutoModelForMaskedLM.from_pretrained(name),
    }
else:
    sentences = read_sentences()
    texts, training = sentences[:30], sentences[30:]
    tokenizer = train_tokenizer(sentences)  # which knows all letters
    language_models = {
        "random weights": random_model(tokenizer).eval(),
        "trained": train(random_model(tokenizer), tokenizer, training),
    }

uniform = -np.log(len(tokenizer))
print(f"Minus the logarithm of {len(tokenizer)} tokens: {uniform:.2f} nats")
curves = {}
for name, model in language_models.items():
    scorer = MPTScorer(model, tokenizer, n_masks=2, random_state=0).fit(texts)
    curves[name] = curve = mpt_curve(scorer, texts)
    low, high = curve.scores[[0, -1]]
    print(f"{name}: {low:.2f} nats per token with 1% hidden, {high:.2f} with 99%")
    print(f"    area {curve.area(512):.2f}, log-probability of a text {curve.lml:.2f}")

# %%
# The last lines are the areas in the paper for BERT and the sentences of CoLA. They
# cannot be compared with those above, because the vocabulary of BERT has 30522 pieces
# of words. Bands are 95% intervals over masks.

for name, area in {"random weights": -5283.52, "trained": -1657.68}.items():
    print(f"{name}: area {area}, in the paper")

figure, ax = plt.subplots(layout="constrained")
for name, curve in curves.items():
    (line,) = ax.plot(curve.mask_sizes, curve.scores, label=name)
    reach = 1.96 * curve.std_errors
    band = (curve.scores - reach, curve.scores + reach)
    ax.fill_between(curve.mask_sizes, *band, color=line.get_color(), alpha=0.3, lw=0)
ax.axhline(uniform, color="0.5", linestyle="--", label="all tokens equally likely")
ax.set(xlabel="Hidden tokens (%)", ylabel="Masked score (nats per token)")
ax.legend()
plt.show()
