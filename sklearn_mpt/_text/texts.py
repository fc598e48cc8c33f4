"""Checks of texts, and short representations of values for error messages."""
# A text is a str, a (context, text) pair of str, or a part of a text: a (text, start,
# stop) tuple, of which the characters from start to stop are scored.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from reprlib import Repr

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe

from sklearn_mpt._tables.frames import frame_of

Texts = Iterable[str] | Iterable[tuple[str, str]] | Iterable[tuple[str, int, int]]


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
