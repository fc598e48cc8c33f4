"""The density of a deep model, and its nets as a torch module.

A net maps z, standard normal, to the locations of the features, of shape (..., l). Rows
are standardised; the decoder's fitted arrays are in the units of X. Scores are averages
by importance sampling around the modes of the posterior of z, or, for comparison, by
chains: z is drawn from the encoder given the observed features, then the hidden
features given z, then z given all features, and so on (appendix F of [1]_).

References
----------
.. [1] D. J. Rezende, S. Mohamed and D. Wierstra, "Stochastic backpropagation and
   approximate inference in deep generative models", ICML 2014.
"""

import functools

import numpy as np
import torch

from sklearn_mpt._base.density import as_tensor, units_of_locations
from sklearn_mpt._base.nets import arrays_of, load_arrays
from sklearn_mpt._deep.nets import Encoder, Layers, UserDecoder
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.integrals import IMPORTANCE_TOLERANCE, importance, log_joint
from sklearn_mpt._latent.modes import laplace
from sklearn_mpt._latent.quadrature import (
    MAX_GRID_DIMS,
    Nodes,
    Posterior,
    gaussian_around,
    log_mean_exp,
    log_peak,
    normal_points,
    standard_normal_log_prob,
    wide_component_scale,
)
from sklearn_mpt._likelihoods.base import encoder_inputs, fitted_attributes


def n_modes(n_dims):
    """Return the number of modes; in many dimensions more of them gain nothing."""
    return 4 if n_dims <= MAX_GRID_DIMS else 2


def posteriors_around_modes(rows, z, module):
    """Return Gaussians around the largest modes found from z (n, k) and other starts.

    They are farther from each other than a standard deviation. Where there are fewer
    modes, the one that is reached from z is repeated.
    """
    starts = torch.cat([z[:, None], likeliest_points(rows, module)], 1)
    shape = starts.shape[:2]
    row = torch.arange(shape[0], device=z.device)
    posterior, joint = laplace(
        rows.take(row.repeat_interleave(shape[1])),
        module,
        starts.flatten(0, 1),
        tol=0.0,
        max_iter=20,
        min_gain=IMPORTANCE_TOLERANCE,
    )
    mass = (joint - log_peak(posterior)).unflatten(0, shape)
    parts = [part.unflatten(0, shape) for part in posterior]
    chosen = []
    for _ in range(n_modes(module.n_dims)):
        best = Posterior(*(part[row, mass.argmax(1)] for part in parts))
        chosen.append(best)
        away = (parts[0] - best.mean[:, None]) @ best.precision_root
        mass = torch.where(away.norm(dim=2) > 1, mass, -torch.inf)
    return chosen


def likeliest_points(rows, module):
    """Return the likeliest of shared points, apart from each other; (n, s, k)."""
    # What other numbers of them and distances would cost is in benchmarks/RESULTS.rst,
    # "Deep models: the search for modes".
    z = _cauchy_points(module.n_dims).to(rows.X)
    joint = log_joint(rows, Nodes(z, standard_normal_log_prob(z)), module)
    chosen = []
    for _ in range(12 if module.n_dims <= MAX_GRID_DIMS else 1):
        best = z[joint.argmax(1)]
        chosen.append(best)
        least = 0.1 * (1 + best.norm(dim=1, keepdim=True))
        joint = torch.where(torch.cdist(best, z) < least, -torch.inf, joint)
    return torch.stack(chosen, 1)


@functools.lru_cache(maxsize=64)
def _cauchy_points(n_dims):
    """Return points of the multivariate Cauchy distribution; (m, k)."""
    # Rows far from the data have their modes in the tails of the prior.
    normal = torch.from_numpy(normal_points(4096, n_dims + 1, 0, 1)[0])
    return normal[:, :-1] / normal[:, -1:].abs()


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
        others = [] if self.n_dims <= MAX_GRID_DIMS else [encoded]
        return [*modes, *others, gaussian_around(modes[0].mean, wide)]


class DeepDensity(IntegratedDensity):
    """A density whose integrals are by importance sampling."""

    def __init__(self, module, units, device, seed):
        n_dims = module.n_dims
        # the prior, a wide Gaussian, the modes, and in many dimensions the encoder's
        n_parts = n_modes(n_dims) + (2 if n_dims <= MAX_GRID_DIMS else 3)
        # Points from each part. The first ones only adapt the approximate posteriors of
        # a row; then rows whose error is too large are integrated by twice as many
        # points as before.
        pilot, *counts = [(2**power,) * n_parts for power in range(4, 11)]
        scoring = importance(counts, n_dims, device, seed, pilot=pilot)
        predicting = scoring.coarse(3)  # curves have many conditionals
        super().__init__(module, units, scoring, predicting, seed)


def module_of(fitted, likelihood, device, user_module):
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


def encode_decode_log_prob(module, X, observed, noise):
    """Return log p(x_j | x_R) by averages over the last z of chains; (n, d).

    noise : standard normal, (n or 1, n_steps + 1, s, k), and uniform, (n or 1, n_steps,
    s, d).
    """
    normal, uniform = noise
    n_chains = normal.shape[2]
    rows, is_observed = (t.repeat_interleave(n_chains, 0) for t in (X, observed))
    with torch.no_grad():
        filled, known = rows, is_observed
        for step in range(uniform.shape[1]):
            z = _draw(module, filled, known, normal[:, step])
            draws = module.likelihood.draw(
                module.decoder(z.unflatten(0, (-1, n_chains))), uniform[:, step]
            )
            filled = torch.where(is_observed, rows, draws.flatten(0, 1))
            known = torch.ones_like(is_observed)
    z = _draw(module, filled, known, normal[:, -1]).unflatten(0, (-1, n_chains))
    log_prob = module.likelihood.entry_log_prob(X[:, None], module.decoder(z))
    return log_mean_exp(log_prob, 1)


def _draw(module, X, observed, normal):
    """Draw z from the encoder for every row of every chain; (n * s, k)."""
    posterior = module.posterior(X, observed)
    noise = normal.expand(len(X) // normal.shape[1], -1, -1).flatten(0, 1)
    return posterior.mean + (noise[:, None] @ posterior.root)[:, 0]


class EncodeDecodeDensity(DeepDensity):
    """A density whose conditionals are those of the chains."""

    n_chains, n_steps = 64, 5

    def _conditionals(self, rows):
        shape = (self.n_steps, self.n_chains, rows.X.shape[1])
        n_dims = self.joint.n_dims
        normal = normal_points(self.n_chains, n_dims, self.seed, self.n_steps + 1)
        uniform = np.random.default_rng(self.seed).random(shape)
        noise = tuple(
            torch.tensor(u, device=rows.X.device)[None] for u in (normal, uniform)
        )
        return encode_decode_log_prob(self.joint, rows.X, rows.observed, noise)
