"""Where a deep model starts, as arrays, and the checks of its parameters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd

from sklearn_mpt._checks import check_choice, check_int
from sklearn_mpt._deep.layers import ACTIVATIONS, initial_layers, spread_layers

MANY_FEATURES = 256
N_POINTS = 512  # by which layers are scaled
# Features times the variance of their locations, at most 1: with more, every value of z
# explains some rows, and none is unused.
VIVID = 20
# Noise at first, in variances of the rows: with more, rows do not tell which z is
# theirs, and the decoder does not bend.
NOISE_SHARE, MIN_NOISE_SHARE = 0.05, 0.1  # the first for each feature


def check_architecture(settings):
    """Check the parameters that say what the nets are."""
    check_choice(settings.activation, "activation", list(ACTIVATIONS))
    sizes = settings.hidden_layer_sizes
    if not isinstance(sizes, Sequence | np.ndarray) or isinstance(sizes, str):
        raise TypeError(
            "hidden_layer_sizes must be a sequence of ints, such as (128, 128), or () "
            f"for linear maps, got {sizes!r}."
        )
    for size in sizes:
        check_int(size, "hidden_layer_sizes")


def check_fitted_sizes(sizes, fitted):
    """Check that the fitted nets, with which training goes on, have the sizes asked."""
    widths = [len(intercept) for intercept in fitted["decoder_intercepts_"][:-1]]
    if widths != list(sizes)[::-1]:
        raise ValueError(
            f"hidden_layer_sizes={sizes} differ from the {tuple(widths[::-1])} of the "
            "fitted model that training goes on with; set warm_start=False, or clone "
            "the estimator, to start anew."
        )


class Kind(NamedTuple):
    """A kind of start: how far from linear the decoder is, or that it is linear."""

    bend: float
    is_linear: bool = False


SMOOTH, CURLED, LINEAR = Kind(1.5), Kind(4.0), Kind(1.5, is_linear=True)


def other_kinds(hidden_layer_sizes, n_features):
    """List what training may start from, besides SMOOTH."""
    if n_features >= MANY_FEATURES:
        return []
    return [CURLED, CURLED, LINEAR] if len(hidden_layer_sizes) else [LINEAR]


def start(settings, likelihood, X, rng, kind=SMOOTH):
    """Return fitted attributes from which training starts."""
    n_components, n_features = settings.n_components, X.shape[1]
    hidden = list(settings.hidden_layer_sizes)
    location = likelihood.start_location(X)
    sizes = [n_components, *hidden[::-1], len(location)]
    coefs, intercepts = initial_layers(sizes, rng)
    shift, scale = likelihood.units(X)
    points = rng.normal(size=(N_POINTS, n_components))
    activation = settings.activation
    last = spread_layers(coefs, intercepts, activation, points, (kind.bend, rng))
    size = min(1.0, np.sqrt(VIVID / n_features))
    coefs[-1] *= scale * size / max((last @ coefs[-1]).std(), 1e-12)
    intercepts[-1] = location - (last @ coefs[-1]).mean(0)
    own = likelihood.start_attributes(scale)
    if hidden:
        own = _with_less_noise(own, n_features)
    fitted = own | {
        "_shift": shift,
        "_scale": scale,
        "decoder_coefs_": coefs,
        "decoder_intercepts_": intercepts,
        **_encoder_start(settings, (X - shift) / scale, rng),
    }
    if kind.is_linear and likelihood.is_separable:
        fitted |= linear_part(likelihood, fitted, X, location, (points, last))
    return fitted


def _with_less_noise(attributes, n_features):
    """Return the likelihood's attributes, with less noise where it has any."""
    if "noise_variance_" not in attributes:
        return attributes
    share = np.clip(NOISE_SHARE * n_features, MIN_NOISE_SHARE, 1)
    return attributes | {"noise_variance_": share * attributes["noise_variance_"]}


def _encoder_start(settings, X, rng):
    """The net's last layer is zero: it starts from the additive posterior.

    X : standardised rows.
    """
    n_features, n_components = X.shape[1], settings.n_components
    n_outputs = n_components + n_components * (n_components + 1) // 2
    unit = 1 / np.sqrt(n_features)
    slope = 0.1 * unit * rng.normal(size=(n_features, n_components))
    coefs, intercepts = [], []
    if len(settings.hidden_layer_sizes):
        sizes = [2 * n_features, *settings.hidden_layer_sizes, n_outputs]
        coefs, intercepts = initial_layers(sizes, rng)
        rows = X[rng.permutation(len(X))[:N_POINTS]]
        inputs = np.concatenate([np.nan_to_num(rows), ~np.isnan(rows)], 1)
        spread_layers(coefs, intercepts, settings.activation, inputs, (1.0, rng))
        coefs[-1][:], intercepts[-1][:] = 0, 0
    centre = np.nanmean(X, axis=0)
    return {
        "encoder_information_": np.concatenate([slope, -centre[:, None] * slope]),
        "encoder_precision_": unit * rng.normal(size=(n_components, n_features)),
        "encoder_coefs_": coefs,
        "encoder_intercepts_": intercepts,
    }


def linear_part(likelihood, fitted, X, location, basis):
    """Return attributes that make the decoder linear in z, as principal components do.

    Rows enter by their slopes in the location, in units of the Fisher information:
    for Gaussian features that is probabilistic PCA, with the encoder its posterior.

    location : where the slopes are taken, (d,). basis : points z, and the values of the
    decoder's last hidden layer there.
    """
    shift, scale = fitted["_shift"], fitted["_scale"]
    rows, centre = (X - shift) / scale, (location - shift) / scale
    kind = likelihood.from_attributes(fitted, scale)
    slope, information = _derivatives(kind, rows, centre)
    n_components = fitted["decoder_coefs_"][0].shape[0]
    W, noise = _principal(slope / np.sqrt(information), n_components)
    W = W / np.sqrt(information)
    points, last = basis
    inputs = np.column_stack([last, np.ones(len(last))])
    solution = np.linalg.lstsq(inputs, points @ W, rcond=1e-6)[0]
    unit = _derivatives(kind, np.ones_like(centre)[None], centre)[0][0]
    zero = _derivatives(kind, np.zeros_like(centre)[None], centre)[0][0]
    pull = np.concatenate([(unit - zero)[:, None], zero[:, None]]) / noise
    own = {}
    if "noise_variance_" in fitted:
        own = {"noise_variance_": noise * fitted["noise_variance_"]}
    return own | {
        "decoder_coefs_": [*fitted["decoder_coefs_"][:-1], scale * solution[:-1]],
        "decoder_intercepts_": [
            *fitted["decoder_intercepts_"][:-1],
            location + scale * solution[-1],
        ],
        "encoder_information_": pull * np.concatenate([W.T, W.T]),
        "encoder_precision_": W * np.sqrt(information / noise),
    }


def _derivatives(likelihood, X, location):
    """Slope of each entry, 0 if missing, and the information of a feature; arrays."""
    with torch.no_grad():
        slope, information = likelihood.derivatives(
            torch.from_numpy(X), torch.from_numpy(location).expand(X.shape)
        )
    return np.nan_to_num(slope.numpy()), information[0].numpy()


def _principal(slope, n_components):
    """Components (k, d) of probabilistic PCA, and the variance of its noise."""
    n_samples, n_features = slope.shape
    n_kept = min(n_components, n_samples, n_features)
    _, size, directions = randomized_svd(slope, n_kept, random_state=0)
    variances = size**2 / n_samples
    rest = (slope**2).sum() / n_samples - variances.sum()
    noise = max(rest / max(1, n_features - n_kept), 1e-3 * variances.max(), 1e-6)
    W = np.zeros((n_components, n_features))
    W[:n_kept] = np.sqrt(np.maximum(variances - noise, 0))[:, None] * directions
    return W, noise
