"""
=====================================================
Scoring protein variants with a masked language model
=====================================================

A masked language model of proteins predicts the effect of a mutation: the more probable
the new residue is at its position, the better the variant. The usual score is the
masked marginal, the log-ratio of the two residues given the rest of the sequence.
Another score is the log-probability of the whole variant. For both, proteins are
treated as texts.

The protein family in this example is simulated. Some positions are conserved, and some
are in contact, so that their residues must fit each other. The true log-probability of
every variant is known, and is compared with the scores of a tiny ESM model.

It needs ``pip install "sklearn-mpt[text]"``.
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
# Twelve places: those in contact carry opposite charges (K or R with D or E) or none,
# those that are conserved have a favourite residue, the rest is free.

RESIDUES = list("ADEGKLRS")
CONTACTS = [(0, 7), (2, 10)]
FAVOURITES = {4: "G", 5: "L", 9: "S"}
PARTNERS = {"K": "DE", "R": "DE", "D": "KR", "E": "KR"}
LENGTH = 12
rng = np.random.default_rng(0)


def log_prob(protein):
    """Log-probability of a sequence in the family."""
    total = 0.0
    for place, residue in enumerate(protein):
        if place in FAVOURITES:
            total += np.log(0.86 if residue == FAVOURITES[place] else 0.02)
        elif place not in dict(CONTACTS).values():
            total -= np.log(8)
    for first, second in CONTACTS:
        fits = PARTNERS.get(protein[first], "AGLS")
        is_fit = protein[second] in fits
        total += np.log(0.9 / len(fits) if is_fit else 0.1 / (8 - len(fits)))
    return total


def draw():
    protein = rng.choice(RESIDUES, LENGTH)
    for place, favourite in FAVOURITES.items():
        shares = [0.86 if residue == favourite else 0.02 for residue in RESIDUES]
        protein[place] = rng.choice(RESIDUES, p=shares)
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
# A masked marginal hides the place that is mutated, and compares how probable the two
# residues are there. `~sklearn_mpt.MPTScorer.conditional_log_prob` hides what a mask
# says: here one place of each variant. All variants, and as many copies of the wild
# type, are scored in one call, which fills its batches with them.

wild = next(p for p in family if p[0] == "K" and log_prob(p) > log_prob(held_out[0]))
variants = [
    (place, residue, wild[:place] + residue + wild[place + 1 :])
    for place in range(LENGTH)
    for residue in RESIDUES
]
proteins = [protein for _, _, protein in variants]
exact = np.array([log_prob(protein) for protein in proteins]) - log_prob(wild)

masks = [np.arange(LENGTH) == place for place, _, _ in variants]
hidden = scorer.conditional_log_prob([*proteins, *[wild] * len(masks)], masks * 2)
mutant, original = np.split(np.sum(hidden, axis=1), 2)
marginals = mutant - original
chain = MPTScorer(model, tokenizer, method="chain", n_masks=2, random_state=0).fit()
whole = chain.score_samples(proteins) - chain.score([wild])
scores = {"masked marginals": marginals, "chain": whole}
for name, values in scores.items():
    print(f"{name}: correlation with the truth {np.corrcoef(values, exact)[0, 1]:.2f}")

# %%
# The places in contact and those conserved stand out. On the right, dots stand a little
# to the side of the log-ratio, so that they do not hide each other.

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
image = axes[0].imshow(marginals.reshape(LENGTH, -1).T, cmap="RdBu", vmin=-4, vmax=4)
axes[0].set_xticks(range(LENGTH), wild)
axes[0].set_yticks(range(len(RESIDUES)), RESIDUES)
axes[0].set(xlabel="Wild type", ylabel="Mutation", title="Masked marginals (nats)")
figure.colorbar(image, ax=axes[0], shrink=0.7, extend="both")
for side, (name, values) in zip((-0.1, 0.1), scores.items(), strict=True):
    axes[1].plot(exact + side, values, ".", alpha=0.6, label=name)
axes[1].axline((0, 0), slope=1, color="0.5", linestyle="--", label="equal")
axes[1].set(xlabel="Log-ratio in the family (nats)", ylabel="Score (nats)")
axes[1].legend()
plt.show()
