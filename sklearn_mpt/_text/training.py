"""Training of masked language models at every mask size, by transformers' Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    BatchEncoding,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    TrainerCallback,
)

from sklearn_mpt._checks import (
    RATE,
    UNIFORM,
    RandomState,
    check,
    check_choice,
    check_int,
    check_real,
    draw_seed,
    warn_caller,
)
from sklearn_mpt._measure.masks import hide_smallest, mask_size
from sklearn_mpt._measure.mpt_curve import mpt_curve
from sklearn_mpt._text.loading import check_tokenizer
from sklearn_mpt._text.masked_lm import NotFiniteError
from sklearn_mpt._text.scorer import MPTScorer
from sklearn_mpt._text.windows import check_texts, rule_of_words, show, special_ids

# Entries of a tokenized text that no model reads.
MARKS = ("special_tokens_mask", "labels", "word_ids")
VISIBLE = -100  # means "no label" in transformers and torch
FIXED = "fixed_mask"  # key of the tokens that fix_masks hides


def _is_one_of_many():
    """Return whether this process has joined others that train one model."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class DataCollatorForMPT(DataCollatorWithPadding):
    """Collate tokenized texts into batches with random tokens hidden.

    In each text, a random set of tokens is replaced by the mask token; these tokens are
    the labels. The sizes of the sets in a batch are stratified, which lowers the
    variance of the loss and leaves its expectation the same.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        Tokenizer of the texts, with a mask token.
    mask_rate : "uniform" or float in (0, 1], default="uniform"
        "uniform" draws the size uniformly from 1 to the number L of tokens of a text,
        so that `mpt_loss` estimates minus the log marginal likelihood without bias. A
        rate r hides ``max(1, floor(r * L + 0.5))`` tokens.
    random_state : int, RandomState instance or None, default=None
        Determines the masks, in the order of the calls. Workers of a data loader draw
        different masks, by their torch seeds, and so do processes that train one model,
        by their ranks. Training that is resumed from a checkpoint starts the sequence
        of masks again. For evaluation, `fix_masks` draws masks once.
    pad_to_multiple_of : int, default=None
        Pad to a multiple of this length, which is faster on some accelerators.
    mask_blocks : {"span", "word"}, default=None
        "span" hides consecutive tokens, from a random one on; a span that reaches the
        last token goes on at the first. The loss is then biased, as with spans in
        `mpt_curve`. "word" hides whole words. `mask_rate` then counts words, and the
        loss estimates minus the sum of the scores of `mpt_curve` with the same
        `mask_blocks`, a lower bound of the log-probability given where words begin.
        None hides every set of one size with the same probability.

    See Also
    --------
    mpt_loss : The loss for these batches.

    Notes
    -----
    Call it with a list of dicts or of outputs of the tokenizer. It returns a dict of
    the tensors that the tokenizer pads, and `labels` of shape (n_texts, n_tokens), -100
    for visible tokens. Padding and special tokens are never hidden. The context of a
    (context, text) pair is treated as part of the text. To train on a text given its
    context, give features `labels` that are -100 for the context, and the ids of the
    tokens elsewhere: tokens whose label is -100 stay visible, and do not count as
    tokens of the text.

    Words are those of the tokenizer: the entry `word_ids` of a feature, a list with an
    entry for each token, as ``tokenizer(text).word_ids()``; without, that of the output
    of a fast tokenizer. Features that have neither, as those of slow tokenizers and
    rows of a `Dataset`, have the words that marks of tokens show, such as "##". If a
    vocabulary has no such marks, they are refused. Trainer keeps the column `word_ids`
    of a `Dataset` if its ``remove_unused_columns`` is False.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = ["[PAD]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "mat"]
    >>> vocabulary = {word: index for index, word in enumerate(words)}
    >>> backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]",
    ...     mask_token="[MASK]")
    >>> from sklearn_mpt import DataCollatorForMPT
    >>> collate = DataCollatorForMPT(tokenizer, mask_rate=0.5, random_state=0)
    >>> batch = collate([tokenizer(t) for t in ["the cat sat on the mat", "the cat"]])
    >>> (batch["labels"] != -100).sum(dim=1).tolist()
    [3, 1]
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_rate: str | float = "uniform",
        random_state: RandomState = None,
        pad_to_multiple_of: int | None = None,
        mask_blocks: str | None = None,
    ):
        if mask_blocks is not None:
            check_choice(mask_blocks, "mask_blocks", ["span", "word"])
        if pad_to_multiple_of is not None:
            check_int(pad_to_multiple_of, "pad_to_multiple_of")
        super().__init__(tokenizer, pad_to_multiple_of=pad_to_multiple_of)
        check_tokenizer(tokenizer)
        check(mask_rate, "mask_rate", UNIFORM, RATE)
        if mask_rate == 1:
            warn_caller(
                "mask_rate=1.0 hides every token: training uses only the marginal "
                "distribution of each token and learns no dependence between tokens.",
            )
        self.mask_rate = mask_rate
        self.mask_blocks = mask_blocks
        self._seed = draw_seed(random_state)
        self._stream = ()
        self._rng = np.random.default_rng(self._seed)

    def __call__(self, features: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        batch = self._pad(features)
        ids = batch["input_ids"]
        units = self._units(features, batch)
        fixed = [feature.get(FIXED) for feature in features]
        n_without = sum(positions is None for positions in fixed)
        if n_without == len(fixed):
            is_hidden = self._draw(units)
        elif n_without:
            raise ValueError(
                "features must all have masks from fix_masks, or none of them, but "
                f"{n_without} of {len(fixed)} have none."
            )
        else:
            is_hidden = np.zeros(units.shape, dtype=bool)
            starts = self._starts(features, ids.shape[1])
            for row, (positions, start) in enumerate(zip(fixed, starts, strict=True)):
                is_hidden[row, positions + start] = True
        weights = _count(units) / np.maximum(_count(np.where(is_hidden, units, -1)), 1)
        hidden = torch.from_numpy(is_hidden)
        batch["labels"] = labels_of(
            ids.masked_fill(~hidden, VISIBLE), torch.from_numpy(weights).float()
        )
        batch["input_ids"] = ids.masked_fill(hidden, self.tokenizer.mask_token_id)
        return batch

    def fix_masks(
        self, features: Iterable[Mapping], n_masks: int = 1
    ) -> list[BatchEncoding]:
        """Draw the masks of tokenized texts once, for evaluation.

        A collator hides other tokens in each call, so ``eval_loss`` also varies between
        epochs because of the masks. Texts with fixed masks have the same masks in every
        batch, epoch and process: pass them as the ``eval_dataset`` of Trainer.

        Parameters
        ----------
        features : iterable of dict
            Tokenized texts.
        n_masks : int, default=1
            Number of masks of each text.

        Returns
        -------
        list of BatchEncoding of length n_texts * n_masks
            All texts with one mask each, `n_masks` times over. The sizes of the masks
            are stratified over the list. The masks depend on `random_state`; drawing
            them does not change the masks of training.

        Notes
        -----
        With a uniform mask rate, ``eval_loss`` then estimates minus the "lml" of
        `LMLTrainerCallback` without bias. With one mask for each text it is a noisy
        estimate, which all epochs share: the loss of a text at one mask differs from
        its mean over masks by as much as the scores of a few and of many hidden tokens
        differ. Compare epochs with each other, and take more masks, or "lml", to
        compare with likelihoods.
        """
        check_int(n_masks, "n_masks")
        features = list(features) * n_masks
        if not features:
            return []
        names = {*self.tokenizer.model_input_names, *MARKS}
        batch = self._pad(features)
        units = self._units(features, batch)
        rng = np.random.default_rng([self._seed, *b"fixed"])
        hidden = self._draw(units, rng)
        starts = self._starts(features, hidden.shape[1])
        made = []
        for i, (feature, start) in enumerate(zip(features, starts, strict=True)):
            entries = _select(feature, names)
            entries[FIXED] = np.flatnonzero(hidden[i]) - start
            if self.mask_blocks == "word":
                entries["word_ids"] = words_of(feature, i, self.tokenizer)
            made.append(BatchEncoding(entries))
        return made

    def _pad(self, features):
        names = {*self.tokenizer.model_input_names, "special_tokens_mask"}
        return super().__call__([_select(feature, names) for feature in features])

    def _starts(self, features, width):
        """Return the position at which each text starts after padding to a width."""
        is_left = self.tokenizer.padding_side == "left"
        return [width - len(f["input_ids"]) if is_left else 0 for f in features]

    def _units(self, features, batch):
        """Number what is hidden together, tokens or words; -1 for fixed tokens."""
        ids = batch["input_ids"]
        is_fixed = np.isin(ids, special_ids(self.tokenizer))
        is_fixed |= np.asarray(batch.pop("special_tokens_mask", is_fixed), dtype=bool)
        is_text = np.asarray(batch.get("attention_mask", ~is_fixed), dtype=bool)
        starts = self._starts(features, ids.shape[1])
        for row, (feature, start) in enumerate(zip(features, starts, strict=True)):
            is_fixed[row, _unlabelled(feature, row) + start] = True
        is_maskable = ~is_fixed & is_text
        begins = is_maskable.copy()  # where units begin
        if self.mask_blocks == "word":
            for row, (feature, start) in enumerate(zip(features, starts, strict=True)):
                words = words_of(feature, row, self.tokenizer)
                goes_on = start + 1 + np.flatnonzero(words[1:] == words[:-1])
                begins[row, goes_on] &= ~is_maskable[row, goes_on - 1]
        return np.where(is_maskable, begins.cumsum(axis=1) - 1, -1)

    def _draw(self, units, rng=None):
        """Draw the tokens to hide, of shape (n_texts, n_tokens)."""
        rng = self._generator() if rng is None else rng
        n_texts, n_units = len(units), _count(units)
        if self.mask_rate == "uniform":
            strata = (rng.permutation(n_texts) + rng.random(n_texts)) / n_texts
            sizes = np.floor(strata * n_units).astype(int) + 1
        else:
            sizes = np.array([mask_size(self.mask_rate, n) for n in n_units])
        numbers, count = np.arange(units.shape[1]), np.maximum(n_units, 1)[:, None]
        if self.mask_blocks == "span":
            keys = (numbers - np.floor(rng.random((n_texts, 1)) * count)) % count
        else:
            keys = rng.random(units.shape)
        keys = np.where(numbers < n_units[:, None], keys, np.inf)
        is_chosen = hide_smallest(keys, sizes)
        return np.take_along_axis(is_chosen, units, axis=1) & (units >= 0)

    def _generator(self):
        """Return the random generator of this worker and process."""
        # A data loader forks new workers in every epoch.
        worker, rank = torch.utils.data.get_worker_info(), os.environ.get("RANK", 0)
        rank = torch.distributed.get_rank() if _is_one_of_many() else int(rank)
        stream = (rank,) if rank else ()
        stream += () if worker is None else (worker.seed,)
        if stream != self._stream:
            self._stream = stream
            self._rng = np.random.default_rng([self._seed, *stream])
        return self._rng


def _select(feature, names):
    """Return the entries of a tokenized text that the tokenizer can pad."""
    if "input_ids" not in feature:
        raise TypeError(
            "features must be tokenized texts, dicts with input_ids, got "
            f"{type(feature).__name__}."
        )
    return {name: feature[name] for name in feature.keys() & names}


def _unlabelled(feature, index):
    """Return positions of a tokenized text whose label is -100, if it has labels."""
    labels = feature.get("labels")
    if labels is None or np.ndim(labels) == 0:
        return np.zeros(0, dtype=int)
    labels, ids = np.asarray(labels), np.asarray(feature["input_ids"])
    if labels.shape != ids.shape or ((labels != ids) & (labels != VISIBLE)).any():
        raise ValueError(
            f"labels of features[{index}] must be its input_ids, or {VISIBLE} for "
            "tokens that stay visible, but they are other tokens. The collator hides "
            "tokens itself: leave out labels that another one has made."
        )
    return np.flatnonzero(labels == VISIBLE)


def _count(units):
    """Count the units of each row, (n_texts,); -1 is none."""
    return np.array([len(np.unique(row[row >= 0])) for row in units])


def words_of(feature, index, tokenizer):
    """Return numbers of the words of the tokens of a tokenized text, (n_tokens,)."""
    # Tokens of one word follow each other and have one number.
    n_tokens, ids = len(feature["input_ids"]), feature.get("word_ids")
    if ids is None and getattr(feature, "is_fast", False):
        ids = feature.word_ids()
    if ids is None:
        goes_on = rule_of_words(tokenizer)
        if goes_on is None:
            raise ValueError(
                f"mask_blocks='word' needs words, and features[{index}] has none, as "
                f"the tokens of {type(tokenizer).__name__} bear no marks of words, "
                "such as '##'. Give it the words of its tokens, as word_ids, or set "
                "mask_blocks to None."
            )
        tokens = tokenizer.convert_ids_to_tokens(feature["input_ids"])
        begins = [not goes_on(before, token) for before, token in pairwise(tokens)]
        return np.cumsum([0, *begins])[:n_tokens]
    if len(ids) != n_tokens:
        raise ValueError(
            f"word_ids of features[{index}] must have an entry for each of its "
            f"{n_tokens} tokens, got {len(ids)}."
        )
    return np.array([-1 if number is None else number for number in ids], dtype=int)


def mpt_loss(
    outputs: Mapping,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    r"""Compute the loss of masked pre-training, for ``compute_loss_func`` of Trainer.

    The loss is the mean over texts of

    .. math:: -\frac{L}{m} \sum_{j \in M} \log p(x_j \mid x_R),

    where L is the number of tokens of a text and M the set of its m hidden tokens; L
    and m count words if whole words are hidden. If m is uniform on 1..L, it is an
    unbiased estimate of minus the mean log marginal likelihood ([1]_, Proposition 1),
    or of minus the bound that `MPTScorer` estimates.
    The usual loss is the mean over hidden tokens, in which large masks and long texts
    have larger weights.

    Parameters
    ----------
    outputs : mapping
        Output of a masked language model, with "logits" of shape (n_texts, n_tokens,
        n_vocabulary).
    labels : tensor of shape (n_texts, n_tokens)
        Labels from `DataCollatorForMPT`, which carry the ratios L / m.
    num_items_in_batch : tensor, default=None
        The hidden tokens of all batches of one step, as Trainer counts them: the sum
        over the batches of ``(labels != -100).sum()``, which also carries the number of
        their texts. The losses of the batches then add up to the mean over all texts of
        the step, whatever the sizes of the batches. With None, the loss is the mean
        over the texts of this batch.
    label_smoothing : float, default=0.0
        Weight in [0, 1] of a uniform distribution in the targets. Trainer does not pass
        its ``label_smoothing_factor`` to a loss function: use
        ``functools.partial(mpt_loss, label_smoothing=0.1)``. With label smoothing, the
        loss does not estimate the log marginal likelihood.

    Returns
    -------
    loss : tensor of shape ()
        Loss in nats per text.

    Raises
    ------
    TypeError
        If the labels are not from `DataCollatorForMPT`, or `num_items_in_batch` does
        not carry a number of texts.
    ValueError
        If the shapes of labels and logits do not match.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.

    Examples
    --------
    Train by ``Trainer(model, args, train_dataset=[tokenizer(t) for t in texts],
    data_collator=DataCollatorForMPT(tokenizer), compute_loss_func=mpt_loss)``. By hand:

    >>> import torch
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = {"[PAD]": 0, "[MASK]": 1, "a": 2, "b": 3}
    >>> backend = Tokenizer(models.WordLevel(vocabulary))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]")
    >>> from sklearn_mpt import DataCollatorForMPT, mpt_loss
    >>> batch = DataCollatorForMPT(tokenizer)([tokenizer("a b a")])
    >>> uniform = {"logits": torch.zeros(1, 3, 4)}
    >>> loss = mpt_loss(uniform, batch["labels"])
    >>> bool(abs(loss - 3 * torch.tensor(4.0).log()) < 1e-5)
    True

    A step of several batches: ``n = sum((labels != -100).sum() for labels in ...)``
    counts them, and ``mpt_loss(outputs, labels, n).backward()`` runs for each.
    """
    check_real(label_smoothing, "label_smoothing", "both", 1)
    logits = outputs["logits"]
    if not hasattr(labels, "weights"):
        raise TypeError(
            "labels must be those of DataCollatorForMPT, which know the weights of "
            f"their texts, got {type(labels).__name__}. Set it as the "
            "data_collator; and if several processes read an IterableDataset, set "
            "accelerator_config={'dispatch_batches': False}."
        )
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            "labels must have the shape of the logits without the last axis, "
            f"{tuple(logits.shape[:-1])}, got {tuple(labels.shape)}."
        )
    n_texts = len(labels)
    if isinstance(num_items_in_batch, HiddenTokens):
        n_texts = num_items_in_batch.n_texts
    elif num_items_in_batch is not None:
        raise TypeError(
            "num_items_in_batch must carry the number of texts of a step: it must be "
            "the sum over its batches of (labels != -100).sum(), for labels of "
            f"DataCollatorForMPT, got {show(num_items_in_batch)} of type "
            f"{type(num_items_in_batch).__name__}. If Trainer runs in several "
            "processes, set average_tokens_across_devices=False, so that it keeps what "
            "each has counted."
        )
    weights = labels.weights.to(logits.device)
    labels = labels.as_subclass(torch.Tensor)
    hidden = labels != VISIBLE
    rows = hidden.nonzero()[:, 0]
    losses = cross_entropy(
        logits[hidden].float(),
        labels[hidden],
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return (losses * weights[rows]).sum() / n_texts


class TextLabels(torch.Tensor):
    """Labels that carry the weight of a hidden token of each text, `weights`."""

    # They keep them when moved, joined or split by texts, as loaders of iterable
    # datasets do. `Trainer` gives a loss function only the labels of a batch.

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
        if function in MOVES:
            return labels_of(result, args[0].weights)
        if function is torch.Tensor.__getitem__ and isinstance(args[1], slice):
            return labels_of(result, args[0].weights[args[1]])
        if function in JOINS and _is_of_texts(args[1:], kwargs):
            weights = [getattr(part, "weights", None) for part in args[0]]
            if None not in weights:
                return labels_of(result, torch.cat(weights))
        if function in CUTS and _is_of_texts(args[2:], kwargs):
            weights = args[0].weights.split([len(part) for part in result])
            return tuple(map(labels_of, result, weights))
        if function in COMPARISONS and isinstance(args[1], int) and args[1] == VISIBLE:
            return _hidden(result, len(args[0]))
        return result


class HiddenTokens(torch.Tensor):
    """Which tokens of some texts are hidden, or how many, with the number of texts."""

    # `Trainer` counts the items of one step by `sum(labels.ne(-100).sum() for ...)`,
    # and gives a loss function the sum. `n_texts` adds up with it.

    n_texts: int

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        counts = [part.n_texts for part in args if isinstance(part, HiddenTokens)]
        if not counts or not isinstance(result, torch.Tensor):
            return result
        # Trainer also moves, divides and expands the sum, by the number of devices
        return _hidden(result, sum(counts) if function in SUMS else counts[0])


MOVES = {
    torch.Tensor.to,
    torch.Tensor.cpu,
    torch.Tensor.cuda,
    torch.Tensor.pin_memory,
    torch.Tensor.contiguous,
    torch.Tensor.detach,
    torch.Tensor.clone,
}
COMPARISONS = {torch.Tensor.ne, torch.Tensor.__ne__, torch.ne}
SUMS = {torch.Tensor.add, torch.Tensor.__radd__, torch.Tensor.__iadd__, torch.add}
JOINS = {torch.cat, torch.concat, torch.concatenate}
CUTS = {torch.Tensor.chunk, torch.Tensor.split, torch.chunk, torch.split}


def _is_of_texts(more, kwargs):
    """Return whether a function joins or splits along the first axis."""
    return (more[0] if more else kwargs.get("dim", 0)) == 0


def labels_of(tensor, weights):
    labels = tensor.as_subclass(TextLabels)
    labels.weights = weights
    return labels


def _hidden(tensor, n_texts):
    hidden = tensor.as_subclass(HiddenTokens)
    hidden.n_texts = n_texts
    return hidden


class LMLTrainerCallback(TrainerCallback):
    """Record the log marginal likelihood of texts while Trainer trains a model.

    `MPTScorer` measures it before training and after epochs, with the same masks each
    time, so that differences come from the model. The training is not affected: neither
    the mode of the model nor any random number changes.

    Parameters
    ----------
    texts : list of str or of (str, str) tuples
        Texts to score, preferably not used in training.
    tokenizer : transformers.PreTrainedTokenizerBase
        Tokenizer of the model.
    every : int, default=1
        Number of epochs from one measurement to the next.
    n_masks : int, default=2
        Number of masks of each size, as for `MPTScorer`.
    batch_tokens : int, default=4096
        Tokens in one forward pass.
    max_length : int, default=None
        As for `MPTScorer`.
    overflow : {"error", "truncate", "stride", "split"}, default="error"
        As for `MPTScorer`.
    random_state : int, RandomState instance or None, default=None
        Determines the masks.

    Attributes
    ----------
    log_ : list of dict
        One record for each measurement: "lml", the mean log marginal likelihood per
        text in nats; "lml_std_error", its standard error over masks; "epoch" and
        "step". The first two are NaN if weights or predictions of the model are not
        finite. The records are also in ``trainer.state.log_history``, which is part of
        checkpoints, so resumed training continues them.

    See Also
    --------
    LMLMonitor : A callback for scikit-learn estimators.

    Notes
    -----
    If several processes train one model, the first one measures.

    Trainer's own ``label_smoothing_factor`` has no effect on :func:`mpt_loss`, and the
    callback warns of it. It also warns if Trainer has no ``compute_loss_func``, while
    the batches are those of :class:`DataCollatorForMPT`.

    If Trainer evaluates, "lml" is one of its metrics. With
    ``metric_for_best_model="lml"`` and ``greater_is_better=True``, the parameters with
    the largest LML are kept.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = {"[PAD]": 0, "[MASK]": 1, "a": 2, "b": 3}
    >>> backend = Tokenizer(models.WordLevel(vocabulary))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]")
    >>> from sklearn_mpt import LMLTrainerCallback
    >>> monitor = LMLTrainerCallback(["a b a", "b"], tokenizer)
    >>> monitor.log_
    []

    ``Trainer(model, args, ..., callbacks=[monitor])`` fills it.
    """

    def __init__(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        *,
        every: int = 1,
        n_masks: int = 2,
        batch_tokens: int = 4096,
        max_length: int | None = None,
        overflow: str = "error",
        random_state: RandomState = None,
    ):
        check_int(every, "every")
        self.texts = check_texts(texts)
        self.every = every
        self.log_: list[dict] = []
        seed = draw_seed(random_state)  # as fits would draw others from a RandomState
        is_int = isinstance(random_state, Integral)
        self._scorer = MPTScorer(
            None,
            tokenizer,
            n_masks=n_masks,
            batch_tokens=batch_tokens,
            max_length=max_length,
            overflow=overflow,
            random_state=random_state if is_int else seed,
            dtype="auto",
        )
        self._scorer._validate_params()
        self._hook = None  # on the model, until it is first called

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Measure the model before training, unless a checkpoint has done so."""
        if args is not None and args.label_smoothing_factor:
            warn_caller(
                f"label_smoothing_factor={args.label_smoothing_factor} of Trainer does "
                "not reach a loss function, and changes nothing with mpt_loss. Pass "
                "functools.partial(mpt_loss, label_smoothing=...) in its place."
            )
        self.log_ = [entry for entry in state.log_history if "lml" in entry]
        if not any(entry["step"] == state.global_step for entry in self.log_):
            self._measure(state, model)
        if isinstance(model, torch.nn.Module):
            self._hook = model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, module, args, inputs):
        """Warn if the first call of a model gets labels of `DataCollatorForMPT`."""
        # Trainer passes labels to a model only where no loss function is given. The
        # model's loss is the mean over hidden tokens, no estimate of the LML.
        self._hook.remove()
        if isinstance(inputs.get("labels"), TextLabels):
            warn_caller(
                "The batches are those of DataCollatorForMPT, but the model computes "
                "its own loss, the mean over hidden tokens, which does not estimate "
                "minus the log marginal likelihood. Pass compute_loss_func=mpt_loss to "
                "Trainer."
            )

    def on_train_end(self, args, state, control, **kwargs):
        """Leave the model as it was, if it was never called."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        """Measure the model after every `every`-th epoch."""
        if round(state.epoch) % self.every == 0:
            self._measure(state, model)

    def on_evaluate(self, args, state, control, model=None, metrics=None, **kwargs):
        """Add the last measurement to the metrics, for `metric_for_best_model`."""
        if metrics is None:
            return
        if not self.log_ or self.log_[-1]["step"] != state.global_step:
            self._measure(state, model)
        last = [self.log_[-1]["lml"] if self.log_ else None]
        if _is_one_of_many():  # only the first one measures
            torch.distributed.broadcast_object_list(last, src=0)
        metrics["eval_lml"] = last[0]

    def _measure(self, state, model):
        if not state.is_world_process_zero:
            return
        device = next(model.parameters()).device
        scorer = self._scorer.set_params(model=model, device=device)
        try:
            curve = mpt_curve(scorer.fit(), self.texts)
            lml, std_error = curve.lml, curve.lml_std_error
        except NotFiniteError:  # training has diverged; Trainer decides when it ends
            lml = std_error = np.nan
        entry = {
            "lml": lml,
            "lml_std_error": std_error,
            "epoch": state.epoch or 0.0,
            "step": state.global_step,
        }
        self.log_.append(entry)
        state.log_history.append(entry)
