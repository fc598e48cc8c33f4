"""Plans of masks for texts: which tokens are hidden, and how scores are added up.

A row is one input of the model: the tokens of a window, some of them hidden. The
targets are the hidden tokens that are scored. Each method of `MPTScorer` consists of a
plan, which yields the rows of a window, and a layout, which says how their scores are
averaged and added up.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import binom, factorial

from sklearn_mpt._measure.contract import LOG_PROBABILITY
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.estimates import (
    WindowLayout,
    average_orders,
    average_terms,
    sum_tokens,
)
from sklearn_mpt._text.moderation import Moderation
from sklearn_mpt._text.texts import show

PERCENT = np.arange(1, 100)  # mask rates of curves of texts, in percent


@dataclass(frozen=True, eq=False)
class MaskDraw:
    """Settings of a draw of masks: method, seed, number, rates and design.

    `rates` and `design` apply to method "mpt" only. None as `rates` means all sizes;
    given rates have independent masks, whatever `design` is. Mask sizes count units,
    which are hidden together: tokens, or words if `mask_blocks` is "word". `moderation`
    has the variances of the texts of `fit`; None if there were none, and for one mask
    of each size, which has no spread. `n_before` masks of each size, or orders, are
    drawn first and left out, if more exist.
    """

    method: str
    seed: int
    n_masks: int
    rates: np.ndarray | None = None
    design: str = "independent"
    order: str = "left_to_right"
    block_size: int = 1
    mask_blocks: str | None = None
    moderation: Moderation | None = None
    n_before: int = 0

    def after_first(self):
        """Return the draw of one mask of each size, or order, other than the first.

        The second balanced order is the reverse of the first, hence random ones.
        """
        method = "chain" if self.is_along_orders else self.method
        return replace(self, method=method, n_masks=1, n_before=1)

    @classmethod
    def of_all_tokens(cls, seed):
        """Hide all tokens of a window at once, and score each of them."""
        return cls("ordered", seed, 1, order="block", block_size=sys.maxsize)

    @property
    def is_antithetic(self):
        """Whether orders come in groups whose errors partly cancel."""
        return self._method is DESIGNS["chain"]

    def noise_of(self, window, score):
        """Return two numbers for `Moderation`: an estimate of variance, and a scale.

        The estimate takes draws as independent. The scale is what the layout says of
        texts of this length. It is 0 if all orders, or masks, are drawn.
        """
        scale = self.layout(self.n_units(window)).usual_variance
        return (np.sum(score.cautious**2), scale) if scale > 0 else (0.0, 0.0)

    @property
    def is_along_orders(self):
        """Whether masks are those of random orders, each of which is one draw."""
        return self._method.layout is lay_out_orders

    @property
    def is_adaptive(self):
        """Whether the order of tokens depends on predictions."""
        return self.method == "ordered" and self.order == "confident"

    @property
    def _method(self):
        if self.method == "mpt" and self.rates is None:
            return DESIGNS[self.design]
        return METHODS[self.method]

    def units(self, window):
        """Return the number 0, 1, ... of the unit of each position, (n_positions,)."""
        if self.mask_blocks is None:
            return np.arange(len(window.positions))
        return np.unique(window.words[window.positions], return_inverse=True)[1]

    def n_units(self, window):
        """Return the number of units of a window."""
        return len(np.unique(self.units(window)))

    def sizes(self, n_units):
        """Return the mask sizes to score in a window, increasing."""
        if self.rates is None:
            return np.arange(1, n_units + 1)
        return np.unique([mask_size(rate, n_units) for rate in self.rates])

    @property
    def n_at_once(self):
        """Number of tokens that become visible at a time, for "ordered"."""
        return self.block_size if self.order == "block" else 1

    def n_rows(self, window):
        """Return an upper bound of the number of rows of a window."""
        n_units = self.n_units(window)
        if self.method == "ordered":
            return -(-n_units // self.n_at_once)
        n_masks = self.n_masks if self._method.is_random else 1
        return n_masks * len(self.sizes(n_units))

    def plan(self, window):
        """Yield the rows of a window: (hidden, target), bool of shape (n_tokens,)."""
        return self._method.plan(window, self)

    def estimate(self, window, log_prob, targets):
        """Return the `WindowScores` of the rows of a window."""
        return self._method.estimate(window, log_prob, targets, self)

    def layout(self, n_units):
        """Return the `WindowLayout` of the rows of a window."""
        return self._method.layout(n_units, self)

    def generator(self, window, stream):
        """Return a random generator that depends on the seed and the tokens.

        So masks do not depend on batches, on the order of texts or on processes, and
        are the same for all models with the same tokenisation.
        """
        key = hashlib.blake2b(digest_size=16)
        tokens = window.inputs["input_ids"] if window.key is None else window.key
        for part in ([self.seed], tokens, window.positions):
            key.update(np.asarray(part, dtype="<i8").tobytes())
        return np.random.default_rng([int.from_bytes(key.digest(), "little"), stream])


@dataclass(frozen=True)
class ScoringMethod:
    """The functions that `MaskDraw` calls for one method, and what its scores are."""

    plan: Callable
    layout: Callable
    is_random: bool
    estimate: Callable = average_terms
    kind: str = LOG_PROBABILITY

    @property
    def is_centred(self):
        """Whether tokens of long texts need context on both sides, or only before."""
        return not self.is_random and self.estimate is average_terms


def plan_sets(window, draw):
    """Hide random sets of every size, and score all hidden tokens."""
    units, n_units = draw.units(window), draw.n_units(window)
    for size in draw.sizes(n_units):
        rng = draw.generator(window, int(size))
        for chosen in _draw_distinct(rng, n_units, size, draw, _n_sets(n_units, size)):
            is_chosen = np.zeros(n_units, dtype=bool)
            is_chosen[chosen] = True
            hidden = window.at(window.positions[is_chosen[units]])
            yield hidden, hidden


def lay_out_sets(n_units, draw):
    """Return a layout in which each size is a term, and each mask a draw of one row.

    No mask is drawn twice. The usual variance is that of the mean of so many of the
    tokens, if the log-probability of a token does not depend on which others are
    hidden. So that of the score grows like the logarithm of the number of tokens.
    """
    sizes = draw.sizes(n_units)
    n_all = _n_sets(n_units, sizes)
    counts = np.minimum(draw.n_masks, n_all).astype(int)
    return WindowLayout(counts, n_all, 1, (n_units - sizes) / n_units / sizes, sizes)


def plan_orders(window, draw):
    """Hide the tokens that come later in a random order, and score the next one."""
    for order in random_orders(window, draw):
        positions = window.positions[order]
        for step in range(len(positions)):
            yield window.at(positions[step:]), window.at(positions[step])


def plan_prefixes(window, draw):
    """Hide the tokens that come later in a balanced order, and score all of them."""
    for order in balanced_orders(window, draw):
        positions = window.positions[order]
        for step in range(len(positions)):
            hidden = window.at(positions[step:])
            yield hidden, hidden


def random_orders(window, draw):
    """Yield distinct random orders of the positions of a window."""
    rng, n_positions = draw.generator(window, 0), len(window.positions)
    yield from _draw_distinct(rng, n_positions, None, draw, factorial(n_positions))


def balanced_orders(window, draw):
    """Yield distinct random orders in fours.

    They are an order, its reverse, the same order with its halves exchanged, and the
    reverse of that. So a token comes in another quarter in each of them, and effects of
    its position in the order average out. Each order alone is uniformly random.
    """
    n_positions, orders = len(window.positions), set()
    n_wanted = min(draw.n_masks, factorial(n_positions))
    rng = draw.generator(window, 0)
    while len(orders) < n_wanted:
        first = rng.permutation(n_positions)
        second = np.roll(first, n_positions // 2)
        for order in (first, first[::-1], second, second[::-1]):
            if len(orders) < n_wanted and order.tobytes() not in orders:
                orders.add(order.tobytes())
                yield order


def lay_out_orders(n_positions, draw):
    """Return a layout with one term: the mean over orders of the sum over steps.

    The usual variance is in proportion to the number of tokens.
    """
    n_all = np.array([factorial(n_positions)])
    counts = np.minimum(draw.n_masks, n_all).astype(int)
    return WindowLayout(counts, n_all, n_positions, np.array([n_positions]), np.ones(1))


def plan_singles(window, draw):
    """Hide each token alone."""
    for position in window.positions:
        target = window.at(position)
        yield target, target


def plan_words(window, draw):
    """Hide each token and the later tokens of its word, and score the first."""
    for position in window.positions:
        hidden = window.is_maskable & (window.words == window.words[position])
        hidden[:position] = False
        yield hidden, window.at(position)


def plan_blocks(window, draw):
    """Go from left to right: hide all later tokens, and score the next block."""
    for start in range(0, len(window.positions), draw.n_at_once):
        later = window.positions[start:]
        yield window.at(later), window.at(later[: draw.n_at_once])


def lay_out_singles(n_positions, draw):
    """Return a layout with one term: the sum over all tokens. Nothing is random."""
    one = np.ones(1)
    return WindowLayout(np.ones(1, dtype=int), one, n_positions, np.zeros(1), one)


METHODS = {
    "mpt": ScoringMethod(plan_sets, lay_out_sets, is_random=True),
    "pll": ScoringMethod(
        plan_singles, lay_out_singles, False, kind="pseudo-log-likelihood"
    ),
    "pll_word_l2r": ScoringMethod(
        plan_words, lay_out_singles, False, kind="pseudo-log-likelihood within words"
    ),
    "chain": ScoringMethod(plan_orders, lay_out_orders, is_random=True),
    "ordered": ScoringMethod(plan_blocks, lay_out_singles, False, sum_tokens),
}
ORDERS = ("left_to_right", "confident", "block")
DESIGNS = {  # of "mpt"
    "chain": ScoringMethod(plan_prefixes, lay_out_orders, True, average_orders),
    "independent": METHODS["mpt"],
}


def _draw_distinct(rng, n, size, draw, n_all):
    """Yield distinct random sets of a size, or distinct orders if the size is None.

    n_all : the number that exist.
    """
    found = {}
    while len(found) < min(draw.n_before + draw.n_masks, n_all):
        drawn = rng.permutation(n)[:size]
        key = (drawn if size is None else np.sort(drawn)).tobytes()
        found.setdefault(key, drawn)
    yield from list(found.values())[-draw.n_masks :]


def _n_sets(n, sizes):
    """Return the number of sets of each size as floats; inf if too large."""
    return np.rint(binom(n, sizes))


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
