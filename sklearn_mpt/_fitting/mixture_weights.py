"""Weights of a mixture of given densities."""

import numpy as np


def stacking_weights(
    log_probs, entry_weight=1.0, end_shares=None, prior_entries=1.0, *, tol=1e-4
):
    """Return the weights whose mixture has the largest mean log-probability."""
    # log_probs : (n_models, n_entries). end_shares : weights of an entry are sums of
    # those at several ends times these shares, (n_ends, n_entries); the result is
    # (n_models,), or (n_ends, n_models). prior_entries : number of entries that only
    # this model explains, so that none has the weight 0.
    log_probs = np.stack(log_probs)
    n_models, n_entries = log_probs.shape
    likelihood = np.exp(log_probs - log_probs.max(axis=0))
    shares = np.ones((1, n_entries)) if end_shares is None else end_shares

    def expected_counts(weights):
        mixture = (shares * (weights @ likelihood)).sum(axis=0)
        return weights * ((shares * entry_weight / mixture) @ likelihood.T)

    start = np.full((len(shares), n_models), 1 / n_models)
    weights = weights_by_em(start, expected_counts, prior_entries, axis=1, tol=tol)
    return weights[0] if end_shares is None else weights


def weights_by_em(
    weights, expected_counts, prior_counts, axis, *, max_iter=300, tol=1e-4
):
    """Return the weights of several mixtures after EM."""
    # weights : at the start, 1 in all along `axis`, that of the models. expected_counts
    # : the E-step, from weights to expected numbers of entries from each model.
    # prior_counts : added to them. tol : the last step changes no weight by more.
    for _ in range(max_iter):
        before = weights
        count = expected_counts(weights) + prior_counts
        weights = count / count.sum(axis=axis, keepdims=True)
        if np.abs(weights - before).max() < tol:
            break
    return weights
