r"""E-steps and M-steps of mixtures, for rows with gaps, whole or masked.

The M-step of EM computes parameters from expected sufficient statistics T. By Fisher's
identity, T also gives the gradient of the log-probability of any part of a row. So the
masked score of hidden entries H given the visible entries R has the statistics

.. math:: T_\theta + \frac{D}{|H|} \sum_{j \in H} \left( T(x_{R \cup j}) - T(x_R)
    \right),

where :math:`T_\theta` are the statistics that the model expects of a row. Along an
order of the features the differences add up to the statistics of the whole row, and so
does their expectation over masks of all sizes. A step of masked training is an M-step
on statistics estimated from masks, with falling step sizes, as in online EM [1]_. EM on
whole rows maximises the sum of the scores over all mask sizes.

References
----------
.. [1] O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for latent
   data models", Journal of the Royal Statistical Society B 71, 2009.
"""

from typing import NamedTuple

import torch

from sklearn_mpt._mixture.density import Components
from sklearn_mpt._numbers import MIN_INFORMATION


class SufficientStatistics(NamedTuple):
    """Expected sufficient statistics, and the objective, added up over rows.

    First and second moments of Gaussian columns are about the means of the components.
    """

    value: torch.Tensor  # sum over rows of the objective
    square: torch.Tensor  # sum over rows of its square
    counts: torch.Tensor  # rows in each component, (K,)
    sums: torch.Tensor  # first moments, (K, g)
    scatters: torch.Tensor  # second moments, (K, g, g) or (K, g)
    slopes: torch.Tensor  # gradient in the locations, (K, l)
    informations: torch.Tensor  # expected information on the locations, (K, l)

    def __add__(self, other):
        return SufficientStatistics(*(a + b for a, b in zip(self, other, strict=True)))


class MStepParams(NamedTuple):
    """Settings of the M-step."""

    reg_covar: float
    layout: object


def statistics_of_rows(density, X, weight, prior=0.0, patterns=None):
    """Return the expected statistics of whole rows: the E-step of EM.

    prior : additional count of each row in every component, for columns that are not
    Gaussian. It keeps the probabilities of categories above zero. patterns : those of
    the present entries, if they are known.
    """
    present = ~X.isnan()
    given = density.given(X, present, patterns)
    value = given.joint.logsumexp(1)
    share = given.log_responsibility.exp() * weight[:, None]
    entry_share = entry_shares_of(density, X, share + prior * weight[:, None])
    return _weighted_statistics(
        density, X, given, share, None, entry_share, value, weight, prior
    )


def statistics_of_shares(density, X, share, prior, patterns):
    """Return the statistics of whole rows with given responsibilities (n, K).

    prior : additional count of each row in the information of every component.
    patterns : those of the present entries.
    """
    given = density.given(X, ~X.isnan(), patterns)
    entry_share = entry_shares_of(density, X, share)
    value, weight = X.new_zeros(len(X)), X.new_ones(len(X))
    return _weighted_statistics(
        density, X, given, share, None, entry_share, value, weight, prior
    )


def entry_shares_of(density, X, share):
    """Return the weights of the entries that are not Gaussian, (n, K, d - g)."""
    is_present = ~X[:, density.layout.others].isnan()
    return share[..., None] * is_present[:, None].to(X)


def statistics_of_masks(density, X, weight, hidden, inflation, prior=0.0):
    """Return the expected statistics of masked scores, less those of the model.

    hidden : bool, (n, d), True only where an entry is present. inflation : D / |H|,
    (n, 1). prior : as in `statistics_of_rows`.
    """
    present = ~X.isnan()
    given = density.given(X, present & ~hidden)
    entries = density.entry_log_prob(X, given)
    log_share, others = given.log_responsibility, density.layout.others
    joint = log_share[..., None] + entries  # shape: (n, K, d)
    log_prob = torch.where(hidden, joint.logsumexp(1), 0.0)
    value = (inflation * log_prob).sum(1)
    scale = inflation * weight[:, None] * hidden  # shape: (n, d)
    targets = scale[:, None] * joint.softmax(1)
    share = targets.sum(2) - log_share.exp() * scale.sum(1, keepdim=True)
    visible = (present & ~hidden)[:, None, others]
    entry_share = torch.where(visible, share[..., None], targets[..., others])
    of_others = present[:, None, others].to(X)
    entry_share = entry_share + prior * weight[:, None, None] * of_others
    return _weighted_statistics(
        density, X, given, share, targets, entry_share, value, weight, prior
    )


def _weighted_statistics(
    density, X, given, share, targets, entry_share, value, weight, prior
):
    """Add up weighted statistics over rows.

    share : weights of the statistics given the observed entries, (n, K). targets :
    weights of the statistics given the observed entries and one hidden entry,
    (n, K, d); None for whole rows. entry_share : weights of the gradients of columns
    that are not Gaussian, (n, K, d - g). prior : additional count of each row in every
    component.
    """
    gaussian, layout, components = given.gaussian, density.layout, density.components
    sums, scatters = gaussian.moments(share)
    if targets is not None:
        residual = torch.nan_to_num(X[:, None, layout.gaussian]) - components.means
        error = (residual - gaussian.deviation) / gaussian.variance
        more = gaussian.target_moments(targets[..., layout.gaussian], error)
        sums, scatters = sums + more[0], scatters + more[1]
    slopes = informations = torch.zeros_like(components.locations)
    if layout.likelihood is not None:
        slopes, informations = location_slopes(density, X, entry_share, weight, prior)
    return SufficientStatistics(
        weight @ value, weight @ value**2, share.sum(0), sums, scatters, slopes,
        informations,
    )  # fmt: skip


def location_slopes(density, X, entry_share, weight, prior):
    """Return gradient and information in the locations of columns not Gaussian.

    If values are codes, the weights of the entries of each code are added up first.
    """
    layout, components = density.layout, density.components
    rows, likelihood = X[:, layout.others], layout.likelihood
    n_present = weight @ likelihood.to_locations((~rows.isnan()).to(X))
    values = torch.nan_to_num(rows)
    if density.codes is not None:
        codes = torch.arange(len(density.codes), device=X.device)
        is_code = (values.T[..., None] == codes).to(X)  # shape: (d - g, n, C)
        entry_share = (entry_share.permute(2, 1, 0) @ is_code).permute(2, 1, 0)
        values = density.codes
    slope, information = likelihood.derivatives(values[:, None], components.locations)
    slopes = (likelihood.to_locations(entry_share) * slope).sum(0)
    expected = information.expand(len(values), *components.locations.shape)[0]
    return slopes, (components.weights[:, None] + prior) * n_present * expected


def m_step(components, statistics, n_rows, size, params, are_differences):
    """Return the components after an M-step on a mix of old and new statistics.

    size : share of the new statistics; 1 is a full step of EM. params : MStepParams.
    are_differences : whether the statistics are differences from those that the model
    expects. None if the result is no valid mixture.
    """
    component_rows = n_rows * components.weights
    keep = 1.0 if are_differences else 1 - size
    counts = keep * component_rows + size * statistics.counts
    if not bool((counts > 0).all()):
        return None
    form, before = params.layout.form, components.covariances
    per_component = counts.unflatten(0, (-1, *[1] * (before.ndim - 1)))
    shift = size * statistics.sums / counts[:, None]
    share = counts / counts.sum()
    kept = (keep * component_rows).view_as(per_component) * before
    spread = (size * statistics.scatters + kept) / per_component - form.outer(shift)
    covariances, loadings, noise = form.estimate(
        spread, counts, components.loadings, components.noise, params.reg_covar
    )
    if not form.is_valid(covariances):
        return None
    locations = components.locations
    if params.layout.likelihood is not None:
        slopes = statistics.slopes, statistics.informations
        locations = scoring_step(locations, *slopes, size)
    moved = Components(
        share, components.means + shift, covariances, locations, loadings, noise
    )
    return moved if moved.is_finite() else None


def scoring_step(locations, slopes, informations, size):
    """Return the locations after a step of scoring, of at most 1 each."""
    ratio = slopes / (informations + MIN_INFORMATION)
    return locations + size * ratio.clamp(-1.0, 1.0)
