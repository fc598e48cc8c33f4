"""The log-probability of all entries, hidden part by part."""

import numpy as np

from sklearn_mpt._measure.rows import Rows, copy_of

N_PARTS = 4  # parts of the columns of a row; one part is hidden at a time
SEED = 0


def hidden_score(model, X):
    """Return the mean log-probability of all present entries, hidden part by part.

    The columns of each row are divided into parts at random, always in the same way.
    """
    rows = Rows.of(X)
    n_rows, n_features = rows.shape
    keys = np.random.default_rng(SEED).random((n_rows, n_features))
    part = keys.argsort(axis=1).argsort(axis=1) % min(N_PARTS, n_features)
    total = count = 0
    for turn in range(min(N_PARTS, n_features)):
        mask = part == turn
        targets = rows.targets(mask)
        if targets.any():
            log_prob = model.conditional_log_prob(copy_of(X), mask)
            total += log_prob[targets].sum()
            count += targets.sum()
    if not count:
        raise ValueError("X has no present entries to score.")
    return float(total / count)
