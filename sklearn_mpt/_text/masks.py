"""Which tokens of a text are hidden, and how its score is made of their predictions."""
# A row is one input of the model: the tokens of a window, some of them hidden. The
# targets are the hidden tokens that are scored.

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import binom, factorial

from sklearn_mpt._measure.contract import LOG_PROBABILITY
from sklearn_mpt._measure.curve import contrast_scale
from sklearn_mpt._measure.masks import mask_size
from sklearn_mpt._text.texts import show

PERCENT = np.arange(1, 100)  # mask rates of curves of texts, in percent


class WindowScores(NamedTuple):
    """The score of a window: a sum of independent terms, and the same by tokens."""

    # The sum of squares of the contrasts of a term estimates its variance over masks.

    terms: np.ndarray  # of "mpt", one for each mask size; shape (n_terms,)
    contrasts: np.ndarray  # shape (n_terms, n_draws)
    tokens: np.ndarray  # contributions of the tokens, shape (n_positions,)
    token_contrasts: np.ndarray  # shape (n_draws, n_positions)


NO_SCORES = WindowScores(np.zeros(0), np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0)))


@dataclass(frozen=True, eq=False)
class MaskDraw:
    """Settings of a draw of masks."""

    # method : in `METHODS`; None hides all tokens of a window at once. rates : None is
    # all sizes, which count tokens, or words if `mask_blocks` is "word".

    method: str | None
    seed: int
    n_masks: int = 1
    rates: np.ndarray | None = None
    mask_blocks: str | None = None

    @property
    def _method(self):
        return METHODS.get(self.method, TOGETHER)

    def units(self, window):
        """Return the number 0, 1, ... of the unit of each position, (n_positions,)."""
        if self.mask_blocks is None:
            return np.arange(len(window.positions))
        return np.unique(window.words[window.positions], return_inverse=True)[1]

    def n_units(self, window):
        return len(np.unique(self.units(window)))

    def sizes(self, n_units):
        """Return the mask sizes to score in a window, increasing."""
        if self.rates is None:
            return np.arange(1, n_units + 1)
        return np.unique([mask_size(rate, n_units) for rate in self.rates])

    def n_rows(self, window):
        """Return an upper bound of the number of rows of a window."""
        n_masks = self.n_masks if self._method.is_random else 1
        return n_masks * len(self.sizes(self.n_units(window)))

    def plan(self, window):
        """Yield the rows of a window: (hidden, target), bool of shape (n_tokens,)."""
        return self._method.plan(window, self)

    def estimate(self, window, log_prob, targets):
        """Return the `WindowScores` of a window."""
        # log_prob, targets : of all rows, ordered by terms, then by draws; each draw of
        # an order has a row for each step.
        tokens, positions = np.concatenate(targets), window.positions
        if not self._method.is_random:
            values = np.zeros(len(window))
            values[tokens] = log_prob
            values = values[positions]
            nothing = np.zeros((1, len(values)))
            return WindowScores(
                values.sum(keepdims=True), np.zeros((1, 1)), values, nothing
            )
        n_units = self.n_units(window)
        if self.method == "mpt":
            sizes = self.sizes(n_units)
            n_all = _n_sets(n_units, sizes)
        else:
            sizes, n_all = np.ones(1), np.array([factorial(n_units)])
        counts = np.minimum(self.n_masks, n_all).astype(int)  # of the draws of terms
        term = np.repeat(np.arange(len(counts)), counts)  # of each draw, and its index
        index = np.arange(len(term)) - np.repeat(np.cumsum(counts) - counts, counts)
        draw = np.repeat(np.arange(len(term)), len(targets) // len(term))
        draw = np.repeat(draw, [len(of_row) for of_row in targets])  # of each target
        term_of, index_of = term[draw], index[draw]
        values = log_prob / sizes[term_of]
        draws = np.bincount(draw, values)
        terms = np.bincount(term, draws) / counts
        scale = contrast_scale(counts, n_all)
        contrasts = np.zeros((len(counts), counts.max()))
        with np.errstate(invalid="ignore"):  # from tokens of probability 0
            deviations = scale[term] * (draws - terms[term])
            noise = scale[term_of] * values
        contrasts[term, index] = np.where(scale[term] == 0, 0.0, deviations)
        noise = np.where(scale[term_of] == 0, 0.0, noise)
        shape = counts.max(), len(window)
        noise = np.bincount(index_of * shape[1] + tokens, noise, np.prod(shape))
        noise = noise.reshape(shape)[:, positions]
        with np.errstate(invalid="ignore"):
            noise = noise - noise.mean(axis=0)
        of_tokens = np.bincount(tokens, values / counts[term_of], len(window))
        return WindowScores(terms, contrasts, of_tokens[positions], noise)

    def generator(self, window, stream):
        """Return a random generator that depends on the seed and the tokens."""
        # So masks do not depend on batches, order of texts or processes, and are the
        # same for all models with the same tokenisation.
        key = hashlib.blake2b(digest_size=16)
        tokens = window.inputs["input_ids"] if window.key is None else window.key
        for part in ([self.seed], tokens, window.positions):
            key.update(np.asarray(part, dtype="<i8").tobytes())
        return np.random.default_rng([int.from_bytes(key.digest(), "little"), stream])

    def draw_distinct(self, rng, n, size, n_all):
        """Yield distinct random sets of a size, or orders if it is None, of `n_all`."""
        found = {}
        while len(found) < min(self.n_masks, n_all):
            drawn = rng.permutation(n)[:size]
            key = (drawn if size is None else np.sort(drawn)).tobytes()
            found.setdefault(key, drawn)
        yield from found.values()


@dataclass(frozen=True)
class ScoringMethod:
    """The rows of a method, and what its scores are."""

    # is_centred : whether tokens of long texts need context on both sides.

    plan: Callable
    is_random: bool = False
    is_centred: bool = False
    kind: str = LOG_PROBABILITY


def plan_sets(window, draw):
    """Hide random sets of every size, and score all hidden tokens."""
    units, n_units = draw.units(window), draw.n_units(window)
    for size in draw.sizes(n_units):
        rng = draw.generator(window, int(size))
        for chosen in draw.draw_distinct(rng, n_units, size, _n_sets(n_units, size)):
            is_chosen = np.zeros(n_units, dtype=bool)
            is_chosen[chosen] = True
            hidden = window.at(window.positions[is_chosen[units]])
            yield hidden, hidden


def plan_orders(window, draw):
    """Hide the tokens that come later in a random order, and score the next one."""
    rng, n = draw.generator(window, 0), len(window.positions)
    for order in draw.draw_distinct(rng, n, None, factorial(n)):
        positions = window.positions[order]
        for step in range(n):
            yield window.at(positions[step:]), window.at(positions[step])


def plan_left_to_right(window, draw):
    """Hide all later tokens, and score the next one."""
    for step, position in enumerate(window.positions):
        yield window.at(window.positions[step:]), window.at(position)


def plan_together(window, draw):
    """Hide all tokens, and score each of them."""
    hidden = window.at(window.positions)
    yield hidden, hidden


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


METHODS = {
    "mpt": ScoringMethod(plan_sets, is_random=True),
    "pll": ScoringMethod(plan_singles, is_centred=True, kind="pseudo-log-likelihood"),
    "pll_word_l2r": ScoringMethod(
        plan_words, is_centred=True, kind="pseudo-log-likelihood within words"
    ),
    "chain": ScoringMethod(plan_orders, is_random=True),
    "ordered": ScoringMethod(plan_left_to_right),
}
TOGETHER = ScoringMethod(plan_together)


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
