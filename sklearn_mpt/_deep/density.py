"""The density of a deep model, and its nets as a torch module.

A net maps z, standard normal, to the locations of the features, of shape (..., l). Rows
are standardised; the decoder's fitted arrays are in the units of X.
"""

import torch

from sklearn_mpt._base.density import as_tensor, units_of_locations
from sklearn_mpt._base.nets import arrays_of, load_arrays
from sklearn_mpt._deep.nets import Encoder, Layers, UserDecoder
from sklearn_mpt._deep.posterior_modes import (
    FEW_DIMS,
    n_modes,
    posteriors_around_modes,
)
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.integrals import IMPORTANCE_TOLERANCE, importance
from sklearn_mpt._latent.quadrature import gaussian_around, wide_component_scale
from sklearn_mpt._likelihoods.base import encoder_inputs, fitted_attributes

# Nats. It is smaller than that of scores, because curves add the errors of many
# conditionals up.
CONDITIONAL_TOLERANCE = 0.01


# Numbers of points of each part of the mixture, as powers of two, rule after rule, in
# few dimensions and in more. Rows whose error is too large with a rule are integrated
# by the next. Rules of averages begin with more points than those of scores, because
# the error that few points estimate may be small by chance.
SCORES = (4, 6, 8, 10), (5, 7, 9)
CONDITIONALS = (5, 7), (5, 7)
AVERAGES = (5, 7, 9), (5, 7)
PILOT = 3  # of the rule that only adapts the posteriors of a row
TAILS = 128  # points of averages from heavy tails at least, in few dimensions


def points(power, n_dims, least=0):
    """Return numbers of points: of each approximate posterior, and of the prior.

    A row that needs many points may have its mass far from all modes: then, in few
    dimensions, as many come from the prior, or from heavy tails.
    """
    is_few = n_dims <= FEW_DIMS
    n_parts = n_modes(n_dims) + (1 if is_few else 2)
    n_prior = 2**power // (1 if power > 7 and is_few else 4)
    return *[2**power] * n_parts, max(least if is_few else 0, n_prior)


class DeepModule(torch.nn.Module):
    """A decoder, an encoder and the distribution of features between them."""

    def __init__(self, decoder, encoder, likelihood):
        super().__init__()
        self.decoder = decoder
        self.encoder = encoder
        self.likelihood = likelihood

    @property
    def n_dims(self):
        return len(self.encoder.precision)

    @property
    def width(self):
        return self.decoder.width

    def location(self, z):
        return self.decoder(z)

    def location_and_jacobian(self, z):
        return self.decoder.value_and_jacobian(z)

    def entry_log_prob(self, X, z):
        """Return log p(x_j | z) of rows X, (n, d), at z (n, s, k); (n, s, d)."""
        return self.likelihood.entry_log_prob(X[:, None], self.decoder(z))

    def pair_log_prob(self, X, observed, z):
        """Return the log-probability of each row at each shared node; (n, s)."""
        return self.likelihood.pair_log_prob(X, observed, self.decoder(z))

    def posterior(self, X, observed):
        """Return the encoder's posteriors of rows, given what is observed."""
        return self.encoder(*encoder_inputs(self.likelihood, X, observed))

    def propose(self, rows):
        """Return Gaussians around modes, and the encoder's in many dimensions."""
        encoded = self.posterior(rows.X, rows.observed)
        modes = posteriors_around_modes(rows, encoded.mean, self)
        wide = modes[0].precision_root / wide_component_scale(self.n_dims)
        others = [] if self.n_dims <= FEW_DIMS else [encoded]
        return [*modes, *others, gaussian_around(modes[0].mean, wide)]


class DeepDensity(IntegratedDensity):
    """A density whose integrals are by importance sampling."""

    def __init__(self, module, units, device, seed):
        n_dims = module.n_dims
        pilot = points(PILOT, n_dims)

        def accuracy(powers, tolerance, least=0):
            powers = powers[n_dims > FEW_DIMS]
            counts = [points(power, n_dims, least) for power in powers]
            return importance(counts, n_dims, device, seed, tolerance, pilot)

        scoring = accuracy(SCORES, IMPORTANCE_TOLERANCE)
        predicting = accuracy(CONDITIONALS, CONDITIONAL_TOLERANCE)
        super().__init__(module, units, scoring, predicting, seed)
        self.averaging = accuracy(AVERAGES, IMPORTANCE_TOLERANCE, TAILS)


def module_of(fitted, likelihood, device, user_module=None):
    """Return the fitted module, in double precision."""
    encoder = fitted["encoder_coefs_"], fitted["encoder_intercepts_"]
    return DeepModule(
        _decoder(fitted, likelihood, device, user_module),
        Encoder(
            as_tensor(fitted["encoder_information_"], device),
            as_tensor(fitted["encoder_precision_"], device),
            _layers(*encoder, fitted["activation_"], device),
        ),
        likelihood.from_attributes(fitted, fitted["_scale"]).to(device),
    )


def _decoder(fitted, likelihood, device, user_module):
    if user_module is not None:
        arrays = fitted["_decoder"]
        n_dims = len(fitted["encoder_precision_"])
        decoder = UserDecoder(user_module, n_dims, arrays["intercept"], "decoder")
        return load_arrays(decoder, arrays).to(device).double()
    shift, scale = units_of_locations(likelihood, fitted["_shift"], fitted["_scale"])
    *coefs, last_coef = fitted["decoder_coefs_"]
    *intercepts, last = fitted["decoder_intercepts_"]
    coefs = [*coefs, last_coef / scale]
    intercepts = [*intercepts, (last - shift) / scale]
    return _layers(coefs, intercepts, fitted["activation_"], device)


def _layers(coefs, intercepts, activation, device):
    """Return a net of the arrays, or None if there are none."""
    if not coefs:
        return None
    coefs, intercepts = (
        [as_tensor(array, device) for array in arrays] for arrays in (coefs, intercepts)
    )
    return Layers(coefs, intercepts, activation)


def attributes_of(module, shift, scale):
    """Return the fitted arrays of a module."""
    likelihood, encoder = module.likelihood, module.encoder
    encoder_coefs, encoder_intercepts = _arrays(encoder.net)
    fitted = fitted_attributes(likelihood, scale) | {
        "encoder_coefs_": encoder_coefs,
        "encoder_intercepts_": encoder_intercepts,
        "encoder_information_": _array(encoder.information),
        "encoder_precision_": _array(encoder.precision),
    }
    if isinstance(module.decoder, UserDecoder):
        return fitted | {"_decoder": arrays_of(module.decoder)}
    coefs, intercepts = _arrays(module.decoder)
    shift, scale = units_of_locations(likelihood, shift, scale)
    coefs[-1] *= scale
    intercepts[-1] = scale * intercepts[-1] + shift
    return fitted | {"decoder_coefs_": coefs, "decoder_intercepts_": intercepts}


def _arrays(layers):
    if layers is None:
        return [], []
    return (
        [_array(coef) for coef in layers.coefs],
        [_array(intercept) for intercept in layers.intercepts],
    )


def _array(tensor):
    return tensor.detach().double().cpu().numpy().copy()
