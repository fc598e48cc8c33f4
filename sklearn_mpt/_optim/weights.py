"""Weights of rows and of mixtures, and priors of parameters."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._numbers import TINY


def distinct_rows(X, weight):
    """Return the indices of distinct rows, and the weights of each and its equals."""
    # Missing entries are equal. All rows are returned where most of a sample differ:
    # merging then saves less than a fifth of a step. The sample is sorted in a
    # millisecond.
    weight = np.ones(len(X)) if weight is None else weight
    X = np.ascontiguousarray(X)
    keys = X.view(np.dtype((np.void, X.itemsize * X.shape[1])))[:, 0]
    if len(keys) > 4096:
        sample = keys[:: len(keys) // 4096]
        if len(np.unique(sample)) > 0.8 * len(sample):
            return np.arange(len(keys)), weight
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    # in the order in which they come, which does not depend on units
    order = first.argsort()
    return first[order], np.bincount(inverse.ravel(), weight, len(first))[order]


def relative_weights(weight, n_rows):
    """Return sample weights that add up to `n_rows`, (n,); None is 1 for each."""
    if weight is None:
        return np.ones(n_rows)
    relative = weight / weight.max()  # exactly 1 where all are equal
    return relative / (relative.sum() / n_rows)


class SampleWeights(NamedTuple):
    """The sample weights of rows, and their sum."""

    values: torch.Tensor  # shape: (n,), of mean 1 before equal rows are merged
    total: float

    @classmethod
    def from_array(cls, weight, X, n_rows=None):
        """Return the weights of the rows X; None is 1 for each."""
        # n_rows : number of rows before equal ones were merged; None is that of X.
        total = float(len(X) if weight is None else weight.sum())
        relative = torch.from_numpy(relative_weights(weight, n_rows or len(X)))
        return cls(relative.to(X.device), total)


def stacking_weights(log_probs, entry_weight=1.0, end_shares=None, *, tol=1e-4):
    """Return the weights whose mixture has the largest mean log-probability."""
    # log_probs : (n_models, n_entries). end_shares : weights of an entry are sums of
    # those at several ends times these shares, (n_ends, n_entries); the result is
    # (n_models,), or (n_ends, n_models). Each model explains one more entry, so that
    # none has the weight 0.
    log_probs = np.stack(log_probs)
    n_models, n_entries = log_probs.shape
    likelihood = np.exp(log_probs - log_probs.max(axis=0))
    shares = np.ones((1, n_entries)) if end_shares is None else end_shares

    def expected_counts(weights):
        mixture = (shares * (weights @ likelihood)).sum(axis=0)
        return weights * ((shares * entry_weight / mixture) @ likelihood.T)

    start = np.full((len(shares), n_models), 1 / n_models)
    weights = weights_by_em(start, expected_counts, 1.0, axis=1, tol=tol)
    return weights[0] if end_shares is None else weights


def weights_by_em(weights, expected_counts, prior_counts, *, axis, tol):
    """Return the weights of several mixtures after EM."""
    # weights : at the start, 1 in all along `axis`, that of the models. expected_counts
    # : the E-step, from weights to expected numbers of entries from each model.
    # prior_counts : added to them. tol : the last step changes no weight by more; as EM
    # is slow where models are alike, and then weights matter little, 300 steps end it.
    for _ in range(300):
        before = weights
        count = expected_counts(weights) + prior_counts
        weights = count / count.sum(axis=axis, keepdims=True)
        if np.abs(weights - before).max() < tol:
            break
    return weights


# Without a prior, slopes are free up to this length (change of a location for a unit of
# z), and a standard normal prior keeps the excess small: slopes of features that
# separate the rows would be infinite.
LONG_SLOPE = 10.0
# Observations added to each category that no row has, as by Jeffreys' prior.
UNSEEN_COUNT = 0.5


def slope_penalty(slopes, deviation):
    """Return gradient, curvature and value of minus the log prior of slopes (j, k)."""
    # deviation : of the prior; None is none, but for long slopes. Shapes (j, k) and (j,
    # 1), and a float, in nats.
    free = 0.0
    if deviation is None:
        deviation, free = 1.0, LONG_SLOPE
    length = torch.linalg.norm(slopes, dim=1, keepdim=True)
    excess = (length - free).clamp(min=0)
    precision = deviation**-2
    gradient = precision * excess / length.clamp(min=TINY) * slopes
    curvature = precision * (length >= free)
    return gradient, curvature, 0.5 * precision * float((excess**2).sum())
