"""Abilities of people as they are reported, and their reliability."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import torch_modes
from sklearn_mpt._items.abilities import Abilities, likelihood_modes, posterior_modes

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
    """Return means, (n, k), and covariances, (n, k, k), of the posteriors of rows.

    X : codes of answers. codes : of the groups of the rows, (n,), or None. map_rows :
    the method of estimators that applies a function to chunks of rows.
    """

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
    """Return modes of posteriors, or of likelihoods, and their standard errors.

    find_modes : a value of `MODES`.
    """

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
