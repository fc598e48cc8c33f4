"""Windows of texts, of pairs and of parts of texts."""

from dataclasses import replace

import numpy as np

from sklearn_mpt._checks import warn_caller
from sklearn_mpt._text.texts import distinct_texts, scored_text, whole_text
from sklearn_mpt._text.windows import tokenize


def windows_of(tokenizer, texts, input_names):
    """Return one window of any length for each distinct text, pair or part.

    In the window of a part, all tokens outside of it are visible context. Also returns,
    for each text, the index of the first that equals it.
    """
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
    """Return the window in which the tokens of a part are scored.

    A token belongs to the part that holds its first character that is no white space,
    or its first character if there is no such one. So it belongs to one of several
    parts that make up a text.
    """
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
            "belongs to what is before the part, so it is not scored. Use a joiner "
            "with which no token of the context goes on in the text, or begin parts "
            "where tokens begin."
        )
