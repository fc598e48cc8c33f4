"""Second routes to the package's numbers, by D x D matrices and scipy."""

from itertools import combinations

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import multivariate_normal


def covariance_of(model):
    components = model.components_
    noise = model.noise_variance_ * np.eye(components.shape[1])
    return components.T @ components + noise


def log_density(X, mean, covariance):
    """log p of the present entries of each row; NaN entries are marginalised out."""
    result = np.zeros(len(X))
    for i, x in enumerate(X):
        seen = ~np.isnan(x)
        if seen.any():
            marginal = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
            result[i] = marginal.logpdf(x[seen])
    return result


def conditional_log_density(X, mask, mean, covariance):
    return by_differences(X, mask, lambda rows: log_density(rows, mean, covariance))


def by_differences(X, mask, log_density_of):
    """log p(x_j | x_R) as a difference of joint densities, entry by entry."""
    result = np.zeros(X.shape)
    hidden = np.broadcast_to(mask, X.shape) & ~np.isnan(X)
    visible = np.where(mask, np.nan, X)
    base = log_density_of(visible)
    for j in range(X.shape[1]):
        extended = visible.copy()
        extended[:, j] = X[:, j]
        gain = log_density_of(extended) - base
        result[:, j] = np.where(hidden[:, j], gain, 0.0)
    return result


def dense_grid(n_components, n_per_dim=201, limit=9.0):
    """Points of the trapezoid rule for the standard normal, and their log weights."""
    axis = np.linspace(-limit, limit, n_per_dim)
    z = np.stack(np.meshgrid(*[axis] * n_components), -1).reshape(-1, n_components)
    log_weight = -0.5 * (z**2).sum(1)
    return z, log_weight - logsumexp(log_weight)


def bernoulli_log_joint(X, components, intercept):
    """Log of p(present entries, z) at the points of a dense grid; (n, n_points)."""
    z, log_weight = dense_grid(len(components))
    logits = z @ components + intercept
    ones, zeros = np.nan_to_num(X), np.where(np.isnan(X), 0.0, 1 - X)
    return ones @ log_expit(logits).T + zeros @ log_expit(-logits).T + log_weight


def bernoulli_log_prob(X, components, intercept):
    return logsumexp(bernoulli_log_joint(X, components, intercept), axis=1)


def bernoulli_posterior_average(function, X, components, intercept):
    joint = bernoulli_log_joint(X, components, intercept)
    weight = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    return weight @ function(dense_grid(len(components))[0])


def binary_rows(n_samples, components, intercept, seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n_samples, len(components)))
    prob = expit(z @ components + intercept)
    return (rng.random(prob.shape) < prob).astype(float)


def ml_optimum(X, n_components):
    """Mean log-likelihood at the closed-form solution (Tipping and Bishop 1999)."""
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    noise = values[n_components:].mean()
    spectrum = np.r_[values[:n_components], np.full(len(values) - n_components, noise)]
    return -0.5 * np.sum(np.log(2 * np.pi * spectrum) + 1)


def low_rank_rows(n_samples, n_features, n_components, noise_variance, seed):
    rng = np.random.default_rng(seed)
    components = rng.normal(size=(n_components, n_features))
    X = rng.normal(size=(n_samples, n_components)) @ components
    return X + np.sqrt(noise_variance) * rng.normal(size=X.shape)


def all_masks(n_features, size):
    """All masks of one size, (n_masks, n_features)."""
    hidden = np.array(list(combinations(range(n_features), size)))
    return (hidden[..., None] == np.arange(n_features)).any(axis=1)


def masked_score(log_prob, mask):
    """Sum over the hidden entries of each row, divided by the size of its mask."""
    return (log_prob * mask).sum(-1) / mask.sum(-1)


def scores_of_masks(conditional, X, masks):
    """What `mean_masked_scores` must return, by a call for each mask."""
    return np.array([masked_score(conditional(X, m), m).mean() for m in masks])


def terms_of_orders(conditional, X, orders):
    """What `chain_log_prob` must return, by a call for each place of each order."""
    terms = np.zeros((len(orders), *X.shape))
    for along, place in zip(terms, np.argsort(orders, axis=-1), strict=True):
        for t in range(X.shape[1]):
            along += conditional(X, place >= t) * (place == t)
    return terms


def exact_terms(x, order, model):
    """Terms along an order of a row of a linear Gaussian model, with 60 digits."""
    mp = pytest.importorskip("mpmath")
    terms = np.zeros(len(x))
    with mp.workdps(60):
        W, mean = mp.matrix(model.components.tolist()), model.mean.tolist()
        S = W.T * W + mp.mpf(float(model.noise_variance)) * mp.eye(W.cols)
        error = [mp.mpf(float(a)) - mp.mpf(b) for a, b in zip(x, mean, strict=True)]
        for t, j in enumerate(order):
            before = order[:t]
            deviation, variance = error[j], S[j, j]
            if before:
                inner = mp.matrix([[S[a, b] for b in before] for a in before])
                cross = mp.matrix([S[a, j] for a in before])
                gain = mp.lu_solve(inner, cross)
                deviation -= mp.fdot(gain, [error[a] for a in before])
                variance -= mp.fdot(gain, cross)
            terms[j] = -(mp.log(2 * mp.pi * variance) + deviation**2 / variance) / 2
    return terms


def mask_size(rate, n_features):
    """Number of hidden features at a rate."""
    return max(1, int(rate * n_features + 0.5))
