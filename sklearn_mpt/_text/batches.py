"""Score windows of text in blocks, batches and workers."""

from itertools import chain, groupby, islice, pairwise
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
    n_threads = None if n_workers == 1 else n_threads  # of a worker with other workers
    backend, _ = get_active_backend(prefer="threads")
    is_shared = getattr(backend, "supports_sharedmem", False)
    if is_shared or language_model.checkpoint is not None:
        tasks = [[block] for block in blocks]
    else:  # each task carries the model
        tasks = [blocks[i::n_workers] for i in range(n_workers) if blocks]
    followed = tasks
    if verbose:  # a bar like that of scikit-learn's ProgressBar
        try:
            from rich.progress import track
        except ImportError as error:
            raise ImportError(
                f"verbose=True needs rich: {how_to_install('progress')}"
            ) from error
        followed = track(tasks, description="MPTScorer - score")
    results = Parallel(n_jobs=n_jobs, prefer="threads")(
        delayed(_score_blocks)(
            language_model, [[windows[i] for i in b] for b in task], draw, n_threads
        )
        for task in followed
    )
    scores = [NO_SCORES] * len(windows)
    for task, result in zip(tasks, results, strict=True):
        for i, score in zip(chain.from_iterable(task), result, strict=True):
            scores[i] = score
    return scores


def _blocks(windows, draw, batch_tokens, *, n_batches=4):
    """Yield blocks of indices of windows, longest first, of a few batches each."""
    # A worker scores a block at a time. Blocks do not depend on n_jobs.
    block, n_tokens = [], 0
    for i in sorted(range(len(windows)), key=lambda i: -len(windows[i])):
        if len(windows[i].positions):
            block.append(i)
            n_tokens += draw.n_rows(windows[i]) * len(windows[i])
        if n_tokens >= n_batches * batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _score_blocks(language_model, blocks, draw, n_threads):
    """Score blocks; one worker of several has its own modules, and some threads."""
    if n_threads is None:
        scores = [_score_block(language_model, windows, draw) for windows in blocks]
    else:
        with threadpool_limits(n_threads, user_api="openmp"):
            own = language_model.view()
            scores = [_score_block(own, windows, draw) for windows in blocks]
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
    # rows : those of one length next to each other, as they share batches. pick : as in
    # `MaskedLM.log_prob`.
    log_prob, targets, owners = [], [], []
    for length, of_length in groupby(rows, lambda row: len(row.hidden)):
        n_rows = max(1, language_model.batch_tokens // length)
        while batch := list(islice(of_length, n_rows)):
            inputs = {
                name: np.stack([windows[row.window].inputs[name] for row in batch])
                for name in windows[0].inputs
            }
            hidden, target = (
                np.stack(masks)
                for masks in zip(*(row[1:] for row in batch), strict=True)
            )
            tokens = TokenBatch(inputs, hidden, target)
            log_prob.append(language_model.log_prob(tokens, pick))
            targets += [row.target.nonzero()[0] for row in batch]
            owners += [row.window for row in batch]
    log_prob = torch.cat(log_prob).cpu().double().numpy()
    if np.isnan(log_prob).any():
        of_targets = np.repeat(owners, [len(positions) for positions in targets])
        is_nan = np.isnan(log_prob).reshape(len(of_targets), -1).any(axis=1)
        first = windows[of_targets[is_nan.argmax()]]
        raise NotFiniteError(
            f"The predictions of the model for texts[{first.text}] are not finite, but "
            f"NaN. {OVERFLOW_ADVICE}"
        )
    return log_prob, targets, owners


def predict_by_row(language_model, windows, rows, pick=None):
    """Return an array of log-probabilities, of its targets, for each row."""
    if not rows:
        return []
    order = np.argsort([-len(row.hidden) for row in rows], kind="stable")
    sorted_rows = [rows[i] for i in order]
    log_prob, targets, _ = predict(language_model, windows, sorted_rows, pick)
    stops = np.cumsum([len(positions) for positions in targets])
    parts = np.split(log_prob, stops[:-1])
    return [parts[i] for i in np.argsort(order)]
