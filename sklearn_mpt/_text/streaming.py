"""Score many texts in blocks, with a cache on disk."""

import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sklearn.utils.validation import check_is_fitted

from sklearn_mpt._checks import check_int
from sklearn_mpt._text.lengths import LengthLogProb, length_term
from sklearn_mpt._text.scores import Texts
from sklearn_mpt._text.scoring import followed
from sklearn_mpt._text.texts import check_texts
from sklearn_mpt._version import __version__

SUFFIX = ".safetensors"
KEY_BYTES = 16


class TextScore(NamedTuple):
    """The score of a text.

    text : the text, or the (context, text) pair. log_prob : log-probability in nats,
    given the number of tokens unless a length term was added. std_error : standard
    error over masks. n_tokens : number of scored tokens.
    """

    text: str | tuple[str, str]
    log_prob: float
    std_error: float
    n_tokens: int


class StreamingMixin:
    """Score texts that come one after the other."""

    _open_again: Callable
    _draw: Callable
    _score_texts: Callable
    max_length_: int
    overflow: str
    verbose: bool

    def iter_scores(
        self,
        X: Texts,
        *,
        block_size: int = 1024,
        cache: str | os.PathLike | None = None,
        length_log_prob: LengthLogProb | None = None,
    ) -> Iterator[TextScore]:
        """Score texts block after block, and yield their scores in order.

        Each block of texts is read when it is needed, so a corpus need not fit into
        memory. If reading raises an error, the texts read before are scored and yielded
        first.

        Parameters
        ----------
        X : iterable of str or of (str, str) tuples
            Texts, or (context, text) pairs; may be a generator.
        block_size : int, default=1024
            Number of texts that are read and scored together.
        cache : str or path, default=None
            Folder for the scores, which is created if necessary. The scores of each
            block are written to a safetensors file. Texts whose scores are in the
            folder are not scored again, in whatever order and blocks they come. Several
            scorers can share a folder: their scores are distinguished by hashes of the
            model, tokenizer, method and seed.
        length_log_prob : callable or array-like of int, default=None
            As in `score_samples`.

        Yields
        ------
        score : TextScore
            A named tuple of `text`, `log_prob`, `std_error` and `n_tokens`, as
            `score_samples` computes them; ``pandas.DataFrame(scorer.iter_scores(X))``
            makes a table of them.

        Raises
        ------
        TypeError, ValueError
            As in `score_samples`, with a note that names the block; or if a file in the
            folder is not a cache of scores.
        """
        check_is_fitted(self)
        check_int(block_size, "block_size")
        if isinstance(X, str | bytes) or not hasattr(X, "__iter__"):
            check_texts(X)
        return self._iter_scores(X, block_size, cache, length_log_prob)

    def _iter_scores(self, X, block_size, cache, length_log_prob):
        store = Cache(cache, self._identity()) if cache is not None else None
        scored = (
            score
            for start, block in _read_blocks(X, block_size)
            for score in self._score_block_of(block, start, store, length_log_prob)
        )
        total = len(X) if hasattr(X, "__len__") else None
        return iter(followed(scored, total) if self.verbose else scored)

    def _score_block_of(self, block, start, store, length_log_prob):
        try:
            texts = check_texts(block)
            known = store.find(texts) if store is not None else {}
            missing = list(dict.fromkeys(text for text in texts if text not in known))
            if missing:
                scores = self._score_texts(missing, self._draw(), verbose=False)
                values = scores.totals()[0], scores.std_errors(), scores.n_tokens()
                known |= dict(zip(missing, zip(*values, strict=True), strict=True))
                if store is not None:
                    store.add(missing, values)
        except Exception as error:
            stop = start + len(block) - 1
            error.add_note(
                f"This was the block of texts {start} to {stop}, and indices count "
                "from its first text, or its first that was not in the cache."
            )
            raise
        counts = np.array([known[text][2] for text in texts])
        term = length_term(length_log_prob, counts)
        for text, added in zip(texts, term, strict=True):
            log_prob, error, n_tokens = known[text]
            yield TextScore(text, float(log_prob + added), float(error), int(n_tokens))

    def _identity(self):
        """Return a hash of the model and of all settings that affect scores."""
        language_model, tokenizer = self._open_again()
        digest = hashlib.blake2b(digest_size=KEY_BYTES)
        draw, model = self._draw(), language_model.model
        how = draw, self.max_length_, self.overflow, __version__, type(model).__name__
        digest.update(repr((*how, _describe(tokenizer))).encode())
        for name, tensor in model.state_dict().items():
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            bits = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(bits.view(torch.uint8).numpy().data if len(bits) else b"")
        return digest.digest()


def _describe(tokenizer):
    """Return a description of the tokenizer that determines the tokens of a text."""
    kind = type(tokenizer).__name__
    if tokenizer.is_fast:
        return kind, tokenizer.backend_tokenizer.to_str()
    return kind, sorted(tokenizer.get_vocab().items()), tokenizer.init_kwargs


def _read_blocks(texts, block_size):
    """Yield the index of the first text of each block, and its texts.

    If reading raises an error, it is raised after the texts read before are yielded.
    """
    iterator, start, failure = iter(texts), 0, None
    while failure is None:
        block = []
        try:
            for text in islice(iterator, block_size):
                block.append(text)
        except Exception as error:
            failure = error
        if block:
            yield start, block
        elif failure is None:
            return
        start += len(block)
    raise failure


class Cache:
    """Scores on disk, in a safetensors file for each block.

    `identity` is a hash of the model and of all settings that affect scores.
    """

    def __init__(self, folder, identity):
        self.folder = Path(folder)
        self.identity = identity
        self.folder.mkdir(parents=True, exist_ok=True)
        self.found = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            self._read(path)

    def find(self, texts):
        """Return a dict from texts to their scores, for texts in the cache."""
        keys = {text: self._key(text) for text in texts}
        return {text: self.found[k] for text, k in keys.items() if k in self.found}

    def add(self, texts, values):
        """Write the log-probabilities, errors and numbers of tokens of texts."""
        keys = [self._key(text) for text in texts]
        tensors = {  # save_file requires contiguous arrays
            "keys": np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(
                -1, KEY_BYTES
            ),
            "log_prob": np.ascontiguousarray(values[0], dtype=np.float64),
            "std_error": np.ascontiguousarray(values[1], dtype=np.float64),
            "n_tokens": np.ascontiguousarray(values[2], dtype=np.int64),
        }
        name = hashlib.blake2b(b"".join(keys), digest_size=KEY_BYTES).hexdigest()
        path = self.folder / f"{name}{SUFFIX}"
        part = path.with_suffix(f".{os.getpid()}.part")
        save_file(tensors, part)
        os.replace(part, path)  # so a file is whole, or not there

    def _read(self, path):
        try:
            tensors = load_file(path)
            columns = [tensors[k] for k in ("log_prob", "std_error", "n_tokens")]
            keys = tensors["keys"].tobytes()
        except (SafetensorError, KeyError) as error:
            raise ValueError(
                f"cache must be a folder of scores, but its file {path.name} holds "
                "none. Remove it, or take another folder."
            ) from error
        for i, values in enumerate(zip(*columns, strict=True)):
            self.found[keys[KEY_BYTES * i : KEY_BYTES * (i + 1)]] = values

    def _key(self, text):
        digest = hashlib.blake2b(self.identity, digest_size=KEY_BYTES)
        for part in (text,) if isinstance(text, str) else text:
            digest.update(b"%d:" % len(part.encode()) + part.encode())
        return digest.digest()
