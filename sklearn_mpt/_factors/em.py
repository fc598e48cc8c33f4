"""EM of factor analysis: steps for covariances, and a fit to rows with gaps."""
# Rubin and Thayer, "EM algorithms for ML factor analysis", Psychometrika 47, 1982.

import math

import numpy as np
import torch

from sklearn_mpt._factors.objective import GaussianRows
from sklearn_mpt._factors.starts import principal_factors
from sklearn_mpt._factors.sums import moments_of
from sklearn_mpt._fitting.ascent import Ascent
from sklearn_mpt._fitting.fit_loop import run
from sklearn_mpt._fitting.natural_gradient import Point
from sklearn_mpt._fitting.weights import relative_weights
from sklearn_mpt._matrices import identity


def em_step(covariances, loadings, noise):
    """Return loadings and noise variances after a step of EM for K covariances."""
    # covariances : (K, g, g). loadings : (K, g, q). noise : (K, g).
    eye = identity(loadings.shape[2], noise)
    scaled = loadings / noise[..., None]
    inner = eye + loadings.mT @ scaled
    beta = torch.linalg.solve(inner, scaled.mT)  # E[z | x] = beta x; (K, q, g)
    cross = covariances @ beta.mT
    second = eye - beta @ loadings + beta @ cross
    loadings = torch.linalg.solve(second, cross.mT).mT
    variance = (covariances - loadings @ cross.mT).diagonal(dim1=1, dim2=2)
    return loadings, variance.clamp(min=0)


def fit_factors(
    X, weight, n_factors, *, noise_floor=1e-3, tol=1e-3, max_iter=60, start=None
):
    """Fit factor analysis to standardised rows with gaps, by corrected steps of EM."""
    # X : (n, d), NaN where missing; present entries have mean 0 and variance 1. The
    # information of each noise variance is that of complete data: the joint information
    # of rows with gaps is nearly 0 near the floor, where steps by it are far too long.
    rows = torch.from_numpy(X)
    weight = relative_weights(weight, len(X))
    if start is None:
        start = _principal_start(rows, weight, n_factors, noise_floor)
    floor = rows.new_tensor(math.log(noise_floor))
    objective = GaussianRows(rows, n_factors, len(rows), floor, weight)
    objective.joins_noises = False
    return run(Ascent(objective, start, tol=tol, escapes=False), max_iter)


def _principal_start(rows, weight, n_factors, noise_floor):
    mean = rows.new_zeros(rows.shape[1])
    moments = moments_of(rows, torch.from_numpy(weight), mean)
    components, noise = principal_factors(moments, n_factors, noise_floor)
    coefs = np.column_stack([components.T, mean.numpy()])
    return Point(torch.from_numpy(coefs), torch.from_numpy(np.log(noise)))
