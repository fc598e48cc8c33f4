"""Weights of a mixture of given densities."""

import numpy as np

PRIOR_ENTRIES = 1.0  # added to each density, so that none has the weight 0
# Steps of EM at most, and the change of weights at which they end.
N_WEIGHT_STEPS, WEIGHT_TOL = 300, 1e-4


def stacking_weights(log_probs, entry_weight=1.0):
    """Return the weights whose mixture has the largest mean log-probability.

    `PRIOR_ENTRIES` entries that only this model explains are added to each model.

    log_probs : of entries under each model, (n_models, n_entries). entry_weight : what
    each entry counts.
    """
    log_probs = np.stack(log_probs)
    likelihood = np.exp(log_probs - log_probs.max(axis=0))
    weights = np.full(len(log_probs), 1 / len(log_probs))
    for _ in range(N_WEIGHT_STEPS):
        before = weights
        share = weights * (likelihood @ (entry_weight / (weights @ likelihood)))
        count = share + PRIOR_ENTRIES
        weights = count / count.sum()
        if np.abs(weights - before).max() < WEIGHT_TOL:
            break
    return weights
