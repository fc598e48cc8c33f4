"""
==================================================
Training a masked language model at all mask rates
==================================================

BERT is trained with 15% of the tokens hidden. If the number of hidden tokens is drawn
uniformly instead, and the hidden tokens of a text share one weight, the loss is an
unbiased estimate of minus the log marginal likelihood (LML), so training maximises the
LML. Here one small model is trained in both ways on the sentences of a small grammar,
with the ``Trainer`` of transformers, and the LML of validation sentences is recorded.

It needs ``pip install ".[text-training]"``.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from sklearn_mpt import (
    DataCollatorForMPT,
    LMLTrainerCallback,
    MPTScorer,
    mpt_curve,
    mpt_loss,
)

transformers.logging.set_verbosity_error()

# %%
# Texts
# -----
#
# Sentences have seven words, and the verb agrees with the first noun. All sentences are
# equally probable, so the LML of the grammar itself is known, which is the highest that
# a model can reach. 15% of seven words is one word.

NOUNS = [("dog", "dogs"), ("child", "children"), ("car", "cars"), ("tree", "trees")]
ADJECTIVES = ["old", "red", "small", "here"]
PLACES = ["near", "behind"]
rng = np.random.default_rng(0)


def sentence():
    m, n = rng.integers(2, size=2)
    noun, other = (
        NOUNS[i][j] for i, j in zip(rng.integers(4, size=2), (m, n), strict=True)
    )
    place, adjective = rng.choice(PLACES), rng.choice(ADJECTIVES)
    return f"the {noun} {place} the {other} {('is', 'are')[m]} {adjective}"


best = -np.log(2**2 * 4**2 * len(PLACES) * len(ADJECTIVES))
texts = [sentence() for _ in range(1100)]
held_out, training = texts[:100], texts[100:]
words = sorted({word for text in texts for word in text.split()})
vocabulary = {word: i for i, word in enumerate(["[PAD]", "[MASK]", *words])}
backend = Tokenizer(models.WordLevel(vocabulary))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]"
)
dataset = [tokenizer(text) for text in training]
print(training[0])
print(f"LML of the grammar: {best:.2f} nats per sentence")

# %%
# Training
# --------
#
# Only the data collator differs. ``Trainer`` does everything else: devices, schedules,
# checkpoints.


def train(mask_rate, n_epochs=14):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=16,
        initializer_range=0.1,
    )
    model = BertForMaskedLM(config)
    monitor = LMLTrainerCallback(held_out, tokenizer, random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=n_epochs,
            per_device_train_batch_size=64,
            learning_rate=5e-3,
            warmup_steps=20,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=DataCollatorForMPT(tokenizer, mask_rate, random_state=0),
            compute_loss_func=mpt_loss,
            callbacks=[monitor],
        ).train()
    return model, monitor.log_


runs = {"15% hidden": train(0.15), "uniform": train("uniform")}

# %%
# Marginal likelihoods
# --------------------
#
# Both models are measured with the same masks after every epoch, so that they have the
# same errors from masks, which the error bars show. The right panel shows the two
# curves at the end of training: the scores by mask rate.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
curves = {}
for name, (model, log) in runs.items():
    lml, error = (
        np.array([entry[k] for entry in log]) for k in ("lml", "lml_std_error")
    )
    left.errorbar([entry["step"] for entry in log], lml, 1.96 * error, label=name)
    scorer = MPTScorer(model, tokenizer, n_masks=4, random_state=0).fit()
    curves[name] = curve = mpt_curve(scorer, held_out)
    reach = 1.96 * curve.std_errors
    right.errorbar(curve.mask_sizes, curve.scores, reach, errorevery=7, label=name)
    print(f"{name}: {curve.lml:.2f} ± {curve.lml_std_error:.2f} nats per sentence")
left.axhline(best, color="0.5", linestyle="--", label="the grammar itself")
left.set(xlabel="Training steps", ylabel="LML of held-out text (nats per sentence)")
left.set_ylim(bottom=-12)
right.set(xlabel="Hidden tokens (%)", ylabel="Masked score (nats per token)")
right.axvline(15, color="0.5", linestyle=":", zorder=0)
for ax in (left, right):
    ax.legend()
plt.show()

# %%
# Curves that were measured with the same masks can be subtracted, and the common errors
# from masks cancel. At the rate of 15%, the two models are equally good.

difference = curves["uniform"] - curves["15% hidden"]
print(f"difference: {difference.lml:.2f} ± {difference.lml_std_error:.2f} nats")
at_15 = difference.score_at(15)
error = difference.std_errors[14]
print(f"at a rate of 15%: {at_15:.3f} ± {error:.3f} nats per token")
