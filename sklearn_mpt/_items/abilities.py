"""Abilities of people: means, modes and draws of posteriors, and reliability."""

import math
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._latent.answers import MISSING, Answers, log_joint
from sklearn_mpt._latent.modes import LogJoint, climb
from sklearn_mpt._matrices import identity
from sklearn_mpt._optim.information import (
    central_differences,
)

# Largest size of z at which the search for the mode of a likelihood starts: more than
# twice as far as grids reach over the population.
MAX_ABILITY = 15.0
# Curvature below which a likelihood has no maximum in a direction: the standard error
# would be more than 1000.
FLAT_CURVATURE = 1e-6
# An ability is infinite if its cosine with such a direction is larger: directions have
# errors of rounding.
MIN_COSINE = 1e-3


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


def log_prob_of(items, point, rows, z):
    """Return log p(present answers | z) and its gradient in z."""
    # rows : codes of answers and whether they are present, (n, d) each. z : (n, k), one
    # for each row. Returns (n,) and (n, k).
    codes, present = rows
    value, gradient = torch.zeros_like(z[:, 0]), torch.zeros_like(z)
    for block in items.blocks:
        answers, observed = codes[:, block.items].to(z), present[:, block.items]
        likelihood, location = block.likelihood_and_locations(point, z)
        log_prob = likelihood.entry_log_prob(answers, location)
        derivative, _ = likelihood.derivatives(answers, location)
        slopes, shape_params = block.split(point)
        derivative = block.kind.eta_derivative(shape_params, derivative)
        value += torch.where(observed, log_prob, 0.0).sum(1)
        gradient += torch.where(observed, derivative, 0.0) @ slopes
    return value, gradient


def modes(
    items,
    point,
    X,
    prior,
    start,
    *,
    max_iter=60,
    tol=1e-10,
    difference=1e-4,
):
    """Return modes of likelihood times prior, and minus the Hessians there."""
    # prior : from z (m, k) and the indices of their rows, (m,), to the log-density and
    # its gradient. start : (n, k). max_iter, tol : see `climb`; in units of z.
    # difference : of z, by which second derivatives are computed.
    codes, present = X.nan_to_num().long(), ~X.isnan()

    def evaluate(z, index):
        rows = codes[index], present[index]
        value, gradient = log_prob_of(items, point, rows, z)
        log_density, prior_gradient = prior(z, index)
        return value + log_density, gradient + prior_gradient

    def log_joint(z, index):
        def gradient(z):
            return evaluate(z, index)[1]

        steps = difference * identity(z.shape[1], z)
        hessian = central_differences(gradient, z, steps).movedim(0, 2) / difference
        return LogJoint(*evaluate(z, index), -0.5 * (hessian + hessian.mT))

    climbed = climb(log_joint, start, max_iter=max_iter, tol=tol)
    return climbed.z, climbed.precision


def covariances(curvature):
    """Invert minus the Hessians; NaN where they show no maximum."""
    is_definite = torch.linalg.eigvalsh(curvature).amin(1) > 0
    eye = identity(curvature.shape[1], curvature)
    invertible = torch.where(is_definite[:, None, None], curvature, eye)
    return torch.where(
        is_definite[:, None, None], torch.linalg.inv(invertible), torch.nan
    )


def no_prior(z, index):
    return torch.zeros_like(z[:, 0]), torch.zeros_like(z)


def mixture_prior(population, log_weight):
    """Return a prior, for `modes`, that is a mixture of groups."""
    # log_weight : logarithms of the proportions of the groups for each row, (n, g).

    def prior(z, index):
        terms = population.log_density(z).T + log_weight[index]
        scores = (population.mean - z[:, None]) / population.deviation**2
        return terms.logsumexp(1), (terms.softmax(1)[:, None] @ scores)[:, 0]

    return prior


def posterior_modes(density, X, codes=None):
    """Return modes of the posteriors of rows, and standard errors; (n, k) each."""
    # codes : codes of the groups of the rows, (n, 1). With None the prior is that of
    # all groups together.
    if codes is None:
        log_weight = density.group_weight.log().expand(len(X), -1)
    else:
        own = torch.nn.functional.one_hot(codes[:, 0].long(), len(density.group_weight))
        log_weight = own.to(X).log()
    weights = density.weights(X, log_weight=density.row_log_weight(codes))
    prior = mixture_prior(density.population, log_weight)
    start = density.grid.z[weights.argmax(1)]
    z, curvature = modes(density.items, density.point, X, prior, start)
    return _in_user_units(density, z, covariances(curvature))


def likelihood_modes(density, X, codes=None):
    """Return modes of the likelihoods of rows, and standard errors; (n, k) each."""
    # Modes are infinite if the likelihood has no maximum, and NaN without answers.
    items, point = density.items, density.point
    theta, error = X.new_full((2, len(X), items.n_dims), torch.nan)
    answered = ~X.isnan().all(1)
    X = X[answered]
    if items.n_dims == 1:
        start = likelihood_start(items, point, X)
    else:
        start = density.weights(X) @ density.grid.z
    z, curvature = modes(items, point, X, no_prior, start)
    values, vectors = torch.linalg.eigh(curvature)
    is_flat = values < FLAT_CURVATURE
    precision = torch.where(is_flat, math.inf, values)
    covariance = (vectors / precision[:, None]) @ vectors.mT
    estimate, std_error = _in_user_units(density, z, covariance)
    cosine = (vectors.mT @ density.root).abs()
    is_infinite = (is_flat[..., None] & (cosine > MIN_COSINE)).any(1)
    theta[answered] = torch.where(is_infinite, estimate.sign() * math.inf, estimate)
    error[answered] = torch.where(is_infinite, math.inf, std_error)
    return theta, error


def _in_user_units(density, z, covariance):
    """Return the abilities in the coordinates of users, and their standard errors."""
    covariance = density.root.T @ covariance @ density.root
    error = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return z @ density.root, error


def likelihood_start(items, point, X, n_nodes=601):
    """Return the z on a grid with the largest likelihood; (n, 1)."""
    z = torch.linspace(
        -MAX_ABILITY, MAX_ABILITY, n_nodes, dtype=X.dtype, device=X.device
    )[:, None]
    codes = X.nan_to_num(nan=float(MISSING)).to(torch.int8)
    answers = Answers(codes, items.max_categories)
    flat, table = z.new_zeros(1, n_nodes), items.log_prob(point, z)
    return z[log_joint(answers, slice(None), table, flat).argmax(1)]


MODES = {"map": posterior_modes, "ml": likelihood_modes}
METHODS = ("eap", *MODES, "plausible")


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


def posterior_moments(density, X, codes, map_rows):
    """Return means, (n, k), and covariances, (n, k, k), of the posteriors of rows."""
    # X : codes of answers. codes : of the groups of the rows, (n,), or None. map_rows :
    # the method of estimators that applies a function to chunks of rows.

    def moments(rows, codes=None):
        log_weight = density.row_log_weight(codes)
        mean, covariance = density.latent_moments(rows, log_weight)
        return torch.cat([mean[:, None], covariance], 1)

    moments_of_z = map_rows(density, moments, *_with_codes(X, codes))
    return moments_of_z[:, 0], moments_of_z[:, 1:]


def posterior_abilities(density, X, codes, map_rows):
    """Return means and standard deviations of the posteriors of rows."""
    mean, covariance = posterior_moments(density, X, codes, map_rows)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    return Abilities(mean, np.sqrt(variance.clip(min=0)))


def modal_abilities(density, X, codes, map_rows, find_modes):
    """Return modes of posteriors, or of likelihoods, and their standard errors."""
    # find_modes : a value of `MODES`.

    def stacked(rows, codes=None):
        return torch.stack(find_modes(density, rows, codes), 1)

    modes_and_errors = map_rows(density, stacked, *_with_codes(X, codes))
    return Abilities(modes_and_errors[:, 0], modes_and_errors[:, 1])


def plausible_values(density, X, codes, map_rows, n_draws, rng):
    """Return draws from the posteriors of rows; (n, k), or (n_draws, n, k)."""
    with torch_modes():
        fine_density = density.on_finer_grid()

    def draw(rows, codes=None):
        log_weight = fine_density.row_log_weight(codes)
        return fine_density.draw_latent(rows, rng, n_draws, log_weight)

    drawn = map_rows(fine_density, draw, *_with_codes(X, codes))
    return drawn[:, 0] if n_draws == 1 else drawn.transpose(1, 0, 2)


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


def _with_codes(X, codes):
    """Append the codes of groups to the rows, if there are any, as a column."""
    return (X,) if codes is None else (X, codes[:, None])
