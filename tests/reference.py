"""Second routes to the package's numbers, by D x D matrices and scipy."""

import numpy as np
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
    """log p(x_j | x_R) as a difference of joint densities, entry by entry."""
    result = np.zeros(X.shape)
    hidden = np.broadcast_to(mask, X.shape) & ~np.isnan(X)
    visible = np.where(mask, np.nan, X)
    base = log_density(visible, mean, covariance)
    for j in range(X.shape[1]):
        extended = visible.copy()
        extended[:, j] = X[:, j]
        gain = log_density(extended, mean, covariance) - base
        result[:, j] = np.where(hidden[:, j], gain, 0.0)
    return result


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
