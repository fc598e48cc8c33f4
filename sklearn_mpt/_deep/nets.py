"""Fully connected nets, their initial layers, and the encoder."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from sklearn_mpt._base.nets import UserModuleWrapper
from sklearn_mpt._latent.quadrature import Posterior
from sklearn_mpt._likelihoods.base import FormedLocations, Locations
from sklearn_mpt._matrices import (
    identity,
    inverse_of_lower,
    sums_of_outer_products,
)

ACTIVATIONS = {
    "gelu": functional.gelu,
    "logistic": torch.sigmoid,
    "relu": functional.relu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "tanh": torch.tanh,
}
HAVE_INPLACE = {"relu", "silu"}


class Layers(torch.nn.Module):
    """A fully connected net; no activation after the last layer."""

    def __init__(self, coefs, intercepts, activation):
        super().__init__()
        self.coefs = torch.nn.ParameterList(coefs)
        self.intercepts = torch.nn.ParameterList(intercepts)
        self.activation = activation

    @property
    def width(self):
        """Number of values of the widest layer, the outputs included."""
        return max(len(intercept) for intercept in self.intercepts)

    def forward(self, h):
        hidden = self._hidden(h)
        return functional.linear(hidden, self.coefs[-1].T, self.intercepts[-1])

    def locations(self, h):
        """Return what `forward` does, as a product that need not be computed."""
        return Locations(self._hidden(h), self.coefs[-1], self.intercepts[-1])

    def _hidden(self, h):
        activate = ACTIVATIONS[self.activation]
        if self.activation in HAVE_INPLACE and not torch.is_grad_enabled():
            activate = functools.partial(activate, inplace=True)
        for coef, intercept in zip(self.coefs[:-1], self.intercepts[:-1], strict=True):
            h = activate(functional.linear(h, coef.T, intercept))
        return h

    def value_and_jacobian(self, h):
        """Return outputs, (n, n_out), and their derivatives, (n, n_in, n_out)."""
        tangents = identity(h.shape[1], h)
        *hidden, last = zip(self.coefs, self.intercepts, strict=True)
        for coef, intercept in hidden:
            h, derivative = self._activate(h @ coef + intercept)
            tangents = (tangents @ coef) * derivative[:, None]
        jacobian = (tangents @ last[0]).expand(len(h), -1, -1)
        return h @ last[0] + last[1], jacobian

    @torch.enable_grad()
    def _activate(self, h):
        """Return the activation and its derivative."""
        h = h.detach().requires_grad_()
        value = ACTIVATIONS[self.activation](h)
        return value.detach(), torch.autograd.grad(value.sum(), h)[0]


class UserDecoder(UserModuleWrapper):
    """A decoder of a user, from z to the locations of standardised rows.

    It is always in evaluation mode: points are shared by rows, and scored again.
    """

    def forward(self, z):
        """Return the locations at z of shape (..., k); (..., l)."""
        return super().forward(z.flatten(0, -2)).unflatten(0, z.shape[:-1])

    def locations(self, z):
        """Return what `forward` does, for points of shape (m, k)."""
        return FormedLocations(self(z))

    def value_and_jacobian(self, z):
        """Outputs, of shape (n, n_out), and their derivatives; (n, k, n_out)."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = self(z)
            # the Jacobian is the derivative in u of the gradient of u' value in z
            u = torch.zeros_like(value, requires_grad=True)
            (product,) = torch.autograd.grad(value, z, u, create_graph=True)
            columns = [
                torch.autograd.grad(component.sum(), u, retain_graph=True)[0]
                for component in product.unbind(1)
            ]
        return value.detach(), torch.stack(columns, 1)


def initial_layers(sizes, rng):
    """Draw coefficients and intercepts of a net, uniform with variance 1/(3 n_in)."""
    coefs, intercepts = [], []
    for n_in, n_out in pairwise(sizes):
        bound = 1 / np.sqrt(n_in)
        coefs.append(rng.uniform(-bound, bound, (n_in, n_out)))
        intercepts.append(rng.uniform(-bound, bound, n_out))
    return coefs, intercepts


def propagate(coefs, intercepts, activation, inputs, scale, rng):
    """Scale hidden layers to their inputs, in place; return the values of the last.

    The input of each activation gets a given standard deviation, and is zero, where
    activations bend, at one of the rows of `inputs`.
    """
    for coef, intercept in zip(coefs[:-1], intercepts[:-1], strict=True):
        coef *= scale / np.maximum((inputs @ coef).std(0), 1e-6)
        entering = inputs @ coef
        chosen = rng.integers(len(inputs), size=coef.shape[1])
        intercept[:] = -entering[chosen, np.arange(coef.shape[1])]
        entering = torch.from_numpy(entering + intercept)
        inputs = ACTIVATIONS[activation](entering).numpy()
    return inputs


class Encoder(torch.nn.Module):
    r"""The approximate posterior of z given any set R of observed features.

    A feature is read as one number x_j, or one for each of its categories. Each
    observed one adds to the natural parameters of the prior N(0, I),

    .. math:: \Lambda_R = I + \sum_{j \in R} v_j v_j^\top, \quad
              h_R = \sum_{j \in R} (x_j a_j + b_j),

    which is exact for a linear Gaussian decoder. Then a net, whose inputs are the
    observed values and indicators of them, moves the mean and scales the root of the
    precision. Its outputs for a row without observed features are subtracted, so that
    the posterior of such a row is the prior.

    information : the vectors a_j, then the b_j, (2 l, k). precision : the vectors v_j,
    as columns, (k, l). net : from 2 l inputs to k + k (k + 1) / 2 outputs, or None.
    """

    def __init__(self, information, precision, net):
        super().__init__()
        self.information = torch.nn.Parameter(information)
        self.precision = torch.nn.Parameter(precision)
        self.net = net

    def forward(self, inputs, observed):
        """Return the posteriors of rows."""
        observed_float = observed.to(self.precision.dtype)
        inputs = torch.cat([inputs * observed_float, observed_float], 1)
        precision = sums_of_outer_products(observed_float, self.precision)
        precision = identity(len(self.precision), inputs) + precision
        root = torch.linalg.cholesky(precision)
        # products with few columns are fastest where each column is contiguous
        information = functional.linear(inputs, self.information.T.contiguous())
        mean = torch.cholesky_solve(information[..., None], root)[..., 0]
        if self.net is not None:
            change = self.net(inputs) - self.net(torch.zeros_like(inputs[:1]))
            n_dims = mean.shape[1]
            mean = mean + change[:, :n_dims]
            root = root @ _triangular(change[:, n_dims:], n_dims)
        return Posterior(mean, inverse_of_lower(root), root)


def _triangular(entries, n_dims, bound=6.0):
    """Return lower triangular matrices with positive diagonals; of zeros, identity."""
    # bound : on logarithms of the diagonal, so that no posterior of an untrained net is
    # as narrow as a point.
    rows, columns = torch.tril_indices(n_dims, n_dims, device=entries.device)
    matrix = entries.new_zeros(len(entries), n_dims, n_dims)
    matrix[:, rows, columns] = entries
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    scale = (bound * torch.tanh(diagonal / bound)).exp()
    return matrix.tril(-1) + torch.diag_embed(scale)
