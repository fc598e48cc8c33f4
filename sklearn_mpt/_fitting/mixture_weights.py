"""Weights of a mixture of given densities."""

import numpy as np

PRIOR_ENTRIES = 1.0  # added to each density, so that none has the weight 0
# Steps of EM at most, and the change of weights at which they end.
N_WEIGHT_STEPS, WEIGHT_TOL = 300, 1e-4


def stacking_weights(log_probs, entry_weight=1.0, end_shares=None):
    """Return the weights whose mixture has the largest mean log-probability.

    `PRIOR_ENTRIES` entries that only this model explains are added to each model.

    log_probs : of entries under each model, (n_models, n_entries). entry_weight : what
    each entry counts. end_shares : if weights differ between entries, those of an entry
    are sums of weights at several ends times these shares, (n_ends, n_entries).

    Returns (n_models,), or (n_ends, n_models) if there are ends. Weights of each end
    add up to 1.
    """
    log_probs = np.stack(log_probs)
    n_models, n_entries = log_probs.shape
    likelihood = np.exp(log_probs - log_probs.max(axis=0))
    shares = np.ones((1, n_entries)) if end_shares is None else end_shares
    weights = np.full((len(shares), n_models), 1 / n_models)
    for _ in range(N_WEIGHT_STEPS):
        before = weights
        mixture = (shares * (weights @ likelihood)).sum(axis=0)
        expected = weights * ((shares * entry_weight / mixture) @ likelihood.T)
        count = expected + PRIOR_ENTRIES
        weights = count / count.sum(axis=1, keepdims=True)
        if np.abs(weights - before).max() < WEIGHT_TOL:
            break
    return weights[0] if end_shares is None else weights
