"""Fully connected nets, the encoder, and the layers from which training starts."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional

from sklearn_mpt._base.density import unit_attributes, units_of_locations
from sklearn_mpt._base.nets import UserModuleWrapper
from sklearn_mpt._gaussian.moments import closed_form_of_rows, gradients_at
from sklearn_mpt._latent.quadrature import Posterior
from sklearn_mpt._likelihoods.base import FormedLocations, Locations, encoder_inputs
from sklearn_mpt._matrices import (
    identity,
    inverse_of_lower,
    sums_of_outer_products,
)
from sklearn_mpt._numbers import ROUNDING, TINY
from sklearn_mpt._optim.weights import relative_weights

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
            rows, columns = torch.tril_indices(n_dims, n_dims, device=root.device)
            factor = torch.zeros_like(root)
            factor[:, rows, columns] = change[:, n_dims:]
            # bounded, so that no posterior of an untrained net is as narrow as a point
            logs = 6 * torch.tanh(factor.diagonal(dim1=1, dim2=2) / 6)
            root = root @ (factor.tril(-1) + torch.diag_embed(logs.exp()))
        return Posterior(mean, inverse_of_lower(root), root)


# From so many features on, nets are those that suit images. What they gain is in
# benchmarks/RESULTS.rst, "Deep models: what the recipe consists of".
IMAGE_FEATURES = 256
N_ROWS = 512  # rows, or samples of z, by which layers are scaled


def widths_and_activation(widths, activation, n_features):
    """Return those of the hidden layers of the encoder."""
    is_image = n_features >= IMAGE_FEATURES
    if isinstance(widths, str):
        widths = (128, 128, 128) if is_image else (128, 128)
    if activation == "auto":
        activation = "relu" if is_image else "silu"
    return tuple(widths), activation


def start(widths, activation, n_components, likelihood, X, rng, weight=None):
    """Return the fitted attributes from which training starts."""
    units = unit_attributes(likelihood, X, weight)
    shift, scale = units["_shift"], units["_scale"]
    X = (X - shift) / scale
    location = likelihood.start_location(X, weight)
    sizes = [n_components, *widths[::-1], len(location)]
    layers = _decoder_start(sizes, location, activation, rng)
    fitted = units | {"activation_": activation}
    fitted |= likelihood.start_attributes(X, scale, weight)
    weight = relative_weights(weight, len(X))
    if widths and "noise_variance_" in fitted:
        # Noise, as a fraction of the variances of the rows. With more for each feature
        # posteriors of z are nearly the prior, and the decoder stays linear.
        fraction = np.clip(0.05 * X.shape[1], 0.1, 1)
        fitted["noise_variance_"] = fraction * fitted["noise_variance_"]
    fitted |= _encoder_start(
        widths, activation, n_components, likelihood, X, weight, rng
    )
    if not widths:
        W, changed = linear_part(likelihood, fitted, X, weight, location, n_components)
        layers, fitted = ([W], [location]), fitted | changed
    (*coefs, last_coef), (*intercepts, last) = layers
    shift, scale = units_of_locations(likelihood, shift, scale)
    return fitted | {
        "decoder_coefs_": [*coefs, scale * last_coef],
        "decoder_intercepts_": [*intercepts, scale * last + shift],
    }


def _decoder_start(sizes, location, activation, rng):
    """Return coefficients and intercepts of a decoder."""
    coefs, intercepts = initial_layers(sizes, rng)
    z = rng.normal(size=(N_ROWS, sizes[0]))
    # an activation such as SiLU bends within one or two units of 0, and is nearly
    # linear on both sides of a bend
    last = propagate(coefs, intercepts, activation, z, 4.0, rng)
    # the variance of a location is at most 1, of all at most 20: a larger one would fit
    # some rows at every z, and no z would be free for others
    size = min(1.0, np.sqrt(20 / len(location)))
    coefs[-1] *= size / max((last @ coefs[-1]).std(), TINY)
    intercepts[-1] = location - (last @ coefs[-1]).mean(0)
    return coefs, intercepts


def _encoder_start(widths, activation, n_components, likelihood, X, weight, rng):
    """Return an encoder whose net is 0, so that it is the additive posterior."""
    inputs, observed = _encoder_inputs(likelihood, X)
    n_inputs = inputs.shape[1]
    n_outputs = n_components + n_components * (n_components + 1) // 2
    unit = 1 / np.sqrt(n_inputs)
    coef = 0.1 * unit * rng.normal(size=(n_inputs, n_components))
    coefs, intercepts = [], []
    if widths:
        sizes = [2 * n_inputs, *widths, n_outputs]
        coefs, intercepts = initial_layers(sizes, rng)
        order = rng.permutation(len(X))  # rows are drawn in proportion to their weights
        places = np.arange(min(N_ROWS, len(X))) + 0.5
        sample = order[np.searchsorted(weight[order].cumsum(), places)]
        entering = np.concatenate([inputs[sample], observed[sample]], 1)
        propagate(coefs, intercepts, activation, entering, 1.0, rng)
        coefs[-1][:], intercepts[-1][:] = 0, 0
    centre = weight @ inputs / np.maximum(weight @ observed, TINY)
    return {
        "encoder_information_": np.concatenate([coef, -centre[:, None] * coef]),
        "encoder_precision_": unit * rng.normal(size=(n_components, n_inputs)),
        "encoder_coefs_": coefs,
        "encoder_intercepts_": intercepts,
    }


def _encoder_inputs(likelihood, X):
    """Return the inputs of the encoder, 0.0 where missing, and where they are seen."""
    entries, is_present = torch.from_numpy(np.nan_to_num(X)), ~np.isnan(X)
    read = encoder_inputs(likelihood, entries, torch.from_numpy(is_present))
    inputs, observed = (part.numpy() for part in read)
    return inputs * observed, observed


def linear_part(likelihood, fitted, X, weight, location, n_components):
    """Return the coefficients of a linear decoder, and attributes, by components.

    Rows enter by their gradients in the locations, in units of the Fisher information:
    for Gaussian features that is probabilistic PCA, with the encoder its posterior.
    """
    at_noise = likelihood.from_attributes(fitted, fitted["_scale"])
    inputs, observed = _encoder_inputs(likelihood, X)
    gradient, root, _ = gradients_at(at_noise, X, location, weight)
    size = np.sqrt(weight)[:, None]
    W, noise = closed_form_of_rows(size * (gradient / root), n_components)
    # gradients are linear in what is read: their coefficients, and constants
    count = np.maximum(weight @ observed, TINY)
    centre, level = weight @ inputs / count, weight @ gradient / count
    centred = observed * (inputs - centre)
    square, covariance = weight @ centred**2, weight @ (centred * gradient)
    varies = square > count * (ROUNDING * centre) ** 2  # by more than rounding errors
    factor = np.where(varies, covariance, 0.0) / np.maximum(square, TINY)
    information = np.concatenate([factor, level - factor * centre])[:, None]
    noise_attributes = {}
    if "noise_variance_" in fitted:
        noise_attributes = {"noise_variance_": noise * fitted["noise_variance_"]}
    W = W / root
    return W, noise_attributes | {
        "encoder_information_": information / noise * np.concatenate([W.T, W.T]),
        "encoder_precision_": W * (root / np.sqrt(noise)),
    }
