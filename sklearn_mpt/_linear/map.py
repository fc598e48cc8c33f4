"""Maps from z to the locations of features, linear in z, and their posteriors."""

import torch

from sklearn_mpt._latent.posterior import gaussian_around, precision_root_of


class LinearMap:
    """Joint distribution of z and features whose locations are z W + b.

    Parameters
    ----------
    components : Tensor of shape (k, d)
    intercept : Tensor of shape (d,)
    likelihood : Likelihood
        Its log-probability is concave in the location.
    """

    def __init__(self, components, intercept, likelihood):
        self.components = components
        self.intercept = intercept
        self.likelihood = likelihood

    @property
    def n_dims(self):
        return len(self.components)

    @property
    def width(self):
        return self.components.shape[1]

    def location(self, z):
        return z @ self.components + self.intercept

    def entry_log_prob(self, X, z):
        """log p(x_j | z) at nodes of each row, of shape (n, s, d)."""
        return self.likelihood.entry_log_prob(X[:, None], self.location(z))

    def propose(self, rows):
        return [laplace(rows, self)]


def laplace(rows, latent, max_iter=100, tol=1e-9):
    r"""Mode and curvature of the posterior of z given what is observed, by Newton.

    A step that changes the locations by at most d is shortened to the share
    :math:`\log(1 + d) / d`, which makes every step an ascent [1]_ for logits. Rows at
    rest stay where they are, whatever the others need.

    References
    ----------
    .. [1] T. Sun and Q. Tran-Dinh, "Generalized self-concordant functions: a recipe for
       Newton-type methods", Mathematical Programming 178, 2019.
    """
    W = latent.components
    z = W.new_zeros(len(rows.X), len(W))
    observed = rows.observed.to(W.dtype)
    for _ in range(max_iter):
        slope, information = latent.likelihood.derivatives(rows.X, latent.location(z))
        gradient = (observed * slope) @ W.T - z
        precision_root = precision_root_of(observed * information, W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        change = ((step @ W).abs() * observed).amax(1, keepdim=True).clamp(min=1e-12)
        moving = step.abs().amax(1, keepdim=True) > tol
        z = z + torch.where(moving, step * torch.log1p(change) / change, 0.0)
        if not moving.any():
            break
    return gaussian_around(z, precision_root)
