"""Where the conditionals of numbers start: factor analysis, and a mixture of Gaussians.

The mixture is that of the residuals of factor analysis.
"""

import numpy as np
import torch
from scipy.special import softmax

LEAST_NOISE = 1e-3  # smallest noise variance, as a share of the column's variance
N_STEPS = 60  # number of steps of EM
MOST_ROWS = 4000  # largest number of rows that it is fitted to
ROWS_PER_FACTOR, MOST_FACTORS = 40, 32
N_RESIDUALS = 1000  # number of rows and masks that mixtures of residuals are fitted to
N_MIXTURE_STEPS = 20  # number of steps of EM for these mixtures
LEAST_WIDTH = 0.02  # smallest width of their components


def count_factors(n_samples, n_features):
    """Return the number of factors for a number of rows; 0 for a single column."""
    if n_features < 2:
        return 0
    few = max(1, n_samples // ROWS_PER_FACTOR)
    return min(few, MOST_FACTORS, (n_features + 1) // 2)


class LinearGaussian(torch.nn.Module):
    r"""Conditional means and variances of hidden numbers under factor analysis.

    The model is :math:`x = W z + \varepsilon` on standardised columns, with noise
    variances :math:`\psi`. Given the visible set R,

    .. math:: A_R = I + W_R^\top \Psi_R^{-1} W_R, \quad
              E[x_j \mid x_R] = w_j^\top A_R^{-1} W_R^\top \Psi_R^{-1} x_R, \quad
              \mathrm{Var}[x_j \mid x_R] = \psi_j + w_j^\top A_R^{-1} w_j.

    It is not trained together with the net. It computes in double precision.

    Parameters
    ----------
    loadings : ndarray of shape (d, k)
    noise : ndarray of shape (d,)
    """

    def __init__(self, loadings, noise):
        super().__init__()
        for name, array in (("loadings", loadings), ("noise", noise)):
            tensor = torch.tensor(array, dtype=torch.float64, device="cpu")
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def forward(self, X, visible):
        """Return mean and standard deviation of each entry given the visible ones.

        X : standardised rows, with any finite number at entries that are not visible.
        visible : bool (n, d).
        """
        W, noise = self.loadings.double(), self.noise.double()
        k = W.shape[1]
        if k == 0:
            return torch.zeros_like(X), noise.sqrt().to(X.dtype).expand_as(X)
        precision = visible.double() / noise
        outer = (W[:, :, None] * W[:, None]).flatten(1)
        eye = torch.eye(k, dtype=W.dtype, device=W.device)
        A = (precision @ outer).unflatten(1, (k, k)) + eye
        root = torch.linalg.cholesky(A)
        pull = (precision * X.double()) @ W
        covariance = torch.cholesky_inverse(root)
        z = (covariance @ pull[..., None])[..., 0]
        variance = noise + covariance.flatten(1) @ outer.T
        return (z @ W.T).to(X.dtype), variance.sqrt().to(X.dtype)


def fit_linear(X, weight, n_factors, rng):
    """Fit loadings and noise variances to standardised rows with gaps, by EM.

    Returns
    -------
    loadings : ndarray of shape (d, n_factors)
    noise : ndarray of shape (d,)
    """
    if n_factors == 0:
        return np.zeros((X.shape[1], 0)), np.ones(X.shape[1])
    if len(X) > MOST_ROWS:
        chosen = rng.choice(len(X), MOST_ROWS, replace=False)
        X, weight = X[chosen], weight[chosen]
    seen = ~np.isnan(X)
    X, counts = np.nan_to_num(X), weight @ seen
    W, noise = _principal(X, seen, weight, n_factors)
    for _ in range(N_STEPS):
        W, noise = _em_step(X, seen, weight, counts, W, noise)
    return W, noise


def _principal(X, seen, weight, n_factors):
    """Return loadings of the principal axes, from moments of pairs that are present."""
    pairs = np.maximum((seen * weight[:, None]).T @ seen, 1e-9)
    covariance = (X * weight[:, None]).T @ X / pairs
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    values, axes = values[::-1][:n_factors], axes[:, ::-1][:, :n_factors]
    rest = max((np.trace(covariance) - values.sum()) / len(covariance), 0.05)
    W = axes * np.sqrt(np.maximum(values - rest, 0.01))
    return W, np.maximum(np.diag(covariance) - (W**2).sum(1), 0.05)


def _em_step(X, seen, weight, counts, W, noise):
    d, k = W.shape
    precision = seen / noise
    outer = (W[:, :, None] * W[:, None]).reshape(d, -1)
    A = (precision @ outer).reshape(-1, k, k) + np.eye(k)
    C = np.linalg.inv(A)
    z = np.einsum("nkl,nl->nk", C, (precision * X) @ W)
    second = C + z[:, :, None] * z[:, None]
    weighted = seen * weight[:, None]
    S = (weighted.T @ second.reshape(len(X), -1)).reshape(d, k, k)
    T = (weighted * X).T @ z
    ridge = 1e-6 * np.eye(k) * counts[:, None, None]
    W = np.linalg.solve(S + ridge, T[..., None])[..., 0]
    square = weight @ X**2
    noise = (square - 2 * (W * T).sum(1) + np.einsum("dk,dkl,dl->d", W, S, W)) / counts
    return W, np.maximum(noise, LEAST_NOISE)


def residuals_of(linear, X, rng):
    """Return standardised residuals of hidden numbers given visible ones; (n, d).

    Entries are hidden at random, at a rate of its own for each row; NaN elsewhere.

    linear : LinearGaussian. X : standardised rows, NaN where missing.
    """
    present = ~np.isnan(X)
    hidden = rng.random(X.shape) < rng.random((len(X), 1))
    visible = torch.from_numpy(present & ~hidden)
    mean, deviation = linear(torch.from_numpy(np.nan_to_num(X)), visible)
    return np.where(hidden, (X - mean.numpy()) / deviation.numpy(), np.nan)


def fit_mixture(x, weight, n_components):
    """Fit a mixture of Gaussians to numbers by EM, from their quantiles.

    Each component counts a tenth of a number more, of the variance of all.

    Returns
    -------
    log_weights, centres, log_widths : ndarray of shape (n_components,)
    """
    total = weight.sum()
    if total == 0:
        return np.zeros((3, n_components))
    order = x.argsort()
    at = total * (np.arange(n_components) + 0.5) / n_components
    centres = x[order][np.searchsorted(weight[order].cumsum(), at)]
    variance = weight @ (x - weight @ x / total) ** 2 / total + LEAST_WIDTH**2
    variances = np.full(n_components, variance / n_components**2)
    counts = np.full(n_components, total / n_components)
    for _ in range(N_MIXTURE_STEPS):
        square = (x[:, None] - centres) ** 2
        log_each = np.log(counts) - 0.5 * np.log(variances) - 0.5 * square / variances
        share = softmax(log_each, axis=1) * weight[:, None]
        counts = share.sum(0) + 1e-9
        centres = (share.T @ x + 1e-9 * centres) / counts
        square = (x[:, None] - centres) ** 2
        variances = ((share * square).sum(0) + 0.1 * variance) / (counts + 0.1)
        variances = np.maximum(variances, LEAST_WIDTH**2)
    counts = np.maximum(counts, 1e-3 * total)
    return np.log(counts / counts.sum()), centres, 0.5 * np.log(variances)
