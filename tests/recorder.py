"""A model that keeps the masks and orders which it is asked for."""

import numpy as np

from sklearn_mpt import mpt_curve


class Recorder:
    """Independent columns; scores of shared masks and orders are those given.

    score_of : function of masks (n_masks, d), the scores of masks. terms : array
    (2, n_orders, d), the scores of orders.
    """

    def __init__(self, score_of=lambda masks: np.zeros(len(masks)), terms=None):
        self.score_of, self.terms = score_of, terms
        self.masks, self.orders = [], []

    def conditional_log_prob(self, X, mask):
        return np.where(mask & ~np.isnan(X), -(X**2), 0.0)

    def mean_masked_scores(self, X, masks):
        self.masks.append(masks)
        return self.score_of(masks)

    def mean_chain_scores(self, X, orders):
        self.orders.append(orders)
        if self.terms is None:
            return np.zeros((2, len(orders), X.shape[1]))
        first = sum(len(own) for own in self.orders[:-1])
        return self.terms[:, first : first + len(orders)]


def masks_of(n_features, size, n_masks, **options):
    """Masks of one size that `mpt_curve` draws, in their order."""
    recorder = Recorder()
    options = {"design": "independent", "random_state": 0} | options
    X = np.zeros((2, n_features))
    mpt_curve(recorder, X, mask_sizes=[size], n_masks=n_masks, **options)
    return np.concatenate(recorder.masks)


def masks_of_rows(n_rows, n_features, size, n_masks):
    """Masks of one size that `mpt_curve` draws for each row, in their order."""
    drawn = []

    def function(X, mask):
        if mask.shape == (n_rows, n_features) and (mask.sum(axis=1) == size).all():
            drawn.append(mask)
        visible = np.where(mask, 0.0, X).sum(axis=1, keepdims=True)
        return np.where(mask, -((X - visible) ** 2), 0.0)

    X = np.random.default_rng(0).normal(size=(n_rows, n_features))
    options = {"design": "balanced", "mask_sizes": [size], "n_masks": n_masks}
    mpt_curve(function, X, random_state=0, **options)
    return np.array(drawn)


def orders_of(n_orders, n_rows, n_features):
    """Orders that `mpt_curve` draws for each row; (n_orders, n_rows, n_features)."""
    recorder, X = Recorder(), np.zeros((n_rows, n_features))
    X[0, 0] = np.nan  # with gaps, rows have orders of their own
    mpt_curve(recorder, X, design="chain", n_masks=n_orders, random_state=0)
    return np.concatenate(recorder.orders)
