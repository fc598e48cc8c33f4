"""Load a masked language model and its tokenizer, and check that they fit."""

import copy
import hashlib
import os
import re
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path

import torch
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._base.state import check_bound_parameters
from sklearn_mpt._checks import check_device, joined
from sklearn_mpt._text.masked_lm import (
    MaskedLM,
    adapt_module,
    check_finite_weights,
    check_masked_lm,
    view_of,
)
from sklearn_mpt._text.windows import all_special_ids, windows_of

# Heads and buffers that do not predict hidden tokens; a checkpoint may lack them.
UNUSED = re.compile(
    r"\b(pooler|seq_relationship|sop_classifier|contact_head|position_ids|inv_freq)\b"
)
# Inputs that do not reveal a hidden token. Others of a tokenizer are refused.
INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
DESCRIPTION = "a masked language model with its tokenizer, from safetensors"
LOADING = threading.Lock()  # from_pretrained patches torch in all threads while it runs
# Endings of files that are read neither for models nor for tokenizers.
UNREAD = (".bin", ".h5", ".md", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".log")
WEIGHTS = (".safetensors",)
CONFIGS = ("config.json", "tokenizer_config.json", "tokenizer.json")
HUB = "a name on the hub"
OF_VOCAB_FILE = (
    "Of a file vocab.txt, make a tokenizer by BertTokenizer(vocab={token: i for i, "
    "token in enumerate(open('vocab.txt', encoding='utf-8').read().splitlines())}). "
)


@dataclass(frozen=True)
class Source:
    """A folder or a name on the hub, from which a model or a tokenizer is read."""

    # A pickle holds the source, not the model: that of a folder has a hash of the files
    # that were read, that of a name on the hub the commit, if it is known.

    name: str
    revision: str | None
    local_files_only: bool
    trust_remote_code: bool
    unread: tuple
    digest: str

    @classmethod
    def of(cls, name, revision, scorer, unread=UNREAD):
        """Return the source of a name, with the hash of its files."""
        name = str(os.fspath(name))
        settings = (scorer.local_files_only, scorer.trust_remote_code)
        return cls(name, revision, *settings, unread, digest_of(name, unread))

    def __reduce__(self):  # without what is cached
        return Source, astuple(self)

    def check(self):
        """Refuse files that have changed since they were first read."""
        if self.digest != digest_of(self.name, self.unread):
            raise ValueError(
                f"The files of {self.name!r} have changed since the scorer read them, "
                "or are gone. Fit the scorer again."
            )

    def load(self, auto_class, description, **kwargs):
        """Return ``auto_class.from_pretrained`` of the name."""
        try:
            # Random weights that a checkpoint replaces take the global generator.
            with LOADING, torch.random.fork_rng(devices=[]):
                return auto_class.from_pretrained(
                    self.name,
                    revision=self.revision,
                    local_files_only=self.is_local,
                    trust_remote_code=self.trust_remote_code,
                    **kwargs,
                )
        except MemoryError:
            raise
        except Exception as error:  # tokenizers raises plain Exception
            kinds = (kind for kind in (OSError, ImportError) if isinstance(error, kind))
            raise next(kinds, ValueError)(
                f"{self.name!r} could not be loaded as {description}. Pass a name on "
                "the Hugging Face hub; offline, a folder written by save_pretrained; "
                f"or a loaded model and its tokenizer. {self._reason(error)}{error}"
            ) from error

    @cached_property
    def is_local(self):
        """Whether only a folder or the cache is read: by choice, or without network."""
        # transformers would ask a hub that does not answer again for about a minute.
        if self.local_files_only or os.path.isdir(self.name):
            return True
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session

        try:  # whatever the answer is
            seconds = constants.HF_HUB_ETAG_TIMEOUT
            get_session().head(constants.ENDPOINT, timeout=seconds)
        except Exception:  # of the network, by requests or httpx
            return True
        return False

    def _reason(self, error):
        """Say what an error of transformers means, if that is known."""
        if os.path.isfile(self.name):
            return OF_VOCAB_FILE
        if not (self.local_files_only or os.path.isdir(self.name)) and self.is_local:
            return (
                "There is no network, as the hub does not answer, and the cache does "
                "not hold all files. "
            )
        if "safetensors" in str(error):
            return (
                "Only weights in safetensors are read, as files of other kinds can run "
                "code. Where you trust a .bin file, load it by AutoModelForMaskedLM."
                "from_pretrained(..., use_safetensors=False), and write it with "
                "model.save_pretrained(folder). "
            )
        return ""

    def check_adapter(self):
        """Refuse an adapter that transformers would leave out without a message."""
        # With peft, transformers loads the model below and puts the adapter on it.
        from transformers.utils import find_adapter_config_file, is_peft_available

        if is_peft_available():
            return
        config_file = find_adapter_config_file(
            self.name, revision=self.revision, local_files_only=self.is_local
        )
        if config_file is not None:
            raise ImportError(
                f"{self.name!r} holds an adapter, described by its adapter_config.json,"
                " which needs peft: pip install peft. Without it, at best the model "
                "below the adapter would be scored. To score that model, remove the "
                "file, or load the model yourself and pass it with its tokenizer."
            )

    def load_model(self, device, dtype):
        """Load the model onto a device, in evaluation mode."""
        from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig

        # renamed by transformers 4.56
        name = "dtype" if hasattr(PretrainedConfig(), "dtype") else "torch_dtype"
        self.check_adapter()
        try:
            model, info = self.load(
                AutoModelForMaskedLM,
                DESCRIPTION,
                use_safetensors=True,
                output_loading_info=True,
                **{name: dtype},
            )
        except ValueError as error:
            if "Unrecognized configuration class" in str(error):
                config = self.load(AutoConfig, DESCRIPTION)
                check_masked_lm((config.architectures or ["?"])[0], config)
            raise
        wrong = {  # missing weights would be random
            kind: sorted(key for key in info[f"{kind}_keys"] if not UNUSED.search(key))
            for kind in ("missing", "unexpected")
        }
        if any(wrong.values()):
            listed = "; ".join(
                f"{kind} are {joined(keys)}" for kind, keys in wrong.items() if keys
            )
            raise ValueError(
                f"The weights of {self.name!r} are not those of a "
                f"{type(model).__name__}, a masked language model: {listed}. To score "
                "it anyway, load it yourself and pass it as model, with its tokenizer."
            )
        return model.to(device)

    def with_commit(self):
        """Return the source with the commit that was read, for a name on the hub."""
        from transformers.utils import cached_file
        from transformers.utils.hub import extract_commit_hash

        settings = {"revision": self.revision, "local_files_only": True}
        for config in () if os.path.isdir(self.name) else CONFIGS:
            with suppress(OSError):
                path = cached_file(self.name, config, **settings)
                commit = extract_commit_hash(path, None)
                if commit is not None:
                    return replace(self, revision=commit)
        return self


def digest_of(name, unread):
    """Return a hash of names and contents of the files of a folder that are read."""
    if not os.path.isdir(name):
        return HUB
    total = hashlib.sha256()
    for entry in sorted(Path(name).iterdir()):
        is_read = not entry.name.startswith(".") and not entry.name.endswith(unread)
        if is_read and entry.is_file():
            with entry.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            total.update(hashlib.sha256(entry.name.encode()).digest() + digest)
    return total.hexdigest()


@dataclass(frozen=True, eq=False)
class OpeningParams:
    """The parameters from which `fit` opened the model and the tokenizer."""

    # Pickled with the scorer, so that later changes of parameters have no effect.

    model: object  # a Source, or a loaded model
    tokenizer: object  # a Source, or a loaded tokenizer
    device: object
    dtype: str
    batch_tokens: int

    @classmethod
    def of(cls, scorer):
        """Read the parameters of a scorer."""
        model, tokenizer, revision = scorer.model, scorer.tokenizer, scorer.revision
        if tokenizer is None and not _is_name(model):
            raise ValueError(
                "tokenizer must be given with a loaded model; got None for "
                f"{type(model).__name__}."
            )
        if _is_name(tokenizer):
            is_same = _is_name(model) and os.fspath(tokenizer) == os.fspath(model)
            revision_of_model = revision if is_same else None
            unread = UNREAD + WEIGHTS
            tokenizer = Source.of(tokenizer, revision_of_model, scorer, unread)
        if _is_name(model):
            model = Source.of(model, revision, scorer)
        tokenizer = model if tokenizer is None else tokenizer
        settings = (scorer.device, scorer.dtype, scorer.batch_tokens)
        return cls(model, tokenizer, *settings)

    def open(self, gathered=True):
        """Return the `MaskedLM`, the tokenizer, and a recipe that opens both again."""
        from transformers import AutoTokenizer

        dtype = "float32" if self.dtype == "auto" else self.dtype
        device = check_device(self.device, dtype)
        tokenizer = tokenizer_source = self.tokenizer
        if isinstance(tokenizer, Source):
            description = DESCRIPTION if tokenizer == self.model else "a tokenizer"
            tokenizer = tokenizer.load(AutoTokenizer, description)
            tokenizer_source = tokenizer_source.with_commit()
        else:
            check_tokenizer(tokenizer)
            # A call with truncation changes a tokenizer for all threads, and users may
            # add tokens later. Scores must not depend on either, hence the copy.
            tokenizer = copy.deepcopy(tokenizer)
        if isinstance(self.model, Source):
            model = self.model.load_model(device, self.dtype)
            source = self.model.with_commit()
            checkpoint = source, device, self.dtype
        else:
            model = _prepare(self.model, tokenizer, device, self.dtype)
            checkpoint = None
            source = self.model
        check_masked_lm(type(model).__name__, model.config)
        check_finite_weights(model)
        _check_tokenizer(tokenizer, model)
        settings = (self.batch_tokens, gathered, checkpoint)
        language_model = MaskedLM(model, tokenizer.mask_token_id, *settings)
        recipe = replace(self, model=source, tokenizer=tokenizer_source)
        return language_model, tokenizer, recipe


def _is_name(value):
    return isinstance(value, str | os.PathLike)


def _prepare(model, tokenizer, device, dtype):
    """Return a loaded model on the device in the dtype, without changing it."""
    # Tensors are shared if they are on that device in that dtype already.
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            "model must be a name, a folder, a loaded masked language model of "
            "transformers, or another torch.nn.Module from input_ids to logits, got "
            f"{type(model).__name__}."
        )
    if not hasattr(model, "config"):
        check_tokenizer(tokenizer)
        model = adapt_module(model, tokenizer)
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        raise ValueError(
            "model must hold its weights, but some tensors of this "
            f"{type(model).__name__} are on the device 'meta', which holds no numbers. "
            "Load it without device_map and outside of torch.device('meta')."
        )
    floats = [t for t in model.parameters() if t.is_floating_point()]
    if not floats:
        raise ValueError(
            "model must have weights of floating point, but "
            f"{type(model).__name__} has none."
        )
    wanted = floats[0].dtype if dtype == "auto" else getattr(torch, dtype)
    if all(
        tensor.dtype == wanted
        and tensor.device.type == device.type
        and device.index in (None, tensor.device.index)
        for tensor in floats
    ):
        return view_of(model)
    return copy.deepcopy(model).to(device=device, dtype=wanted).eval()


def _check_tokenizer(tokenizer, model):
    """Refuse a tokenizer that does not fit the model."""
    check_tokenizer(tokenizer)
    name = type(tokenizer).__name__
    unknown = set(tokenizer("")) - INPUTS
    if unknown & set(signature(model.forward).parameters):
        raise ValueError(
            f"tokenizer must describe tokens by {', '.join(sorted(INPUTS))} only, but "
            f"{name} adds {', '.join(sorted(unknown))}, which may reveal hidden tokens."
        )
    n_model = model.config.vocab_size
    n_tokens = 1 + max(tokenizer.get_vocab().values())
    if n_tokens > n_model:
        advice = (
            f" The mask token {tokenizer.mask_token} is new to the model: name the one "
            "that it was trained with, by tokenizer.mask_token = ...; or make room for "
            "it, by model.resize_token_embeddings(len(tokenizer)), and train the model "
            "with it."
        )
        raise ValueError(
            f"tokenizer and model must have the same vocabulary, but {name} has "
            f"{n_tokens} tokens and {type(model).__name__} {n_model}."
            + (advice if tokenizer.mask_token_id >= n_model else "")
        )


def check_tokenizer(tokenizer):
    """Refuse a tokenizer without a mask token, or with special tokens only."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            "tokenizer must be a tokenizer of transformers, its name or its folder, "
            f"got {type(tokenizer).__name__}. A tokenizers.Tokenizer becomes one by "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=...)."
        )
    name, mask = type(tokenizer).__name__, tokenizer.mask_token_id
    if mask is None or mask == tokenizer.unk_token_id:
        given = tokenizer.mask_token
        raise ValueError(
            f"tokenizer must have a mask token, {name} has none."
            if given in (None, tokenizer.unk_token)
            else f"tokenizer must have its mask token in its vocabulary, but {name} "
            f"reads {given!r} as unknown. Set tokenizer.mask_token to the mask token "
            "that the model was trained with."
        )
    if not set(tokenizer.get_vocab().values()) - set(all_special_ids(tokenizer)):
        raise ValueError(
            f"tokenizer must know other tokens than special ones, but {name} knows "
            f"only {', '.join(tokenizer.all_special_tokens)}. If a folder holds no "
            "tokenizer, transformers makes an empty one. Save the model's tokenizer "
            "there with tokenizer.save_pretrained(folder), or pass it as tokenizer. "
            "BertTokenizer(vocab_file=...) of transformers 5 leaves out the file. "
            f"{OF_VOCAB_FILE}"
        )


def check_words(method, tokenizer, mask_blocks=None):
    """Refuse what needs words if the tokenizer does not know them."""
    if (method == "pll_word_l2r" or mask_blocks == "word") and not tokenizer.is_fast:
        name = "mask_blocks='word'" if mask_blocks else f"method={method!r}"
        raise ValueError(
            f"{name} needs a fast tokenizer, which knows the words of a text, and "
            f"{type(tokenizer).__name__} is none. Where each token is a word, the "
            "result is that without words: method='pll', or mask_blocks=None."
        )


class OpenedModelMixin:
    """Open the model that the parameters name, and leave it out of pickles."""

    # A loaded model that was given as a parameter is pickled as that parameter.

    mask_token_id_: int
    max_length_: float

    def _open_again(self):
        """Return what `fit` opened; after unpickling, open the same again."""
        if not hasattr(self, "_opened"):
            params = self._opening_params
            for source in {params.model, params.tokenizer}:
                if isinstance(source, Source):
                    source.check()
            self._opened = params.open(self.uses_gathered_head_)[:2]
        return self._opened

    def _check_is_fitted(self):
        check_is_fitted(self)
        check_bound_parameters(self, self._bound)

    def _windows(self, texts):
        """Return a window of any length for each text; equal texts share one."""
        windows, first = self._distinct_windows(texts)
        by_text = {window.text: window for window in windows}
        return [by_text[index] for index in first]

    def _distinct_windows(self, texts):
        """Return a window for each distinct text, and indices; see `windows_of`."""
        language_model, tokenizer = self._open_again()
        return windows_of(tokenizer, texts, language_model.input_names)

    def __getstate__(self):
        state = super().__getstate__()
        state.pop("_opened", None)
        return state

    def __repr__(self, N_CHAR_MAX=700):
        """Show a loaded model by its class and size, as its own repr is long."""
        light = copy.copy(self)
        light.model, light.tokenizer = _short(self.model), _short(self.tokenizer)
        return super(OpenedModelMixin, light).__repr__(N_CHAR_MAX)

    def __sklearn_clone__(self):
        """Clone the parameters, but share a loaded model and its tokenizer."""
        light = copy.copy(self).set_params(model=None, tokenizer=None)
        clone = super(OpenedModelMixin, light).__sklearn_clone__()
        return clone.set_params(model=self.model, tokenizer=self.tokenizer)


class _ReprName(str):
    """Placeholder for an object in a repr."""

    __repr__ = str.__str__


def _short(value):
    """Return a placeholder for a loaded model or tokenizer in a repr."""
    from transformers import PreTrainedTokenizerBase

    if isinstance(value, torch.nn.Module):
        n_parameters = sum(tensor.numel() for tensor in value.parameters())
        return _ReprName(f"<{type(value).__name__} of {n_parameters:,} parameters>")
    if isinstance(value, PreTrainedTokenizerBase):
        return _ReprName(f"<{type(value).__name__} of {len(value):,} tokens>")
    return value
