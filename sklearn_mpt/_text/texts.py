"""Checks of texts, and short representations of values for error messages."""

from collections.abc import Mapping
from reprlib import Repr

import numpy as np

SHORT = Repr()
SHORT.maxstring = SHORT.maxother = 80


def check_texts(texts):
    """Return the texts as a list of str, or of (context, text) tuples of str."""
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
    if len(getattr(texts, "shape", (0,))) != 1:
        raise ValueError(
            "texts must be one-dimensional, a list or a column of str, got shape "
            f"{texts.shape}."
        )
    # a pair may be a list, as JSON has no tuples
    texts = [_check_text(text, index) for index, text in enumerate(texts)]
    if not texts:
        raise ValueError("texts must hold at least one text, got none.")
    for index, text in enumerate(texts):
        if type(text) is not type(texts[0]):
            raise TypeError(
                "texts must be all str or all (context, text) pairs, but texts[0] is "
                f"a {_kind(texts[0])} and texts[{index}] a {_kind(text)}."
            )
    return texts


def _check_text(text, index):
    parts = text if _is_pair(text) else (text,)
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(
                f"texts[{index}] must be a str, or a (context, text) pair, got "
                f"{show(text)} of type {type(text).__name__}.{_advice(part)}"
            )
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}] holds {part[error.start]!r} at {error.start}, half of "
                "a surrogate pair, which is no character. Decode the text with "
                "errors='replace' to have it replaced."
            ) from error
    return tuple(map(str, parts)) if _is_pair(text) else str(text)


def _advice(part):
    if isinstance(part, bytes):
        return " Decode it, by .decode()."
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
    return SHORT.repr(value)


def _is_pair(text):
    return isinstance(text, tuple | list) and len(text) == 2


def _kind(text):
    return "str" if isinstance(text, str) else "pair"
