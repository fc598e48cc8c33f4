"""Factor analysis of the columns of numbers: the start of their conditionals."""

import numpy as np
import torch

LEAST_NOISE = 1e-3  # smallest noise variance, as a share of the column's variance
N_STEPS = 60  # number of steps of EM
MOST_ROWS = 4000  # largest number of rows that it is fitted to
ROWS_PER_FACTOR, MOST_FACTORS = 40, 32


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
        A = (precision @ outer).unflatten(1, (k, k)) + torch.eye(k).to(W)
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
