"""Joint distributions with locations linear in z: posteriors, grids."""

import numpy as np
import torch

from sklearn_mpt._latent.grids import (
    MAX_SPACING,
    WIDE_RADIUS,
    Population,
    coarsen,
    spacings,
)
from sklearn_mpt._latent.integrals import MAX_GRID_NODES
from sklearn_mpt._latent.modes import laplace
from sklearn_mpt._latent.quadrature import (
    MAX_GRID_DIMS,
    Posterior,
    gaussian_around,
    grids,
    normal_nodes,
    row_grid,
    widened,
)
from sklearn_mpt._matrices import log_determinant
from sklearn_mpt._numbers import KEPT_ENTRIES, ROUNDING, TINY
from sklearn_mpt._optim.natural import Point

MODE_TOLERANCE = 1e-4  # accuracy of the mode, in units of z; with it sums are smooth


def append_one(z):
    return torch.cat([z, z.new_ones(*z.shape[:-1], 1)], -1)


class LinearMap:
    """Joint distribution of z and features whose locations are z W + b.

    Parameters
    ----------
    components : Tensor of shape (k, l)
    intercept : Tensor of shape (l,)
    likelihood : Likelihood
        Its log-probability is concave in the location.
    """

    def __init__(self, components, intercept, likelihood):
        self.components = components
        self.intercept = intercept
        self.likelihood = likelihood

    @property
    def n_dims(self):
        return len(self.components)

    @property
    def width(self):
        return max(self.components.shape)

    @property
    def point(self):
        """The parameters, without gradients."""
        coefs = torch.cat([self.components.T, self.intercept[:, None]], 1)
        return Point(coefs, self.likelihood.shape_params.detach().to(coefs))

    def location(self, z):
        return z @ self.components + self.intercept

    def location_and_jacobian(self, z):
        return z @ self.components + self.intercept, self.components

    def entry_log_prob(self, X, z):
        """Return log p(x_j | z) at nodes of each row, (n, s, d)."""
        return self.likelihood.entry_log_prob(X[:, None], self.location(z))

    def pair_log_prob(self, X, observed, z):
        """Return the log-probability of each row at each shared node; (n, s)."""
        # X : shape (n, d), 0.0 where not observed. observed : 1.0 or 0.0, (n, d). z :
        # the nodes, (s, k).
        return self.likelihood.pair_log_prob(X, observed, self.location(z))

    def table(self, codes, z):
        """Return log-probabilities of codes (c, d) at nodes; (d, c, s)."""
        entries = self.likelihood.entry_log_prob(codes[:, None], self.location(z))
        return entries.permute(2, 0, 1).contiguous()

    def scores(self, codes, z):
        """Return derivatives of these in coefficients, and in shape parameters."""
        # Of the codes of the feature of each parameter; (p, c, s) and (g, c, s).
        codes, location = codes[:, None], self.location(z)
        derivative, _ = self.likelihood.derivatives(codes, location)
        shapes = self.likelihood.shape_scores(codes, location)
        coefs = (derivative[..., None] * append_one(z)[:, None]).flatten(-2)
        return coefs.permute(2, 0, 1), shapes.permute(2, 0, 1)

    def propose(self, rows):
        if self.n_dims > MAX_GRID_DIMS:
            return [proposal(rows, self)]
        return [laplace(rows, self)[0]]


def variational_posterior(rows, joint, grid, n_steps=4, start=None):
    """Return the Gaussian that nearly maximises the lower bound of each row."""
    # It is found by Newton's method on the expected log joint density, starting at the
    # Laplace approximation. Expectations are sums over a grid: of each location in one
    # dimension, or of z if features have several locations.
    W, weight = joint.components, grid[1].exp()
    observed = rows.observed.to(W.dtype)
    on_locations = joint.likelihood.to_locations(observed)
    posterior = laplace(rows, joint)[0] if start is None else start
    for _ in range(n_steps):
        points = location_points(posterior, joint, grid)
        derivative, information = joint.likelihood.derivatives(rows.X[:, None], points)
        gradient = (on_locations * (weight @ derivative)) @ W.T - posterior.mean
        precision = joint.likelihood.precision(weight @ information, observed, W)
        precision.diagonal(dim1=1, dim2=2).add_(1)
        precision_root = torch.linalg.cholesky(precision)
        step = torch.cholesky_solve(gradient[..., None], precision_root)[..., 0]
        posterior = gaussian_around(posterior.mean + step, precision_root)
    return posterior


def proposal(rows, joint, n_steps=6):
    """Return the Gaussian from which importance sampling draws."""
    # It is the better, by the evidence lower bound, of the Laplace approximation and
    # the variational posterior, because the curvature at the mode of a steep posterior
    # may not match its width. It is then widened. n_steps : number of Newton steps to
    # the variational posterior.
    grid, peak = bound_grid(joint, [0]), laplace(rows, joint)[0]
    gaussian = variational_posterior(rows, joint, grid, n_steps, peak)
    bounds = [evidence_lower_bound(rows, p, joint, grid) for p in (peak, gaussian)]
    is_better = bounds[1] > bounds[0]
    mean, root, precision_root = (
        torch.where(is_better.reshape(-1, *[1] * (b.ndim - 1)), b, a)
        for a, b in zip(peak, gaussian, strict=True)
    )
    return widened(Posterior(mean, root, precision_root))


def location_points(posterior, joint, grid):
    """Return the locations under the posterior at the nodes of a grid; (n, t, l)."""
    if joint.likelihood.n_locations > 1:
        return joint.location(posterior.mean[:, None] + grid[0] @ posterior.root)
    mean = joint.location(posterior.mean)
    variance = ((posterior.root @ joint.components) ** 2).sum(1)
    # The square root has no finite gradient at zero.
    std = variance.clamp(min=1e-20).sqrt()
    return mean[:, None] + std[:, None] * grid[0]


def evidence_lower_bound(rows, posterior, joint, grid):
    """Return E_q log p(x | z) - KL(q, prior) of each row, (n,)."""
    points = location_points(posterior, joint, grid)
    log_prob = joint.likelihood.entry_log_prob(rows.X[:, None], points)
    expected = torch.where(rows.observed, grid[1].exp() @ log_prob, 0.0).sum(1)
    trace = (posterior.root**2).sum((1, 2)) + (posterior.mean**2).sum(1)
    log_det = log_determinant(posterior.root)
    return expected - 0.5 * (trace - posterior.mean.shape[1] - log_det)


def bound_grid(joint, seed, n_nodes=7, n_points=256):
    """Return nodes of the standard normal, and log weights, for `location_points`."""
    # n_nodes : number of nodes for locations, which are one-dimensional. n_points :
    # number of quasi-random points of z in many dimensions.
    device = joint.components.device
    if joint.likelihood.n_locations == 1:
        return grids((n_nodes,), 1, device).groups[0]
    if joint.n_dims <= MAX_GRID_DIMS:
        return grids((row_grid(joint.n_dims),), joint.n_dims, device).groups[0]
    return normal_nodes(n_points, joint.n_dims, seed, joint.components)


def spacing(joint, ratio, values=None):
    """Return the spacing of a prior grid that resolves every posterior; (k,)."""
    # values : entries (v, d) at which the information is computed; None is what is
    # expected at each node. ratio : spacing in standard deviations of the narrowest
    # posterior.
    return spacings(max_precision(joint, values), ratio, MAX_SPACING).tolist()


def shared_steps(joint, ratio, values, population, min_per_dim=31):
    """Return spacings that resolve all posteriors, or the finest that memory allows."""
    # min_per_dim : nodes in each dimension even if their table does not fit the memory
    # that is otherwise used: their spacing is 0.42 standard deviations of z.
    # A logistic curve of slope a has poles at a distance of pi / a from the real line,
    # so the spacing is at most a ratio times 1 / a, beside that of Gaussian posteriors.
    # values : codes of entries, (c, d).
    n_dims = joint.n_dims
    steepest = joint.components.abs().amax(1).clamp(min=TINY)
    widest = MAX_SPACING * population.deviation.amin(0)
    precision = max_precision(joint, values, population=population)
    steps = spacings(precision, ratio, torch.minimum(widest, ratio / steepest))
    n_fitting = KEPT_ENTRIES // values.numel()
    max_nodes = max(min(MAX_GRID_NODES, n_fitting), min_per_dim**n_dims)
    return coarsen(steps.tolist(), max_nodes, population.ellipsoid(WIDE_RADIUS)[1])


def max_precision(joint, values=None, core=3.0, n_cells=12, population=None):
    """Return a bound of the precision of posteriors in each dimension; (k,)."""
    # values : entries (v, d) at which the information is computed; None is what is
    # expected at each node. core : radius within which the grid must be fine enough, in
    # standard deviations of z. n_cells : number of cells across the core, in each of
    # which the information is bounded. population : None is the standard normal.
    if population is None:
        population = Population.standard(joint.n_dims, joint.components)
    centre, radii = map(joint.components.new_tensor, population.ellipsoid(core))
    axis = torch.from_numpy(np.linspace(-1, 1, n_cells + 1))
    unit = torch.cartesian_prod(*[axis] * joint.n_dims).reshape(-1, joint.n_dims)
    unit = unit[(unit**2).sum(1) <= 1 + ROUNDING].to(joint.components)
    z, radius = centre + radii * unit, radii / n_cells
    # within an interval of locations it is largest at an end, or nearest 0
    location = joint.location(z)
    location_radius = radius @ joint.components.abs()
    min_location = location - location.clamp(-location_radius, location_radius)
    ends = torch.stack(
        [min_location, location - location_radius, location + location_radius]
    )
    likelihood = joint.likelihood
    if values is None:
        values = likelihood.fill(likelihood.mean(ends))[None]
    else:
        values = values[:, None, None]
    derivative, information = likelihood.derivatives(values, ends)
    information = information.expand_as(derivative).amax((0, 1))  # shape: (n, d)
    prior = population.deviation.amin(0) ** -2
    return prior + (information @ (joint.components**2).T).amax(0)
