"""How the linear model of binary features is trained: MPT, ELBO, LML.

Nodes are placed without a gradient and weighted with one: moving a node does not change
the integral it stands for.
"""

import torch
from torch.nn.functional import logsigmoid

from sklearn_mpt._latent.integration import log_joint, rows_of
from sklearn_mpt._latent.objectives import LatentVariableModel
from sklearn_mpt._latent.posterior import gaussian_around, precision_root_of
from sklearn_mpt._linear.bernoulli import Bernoulli, laplace, signs


class BernoulliModel(LatentVariableModel):
    """The linear model of binary features as a torch module.

    Parameters
    ----------
    components : Tensor of shape (k, d)
    intercept : Tensor of shape (d,)
    varies : bool Tensor of shape (d,)
        Features that are not constant: the others keep their parameters.
    rule : object
        Places nodes (see `_nodes`).
    grid : tuple of Tensors
        One-dimensional nodes and log weights, for `evidence_lower_bound`.
    """

    def __init__(self, components, intercept, varies, rule, grid):
        super().__init__()
        self.components = torch.nn.Parameter(components)
        self.intercept = torch.nn.Parameter(intercept)
        for parameter in self.parameters():
            parameter.register_hook(lambda grad: grad * varies)
        self.rule = rule
        self.grid = grid
        self._n_placed = 0

    @property
    def parameters_now(self):
        return Bernoulli(self.components, self.intercept)

    @torch.no_grad()
    def _place(self, rows):
        """Nodes around the posterior of each row; each call takes the next group."""
        group = self.rule.groups[self._n_placed % len(self.rule.groups)]
        self._n_placed += 1
        return self.rule.place(group, [laplace(rows, self.parameters_now, tol=1e-3)])

    def leave_one_out_log_prob(self, X, mask):
        rows = rows_of(X, mask)
        log_prob = LeaveOneOut.apply(*self.parameters_now, rows, self._place(rows))
        return torch.where(rows.present, log_prob, 0.0)

    def conditional_log_prob(self, X, mask):
        return torch.where(mask, self.leave_one_out_log_prob(X, mask), 0.0)

    def log_prob(self, X):
        rows = rows_of(X)
        joint = log_joint(rows, self._place(rows), self.parameters_now)
        return torch.logsumexp(joint, 1)

    def evidence_lower_bound(self, X):
        rows, parameters = rows_of(X), self.parameters_now
        with torch.no_grad():
            posterior = variational_posterior(rows, parameters, self.grid)
        return evidence_lower_bound(rows, posterior, parameters, self.grid)


class LeaveOneOut(torch.autograd.Function):
    r"""log p(x_j | x_R without x_j) for every j, at fixed nodes of the posterior on R.

    With r_s the posterior weight of node s, it is :math:`\log \sum_s r_s p_{js}` where
    j is hidden and :math:`-\log \sum_s r_s / p_{js}` where it is observed. The gradient
    is written out: the graph would keep a dozen tensors over rows, nodes and features.

    References
    ----------
    The second sum is the conditional predictive ordinate of S. Geisser and W. F. Eddy,
    "A predictive approach to model selection", JASA 74, 1979.
    """

    @staticmethod
    def forward(ctx, components, intercept, rows, nodes):
        logits = Bernoulli(components, intercept).logits(nodes.z)
        prob = torch.sigmoid(signs(rows.X)[:, None] * logits)
        prob = prob.clamp_(min=1e-300)  # so that its inverse is finite
        observed = rows.observed.to(prob.dtype)
        joint = nodes.log_weight + (prob.log() @ observed[..., None])[..., 0]
        r = torch.softmax(joint, 1)
        ratio = torch.where(rows.observed[:, None], 1 / prob, prob)
        average = (r[:, None] @ ratio)[:, 0]
        ctx.rows, ctx.z = rows, nodes.z
        ctx.save_for_backward(prob, ratio, average, r)
        return average.log() * (1 - 2 * observed)

    @staticmethod
    def backward(ctx, grad):
        prob, ratio, average, r = ctx.saved_tensors
        observed = ctx.rows.observed.to(prob.dtype)
        grad = torch.where(ctx.rows.present, grad, 0.0)
        gain = grad * (1 - 2 * observed)
        through_r = (ratio @ (gain / average)[..., None])[..., 0] - gain.sum(
            1, keepdim=True
        )
        log_prob_grad = ratio * (grad / average)[:, None]
        log_prob_grad += through_r[..., None] * observed[:, None]
        logit_grad = log_prob_grad * (1 - prob) * r[..., None]
        logit_grad *= signs(ctx.rows.X)[:, None]
        logit_grad = logit_grad.flatten(0, 1)
        return ctx.z.flatten(0, 1).T @ logit_grad, logit_grad.sum(0), None, None


def variational_posterior(rows, parameters, points, n_steps=4):
    """The Gaussian that maximises the evidence lower bound of each row.

    Newton's method on the expected log joint, from the Laplace approximation; the
    expectations of a logit are sums over `points`, a one-dimensional grid.
    """
    W = parameters.components
    observed = rows.observed.to(W.dtype)
    posterior = laplace(rows, parameters)
    for _ in range(n_steps):
        miss, weight = _expected_misses(rows, posterior, parameters, points)
        slope = (miss @ weight) * signs(rows.X)
        curvature = (miss * (1 - miss)) @ weight
        gradient = (observed * slope) @ W.T - posterior.mean
        precision_root = precision_root_of(observed * curvature, W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        posterior = gaussian_around(posterior.mean + step, precision_root)
    return posterior


def _logit_points(posterior, parameters, points):
    """Values of the logits under the posterior, at the points; (n, d, t)."""
    u, log_weight = points
    mean = parameters.logits(posterior.mean)
    variance = ((posterior.root @ parameters.components) ** 2).sum(1)
    # the square root has no gradient at zero
    std = variance.clamp(min=1e-20).sqrt()
    return mean[..., None] + std[..., None] * u[:, 0], log_weight.exp()


def _expected_misses(rows, posterior, parameters, points):
    logits, weight = _logit_points(posterior, parameters, points)
    return torch.sigmoid(-signs(rows.X)[..., None] * logits), weight


def evidence_lower_bound(rows, posterior, parameters, points):
    """E_q log p(x | z) - KL(q, prior) of each row, of shape (n,)."""
    logits, weight = _logit_points(posterior, parameters, points)
    log_likelihood = logsigmoid(signs(rows.X)[..., None] * logits) @ weight
    log_likelihood = torch.where(rows.observed, log_likelihood, 0.0).sum(1)
    trace = (posterior.root**2).sum((1, 2)) + (posterior.mean**2).sum(1)
    log_det = 2 * posterior.root.diagonal(dim1=1, dim2=2).log().sum(1)
    return log_likelihood - 0.5 * (trace - posterior.mean.shape[1] - log_det)
