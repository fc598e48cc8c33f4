"""Designs of masks: how masks are drawn, and the errors of the scores from them.

A design takes a `Measurement` and returns the score of each size and their `MaskNoise`.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from sklearn_mpt._measure.contract import (
    CheckedConditional,
    hidden_log_prob,
    masked_score,
    mean_masked_scores,
)
from sklearn_mpt._measure.curve import MaskNoise, size_weights
from sklearn_mpt._measure.masks import (
    MAX_ENUMERATED,
    MaskBlocks,
    child_generator,
    count_masks,
    draw_distinct,
    draw_distinct_per_row,
    draw_in_blocks,
    draw_partitions,
    neighbouring_std,
    split_total,
)
from sklearn_mpt._measure.rows import Rows
from sklearn_mpt._measure.standard_errors import contrasts_of_mean
from sklearn_mpt._measure.workers import map_tasks
from sklearn_mpt._numbers import CHUNK_ENTRIES, MAX_EXACT_INTEGER, chunk_slices

# Groups of rows whose errors are stored separately: with two sets of masks each, their
# variance has so many degrees of freedom.
N_STRATA = 8
# Balanced sets of masks of each size, if there are no more rows than that; as many less
# one are the degrees of freedom of their variance for each row. Student's t with four
# is 1.4 times as wide as the normal distribution.
N_SETS = 5


@dataclass(frozen=True, eq=False)
class Measurement:
    """The model, rows, sizes and seeds of one measurement."""

    model: object
    rows: Rows
    shape: tuple
    sizes: np.ndarray
    n_masks: int
    seed: np.random.SeedSequence
    n_jobs: int | None
    per_row: bool  # whether each row has masks of its own
    blocks: MaskBlocks | None = None  # features that are hidden together

    @cached_property
    def n_existing(self):
        """Number of distinct masks of each size; 2^53 if masks may be repeated."""
        n_features = self.shape[1]
        if self.blocks is not None:
            return np.where(self.sizes == n_features, 1, MAX_EXACT_INTEGER)
        return np.array([count_masks(size, n_features) for size in self.sizes])

    @property
    def n_drawn(self):
        """Number of masks of each size to draw."""
        return np.minimum(self.n_existing, self.n_masks)

    def map(self, function, tasks):
        """Return a result for each task, from ``function(measurement, tasks)``."""
        on_rows = partial(_with_rows, function, replace(self, rows=None))
        return map_tasks(on_rows, self.rows, tasks, self.n_jobs)


def _with_rows(function, measurement, rows, tasks):
    return function(replace(measurement, rows=rows), tasks)


def independent(measurement):
    """Draw distinct masks of each size independently."""
    return _summarise(
        measurement,
        _score_range(measurement, 0 * measurement.n_drawn, measurement.n_drawn),
    )


def neyman(measurement):
    """Draw masks of each size in proportion to the spread of their scores.

    A pilot estimates the spread. The scores of the pilot also enter the means, so to
    avoid bias the number of masks of a size must not depend on its own pilot: even
    sizes use the spread at odd sizes, and odd sizes that at even sizes. The total
    numbers of masks of even and of odd sizes are fixed in advance.
    """
    first = np.minimum(max(2, measurement.n_masks // 3), measurement.n_drawn)
    total = (measurement.n_drawn - first).sum()
    if total == 0 or len(first) < 2:
        return independent(measurement)
    pilot = _score_range(measurement, 0 * first, first)
    weights = size_weights(measurement.sizes, measurement.shape[1]) * (
        measurement.n_existing > first
    )
    spread = weights * neighbouring_std(pilot)
    last, parity = first.copy(), np.arange(len(first)) % 2
    totals = split_total(total, np.bincount(parity, weights))
    for half, of_half in zip((parity == 0, parity == 1), totals, strict=True):
        last[half] += split_total(of_half, spread[half])
    scores = _score_range(measurement, first, np.minimum(last, measurement.n_existing))
    pairs = zip(pilot, scores, strict=True)
    return _summarise(measurement, [np.concatenate(pair) for pair in pairs])


def _score_range(measurement, first, last):
    """Score the masks first[i]..last[i] - 1 of the i-th size, in order of drawing."""
    return measurement.map(
        _score_distinct, list(enumerate(zip(first, last, strict=True)))
    )


def _score_distinct(measurement, tasks):
    """Return an array of scores for each task; masks of several are in one call."""

    def draw(task):
        index, (first, last) = task
        rng, size = child_generator(measurement.seed, index), measurement.sizes[index]
        if measurement.blocks is not None:
            return draw_in_blocks(size, last, measurement.blocks, rng)[first:]
        return draw_distinct(size, last, measurement.shape[1], rng)[first:]

    scores, task_entries = [], measurement.n_masks * measurement.shape[1]
    for part in chunk_slices(len(tasks), task_entries, CHUNK_ENTRIES):
        masks = [draw(task) for task in tasks[part]]
        values = mean_masked_scores(
            measurement.model, measurement.rows, np.concatenate(masks)
        )
        scores += np.split(values, np.cumsum([len(drawn) for drawn in masks])[:-1])
    return scores


def _summarise(measurement, samples):
    """Return mean scores and noise from the scores of distinct masks of each size."""
    parts = []
    for sample, n_all in zip(samples, measurement.n_existing, strict=True):
        mean, contrasts = contrasts_of_mean(
            sample[:, None], np.ones(len(sample)), n_all
        )
        parts.append((mean[0], contrasts[:, 0]))
    return _collect_sizes(parts, [len(sample) - 1 for sample in samples])


def balanced(measurement):
    """Draw masks for each row that hide every feature about equally often.

    The masks of a size are drawn as several independent sets, from which the standard
    errors are estimated. The errors of rows are independent and average out. If rows
    share masks, these are independent: balanced ones vary as much.
    """
    if not measurement.per_row:
        return independent(measurement)
    parts = measurement.map(_score_per_row, range(len(measurement.sizes)))
    n_strata = len(_strata(measurement.shape[0]))
    degrees = [n_strata * (len(_sets(measurement, i)) - 1) for i in range(len(parts))]
    return _collect_sizes(parts, degrees, n_strata)


def _strata(n_rows):
    """Return the first row of each group of rows whose errors are added up."""
    return np.arange(0, n_rows, -(-n_rows // N_STRATA))


def _n_enumerated(measurement, index):
    """Return the number of masks of a size, or infinity if too many to list."""
    n_all = measurement.n_existing[index]
    many = max(4 * measurement.n_masks, measurement.shape[1])
    return n_all if n_all <= min(MAX_ENUMERATED, many) else np.inf


def _sets(measurement, index):
    """Return the number of masks in each set of a size; 1 if drawn from a list."""
    n_masks = n_sets = measurement.n_drawn[index]
    if _n_enumerated(measurement, index) == np.inf:
        n_sets = min(n_masks, 2 if measurement.shape[0] > N_SETS else N_SETS)
    return [len(part) for part in np.array_split(np.arange(n_masks), n_sets)]


def _draw_sets(measurement, index, n_rows, rng):
    """Yield the masks of a size, of shape (n_rows, n_features), set by set."""
    size, n_features = measurement.sizes[index], measurement.shape[1]
    if _n_enumerated(measurement, index) < np.inf:
        n_masks = measurement.n_drawn[index]
        yield from draw_distinct_per_row(size, n_masks, n_rows, n_features, rng)
        return
    for n_masks in _sets(measurement, index):
        yield from draw_partitions(size, n_masks, n_rows, n_features, rng)


def _score_per_row(measurement, indices):
    return [
        _average(measurement, index, _scores_of_rows(measurement, index))
        for index in indices
    ]


def _scores_of_rows(measurement, index):
    """Score masks of a size, drawn for each row; (n_masks, n_samples)."""
    conditional = CheckedConditional(measurement.model)
    scores = []
    for part in chunk_slices(*measurement.shape, CHUNK_ENTRIES):
        rows = measurement.rows.slice(part.start, part.stop)
        rng = child_generator(measurement.seed, index, part.start)
        masks = _draw_sets(measurement, index, len(rows), rng)
        scores.append(
            [masked_score(hidden_log_prob(conditional, rows, m), m) for m in masks]
        )
    return np.concatenate(scores, axis=1)


def _average(measurement, index, scores):
    """Average scores (n_masks, n_rows) over masks and rows."""
    counts, n_rows = np.array(_sets(measurement, index)), scores.shape[1]
    sums = np.add.reduceat(scores, np.cumsum(counts) - counts, axis=0)
    sets = sums / counts[:, None]
    means, contrasts = contrasts_of_mean(
        sets, counts, _n_enumerated(measurement, index)
    )
    by_stratum = np.add.reduceat(contrasts, _strata(n_rows), axis=1)
    return means.mean(), by_stratum.ravel() / n_rows


def _collect_sizes(parts, degrees, n_strata=1):
    """Collect (mean, contrasts) of sizes whose masks are independent of each other."""
    contrasts = np.zeros(
        (len(parts), max(len(part_contrasts) for _, part_contrasts in parts))
    )
    for row, (_, part_contrasts) in zip(contrasts, parts, strict=True):
        row[: len(part_contrasts)] = part_contrasts
    means = np.array([mean for mean, _ in parts])
    return means, MaskNoise(contrasts, np.array(degrees), n_strata=n_strata)
