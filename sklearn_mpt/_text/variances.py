"""What `fit` finds out about the variance over masks from some of its texts."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sklearn_mpt._seeds import seed_from
from sklearn_mpt._text.batches import score_windows
from sklearn_mpt._text.masks import DESIGNS, MaskDraw
from sklearn_mpt._text.moderation import MIN_TEXTS, Moderation, find_moderation
from sklearn_mpt._text.windows import fit_windows


@dataclass(frozen=True)
class MeasuringRules:
    """How much `fit` computes to measure variances over masks.

    A text is scored by groups of draws, each with as many rows as a score has.

    Attributes
    ----------
    n_draws : int
        Number of orders, or of masks of each size, in a group.
    n_groups : int
        Number of groups for the choice of a design, two of orders and one of masks, and
        one more of the chosen design.
    max_texts : int
        Largest number of texts. Fewer texts are scored by more groups of orders.
    max_tokens : int
        Largest number of tokens that the language model reads for these groups, of more
        than four texts, and again for more groups of orders. A text of 100 tokens takes
        40,800 for a group.
    max_tokens_of_few : int
        Largest number for these groups of four texts. Longer texts are cut: with two
        special tokens, those of more than 155 tokens.
    """

    n_draws: int = 4
    n_groups: int = 4
    max_texts: int = 32
    max_tokens: int = 2**19
    max_tokens_of_few: int = 3 * 2**19


RULES = MeasuringRules()


class MeasuredDesign(NamedTuple):
    """The design for some texts; `variances` and `moderation` may be None."""

    design: str
    variances: dict | None
    moderation: Moderation | None


def measure_designs(language_model, windows, seed, n_draws, n_jobs):
    """Measure both designs of "mpt", and take the one with the smaller variance.

    Without enough texts, the design is "chain". n_draws : number of draws in a group
    whose variance is to be known.
    """
    windows = pick(windows, seed)
    if len(windows) < MIN_TEXTS:
        return MeasuredDesign("chain", None, None)
    orders, masks = (
        MaskDraw("mpt", seed, RULES.n_draws, design=design) for design in DESIGNS
    )
    score = partial(DrawGroups.of, language_model, windows, n_jobs=n_jobs)
    groups, others = score(orders, range(2)), score(masks, range(1))
    variances = {
        "chain": float(groups.variance()),
        "independent": float(others.variances.mean()),
    }
    is_independent = variances["independent"] < variances["chain"]
    chosen = others if is_independent else groups
    n_known = chosen.totals.shape[1]
    if 1 < n_draws < RULES.n_draws:
        chosen = score(replace(chosen.draw, n_masks=n_draws), range(n_known))
    more = score(chosen.draw, range(n_known, count_groups(windows, chosen.draw)))
    design = "independent" if is_independent else "chain"
    return MeasuredDesign(design, variances, chosen.join(more).moderation())


def measure_errors(language_model, windows, draw, n_jobs):
    """Return the `Moderation` of scores by a draw; None without enough texts."""
    windows = pick(windows, draw.seed)
    if draw.n_masks == 1 or len(windows) < MIN_TEXTS:  # one draw has no spread
        return None
    groups = range(count_groups(windows, draw))
    return DrawGroups.of(language_model, windows, draw, groups, n_jobs).moderation()


def pick(windows, seed):
    """Pick texts of more than one token: of `max_texts` random ones, the shortest.

    There are as many as have room in `max_tokens`, and at least `MIN_TEXTS` if there
    are so many: variances of whole texts are those of other whole texts, not of parts.
    """
    order = np.random.default_rng(seed).permutation(len(windows))
    chosen = [windows[i] for i in order if len(windows[i].positions) > 1]
    n_orders = RULES.n_groups * RULES.n_draws
    limit = RULES.max_tokens_of_few / n_orders / MIN_TEXTS
    chosen = [_cut(window, limit) for window in chosen[: RULES.max_texts]]
    costs = _costs(chosen)
    shortest = np.argsort(costs, kind="stable")
    totals = n_orders * np.cumsum(costs[shortest])
    n_picked = np.searchsorted(totals, RULES.max_tokens, side="right")
    return [chosen[i] for i in shortest[: max(MIN_TEXTS, n_picked)]]


def count_groups(windows, draw):
    """Return the number of groups for errors by a draw.

    Two groups of four masks show how much the estimate of a variance is in error. Of
    orders, the spread between groups has to be known too, so there are more.
    """
    if not draw.is_along_orders:
        return -(-2 * RULES.n_draws // draw.n_masks)
    wanted = -(-RULES.max_texts // len(windows))
    n_affordable = RULES.max_tokens // (draw.n_masks * _costs(windows).sum())
    return 2 + int(min(wanted, max(2, n_affordable)))


def _costs(windows):
    """Return the number of tokens of the rows of one order, (n_windows,)."""
    return np.array([len(window.positions) * len(window) for window in windows])


def _cut(window, limit):
    """Cut a window whose rows of one order have more tokens than the limit."""
    if len(window.positions) * len(window) <= limit:
        return window
    n_fixed = int(window.is_fixed.sum())
    n_positions = int((np.sqrt(n_fixed**2 + 4 * limit) - n_fixed) / 2)
    return fit_windows([window], n_fixed + max(2, n_positions), "split", False)[0]


class DrawGroups(NamedTuple):
    """Scores of texts by several groups of draws.

    totals, variances, scales : ndarray of shape (n_texts, n_groups). `variances` take
    the draws of a group as independent; `scales` are in proportion to usual variances.
    """

    draw: MaskDraw
    totals: np.ndarray
    variances: np.ndarray
    scales: np.ndarray

    @classmethod
    def of(cls, language_model, windows, draw, indices, n_jobs):
        """Score the groups with these indices; the first is that of `draw`."""
        table = np.zeros((3, len(windows), len(indices)))
        for column, index in enumerate(indices):
            rng = np.random.default_rng([draw.seed, *b"group", index])
            seed = seed_from(rng) if index else draw.seed
            group_draw = replace(draw, seed=seed)
            scores = score_windows(language_model, windows, group_draw, n_jobs)
            for row, (window, score) in enumerate(zip(windows, scores, strict=True)):
                noise = group_draw.noise_of(window, score)
                table[:, row, column] = score.terms.sum(), *noise
        return cls(draw, *table)

    def join(self, others):
        """Return these groups and others of the same texts."""
        pairs = zip(self[1:], others[1:], strict=True)
        return DrawGroups(self.draw, *(np.hstack(pair) for pair in pairs))

    def moderation(self):
        """Return the `Moderation` of the draw; None without enough texts."""
        draw, arrays = self.draw, (self.totals, self.variances, self.scales)
        degrees = 1.0 if draw.is_along_orders else None
        return find_moderation(*arrays, draw.n_masks, draw.is_antithetic, degrees)

    def variance(self):
        """Return the mean over texts of the variance of the score by one group."""
        with np.errstate(invalid="ignore"):  # from tokens of probability 0
            return self.totals.var(axis=1, ddof=1).mean()
