r"""The maths of a linear model of binary features, on tensors.

Feature j is 1 with probability :math:`\sigma(z^\top w_j + b_j)`, z standard normal. The
posterior of z given observed features is strictly log-concave; integrals over it are
sums over nodes placed around its mode (see `_nodes`). An entry x enters through
:math:`\log p(x \mid z) = \log \sigma(\pm (z^\top w + b))`, the sign being that of
2x - 1. O(n s d k) for s nodes.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from sklearn_mpt._nodes import Posterior

BLOCK_BYTES = 2**25  # of one tensor over rows, nodes and features


class Bernoulli(NamedTuple):
    """Parameters of the model."""

    components: torch.Tensor  # shape: (k, d)
    intercept: torch.Tensor  # shape: (d,)

    def logits(self, z):
        return z @ self.components + self.intercept


class Rows(NamedTuple):
    """Binary rows, and what is seen of them."""

    sign: torch.Tensor  # shape: (n, d): 1.0 for one, -1.0 for zero, either if missing
    present: torch.Tensor  # shape: (n, d), bool
    observed: torch.Tensor  # shape: (n, d), bool: present and not hidden

    def take(self, index):
        return Rows(*(tensor[index] for tensor in self))


def rows_of(X, mask=None):
    """Return the rows X, of shape (n, d), with the entries of the mask hidden."""
    present = ~torch.isnan(X)
    observed = present if mask is None else present & ~mask
    return Rows(torch.where(X == 1, 1.0, -1.0).to(X.dtype), present, observed)


def laplace(rows, parameters, max_iter=100, tol=1e-9):
    r"""Mode and curvature of the posterior of z given what is observed, by Newton.

    A step that changes the logits by at most d is shortened to the share
    :math:`\log(1 + d) / d`, which makes every step an ascent [1]_. Rows at rest stay
    where they are, whatever the others need.

    References
    ----------
    .. [1] T. Sun and Q. Tran-Dinh, "Generalized self-concordant functions: a recipe for
       Newton-type methods", Mathematical Programming 178, 2019.
    """
    W = parameters.components
    z = W.new_zeros(len(rows.sign), len(W))
    observed = rows.observed.to(W.dtype)
    for _ in range(max_iter):
        # 1 - p(x | z), signed, is the gradient with respect to the logits
        miss = torch.sigmoid(-rows.sign * parameters.logits(z))
        gradient = (observed * rows.sign * miss) @ W.T - z
        precision_root = precision_root_of(observed * miss * (1 - miss), W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        change = ((step @ W).abs() * observed).amax(1, keepdim=True).clamp(min=1e-12)
        moving = step.abs().amax(1, keepdim=True) > tol
        z = z + torch.where(moving, step * torch.log1p(change) / change, 0.0)
        if not moving.any():
            break
    return gaussian_around(z, precision_root)


def precision_root_of(curvature, W):
    """Cholesky factors of I + sum_j c_j w_j w_j', of shape (n, k, k)."""
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    outer = (W[:, None] * W[None]).flatten(0, 1)
    return torch.linalg.cholesky(eye + (curvature @ outer.T).unflatten(1, eye.shape))


def gaussian_around(mean, precision_root):
    eye = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
    root = torch.linalg.solve_triangular(precision_root, eye, upper=False)
    return Posterior(mean, root, precision_root)


def log_joint(rows, nodes, parameters):
    """Log of each node's share of p(observed entries), of shape (n, s)."""
    observed = rows.observed.to(rows.sign.dtype)[..., None]
    blocks = [
        (logsigmoid(rows.sign[:, None] * parameters.logits(z)) @ observed)[..., 0]
        for z in _blocks(nodes.z, rows)
    ]
    return nodes.log_weight + torch.cat(blocks, 1)


def _blocks(z, rows):
    """Split the nodes so that a tensor over rows, nodes and features fits."""
    return z.split(max(1, BLOCK_BYTES // (8 * rows.sign.numel())), 1)


def log_prob(rows, rule, parameters):
    """Log probability of what is observed, and its error; (n,) each."""
    posterior = laplace(rows, parameters)
    logs = [
        torch.logsumexp(log_joint(rows, rule.place(g, posterior), parameters), 1)
        for g in rule.groups
    ]
    return rule.combine_logs(torch.stack(logs))


def posterior_average(function, rows, rule, parameters):
    """E f(z) given what is observed, and its error; (n, d) each.

    function : from nodes (n, s, k) to values (n, s, d).
    """
    posterior = laplace(rows, parameters)
    logs, averages = [], []
    for group in rule.groups:
        nodes = rule.place(group, posterior)
        joint = log_joint(rows, nodes, parameters)
        logs.append(torch.logsumexp(joint, 1))
        averages.append(_average(function, rows, nodes.z, torch.softmax(joint, 1)))
    return rule.combine(torch.stack(averages), torch.stack(logs))


def _average(function, rows, z, weight):
    blocks = _blocks(z, rows)
    weights = weight.split(blocks[0].shape[1], 1)
    return sum(
        (w[:, None] @ function(z))[:, 0] for z, w in zip(blocks, weights, strict=True)
    )


def conditional_log_prob(rows, rule, parameters):
    """log p(x_j | observed) of present entries that are hidden, and its error."""

    def prob(z):
        return torch.sigmoid(rows.sign[:, None] * parameters.logits(z))

    average, error = posterior_average(prob, rows, rule, parameters)
    average = average.clamp(min=torch.finfo(average.dtype).tiny)
    hidden = rows.present & ~rows.observed
    return (
        torch.where(hidden, average.log(), 0.0),
        torch.where(hidden, error / average, 0.0),
    )
