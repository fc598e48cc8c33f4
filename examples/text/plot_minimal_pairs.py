"""
==========================================
Minimal pairs: what a language model knows
==========================================

`BLiMP <https://arxiv.org/abs/1912.00582>`_ asks a language model which sentence of a
minimal pair is the more probable: "the key to the cabinets **is** old" or "the key to
the cabinets **are** old". Accuracy counts the answers. The differences of the scores
themselves say more: how sure the model is, with a standard error over the pairs, and,
token by token, where it sees the mistake.

The pairs here are made by a small grammar, and so are the sentences that two small
models are trained on: one for long, one for a tenth of it.

It needs ``pip install "sklearn-mpt[text]"``.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from sklearn_mpt import DataCollatorForMPT, MPTScorer, compare_lml, mpt_loss

# %%
# Pairs
# -----
#
# Each paradigm has a rule that its second sentences break in one word.

NOUNS = {
    "key": "keys",
    "dog": "dogs",
    "cabinet": "cabinets",
    "child": "children",
    "car": "cars",
    "tree": "trees",
}
BE = ("is", "are")
THIS = ("this", "these")
rng = np.random.default_rng(0)


def noun(number):
    singular = rng.choice(list(NOUNS))
    return (singular, NOUNS[singular])[number]


def adjective():
    return rng.choice(["old", "red", "small", "here", "lost"])


def agreement():
    """A verb agrees with its subject."""
    n = rng.integers(2)
    start = f"the {noun(n)}"
    end = adjective()
    return f"{start} {BE[n]} {end}", f"{start} {BE[1 - n]} {end}"


def attraction():
    """A verb agrees with its subject, not with the nearer noun."""
    n = rng.integers(2)
    place = rng.choice(["near", "behind", "with"])
    start = f"the {noun(n)} {place} the {noun(1 - n)}"
    end = adjective()
    return f"{start} {BE[n]} {end}", f"{start} {BE[1 - n]} {end}"


def determiner():
    """A determiner agrees with its noun."""
    n = rng.integers(2)
    end = f"{noun(n)} {BE[n]} {adjective()}"
    return f"{THIS[n]} {end}", f"{THIS[1 - n]} {end}"


PARADIGMS = (agreement, attraction, determiner)
pairs = {make.__name__: [make() for _ in range(60)] for make in PARADIGMS}
sentences = [make()[0] for _ in range(1000) for make in PARADIGMS]
for name, examples in pairs.items():
    print(f"{name}: {examples[0][0]} | {examples[0][1]}")

# %%
# Models
# ------
#
# Trained at the uniform mask rate in a plain loop of torch: the collator and the loss
# do not need a ``Trainer``.

words = sorted({word for text in sentences for word in text.split()})
vocabulary = {word: i for i, word in enumerate(["[PAD]", "[MASK]", *words])}
backend = Tokenizer(models.WordLevel(vocabulary))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]"
)


def train(n_steps):
    torch.manual_seed(0)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=16,
        )
    )
    collate = DataCollatorForMPT(tokenizer, random_state=0)
    encoded = [tokenizer(text) for text in sentences]
    loader = torch.utils.data.DataLoader(
        encoded, batch_size=64, shuffle=True, collate_fn=collate
    )
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=n_steps)
    while schedule.last_epoch < n_steps:
        for batch in loader:
            labels = batch.pop("labels")
            optimizer.zero_grad()
            mpt_loss(model(**batch), labels).backward()
            optimizer.step()
            schedule.step()
            if schedule.last_epoch == n_steps:
                break
    return model.eval()


language_models = {"40 steps": train(40), "400 steps": train(400)}

# %%
# Accuracies and differences
# --------------------------
#
# ``method="chain"`` predicts one word after the other in random orders, and so scores a
# sentence by an estimate of its log-probability. The two sides of the pairs are
# compared as two models of a pair are: each pipeline scores one of them, and
# :func:`~sklearn_mpt.compare_lml` pairs the scores. The standard error is over pairs.


def side(scorer, index):
    choose = FunctionTransformer(lambda pairs: [pair[index] for pair in pairs])
    return make_pipeline(choose, scorer).fit(pairs["agreement"])


scorers = {
    name: MPTScorer(model, tokenizer, method="chain", n_masks=20, random_state=0).fit()
    for name, model in language_models.items()
}
differences = {}
for name, scorer in scorers.items():
    sides = {"good": side(scorer, 0), "bad": side(scorer, 1)}
    for paradigm, examples in pairs.items():
        table = compare_lml(sides, examples, random_state=0)
        rows = dict(zip(table.names, table.row_lml, strict=True))
        differences[name, paradigm] = rows["good"] - rows["bad"]
        accuracy = np.mean(rows["good"] > rows["bad"])
        lead, error = -table.lml_diff[1], table.lml_diff_std_error[1]
        print(
            f"{name}, {paradigm}: {accuracy:.0%} right, {table.names[0]} sentences "
            f"ahead by {lead:.2f} ± {error:.2f} nats"
        )

# %%
# Which paradigm did longer training help? The two models score the same pairs, so the
# difference of their differences is paired, too.

for paradigm in pairs:
    gain = differences["400 steps", paradigm] - differences["40 steps", paradigm]
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    print(f"{paradigm}: {gain.mean():.2f} ± {error:.2f} nats gained")

# %%
# And how much better does it predict sentences without mistakes? Here the models are
# compared on the same texts, and on the same orders of their words.

print(
    compare_lml(
        scorers,
        [good for examples in pairs.values() for good, _ in examples],
        random_state=0,
    )
)

# %%
# Where the model sees it
# -----------------------
#
# On the left, the differences from above, with intervals of 95% over pairs. On the
# right, the log-probability of each word given all others (``method="pll"``), in the
# good sentence and in the bad one, by the model of 400 steps: words that the others
# give away are near 0, and the wrong verb is the least likely word.

good, bad = pairs["attraction"][0]
scorer = MPTScorer(language_models["400 steps"], tokenizer, method="pll").fit()
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), layout="constrained", width_ratios=[1, 1.5]
)
for offset, name in zip((-0.2, 0.2), language_models, strict=True):
    values = np.array([differences[name, paradigm] for paradigm in pairs])
    left.bar(
        np.arange(len(pairs)) + offset,
        values.mean(axis=1),
        width=0.4,
        yerr=1.96 * values.std(axis=1, ddof=1) / np.sqrt(values.shape[1]),
        label=name,
    )
left.set_xticks(range(len(pairs)), pairs)
left.set_ylabel("Good minus bad sentence (nats)")
left.legend()
for text, color, marker in ((good, "C2", "o"), (bad, "C3", "X")):
    (part,) = scorer.token_scores([text])
    style = {"color": color, "marker": marker, "markersize": 7, "linestyle": ":"}
    right.plot(range(len(part)), part.log_prob, label=text, **style)
right.axhline(0, color="0.5", linewidth=0.8)
right.set_xticks(
    range(len(part)),
    [
        f"{a}, {b}" if a != b else a
        for a, b in zip(good.split(), bad.split(), strict=True)
    ],
)
right.set_ylabel("Log-probability given all others (nats)")
right.legend(loc="lower left")
plt.show()
