"""Score windows of text in blocks, batches and workers."""

from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from joblib.parallel import get_active_backend
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from sklearn_mpt._messages import how_to_install
from sklearn_mpt._text.masked_lm import OVERFLOW_ADVICE, NotFiniteError, TokenBatch
from sklearn_mpt._text.masks import NO_SCORES

# Fraction of a batch that takes more time for each token, so that padding fills it up:
# "Texts: sizes of batches" in benchmarks/RESULTS.rst.
ALMOST_EMPTY = 1 / 16
# Batches in a block, which is what a worker scores at a time. The last batch of a block
# is half full on average.
BLOCK_BATCHES = 4


class MaskedWindow(NamedTuple):
    window: int
    hidden: np.ndarray  # bool, shape (n_tokens,)
    target: np.ndarray  # bool, shape (n_tokens,)


def score_windows(language_model, windows, draw, n_jobs=None, verbose=False):
    """Return the `WindowScores` of each window."""
    blocks = list(_blocks(windows, draw, language_model.batch_tokens))
    n_jobs = n_jobs if language_model.device.type == "cpu" else 1
    n_workers = max(1, min(effective_n_jobs(n_jobs), len(blocks)))
    n_threads = max(1, torch.get_num_threads() // n_workers)
    work = _score_blocks if n_workers == 1 else partial(_score_apart, n_threads)
    backend, _ = get_active_backend(prefer="threads")
    is_shared = getattr(backend, "supports_sharedmem", False)
    if is_shared or language_model.checkpoint is not None:
        tasks = [[block] for block in blocks]
    else:  # each task carries the model
        tasks = [blocks[i::n_workers] for i in range(n_workers) if blocks]
    results = Parallel(n_jobs=n_jobs, prefer="threads")(
        delayed(work)(language_model, [[windows[i] for i in b] for b in task], draw)
        for task in (_followed(tasks) if verbose else tasks)
    )
    scores = [NO_SCORES] * len(windows)
    for task, result in zip(tasks, results, strict=True):
        for i, score in zip(chain.from_iterable(task), result, strict=True):
            scores[i] = score
    return scores


def _followed(tasks):
    """Show a progress bar, like that of scikit-learn's ProgressBar."""
    try:
        from rich.progress import track
    except ImportError as error:
        raise ImportError(
            f"verbose=True needs rich: {how_to_install('progress')}"
        ) from error
    return track(tasks, description="MPTScorer - score")


def _blocks(windows, draw, batch_tokens):
    """Yield blocks of indices of windows, longest first, of a few batches each."""
    # Blocks do not depend on n_jobs.
    block, n_tokens = [], 0
    for i in sorted(range(len(windows)), key=lambda i: -len(windows[i])):
        if len(windows[i].positions):
            block.append(i)
            n_tokens += draw.n_rows(windows[i]) * len(windows[i])
        if n_tokens >= BLOCK_BATCHES * batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _score_apart(n_threads, language_model, blocks, draw):
    """Score blocks in a worker, with its own modules and its share of the threads."""
    with threadpool_limits(n_threads, user_api="openmp"):
        return _score_blocks(language_model.view(), blocks, draw)


def _score_blocks(language_model, blocks, draw):
    scores = (_score_block(language_model, windows, draw) for windows in blocks)
    return list(chain.from_iterable(scores))


def _score_block(language_model, windows, draw):
    """Return the `WindowScores` of each window."""
    rows = (
        MaskedWindow(i, hidden, target)
        for i, window in enumerate(windows)
        for hidden, target in draw.plan(window)
    )
    log_prob, targets, owners = predict(language_model, windows, rows)
    first_rows = np.searchsorted(owners, range(len(windows) + 1))
    first_targets = np.cumsum([0, *map(len, targets)])[first_rows]
    bounds = zip(windows, pairwise(first_targets), pairwise(first_rows), strict=True)
    return [
        draw.estimate(window, log_prob[slice(*own_targets)], targets[slice(*own_rows)])
        for window, own_targets, own_rows in bounds
    ]


def predict(language_model, windows, rows, pick=None):
    """Return log-probabilities of targets, their positions, and windows of rows."""
    # rows : longest first. pick : as in `MaskedLM.log_prob`.
    can_pad = language_model.can_pad and "attention_mask" in windows[0].inputs
    log_prob, targets, owners = [], [], []
    for batch in pack(rows, language_model.batch_tokens, can_pad):
        arrays = _arrays(windows, batch)
        log_prob.append(language_model.log_prob(arrays, pick))
        targets += [row.target.nonzero()[0] for row in batch]
        owners += [row.window for row in batch]
    log_prob = torch.cat(log_prob).cpu().double().numpy()
    _check_numbers(log_prob, targets, owners, windows)
    return log_prob, targets, owners


def predict_by_row(language_model, windows, rows, pick=None):
    """Return an array of log-probabilities, of its targets, for each row."""
    if not rows:
        return []
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].hidden))
    longest_first = [rows[i] for i in order]
    log_prob, targets, _ = predict(language_model, windows, longest_first, pick)
    parts = np.split(
        log_prob, np.cumsum([len(positions) for positions in targets])[:-1]
    )
    part_of = dict(zip(order, parts, strict=True))
    return [part_of[i] for i in range(len(rows))]


def _check_numbers(log_prob, targets, owners, windows):
    """Refuse predictions that are NaN; the message names the text."""
    if np.isnan(log_prob).any():
        rows = np.repeat(owners, [len(positions) for positions in targets])
        is_nan = np.isnan(log_prob).reshape(len(rows), -1).any(axis=1)
        first = windows[rows[is_nan.argmax()]]
        raise NotFiniteError(
            f"The predictions of the model for texts[{first.text}] are not finite, but "
            f"NaN. {OVERFLOW_ADVICE}"
        )


def pack(rows, batch_tokens, can_pad):
    """Pack rows, longest first, into batches of at most `batch_tokens` tokens."""
    # Padding counts as tokens. A longer row has a batch of its own. Rows are padded
    # only to fill a batch that is almost empty.
    least = ALMOST_EMPTY * batch_tokens if can_pad else 0
    batch, length = [], 0
    for row in rows:
        n_tokens = len(batch) * length
        is_full = n_tokens + length > batch_tokens
        if batch and (is_full or (len(row.hidden) < length and n_tokens >= least)):
            yield batch
            batch = []
        length = length if batch else len(row.hidden)
        batch.append(row)
    if batch:
        yield batch


def _arrays(windows, rows):
    """Build the arrays of a batch, padded with 0 to the length of its first row."""
    shape = (len(rows), len(rows[0].hidden))
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in windows[0].inputs}
    hidden, target = np.zeros((2, *shape), dtype=bool)
    for i, row in enumerate(rows):
        length = len(row.hidden)
        hidden[i, :length], target[i, :length] = row.hidden, row.target
        for name, array in windows[row.window].inputs.items():
            inputs[name][i, :length] = array
    return TokenBatch(inputs, hidden, target)
