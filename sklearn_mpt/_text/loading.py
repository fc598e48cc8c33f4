"""Loading a masked language model with its tokenizer, and checking that they fit."""

import copy
import os
import re
import threading
from dataclasses import dataclass
from inspect import signature

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase

from sklearn_mpt._checks import check_device
from sklearn_mpt._text.masked_lm import MaskedLM, check_masked_lm, view_of

# Heads and buffers that predict no hidden token; checkpoints have them or have not.
UNUSED = re.compile(
    r"\b(pooler|seq_relationship|sop_classifier|contact_head|position_ids|inv_freq)\b"
)
# What a tokenizer may say of a token that is hidden: nothing of which it is.
INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
LOADING = threading.Lock()  # from_pretrained patches torch meanwhile, for all threads


@dataclass(frozen=True)
class Checkpoint:
    """Where a pretrained model is, and how to load it.

    `files` are the names, times and sizes of the files of a folder: where they change,
    it is another model.
    """

    name: str | None
    device: torch.device
    dtype: str
    revision: str | None
    local_files_only: bool
    trust_remote_code: bool
    files: tuple = ()

    @classmethod
    def of(cls, scorer, device):
        """Return the checkpoint that the parameters of a scorer name, if they do."""
        name = os.fspath(scorer.model) if _is_name(scorer.model) else None
        return cls(
            name,
            device,
            scorer.dtype,
            scorer.revision,
            scorer.local_files_only,
            scorer.trust_remote_code,
            () if name is None else files_of(name),
        )

    def __call__(self):
        """Load the model onto the device, in evaluation mode."""
        if self.files != files_of(self.name):
            raise ValueError(
                f"The files of {self.name!r} have changed since the scorer read them. "
                "Fit it again."
            )
        model, info = self._load(
            AutoModelForMaskedLM,
            self.name,
            dtype=self.dtype,
            use_safetensors=True,
            output_loading_info=True,
        )
        self._check_keys(type(model).__name__, info)
        return model.to(self.device)

    def tokenizer(self, name):
        return self._load(AutoTokenizer, self.name if name is None else os.fspath(name))

    def _load(self, auto_class, name, **kwargs):
        try:
            with LOADING:
                return auto_class.from_pretrained(
                    name,
                    revision=self.revision if name == self.name else None,
                    local_files_only=self.local_files_only,
                    trust_remote_code=self.trust_remote_code,
                    **kwargs,
                )
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # tokenizers raise Exception itself
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(
                f"{name!r} could not be loaded as a masked language model with its "
                "tokenizer, from safetensors. Pass a name on the Hugging Face hub; "
                "offline, a folder written by save_pretrained; or a loaded model and "
                f"its tokenizer. {error}"
            ) from error

    def _check_keys(self, name, info):
        """Refuse weights that are not those of the model: the rest would be random."""
        found = {
            kind: sorted(key for key in info[f"{kind}_keys"] if not UNUSED.search(key))
            for kind in ("missing", "unexpected")
        }
        if any(found.values()):
            parts = "; ".join(
                f"{kind} are {_list(keys)}" for kind, keys in found.items() if keys
            )
            raise ValueError(
                f"The weights of {self.name!r} are not those of a {name}, a masked "
                f"language model: {parts}. To score it all the same, load it yourself "
                "and pass it as model, with its tokenizer."
            )


def _list(keys, most=6):
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + rest


def files_of(name):
    """Return names, times and sizes of the files of a folder; of a hub name nothing."""
    if not os.path.isdir(name):
        return ()
    files = [(entry.name, entry.stat()) for entry in os.scandir(name)]
    return tuple(sorted((name, s.st_mtime_ns, s.st_size) for name, s in files))


def open_model(scorer, gathered=True, can_pad=True):
    """Return the `MaskedLM` and the tokenizer that the parameters of a scorer name."""
    dtype = "float32" if scorer.dtype == "auto" else scorer.dtype
    device = check_device(scorer.device, dtype)
    model, tokenizer = scorer.model, scorer.tokenizer
    checkpoint = Checkpoint.of(scorer, device)
    if tokenizer is None and checkpoint.name is None:
        raise ValueError(
            "tokenizer must be given with a loaded model; got None for "
            f"{type(model).__name__}."
        )
    if tokenizer is None or _is_name(tokenizer):
        tokenizer = checkpoint.tokenizer(tokenizer)
    if checkpoint.name is None:
        model, checkpoint = _prepare(model, device, scorer.dtype), None
    else:
        model = checkpoint()
    check_masked_lm(model)
    _check_tokenizer(tokenizer, model, scorer.method)
    settings = (scorer.batch_tokens, gathered, can_pad, checkpoint)
    return MaskedLM(model, tokenizer.mask_token_id, *settings), tokenizer


def _is_name(value):
    return isinstance(value, str | os.PathLike)


def _prepare(model, device, dtype):
    """Return a loaded model on the device in the dtype, without changing it.

    It shares its tensors if they are there already, and is copied otherwise.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not (callable(model) and hasattr(model, "config")):
        raise TypeError(
            "model must be a name, a folder or a loaded masked language model, got "
            f"{model!r}."
        )
    floats = [t for t in model.parameters() if t.is_floating_point()]
    wanted = floats[0].dtype if dtype == "auto" else getattr(torch, dtype)
    if all(t.dtype == wanted and _same(t.device, device) for t in floats):
        return view_of(model)
    return copy.deepcopy(model).to(device=device, dtype=wanted).eval()


def _same(device, wanted):
    return device.type == wanted.type and wanted.index in (None, device.index)


def _check_tokenizer(tokenizer, model, method):
    """Refuse a tokenizer that has no mask token or more tokens than the model."""
    name = type(tokenizer).__name__
    if method == "pll_word_l2r" and not tokenizer.is_fast:
        raise ValueError(
            f"method='pll_word_l2r' needs a fast tokenizer, which knows words; {name} "
            "is none."
        )
    check_mask_token(tokenizer)
    strange = set(tokenizer("")) - INPUTS
    if strange & set(signature(model.forward).parameters):
        raise ValueError(
            f"tokenizer must describe tokens by {', '.join(sorted(INPUTS))} only, but "
            f"{name} adds {', '.join(sorted(strange))}: they may tell hidden ones."
        )
    n_model = model.config.vocab_size
    if len(tokenizer) > n_model:
        raise ValueError(
            f"tokenizer and model must have the same vocabulary, but {name} has "
            f"{len(tokenizer)} tokens and {type(model).__name__} {n_model}."
        )


def check_mask_token(tokenizer):
    if getattr(tokenizer, "mask_token_id", None) is None:
        name = type(tokenizer).__name__
        raise ValueError(f"tokenizer must have a mask token, {name} has none.")


class OpenedModelMixin:
    """Open the model that the parameters name, and leave it out of pickles.

    A loaded model that was given as a parameter is pickled, as such.
    """

    def _open(self, *probed):
        self._opened = open_model(self, *probed)
        return self._opened

    def _open_again(self):
        """Return the opened model and its tokenizer; after unpickling, open them."""
        if hasattr(self, "_opened"):
            return self._opened
        return self._open(self.uses_gathered_head_, self._can_pad)

    def __getstate__(self):
        state = super().__getstate__()
        state.pop("_opened", None)
        return state

    def __repr__(self, N_CHAR_MAX=700):
        """Name a loaded model by its class and size; its own repr is a whole page."""
        light = copy.copy(self)
        light.model, light.tokenizer = _short(self.model), _short(self.tokenizer)
        return super(OpenedModelMixin, light).__repr__(N_CHAR_MAX)

    def __sklearn_clone__(self):
        """Clone the parameters, but share a loaded model and its tokenizer."""
        light = copy.copy(self).set_params(model=None, tokenizer=None)
        clone = super(OpenedModelMixin, light).__sklearn_clone__()
        return clone.set_params(model=self.model, tokenizer=self.tokenizer)


class _Named:
    """Stands for an object in a repr."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


def _short(value):
    """Return what stands for a loaded model or tokenizer in a repr."""
    if isinstance(value, torch.nn.Module):
        n_parameters = sum(tensor.numel() for tensor in value.parameters())
        return _Named(f"<{type(value).__name__} of {n_parameters:,} parameters>")
    if isinstance(value, PreTrainedTokenizerBase):
        return _Named(f"<{type(value).__name__} of {len(value):,} tokens>")
    return value
