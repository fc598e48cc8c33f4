"""What models of coded rows expect in the gaps of a table."""

import numpy as np

from sklearn_mpt._imputation.column_layout import codes_of
from sklearn_mpt._imputation.weights import mixed


def expectations(model, rows):
    """Return what a model expects in the gaps of coded rows.

    Returns
    -------
    numbers : ndarray of shape (n, d)
        Expected numbers in the units of the table, arbitrary in columns of categories
        and where `rows` are present.
    log_probs : dict of ndarrays
        Log-probabilities of the codes of each coded column with gaps, (n, n_codes).
    """
    layout = rows.coding.layout
    columns = layout.coded[rows.gaps[:, layout.coded].any(axis=0)]
    numbers, log_probs = model.expected(rows, columns)
    for j, log_prob in zip(columns, log_probs, strict=True):
        if j in layout.values:
            numbers[:, j] = np.exp(log_prob) @ layout.values[j]
    return numbers, dict(zip(columns.tolist(), log_probs, strict=True))


def expected(models, weights, rows):
    """Fill gaps of coded rows in by what a mixture of models expects.

    The result is in the units of the table: expected numbers, medians of ordered
    categories, and the most probable of others.

    weights : `ModelWeights`.
    """
    layout, gaps = rows.coding.layout, rows.gaps
    expectations_of_models = [expectations(model, rows) for model in models]
    numbers_of_models = np.stack([numbers for numbers, _ in expectations_of_models])
    # a model without a weight may expect what is not finite
    has_weight = weights.mean[:, None] > 0
    numbers = (
        weights.mean[:, None] * np.where(has_weight, numbers_of_models, 0.0)
    ).sum(axis=0)
    filled = np.where(gaps, numbers, rows.numbers)
    for j in layout.coded[
        ~layout.numbers[layout.coded] & gaps[:, layout.coded].any(axis=0)
    ]:
        log_prob = mixed(
            np.stack([entries[j] for _, entries in expectations_of_models]),
            weights.log_prob[:, j],
        )
        codes = codes_of(np.exp(log_prob), layout.ordered[j])
        filled[:, j] = np.where(gaps[:, j], codes, rows.numbers[:, j])
    return filled
