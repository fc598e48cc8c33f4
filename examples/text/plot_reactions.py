r"""
========================================
Chemical reactions by a pre-trained BERT
========================================

A masked language model that was trained on 1.3 million chemical reactions comes with
the package rxnmapper (MIT licence; `Schwaller et al., 2021
<https://doi.org/10.1126/sciadv.abe4166>`_). It is an ALBERT, a BERT whose twelve layers
share their weights, and was trained with 15% of the tokens hidden. Its texts are
reactions as SMILES strings: reactants, ``>>``, product.

This example draws Figure 5 and Table 2 of `Moreno-Muñoz et al. (2023)
<https://arxiv.org/abs/2306.00520>`_ with it, shows what each token contributes, asks
which score finds corrupted products, and trains on.

It needs ``pip install ".[text]"`` and, for the weights, ``pip install
--no-deps rxnmapper==0.4.3``. With ``--bert`` it takes the BERT of rxnfp 0.1.0 in place
of the ALBERT.
"""

import importlib.util
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

from sklearn_mpt import DataCollatorForMPT, MPTScorer, mpt_curve, mpt_loss

if "--bert" in sys.argv:
    package, name = "rxnfp", "bert_pretrained"
    config_class, model_class = BertConfig, BertForMaskedLM
else:
    package, name = "rxnmapper", "albert_heads_8_uspto_all_1310k"
    config_class, model_class = AlbertConfig, AlbertForMaskedLM
spec = importlib.util.find_spec(package)
if spec is None:
    raise SystemExit(f"This example is skipped: it needs the weights in {package}.")
folder = Path(spec.submodule_search_locations[0]) / "models/transformers" / name

# %%
# Model and tokenizer
# -------------------
#
# The package holds weights and a vocabulary, from which a tokenizer is built. A token
# is an atom, a bond, a bracket or the number of a ring. The same architecture with
# random weights is the untrained model.

SPECIAL = {f"{key}_token": f"[{key.upper()}]" for key in "unk sep pad cls mask".split()}
ATOMS = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|."


def make_tokenizer():
    tokens = (folder / "vocab.txt").read_text().split("\n")
    vocabulary = {token: index for index, token in enumerate(tokens) if token}
    backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(ATOMS), "isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def make_model(is_trained):
    torch.manual_seed(0)
    model = model_class(config_class.from_json_file(folder / "config.json"))
    if is_trained:
        path = folder / "pytorch_model.bin"
        weights = torch.load(path, map_location="cpu", weights_only=True)
        missing = model.load_state_dict(weights, strict=False).missing_keys
        assert all("position_ids" in key or "decoder.bias" in key for key in missing)
    return model.eval()


tokenizer = make_tokenizer()
language_models = {"trained": make_model(True), "untrained": make_model(False)}

# %%
# The curve and its area
# ----------------------
#
# Six reactions: the coupling of an acid and an amine, a Suzuki coupling, a Grignard
# reaction, a protection, a Wittig reaction and a reductive amination. The area is the
# number of the paper's Table 2, which is 512 times the mean of the curve. The
# log-probability of a reaction is at least the bound, the sum over its own numbers of
# hidden tokens.

REACTIONS = [
    "O=C(O)c1ccccc1F.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1F",
    "OB(O)c1ccccc1.Brc1ccc(C=O)cc1>>O=Cc1ccc(-c2ccccc2)cc1",
    "COC(=O)c1ccccc1.C[Mg]Br>>CC(C)(O)c1ccccc1",
    "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCCO>>CC(C)(C)OC(=O)NCCO",
    "O=Cc1ccccc1.CCOC(=O)C=P(c1ccccc1)(c1ccccc1)c1ccccc1>>CCOC(=O)C=Cc1ccccc1",
    "O=CC1CCCCC1.NCc1ccco1.[BH3-]C#N>>C1CCC(CNCc2ccco2)CC1",
]
trained = MPTScorer(language_models["trained"], tokenizer, random_state=0)
trained.fit(REACTIONS)
untrained = MPTScorer(language_models["untrained"], tokenizer, random_state=0).fit()
curves = {
    "trained": mpt_curve(trained, REACTIONS),
    "untrained": mpt_curve(untrained, REACTIONS),
}
figure, ax = plt.subplots(layout="constrained")
for name, curve in curves.items():
    print(
        f"{name}: area {curve.area(512):.0f}, bound {curve.lml:.1f} ± "
        f"{curve.lml_std_error:.1f} nats per reaction"
    )
    (line,) = ax.plot(curve.mask_sizes, curve.scores, label=name)
    reach = 1.96 * curve.std_errors
    band = (curve.scores - reach, curve.scores + reach)
    ax.fill_between(curve.mask_sizes, *band, color=line.get_color(), alpha=0.3, lw=0)
uniform = -np.log(len(tokenizer))
ax.axhline(uniform, color="0.5", linestyle="--", label="all tokens equally likely")
ax.set(xlabel="Hidden tokens (%)", ylabel="Masked score (nats per token)")
ax.legend()
gain = curves["trained"] - curves["untrained"]
print(f"gain by training: {gain.lml:.1f} ± {gain.lml_std_error:.1f} nats")
n_tokens = trained.count_tokens(REACTIONS)
print(f"{n_tokens.min()} to {n_tokens.max()} tokens, {n_tokens.mean():.1f} on average")

# %%
# What do the tokens of a reaction say about each other? If they were independent, with
# the frequencies that they have in these reactions, the log-probability would be the
# first number. The model was trained at 15% only: it predicts a single hidden token
# well, which the pseudo-log-likelihood shows, and less well where most are hidden. The
# pseudo-log-likelihood is no log-probability, because it counts twice what two tokens
# say about each other.

ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in REACTIONS]
counts = np.bincount(np.concatenate(ids))
frequencies = counts[counts > 0] / counts.sum()
independent = counts.sum() * np.sum(frequencies * np.log(frequencies)) / len(ids)
pll = MPTScorer(language_models["trained"], tokenizer, method="pll").fit()
print(f"independent tokens: {independent:.1f} nats per reaction")
print(f"bound: {curves['trained'].lml:.1f}")
print(f"pseudo-log-likelihood: {pll.score(REACTIONS):.1f}")

# %%
# Tokens by their contributions
# -----------------------------
#
# The contributions of the tokens add up to the score of the reaction. Tokens that
# follow from others, such as brackets and the numbers of rings, cost little.

low, high = -6.0, 0.0
figure, axes = plt.subplots(len(REACTIONS), layout="constrained", figsize=(12, 4))
for ax, part in zip(axes, trained.token_scores(REACTIONS), strict=True):
    image = ax.imshow(part.log_prob[None], cmap="magma", vmin=low, vmax=high)
    ax.set(xlim=(-0.5, n_tokens.max() - 0.5), yticks=[], xticks=[])
    ax.set_aspect("auto")
    ax.spines[:].set_visible(False)
    for place, (token, value) in enumerate(
        zip(part.tokens, part.log_prob, strict=True)
    ):
        color = "white" if value < (low + high) / 2 else "black"
        size = 7 if len(token) < 3 else 4
        ax.text(place, 0, token, ha="center", va="center", color=color, fontsize=size)
label = "Contribution of a token (nats)"
figure.colorbar(image, ax=axes, label=label, extend="min", aspect=30)

# %%
# Corrupted products
# ------------------
#
# A hundred acids with alcohols and amines react to esters and amides. Each product is
# corrupted in three ways: it is the product of another reaction, one of its atoms is
# another, or it is written twice. Which score finds that the true product is more
# probable, given the reactants? ``(reaction, start, stop)`` scores the letters of the
# product, given the rest of the reaction. For a pair ``(reactants, product)``, the
# tokenizer puts a [SEP] between the two, which the model has not seen in training.

ALKYL = ["C", "CC", "CCC", "CC(C)", "C=CC"]
ACYL = ["C", "CC", "CCC", "C=C", "CCl", "CF", "CBr", "C#N", "CO", "CN"]
pairs = [
    (f"O=C(O){acyl}.{alkyl}{atom}", f"{alkyl}{atom}C(=O){acyl}")
    for alkyl in ALKYL
    for acyl in ACYL
    for atom in ("O", "N")
]
rng = np.random.default_rng(0)
others = (np.arange(len(pairs)) + rng.integers(1, len(pairs), len(pairs))) % len(pairs)


def change_atom(product):
    """Put another atom in the place of one that is C, N or O and not part of Cl."""
    places = [
        place
        for place, letter in enumerate(product)
        if letter in "CNO" and product[place + 1 : place + 2] != "l"
    ]
    place = rng.choice(places)
    atom = rng.choice([atom for atom in "CNO" if atom != product[place]])
    return product[:place] + atom + product[place + 1 :]


def part_of(pair, product):
    """Return a reaction of the reactants of a pair, and where its product is."""
    reaction = f"{pair[0]}>>{product}"
    return reaction, len(reaction) - len(product), len(reaction)


corruptions = {
    "swapped": [pairs[i][1] for i in others],
    "one atom changed": [change_atom(product) for _, product in pairs],
    "written twice": [f"{product}.{product}" for _, product in pairs],
}
versions = {"true": [product for _, product in pairs], **corruptions}
ways = {
    "pll": {"method": "pll"},
    "ordered": {"method": "ordered"},
    "mpt": {"n_masks": 2},
    "chain": {"method": "chain", "n_masks": 2},
}
accuracy, n_rows = {}, {}
for way, settings in ways.items():
    scorer = MPTScorer(
        language_models["trained"], tokenizer, random_state=0, **settings
    ).fit()
    found = {
        version: scorer.score_samples(list(map(part_of, pairs, products)))
        for version, products in versions.items()
    }
    n_rows[way] = settings.get("n_masks", 1)
    accuracy[way] = {
        version: np.mean(found["true"] > found[version]) for version in corruptions
    }
    shares = ", ".join(f"{version} {p:.0%}" for version, p in accuracy[way].items())
    print(f"{way}, rows for each token: {n_rows[way]}; found: {shares}")
    if way == "pll":
        counts = scorer.count_tokens(pairs)
        mean = found["true"].sum() / counts.sum()
        other = scorer.score_samples(pairs).sum() / counts.sum()
        print(f"    a token of a product: {mean:.2f} nats, {other:.2f} with a [SEP]")

figure, ax = plt.subplots(layout="constrained", figsize=(8, 4))
for index, (way, shares) in enumerate(accuracy.items()):
    places = np.arange(len(shares)) + 0.2 * (index - 1.5)
    label = f"{way}, {n_rows[way]} row{'s' * (n_rows[way] > 1)} for each token"
    bars = ax.bar(places, list(shares.values()), width=0.18, label=label)
    ax.bar_label(bars, fmt="{:.0%}", fontsize=8)
ax.set_xticks(range(len(corruptions)), corruptions)
ax.set(ylabel="Share of corrupted products found", ylim=(0, 1.3))
ax.axhline(0.5, color="0.5", linestyle="--", label="by chance")
ax.legend(ncols=3, loc="upper center", fontsize=8)

# %%
# Training goes on
# ----------------
#
# The model was trained at 15% only. A few epochs at all mask rates, here on these small
# reactions, teach it to predict where most tokens are hidden, so the bound of held-out
# reactions rises.

reactions = [f"{first}>>{product}" for first, product in pairs]
held_out = reactions[::10]
training = [tokenizer(text) for text in reactions if text not in held_out]
model = make_model(True)
collate = DataCollatorForMPT(tokenizer, random_state=0)
loader = torch.utils.data.DataLoader(
    training, batch_size=10, shuffle=True, collate_fn=collate
)
optimizer = torch.optim.AdamW(model.parameters(), 2e-4)


def bound():
    scorer = MPTScorer(model.eval(), tokenizer, random_state=0).fit()
    return scorer.score(held_out)


print(f"before: {bound():.1f} nats per reaction")
for epoch in range(3):
    model.train()
    for batch in loader:
        labels = batch.pop("labels")
        optimizer.zero_grad()
        mpt_loss(model(**batch), labels).backward()
        optimizer.step()
    print(f"after epoch {epoch + 1}: {bound():.1f}")
plt.show()
