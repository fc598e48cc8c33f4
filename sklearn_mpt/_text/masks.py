"""Which tokens of a text are hidden together, and what their scores add up to.

A row is what a model sees at once: tokens, some of them hidden, and among these the
targets that are scored. Each method of `MPTScorer` is a plan of rows for a window of
text, and a reduction of their scores.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np
from scipy.special import binom

from sklearn_mpt._measure.masks import mask_size

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

    def reduce(self, scores, n_places):
        """Reduce the mean log-probabilities of the targets of each row to terms.

        Returns terms of a sum and their variances over masks, shape (2, n_terms).
        """
        return METHODS[self.method].reduce(scores, n_places, self)

    def weigh(self, n_places):
        """Weigh the rows of a window: the weighted sum is that of the terms."""
        return METHODS[self.method].weigh(n_places, self)

    def generator(self, window, stream):
        """Key random numbers by the seed and the tokens.

        So they are the same in any batch, order or process, and for any model with
        the same tokenisation.
        """
        key = hashlib.blake2b(digest_size=16)
        for part in ([self.seed], window.inputs["input_ids"], window.places):
            key.update(np.asarray(part, dtype="<i8").tobytes())
        return np.random.default_rng([int.from_bytes(key.digest(), "little"), stream])


@dataclass(frozen=True)
class Method:
    """The functions behind `Draw.plan`, `Draw.reduce` and `Draw.weigh`."""

    plan: Callable
    reduce: Callable
    weigh: Callable
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


def reduce_sets(scores, n_places, draw):
    """Average over the masks of each size; with all of them drawn that is exact."""
    n_all = _n_sets(n_places, draw.sizes(n_places))
    return _means(scores, np.minimum(draw.n_masks, n_all).astype(int), n_all)


def weigh_sets(n_places, draw):
    """Weigh the masks of each size alike."""
    counts = np.minimum(draw.n_masks, _n_sets(n_places, draw.sizes(n_places)))
    return np.repeat(1 / counts, counts.astype(int))


def plan_orders(window, draw):
    """Hide what comes later in a random order and score the next token."""
    n_places = len(window.places)
    n_orders = min(draw.n_masks, factorial(n_places))
    rng = draw.generator(window, 0)
    for order in _draw_distinct(rng, n_places, None, n_orders):
        places = window.places[order]
        for step in range(n_places):
            yield _only(window, places[step:]), _only(window, places[step])


def reduce_orders(scores, n_places, draw):
    """Sum over the steps of each order, and average over the orders."""
    totals = scores.reshape(-1, n_places).sum(axis=1)
    return _means(totals, np.array([len(totals)]), np.array([_factorial(n_places)]))


def weigh_orders(n_places, draw):
    """Weigh the orders alike."""
    n_orders = min(draw.n_masks, factorial(n_places))
    return np.full(n_orders * n_places, 1 / n_orders)


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


def reduce_singles(scores, n_places, draw):
    """Sum over the tokens: nothing is random."""
    return np.array([[scores.sum()], [0.0]])


def weigh_singles(n_places, draw):
    """Weigh each token by one."""
    return np.ones(n_places)


METHODS = {
    "mpt": Method(plan_sets, reduce_sets, weigh_sets, is_random=True),
    "pll": Method(plan_singles, reduce_singles, weigh_singles, is_random=False),
    "pll_word_l2r": Method(plan_words, reduce_singles, weigh_singles, is_random=False),
    "chain": Method(plan_orders, reduce_orders, weigh_orders, is_random=True),
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


def _means(scores, counts, n_all):
    """Average runs of scores; return the means and their variances.

    Each run of counts[i] is a sample without replacement from n_all[i] scores, so the
    variance of its mean has the finite population correction. It is 0 where all were
    drawn, otherwise NaN where one was.
    """
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(scores, starts) / counts
    squares = np.add.reduceat((scores - np.repeat(means, counts)) ** 2, starts)
    with np.errstate(invalid="ignore"):
        variances = squares / (counts * (counts - 1.0)) * (1 - counts / n_all)
    return np.stack([means, np.where(counts == n_all, 0.0, variances)])


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


def check_text_rate(mask_rate):
    """Check the mask rate of a training: "uniform" or a rate in (0, 1]."""
    is_rate = isinstance(mask_rate, float | np.floating) and 0 < mask_rate <= 1
    if not (is_rate or (isinstance(mask_rate, str) and mask_rate == "uniform")):
        raise ValueError(
            "mask_rate must be 'uniform' or a float in (0, 1], the share of the tokens "
            f"of a text to hide, got {mask_rate!r}."
        )
