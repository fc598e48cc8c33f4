"""Masks and orders that functions are asked for."""

import numpy as np

from sklearn_mpt import lml_samples, mpt_curve


class Recorder:
    """A model that keeps the masks; scores of shared masks are those given.

    score_of : function of masks (n_masks, d), the scores of masks.
    """

    def __init__(self, score_of=lambda masks: np.zeros(len(masks))):
        self.score_of, self.masks = score_of, []

    def conditional_log_prob(self, X, mask):
        return np.where(mask & ~np.isnan(X), -(X**2), 0.0)

    def mean_masked_scores(self, X, masks):
        self.masks.append(masks)
        return self.score_of(masks)


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
    """Orders that `lml_samples` draws for each row; (n_orders, n_rows, n_features)."""
    drawn = []

    def function(X, mask):
        if mask.ndim == 2 and len(mask) == n_rows:
            drawn.append(mask)
        visible = np.where(mask, 0.0, X).sum(axis=1, keepdims=True)
        return np.where(mask, -((X - visible) ** 2), 0.0)

    X = np.random.default_rng(0).normal(size=(n_rows, n_features))
    lml_samples(function, X, n_orders=n_orders, random_state=0)
    hidden = np.array(drawn[-n_orders * n_features :])
    # a feature at place t is hidden in t + 1 of the masks along an order
    places = hidden.reshape(n_orders, n_features, n_rows, n_features).sum(axis=1) - 1
    return places.argsort(axis=2)
