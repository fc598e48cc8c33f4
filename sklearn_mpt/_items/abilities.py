"""Abilities of people: means, modes and draws of posteriors, and reliability."""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._latent.integrals import rows_of
from sklearn_mpt._latent.modes import LogJoint, climb
from sklearn_mpt._matrices import identity

# Largest size of z at which the search for the mode of a likelihood starts: more than
# twice as far as grids reach over the population; and the number of such points.
MAX_ABILITY, N_STARTS = 15.0, 601
# Curvature below which a likelihood has no maximum in a direction: the standard error
# would be more than 1000.
FLAT_CURVATURE = 1e-6
# An ability is infinite if its cosine with such a direction is larger: directions have
# errors of rounding.
MIN_COSINE = 1e-3
# Largest number of Newton steps to a mode, and the change of z below which they end.
MAX_STEPS, MODE_TOLERANCE = 60, 1e-10


class Abilities(NamedTuple):
    """Abilities of people and their standard errors.

    Attributes
    ----------
    theta : ndarray of shape (n_samples, n_components)
        Abilities. Several plausible values have shape (n_draws, n_samples,
        n_components).
    std_error : ndarray of shape (n_samples, n_components)
    """

    theta: np.ndarray
    std_error: np.ndarray


class Reliability(NamedTuple):
    """Reliability of EAP abilities; arrays of shape (n_components,).

    Attributes
    ----------
    empirical : ndarray
        Variance of the abilities of the rows, divided by the sum of this variance and
        the mean of their squared standard errors.
    marginal : ndarray
        1 less the mean variance of an ability given its answers, as a fraction of its
        variance :math:`\\sigma^2` in the population. For one ability this is the mean
        of :math:`I(z) / (I(z) + 1 / \\sigma^2)`.
    """

    empirical: np.ndarray
    marginal: np.ndarray


def moments(density, X):
    """Return means and covariances of posteriors of rows; (n, 1 + k, k)."""
    mean, covariance = density.latent_moments(X)
    return torch.cat([mean[:, None], covariance], 1)


def posterior_modes(density, X):
    """Return modes of the posteriors of rows, and standard errors; (n, 2, k)."""
    population, log_share = density.population, density.group_weight.log()[:, None]

    def log_prior(z):
        return (population.log_density(z) + log_share).logsumexp(0)

    z, curvature = _modes(
        density, X, log_prior, _start(density, X, density.z, log_prior)
    )
    is_definite = torch.linalg.eigvalsh(curvature).amin(1) > 0
    eye = identity(curvature.shape[1], curvature)
    invertible = torch.where(is_definite[:, None, None], curvature, eye)
    covariance = torch.linalg.inv(invertible)
    covariance[~is_definite] = torch.nan  # no maximum
    return torch.stack(_in_user_units(density, z, covariance), 1)


def likelihood_modes(density, X):
    """Return modes of the likelihoods of rows, and standard errors; (n, 2, k)."""
    # Modes are infinite if the likelihood has no maximum, and NaN without answers.
    n_dims = density.joint.n_dims
    result = X.new_full((len(X), 2, n_dims), torch.nan)
    answered = ~X.isnan().all(1)
    X = X[answered]
    if n_dims == 1:
        ends = -MAX_ABILITY, MAX_ABILITY
        start = torch.linspace(*ends, N_STARTS, dtype=X.dtype, device=X.device)[:, None]
        start = _start(density, X, start, no_prior)
    else:
        start = density.z_of_abilities(density.latent_mean(X))
    z, curvature = _modes(density, X, no_prior, start)
    values, vectors = torch.linalg.eigh(curvature)
    is_flat = values < FLAT_CURVATURE
    precision = torch.where(is_flat, math.inf, values)
    covariance = (vectors / precision[:, None]) @ vectors.mT
    estimate, std_error = _in_user_units(density, z, covariance)
    cosine = (vectors.mT @ density.root).abs()
    is_infinite = (is_flat[..., None] & (cosine > MIN_COSINE)).any(1)
    estimate = torch.where(is_infinite, estimate.sign() * math.inf, estimate)
    std_error = torch.where(is_infinite, math.inf, std_error)
    result[answered] = torch.stack([estimate, std_error], 1)
    return result


MODES = {"map": posterior_modes, "ml": likelihood_modes}
METHODS = ("eap", *MODES, "plausible")


def no_prior(z):
    return torch.zeros_like(z[:, 0])


def _start(density, X, z, log_prior):
    """Return the node at which likelihood times prior is largest; (n, k)."""
    rows = rows_of(X)
    observed = rows.observed.to(X.dtype)
    log_prob = density.joint.pair_log_prob(rows.X * observed, observed, z)
    return z[(log_prob + log_prior(z)).argmax(1)]


def _modes(density, X, log_prior, start):
    """Return modes of likelihood times prior, and minus the Hessians there."""
    joint, rows = density.joint, rows_of(X)

    @torch.enable_grad()
    def log_joint(z, index):
        taken, z = rows.take(index), z.detach().requires_grad_()
        entries = joint.likelihood.entry_log_prob(taken.X, joint.location(z))
        value = torch.where(taken.observed, entries, 0.0).sum(1) + log_prior(z)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        hessian = [
            torch.autograd.grad(part.sum(), z, retain_graph=True)[0]
            for part in gradient.T
        ]
        hessian = torch.stack(hessian, 1)
        return LogJoint(value.detach(), gradient.detach(), -hessian)

    climbed = climb(log_joint, start, max_iter=MAX_STEPS, tol=MODE_TOLERANCE)
    return climbed.z, climbed.precision


def _in_user_units(density, z, covariance):
    """Return the abilities in the coordinates of users, and their standard errors."""
    covariance = density.root.T @ covariance @ density.root
    error = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return z @ density.root, error


def reliability(density, abilities, weight):
    """Return the reliability of EAP abilities of rows with weights, (n,)."""
    theta, error = abilities
    if weight.sum() <= 1:
        raise ValueError(
            "reliability needs the variance of abilities of more than one person, but "
            f"rows, or their sample_weight, add up to {weight.sum():.6g}."
        )
    mean = np.average(theta, axis=0, weights=weight)
    variance = weight @ (theta - mean) ** 2 / (weight.sum() - 1)
    noise = np.average(error**2, axis=0, weights=weight)
    with torch_modes():
        marginal = density.marginal_reliability()
    return Reliability(variance / (variance + noise), marginal.cpu().numpy())
