"""How a linear model that is integrated over z is trained: MPT, ELBO, LML.

Nodes are placed without a gradient and weighted with one: moving a node does not change
the integral it stands for.
"""

import itertools

import torch

from sklearn_mpt._latent.integration import log_joint, rows_of
from sklearn_mpt._latent.objectives import LMLRows, MaskedRows
from sklearn_mpt._latent.posterior import gaussian_around, precision_root_of
from sklearn_mpt._linear.map import LinearMap, laplace
from sklearn_mpt._measure.contract import masked_score


class LinearModule(torch.nn.Module):
    """A linear map from z to locations, with parameters that are trained.

    Parameters
    ----------
    latent : LinearMap
        Where training starts.
    varies : Tensor of shape (d,)
        1.0 for features that are not constant, 0.0 for others, which keep their
        parameters.
    rule : object
        Places nodes (see `rules`); objectives say which group of them.
    """

    def __init__(self, latent, varies, rule):
        super().__init__()
        self.components = torch.nn.Parameter(latent.components)
        self.intercept = torch.nn.Parameter(latent.intercept)
        for parameter in self.parameters():
            parameter.register_hook(lambda grad: grad * varies)
        self.likelihood = latent.likelihood
        self.rule = rule

    @property
    def latent(self):
        return LinearMap(self.components, self.intercept, self.likelihood)

    @torch.no_grad()
    def place(self, rows, turn):
        """Nodes around the posterior of each row; every turn has another group."""
        group = self.rule.groups[turn % len(self.rule.groups)]
        return self.rule.place(group, [laplace(rows, self.latent, tol=1e-3)])

    def leave_one_out_log_prob(self, X, mask, turn=0):
        rows = rows_of(X, mask)
        log_prob = LeaveOneOut.apply(
            self.components, self.intercept, rows, self.place(rows, turn)
        )
        return torch.where(rows.present, log_prob, 0.0)

    def log_prob(self, X, turn=0):
        rows = rows_of(X)
        joint = log_joint(rows, self.place(rows, turn), self.latent)
        return torch.logsumexp(joint, 1)


class MaskedTurns(MaskedRows):
    """Minus D times the masked score, over minibatches of rows, by turns of nodes."""

    def __init__(self, *args):
        super().__init__(*args)
        self._turns = itertools.count()

    def batches(self, rng):
        for batch in super().batches(rng):
            yield *batch, next(self._turns)

    def losses(self, module, batch):
        X, mask, turn = batch
        log_prob = module.leave_one_out_log_prob(X, mask, turn)
        hidden = torch.where(mask, log_prob, 0.0)
        return -X.shape[1] * masked_score(hidden, mask)


class LeaveOneOutTurns(MaskedTurns):
    r"""Minus an unbiased estimate of the log marginal likelihood, by uniform masks.

    Every feature is a target, given the others that are seen: with sets R of uniform
    size in 0..D,

    .. math:: \log p(x) = E_R \sum_{j=1}^D \log p(x_j \mid x_{R \setminus j}),

    since R without j is a set of uniform size among the D - 1 others. It has the
    expectation of the masked score and a far smaller variance: no small set of targets
    stands for all. Masks are thus drawn with sizes from 0.
    """

    def losses(self, module, batch):
        return -module.leave_one_out_log_prob(*batch).sum(1)


class LMLTurns(LMLRows):
    """Minus the log marginal likelihood of minibatches of rows, by turns of nodes."""

    def __init__(self, X, batch_size):
        super().__init__(X, batch_size, LinearModule.log_prob)
        self._turns = itertools.count()

    def batches(self, rng):
        for batch in super().batches(rng):
            yield batch, next(self._turns)

    def losses(self, module, batch):
        return -self.log_prob(module, *batch)


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
        logits = nodes.z @ components + intercept
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


def signs(X):
    """1.0 for one, -1.0 for zero."""
    return 2 * X - 1


class BoundRows(LMLRows):
    """Minus the evidence lower bound, with the best Gaussian posterior of each row.

    grid : tuple of Tensors
        One-dimensional nodes and their log weights.
    """

    def __init__(self, X, batch_size, grid):
        super().__init__(X, batch_size, self.bound)
        self.grid = grid

    def bound(self, module, X):
        rows = rows_of(X)
        with torch.no_grad():
            posterior = variational_posterior(rows, module.latent, self.grid)
        return evidence_lower_bound(rows, posterior, module.latent, self.grid)


def variational_posterior(rows, latent, grid, n_steps=4):
    """The Gaussian that maximises the evidence lower bound of each row.

    Newton's method on the expected log joint, from the Laplace approximation; the
    expectations of a location are sums over a one-dimensional grid.
    """
    W, weight = latent.components, grid[1].exp()
    observed = rows.observed.to(W.dtype)
    posterior = laplace(rows, latent)
    for _ in range(n_steps):
        points = _location_points(posterior, latent, grid)
        slope, information = latent.likelihood.derivatives(rows.X[..., None], points)
        gradient = (observed * (slope @ weight)) @ W.T - posterior.mean
        precision_root = precision_root_of(observed * (information @ weight), W)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        posterior = gaussian_around(posterior.mean + step, precision_root)
    return posterior


def _location_points(posterior, latent, grid):
    """Values of the locations under the posterior, at the points; (n, d, t)."""
    mean = latent.location(posterior.mean)
    variance = ((posterior.root @ latent.components) ** 2).sum(1)
    # the square root has no gradient at zero
    std = variance.clamp(min=1e-20).sqrt()
    return mean[..., None] + std[..., None] * grid[0][:, 0]


def evidence_lower_bound(rows, posterior, latent, grid):
    """E_q log p(x | z) - KL(q, prior) of each row, of shape (n,)."""
    points = _location_points(posterior, latent, grid)
    log_prob = latent.likelihood.entry_log_prob(rows.X[..., None], points)
    expected = torch.where(rows.observed, log_prob @ grid[1].exp(), 0.0).sum(1)
    trace = (posterior.root**2).sum((1, 2)) + (posterior.mean**2).sum(1)
    log_det = 2 * posterior.root.diagonal(dim1=1, dim2=2).log().sum(1)
    return expected - 0.5 * (trace - posterior.mean.shape[1] - log_det)
