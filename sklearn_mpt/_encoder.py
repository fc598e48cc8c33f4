r"""The approximate posterior of z given any set R of observed features.

Each observed feature adds to the natural parameters of the prior N(0, I),

.. math:: \Lambda_R = I + \sum_{j \in R} v_j v_j^\top, \quad
          h_R = \sum_{j \in R} (x_j a_j + b_j),

which is exact for a linear Gaussian decoder. A net that sees the observed values and
which they are then moves the mean and scales the root of the precision. What it says
when nothing is observed is subtracted: the posterior is then the prior.
"""

import math

import torch

from sklearn_mpt._bernoulli import gaussian_around, precision_root_of

LOG_SCALE_BOUND = 6.0  # of the net's change to the diagonal of the precision's root


class Encoder(torch.nn.Module):
    """Maps rows to a `Posterior`, whatever is observed of them.

    Parameters
    ----------
    information : Tensor of shape (2 * d, k)
        The vectors a_j, then the b_j.
    precision : Tensor of shape (k, d)
        The vectors v_j, as columns.
    net : Layers or None
        From 2 d inputs to k + k (k + 1) / 2 outputs.
    """

    def __init__(self, information, precision, net):
        super().__init__()
        self.information = torch.nn.Parameter(information)
        self.precision = torch.nn.Parameter(precision)
        self.net = net

    def forward(self, X, observed):
        """X : shape (n, d), any number where not observed; observed : bool (n, d)."""
        seen = observed.to(self.precision.dtype)
        inputs = torch.cat([torch.where(observed, X, 0.0), seen], 1)
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


def _triangular(entries, n_dims):
    """Lower triangular matrices with positive diagonals, the identity for zeros."""
    rows, columns = torch.tril_indices(n_dims, n_dims, device=entries.device)
    matrix = entries.new_zeros(len(entries), n_dims, n_dims)
    matrix[:, rows, columns] = entries
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    scale = (LOG_SCALE_BOUND * torch.tanh(diagonal / LOG_SCALE_BOUND)).exp()
    return matrix.tril(-1) + torch.diag_embed(scale)


def standard_normal_log_prob(z):
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)


def gaussian_log_prob(z, posterior):
    """Log density of each row's points (n, s, k) under its posterior; (n, s)."""
    u = (z - posterior.mean[:, None]) @ posterior.precision_root
    return log_peak(posterior)[:, None] - 0.5 * (u**2).sum(-1)


def log_peak(posterior):
    """Log density at the mean; (n,)."""
    log_det = posterior.precision_root.diagonal(dim1=1, dim2=2).log().sum(1)
    return log_det - 0.5 * posterior.mean.shape[1] * math.log(2 * math.pi)


def moments(z):
    """z and its products, of which every Gaussian log density is linear; (m, p)."""
    return torch.cat([z, (z[:, :, None] * z[:, None]).flatten(1)], 1)


def natural_parameters(posterior):
    """What the log density adds up: coefficients of `moments` and a constant.

    In double precision, as large terms cancel; (n, p), (n,).
    """
    mean, root = posterior.mean.double(), posterior.precision_root.double()
    precision = root @ root.mT
    linear = (precision @ mean[..., None])[..., 0]
    coefs = torch.cat([linear, -0.5 * precision.flatten(1)], 1)
    return coefs, log_peak(posterior).double() - 0.5 * (linear * mean).sum(1)
