"""Averages over weighted points: how many are enough, and how sure the result is.

Points come in independent replicates, whose spread gives the standard error: that of
the points of one replicate would not, as quasi-random points are not independent.
"""

import math

import numpy as np
import torch
from scipy.stats import qmc

N_REPLICATES = 8


def normal_points(n_points, n_dims, seed, n_replicates=N_REPLICATES):
    """Scrambled Sobol points of the standard normal: (n_replicates, n_points, n_dims).

    n_points : a power of 2.
    """
    engines = (
        qmc.MultivariateNormalQMC(np.zeros(n_dims), rng=np.random.default_rng(child))
        for child in np.random.SeedSequence(seed).spawn(n_replicates)
    )
    return np.stack([engine.random(n_points) for engine in engines])


def log_mean_exp(log_values, axis):
    """Log of the mean of exponentials of a tensor."""
    return torch.logsumexp(log_values, axis) - math.log(log_values.shape[axis])


def pool(log_means):
    """Pool the replicates' log averages: the log of their mean, its standard error.

    log_means : shape (n_replicates, ...)
    """
    pooled = log_mean_exp(log_means, 0)
    spread = (log_means - pooled).exp().std(0, correction=1)
    return pooled, spread / math.sqrt(len(log_means))
