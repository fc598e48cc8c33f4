"""Check and tokenise texts, pairs and parts; cut them into windows of the model."""
# A text is a str, a (context, text) pair of str, or a part of a text: a (text, start,
# stop) tuple, of which the characters from start to stop are scored.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral, Real
from reprlib import Repr

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._tables.frames import frame_of

Texts = Iterable[str] | Iterable[tuple[str, str]] | Iterable[tuple[str, int, int]]
# Marks of tokens: where they begin, go on with or end a word.
BEGINS = ("\u2581", "\u0120")  # of SentencePiece and of byte-level BPE
GOES_ON = "##"
ENDS = "</w>"
IS_FOLLOWED = "@@"


def check_texts(texts):
    """Return the texts as a list of str, pairs or parts."""
    texts = rows_of(texts)
    if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
        raise TypeError(
            "texts must be a list of str, one for each text, got a single "
            f"{type(texts).__name__}."
        )
    if isinstance(texts, Mapping | set | frozenset):
        raise TypeError(
            "texts must be a list of str, or another sequence with an order, got a "
            f"{type(texts).__name__}."
        )
    texts = [_check_text(text, index) for index, text in enumerate(texts)]
    if not texts:
        raise ValueError("texts must hold at least one text, got none.")
    for index, text in enumerate(texts):
        if _kind(text) != _kind(texts[0]):
            raise TypeError(
                "texts must be all str, all (context, text) pairs or all (text, start, "
                f"stop) parts, but texts[0] is a {_kind(texts[0])} and texts[{index}] "
                f"a {_kind(text)}."
            )
    return texts


def rows_of(texts):
    """Return the texts of a column, or the rows of two or three columns as tuples."""
    # Reads DataFrames, arrays of NumPy and pyarrow, and a `Dataset` of datasets; other
    # iterables are returned as they are.
    n_dimensions = len(getattr(texts, "shape", (0,)))
    if is_into_dataframe(texts):
        columns = [column.to_list() for column in frame_of(texts).iter_columns()]
    elif isinstance(getattr(texts, "column_names", None), list):  # or of pyarrow
        columns = [rows_of(texts[name]) for name in texts.column_names]
    elif hasattr(texts, "to_pylist"):  # of pyarrow, whose entries are no str
        return texts.to_pylist()
    elif n_dimensions == 1:
        return texts
    else:
        columns = texts.T.tolist() if n_dimensions == 2 else []
    if len(columns) == 1:
        return columns[0]
    if len(columns) in (2, 3):
        return list(zip(*columns, strict=True))
    raise ValueError(
        "texts must be a list or a column of str; or have two columns, of contexts "
        "and texts, or three, of texts and where their scored parts start and stop. "
        f"Got a {type(texts).__name__} of "
        + (f"shape {texts.shape}." if hasattr(texts, "shape") else "other columns.")
    )


def strings_of(values, name):
    """Return the entries of a sequence or a column of str as a list."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise TypeError(
            f"{name} must be a sequence of str, got a single {show(values)}."
        )
    if len(getattr(values, "shape", (0,))) != 1:
        raise TypeError(
            f"{name} must be a sequence of str, such as one column of a table, got a "
            f"{type(values).__name__} of shape {values.shape}."
        )
    return list(rows_of(values))


def distinct_texts(texts):
    """Return the first text that equals each, as a dict and an array of indices."""
    first = {}
    for index, text in enumerate(texts):
        first.setdefault(text, index)
    return first, np.array([first[text] for text in texts])


def whole_text(text):
    """Return the text that a part belongs to; others are returned unchanged."""
    return text[0] if _kind(text) == "part" else text


def scored_text(text):
    """Return the characters of a text, a pair or a part that are scored."""
    if isinstance(text, str):
        return text
    return text[1] if len(text) == 2 else text[0][text[1] : text[2]]


def _check_text(text, index):
    parts = text if isinstance(text, tuple) and len(text) in (2, 3) else (text,)
    is_part = len(parts) == 3 and all(
        isinstance(bound, Integral) and not isinstance(bound, bool)
        for bound in parts[1:]
    )
    for part in parts[:1] if is_part else parts:
        if not isinstance(part, str) or (len(parts) == 3 and not is_part):
            raise TypeError(
                f"texts[{index}] must be a str, or (context, text), or (text, start, "
                f"stop) with two ints, got {show(text)} of type {type(text).__name__}."
                f"{_advice(part)}"
            )
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}] holds {part[error.start]!r} at {error.start}, half of "
                "a surrogate pair, which is no character. Decode the text with "
                "errors='replace' to have it replaced."
            ) from error
    if not is_part:
        return tuple(map(str, parts)) if len(parts) == 2 else str(text)
    text, start, stop = parts
    if not 0 <= start <= stop <= len(text):
        raise ValueError(
            f"texts[{index}] must be a (text, start, stop) part with 0 <= start <= "
            f"stop <= {len(text)}, the length of its text, got {start} and {stop}."
        )
    return str(text), int(start), int(stop)


def _advice(part):
    if isinstance(part, bytes):
        return " Decode it, by .decode()."
    if isinstance(part, list):
        return (
            " Write a (context, text) pair as a tuple, and join the words of one text, "
            "by ' '.join(words)."
        )
    if isinstance(part, Mapping):
        return " Take the text out of it, as in (row['text'] for row in X)."
    if isinstance(part, Real) and part == part:
        return " Of a table, pass the columns with texts, such as X['text']."
    # None, NaN, pandas.NA and entries that a masked array hides
    if part is None or str(part) in ("nan", "<NA>", "NaT", "--"):
        return " Texts that are missing must be dropped, or be ''."
    return ""


def show(value):
    """Return a short repr without the names of NumPy types."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if type(value) in (list, tuple) and len(value) <= 20:
        shown = ", ".join(show(item) for item in value)
        comma = "," if len(value) == 1 else ""
        return f"[{shown}]" if isinstance(value, list) else f"({shown}{comma})"
    short = Repr()
    short.maxstring = short.maxother = 80  # characters
    return short.repr(value)


def _kind(text):
    if isinstance(text, str):
        return "str"
    return "pair" if len(text) == 2 else "part"


@dataclass(frozen=True, eq=False)
class Window:
    """Tokens of one input of the model, and which of them are scored in this window."""

    text: int  # index of the text
    inputs: dict  # name -> int array of shape (n_tokens,), "input_ids" among them
    is_fixed: np.ndarray  # bool, shape (n_tokens,): added by the tokenizer, or context
    is_maskable: np.ndarray  # bool, shape (n_tokens,)
    positions: np.ndarray  # of the scored tokens, shape (n_positions,)
    words: np.ndarray  # index of the word of each token, shape (n_tokens,)
    offsets: np.ndarray  # start and end of each token in the text, shape (n_tokens, 2)
    key: np.ndarray | None = None  # tokens that determine masks; None: input_ids

    def __len__(self):
        return len(self.is_maskable)

    def at(self, positions):
        """Return a mask, (n_tokens,), that is True at some positions."""
        mask = np.zeros(len(self), dtype=bool)
        mask[positions] = True
        return mask


def longest_input(model, tokenizer, max_length):
    """Return the largest number of tokens of an input of the model."""
    limit = getattr(model.config, "max_position_embeddings", math.inf)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "weight"):
            # if padding has a position, as in RoBERTa, those up to it are not used
            padding = getattr(module, "padding_idx", None)
            n_unused = 0 if padding is None else padding + 1
            limit = min(limit, len(module.weight) - n_unused)
            break
    if max_length is None:
        unset = tokenizer.model_max_length > 1e9  # transformers uses 1e30 for no limit
        return limit if unset else min(limit, tokenizer.model_max_length)
    n_added = tokenizer.num_special_tokens_to_add()
    if not n_added < max_length <= limit:
        raise ValueError(
            f"max_length must lie in {n_added + 1}..{limit}, the special tokens of the "
            f"tokenizer plus one and the positions of the model, got {max_length}."
        )
    return max_length


def windows_of(tokenizer, texts, input_names):
    """Return one window of any length for each distinct text, pair or part."""
    # All tokens outside a part are visible context. Also the first equal text of each.
    wholes = [whole_text(text) for text in texts]
    windows, first_whole = tokenize(tokenizer, wholes, input_names)
    if wholes == texts:
        return windows, first_whole
    by_text = {window.text: window for window in windows}
    distinct, first = distinct_texts(texts)
    parts = [
        _part(by_text[first_whole[index]], text, index, tokenizer)
        for text, index in distinct.items()
    ]
    return parts, first


def _part(window, part, index, tokenizer):
    """Return the window in which the tokens of a part are scored."""
    # A token belongs to the part that holds its first character that is no white space,
    # or its first one, so to one of several parts that make up a text.
    text, start, stop = part
    offsets = window.offsets
    if (offsets < 0).any():
        raise ValueError(
            "Parts of texts need a tokenizer that knows where its tokens are in the "
            f"text; {type(tokenizer).__name__} does not. Use a fast tokenizer."
        )
    pieces = [text[begin:end] for begin, end in offsets]
    n_spaces = [
        len(piece) - len(piece.lstrip()) if piece.strip() else 0 for piece in pieces
    ]
    begins = offsets[:, 0] + n_spaces
    is_fixed = window.is_fixed | (begins < start) | (begins >= stop)
    is_maskable = window.is_maskable & ~is_fixed
    length = len(scored_text(part))
    within = np.clip(offsets - start, 0, length)
    within[begins >= stop] = length
    return replace(
        window,
        text=index,
        is_fixed=is_fixed,
        is_maskable=is_maskable,
        positions=np.flatnonzero(is_maskable),
        offsets=within,
    )


def warn_of_cut_tokens(windows, texts):
    """Warn of tokens that begin before a part and end in it: they are not scored."""
    cut_parts = [
        window.text
        for window in windows
        if whole_text(texts[window.text]) is not texts[window.text]
        and (window.is_fixed & (window.offsets[:, 0] < window.offsets[:, 1])).any()
    ]
    if cut_parts:
        warn_caller(
            f"{len(cut_parts)} of {len(windows)} different parts, "
            f"texts[{cut_parts[0]}] the first, begin within a token. Such a token "
            "belongs to what is before the part, so it is not scored. Begin parts "
            "where tokens begin."
        )


def tokenize(tokenizer, texts, input_names):
    """Return one window of any length for each distinct text."""
    # Maskable are all tokens but special ones and the context of a pair; unknown tokens
    # are too. Also the first equal text of each.
    distinct, first = distinct_texts(texts)
    is_pair = not isinstance(texts[0], str)
    columns = list(zip(*distinct, strict=True)) if is_pair else [distinct]
    columns = [list(column) for column in columns]
    encode = _encode if tokenizer.is_fast else _encode_slowly
    encoded, *tables = encode(tokenizer, columns)
    special = special_ids(tokenizer)
    windows = []
    for row, (index, *of_row) in enumerate(
        zip(distinct.values(), *tables, strict=True)
    ):
        inputs = {
            name: np.array(encoded[name][row], dtype=np.int64)
            for name in encoded
            if name in input_names
        }
        dtypes = bool, int, int  # also of a text without tokens
        is_fixed, words, offsets = map(np.array, of_row, dtypes)
        is_maskable = ~(is_fixed | np.isin(inputs["input_ids"], special))
        positions = np.flatnonzero(is_maskable)
        windows.append(
            Window(index, inputs, is_fixed, is_maskable, positions, words, offsets)
        )
    return windows, first


def _encode(tokenizer, columns):
    """Encode texts; return is_fixed, words and offsets of `Window`, too."""
    encoded = tokenizer(
        *columns,
        return_special_tokens_mask=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    rows, own = range(len(columns[0])), len(columns) - 1
    sequences = [np.array(encoded.sequence_ids(row), dtype=float) for row in rows]
    is_fixed = [
        (sequences[row] != own) | np.array(encoded["special_tokens_mask"][row], bool)
        for row in rows
    ]
    words = [[-1 if w is None else w for w in encoded.word_ids(row)] for row in rows]
    offsets = [np.reshape(row, (-1, 2)) for row in encoded["offset_mapping"]]
    return encoded, is_fixed, words, offsets


def _encode_slowly(tokenizer, columns):
    """Do the same by a tokenizer written in Python: no offsets, or words."""
    # Each of its tokens is a word.
    encoded = tokenizer(*columns, verbose=False)
    is_fixed, words, offsets = [], [], []
    for row, parts in enumerate(zip(*columns, strict=True)):
        marks = [[~i] * len(tokenizer.tokenize(part)) for i, part in enumerate(parts)]
        ids = np.array(tokenizer.build_inputs_with_special_tokens(*marks))
        n_tokens = len(encoded["input_ids"][row])
        if len(ids) != n_tokens:
            raise ValueError(
                "tokenizer must say which tokens it adds, but "
                f"{type(tokenizer).__name__} makes {n_tokens} tokens of a text where "
                f"{len(ids)} are expected. Pass a fast tokenizer."
            )
        is_fixed.append(ids != -len(parts))
        words.append(np.where(ids < 0, np.arange(n_tokens), -1))
        offsets.append(np.full((n_tokens, 2), -1))
    return encoded, is_fixed, words, offsets


def special_ids(tokenizer):
    """Return the ids of tokens that are never hidden: special, but not unknown."""
    return [i for i in all_special_ids(tokenizer) if i != tokenizer.unk_token_id]


def all_special_ids(tokenizer):
    """Return the ids of all special tokens, including those added by a user."""
    added = tokenizer.added_tokens_decoder.items()
    special = {index for index, token in added if token.special}
    return sorted(special.union(tokenizer.all_special_ids))


def warn_of_no_words(tokenizer, windows):
    """Warn of mask tokens in texts, which are not scored, and of unknown tokens."""
    for token, description in (
        (
            tokenizer.mask_token,
            "it stays hidden and is not scored, so their scores are those of the other "
            "tokens. `fill` draws tokens for it.",
        ),
        (
            tokenizer.unk_token,
            "the tokenizer does not know the words there, and their scores are those "
            "of the unknown token.",
        ),
    ):
        if token is None:
            continue
        index = tokenizer.convert_tokens_to_ids(token)
        texts = [w.text for w in windows if index in w.inputs["input_ids"][~w.is_fixed]]
        if texts:
            warn_caller(
                f"{len(texts)} of {len(windows)} different texts, texts[{texts[0]}] "
                f"the first, hold {token}: {description}"
            )


def check_lengths(windows, max_length):
    """Refuse texts that do not fit into one input of the model."""
    for index, window in enumerate(windows):
        if len(window) > max_length:
            raise ValueError(
                f"texts[{index}] has {len(window)} tokens, more than max_length="
                f"{max_length}; the whole text must fit into one input of the model."
            )


def fit_windows(windows, max_length, overflow, centred):
    """Shorten or split windows longer than `max_length`, as `overflow` says."""
    too_long = [window for window in windows if len(window) > max_length]
    if too_long and overflow == "error":
        has_room = too_long[0].is_fixed.sum() < max_length
        raise ValueError(
            f"texts[{too_long[0].text}] has {len(too_long[0])} tokens, more than "
            f"max_length={max_length}. "
            + (
                "Shorten it, or set overflow to 'truncate', 'stride' or 'split'."
                if has_room
                else "Shorten its context, or set overflow to 'stride'."
            )
        )
    pieces = []
    for window in windows:
        is_long = len(window) > max_length
        pieces += _split(window, max_length, overflow, centred) if is_long else [window]
    if too_long and overflow == "truncate":
        warn_caller(
            f"{len(too_long)} of {len(windows)} different texts are cut to max_length="
            f"{max_length} tokens; only the first part of them is scored.",
        )
    return pieces


def _split(window, max_length, overflow, centred):
    """Split a window into shorter ones, each with the added tokens and the context."""
    body = np.flatnonzero(~window.is_fixed)
    room = max_length - int(window.is_fixed.sum())
    room_for_all = max_length - int(_is_added(window).sum())
    if room < 1 <= room_for_all and overflow == "stride":
        return _stride_over_context(window, room_for_all, centred)
    if room < 1:
        raise ValueError(
            f"texts[{window.text}] has {max_length - room} context and special "
            f"tokens, which leave no room for text in max_length={max_length}. Shorten "
            "the context, or set overflow to 'stride'."
        )
    before, after = np.split(np.flatnonzero(window.is_fixed), [body[0]])
    if overflow == "truncate":
        spans = [(0, range(room))]
    elif overflow == "split":
        starts = range(0, len(body), room)
        spans = [(i, range(i, min(i + room, len(body)))) for i in starts]
    else:
        spans = _spans(len(body), room, centred)
    return [
        take(
            window,
            np.concatenate([before, body[start : start + room], after]),
            body[scored],
        )
        for start, scored in spans
    ]


def _stride_over_context(window, room, centred):
    """Split a window whose context leaves no room for the text."""
    # A text that fits into `room` tokens stands in the middle of a window; else windows
    # overlap by half, from half a window before the text to half a one after it.
    is_added = _is_added(window)
    added, inner = np.flatnonzero(is_added), np.flatnonzero(~is_added)
    is_text = ~window.is_fixed[inner]
    first, n_tokens = int(is_text.argmax()), int(is_text.sum())
    if n_tokens <= room:
        start = centred_start(first, n_tokens, room, len(inner))
        inner = inner[start : start + room]
    else:
        inner = inner[max(0, first - room // 2) : first + n_tokens + room // 2]
    pieces = [
        take(window, np.union1d(added, inner[start : start + room]), inner[scored])
        for start, scored in _spans(len(inner), room, centred)
    ]
    return [piece for piece in pieces if len(piece.positions)] or pieces[:1]


def centred_start(first, n_scored, room, n_tokens):
    """Return the start of a window of `room` tokens with scored ones in its middle."""
    # first, n_scored : position of the first scored token, and number up to the last
    # one.
    return int(np.clip(first - (room - n_scored) // 2, 0, n_tokens - room))


def _is_added(window):
    """Return which tokens the tokenizer added, as they belong to no word."""
    return window.is_fixed & (window.words < 0)


def _spans(n_tokens, room, centred):
    """Cover 0..n_tokens by spans of `room` tokens that overlap by half."""
    # Returns starts, and the range of positions scored in each span. Each position is
    # scored in one: if `centred`, that in which it is farther from the edges, else the
    # first, which but for the first span has at least half a span before it.
    starts = [*range(0, n_tokens - room, max(1, room // 2)), n_tokens - room]
    cuts = [
        (right + left + room) // 2 if centred else left + room
        for left, right in pairwise(starts)
    ]
    bounds = pairwise([0, *cuts, n_tokens])
    return [(start, range(*bound)) for start, bound in zip(starts, bounds, strict=True)]


def take(window, kept, scored):
    """Return a shorter window of the tokens at some positions; some are scored."""
    is_maskable = window.is_maskable[kept]
    return Window(
        text=window.text,
        inputs={name: array[kept] for name, array in window.inputs.items()},
        is_fixed=window.is_fixed[kept],
        is_maskable=is_maskable,
        positions=np.flatnonzero(is_maskable & np.isin(kept, scored)),
        words=window.words[kept],
        offsets=window.offsets[kept],
    )


def rule_of_words(tokenizer):
    """Return a function: whether a token goes on with the word of the one before."""
    # None if the vocabulary has no marks of words.
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


def without_marks(token):
    for mark in (*BEGINS, GOES_ON):
        token = token.removeprefix(mark)
    return token.removesuffix(ENDS).removesuffix(IS_FOLLOWED)
