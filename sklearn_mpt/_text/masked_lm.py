"""Masked language models, masked diffusion models as these, and their predictions."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import Parameter, signature
from itertools import chain, groupby, islice, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from joblib.parallel import get_active_backend
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from sklearn_mpt._checks import how_to_install
from sklearn_mpt._numbers import CHUNK_ENTRIES
from sklearn_mpt._text.masks import NO_SCORES
from sklearn_mpt._text.windows import show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOADED = threading.Lock()  # makes the threads of a worker process load a model once
OVERFLOW_ADVICE = (
    "In dtype 'float16' numbers overflow easily: try 'bfloat16' or 'float32'."
)


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Rows of one length; `hidden` and `target` mark tokens."""

    inputs: dict  # name -> int64 array of shape (n_rows, n_tokens)
    hidden: np.ndarray  # bool, shape (n_rows, n_tokens)
    target: np.ndarray  # bool, shape (n_rows, n_tokens)

    def __len__(self):
        return len(self.hidden)

    def split(self, n_rows):
        """Yield parts of at most n_rows rows."""
        for i in range(0, len(self), n_rows):
            part = slice(i, i + n_rows)
            inputs = {name: array[part] for name, array in self.inputs.items()}
            yield TokenBatch(inputs, self.hidden[part], self.target[part])


@dataclass(eq=False)
class MaskedLM:
    """A masked language model that predicts hidden tokens."""

    # `checkpoint`, if any, is pickled in place of the model; after unpickling, `loaded`
    # is None until the model is needed. So an error of loading is raised by the call
    # that needs the model, and does not break a pool of workers that unpickle their
    # tasks. gathered : whether the head may run on the hidden states of the targets
    # only.

    loaded: torch.nn.Module | None
    mask_token_id: int
    batch_tokens: int
    gathered: bool = True
    checkpoint: tuple | None = None  # a `Source`, the device and the dtype

    def __reduce__(self):
        settings = (self.mask_token_id, self.batch_tokens, self.gathered)
        if self.checkpoint is None:
            return MaskedLM, (self.model, *settings)
        return MaskedLM, (None, *settings, self.checkpoint)

    def __sizeof__(self):
        """Return the size of the pickle, by which Dask decides what to scatter."""
        tensors = () if self.checkpoint else self.model.parameters()
        return super().__sizeof__() + sum(tensor.nbytes for tensor in tensors)

    def view(self):
        """Return a copy that another thread may use; it shares all tensors."""
        return replace(self, loaded=view_of(self.model))

    @property
    def model(self):
        """The model; it is loaded when it is first needed."""
        if self.loaded is None:
            with LOADED:
                self.loaded = _load(*self.checkpoint)
        return self.loaded

    @property
    def device(self):
        return next(self.model.parameters()).device

    @property
    def input_names(self):
        """Names of the inputs of the model."""
        return frozenset(signature(self.model.forward).parameters)

    def log_prob(self, batch, pick=None):
        """Return log p(target | visible tokens) of every target, row by row."""
        # pick : None, or a function of logits, (n_targets, n_vocabulary), and true
        # tokens, (n_targets,), whose result is returned. If memory runs out, this batch
        # and all later ones are halved.
        n_tokens = self.batch_tokens
        if not self.gathered:
            n_tokens = min(n_tokens, self._logit_rows)
        limit = max(1, n_tokens // batch.hidden.shape[1])
        if len(batch) > limit:
            parts = batch.split(limit)
            return torch.cat([self.log_prob(part, pick) for part in parts])
        try:
            with torch.autocast(self.device.type, enabled=False):
                return self._forward(batch, pick or pick_label)
        except (RuntimeError, MemoryError) as error:
            if len(batch) == 1 or not _is_out_of_memory(error):
                raise
        self.batch_tokens = max(1, batch.hidden.size // 2)
        return self.log_prob(batch, pick)

    @property
    def _logit_rows(self):
        """Number of rows of logits to compute at a time."""
        return max(1, CHUNK_ENTRIES // self.model.config.vocab_size)

    @torch.inference_mode()
    def _forward(self, batch, pick):
        device = self.device
        inputs = {k: torch.tensor(v, device=device) for k, v in batch.inputs.items()}
        at_targets = tuple(
            torch.tensor(a, device=device) for a in batch.target.nonzero()
        )
        labels = inputs["input_ids"][at_targets]
        hidden = torch.tensor(batch.hidden, device=device)
        inputs["input_ids"] = inputs["input_ids"].masked_fill(
            hidden, self.mask_token_id
        )
        if not self.gathered:
            return pick(self.model(**inputs).logits[at_targets], labels)
        states = base_of(self.model)(**inputs)[0][at_targets]
        parts = zip(
            states.split(self._logit_rows), labels.split(self._logit_rows), strict=True
        )
        return torch.cat([pick(head(self.model, s), part) for s, part in parts])


@lru_cache(maxsize=1)
def _load(source, device, dtype):
    """Load the model once in a worker process, which scores many blocks with it."""
    source.check()
    return source.load_model(device, dtype)


def view_of(model):
    """Copy the modules of a model in evaluation mode, sharing its tensors."""
    # So the user's model is never changed, and views of it can run in threads.
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()


def base_of(model):
    """Return the part of the model below its head."""
    return getattr(model, model.base_model_prefix)


def head(model, states):
    """Return the logits for last hidden states of shape (n, width)."""
    # The forward method runs on a shallow copy, whose base returns the given states.
    base = copy.copy(base_of(model))
    base.forward = partial(_output, states[None])
    shell = copy.copy(model)
    vars(shell)["_modules"] = {**model._modules, model.base_model_prefix: base}
    unread = torch.zeros((1, len(states)), dtype=torch.long, device=states.device)
    return shell(input_ids=unread).logits[0]


def _output(states, *args, **kwargs):
    # here, as the import of transformers takes longest
    from transformers.modeling_outputs import (
        BaseModelOutputWithPoolingAndCrossAttentions,
    )

    return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=states)


def pick_label(logits, labels):
    """Return log-softmax at the labels, in float32 at least."""
    return log_softmax(logits).gather(1, labels[:, None])[:, 0]


def log_softmax(logits):
    """Return log-softmax in float32 at least; it is faster than logsumexp on a CPU."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(1, dtype=dtype)


def _is_out_of_memory(error):
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "allocate memory" in str(error)


def check_masked_lm(name, config):
    """Refuse models that do not predict a token from all visible tokens."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    causal = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    causal &= name not in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    if getattr(config, "is_encoder_decoder", False):
        kind = "an encoder-decoder"
    elif causal or getattr(config, "is_decoder", False):
        kind = "a causal"
    else:
        return _check_attention(name, config)
    raise ValueError(
        f"model must be a masked language model, got {kind} one, {name}: its "
        "predictions are not conditioned on all tokens that are not hidden."
    )


def _check_attention(name, config):
    """Refuse attention that is random or depends on earlier inputs."""
    if getattr(config, "attention_type", None) == "block_sparse":
        reason = "attention_type='block_sparse', which the first short text changes for"
        advice = "all later ones. Load it with attention_type='original_full'."
    elif "lsh" in getattr(config, "attn_layers", ()):
        reason = "an 'lsh' layer in attn_layers, whose random hashes differ each time."
        advice = "Its texts have no score of their own."
    elif not getattr(config, "use_expectation", True):
        reason = "use_expectation=False, whose random hashes differ each time."
        advice = "Load it with use_expectation=True."
    else:
        return
    raise ValueError(
        f"model must predict the same each time, but {name} has {reason} {advice}"
    )


class NotFiniteError(ValueError):
    """A model has weights or predictions that are NaN or infinite."""


def check_finite_weights(model):
    """Refuse weights that are NaN or infinite."""
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() and tensor.numel():
            # Minimum and maximum take a tenth of the time of torch.isfinite.
            if not torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all():
                raise NotFiniteError(
                    f"model must have finite weights, but {name} of this "
                    f"{type(model).__name__} holds NaN or infinity in {tensor.dtype}."
                )


def probe(language_model, n_tokens):
    """Return whether the head gives the same on targets only; refuse odd models."""
    model, name = language_model.model, type(language_model.model).__name__
    if "input_ids" not in language_model.input_names:
        raise ValueError(
            "model must take input_ids by that name, but the forward method of "
            f"{name} takes {signature(model.forward)}. Of a model that wraps another "
            "one, pass the one inside; of a PeftModel model.get_base_model(), in which "
            "the adapter is, or model.merge_and_unload()."
        )
    hidden = np.zeros((2, 8), dtype=bool)
    hidden[[0, 0, 1], [2, 5, 3]] = True
    inputs = {"input_ids": np.arange(16).reshape(2, 8) % min(n_tokens, 64)}
    if "attention_mask" in language_model.input_names:
        inputs["attention_mask"] = np.ones_like(inputs["input_ids"])
    _check_logits(model, inputs)
    batch = TokenBatch(inputs, hidden, hidden)
    full_pass = replace(language_model, gathered=False)
    full = full_pass.log_prob(batch)
    if full.isnan().any():
        raise NotFiniteError(
            f"model must make finite predictions, but those of this {name} are NaN. "
            f"{OVERFLOW_ADVICE}"
        )
    tolerance = torch.finfo(next(model.parameters()).dtype).eps ** 0.5
    tolerance = {"rtol": tolerance, "atol": tolerance}
    if not torch.allclose(full, full_pass.log_prob(batch), **tolerance):
        raise ValueError(f"model must predict the same each time; {name} does not.")
    try:
        gathered = replace(language_model, gathered=True).log_prob(batch)
    except Exception:  # after any error, use the full pass
        return False
    return torch.allclose(gathered, full, **tolerance)


@torch.inference_mode()
def _check_logits(model, inputs):
    device = next(model.parameters()).device
    tensors = {k: torch.tensor(v, device=device) for k, v in inputs.items()}
    try:
        output = model(**tensors)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if _is_out_of_memory(error):
            raise
        raise ValueError(
            f"model must take rows of any length, but {type(model).__name__} failed on "
            f"two of {inputs['input_ids'].shape[1]} tokens: {error}"
        ) from error
    logits = getattr(output, "logits", None)
    if logits is None or logits.shape[:-1] != inputs["input_ids"].shape:
        raise ValueError(
            "model must be a masked language model with one row of logits per token, "
            f"got {type(model).__name__}; see transformers.AutoModelForMaskedLM."
        )
    if logits.shape[-1] < model.config.vocab_size:
        raise ValueError(
            "model must predict every token of its vocabulary, but the logits of this "
            f"{type(model).__name__} are of {logits.shape[-1]} tokens, and "
            f"config.vocab_size is {model.config.vocab_size}."
        )


class MaskedDiffusionLM(torch.nn.Module):
    r"""Adapt a masked diffusion model to what scores and trains masked language models.

    A masked diffusion model predicts the masked tokens of a text from all others, as
    BERT does. Many also take the time t of the diffusion, at which a token is masked
    with probability t. The adapter calls ``model(input_ids, t)`` with the fraction of
    the tokens of each text that are masked, and never predicts the mask token.

    Minus the evidence lower bound (NELBO) of such a model, for a linear or any other
    schedule, is minus the score of `MPTScorer`: the sum over numbers of masked tokens
    of their mean log-probability ([1]_, [2]_).

    Parameters
    ----------
    model : torch.nn.Module
        Module from ``input_ids``, (n_texts, n_tokens), to logits, (n_texts, n_tokens,
        n_vocabulary), or to an output with ``logits``. If its forward takes
        ``attention_mask``, it is given that.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer, with a mask token.
    time : "share", callable or None, default="share"
        The second argument of the module. "share": the fraction of masked tokens,
        float32 of shape (n_texts,). A callable: its result for that fraction, such as
        the noise level by ``lambda t: -torch.log1p(-t)``. None: the module takes no
        time.

    See Also
    --------
    MPTScorer : Takes a module without time as it is.

    References
    ----------
    .. [1] S. Sahoo, M. Arriola, Y. Schiff, A. Gokaslan, E. Marroquin, J. Chiu, A. Rush
       and V. Kuleshov, "Simple and effective masked diffusion language models",
       NeurIPS 2024.
    .. [2] J. Ou, S. Nie, K. Xue, F. Zhu, J. Sun, Z. Li and C. Li, "Your absorbing
       discrete diffusion secretly models the conditional distributions of clean data",
       ICLR 2025.

    Examples
    --------
    >>> import torch
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = {"[MASK]": 0, "a": 1, "b": 2}
    >>> backend = Tokenizer(models.WordLevel(vocabulary))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, mask_token="[MASK]")
    >>> class Uniform(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.bias = torch.nn.Parameter(torch.zeros(3))
    ...     def forward(self, input_ids, t):
    ...         return self.bias + 0 * t[:, None, None] + 0 * input_ids[..., None]
    >>> from sklearn_mpt import MaskedDiffusionLM, MPTScorer
    >>> model = MaskedDiffusionLM(Uniform(), tokenizer)
    >>> scorer = MPTScorer(model, tokenizer).fit()
    >>> bits = -scorer.score(["a b b a"]) / 4 / torch.tensor(2.0).log()
    >>> round(float(bits), 6)
    1.0
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        time: str | Callable | None = "share",
    ):
        super().__init__()
        if not (time is None or time == "share" or callable(time)):
            raise ValueError(
                f"time must be 'share', a callable or None, got {show(time)}."
            )
        self.model = model
        self.mask_token_id = tokenizer.mask_token_id
        self.time = time
        config = getattr(model, "config", None)
        n_tokens = 1 + max(tokenizer.get_vocab().values())
        self.config = config or SimpleNamespace(vocab_size=n_tokens)

    def forward(self, input_ids, attention_mask=None):
        """Return logits of tokens, as masked language models of transformers do.

        Parameters
        ----------
        input_ids : tensor of shape (n_texts, n_tokens)
            Tokens; those to predict are the mask token.
        attention_mask : tensor of shape (n_texts, n_tokens), default=None
            1 for tokens, 0 for padding. None: there is no padding.

        Returns
        -------
        output : transformers.modeling_outputs.MaskedLMOutput
            Its `logits` have the shape (n_texts, n_tokens, n_vocabulary), and are minus
            infinity for the mask token.
        """
        from transformers.modeling_outputs import MaskedLMOutput

        is_masked = input_ids == self.mask_token_id
        is_token = (
            torch.ones_like(input_ids) if attention_mask is None else attention_mask
        )
        fraction = (is_masked & is_token.bool()).sum(1) / is_token.sum(1)
        arguments = [input_ids]
        if self.time is not None:
            arguments.append(fraction if self.time == "share" else self.time(fraction))
        names = signature(self.model.forward).parameters
        more = {"attention_mask": attention_mask} if "attention_mask" in names else {}
        output = self.model(*arguments, **more)
        logits = output if isinstance(output, torch.Tensor) else output["logits"]
        is_mask = torch.arange(logits.shape[-1], device=logits.device)
        is_mask = is_mask == self.mask_token_id
        return MaskedLMOutput(logits=logits.masked_fill(is_mask, -torch.inf))


def adapt_module(model, tokenizer):
    """Return a module of torch that is no model of transformers as one of these."""
    parameters = signature(model.forward).parameters.values()
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is Parameter.empty
    ]
    if len(required) != 1:
        raise ValueError(
            "model must take input_ids alone, but the forward method of "
            f"{type(model).__name__} needs {', '.join(required) or 'no argument'}. One "
            "that takes the time of a diffusion too is adapted by "
            "MaskedDiffusionLM(model, tokenizer)."
        )
    return MaskedDiffusionLM(model, tokenizer, time=None)


class MaskedWindow(NamedTuple):
    window: int
    hidden: np.ndarray  # bool, shape (n_tokens,)
    target: np.ndarray  # bool, shape (n_tokens,)


def score_windows(language_model, windows, draw, n_jobs, verbose):
    """Return the `WindowScores` of each window."""
    blocks = list(_blocks(windows, draw, language_model.batch_tokens))
    n_jobs = n_jobs if language_model.device.type == "cpu" else 1
    n_workers = max(1, min(effective_n_jobs(n_jobs), len(blocks)))
    n_threads = max(1, torch.get_num_threads() // n_workers)
    n_threads = None if n_workers == 1 else n_threads  # of a worker with other workers
    backend, _ = get_active_backend(prefer="threads")
    is_shared = getattr(backend, "supports_sharedmem", False)
    if is_shared or language_model.checkpoint is not None:
        tasks = [[block] for block in blocks]
    else:  # each task carries the model
        tasks = [blocks[i::n_workers] for i in range(n_workers) if blocks]
    followed = tasks
    if verbose:  # a bar like that of scikit-learn's ProgressBar
        try:
            from rich.progress import track
        except ImportError as error:
            raise ImportError(
                f"verbose=True needs rich: {how_to_install('progress')}"
            ) from error
        followed = track(tasks, description="MPTScorer - score")
    results = Parallel(n_jobs=n_jobs, prefer="threads")(
        delayed(_score_blocks)(
            language_model, [[windows[i] for i in b] for b in task], draw, n_threads
        )
        for task in followed
    )
    scores = [NO_SCORES] * len(windows)
    for task, result in zip(tasks, results, strict=True):
        for i, score in zip(chain.from_iterable(task), result, strict=True):
            scores[i] = score
    return scores


def _blocks(windows, draw, batch_tokens, *, n_batches=4):
    """Yield blocks of indices of windows, longest first, of a few batches each."""
    # A worker scores a block at a time. Blocks do not depend on n_jobs.
    block, n_tokens = [], 0
    for i in sorted(range(len(windows)), key=lambda i: -len(windows[i])):
        if len(windows[i].positions):
            block.append(i)
            n_tokens += draw.n_rows(windows[i]) * len(windows[i])
        if n_tokens >= n_batches * batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _score_blocks(language_model, blocks, draw, n_threads):
    """Score blocks; one worker of several has its own modules, and some threads."""
    if n_threads is None:
        scores = [_score_block(language_model, windows, draw) for windows in blocks]
    else:
        with threadpool_limits(n_threads, user_api="openmp"):
            own = language_model.view()
            scores = [_score_block(own, windows, draw) for windows in blocks]
    return list(chain.from_iterable(scores))


def _score_block(language_model, windows, draw):
    """Return the `WindowScores` of each window."""
    rows = (
        MaskedWindow(i, hidden, target)
        for i, window in enumerate(windows)
        for hidden, target in draw.plan(window)
    )
    log_prob, targets, owners = predict(language_model, windows, rows)
    first_rows = np.searchsorted(owners, range(len(windows) + 1))
    first_targets = np.cumsum([0, *map(len, targets)])[first_rows]
    bounds = zip(windows, pairwise(first_targets), pairwise(first_rows), strict=True)
    return [
        draw.estimate(window, log_prob[slice(*own_targets)], targets[slice(*own_rows)])
        for window, own_targets, own_rows in bounds
    ]


def predict(language_model, windows, rows, pick=None):
    """Return log-probabilities of targets, their positions, and windows of rows."""
    # rows : those of one length next to each other, as they share batches. pick : as in
    # `MaskedLM.log_prob`.
    log_prob, targets, owners = [], [], []
    for length, of_length in groupby(rows, lambda row: len(row.hidden)):
        n_rows = max(1, language_model.batch_tokens // length)
        while batch := list(islice(of_length, n_rows)):
            inputs = {
                name: np.stack([windows[row.window].inputs[name] for row in batch])
                for name in windows[0].inputs
            }
            hidden, target = (
                np.stack(masks)
                for masks in zip(*(row[1:] for row in batch), strict=True)
            )
            tokens = TokenBatch(inputs, hidden, target)
            log_prob.append(language_model.log_prob(tokens, pick))
            targets += [row.target.nonzero()[0] for row in batch]
            owners += [row.window for row in batch]
    log_prob = torch.cat(log_prob).cpu().double().numpy()
    if np.isnan(log_prob).any():
        of_targets = np.repeat(owners, [len(positions) for positions in targets])
        is_nan = np.isnan(log_prob).reshape(len(of_targets), -1).any(axis=1)
        first = windows[of_targets[is_nan.argmax()]]
        raise NotFiniteError(
            f"The predictions of the model for texts[{first.text}] are not finite, but "
            f"NaN. {OVERFLOW_ADVICE}"
        )
    return log_prob, targets, owners


def predict_by_row(language_model, windows, rows, pick=None):
    """Return an array of log-probabilities, of its targets, for each row."""
    if not rows:
        return []
    order = np.argsort([-len(row.hidden) for row in rows], kind="stable")
    sorted_rows = [rows[i] for i in order]
    log_prob, targets, _ = predict(language_model, windows, sorted_rows, pick)
    stops = np.cumsum([len(positions) for positions in targets])
    parts = np.split(log_prob, stops[:-1])
    return [parts[i] for i in np.argsort(order)]
