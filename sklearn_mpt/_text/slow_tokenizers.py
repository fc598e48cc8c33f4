"""Offsets of tokens, for tokenizers written in Python, which do not return them."""

from __future__ import annotations

import re
from collections import UserDict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from sklearn_mpt._text.texts import show

# Marks of tokens: where they begin, go on with or end a word.
BEGINS = ("\u2581", "\u0120")  # of SentencePiece and of byte-level BPE
GOES_ON = "##"
ENDS = "</w>"
IS_FOLLOWED = "@@"


class SlowEncoding(UserDict):
    """What a slow tokenizer returns, with what `BatchEncoding` has of fast ones."""

    def __init__(self, data, sequences, words):
        super().__init__(data)
        self._sequences = sequences
        self._words = words

    def __getitem__(self, key):
        if isinstance(key, str):
            return super().__getitem__(key)
        return SimpleNamespace(n_sequences=1 + (1 in self._sequences[key]))

    def sequence_ids(self, row):
        """Return 0 for tokens of the first text, 1 for the second, None for others."""
        return self._sequences[row]

    def word_ids(self, row):
        """Return the index of the word of each token, None for added tokens."""
        return self._words[row]


def encode_slowly(tokenizer, columns):
    """Encode texts, or pairs of texts.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizer
    columns : list of one list of str, or of two
        Texts; or contexts and texts.

    Returns
    -------
    SlowEncoding
        With "special_tokens_mask" and "offset_mapping". Offsets are those at which the
        tokens are found in the text, one after the other; -1 in a text where one is not
        found, because the tokenizer changes characters.
    """
    data = dict(tokenizer(*columns, verbose=False))
    goes_on = rule_of_words(tokenizer)
    sequences, words, offsets = [], [], []
    for row, parts in enumerate(zip(*columns, strict=True)):
        tokens = [tokenizer.tokenize(part) for part in parts]
        marks = [
            [~index] * len(part_tokens) for index, part_tokens in enumerate(tokens)
        ]
        ids = tokenizer.build_inputs_with_special_tokens(*marks)
        n_tokens = len(data["input_ids"][row])
        if len(ids) != n_tokens:
            raise ValueError(
                "tokenizer must say which tokens it adds, but "
                f"{type(tokenizer).__name__} makes {n_tokens} tokens of a text where "
                f"{len(ids)} are expected. Pass a fast tokenizer."
            )
        sequences.append([~mark if mark < 0 else None for mark in ids])
        bounds = [
            align(part_tokens, part)
            for part_tokens, part in zip(tokens, parts, strict=True)
        ]
        indices = [words_of_tokens(part_tokens, goes_on) for part_tokens in tokens]
        offsets.append(_laid_out(sequences[-1], bounds, (0, 0)))
        words.append(_laid_out(sequences[-1], indices, None))
    data["offset_mapping"] = offsets
    data["special_tokens_mask"] = [[i is None for i in row] for row in sequences]
    return SlowEncoding(data, sequences, words)


def starts_of_tokens(tokenizer, text):
    """Return where the tokens of a text start, whatever the kind of tokenizer."""
    if tokenizer.is_fast:
        bounds = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
    else:
        bounds = align(tokenizer.tokenize(text), text)
    if (-1, -1) in bounds:
        raise ValueError(
            f"{type(tokenizer).__name__} is no fast tokenizer and changes characters, "
            f"so it is unknown where the tokens of {show(text)} are. Pass a fast "
            "tokenizer, or a shorter text."
        )
    return [start for start, _ in bounds]


def align(tokens, text):
    """Return the start and end of each token in a text.

    Tokens follow each other, with nothing but white space between them. An unknown
    token covers the text between its neighbours. If a token is not found, or two
    unknown ones follow each other, all offsets are -1.
    """
    bounds, position, is_unknown = [], 0, False
    for token in tokens:
        piece = without_marks(token)
        start = _find(piece, text, position, is_unknown)
        gap = text[position:start].strip() if start >= 0 else "?"
        if start < 0 and not is_unknown:
            is_unknown = True
            bounds.append(None)
        elif start < 0 or bool(gap) != is_unknown:
            return [(-1, -1)] * len(tokens)
        else:
            if is_unknown:
                bounds[-1] = _stripped(text, position, start)
            is_unknown = False
            position = start + len(piece)
            bounds.append((start, position))
    if is_unknown:
        bounds[-1] = _stripped(text, position, len(text))
    return bounds


def _find(piece, text, position, is_unknown):
    """Return where a piece starts; after unknown text, only where a word starts."""
    pattern = r"(?<!\w)" if is_unknown and piece[:1].isalnum() else ""
    pattern += re.escape(piece)
    for flags in (0, re.IGNORECASE):  # some tokenizers lower letters
        match = re.compile(pattern, flags).search(text, position)
        if match:
            return match.start()
    return -1


def _stripped(text, start, stop):
    """Return the bounds of a part of a text without white space around it."""
    part = text[start:stop]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def without_marks(token):
    for mark in (*BEGINS, GOES_ON):
        token = token.removeprefix(mark)
    return token.removesuffix(ENDS).removesuffix(IS_FOLLOWED)


def rule_of_words(tokenizer):
    """Return a function: whether a token goes on with the word of the one before.

    None if the vocabulary has no marks of words.
    """
    vocabulary = tokenizer.get_vocab()
    for begin in BEGINS:
        if any(token.startswith(begin) for token in vocabulary):
            return lambda before, token: not token.startswith(begin)
    if any(token.startswith(GOES_ON) and token != GOES_ON for token in vocabulary):
        return lambda before, token: token.startswith(GOES_ON)
    if any(token.endswith(ENDS) and token != ENDS for token in vocabulary):
        return lambda before, token: not before.endswith(ENDS)
    if any(token.endswith(IS_FOLLOWED) for token in vocabulary):
        return lambda before, token: before.endswith(IS_FOLLOWED)
    return None


def words_of_tokens(tokens, goes_on):
    """Return the index of the word of each token; without a rule, each is a word.

    goes_on : as `rule_of_words` returns it.
    """
    if goes_on is None:
        return list(range(len(tokens)))
    begins = [not goes_on(before, token) for before, token in pairwise(tokens)]
    return np.cumsum([0, *begins])[: len(tokens)].tolist()


def _laid_out(sequences, parts, added):
    """Put what belongs to the tokens of parts among the tokens that were added."""
    iterators = [iter(part) for part in parts]
    return [added if i is None else next(iterators[i]) for i in sequences]
