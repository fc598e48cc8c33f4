"""Training by masks: batches, the loss, and whole training by Trainer."""

import itertools
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from reference import mask_size
from text_models import (
    TEXTS,
    JointModel,
    make_letter_tokenizer,
    make_model,
    make_tokenizer,
    random_joint,
)
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from sklearn_mpt import (
    DataCollatorForMPT,
    LMLTrainerCallback,
    MPTScorer,
    mpt_curve,
    mpt_loss,
)

N_TOKENS = [7, 7, 2, 9, 1]  # of TEXTS
MASK = 4


def encode(texts, **kwargs):
    return [make_tokenizer(**kwargs)(text) for text in texts]


def n_tokens_of(labels):
    """Numbers of tokens by the weights L / m of labels."""
    is_hidden = labels.as_subclass(torch.Tensor) != -100
    return labels.weights * is_hidden.sum(dim=1)


# Batches


@pytest.mark.parametrize("mask_rate", ["uniform", 0.15, 0.5, np.float32(0.9)])
def test_hidden_tokens_are_masked_and_are_the_labels(mask_rate):
    collate = DataCollatorForMPT(make_tokenizer(), mask_rate, random_state=0)
    features = encode(TEXTS)
    batch = collate(features)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    for row, feature in enumerate(features):
        ids = np.array(feature["input_ids"])
        labels = np.asarray(batch["labels"][row])
        hidden = labels != -100
        assert not hidden[[0, *range(len(ids) - 1, len(hidden))]].any()
        hidden = hidden[: len(ids)]
        assert_array_equal(labels[: len(ids)][hidden], ids[hidden])
        assert_array_equal(batch["input_ids"][row, : len(ids)][hidden], MASK)
        assert_array_equal(batch["input_ids"][row, : len(ids)][~hidden], ids[~hidden])
    sizes = (batch["labels"] != -100).sum(dim=1).tolist()
    if mask_rate != "uniform":
        assert sizes == [mask_size(mask_rate, n) for n in N_TOKENS]


def test_sizes_and_positions_are_uniform():
    collate = DataCollatorForMPT(make_tokenizer(), random_state=0)
    features = encode([TEXTS[0]] * 3 + [TEXTS[2]])
    hidden = [np.asarray(collate(features)["labels"]) != -100 for _ in range(400)]
    sizes = np.sum(hidden, axis=2)
    for column, n_tokens in ((0, 7), (3, 2)):
        counts = np.bincount(sizes[:, column], minlength=n_tokens + 1)
        expected = 400 / n_tokens
        z = (counts[1:] - expected) / np.sqrt(expected * (1 - 1 / n_tokens))
        assert counts[0] == 0
        assert np.abs(z).max() < 4
    share = np.mean(hidden, axis=0)[0, 1:8]  # of (7 + 1) / 2 of 7 tokens on average
    assert np.abs(share - 4 / 7).max() < 4 * np.sqrt(4 / 7 * 3 / 7 / 400)


@pytest.mark.parametrize("blocks", [None, "span"])
def test_sizes_of_a_batch_are_stratified(blocks):
    collate = DataCollatorForMPT(make_tokenizer(), random_state=0, mask_blocks=blocks)
    for _ in range(3):
        hidden = collate(encode([TEXTS[0]] * 7))["labels"] != -100
        assert sorted(hidden.sum(dim=1).tolist()) == [1, 2, 3, 4, 5, 6, 7]


def test_spans_hide_consecutive_tokens_of_each_text():
    """Each of the seven tokens is the first of a span equally often."""
    collate = DataCollatorForMPT(
        make_tokenizer(), 0.4, random_state=0, mask_blocks="span"
    )
    batch = [TEXTS[0]] * 700
    hidden = (collate(encode(batch))["labels"] != -100).numpy()[:, 1:8]
    first = hidden & ~np.roll(hidden, 1, axis=1)
    assert (hidden.sum(axis=1) == 3).all()
    assert (first.sum(axis=1) == 1).all()
    assert np.abs(first.sum(axis=0) - 100).max() < 40  # four standard deviations


def test_special_tokens_and_what_is_marked_as_such_are_not_hidden():
    collate = DataCollatorForMPT(make_tokenizer(), 1 - 1e-9, random_state=0)
    feature = make_tokenizer()("the [MASK] xyz [SEP]", return_special_tokens_mask=True)
    feature["special_tokens_mask"][1] = 1
    labels = collate([dict(feature), {**feature, "other": "text"}])["labels"]
    assert_array_equal(labels, [[-100, -100, -100, 1, -100, -100]] * 2)
    empty = collate(encode(["", "a"]))["labels"]
    assert_array_equal(empty, [[-100] * 3, [-100, 6, -100]])


@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_without_labels_stay_visible(side):
    tokenizer = make_tokenizer(padding_side=side)
    features = [dict(tokenizer(text)) for text in TEXTS]
    for feature in features[:2]:  # [CLS] and two tokens have no labels
        feature["labels"] = [-100] * 3 + feature["input_ids"][3:]
    features[3]["labels"] = 1  # a class of the text
    collate = DataCollatorForMPT(tokenizer, random_state=0)
    hidden = set()
    for make in (collate, collate.fix_masks) * 10:
        made = make(features)
        labels = (made if make is collate else collate(made))["labels"]
        assert_allclose(n_tokens_of(labels), [5, 5, 2, 9, 1])
        start = labels.shape[1] - len(features[0]["input_ids"]) if side == "left" else 0
        hidden |= set((np.flatnonzero(np.asarray(labels[0]) != -100) - start).tolist())
    assert hidden == {3, 4, 5, 6, 7}


@pytest.mark.parametrize("labels", [[2, 5], [-100, 7, 4, 3]], ids=str)
def test_labels_of_other_tokens_are_refused(labels):
    feature = {**make_tokenizer()("the cat"), "labels": labels}
    with pytest.raises(ValueError, match=r"labels of features\[1\] must be its input_"):
        DataCollatorForMPT(make_tokenizer())([make_tokenizer()("a"), feature])


def test_batches_depend_on_the_random_state():
    def labels(random_state):
        collate = DataCollatorForMPT(make_tokenizer(), random_state=random_state)
        return np.stack([collate(encode(TEXTS))["labels"] for _ in range(3)])

    assert_array_equal(labels(0), labels(0))
    assert_array_equal(labels(np.random.RandomState(0)), labels(0))
    assert (labels(1) != labels(0)).any()
    assert (labels(0)[0] != labels(0)[1]).any()
    assert (labels(None) != labels(None)).any()


# on a machine with one core
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_workers_draw_anew_in_every_epoch():
    collate = DataCollatorForMPT(make_tokenizer(), random_state=0)

    def epochs():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            loader = torch.utils.data.DataLoader(
                encode(TEXTS * 2), batch_size=5, num_workers=2, collate_fn=collate
            )
            return [[batch["labels"] for batch in loader] for _ in range(2)]

    first, second = epochs()
    for labels in first + second:
        assert_allclose(n_tokens_of(labels), N_TOKENS)
    assert (first[0] != first[1]).any()
    assert (first[0] != second[0]).any()
    again = epochs()
    for now, then in zip(first + second, again[0] + again[1], strict=True):
        assert_array_equal(now, then)


def test_a_rate_of_one_warns():
    with pytest.warns(UserWarning, match=r"mask_rate=1.0 hides every token") as record:
        DataCollatorForMPT(make_tokenizer(), 1.0)
    assert record[0].filename == __file__


@pytest.mark.parametrize("feature", ["a dog", {"text": "a dog"}])
def test_texts_that_are_not_tokenized_are_refused(feature):
    collate = DataCollatorForMPT(make_tokenizer(), pad_to_multiple_of=8)
    assert collate(encode(["a"]))["labels"].shape == (1, 8)
    message = f"must be tokenized texts, .* got {type(feature).__name__}"
    with pytest.raises(TypeError, match=message):
        collate([feature])


# The loss


def test_the_loss_estimates_the_log_probability():
    log_joint, texts = random_joint(4), ["a b c a", "c c a b", "b a"]
    model, tokenizer = JointModel(log_joint), make_letter_tokenizer()
    tokenizer.pad_token = "a"  # never hidden then, by either
    truth = MPTScorer(model, tokenizer, dtype="float64", method="chain").fit()
    features = [tokenizer(text) for text in texts]
    losses = []
    for seed in range(30):
        collate = DataCollatorForMPT(tokenizer, random_state=seed)
        rows = [collate([feature] * 16) for feature in features]
        with torch.no_grad():
            loss = [mpt_loss(model(row["input_ids"]), row["labels"]) for row in rows]
        losses.append(np.mean(loss))
    error = np.mean(losses) + truth.score(texts)
    assert abs(error) < 4 * np.std(losses) / np.sqrt(len(losses))


def make_batch(seed=0):
    batch = DataCollatorForMPT(make_tokenizer(), random_state=seed)(encode(TEXTS))
    labels = batch.pop("labels")
    with torch.no_grad():
        return make_model().eval()(**batch), labels


def test_the_loss_by_hand():
    outputs, labels = make_batch()
    log_prob = outputs.logits.log_softmax(dim=-1)
    total = 0.0
    for row, n_tokens in enumerate(N_TOKENS):
        positions = np.flatnonzero(np.asarray(labels[row]) != -100)
        targets = torch.Tensor.as_subclass(labels, torch.Tensor)[row, positions]
        total -= n_tokens * float(log_prob[row, positions, targets].mean())
    loss = mpt_loss(outputs, labels)
    assert type(loss) is torch.Tensor
    assert_allclose(loss, total / 5, rtol=1e-5)
    assert_allclose(mpt_loss({"logits": outputs.logits.bfloat16()}, labels), loss, 0.02)


def count_items(batches):
    """Count the items of a step as Trainer does."""
    return sum(labels.ne(-100).sum() for labels in batches)


@pytest.mark.parametrize("sizes", [[5], [1, 4], [1, 1, 1, 1, 1]], ids=str)
def test_batches_of_one_step_are_weighed_by_their_texts(sizes):
    outputs, labels = make_batch()
    bounds = itertools.pairwise(np.cumsum([0, *sizes]))
    parts = [slice(start, stop) for start, stop in bounds]
    n_items = count_items(labels[part] for part in parts)
    losses = [
        mpt_loss({"logits": outputs.logits[part]}, labels[part], n_items)
        for part in parts
    ]
    assert n_items == (labels != -100).sum()
    assert_allclose(sum(losses), mpt_loss(outputs, labels), rtol=1e-6)


@pytest.mark.parametrize("lost", [int, lambda n: n.as_subclass(torch.Tensor)])
def test_a_count_that_has_lost_the_number_of_texts_is_refused(lost):
    outputs, labels = make_batch()
    n_items = count_items([labels])
    with pytest.raises(
        TypeError, match=r"must be the sum over its batches of \(labels"
    ):
        mpt_loss(outputs, labels, lost(n_items))


def test_counts_for_several_gpus_keep_the_number_of_texts():
    outputs, labels = make_batch()
    n_items = (count_items([labels]).to("cpu") // 2).unsqueeze(0).expand(2, -1)
    assert_allclose(mpt_loss(outputs, labels, n_items), mpt_loss(outputs, labels))


def test_a_batch_without_tokens_has_no_loss():
    batch = DataCollatorForMPT(make_tokenizer())(encode(["", "[MASK]"]))
    labels = batch.pop("labels")
    loss = mpt_loss(make_model()(**batch), labels, count_items([labels]))
    loss.backward()
    assert loss.item() == 0


MOVES = {
    "to": lambda labels: labels.to("cpu", torch.int32),
    "clone": lambda labels: labels.clone(),
    "detach": lambda labels: labels.detach(),
    "cpu": lambda labels: labels.cpu(),
    "pickle": lambda labels: pickle.loads(pickle.dumps(labels)),
}


@pytest.mark.parametrize("move", MOVES)
def test_labels_that_are_moved_keep_their_weights(move):
    _, labels = make_batch()
    moved = MOVES[move](labels)
    assert_array_equal(moved.weights, labels.weights)
    assert_array_equal(moved, labels)


def test_other_labels_are_refused():
    outputs, labels = make_batch()
    for other in (labels[:, 1:], labels[0], labels + 0, torch.tensor([[1]]), None):
        with pytest.raises(TypeError, match="must be those of DataCollatorForMPT, whi"):
            mpt_loss(outputs, other)
    message = r"shape of the logits .* \(4, 11\), got \(5, 11\)"
    with pytest.raises(ValueError, match=message):
        mpt_loss({"logits": outputs.logits[1:]}, labels)


CUTS = {
    "slice": lambda labels: [labels[:2], labels[2:]],
    "chunk": lambda labels: labels.chunk(2),
    "split": lambda labels: torch.split(labels, [1, 4]),
}


@pytest.mark.parametrize("cut", CUTS)
def test_labels_that_are_cut_and_joined_keep_their_weights(cut):
    _, labels = make_batch()
    parts = CUTS[cut](labels)
    assert_allclose(np.concatenate([n_tokens_of(part) for part in parts]), N_TOKENS)
    again = torch.cat(list(parts))
    assert_array_equal(again.weights, labels.weights)
    assert_array_equal(again, labels)
    assert not hasattr(torch.cat([labels, labels], dim=1), "weights")
    assert not hasattr(torch.cat([labels, labels + 0]), "weights")


def test_processes_draw_masks_of_their_own(monkeypatch):
    def labels():
        collate = DataCollatorForMPT(make_tokenizer(), random_state=0)
        return np.asarray(collate(encode(TEXTS))["labels"])

    alone = labels()
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        ranks.append(labels())
        assert_array_equal(ranks[-1], labels())
    assert_array_equal(ranks[0], alone)
    assert (ranks[0] != ranks[1]).any()


def test_label_smoothing_is_that_of_torch():
    outputs, labels = make_batch()
    one = labels[4:]  # a text of one token
    plain = torch.Tensor.as_subclass(one, torch.Tensor)
    hidden = plain != -100
    loss = torch.nn.functional.cross_entropy(
        outputs.logits[4:][hidden], plain[hidden], label_smoothing=0.2
    )
    found = mpt_loss({"logits": outputs.logits[4:]}, one, label_smoothing=0.2)
    assert_allclose(found, loss, rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"label_smoothing must be a float in the range"
    ):
        mpt_loss(outputs, labels, label_smoothing=1.5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_fixed_masks_are_the_same_in_any_batch(side):
    tokenizer = make_tokenizer(padding_side=side)
    features = [tokenizer(text) for text in TEXTS]
    collate = DataCollatorForMPT(tokenizer, random_state=0)
    alone = DataCollatorForMPT(tokenizer, random_state=0)
    fixed = collate.fix_masks(features)
    hidden = {}
    for batch in (fixed, fixed[::-1], fixed[1:3], [fixed[4]]):
        labels = collate(batch)["labels"]
        for feature, row in zip(batch, labels, strict=True):
            ids = np.asarray(row)
            ids = ids[ids != -100]
            hidden.setdefault(tuple(feature["input_ids"]), []).append(ids.tolist())
    for found in hidden.values():
        assert found[0]
        assert all(ids == found[0] for ids in found)
    rates = [len(feature["fixed_mask"]) for feature in fixed] / np.array(N_TOKENS)
    assert (np.sort(rates) > np.arange(5) / 5).all()  # stratified over all texts
    # training draws what it would have drawn
    assert_array_equal(collate(features)["labels"], alone(features)["labels"])
    assert collate.fix_masks([]) == []
    with pytest.raises(ValueError, match="1 of 2 have none"):
        collate([fixed[0], features[1]])


# Training

ONE_OF_TWO = """
import sys
import torch
from text_models import TEXTS, make_model, make_tokenizer
from transformers import Trainer, TrainingArguments
from sklearn_mpt import DataCollatorForMPT, LMLTrainerCallback, mpt_loss

torch.manual_seed(0)
tokenizer, batches = make_tokenizer(), []


class Collator(DataCollatorForMPT):
    def __call__(self, features):
        batch = super().__call__(features)
        batches.append(batch["input_ids"].tolist())
        return batch


arguments = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=2, max_steps=2, report_to=[], seed=0,
    use_cpu=True, ddp_backend="gloo", disable_tqdm=True, eval_strategy="steps",
    save_strategy="steps", eval_steps=1, save_steps=1, dataloader_pin_memory=False,
    load_best_model_at_end=True, metric_for_best_model="lml", greater_is_better=True,
    average_tokens_across_devices=False,
)
collate = Collator(tokenizer, random_state=0)
trainer = Trainer(
    model=make_model(), args=arguments, compute_loss_func=mpt_loss,
    train_dataset=[tokenizer(TEXTS[0])] * 8,
    data_collator=collate, eval_dataset=collate.fix_masks(map(tokenizer, TEXTS)),
    callbacks=[LMLTrainerCallback(TEXTS, tokenizer)],
)
trainer.train()
total = sum(tensor.double().sum().item() for tensor in trainer.model.parameters())
print(trainer.args.world_size, total, trainer.state.best_metric, batches)
"""


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    command = [sys.executable, "-c", ONE_OF_TWO, str(tmp_path)]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    worlds, totals, best, batches = zip(
        *(output.strip().splitlines()[-1].split(" ", 3) for output in outputs),
        strict=True,
    )
    assert worlds == ("2", "2")
    assert totals[0] == totals[1]
    assert best[0] == best[1]  # of the LML, which one of them measures
    assert batches[0] != batches[1]  # of the same texts


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from encode(TEXTS * 4)


def train(
    folder,
    callbacks=(),
    n_epochs=3,
    resume=None,
    batch_size=5,
    train_dataset=None,
    dropout=0.1,
    loss=mpt_loss,
    **kwargs,
):
    model = make_model(
        initializer_range=0.02,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=batch_size,
        num_train_epochs=n_epochs,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        report_to=[],
        seed=0,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"save_strategy": "no", "logging_steps": 1000, **kwargs},
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train_dataset or encode(TEXTS * 4),
        eval_dataset=encode(TEXTS),
        data_collator=DataCollatorForMPT(make_tokenizer(), random_state=0),
        compute_loss_func=loss,
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A trainer that has trained."""
    return train(tmp_path_factory.mktemp("plain"), per_device_eval_batch_size=3)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The same with a callback, and the callback."""
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer(), n_masks=3, random_state=1)
    return train(tmp_path_factory.mktemp("watched"), [monitor]), monitor


def test_a_callback_follows_the_log_marginal_likelihood(watched):
    trainer, monitor = watched
    assert [entry["epoch"] for entry in monitor.log_] == [0, 1, 2, 3]
    assert [entry["step"] for entry in monitor.log_] == [0, 4, 8, 12]
    assert monitor.log_[-1]["lml"] > monitor.log_[0]["lml"] + 1
    logged = [entry for entry in trainer.state.log_history if "lml" in entry]
    assert logged == monitor.log_
    scorer = MPTScorer(trainer.model, make_tokenizer(), n_masks=3, random_state=1)
    curve = mpt_curve(scorer.fit(), TEXTS)
    assert_allclose(monitor.log_[-1]["lml"], curve.lml, rtol=1e-5)
    assert_allclose(monitor.log_[-1]["lml_std_error"], curve.lml_std_error, rtol=1e-4)
    assert np.isfinite(trainer.evaluate()["eval_loss"])


def test_a_callback_changes_nothing_of_the_training(watched, plain):
    found = watched[0].model.state_dict()
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, found[name])


def test_evaluations_have_the_same_masks(plain):
    random = [plain.evaluate()["eval_loss"] for _ in range(2)]
    assert random[0] != random[1]
    fixed = plain.data_collator.fix_masks(encode(TEXTS))
    losses = [plain.evaluate(fixed)["eval_loss"] for _ in range(2)]
    assert losses[0] == losses[1]


def test_the_loss_of_evaluations_estimates_the_likelihood(plain):
    """With batches of unequal sizes."""
    lml = MPTScorer(plain.model, make_tokenizer(), n_masks=64).fit().score(TEXTS)
    losses = []
    for seed in range(8):
        collate = DataCollatorForMPT(make_tokenizer(), random_state=seed)
        fixed = collate.fix_masks(encode(TEXTS), n_masks=4)
        losses.append(plain.evaluate(fixed)["eval_loss"])
    assert abs(np.mean(losses) + lml) < 4 * np.std(losses) / np.sqrt(8)


def test_an_iterable_dataset_is_trained_on(tmp_path):
    trainer = train(tmp_path, train_dataset=Stream(), max_steps=2)
    assert trainer.state.global_step == 2


def test_smoothing_that_trainer_keeps_to_itself_is_warned_of(tmp_path):
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer())
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.1, use_cpu=True)
    with pytest.warns(
        UserWarning, match=r"label_smoothing_factor=0\.1 of Trainer does"
    ):
        monitor.on_train_begin(arguments, TrainerState(), None, model=make_model())


def test_the_loss_of_the_model_is_warned_of(tmp_path):
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer())
    with pytest.warns(UserWarning, match="Pass compute_loss_func=mpt_loss") as caught:
        trainer = train(tmp_path, [monitor], n_epochs=1, loss=None)
    assert sum("compute_loss_func" in str(w.message) for w in caught) == 1
    assert not trainer.model._forward_pre_hooks


def test_the_best_model_by_its_likelihood(tmp_path):
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer(), random_state=0)
    best = {"metric_for_best_model": "lml", "greater_is_better": True}
    trainer = train(tmp_path, [monitor], n_epochs=2, eval_strategy="epoch", **best)
    measured = [entry["lml"] for entry in monitor.log_ if entry["step"]]
    assert len(measured) == 2  # one an epoch, though Trainer evaluates too
    assert trainer.state.best_metric == max(measured)


@pytest.mark.filterwarnings("ignore:You are using .torch.load:FutureWarning")
def test_training_is_resumed_from_a_checkpoint_with_its_log(tmp_path):
    first = LMLTrainerCallback(TEXTS, make_tokenizer())
    train(tmp_path, [first], n_epochs=1, save_strategy="epoch")
    second = LMLTrainerCallback(TEXTS, make_tokenizer())
    trainer = train(tmp_path, [second], n_epochs=2, resume=True)
    assert trainer.state.global_step == 8
    assert [entry["step"] for entry in second.log_] == [0, 4, 8]
    assert second.log_[:2] == first.log_
    assert second.log_[-1]["lml"] > first.log_[0]["lml"]


def test_accumulated_batches_are_one_step(tmp_path):
    """Masks are fixed, so the steps are the same but for rounding."""
    tokenizer = make_tokenizer()
    texts = DataCollatorForMPT(tokenizer, random_state=0).fix_masks(encode(TEXTS))
    found = []
    for size in (3, len(TEXTS)):
        trainer = train(
            tmp_path,
            n_epochs=1,
            batch_size=size,
            train_dataset=texts,
            dropout=0.0,
            gradient_accumulation_steps=-(-len(TEXTS) // size),
            optim="sgd",
            max_grad_norm=0.0,
            logging_steps=1,
        )
        assert trainer.state.global_step == 1
        found.append((trainer.state.log_history[0]["loss"], trainer.model.state_dict()))
    (loss, state), (loss_at_once, at_once) = found
    assert_allclose(loss, loss_at_once, rtol=1e-4)
    for name, tensor in state.items():
        assert_allclose(tensor, at_once[name], rtol=1e-4, atol=1e-6)


def test_a_callback_notes_nan_where_training_has_diverged():
    """It leaves it to the training whether to go on."""
    model = make_model()
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer())
    monitor.on_epoch_end(None, TrainerState(epoch=1.0), None, model=model)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.fill_(torch.nan)
    state = TrainerState(epoch=2.0)
    monitor.on_epoch_end(None, state, None, model=model)
    assert np.isfinite(monitor.log_[0]["lml"])
    assert np.isnan([monitor.log_[1]["lml"], monitor.log_[1]["lml_std_error"]]).all()
    assert state.log_history == monitor.log_[1:]


def test_one_process_of_many_measures_after_every_other_epoch():
    monitor = LMLTrainerCallback(TEXTS, make_tokenizer(), every=2)
    for epoch, is_zero in ((2.0, False), (1.0, True), (2.0, True)):
        state = TrainerState(epoch=epoch, is_world_process_zero=is_zero)
        monitor.on_epoch_end(None, state, TrainerControl(), model=make_model())
        assert len(monitor.log_) == (epoch == 2 and is_zero)
