"""Where a deep model starts, as arrays, and the checks of its parameters."""

from collections.abc import Sequence

import numpy as np

from sklearn_mpt._checks import check_choice, check_int
from sklearn_mpt._deep.layers import ACTIVATIONS, initial_layers


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


def start(settings, likelihood, X, rng):
    """Return the fitted attributes from which training starts."""
    n_components, n_features = settings.n_components, X.shape[1]
    hidden = list(settings.hidden_layer_sizes)
    coefs, intercepts = initial_layers([n_components, *hidden[::-1], n_features], rng)
    shift, scale = likelihood.units(X)
    coefs[-1], intercepts[-1] = scale * coefs[-1], likelihood.start_location(X)
    return likelihood.start_attributes(scale) | {
        "_shift": shift,
        "_scale": scale,
        "decoder_coefs_": coefs,
        "decoder_intercepts_": intercepts,
        **_encoder_start(np.nanmean(X, axis=0) - shift, n_components, hidden, rng),
    }


def _encoder_start(centre, n_components, hidden, rng):
    """The net's last layer is zero: it starts from the additive posterior."""
    n_features = len(centre)
    n_outputs = n_components + n_components * (n_components + 1) // 2
    unit = 1 / np.sqrt(n_features)
    slope = 0.1 * unit * rng.normal(size=(n_features, n_components))
    coefs, intercepts = [], []
    if hidden:
        coefs, intercepts = initial_layers([2 * n_features, *hidden, n_outputs], rng)
        coefs[0][n_features:] -= centre[:, None] * coefs[0][:n_features]
        coefs[-1][:], intercepts[-1][:] = 0, 0
    return {
        "encoder_information_": np.concatenate([slope, -centre[:, None] * slope]),
        "encoder_precision_": unit * rng.normal(size=(n_components, n_features)),
        "encoder_coefs_": coefs,
        "encoder_intercepts_": intercepts,
    }
