"""Scoring windows of text: blocks, batches and workers."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from sklearn_mpt._masked_lm import Batch
from sklearn_mpt._masks import mask_size
from sklearn_mpt._text_masks import Draw

BLOCK_BATCHES = 4  # a worker's task; a block's last batch may be small


class Row(NamedTuple):
    window: int
    hidden: np.ndarray  # bool, shape (n_tokens,)
    target: np.ndarray  # bool, shape (n_tokens,)


def score_windows(language_model, windows, method, draw, *, n_jobs=None, verbose=False):
    """Return the terms of each window and their variances, of shape (2, n_terms)."""
    scores = [np.zeros((2, 0))] * len(windows)
    order = sorted(
        (i for i, window in enumerate(windows) if len(window.places)),
        key=lambda i: -len(windows[i]),
    )
    blocks = list(_blocks(windows, order, draw, language_model.batch_tokens))
    n_jobs = n_jobs if language_model.device.type == "cpu" else 1
    n_workers = min(effective_n_jobs(n_jobs), len(blocks))
    score = delayed(_score_block if n_workers <= 1 else _score_apart)
    n_threads = max(1, torch.get_num_threads() // max(1, n_workers))
    results = Parallel(n_jobs=n_jobs, prefer="threads")(
        score(language_model, [windows[i] for i in block], method, draw, n_threads)
        for block in tqdm(blocks, disable=not verbose, unit="block")
    )
    for block, result in zip(blocks, results, strict=True):
        for i, terms in zip(block, result, strict=True):
            scores[i] = terms
    return scores


def _blocks(windows, order, draw, batch_tokens):
    """Cut the windows into blocks of a few batches; they do not depend on n_jobs."""
    block, n_tokens = [], 0
    for i in order:
        block.append(i)
        n_rows = draw.n_masks * len(draw.sizes(len(windows[i].places)))
        n_tokens += n_rows * len(windows[i])
        if n_tokens >= BLOCK_BATCHES * batch_tokens:
            yield block
            block, n_tokens = [], 0
    if block:
        yield block


def _score_apart(language_model, windows, method, draw, n_threads):
    """Score a block in a worker, with its own modules and share of the threads."""
    language_model = language_model.view()
    with threadpool_limits(n_threads, user_api="openmp"):
        return _score_block(language_model, windows, method, draw, n_threads)


def _score_block(language_model, windows, method, draw, n_threads):
    rows = (
        Row(i, *row)
        for i, window in enumerate(windows)
        for row in method.plan(window, draw)
    )
    log_prob, n_targets, owners = [], [], []
    for batch in pack(rows, language_model):
        arrays = _batch(windows, batch, language_model.input_names)
        log_prob.append(language_model.log_prob(arrays))
        n_targets.append(arrays.target.sum(axis=1))
        owners += [row.window for row in batch]
    log_prob = torch.cat(log_prob).double().cpu().numpy()
    n_targets = np.concatenate(n_targets)
    scores = np.add.reduceat(log_prob, np.cumsum(n_targets) - n_targets) / n_targets
    parts = np.split(scores, np.cumsum(np.bincount(owners))[:-1])
    return [
        method.reduce(part, len(window.places), draw)
        for part, window in zip(parts, windows, strict=True)
    ]


def pack(rows, language_model):
    """Pack rows, longest first, into lists that fill a batch, padding counted.

    A row that is longer than a batch has one of its own. Where the model takes no
    attention mask, the rows of a batch are of one length.
    """
    can_pad = "attention_mask" in language_model.input_names
    batch, length = [], 0
    for row in rows:
        full = (len(batch) + 1) * length > language_model.batch_tokens
        if batch and (full or (len(row.hidden) < length and not can_pad)):
            yield batch
            batch = []
        length = length if batch else len(row.hidden)
        batch.append(row)
    if batch:
        yield batch


def _batch(windows, rows, input_names):
    """Build the arrays of a batch, padded to its first row."""
    shape = (len(rows), len(rows[0].hidden))
    names = [*windows[0].inputs, *({"attention_mask"} & input_names)]
    inputs = {name: np.zeros(shape, dtype=np.int64) for name in names}
    hidden, target = np.zeros((2, *shape), dtype=bool)
    for i, row in enumerate(rows):
        length = len(row.hidden)
        hidden[i, :length], target[i, :length] = row.hidden, row.target
        for name in names:
            inputs[name][i, :length] = windows[row.window].inputs.get(name, 1)
    return Batch(inputs, hidden, target)


@dataclass(frozen=True, eq=False)
class TextScores:
    """Terms and variances of the windows of texts; a repeated text has them once."""

    windows: list
    terms: list  # one array of shape (2, n_terms) per window
    draw: Draw
    first: np.ndarray  # index of the first text that is the same, shape (n_texts,)

    def totals(self):
        """Add up the terms of each text and their variances; shape (2, n_texts)."""
        totals = np.zeros((2, len(self.first)))
        for window, terms in zip(self.windows, self.terms, strict=True):
            totals[:, window.text] += terms.sum(axis=1)
        return totals[:, self.first]

    def at_rates(self, rates):
        """Add up n_places * S(rate) of each text and the variance of that.

        Returns n_places, of shape (n_texts,), and the sums, of shape (2, n_texts,
        n_rates). The terms must be those of method "mpt".
        """
        n_places = np.zeros(len(self.first))
        sums = np.zeros((2, len(self.first), len(rates)))
        for window, terms in zip(self.windows, self.terms, strict=True):
            n = len(window.places)
            if n:
                sizes = [mask_size(rate, n) for rate in rates]
                columns = terms[:, np.searchsorted(self.draw.sizes(n), sizes)]
                n_places[window.text] += n
                sums[:, window.text] += columns * [[n], [n**2]]
        return n_places[self.first], sums[:, self.first]
