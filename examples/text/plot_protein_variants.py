"""
=====================================================
Scoring protein variants with a masked language model
=====================================================

A masked language model of proteins predicts the effect of a mutation: the more probable
the new residue is at its position, the better the variant. The usual score is the
masked marginal, the log-ratio of the two residues given the rest of the sequence,
summed over the mutated sites. It ignores whether the new residues suit each other; the
joint score of several sites does not. Proteins are treated as texts.

The protein family in this example is simulated. Some positions are conserved, and some
are in contact, so that their residues must fit each other. The true log-probability of
every variant is known, and is compared with the scores of a tiny ESM model.

It needs ``pip install ".[text]"``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

from sklearn_mpt import DataCollatorForMPT, MPTScorer, mpt_loss

# %%
# A family of proteins
# --------------------
#
# Twelve positions: those in contact carry opposite charges (K or R with D or E) or
# none, those that are conserved have a favourite residue, the rest is free.

RESIDUES = list("ADEGKLRS")
CONTACTS = [(0, 7), (2, 10)]
FAVOURITES = {4: "G", 5: "L", 9: "S"}
PARTNERS = {"K": "DE", "R": "DE", "D": "KR", "E": "KR"}
LENGTH = 12
rng = np.random.default_rng(0)


def log_prob(protein):
    """Log-probability of a sequence in the family."""
    total = 0.0
    for position, residue in enumerate(protein):
        if position in FAVOURITES:
            total += np.log(0.86 if residue == FAVOURITES[position] else 0.02)
        elif position not in dict(CONTACTS).values():
            total -= np.log(8)
    for first, second in CONTACTS:
        fits = PARTNERS.get(protein[first], "AGLS")
        is_fit = protein[second] in fits
        total += np.log(0.9 / len(fits) if is_fit else 0.1 / (8 - len(fits)))
    return total


def draw():
    protein = rng.choice(RESIDUES, LENGTH)
    for position, favourite in FAVOURITES.items():
        shares = [0.86 if residue == favourite else 0.02 for residue in RESIDUES]
        protein[position] = rng.choice(RESIDUES, p=shares)
    for first, second in CONTACTS:
        fits = PARTNERS.get(protein[first], "AGLS")
        others = [residue for residue in RESIDUES if residue not in fits]
        protein[second] = rng.choice(list(fits) if rng.random() < 0.9 else others)
    return "".join(protein)


family = [draw() for _ in range(3000)]

# %%
# A tiny ESM model
# ----------------
#
# With ESM's own tokenizer, whose vocabulary is a file, and the uniform mask rate.

SPECIAL = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>"]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "vocab.txt")
    path.write_text("\n".join(SPECIAL + RESIDUES))
    tokenizer = EsmTokenizer(str(path))

torch.manual_seed(0)
model = EsmForMaskedLM(
    EsmConfig(
        vocab_size=len(tokenizer),
        mask_token_id=tokenizer.mask_token_id,
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
        position_embedding_type="absolute",
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
collate = DataCollatorForMPT(tokenizer, random_state=0)
loader = torch.utils.data.DataLoader(
    [tokenizer(protein) for protein in family],
    batch_size=100,
    shuffle=True,
    collate_fn=collate,
)
optimizer = torch.optim.AdamW(model.parameters())
n_epochs = 10
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, 5e-3, total_steps=n_epochs * len(loader)
)
for _ in range(n_epochs):
    for batch in loader:
        labels = batch.pop("labels")
        optimizer.zero_grad()
        mpt_loss(model(**batch), labels).backward()
        optimizer.step()
        schedule.step()
model.eval()

scorer = MPTScorer(model, tokenizer, n_masks=4, random_state=0).fit()
held_out = [draw() for _ in range(200)]
truth = np.mean([log_prob(protein) for protein in held_out])
print(
    f"LML of new proteins: {scorer.score(held_out):.2f}, of the family {truth:.2f} nats"
)

# %%
# All single variants
# -------------------
#
# `~sklearn_mpt.MPTScorer.score_variants` compares variants with the wild type. One site
# has one conditional, so the joint score and the masked marginal are the same here.

wild = next(p for p in family if p[0] == "K" and log_prob(p) > log_prob(held_out[0]))
changes = [(position, new) for position in range(LENGTH) for new in RESIDUES]
singles = [f"{wild[position]}{position + 1}{new}" for position, new in changes]
marginals = scorer.score_variants(wild, singles, method="masked-marginal")


def exact_ratio(variant):
    protein = list(wild)
    for mutation in variant.split(":"):
        protein[int(mutation[1:-1]) - 1] = mutation[-1]
    return log_prob(protein) - log_prob(wild)


exact = [exact_ratio(variant) for variant in singles]
correlation = np.corrcoef(marginals, exact)[0, 1]
print(f"single variants: correlation with the truth {correlation:.2f}")

# %%
# Double mutants in contact
# -------------------------
#
# Where two residues are in contact, a mutation of one may break the contact, and that
# of the other restore it. The joint score predicts the second residue given the first,
# in both orders. The usual scores add up what is found site by site, given the residues
# of the wild type: the masked marginal hides the site, the wild-type marginal nothing.

doubles = [
    f"{wild[i]}{i + 1}{new}:{wild[j]}{j + 1}{other}"
    for i, j in CONTACTS
    for new in RESIDUES
    for other in RESIDUES
    if new != wild[i] and other != wild[j]
]
exact_of_doubles = [exact_ratio(variant) for variant in doubles]
methods = ("joint", "masked-marginal", "wild-type-marginal")
scores = {m: scorer.score_variants(wild, doubles, method=m) for m in methods}
for name, values in scores.items():
    correlation = np.corrcoef(values, exact_of_doubles)[0, 1]
    print(f"double mutants, {name}: correlation with the truth {correlation:.2f}")

# %%
# Deletions and insertions change the length, so that no sites are shared: the score is
# a difference of two `~sklearn_mpt.MPTScorer.score_samples`. Each is a log-probability
# given the number of residues.

deleted = wild[:3] + wild[4:]
log_prob_of, error = scorer.score_samples([deleted, wild], return_std=True)
print(
    f"{wild[3]}4del: {log_prob_of[0] - log_prob_of[1]:.1f} ± "
    f"{np.hypot(*error):.1f} nats, given the lengths"
)

# %%
# On the left, the positions in contact and those conserved stand out.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
image = axes[0].imshow(marginals.reshape(LENGTH, -1).T, cmap="RdBu", vmin=-4, vmax=4)
axes[0].set_xticks(range(LENGTH), wild)
axes[0].set_yticks(range(len(RESIDUES)), RESIDUES)
axes[0].set(xlabel="Wild type", ylabel="Mutation", title="Single variants (nats)")
figure.colorbar(image, ax=axes[0], shrink=0.7, extend="both")
for name, marker in zip(methods, "o^s", strict=True):
    axes[1].plot(exact_of_doubles, scores[name], marker, ms=4, alpha=0.6, label=name)
axes[1].axline((0, 0), slope=1, color="0.5", linestyle="--", label="equal")
axes[1].set(
    xlabel="Log-ratio in the family (nats)",
    ylabel="Score (nats)",
    title="Double mutants in contact",
)
axes[1].legend()
plt.show()
