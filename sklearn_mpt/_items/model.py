"""Items, parameters, population and density, made from fitted attributes."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._gaussian.rotation import rotated
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.items import Items
from sklearn_mpt._latent.grids import Population
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS
from sklearn_mpt._optim.natural import Point
from sklearn_mpt._optim.steps import REMAINING_GAIN, ascent


class ItemModel(NamedTuple):
    """Items with their parameters; the components of z are uncorrelated.

    flat : parameters of the items, (p,). mean, variance : mean and variance of z in
    each group, (g, k). group_weight : proportions of the groups, (g,). reference :
    index of the group whose mean is 0, and whose variance is 1 if slopes are free. root
    : the matrix F, (k, k); z F are the abilities in the coordinates of users. seed : of
    quasi-random points, for more abilities than grids serve. is_fixed : which
    parameters `fit` keeps, bool (p,). has_free_population : whether mean and variance
    of z are free in the reference group, too.
    """

    items: Items
    flat: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    group_weight: np.ndarray
    reference: int
    root: np.ndarray
    seed: tuple[int, ...]
    is_fixed: np.ndarray
    has_free_population: bool = False

    @classmethod
    def from_attributes(cls, fitted, names):
        """Make the model from fitted attributes."""
        d, counts = len(names), fitted["n_categories_"]
        slopes = fitted["discrimination_"].reshape(d, -1)
        items = Items(names, counts, slopes.shape[1])
        root = np.linalg.cholesky(fitted["factor_correlation_"]).T
        flat = items.flat(
            slopes @ root.T if items.n_dims > 1 else slopes,
            fitted["intercept_"].reshape(d, -1),
            fitted["guessing_"],
            fitted["category_scores_"],
        )
        return cls(
            items,
            flat,
            fitted["latent_mean_"] @ np.linalg.inv(root),
            fitted["latent_variance_"],
            fitted["_group_weight"],
            fitted["groups_"].tolist().index(fitted["reference_group_"]),
            root,
            tuple(np.atleast_1d(fitted["_seed"]).tolist()),
            fitted.get("_is_fixed", np.zeros(len(flat), dtype=bool)),
            fitted.get("_has_free_population", False),
        )

    @property
    def free_population(self):
        """Which log deviations and means of z are free, bool (g, 2); none if (0, 2)."""
        others = np.arange(len(self.mean)) != self.reference
        means = others | self.has_free_population
        deviations = means | (self.items.has_fixed_scale and self.items.n_dims == 1)
        free = np.column_stack([deviations, means])
        return free if free.any() else free[:0]

    @property
    def item_of_parameters(self):
        """The item of each parameter of `start`, -1 for those of z; (p,)."""
        owner, n_coefs = self.items.item_of_parameters, self.items.n_coefs
        return np.insert(owner, [n_coefs] * self.free_population.size, -1)

    @property
    def moves(self):
        """Which parameters of `start` are free, bool (p,)."""
        moves = self.items.are_parameters & ~self.is_fixed
        free = self.free_population.ravel()
        return np.insert(moves, [self.items.n_coefs] * len(free), free)

    @property
    def n_parameters(self):
        """The number of free parameters; rotations change nothing."""
        K = self.items.n_dims
        return int(self.moves.sum()) - K * (K - 1) // 2

    def start(self, device):
        """Return the point of all parameters: of items, and of z in groups."""
        point = self.items.point(torch.from_numpy(self.flat))
        groups = np.column_stack([0.5 * np.log(self.variance[:, 0]), self.mean[:, 0]])
        groups = torch.from_numpy(groups[: len(self.free_population)])
        if len(groups):
            point = point._replace(coefs=torch.cat([point.coefs, groups]))
        return Point(*(part.to(device) for part in point))

    def ended_at(self, point):
        """Return the same model with the parameters of a point."""
        coefs, shape_params = (part.detach().cpu().numpy() for part in point)
        n_locations = len(self.items.item_of_locations)
        flat = np.concatenate([coefs[:n_locations].ravel(), shape_params])
        if not len(self.free_population):
            return self._replace(flat=flat)
        deviation, mean = np.exp(coefs[n_locations:, :1]), coefs[n_locations:, 1:]
        return self._replace(flat=flat, mean=mean, variance=deviation**2)

    def density(self, device, group=None):
        """Return the density of rows of a group, or of all groups together."""
        groups = slice(None) if group is None else [group]
        weight = self.group_weight if group is None else np.ones(1)
        moments = self.mean[groups], np.sqrt(self.variance[groups])
        population = Population(
            *(torch.tensor(part, device=device) for part in moments)
        )
        flat, weight, root = (
            torch.tensor(array, device=device)
            for array in (self.flat, weight, self.root)
        )
        return ItemDensity(self.items, flat, population, weight, root, self.seed)

    def unseen(self, X):
        """Return categories of items with free parameters that no row has, (d, c)."""
        items = self.items
        are_free = items.are_parameters & ~self.is_fixed
        is_free = np.bincount(items.item_of_parameters, are_free) > 0
        occurs = [(X == c).any(axis=0) for c in range(items.max_categories)]
        return ~np.stack(occurs, 1) & items.exists & is_free[:, None]

    def ascent(self, training, objective, tol):
        """Return the epochs; tol : in nats of all rows for each parameter."""
        training.params = self.start(objective.X.device)
        tol = tol / REMAINING_GAIN
        if self.items.n_dims > MAX_GRID_DIMS:
            # Errors of sampled nodes are larger than this, which is half of a
            # thousandth of what a parameter gains by fitting noise.
            tol = max(tol, 0.00025)
        n = len(training.params.flat()) / objective.weights.total
        return ascent(training, objective, tol=tol * n)


def attributes_of(items, flat, rotation, start_transform=None, is_signed=False):
    """Return fitted attributes of item parameters, and the sign of z."""
    # Several abilities are rotated; see `rotated`. For one ability the sign is chosen
    # so that the sum of the slopes is positive, unless `is_signed`, where slopes are
    # fixed.
    attributes = items.describe(flat)
    sign, correlation = 1.0, np.eye(items.n_dims)
    slopes = attributes["discrimination"]
    if items.n_dims > 1:
        slopes, correlation = rotated(slopes, rotation, start_transform)
        attributes["discrimination"] = slopes
    elif slopes.sum() < 0 and not (items.has_fixed_scale or is_signed):
        sign = -1.0
        attributes["discrimination"] = -slopes
        attributes["difficulty"] = -attributes["difficulty"]
    return reshape_attributes(attributes, items) | {
        "factor_correlation_": correlation
    }, sign


def reshape_attributes(attributes, items):
    """Return arrays in the shapes of the attributes, with trailing underscores."""
    attributes = dict(attributes)
    if items.n_dims == 1:
        attributes["discrimination"] = attributes["discrimination"][:, 0]
    if items.max_categories == 2:
        for name in ("intercept", "difficulty"):
            attributes[name] = attributes[name][:, 0]
    return {f"{name}_": value for name, value in attributes.items()}
