r"""The maths of a linear model of binary features, on tensors.

Feature j is 1 with probability :math:`\sigma(z^\top w_j + b_j)`, z standard normal. The
posterior of z given observed features is strictly log-concave; integrals over it are
sums over nodes placed around its mode (see `_nodes`). An entry x enters through
:math:`\log p(x \mid z) = \log \sigma(\pm (z^\top w + b))`, the sign being that of
2x - 1. O(n s d k) for s nodes.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from sklearn_mpt._latent.posterior import gaussian_around, precision_root_of


class Bernoulli(NamedTuple):
    """Parameters of the model."""

    components: torch.Tensor  # shape: (k, d)
    intercept: torch.Tensor  # shape: (d,)

    def logits(self, z):
        return z @ self.components + self.intercept

    def entry_log_prob(self, X, z):
        """log p(x_j | z) at nodes of each row, of shape (n, s, d)."""
        return logsigmoid(signs(X)[:, None] * self.logits(z))

    def propose(self, rows):
        return [laplace(rows, self)]


def signs(X):
    """1.0 for one, -1.0 for zero."""
    return 2 * X - 1


def laplace(rows, parameters, max_iter=100, tol=1e-9):
    r"""Mode and curvature of the posterior of z given what is observed, by Newton.

    A step that changes the logits by at most d is shortened to the share
    :math:`\log(1 + d) / d`, which makes every step an ascent [1]_. Rows at rest stay
    where they are, whatever the others need.

    References
    ----------
    .. [1] T. Sun and Q. Tran-Dinh, "Generalized self-concordant functions: a recipe for
       Newton-type methods", Mathematical Programming 178, 2019.
    """
    W = parameters.components
    sign = signs(rows.X)
    z = W.new_zeros(len(sign), len(W))
    observed = rows.observed.to(W.dtype)
    for _ in range(max_iter):
        # 1 - p(x | z), signed, is the gradient with respect to the logits
        miss = torch.sigmoid(-sign * parameters.logits(z))
        gradient = (observed * sign * miss) @ W.T - z
        precision_root = precision_root_of(observed * miss * (1 - miss), W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        change = ((step @ W).abs() * observed).amax(1, keepdim=True).clamp(min=1e-12)
        moving = step.abs().amax(1, keepdim=True) > tol
        z = z + torch.where(moving, step * torch.log1p(change) / change, 0.0)
        if not moving.any():
            break
    return gaussian_around(z, precision_root)
