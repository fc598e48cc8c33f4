"""Where the conditionals of numbers start: factor analysis, and a mixture of Gaussians.

The mixture is that of the residuals of factor analysis.
"""

import numpy as np
import torch
from scipy.special import softmax

from sklearn_mpt._gaussian.density import LinearGaussian
from sklearn_mpt._gaussian.likelihood import fit_factors
from sklearn_mpt._numbers import TINY
from sklearn_mpt._optim.natural import as_arrays


def count_factors(
    n_samples, n_features, *, rows_per_factor=40, max_factors=32, min_rows=10
):
    """Return the number of factors for a number of rows; 0 for a single column."""
    if n_features < 2 or n_samples < min_rows:
        return 0
    max_by_rows = max(1, n_samples // rows_per_factor)
    return min(max_by_rows, max_factors, (n_features + 1) // 2)


def count_mixtures(n_mixtures, n_samples, *, rows_per_mixture=20):
    """Return the number of Gaussians of a column, for a number of rows.

    Gaussians of few rows each are so narrow that no other row is near them. What the
    limit gains is in benchmarks/RESULTS.rst, "Masked autoencoder: few rows".
    """
    return int(min(n_mixtures, max(1, n_samples // rows_per_mixture)))


class NumberMoments(torch.nn.Module):
    """Moments of hidden numbers given visible ones, under factor analysis.

    Columns are standardised. The model is not trained together with the net, and it
    computes in double precision.
    """

    def __init__(self, coefs, log_noise):
        super().__init__()
        for name, array in (("coefs", coefs), ("log_noise", log_noise)):
            tensor = torch.tensor(array, dtype=torch.float64, device="cpu")
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, X, visible):
        """Return mean and standard deviation of each entry given the visible ones."""
        coefs, noise = self.coefs.double(), self.log_noise.double().exp()
        if coefs.shape[1] == 1:
            mean, std = coefs[:, 0], noise.sqrt()
            return mean.to(X).expand_as(X), std.to(X).expand_as(X)
        factors = LinearGaussian(coefs[:, :-1].T, coefs[:, -1], noise)
        mean, variance = factors.conditional_moments(X.double(), visible.double())
        return mean.to(X.dtype), variance.sqrt().to(X.dtype)


def fit_linear(X, weight, n_factors, rng, max_rows=4000):
    """Fit factor analysis to standardised rows with gaps.

    Noise variances are at least 1 over the number of rows, as if one more row had a
    residual of one standard deviation: few rows make columns functions of each other.
    """
    if n_factors == 0:
        return np.zeros((X.shape[1], 1)), np.zeros(X.shape[1])
    if len(X) > max_rows:
        chosen = rng.choice(len(X), max_rows, replace=False)
        X, weight = X[chosen], weight[chosen]
    coefs, log_noise = as_arrays(fit_factors(X, weight, n_factors))
    return coefs, np.maximum(log_noise, -np.log(len(X)))


def residuals_of(linear, X, rng):
    """Return standardised residuals of hidden numbers given visible ones; (n, d)."""
    present = ~np.isnan(X)
    hidden = rng.random(X.shape) < rng.random((len(X), 1))
    visible = torch.from_numpy(present & ~hidden)
    mean, deviation = linear(torch.from_numpy(np.nan_to_num(X)), visible)
    return np.where(hidden, (X - mean.numpy()) / deviation.numpy(), np.nan)


def fit_mixture(x, weight, n_components, *, n_steps=20, min_width=0.02):
    """Fit a mixture of Gaussians to numbers by EM, from their quantiles.

    Each component counts a tenth of a number more, of the variance of all, so that its
    width is not 0, and has a thousandth of the weight at least, so that the net can
    make it larger. min_width : smallest width of a component.
    """
    total = weight.sum()
    if total == 0:
        return np.zeros((3, n_components))
    order = x.argsort()
    at = total * (np.arange(n_components) + 0.5) / n_components
    centres = x[order][np.searchsorted(weight[order].cumsum(), at)]
    variance = weight @ (x - weight @ x / total) ** 2 / total + min_width**2
    variances = np.full(n_components, variance / n_components**2)
    counts = np.full(n_components, total / n_components)
    for _ in range(n_steps):
        square = (x[:, None] - centres) ** 2
        log_each = np.log(counts) - 0.5 * np.log(variances) - 0.5 * square / variances
        weights = softmax(log_each, axis=1) * weight[:, None]
        counts = weights.sum(0) + TINY  # a component without numbers stays where it is
        centres = (weights.T @ x + TINY * centres) / counts
        square = (x[:, None] - centres) ** 2
        variances = ((weights * square).sum(0) + 0.1 * variance) / (counts + 0.1)
        variances = np.maximum(variances, min_width**2)
    counts = np.maximum(counts, 1e-3 * total)
    return np.log(counts / counts.sum()), centres, 0.5 * np.log(variances)
