"""Where the training of a deep model starts, as arrays."""

import numpy as np
import torch

from sklearn_mpt._base.density import unit_attributes, units_of_locations
from sklearn_mpt._deep.nets import initial_layers, propagate
from sklearn_mpt._gaussian.moments import closed_form_of_rows, gradients_at
from sklearn_mpt._likelihoods.base import encoder_inputs
from sklearn_mpt._numbers import ROUNDING, TINY
from sklearn_mpt._optim.weights import relative_weights

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


def _decoder_start(
    sizes, location, activation, rng, *, input_scale=4.0, max_total_variance=20
):
    """Return coefficients and intercepts of a decoder."""
    # input_scale : standard deviation of the inputs of activations. One such as SiLU
    # bends within one or two units of 0, and is nearly linear on both sides of a bend.
    # max_total_variance : of the locations, of each of which it is at most 1. A larger
    # one would fit some rows at every z, and no z would be free for others.
    coefs, intercepts = initial_layers(sizes, rng)
    z = rng.normal(size=(N_ROWS, sizes[0]))
    last = propagate(coefs, intercepts, activation, z, input_scale, rng)
    size = min(1.0, np.sqrt(max_total_variance / len(location)))
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
