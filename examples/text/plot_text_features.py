"""
==============================
Masked scores as text features
==============================

``MPTScorer`` turns a text into a few numbers: how well a masked language model predicts
its tokens at each of several mask rates. In this Pipeline, the numbers distinguish
sentences from the same sentences with shuffled letters, which counts of letters cannot.

The model is a tiny one that is trained in seconds on the descriptions of scikit-learn's
data sets. For real texts use a model such as ``MPTScorer("bert-base-uncased")``. The
example needs transformers (``pip install ".[text]"``).
"""

import re
from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

from sklearn_mpt import MPTScorer

# %%
# Texts
# -----
#
# The language model is trained on two thirds of the sentences. The others are used
# twice: unchanged, and with the letters of every word shuffled.

rng = np.random.default_rng(0)
folder = files("sklearn.datasets.descr").iterdir()
pages = sorted(page.read_text("utf-8") for page in folder if page.suffix == ".rst")
parts = [part for page in pages for part in re.split(r"(?<=[.:])\s|\n\s*\n", page)]
parts = [" ".join(part.split()) for part in parts]
sentences = [text for text in parts if len(re.findall("[a-z]{2,}", text)) >= 5]
rng.shuffle(sentences)
training, real = sentences[100:], sentences[:100]


def shuffle_letters(word):
    return "".join(rng.permutation(list(word)))


shuffled = [" ".join(map(shuffle_letters, text.split())) for text in real]
print("   ", real[1], "\n   ", shuffled[1])

# %%
# Language model
# --------------
#
# The tokenizer knows letters and frequent pairs of letters. The model is a small
# network, trained to predict a sixth of the tokens.

special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
backend = Tokenizer(models.BPE(unk_token="[UNK]"))
backend.normalizer = normalizers.BertNormalizer()
backend.pre_tokenizer = pre_tokenizers.Metaspace()
trainer = trainers.BpeTrainer(
    vocab_size=150,
    initial_alphabet=sorted(set("".join(sentences))),
    special_tokens=list(special.values()),
    show_progress=False,
)
backend.train_from_iterator(training, trainer)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)

torch.manual_seed(0)
config = ModernBertConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    global_attn_every_n_layers=1,
    initializer_range=0.1,
    pad_token_id=tokenizer.pad_token_id,
    **dict.fromkeys(["cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"]),
)
language_model = ModernBertForMaskedLM(config)
optimizer = torch.optim.AdamW(language_model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=500)
tokens = torch.tensor(tokenizer(" ".join(training))["input_ids"])
for _ in range(500):
    rows = tokens[torch.randint(len(tokens) - 32, (32, 1)) + torch.arange(32)]
    mask = torch.rand(rows.shape) < 1 / 6
    seen = torch.where(mask, tokenizer.mask_token_id, rows)
    labels = torch.where(mask, rows, -100)
    loss = language_model(input_ids=seen, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

# %%
# Pipeline
# --------
#
# Both versions of a sentence are in the same fold of the cross-validation.

rates = [0.05, 0.2, 0.5, 0.8]
scorer = MPTScorer(
    language_model.eval(), tokenizer, mask_rates=rates, n_masks=4, random_state=0
)
by_scores = make_pipeline(scorer, StandardScaler(), LogisticRegression())
by_letters = make_pipeline(CountVectorizer(analyzer="char"), LogisticRegression())

texts = real + shuffled
is_real = np.repeat([True, False], 100)
folds = {"cv": GroupKFold(5), "groups": np.tile(np.arange(100), 2)}
accuracies = {}
for name, pipeline in [("letters", by_letters), ("masked scores", by_scores)]:
    accuracies[name] = cross_val_score(pipeline, texts, is_real, **folds)
    mean, error = accuracies[name].mean(), accuracies[name].std(ddof=1) / np.sqrt(5)
    print(f"Accuracy by {name}: {mean:.3f} ± {error:.3f}")

# %%
# Which of the four scores distinguishes the two kinds of sentences? Context helps most
# if most of it is visible: there the scores of a sentence and of its shuffled version
# differ most. The left panel shows the accuracy of classifiers with one score and with
# all four, with standard errors over folds. In the right panel, boxes contain half of
# the sentences, middle lines are medians, and circles are sentences beyond the
# whiskers.

scores = scorer.fit(texts).transform(texts)
of_scores = make_pipeline(StandardScaler(), LogisticRegression())
names = [f"{rate:.0%}" for rate in rates]
for i, name in enumerate(names):
    accuracies[name] = cross_val_score(of_scores, scores[:, [i]], is_real, **folds)
shown = [*names, "masked scores"]
values = np.array([accuracies[name] for name in shown])
error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
differences = scores[is_real] - scores[~is_real]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.errorbar([*names, "all four"], values.mean(axis=1), error, fmt="o", capsize=4)
left.axhline(0.5, color="0.5", linestyle="--", label="guessing, and letters")
left.set(xlabel="Hidden tokens", ylabel="Accuracy in cross-validation")
left.legend(loc="lower left")
right.boxplot(differences, tick_labels=names, medianprops={"color": "C1"})
right.axhline(0, color="0.5", linewidth=0.8)
right.set(xlabel="Hidden tokens", ylabel="Sentence minus shuffled\n(nats per token)")
plt.show()
