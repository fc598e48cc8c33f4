"""
======================================
Masked score curves of language models
======================================

A masked language model with random weights finds all tokens equally likely, whatever is
hidden, so its curve is flat. A trained model uses the context, which helps most if few
tokens are hidden, so its curve rises there.

This is the right half of Figure 5 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_, for a tiny relative of BERT that is trained in
seconds on the descriptions of scikit-learn's data sets. ``--full`` scores the four
corpora of Table 2 with ``bert-base-uncased``, as the paper does; it needs the package
datasets. ``--full FOLDER`` reads the corpora from files of this folder, as many as it
has: ``CoLA``, ``AX``, ``MRPC`` and ``QNLI``, each ending in ``.txt`` with a text in
each line, or in ``.tsv`` with the column names of GLUE. If the folder has a folder
``bert-base-uncased``, the model is loaded from there. ``--texts N`` takes N texts each.

It needs transformers (``pip install ".[text]"``).
"""

import argparse
import csv
import re
import sys
from importlib.resources import files
from pathlib import Path

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

parser = argparse.ArgumentParser()
parser.add_argument("--full", nargs="?", const="", default=None, metavar="FOLDER")
parser.add_argument("--texts", type=int, default=None)
options = parser.parse_args(sys.argv[1:])
FULL = options.full is not None

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

# In Table 2 of the paper: areas with random and with trained weights.
TABLE = {
    "CoLA": (-5283.52, -1657.68),
    "AX": (-5245.31, -1715.75),
    "MRPC": (-5362.21, -1773.45),
    "QNLI": (-5343.98, -1770.28),
}
# Of pairs, the first text is scored.
COLUMNS = {"sentence", "sentence1", "#1 String", "premise", "question"}


def texts_of(table):
    """Return the texts of a table of GLUE, by the first column that holds some."""
    column = next(name for name in table if name in COLUMNS)
    return list(table[column])


def read_corpus(name, folder):
    """Return the texts of a corpus of Table 2, or None if the folder has none."""
    if not folder:
        from datasets import load_dataset

        split = "test" if name == "AX" else "validation"
        return texts_of(load_dataset("glue", name.lower(), split=split).to_dict())
    paths = [
        path for path in Path(folder).iterdir() if path.stem.lower() == name.lower()
    ]
    for path in paths:
        if path.suffix == ".txt":
            return path.read_text("utf-8").splitlines()
        if path.suffix == ".tsv":
            with path.open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file, dialect="excel-tab", quoting=3))
            return texts_of({key: [row[key] for row in rows] for key in rows[0]})
    return None


if FULL:
    name = "bert-base-uncased"
    if options.full and (Path(options.full) / name).is_dir():
        name = str(Path(options.full) / name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(name)
    language_models = {
        "random weights": AutoModelForMaskedLM.from_config(config).eval(),
        "trained": AutoModelForMaskedLM.from_pretrained(name),
    }
    corpora = {corpus: read_corpus(corpus, options.full) for corpus in TABLE}
    corpora = {
        corpus: texts[: options.texts]
        for corpus, texts in corpora.items()
        if texts is not None
    }
else:
    sentences = read_sentences()
    tokenizer = train_tokenizer(sentences)  # which knows all letters
    language_models = {
        "random weights": random_model(tokenizer).eval(),
        "trained": train(random_model(tokenizer), tokenizer, sentences[30:]),
    }
    corpora = {"descriptions": sentences[:30]}

uniform = -np.log(len(tokenizer))
print(f"Minus the logarithm of {len(tokenizer)} tokens: {uniform:.2f} nats")
curves = {}
for corpus, texts in corpora.items():
    for place, (name, model) in enumerate(language_models.items()):
        scorer = MPTScorer(model, tokenizer, n_masks=2, random_state=0).fit(texts)
        curves[corpus, name] = curve = mpt_curve(scorer, texts)
        low, high = curve.scores[[0, -1]]
        print(
            f"{corpus}, {name}: {len(texts)} texts, mean per text {curve.lml:.2f} nats"
        )
        print(f"    nats per token: {low:.2f} with 1% hidden, {high:.2f} with 99%")
        paper = f", in the paper {TABLE[corpus][place]}" if corpus in TABLE else ""
        print(f"    area {curve.area(512):.2f}{paper}")

# %%
# The last lines are the areas of the paper, for BERT. They cannot be compared with
# those above, because the vocabulary of BERT has 30522 pieces of words. Bands are 95%
# intervals over masks.

for corpus, areas in TABLE.items():
    print(f"{corpus}: areas {areas[0]} and {areas[1]} in the paper")

figure, axes = plt.subplots(
    1,
    len(corpora),
    figsize=(max(6.4, 4.2 * len(corpora)), 4.8),
    layout="constrained",
    sharey=True,
    squeeze=False,
)
for ax, corpus in zip(axes[0], corpora, strict=True):
    for name in language_models:
        curve = curves[corpus, name]
        (line,) = ax.plot(curve.mask_sizes, curve.scores, label=name)
        reach = 1.96 * curve.std_errors
        band = (curve.scores - reach, curve.scores + reach)
        ax.fill_between(
            curve.mask_sizes, *band, color=line.get_color(), alpha=0.3, lw=0
        )
    ax.axhline(uniform, color="0.5", linestyle="--", label="all tokens equally likely")
    ax.set(xlabel="Hidden tokens (%)", title=corpus)
axes[0, 0].set_ylabel("Masked score (nats per token)")
axes[0, 0].legend()
plt.show()
