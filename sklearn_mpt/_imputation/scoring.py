"""The log-probability of all entries, hidden fold by fold."""

import numpy as np

from sklearn_mpt._measure.rows import Rows, copy_of


def hidden_score(model, X, columns=None, weight=None, n_parts=4, seed=0):
    """Return the mean log-probability of all present entries, hidden fold by fold."""
    # The columns of each row are divided at random into `n_parts`, of which one is
    # hidden at a time; always in the same way, by `seed`, so that scores of models
    # compare.
    rows = Rows.from_table(X)
    n_rows, n_features = rows.shape
    keys = np.random.default_rng(seed).random((n_rows, n_features))
    columns = np.arange(n_features) if columns is None else columns
    n_parts = min(n_parts, len(columns))
    fold_of = np.full(rows.shape, -1)
    fold_of[:, columns] = keys[:, columns].argsort(axis=1).argsort(axis=1) % n_parts
    weight = np.ones(n_rows) if weight is None else weight
    fold_of[weight == 0] = -1
    total = count = 0
    for fold in range(n_parts):
        mask = fold_of == fold
        targets = rows.targets(mask)
        if targets.any():
            log_prob = model.conditional_log_prob(copy_of(X), mask)
            total += weight[targets.nonzero()[0]] @ log_prob[targets]
            count += weight @ targets.sum(axis=1)
    if not count:
        raise ValueError("X has no present entries to score.")
    return float(total / count)
