"""Checks of texts and of the parameters of `MPTScorer`."""

from numbers import Integral

import numpy as np
from sklearn.utils.validation import check_scalar

from sklearn_mpt._checks import check_choice
from sklearn_mpt._text.masks import METHODS
from sklearn_mpt._text.results import PERCENT

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
OVERFLOWS = ("error", "truncate", "stride")


def check_texts(texts):
    """Return the texts as a list of str, or of (context, text) tuples of str."""
    if isinstance(texts, str | bytes) or not hasattr(texts, "__iter__"):
        raise TypeError(
            "texts must be a list of str, one for each text, got a single "
            f"{type(texts).__name__}."
        )
    if len(getattr(texts, "shape", (0,))) != 1:
        raise ValueError(
            "texts must be one-dimensional, a list or a column of str, got shape "
            f"{texts.shape}."
        )
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
                f"texts[{index}] must be a str, or a (context, text) tuple of two, got "
                f"{text!r} of type {type(text).__name__}."
            )
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}] holds {part[error.start]!r} at {error.start}, half of "
                "a surrogate pair, which is no character. Decode the text with "
                "errors='replace' to have it replaced."
            ) from error
    return str(text) if len(parts) == 1 else tuple(map(str, parts))


def _is_pair(text):
    return isinstance(text, tuple) and len(text) == 2


def _kind(text):
    return "str" if isinstance(text, str) else "pair"


def check_scorer_parameters(scorer):
    """Check the parameters that need no model."""
    for name in ("n_masks", "batch_tokens"):
        check_scalar(getattr(scorer, name), name, Integral, min_val=1)
    if scorer.max_length is not None:
        check_scalar(scorer.max_length, "max_length", Integral, min_val=1)
    check_choice(scorer.method, "method", METHODS)
    check_choice(scorer.overflow, "overflow", OVERFLOWS)
    check_choice(scorer.dtype, "dtype", DTYPES)


def check_every(every):
    check_scalar(every, "every", Integral, min_val=1)


def check_text_rate(mask_rate):
    """Check the mask rate of a training: "uniform" or a rate in (0, 1]."""
    is_rate = isinstance(mask_rate, float | np.floating) and 0 < mask_rate <= 1
    if not (is_rate or (isinstance(mask_rate, str) and mask_rate == "uniform")):
        raise ValueError(
            "mask_rate must be 'uniform' or a float in (0, 1], the share of the tokens "
            f"of a text to hide, got {mask_rate!r}."
        )


def check_rates(mask_rates):
    """Return the mask rates as an array, 0.01 to 0.99 for None."""
    if mask_rates is None:
        return PERCENT / 100
    try:
        rates = np.asarray(mask_rates, dtype=float)
        valid = rates.ndim == 1 and rates.size and ((rates > 0) & (rates <= 1)).all()
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            "mask_rates must be None or a non-empty sequence of floats in (0, 1], got "
            f"{mask_rates!r}."
        )
    return rates
