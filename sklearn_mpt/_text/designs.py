"""What `fit` finds out about the variance over masks from some of its texts."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from sklearn_mpt._seeds import seed_from
from sklearn_mpt._text.masks import DESIGNS, MaskDraw
from sklearn_mpt._text.moderation import MIN_TEXTS, Moderation, find_moderation
from sklearn_mpt._text.scoring import score_windows
from sklearn_mpt._text.windows import fit_windows


@dataclass(frozen=True)
class MeasuringRules:
    """How much `fit` computes to measure variances over masks.

    Attributes
    ----------
    n_draws : int
        Number of orders, or of masks of each size, of a text.
    max_texts : int
        Largest number of texts.
    min_texts : int
        Texts are cut until so many of them have room in `max_tokens`.
    max_tokens : int
        Largest number of tokens that the language model reads for the choice of a
        design, and again for the errors. A text of 100 tokens takes 40,800 for a score.
    """

    n_draws: int = 4
    max_texts: int = 32
    min_texts: int = 8
    max_tokens: int = 2**18


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
    windows = pick(windows, seed, 3 * RULES.n_draws)
    if len(windows) < MIN_TEXTS:
        return MeasuredDesign("chain", None, None)
    orders, masks = (
        MaskDraw("mpt", seed, RULES.n_draws, design=design) for design in DESIGNS
    )
    score = partial(DrawGroups.of, language_model, windows, n_jobs=n_jobs)
    groups, others = score(orders, range(2)), score(masks, range(1))
    independent = others.variances.mean()
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        squares = np.mean((groups.totals.mean(axis=1) - others.totals[:, 0]) ** 2)
    variances = {
        "chain": _variance_of_groups(groups.variance(), squares, independent),
        "independent": float(independent),
    }
    is_independent = variances["independent"] < variances["chain"]
    chosen = others if is_independent else groups
    n_known = chosen.totals.shape[1]
    if 1 < n_draws < RULES.n_draws:
        chosen = score(replace(chosen.draw, n_masks=n_draws), range(n_known))
    more = score(chosen.draw, range(n_known, n_known + n_groups(windows)))
    design = "independent" if is_independent else "chain"
    return MeasuredDesign(design, variances, chosen.join(more).moderation())


def measure_errors(language_model, windows, draw, n_jobs):
    """Return the `Moderation` of scores by a draw; None without enough texts."""
    windows = pick(windows, draw.seed, 2 * draw.n_masks)
    if draw.n_masks == 1 or len(windows) < MIN_TEXTS:  # one draw has no spread
        return None
    groups = range(max(2, n_groups(windows)))
    return DrawGroups.of(language_model, windows, draw, groups, n_jobs).moderation()


def pick(windows, seed, n_draws):
    """Pick texts of more than one token: of `max_texts` random ones, the shortest.

    Their rows for `n_draws` orders are to have at most `max_tokens` tokens. Long texts
    are cut, so that `min_texts` texts have room.
    """
    order = np.random.default_rng(seed).permutation(len(windows))
    chosen = [windows[i] for i in order if len(windows[i].places) > 1][
        : RULES.max_texts
    ]
    budget = RULES.max_tokens / n_draws
    chosen = [_cut(window, budget / RULES.min_texts) for window in chosen]
    costs = _costs(chosen)
    shortest = np.argsort(costs, kind="stable")
    n_picked = np.searchsorted(np.cumsum(costs[shortest]), budget, side="right")
    return [chosen[i] for i in shortest[:n_picked]]


def n_groups(windows):
    """Return the number of groups of draws for errors: more for fewer texts."""
    wanted = -(-RULES.max_texts // len(windows))
    n_draws = RULES.max_tokens // _costs(windows).sum()
    return int(min(wanted, n_draws // RULES.n_draws))


def _costs(windows):
    """Return the number of tokens of the rows of one order, (n_windows,)."""
    return np.array([len(window.places) * len(window) for window in windows])


def _cut(window, budget):
    """Cut a window whose rows of one order have more tokens than the budget."""
    n_fixed = int(window.is_fixed.sum())
    n_places = int((np.sqrt(n_fixed**2 + 4 * budget) - n_fixed) / 2)
    if len(window.places) * len(window) <= budget:
        return window
    return fit_windows([window], n_fixed + max(2, n_places), "split", False)[0]


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
                table[:, row, column] = score.parts.sum(), *noise
        return cls(draw, *table)

    def join(self, others):
        """Return these groups and others of the same texts."""
        pairs = zip(self[1:], others[1:], strict=True)
        return DrawGroups(self.draw, *(np.hstack(pair) for pair in pairs))

    def moderation(self):
        """Return the `Moderation` of the draw; None without enough texts."""
        draw, arrays = self.draw, (self.totals, self.variances, self.scales)
        freedom = 1.0 if draw.is_along_orders else None
        return find_moderation(*arrays, draw.n_masks, draw.is_antithetic, freedom)

    def variance(self):
        """Return the mean over texts of the variance of the score by one group."""
        moderated = self.moderation()
        if moderated is not None:
            return moderated.factor_of_sums * self.variances.mean()
        with np.errstate(invalid="ignore"):  # from tokens of probability 0
            return self.totals.var(axis=1, ddof=1).mean()


def _variance_of_groups(group_variance, squares, independent):
    """Estimate the variance of a group of orders from two estimates, by likelihood.

    group_variance : its estimate from the groups alone. squares : mean square of the
    difference of the mean of two groups and the score by independent masks, whose
    variance is `independent`. The estimates are about independent.
    """
    if not (
        np.isfinite([group_variance, squares, independent]).all() and group_variance > 0
    ):
        return float(group_variance)

    def minus_log_likelihood(log_variance):
        variance = np.exp(log_variance)
        total_variance = variance / 2 + independent
        return (
            np.log(variance)
            + group_variance / variance
            + np.log(total_variance)
            + squares / total_variance
        )

    bounds = np.log(group_variance) - 10, np.log(group_variance + 2 * squares) + 1
    return float(np.exp(minimize_scalar(minus_log_likelihood, bounds=bounds).x))
