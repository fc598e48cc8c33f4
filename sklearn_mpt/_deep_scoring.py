"""How a deep model is scored: importance sampling in double precision.

Each row has its own points, from its approximate posterior and the prior; the standard
normal points behind them are the same for all rows.
"""

import functools
from typing import NamedTuple

import torch

from sklearn_mpt._deep_posterior import (
    PosteriorMixture,
    laplace,
    mixture_nodes,
)
from sklearn_mpt._nodes import refine

# In each replicate. Rows share the points: their errors do not average out.
POINTS = [2**power for power in range(6, 10)]
CONDITIONAL_POINTS = [2**power for power in range(5, 8)]
TOLERANCE = 0.02  # nats, or units of z or of standardised features
BLOCK_BYTES = 2**25  # of one tensor over rows, points and features


class Rows(NamedTuple):
    """Standardised rows, and what is seen of them."""

    X: torch.Tensor  # shape: (n, d), 0.0 if missing
    present: torch.Tensor  # shape: (n, d), bool
    observed: torch.Tensor  # shape: (n, d), bool: present and not hidden

    def take(self, index):
        return Rows(*(tensor[index] for tensor in self))


def rows_of(X, mask=None):
    """Return the rows X, of shape (n, d), with the entries of the mask hidden."""
    present = ~torch.isnan(X)
    observed = present if mask is None else present & ~mask
    return Rows(torch.nan_to_num(X), present, observed)


def blocks(z, rows):
    """Split the points so that a tensor over rows, points and features fits."""
    return z.split(max(1, BLOCK_BYTES // (8 * rows.X.numel())), 1)


def log_joint(rows, nodes, model):
    """Log of each point's share of p(observed entries), of shape (n, s)."""
    observed = rows.observed.to(rows.X.dtype)[..., None]
    log_prob = model.likelihood.log_prob
    shares = [
        (log_prob(rows.X[:, None], model.decoder(z)) @ observed)[..., 0]
        for z in blocks(nodes.z, rows)
    ]
    return nodes.log_weight + torch.cat(shares, 1)


def propose(rows, model):
    """The Gaussians of each row around which points are placed.

    The encoder's, and that around the mode nearest to its mean.
    """
    encoded = model.encoder(rows.X, rows.observed)
    return encoded, laplace(rows, encoded.mean, model)


def log_prob(rows, rule, model):
    """Log density of what is observed, and its standard error; (n,) each."""
    posteriors = propose(rows, model)
    logs = [
        torch.logsumexp(log_joint(rows, rule.place(group, posteriors), model), 1)
        for group in rule.groups
    ]
    return rule.combine_logs(torch.stack(logs))


def posterior_average(function, rows, rule, model):
    """E f(z) given what is observed, and its standard error; (n, p) each.

    function : from points (n, s, k) to values (n, s, p).
    """
    posteriors = propose(rows, model)
    logs, averages = [], []
    for group in rule.groups:
        nodes = rule.place(group, posteriors)
        joint = log_joint(rows, nodes, model)
        logs.append(torch.logsumexp(joint, 1))
        averages.append(_average(function, rows, nodes.z, torch.softmax(joint, 1)))
    return rule.combine(torch.stack(averages), torch.stack(logs))


def _average(function, rows, z, weight):
    parts = blocks(z, rows)
    weights = weight.split(parts[0].shape[1], 1)
    return sum(
        (w[:, None] @ function(part))[:, 0]
        for part, w in zip(parts, weights, strict=True)
    )


def conditional_log_prob(rows, rule, model):
    """log p(x_j | observed) of present entries that are hidden, and its error."""

    def density(z):
        return model.likelihood.log_prob(rows.X[:, None], model.decoder(z)).exp()

    average, error = posterior_average(density, rows, rule, model)
    average = average.clamp(min=torch.finfo(average.dtype).tiny)
    hidden = rows.present & ~rows.observed
    return (
        torch.where(hidden, average.log(), 0.0),
        torch.where(hidden, error / average, 0.0),
    )


def estimate(function, rows, model, seed, points=POINTS):
    """Refine a function of rows, rule and model until each value is accurate enough."""
    n_dims, device = model.encoder.precision.shape[0], rows.X.device
    rules = (mixture(n_points, n_dims, device, seed) for n_points in points)
    return refine(
        lambda rule, which: function(rows.take(which), rule, model), rules, TOLERANCE
    )


def draw_latent(rows, model, normal, uniform):
    """Draw z given what is observed, by importance resampling.

    normal : shape (n, s, k); uniform : shape (n, 1).
    """
    n_near = 4 * normal.shape[1] // 9
    parts = normal.tensor_split([n_near, 2 * n_near], 1)
    nodes = mixture_nodes(parts, propose(rows, model))
    weight = torch.softmax(log_joint(rows, nodes, model), 1)
    chosen = (weight.cumsum(1) < uniform).sum(1).clamp(max=weight.shape[1] - 1)
    return nodes.z[torch.arange(len(chosen), device=chosen.device), chosen]


mixture = functools.lru_cache(maxsize=16)(PosteriorMixture)
