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

from sklearn_mpt._fitting.natural_gradient import MAX_FALL
from sklearn_mpt._fitting.priors import UNSEEN_COUNT
from sklearn_mpt._mixture.density import Components
from sklearn_mpt._numbers import MIN_INFORMATION


class SufficientStatistics(NamedTuple):
    """Expected sufficient statistics, and the objective, added up over rows.

    First and second moments of Gaussian columns are about the means of the components.
    """

    value: torch.Tensor  # sum over rows of the objective
    counts: torch.Tensor  # rows in each component, (K,)
    first: torch.Tensor  # first moments, (K, g)
    second: torch.Tensor  # second moments, (K, g, g) or (K, g)
    gradient: torch.Tensor  # in the locations, (K, l)
    information: torch.Tensor  # expected information on the locations, (K, l)

    def __add__(self, other):
        return SufficientStatistics(*(a + b for a, b in zip(self, other, strict=True)))


class MStepParams(NamedTuple):
    """Settings of the M-step.

    unseen : categories that no row has, as `Likelihood.unseen` returns them.
    """

    reg_covar: float
    layout: object
    unseen: torch.Tensor


def statistics_of_rows(
    density, X, weight, prior=0.0, patterns=None, responsibility=None
):
    """Return the expected statistics of whole rows: the E-step of EM.

    prior : additional count of each row in every component, for columns that are not
    Gaussian. It keeps the probabilities of categories above zero. patterns : those of
    the present entries, if they are known. responsibility : times the weights of the
    rows, (n, K); None is that of the model.
    """
    given = density.given(X, ~X.isnan(), patterns)
    if responsibility is None:
        responsibility = given.log_responsibility.exp() * weight[:, None]
    entry_weight = _entry_weights(density, X, responsibility + prior * weight[:, None])
    return _weighted_statistics(
        density, X, given, responsibility, None, entry_weight, entry_weight.sum(0),
        given.joint.logsumexp(1), weight,
    )  # fmt: skip


def _entry_weights(density, X, row_weight):
    """Return the weights of the entries that are not Gaussian, (n, K, d - g).

    row_weight : weights of the rows in the components, (n, K).
    """
    is_present = ~X[:, density.layout.others].isnan()
    return row_weight[..., None] * is_present[:, None].to(X)


def statistics_of_masks(density, X, weight, hidden, inflation, prior=0.0):
    """Return the expected statistics of masked scores, less those of the model.

    Also the scores, (n,).

    hidden : bool, (n, d), True only where an entry is present. inflation : D / |H|,
    (n, 1). prior : as in `statistics_of_rows`.
    """
    present = ~X.isnan()
    given = density.given(X, present & ~hidden)
    entries = density.entry_log_prob(X, given)
    log_responsibility, others = given.log_responsibility, density.layout.others
    joint = log_responsibility[..., None] + entries  # shape: (n, K, d)
    log_prob = torch.where(hidden, joint.logsumexp(1), 0.0)
    value = (inflation * log_prob).sum(1)
    scale = inflation * weight[:, None] * hidden  # shape: (n, d)
    targets = scale[:, None] * joint.softmax(1)
    change = targets.sum(2) - log_responsibility.exp() * scale.sum(1, keepdim=True)
    visible = (present & ~hidden)[:, None, others]
    entry_weight = torch.where(visible, change[..., None], targets[..., others])
    of_prior = prior * weight[:, None].expand_as(change)
    entry_weight = entry_weight + _entry_weights(density, X, of_prior)
    # The information is not a difference: it is of the entries that the model expects.
    expected = density.components.weights * weight[:, None] + of_prior
    counts = _entry_weights(density, X, expected).sum(0)
    statistics = _weighted_statistics(
        density, X, given, change, targets, entry_weight, counts, value, weight
    )
    return statistics, value


def _weighted_statistics(
    density, X, given, responsibility, targets, entry_weight, entry_counts, value,
    weight,
):  # fmt: skip
    """Add up weighted statistics over rows.

    responsibility : weights of the statistics given the observed entries, (n, K).
    targets : weights of the statistics given the observed entries and one hidden entry,
    (n, K, d); None for whole rows. entry_weight, entry_counts : see
    `location_derivatives`.
    """
    gaussian, layout, components = given.gaussian, density.layout, density.components
    first, second = gaussian.moments(responsibility)
    if targets is not None:
        numbers = torch.nan_to_num(X[:, layout.gaussian])
        more = gaussian.target_moments(targets[..., layout.gaussian], numbers)
        first, second = first + more[0], second + more[1]
    derivatives = (torch.zeros_like(components.locations),) * 2
    if layout.likelihood is not None:
        derivatives = location_derivatives(density, X, entry_weight, entry_counts)
    return SufficientStatistics(
        weight @ value, responsibility.sum(0), first, second, *derivatives
    )


def location_derivatives(density, X, entry_weight, entry_counts):
    """Return gradient and information in the locations of columns not Gaussian.

    If values are codes, the weights of the entries of each code are added up first.

    entry_weight : weights of the gradients of entries, (n, K, d - g). entry_counts :
    number of entries of each column and component that inform, (K, d - g).
    """
    layout, components = density.layout, density.components
    likelihood, values = layout.likelihood, torch.nan_to_num(X[:, layout.others])
    if density.codes is not None:
        codes = torch.arange(len(density.codes), device=X.device)
        is_code = (values.T[..., None] == codes).to(X)  # shape: (d - g, n, C)
        entry_weight = (entry_weight.permute(2, 1, 0) @ is_code).permute(2, 1, 0)
        values = density.codes
    of_entries, information = likelihood.derivatives(
        values[:, None], components.locations
    )
    gradient = (likelihood.to_locations(entry_weight) * of_entries).sum(0)
    expected = information.expand(len(values), *components.locations.shape)[0]
    return gradient, likelihood.to_locations(entry_counts) * expected


def m_step(components, statistics, n_rows, size, params, are_differences):
    """Return the components after an M-step on a mix of old and new statistics.

    size : weight of the new statistics; 1 is a full step of EM. params : MStepParams.
    are_differences : whether the statistics are differences from those that the model
    expects: they have noise, so that variances and counts may fall by `MAX_FALL` at
    most. None if the result is no valid mixture.
    """
    component_rows = n_rows * components.weights
    keep = 1.0 if are_differences else 1 - size
    counts = keep * component_rows + size * statistics.counts
    least = 1 - MAX_FALL if are_differences else 0.0
    if not bool((counts > least * component_rows).all()):
        return None
    form, before = params.layout.form, components.covariances
    per_component = counts.unflatten(0, (-1, *[1] * (before.ndim - 1)))
    shift = size * statistics.first / counts[:, None]
    kept = (keep * component_rows).view_as(per_component) * before
    scatter = (size * statistics.second + kept) / per_component - form.outer(shift)
    pooled = form.pool(scatter, counts / counts.sum())
    if are_differences and not form.is_valid(pooled - least * before):
        return None
    covariances, loadings, noise = form.estimate(
        scatter, counts, components.loadings, components.noise, size, params.reg_covar
    )
    if not form.is_valid(covariances):
        return None
    locations = components.locations
    if params.layout.likelihood is not None:
        derivatives = statistics.gradient, statistics.information
        derivatives = with_unseen(derivatives, components, params)
        locations = scoring_step(locations, *derivatives, n_rows, size)
    moved = Components(
        counts / counts.sum(),
        components.means + shift,
        covariances,
        locations,
        loadings,
        noise,
    )
    return moved if moved.is_finite() else None


def gradient_of(components, statistics, n_rows, params):
    """Return the gradient of the objective in `Components.parameters`, per row.

    Steps on it end where `m_step` on differences does: `reg_covar` of params is in it.
    """
    layout, covariances = params.layout, components.covariances
    added = params.reg_covar * n_rows * components.weights[:, None]
    second = statistics.second + layout.form.with_variances(
        added.expand_as(components.means)
    )
    if covariances.ndim == 3:
        root = torch.linalg.cholesky(covariances)
        mean = torch.cholesky_solve(statistics.first[..., None], root)
        half = torch.cholesky_solve(second, root)
        covariance = 0.5 * torch.cholesky_solve(half.mT, root)
    else:
        mean = statistics.first / covariances
        covariance = 0.5 * second / covariances**2
    weights = statistics.counts / components.weights
    derivatives = statistics.gradient, statistics.information
    locations, _ = with_unseen(derivatives, components, params)
    parts = weights, mean, covariance, locations
    return torch.cat([part.flatten() for part in parts]) / n_rows


def with_unseen(derivatives, components, params):
    """Add `UNSEEN_COUNT` observations of each category that no row has.

    derivatives : gradient and information in the locations, (K, l) each.
    """
    if not len(params.unseen):
        return derivatives
    likelihood, values = params.layout.likelihood, params.unseen[:, None]
    weight = UNSEEN_COUNT * ~values.isnan() * components.weights[:, None]
    weight = likelihood.to_locations(weight)  # shape: (r, K, l)
    more = likelihood.derivatives(values.nan_to_num(), components.locations)
    return [a + (weight * b).sum(0) for a, b in zip(derivatives, more, strict=True)]


def scoring_step(locations, gradient, information, n_rows, size=1.0):
    """Return the locations after a step of Fisher scoring, of at most 1 each."""
    step = gradient / (information + MIN_INFORMATION * n_rows)
    return locations + size * step.clamp(-1.0, 1.0)
