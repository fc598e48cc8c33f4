r"""The density of a fitted item response model, and abilities of people.

In up to three dimensions all rows share the nodes of one grid over the population;
otherwise each has quasi-random points around its posterior, as in linear models.
"""

import math
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._base.density import Units, torch_modes
from sklearn_mpt._latent.density import IntegratedDensity
from sklearn_mpt._latent.grids import WIDE_RADIUS, PopulationGrid, PriorGrid
from sklearn_mpt._latent.integrals import (
    IMPORTANCE_POINTS,
    TOLERANCE,
    Accuracy,
    importance,
    integrate_average,
    log_joint,
    refine_rows,
    rows_of,
)
from sklearn_mpt._latent.linear_map import shared_steps
from sklearn_mpt._latent.modes import LogJoint, climb
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS, Nodes, normal_nodes
from sklearn_mpt._matrices import drawn_codes, median_codes
from sklearn_mpt._numbers import FLOAT_BYTES, ROUNDING


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


class ItemDensity(IntegratedDensity):
    """Items with given parameters, and the distribution of z.

    Parameters
    ----------
    items : Items
    flat : Tensor of shape (p,)
        Parameters of the items. With many dimensions z is standard normal.
    population : Population
    group_weight : Tensor of shape (g,)
        Proportion of each group.
    root : Tensor of shape (k, k)
        The matrix F: z F are the abilities in the coordinates of users.
    seed : tuple of int
        Of quasi-random points.

    Attributes
    ----------
    z, log_weight, prob : Tensors of shapes (s, k), (s,) and (d, c, s)
        Nodes over the population, and probabilities of answers there.
    """

    def __init__(self, items, flat, population, group_weight, root, seed):
        joint, n_dims = items.joint(flat), items.n_dims
        self.items, self.root = items, root
        self.population, self.group_weight = population, group_weight
        if n_dims > MAX_GRID_DIMS:
            # averages over the population have errors of probabilities below 1e-3
            self.z, self.log_weight = normal_nodes(2**12, n_dims, [0], flat)
            scoring = importance(IMPORTANCE_POINTS, n_dims, flat.device, seed)
        else:
            # over the standard deviation of the narrowest posterior, in one, two and
            # three dimensions: relative errors are at most 2e-6
            spacing = (0.7, 0.9, 1.2)[n_dims - 1]
            steps = shared_steps(joint, spacing, items.codes(flat), population)
            self.grid, self.log_weight = self._over_population(steps)
            self.z, rule = self.grid.z, PopulationGrid(self.grid, self.log_weight)
            scoring = Accuracy(lambda: iter([rule]), TOLERANCE, len(self.z), True)
        units = Units(flat.new_zeros(()), flat.new_ones(()))
        super().__init__(joint, units, scoring, scoring, seed)
        self.prob = items.prob(joint, self.z)

    @property
    def row_bytes(self):
        if not self.scoring.is_quadrature:
            return super().row_bytes
        n_answers = len(self.items) * self.items.max_categories
        return FLOAT_BYTES * 4 * (len(self.z) + n_answers)  # as rows share nodes

    def _over_population(self, steps):
        """Return a grid, and the log weights of its nodes, (s,)."""
        grid = PriorGrid.over(self.population, steps, WIDE_RADIUS)
        log_weight = grid.log_weight(self.population)
        return grid, (self.group_weight.log()[:, None] + log_weight).logsumexp(0)

    def marginal_reliability(self):
        """Return the reliability of each ability in the population; (k,)."""
        z, weights = self.z, self.log_weight.exp()
        centred = z - weights @ z
        prior = torch.einsum("s,sk,sl->kl", weights, centred, centred)
        slopes = self.items.slopes_in_z(self.joint, z)
        information = torch.einsum("dcs,kdcs,ldcs->skl", self.prob, slopes, slopes)
        posterior = torch.linalg.inv(information + torch.linalg.inv(prior))
        error = self.root.T @ torch.einsum("s,skl->kl", weights, posterior) @ self.root
        return 1 - error.diagonal() / (self.root.T @ prior @ self.root).diagonal()

    def information_of_items(self, theta):
        """Return the Fisher information about abilities (m, k); an array (m, d)."""
        with torch_modes():
            z = self.z_of_abilities(theta)
            slopes = self.items.slopes_in_z(self.joint, z)
            slopes = torch.einsum("mk,kdcs->mdcs", torch.linalg.inv(self.root), slopes)
            prob = self.items.prob(self.joint, z)
            return (prob * slopes**2).sum((0, 2)).T.cpu().numpy()

    def expect(self, X):
        """Return median answers, and the most probable ones of nominal items."""

        def flat_probs(z):  # nodes (..., k)
            prob = self.items.prob(self.joint, z.reshape(-1, z.shape[-1]))
            return prob.flatten(0, 1).T.reshape(*z.shape[:-1], -1)

        function = partial(integrate_average, flat_probs)
        probs, *_ = refine_rows(function, self._rows(X), self.scoring, self.joint)
        probs = probs.unflatten(1, self.prob.shape[:2]).clamp(min=0)  # (n, d, c)
        probs /= probs.sum(2, keepdim=True)
        is_nominal = torch.from_numpy(np.array(self.items.names) == "nominal")
        medians, is_nominal = median_codes(probs), is_nominal.to(X.device)
        return torch.where(is_nominal, probs.argmax(2), medians).to(X)

    def decode(self, Z):
        """Return expected answers, as numbers, given abilities."""
        prob = self.items.prob(self.joint, self.z_of_abilities(Z))
        codes = torch.arange(prob.shape[1], device=prob.device).to(prob)
        return torch.einsum("dcs,c->sd", prob, codes)

    def prob_of_abilities(self, theta):
        """Return probabilities of all answers, given abilities; an array (n, d, c)."""
        with torch_modes():
            prob = self.items.prob(self.joint, self.z_of_abilities(theta))
            return prob.permute(2, 0, 1).cpu().numpy()

    def z_of_abilities(self, theta):
        """Return the z that belong to abilities; (n, k)."""
        return torch.linalg.solve(self.root, theta, left=False)

    def latent_mean(self, X):
        return super().latent_mean(X) @ self.root

    def latent_moments(self, X):
        mean, covariance = super().latent_moments(X)
        return mean @ self.root, self.root.T @ covariance @ self.root

    def draw_abilities(self, X, rng, n_draws):
        """Draw abilities given the answers; (n, n_draws, k)."""
        rows = self._rows(X)
        if not self.scoring.is_quadrature:
            rows = rows._replace(posteriors=self.joint.propose(rows))
        draws = [self._draw_latent(rows, rng) for _ in range(n_draws)]
        return torch.stack(draws, 1) @ self.root

    def _draw_latent(self, rows, rng):
        if not self.scoring.is_quadrature:
            return super()._draw_latent(rows, rng)
        # A node is drawn by its weight, and then a uniform point in the cell around it.
        grid, log_weight = self._fine_grid
        joint = log_joint(rows, Nodes(grid.z, log_weight), self.joint)
        chosen = drawn_codes(
            joint.softmax(1), joint.new_tensor(rng.random((len(joint), 1)))
        )
        cell = rng.random((len(joint), self.joint.n_dims)) - 0.5
        return grid.z[chosen] + joint.new_tensor(cell * grid.steps)

    @cached_property
    def _fine_grid(self):
        """The nodes from which z is drawn, four times as fine as those of integrals."""
        # Draws are uniform in the cell of a node, which adds a twelfth of the squared
        # spacing to their variance: less than 1% of that of a posterior, unless there
        # would be more than 2**14 nodes.
        max_per_dim = (2**14 / len(self.z)) ** (1 / self.joint.n_dims)
        factor = max(1.0, min(4.0, max_per_dim))
        return self._over_population([h / factor for h in self.grid.steps])


def moments(density, X):
    """Return means and covariances of posteriors of rows; (n, 1 + k, k)."""
    mean, covariance = density.latent_moments(X)
    return torch.cat([mean[:, None], covariance], 1)


def posterior_modes(density, X):
    """Return modes of the posteriors of rows, and standard errors; (n, 2, k)."""
    population, log_share = density.population, density.group_weight.log()[:, None]

    def log_prior(z):
        return (population.log_density(z) + log_share).logsumexp(0)

    return _modes(density, X, log_prior)


def likelihood_modes(density, X, *, max_error=1000):
    """Return modes of the likelihoods of rows, and standard errors; (n, 2, k)."""
    # NaN without answers. max_error : the likelihood has no maximum in a direction with
    # a larger one.
    result = X.new_full((len(X), 2, density.joint.n_dims), torch.nan)
    answered = ~X.isnan().all(1)
    X, n_dims = X[answered], density.joint.n_dims
    start = density.z_of_abilities(density.latent_mean(X)) if n_dims > 1 else None
    result[answered] = _modes(
        density, X, lambda z: torch.zeros_like(z[:, 0]), start, max_error**-2
    )
    return result


MODES = {"map": posterior_modes, "ml": likelihood_modes}
METHODS = ("eap", *MODES, "plausible")


def _modes(density, X, log_prior, start=None, min_curvature=-math.inf):
    """Return modes of likelihood times prior, and standard errors; (n, 2, k)."""
    # start : (n, k); None is the best of the nodes over the population. min_curvature :
    # where minus the Hessian has no larger one there is no maximum, and modes are
    # infinite.
    joint, rows = density.joint, rows_of(X)
    if start is None:
        observed = rows.observed.to(X.dtype)
        log_prob = joint.pair_log_prob(rows.X * observed, observed, density.z)
        start = density.z[(log_prob + log_prior(density.z)).argmax(1)]

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

    z, _, curvature = climb(log_joint, start, tol=ROUNDING)
    values, vectors = torch.linalg.eigh(curvature)
    axes = vectors.mT @ density.root  # in the coordinates of users
    is_flat = values <= min_curvature
    values = torch.where(values > 0, values, math.nan)  # of a mode that is no maximum
    variances = 1 / torch.where(is_flat, math.inf, values)
    error = (variances[..., None] * axes**2).sum(1).sqrt()
    found = torch.stack([z @ density.root, error], 1)
    is_along = axes.abs() > 1e-3  # of rounding are smaller
    is_infinite = (is_flat[..., None] & is_along).any(1)[:, None]
    infinite = math.inf * found.sign()
    infinite[:, 1] = math.inf
    return torch.where(is_infinite, infinite, found)
