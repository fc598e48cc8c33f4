"""Score many texts in blocks, with a cache on disk."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sklearn_mpt._checks import check_int
from sklearn_mpt._text.batches import followed
from sklearn_mpt._text.hashing import HASH_BYTES, hash_of
from sklearn_mpt._text.lengths import LengthLogProb, length_term
from sklearn_mpt._text.scores import TextScoresMixin
from sklearn_mpt._text.texts import Texts, check_texts, rows_of, show
from sklearn_mpt._text.windows import all_special_ids
from sklearn_mpt._version import __version__

SUFFIX = ".safetensors"
COLUMNS = {"log_prob": np.float64, "std_error": np.float64, "n_tokens": np.int64}
# Attributes with the model, which is hashed itself.
OPENED = {"_opened", "_opening_params"}
# Parameters that have no effect on scores after `fit`, but for rounding.
WITHOUT_EFFECT = {
    *("model", "tokenizer", "revision", "local_files_only", "trust_remote_code"),
    *("batch_tokens", "device", "n_jobs", "verbose", "random_state", "mask_rates"),
}


class TextScore(NamedTuple):
    """The score of a text.

    text : the text, pair or part. log_prob : log-probability in nats, given the number
    of tokens unless a length term was added. std_error : standard error over masks.
    n_tokens : number of scored tokens.
    """

    text: str | tuple[str, str] | tuple[str, int, int]
    log_prob: float
    std_error: float
    n_tokens: int


class StreamingMixin(TextScoresMixin):
    """Score texts that come one after the other."""

    def iter_scores(
        self,
        X: Texts,
        *,
        block_size: int = 1024,
        cache: str | os.PathLike | None = None,
        length_log_prob: LengthLogProb | None = None,
    ) -> Iterator[TextScore]:
        """Score texts block after block, and return an iterator over their scores.

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
            block are written to a safetensors file with a checksum. Texts whose scores
            are in the folder are not scored again, in whatever order and blocks they
            come. Several scorers, threads and processes can share a folder: scores are
            distinguished by a hash of the model (its weights, buffers, configuration,
            adapters, and the code and versions of its classes), the tokenizer, method
            and seed.
        length_log_prob : callable or array-like of int, default=None
            As in `score_samples`.

        Returns
        -------
        scores : iterator of TextScore
            In the order of the texts: named tuples of `text`, `log_prob`, `std_error`
            and `n_tokens`, as `score_samples` computes them;
            ``pandas.DataFrame(scorer.iter_scores(X))`` makes a table of them.

        Raises
        ------
        TypeError, ValueError
            As in `score_samples`, with a note that names the block; or if `cache` is
            not a folder, or a file in it holds no scores, or other ones than were
            written.
        OSError
            If scores cannot be written to the folder, as on a full disk. The scores of
            the block are yielded first.
        """
        self._check_is_fitted()
        check_int(block_size, "block_size")
        if isinstance(X, str | bytes) or not hasattr(X, "__iter__"):
            check_texts(X)
        return self._iter_scores(rows_of(X), block_size, cache, length_log_prob)

    def _iter_scores(self, X, block_size, cache, length_log_prob):
        store = ScoreCache(cache, self._identity()) if cache is not None else None
        stamp = self._stamp()

        def score_blocks(store, stamp):
            for start, block in _read_blocks(X, block_size):
                if store is not None and self._stamp() != stamp:  # was trained since
                    store, stamp = ScoreCache(cache, self._identity()), self._stamp()
                yield from self._score_block_of(block, start, store, length_log_prob)

        scored = score_blocks(store, stamp)
        total = len(X) if hasattr(X, "__len__") else None
        return iter(followed(scored, total) if self.verbose else scored)

    def _stamp(self):
        """Return numbers that change when tensors of the model do."""
        model = self._open_again()[0].model
        tensors = itertools.chain(model.parameters(), model.buffers())
        return tuple(t._version for t in tensors if not t.is_inference())

    def _score_block_of(self, block, start, store, length_log_prob):
        failure = None
        try:
            texts = check_texts(block)
            known = store.find(texts) if store is not None else {}
            missing = list(dict.fromkeys(text for text in texts if text not in known))
            if missing:
                scores = self._score_texts(missing, self._draw(), verbose=False)
                values = scores.totals(), scores.std_errors(), scores.n_tokens()
                known |= dict(zip(missing, zip(*values, strict=True), strict=True))
                if store is not None:
                    failure = store.add(missing, values)
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
        if failure is not None:
            stop = start + len(block) - 1
            failure.add_note(
                f"The scores of texts {start} to {stop} were yielded, but are not in "
                "the cache."
            )
            raise failure

    def _identity(self):
        """Return a hash of the model and of all settings that affect scores."""
        import transformers  # its import takes long

        language_model, tokenizer = self._open_again()
        params = self.get_params(deep=False)
        settings = {k: v for k, v in params.items() if k not in WITHOUT_EFFECT}
        fitted = {
            name: value
            for name, value in vars(self).items()
            if name not in params and name not in OPENED and not callable(value)
        }
        return hash_of(
            (__version__, torch.__version__, transformers.__version__),
            (settings, fitted, self._draw()),
            _describe(tokenizer),
            language_model.model,
        )


def _describe(tokenizer):
    """Return what determines the tokens of a text, and which of them are scored."""
    special = all_special_ids(tokenizer), tokenizer.unk_token_id
    if tokenizer.is_fast:
        return type(tokenizer), special, tokenizer.backend_tokenizer.to_str()
    return type(tokenizer), special, tokenizer.get_vocab(), tokenizer.init_kwargs


def _read_blocks(texts, block_size):
    """Yield the index of the first text of each block, and its texts.

    If reading raises an error, it is raised after the texts read before are yielded.
    """
    iterator, start, failure = iter(texts), 0, None
    while failure is None:
        block = []
        try:
            for text in itertools.islice(iterator, block_size):
                block.append(text)
        except Exception as error:
            failure = error
        if block:
            yield start, block
        elif failure is None:
            return
        start += len(block)
    raise failure


class ScoreCache:
    """Scores on disk, in a safetensors file for each block.

    `identity` is a hash of the model and of all settings that affect scores.
    """

    def __init__(self, folder, identity):
        self.folder = _make_folder(folder)
        self.identity = identity
        self.found = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            self._read(path)

    def find(self, texts):
        """Return a dict from texts to their scores, for texts in the cache."""
        keys = {text: self._key(text) for text in texts}
        return {text: self.found[k] for text, k in keys.items() if k in self.found}

    def add(self, texts, values):
        """Write the log-probabilities, errors and numbers of tokens of texts.

        Returns the error if they cannot be written.
        """
        keys = b"".join(self._key(text) for text in texts)
        tensors = {
            name: np.ascontiguousarray(column, dtype=dtype)  # as safetensors requires
            for (name, dtype), column in zip(COLUMNS.items(), values, strict=True)
        }
        tensors["keys"] = np.frombuffer(keys, dtype=np.uint8).reshape(-1, HASH_BYTES)
        name = hash_of(keys).hex()
        path = self.folder / f"{name}{SUFFIX}"
        part = path.with_suffix(f".{uuid4().hex}.part")  # of this thread alone
        try:
            part.write_bytes(save(tensors, {"checksum": _checksum(tensors)}))
            os.replace(part, path)  # so a file is whole, or not there
        except OSError as error:
            part.unlink(missing_ok=True)
            return error
        return None

    def _read(self, path):
        if path.is_dir():
            raise ValueError(
                f"cache must be a folder of scores, but {path.name} in it is a folder. "
                "Remove it, or take another folder."
            )
        try:
            with safe_open(path, "numpy") as file:
                tensors = {name: file.get_tensor(name) for name in (*COLUMNS, "keys")}
                checksum = (file.metadata() or {}).get("checksum")
        except SafetensorError as error:
            raise ValueError(
                f"cache must be a folder of scores, but its file {path.name} holds "
                "none. Remove it, or take another folder."
            ) from error
        if checksum != _checksum(tensors):
            raise ValueError(
                f"The file {path.name} of the cache does not hold the scores that were "
                "written to it: its checksum is another one, or it has none. Remove "
                "it, and its texts are scored again."
            )
        keys = tensors["keys"].tobytes()
        for i, values in enumerate(zip(*map(tensors.get, COLUMNS), strict=True)):
            self.found[keys[HASH_BYTES * i : HASH_BYTES * (i + 1)]] = values

    def _key(self, text):
        return hash_of(self.identity, text)


def _make_folder(folder):
    """Return the path of the folder, which is created if necessary."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"cache must be the path of a folder, got {show(folder)}.")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"cache must be a folder, but {str(folder)!r}, or a part of this path, is "
            "a file."
        ) from error
    return folder


def _checksum(tensors):
    """Hash names, shapes and numbers of arrays."""
    return hash_of(tensors).hex()
