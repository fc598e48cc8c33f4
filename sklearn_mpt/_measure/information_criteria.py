"""Information criteria of fitted models; the lower, the better."""

import numpy as np


def akaike(log_likelihood, n_parameters):
    """Return -2 times the log-likelihood (nats), plus 2 for each parameter."""
    return float(-2 * log_likelihood + 2 * n_parameters)


def bayesian(log_likelihood, n_parameters, n_rows):
    """Return -2 times the log-likelihood (nats), plus log(n_rows) for each parameter.

    n_rows : number of rows, or the sum of their weights.
    """
    return float(-2 * log_likelihood + np.log(n_rows) * n_parameters)
