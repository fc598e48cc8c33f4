"""Which tokens of a text are hidden together, and what their scores add up to.

A row is what a model sees at once: tokens, some of them hidden, and among these the
targets that are scored. Each method of `MPTScorer` is a plan of rows for a window of
text, and a layout that says what their scores add up to.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np
from scipy.special import binom

from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.texts import show

PERCENT = np.arange(1, 100)


@dataclass(frozen=True, eq=False)
class Window:
    """The tokens that a model sees at once, and which of them are scored here."""

    text: int  # index of the text
    inputs: dict  # name -> int array of shape (n_tokens,), "input_ids" among them
    is_fixed: np.ndarray  # bool, shape (n_tokens,): added by the tokenizer, or context
    is_maskable: np.ndarray  # bool, shape (n_tokens,)
    places: np.ndarray  # positions of the tokens scored here, shape (n_places,)
    words: np.ndarray  # index of the word of each token, shape (n_tokens,)
    offsets: np.ndarray  # start and end of each token in the text, shape (n_tokens, 2)

    def __len__(self):
        return len(self.is_maskable)


@dataclass(frozen=True, eq=False)
class Draw:
    """Which masks to score: by which method, how many, at which rates, from which seed.

    Rates are for method "mpt"; None means every size.
    """

    method: str
    seed: int
    n_masks: int
    rates: np.ndarray | None = None

    def sizes(self, n_places):
        """Return the mask sizes to score in a window, increasing."""
        if self.rates is None:
            return np.arange(1, n_places + 1)
        return np.unique([mask_size(rate, n_places) for rate in self.rates])

    def n_rows(self, n_places):
        """Return the number of rows of a window, or a few more."""
        n_masks = self.n_masks if METHODS[self.method].is_random else 1
        return n_masks * len(self.sizes(n_places))

    def plan(self, window):
        """Yield the rows of a window: (hidden, target), bool of shape (n_tokens,)."""
        return METHODS[self.method].plan(window, self)

    def layout(self, n_places):
        """Return how the rows of a window are counted."""
        return METHODS[self.method].layout(n_places, self)

    def generator(self, window, stream):
        """Key random numbers by the seed and the tokens.

        So they are the same in any batch, order or process, and for any model with
        the same tokenisation.
        """
        key = hashlib.blake2b(digest_size=16)
        for part in ([self.seed], window.inputs["input_ids"], window.places):
            key.update(np.asarray(part, dtype="<i8").tobytes())
        return np.random.default_rng([int.from_bytes(key.digest(), "little"), stream])


@dataclass(frozen=True, eq=False)
class Layout:
    """How the rows of a window are counted: draws of terms, one after the other.

    A term is a mean over random draws, and the score of a window a sum of terms. A draw
    is the sum over `n_steps` rows.
    """

    counts: np.ndarray  # draws of each term, shape (n_terms,)
    n_all: np.ndarray  # how many there are, no two the same, shape (n_terms,)
    n_steps: int

    @property
    def weights(self):
        """Weight of each row: the weighted sum of their scores is that of the terms."""
        return np.repeat(1 / self.counts, self.counts * self.n_steps)

    @property
    def places(self):
        """Term of each draw, and its place in that term; two int arrays (n_draws,)."""
        terms = np.repeat(np.arange(len(self.counts)), self.counts)
        return terms, np.arange(len(terms)) - (np.cumsum(self.counts) - self.counts)[
            terms
        ]

    @property
    def scales(self):
        """What makes contrasts of deviations from the mean of a term, (n_terms,).

        The sum of their squares is an unbiased estimate of the variance of the mean of
        a sample without replacement. It is 0 where all are drawn, otherwise infinite
        where one is: nothing is known.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = (1 - self.counts / self.n_all) / self.counts / (self.counts - 1.0)
        return np.sqrt(np.where(self.counts == self.n_all, 0.0, squares))

    def reduce(self, scores):
        """Average the draws of each term.

        Returns the terms (n_terms,) and their contrasts (n_terms, n_draws), 0 where a
        term has less draws than others and NaN where nothing is known.
        """
        draws = scores.reshape(-1, self.n_steps).sum(axis=1)
        terms, places = self.places
        means = np.bincount(terms, draws) / self.counts
        contrasts = np.zeros((len(means), self.counts.max()))
        with np.errstate(invalid="ignore"):
            deviations = self.scales[terms] * (draws - means[terms])
        contrasts[terms, places] = deviations
        return means, contrasts

    def contrasts_of_tokens(self, rows, tokens, values, n_tokens):
        """Contrasts of what tokens contribute, shape (n_draws, n_tokens).

        `values` are the contributions of some tokens to the scores of some rows. Terms
        are independent, so that draws of any two can be taken together.
        """
        terms, places = (np.repeat(index, self.n_steps)[rows] for index in self.places)
        n_draws = self.counts.max()
        with np.errstate(invalid="ignore"):
            index = places * n_tokens + tokens
            sums = np.bincount(index, self.scales[terms] * values, n_draws * n_tokens)
            sums = sums.reshape(n_draws, n_tokens)
            return sums - sums.mean(axis=0)


@dataclass(frozen=True)
class Method:
    """The functions behind `Draw.plan` and `Draw.layout`."""

    plan: Callable
    layout: Callable
    is_random: bool

    @property
    def is_centred(self):
        """Whether tokens of long texts see context on both sides, or before alone."""
        return not self.is_random


def plan_sets(window, draw):
    """Hide random sets of every size and score all that is hidden."""
    n_places = len(window.places)
    for size in draw.sizes(n_places):
        rng = draw.generator(window, int(size))
        n_masks = int(min(draw.n_masks, _n_sets(n_places, size)))
        for order in _draw_distinct(rng, n_places, size, n_masks):
            hidden = _only(window, window.places[order])
            yield hidden, hidden


def lay_out_sets(n_places, draw):
    """Each size is a term, each mask a draw of one row; no mask is drawn twice."""
    n_all = _n_sets(n_places, draw.sizes(n_places))
    return Layout(np.minimum(draw.n_masks, n_all).astype(int), n_all, 1)


def plan_orders(window, draw):
    """Hide what comes later in a random order and score the next token."""
    n_places = len(window.places)
    n_orders = min(draw.n_masks, factorial(n_places))
    rng = draw.generator(window, 0)
    for order in _draw_distinct(rng, n_places, None, n_orders):
        places = window.places[order]
        for step in range(n_places):
            yield _only(window, places[step:]), _only(window, places[step])


def lay_out_orders(n_places, draw):
    """The only term is a mean over orders, each a sum over its steps."""
    n_orders = min(draw.n_masks, factorial(n_places))
    return Layout(np.array([n_orders]), np.array([_factorial(n_places)]), n_places)


def plan_singles(window, draw):
    """Hide each token alone."""
    for place in window.places:
        target = _only(window, place)
        yield target, target


def plan_words(window, draw):
    """Hide each token with the later ones of its word; score it."""
    for place in window.places:
        hidden = window.is_maskable & (window.words == window.words[place])
        hidden[:place] = False
        yield hidden, _only(window, place)


def lay_out_singles(n_places, draw):
    """The only term is the sum over the tokens: nothing is random."""
    return Layout(np.ones(1, dtype=int), np.ones(1), n_places)


METHODS = {
    "mpt": Method(plan_sets, lay_out_sets, is_random=True),
    "pll": Method(plan_singles, lay_out_singles, is_random=False),
    "pll_word_l2r": Method(plan_words, lay_out_singles, is_random=False),
    "chain": Method(plan_orders, lay_out_orders, is_random=True),
}


def _only(window, places):
    mask = np.zeros(len(window), dtype=bool)
    mask[places] = True
    return mask


def _draw_distinct(rng, n_places, size, n_wanted):
    """Yield different random sets of a size; of size None, different orders of all."""
    found = set()
    while len(found) < n_wanted:
        drawn = rng.permutation(n_places)[:size]
        key = (drawn if size is None else np.sort(drawn)).tobytes()
        if key not in found:
            found.add(key)
            yield drawn


def _n_sets(n, sizes):
    """Number of sets of each size as a float; infinite where too large for one."""
    return np.rint(binom(n, sizes))


def _factorial(n):
    """Factorial as a float; infinite where it is too large for one."""
    return float(factorial(n)) if n <= 170 else np.inf


def check_rates(mask_rates):
    """Return the mask rates as an array, 0.01 to 0.99 for None."""
    if mask_rates is None:
        return PERCENT / 100
    try:
        rates = np.asarray(mask_rates)
        valid = rates.ndim == 1 and rates.size and rates.dtype.kind in "fiu"
        valid = valid and ((rates > 0) & (rates <= 1)).all()
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(
            "mask_rates must be None or a non-empty sequence of floats in (0, 1], got "
            f"{show(mask_rates)}."
        )
    return rates.astype(float)


def check_text_rate(mask_rate):
    """Check the mask rate of a training: "uniform" or a rate in (0, 1]."""
    is_rate = isinstance(mask_rate, float | np.floating) and 0 < mask_rate <= 1
    if not (is_rate or (isinstance(mask_rate, str) and mask_rate == "uniform")):
        raise ValueError(
            "mask_rate must be 'uniform' or a float in (0, 1], the share of the tokens "
            f"of a text to hide, got {show(mask_rate)}."
        )
