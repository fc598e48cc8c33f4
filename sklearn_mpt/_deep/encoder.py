r"""The approximate posterior of z given any set R of observed features.

A feature is read as one number x_j, or one for each of its categories. Each observed
one adds to the natural parameters of the prior N(0, I),

.. math:: \Lambda_R = I + \sum_{j \in R} v_j v_j^\top, \quad
          h_R = \sum_{j \in R} (x_j a_j + b_j),

which is exact for a linear Gaussian decoder. A net that sees the observed values and
which they are then moves the mean and scales the root of the precision. What it says
when nothing is observed is subtracted: the posterior is then the prior.
"""

import torch

from sklearn_mpt._latent.rules import gaussian_around

LOG_SCALE_BOUND = 6.0  # of the net's change to the diagonal of the precision's root


class Encoder(torch.nn.Module):
    """Maps rows to a `Posterior`, whatever is observed of them.

    Parameters
    ----------
    information : Tensor of shape (2 * l, k)
        The vectors a_j, then the b_j.
    precision : Tensor of shape (k, l)
        The vectors v_j, as columns.
    net : Layers or None
        From 2 l inputs to k + k (k + 1) / 2 outputs.
    """

    def __init__(self, information, precision, net):
        super().__init__()
        self.information = torch.nn.Parameter(information)
        self.precision = torch.nn.Parameter(precision)
        self.net = net

    def forward(self, inputs, observed):
        """Return the posteriors of rows.

        inputs : what is read of them, shape (n, l), any number where not observed.
        observed : bool (n, l).
        """
        seen = observed.to(self.precision.dtype)
        inputs = torch.cat([torch.where(observed, inputs, 0.0), seen], 1)
        root = precision_root_of(seen, self.precision)
        mean = torch.cholesky_solve((inputs @ self.information)[..., None], root)[
            ..., 0
        ]
        if self.net is None:
            return gaussian_around(mean, root)
        change = self.net(inputs) - self.net(torch.zeros_like(inputs[:1]))
        n_dims = mean.shape[1]
        factor = _triangular(change[:, n_dims:], n_dims)
        return gaussian_around(mean + change[:, :n_dims], root @ factor)


def precision_root_of(curvature, W):
    """Cholesky factors of I + sum_j c_j w_j w_j', of shape (n, k, k)."""
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    outer = (W[:, None] * W[None]).flatten(0, 1)
    return torch.linalg.cholesky(eye + (curvature @ outer.T).unflatten(1, eye.shape))


def _triangular(entries, n_dims):
    """Lower triangular matrices with positive diagonals, the identity for zeros."""
    rows, columns = torch.tril_indices(n_dims, n_dims, device=entries.device)
    matrix = entries.new_zeros(len(entries), n_dims, n_dims)
    matrix[:, rows, columns] = entries
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    scale = (LOG_SCALE_BOUND * torch.tanh(diagonal / LOG_SCALE_BOUND)).exp()
    return matrix.tril(-1) + torch.diag_embed(scale)
