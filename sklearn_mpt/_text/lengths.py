"""The log-probability of the number of tokens of a text, which masks do not give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

LengthLogProb = Callable[[np.ndarray], ArrayLike] | ArrayLike


def length_term(length_log_prob, n_tokens):
    """Return the log-probability of numbers of tokens; 0 for None.

    Parameters
    ----------
    length_log_prob : callable, array-like of int or None
        A callable from an int array of numbers of tokens to their log-probabilities; or
        the numbers of tokens of texts like those that are scored.
    n_tokens : ndarray of int of shape (n_texts,)

    Returns
    -------
    ndarray of shape (n_texts,)
        In nats.
    """
    if length_log_prob is None:
        return np.zeros(len(n_tokens))
    if not callable(length_log_prob):
        return _predictive(_check_lengths(length_log_prob), n_tokens)
    log_prob = np.asarray(length_log_prob(n_tokens), dtype=float)
    if log_prob.shape != n_tokens.shape or np.isnan(log_prob).any():
        raise ValueError(
            "length_log_prob must return a log-probability for each of the "
            f"{len(n_tokens)} numbers of tokens, got shape {log_prob.shape}"
            f"{', some of them NaN' if np.isnan(log_prob).any() else ''}."
        )
    return log_prob


def _predictive(lengths, n_tokens):
    """Return the log-probability of the next length after those of other texts.

    The prior is a Dirichlet process: one more text counts, whose length is geometric
    with their mean. So no length has probability 0.
    """
    counts = np.bincount(lengths)
    mean = lengths.mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_longer = np.log(mean / (1 + mean)) * n_tokens
    prior = np.exp(np.where(n_tokens == 0, 0.0, log_longer)) / (1 + mean)
    count = np.append(counts, 0)[np.minimum(n_tokens, len(counts))]
    with np.errstate(divide="ignore"):
        return np.log((count + prior) / (len(lengths) + 1))


def _check_lengths(lengths):
    array = np.asarray(lengths)
    is_valid = array.ndim == 1 and len(array) and array.dtype.kind in "iu"
    if not is_valid or (array < 0).any():
        raise ValueError(
            "length_log_prob must be None, a callable, or a sequence of numbers of "
            "tokens of other texts, ints from 0 on, got "
            f"{array.dtype} of shape {array.shape}."
        )
    return array
