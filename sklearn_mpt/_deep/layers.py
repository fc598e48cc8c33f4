"""Fully connected nets, and where their training starts."""

import functools
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

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
    """A fully connected net; no activation after the last layer.

    Parameters
    ----------
    coefs : list of Tensor of shape (n_in, n_out)
    intercepts : list of Tensor of shape (n_out,)
    activation : str
        A key of ACTIVATIONS.
    """

    def __init__(self, coefs, intercepts, activation):
        super().__init__()
        self.coefs = torch.nn.ParameterList(coefs)
        self.intercepts = torch.nn.ParameterList(intercepts)
        self.activation = activation

    def forward(self, h):
        *hidden, last = zip(self.coefs, self.intercepts, strict=True)
        activate = ACTIVATIONS[self.activation]
        if self.activation in HAVE_INPLACE and not torch.is_grad_enabled():
            activate = functools.partial(activate, inplace=True)
        for coef, intercept in hidden:
            h = activate(functional.linear(h, coef.T, intercept))
        return functional.linear(h, last[0].T, last[1])

    def value_and_jacobian(self, h):
        """Outputs, of shape (n, n_out), and their derivatives; (n, n_in, n_out)."""
        tangents = torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
        *hidden, last = zip(self.coefs, self.intercepts, strict=True)
        for coef, intercept in hidden:
            h, slope = self._activate(h @ coef + intercept)
            tangents = (tangents @ coef) * slope[:, None]
        jacobian = (tangents @ last[0]).expand(len(h), -1, -1)
        return h @ last[0] + last[1], jacobian

    @torch.enable_grad()
    def _activate(self, h):
        """The activation and its derivative."""
        h = h.detach().requires_grad_()
        value = ACTIVATIONS[self.activation](h)
        return value.detach(), torch.autograd.grad(value.sum(), h)[0]


def initial_layers(sizes, rng):
    """Draw the coefficients and intercepts of a net, uniform with variance 1/(3 n_in).

    sizes : widths of the input, the hidden layers and the output.
    """
    coefs, intercepts = [], []
    for n_in, n_out in pairwise(sizes):
        bound = 1 / np.sqrt(n_in)
        coefs.append(rng.uniform(-bound, bound, (n_in, n_out)))
        intercepts.append(rng.uniform(-bound, bound, n_out))
    return coefs, intercepts


def spread_layers(coefs, intercepts, activation, inputs, how):
    """Scale hidden layers to their inputs, in place; return the last one's values.

    What enters an activation gets a standard deviation, and is zero at one of the
    inputs, which is where the activation bends.

    how : the standard deviation, and a generator.
    """
    bend, rng = how
    for coef, intercept in zip(coefs[:-1], intercepts[:-1], strict=True):
        coef *= bend / np.maximum((inputs @ coef).std(0), 1e-6)
        entering = inputs @ coef
        chosen = rng.integers(len(inputs), size=coef.shape[1])
        intercept[:] = -entering[chosen, np.arange(coef.shape[1])]
        entering = torch.from_numpy(entering + intercept)
        inputs = ACTIVATIONS[activation](entering).numpy()
    return inputs
