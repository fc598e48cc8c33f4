"""Which masks are scored, and what their draw adds to the scores as noise.

A design turns a `Measurement` into the score of each size and its `MaskNoise`.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._measure.contract import (
    Conditional,
    hidden_log_prob,
    masked_score,
    mean_chain_scores,
    mean_masked_scores,
)
from sklearn_mpt._measure.curve import MaskNoise, size_weights
from sklearn_mpt._measure.masks import (
    MAX_ENUMERATED,
    child_generator,
    count_masks,
    count_orders,
    draw_distinct,
    draw_distinct_per_row,
    draw_order,
    draw_partitions,
    neighbouring_std,
    share_out,
)
from sklearn_mpt._measure.rows import Rows

BLOCK_ENTRIES = 2**22  # of masks or log-probabilities at a time
N_STRATA = 8  # of rows, whose errors are kept apart
N_SETS = 5  # of balanced masks of a size, where all rows share them
MIN_CHAINS_FOR_SLOPES = 6


@dataclass(frozen=True, eq=False)
class Measurement:
    """What to measure, on which rows, from which masks."""

    model: object
    rows: Rows
    shape: tuple
    sizes: np.ndarray
    n_masks: int
    seed: np.random.SeedSequence
    n_jobs: int | None
    per_row: bool  # whether each row has masks of its own

    @cached_property
    def n_existing(self):
        """Number of masks of each size that exist."""
        return np.array([count_masks(size, self.shape[1]) for size in self.sizes])

    @property
    def n_drawn(self):
        """Number of masks of each size to draw."""
        return np.minimum(self.n_existing, self.n_masks)

    def map(self, function, tasks):
        """Apply ``function(measurement, tasks)`` to shares of tasks, one per worker."""
        n_shares = max(1, min(len(tasks), effective_n_jobs(self.n_jobs)))
        # Backends look for what is large, to send it once, among the arguments alone.
        light, rows = replace(self, rows=None), self.rows
        shares = Parallel(n_jobs=self.n_jobs)(
            delayed(_on_rows)(
                function, light, rows.values, rows.missing, tasks[i::n_shares]
            )
            for i in range(n_shares)
        )
        results = [None] * len(tasks)
        for i, share in enumerate(shares):
            results[i::n_shares] = share
        return results


def _on_rows(function, what, values, missing, tasks):
    return function(replace(what, rows=Rows(values, missing)), tasks)


def chain(what):
    """Score nested masks along random orders, controlled by the next feature alone."""
    n_all = count_orders(what.shape[1])
    n_orders = min(what.n_masks, n_all)
    places = np.stack(what.map(_score_orders, range(n_orders)), axis=1)
    later, following = places[..., ::-1]  # by size, no longer by place
    scores = _controlled(later, following, n_all)[:, what.sizes - 1]
    means, contrasts = _contrasts(scores, np.ones(n_orders), n_all)
    return means, MaskNoise(contrasts.T, np.full(len(means), n_orders - 1), True)


def _score_orders(what, indices):
    n_rows = what.shape[0] if what.per_row else 1
    n_together = max(1, BLOCK_ENTRIES // (n_rows * what.shape[1]))
    scores = []
    for start in range(0, len(indices), n_together):
        orders = np.stack([
            draw_order(index, what.seed, n_rows, what.shape[1])
            for index in indices[start : start + n_together]
        ])  # fmt: skip
        orders = orders if what.per_row else orders[:, 0]
        means = mean_chain_scores(what.model, what.rows, orders)
        scores += list(np.swapaxes(means, 0, 1))
    return scores


def _controlled(later, following, n_all):
    """Take from the scores of each chain their share of its error, which averages 0.

    That error is the sum of `later`, all features to come, less that of `following`,
    the next one alone; both (n_orders, n_sizes). The share of a size is a slope over
    the other chains, which leaves no bias. If the conditionals are those of a joint
    density, the shares add up to 1 and the scores to its logarithm.
    """
    if not np.isfinite(later).all():  # a row has probability 0: so has the sum
        return later
    n_others = len(later) - 1
    error = (later - following).sum(axis=1, keepdims=True)
    slopes = np.full_like(later, 1 / later.shape[1])
    if n_all == np.inf and n_others + 1 >= MIN_CHAINS_FOR_SLOPES:
        x, y = error - error.mean(), later - later.mean(axis=0)
        leave_out = 1 + 1 / n_others  # one's own product, from sums about all means
        products = (x * y).sum(axis=0) - leave_out * x * y
        squares = (x**2).sum() - leave_out * x**2
        slopes = np.divide(products, squares, out=slopes, where=squares > 0)
    return later - slopes * error


def independent(what):
    """Draw masks of each size, without repetition."""
    return _summarise(what, _score_range(what, 0 * what.n_drawn, what.n_drawn))


def neyman(what):
    """Draw masks of each size in proportion to the spread of their scores.

    The spread is that of a pilot. The number of masks of a size does not depend on the
    size's own pilot, which also enters its mean: even sizes learn from odd ones, the
    odd from the even, and how many masks either share is fixed in advance.
    """
    first = np.minimum(max(2, what.n_masks // 3), what.n_drawn)
    total = (what.n_drawn - first).sum()
    if total == 0 or len(first) < 2:
        return independent(what)
    pilot = _score_range(what, 0 * first, first)
    weights = size_weights(what.sizes, what.shape[1]) * (what.n_existing > first)
    spread = weights * neighbouring_std(pilot)
    last, parity = first.copy(), np.arange(len(first)) % 2
    shares = share_out(total, np.bincount(parity, weights))
    for own, share in zip((parity == 0, parity == 1), shares, strict=True):
        last[own] += share_out(share, spread[own])
    main = _score_range(what, first, np.minimum(last, what.n_existing))
    pairs = zip(pilot, main, strict=True)
    return _summarise(what, [np.concatenate(pair) for pair in pairs])


def _score_range(what, first, last):
    """Score the masks first[i]..last[i] of the i-th size, as they are drawn."""
    return what.map(_score_distinct, list(enumerate(zip(first, last, strict=True))))


def _score_distinct(what, tasks):
    def draw(task):
        index, (first, last) = task
        rng = child_generator(what.seed, index)
        return draw_distinct(what.sizes[index], last, what.shape[1], rng)[first:]

    return _score_shared(what, tasks, draw)


def _score_shared(what, tasks, draw):
    """Score masks that all rows share, in few calls; an array for each task."""
    n_together = max(1, BLOCK_ENTRIES // (what.n_masks * what.shape[1]))
    scores = []
    for start in range(0, len(tasks), n_together):
        masks = [draw(task) for task in tasks[start : start + n_together]]
        values = mean_masked_scores(what.model, what.rows, np.concatenate(masks))
        scores += np.split(values, np.cumsum([len(drawn) for drawn in masks])[:-1])
    return scores


def _summarise(what, samples):
    """Scores and noise from the scores of distinct masks of each size."""
    parts = []
    for sample, n_all in zip(samples, what.n_existing, strict=True):
        mean, contrasts = _contrasts(sample[:, None], np.ones(len(sample)), n_all)
        parts.append((mean[0], contrasts[:, 0]))
    return _unlinked(parts, [len(sample) - 1 for sample in samples])


def balanced(what):
    """Let the masks of each size hide every feature alike, in two sets or more.

    The sets are independent, and tell how sure the scores are. Each row has masks of
    its own if the model takes them: the errors of the rows then average out.
    """
    score = _score_per_row if what.per_row else _score_sets
    parts = what.map(score, range(len(what.sizes)))
    n_strata = len(_strata(what.shape[0])) if what.per_row else 1
    degrees = [n_strata * (len(_sets(what, i)) - 1) for i in range(len(parts))]
    return _unlinked(parts, degrees, n_strata)


def _strata(n_rows):
    """Return where each group of rows begins whose errors are added up."""
    return np.arange(0, n_rows, -(-n_rows // N_STRATA))


def _n_enumerated(what, index):
    """Number of masks of a size if few enough to draw from a list, else infinity."""
    n_all, many = what.n_existing[index], max(4 * what.n_masks, what.shape[1])
    return n_all if n_all <= min(MAX_ENUMERATED, many) else np.inf


def _sets(what, index):
    """Number of masks in each set of a size: one, if they are drawn from a list."""
    n_masks = n_sets = what.n_drawn[index]
    if _n_enumerated(what, index) == np.inf:
        n_sets = min(n_masks, 2 if what.per_row and what.shape[0] > N_SETS else N_SETS)
    return [len(part) for part in np.array_split(np.arange(n_masks), n_sets)]


def _draw_sets(what, index, n_rows, rng):
    """Yield the masks of a size, of shape (n_rows, n_features), set by set."""
    size, n_features = what.sizes[index], what.shape[1]
    if _n_enumerated(what, index) < np.inf:
        n_masks = what.n_drawn[index]
        yield from draw_distinct_per_row(size, n_masks, n_rows, n_features, rng)
        return
    for n_masks in _sets(what, index):
        yield from draw_partitions(size, n_masks, n_rows, n_features, rng)


def _score_sets(what, indices):
    def draw(index):
        rng = child_generator(what.seed, index)
        return np.concatenate(list(_draw_sets(what, index, 1, rng)))

    scores = zip(indices, _score_shared(what, indices, draw), strict=True)
    return [_average(what, index, own[:, None]) for index, own in scores]


def _score_per_row(what, indices):
    return [_average(what, index, _scores_of_rows(what, index)) for index in indices]


def _scores_of_rows(what, index):
    """Score the masks of a size, those of each row its own; (n_masks, n_samples)."""
    conditional = Conditional(what.model)
    n_rows, n_together = what.shape[0], max(1, BLOCK_ENTRIES // what.shape[1])
    scores = []
    for start in range(0, n_rows, n_together):
        rows = what.rows.slice(start, min(start + n_together, n_rows))
        rng = child_generator(what.seed, index, start)
        masks = _draw_sets(what, index, len(rows), rng)
        scores.append(
            [masked_score(hidden_log_prob(conditional, rows, m), m) for m in masks]
        )
    return np.concatenate(scores, axis=1)


def _average(what, index, scores):
    """Average scores (n_masks, n_rows) over sets, then rows; contrasts of strata.

    The contrasts have the shape (n_sets * n_strata,), set by set.
    """
    counts, n_rows = np.array(_sets(what, index)), scores.shape[1]
    sums = np.add.reduceat(scores, np.cumsum(counts) - counts, axis=0)
    sets = sums / counts[:, None]
    means, contrasts = _contrasts(sets, counts, _n_enumerated(what, index))
    by_stratum = np.add.reduceat(contrasts, _strata(n_rows), axis=1)
    return means.mean(), by_stratum.ravel() / n_rows


def _contrasts(values, counts, n_all):
    """Mean of each column of independent values, and what tells its variance.

    values : shape (n_sets, n); counts : masks behind each; n_all : how many masks
    exist, if each value is of one mask and no two are the same, else infinity. The
    sum of squares of the contrasts over the sets is the variance of the mean; NaN if
    the mean is -inf.
    """
    n_sets, n_masks = len(values), counts.sum()
    mean = counts @ values / n_masks
    if n_sets == 1:
        is_known = np.isfinite(mean) & (n_masks == n_all)
        return mean, np.where(is_known, 0.0, np.nan)[None]
    scale = counts / n_masks * (1 - n_masks / n_all) / (n_sets - 1)
    centre = np.where(np.isfinite(mean), mean, np.nan)
    return mean, np.sqrt(scale)[:, None] * (values - centre)


def _unlinked(parts, degrees, n_strata=1):
    """Collect scores and contrasts of sizes whose masks are independent."""
    contrasts = np.zeros((len(parts), max(len(own) for _, own in parts)))
    for row, (_, own) in zip(contrasts, parts, strict=True):
        row[: len(own)] = own
    means = np.array([mean for mean, _ in parts])
    return means, MaskNoise(contrasts, np.array(degrees), False, n_strata=n_strata)
