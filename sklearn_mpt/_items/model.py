"""Items, parameters, population and density, made from fitted attributes."""

from typing import NamedTuple

import numpy as np
import torch

from sklearn_mpt._gaussian.rotation import (
    rotated,
)
from sklearn_mpt._items.curves import Items
from sklearn_mpt._items.density import ItemDensity
from sklearn_mpt._items.information import observed_information
from sklearn_mpt._items.many_abilities import (
    LinearItems,
    ManyAbilities,
    ManyAbilitiesDensity,
)
from sklearn_mpt._items.objective import (
    SCORING,
    ItemObjective,
    ParameterLayout,
    spacing,
)
from sklearn_mpt._latent.grids import WIDE_RADIUS, Population, PriorGrid
from sklearn_mpt._latent.quadrature import MAX_GRID_DIMS


class ItemModel(NamedTuple):
    """Items with their parameters; the components of z are uncorrelated.

    point : flat parameters of the items, (p,). mean, variance : mean and variance of z
    in each group, (g, k). group_weight : proportions of the groups, (g,). reference :
    index of the group whose mean is 0, and whose variance is 1 if slopes are free. root
    : the matrix F, (k, k); z F are the abilities in the coordinates of users. seed : of
    quasi-random points, for more abilities than grids serve. is_fixed : which
    parameters `fit` keeps, bool (p,). has_free_population : whether mean and variance
    of z are free in the reference group, too.
    """

    items: Items
    point: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    group_weight: np.ndarray
    reference: int
    root: np.ndarray
    seed: tuple[int, ...]
    is_fixed: np.ndarray | None = None
    has_free_population: bool = False

    @classmethod
    def from_attributes(cls, fitted, names):
        """Make the model from fitted attributes."""
        d = len(names)
        counts = fitted["n_categories_"]
        discrimination = fitted["discrimination_"].reshape(d, -1)
        n_dims = discrimination.shape[1]
        items = Items(names, counts, n_dims)
        root = np.linalg.cholesky(fitted["factor_correlation_"]).T
        arrays = {
            "discrimination": discrimination @ root.T if n_dims > 1 else discrimination,
            "intercept": fitted["intercept_"].reshape(d, -1),
            "guessing": fitted["guessing_"],
            "category_scores": fitted["category_scores_"],
        }
        return cls(
            items,
            items.point(**arrays),
            fitted["latent_mean_"] @ np.linalg.inv(root),
            fitted["latent_variance_"],
            fitted["_group_weight"],
            fitted["groups_"].tolist().index(fitted["reference_group_"]),
            root,
            tuple(np.atleast_1d(fitted["_seed"]).tolist()),
            fitted.get("_is_fixed"),
            fitted.get("_has_free_population", False),
        )

    @property
    def layout(self):
        """The layout of the free parameters."""
        others = np.arange(len(self.mean)) != self.reference
        means = others | self.has_free_population
        variances = means | (self.items.has_fixed_scale and self.items.n_dims == 1)
        return ParameterLayout(self.items, means, variances, self.is_fixed)

    @property
    def n_parameters(self):
        """The number of free parameters; rotations change nothing."""
        K = self.items.n_dims
        return self.layout.n_free - K * (K - 1) // 2

    @property
    def n_guessed(self):
        """The number of items with a probability of guessing."""
        return self.items.names.count("3pl")

    def start(self, device):
        """Return the flat vector of all free parameters."""
        layout = self.layout
        end = layout.population_params(self.mean[:, 0], self.variance[:, 0])
        return torch.from_numpy(np.concatenate([self.point, end])).to(device)

    def population(self, device):
        moments = (self.mean, np.sqrt(self.variance))
        return Population(*(torch.tensor(part, device=device) for part in moments))

    def density(self, device):
        point = torch.tensor(self.point, device=device)
        population = self.population(device)
        group_weight = torch.tensor(self.group_weight, device=device)
        root = torch.tensor(self.root, device=device)
        if self.items.n_dims > MAX_GRID_DIMS:
            return ManyAbilitiesDensity(
                self.items, point, population, group_weight, root, self.seed
            )
        steps = spacing(self.items, point, population, SCORING)
        grid = PriorGrid.over(population, steps, WIDE_RADIUS)
        return ItemDensity(self.items, point, grid, population, group_weight, root)

    def objective(self, answers, priors, unseen=None):
        """Return the log marginal likelihood of answers as a function of parameters."""
        if self.items.n_dims > MAX_GRID_DIMS:
            return ManyAbilities(answers, self.layout, priors, (*self.seed, 1))
        return ItemObjective(answers, self.layout, priors, unseen)

    def information(self, objective, point):
        """Return the observed information; see `observed_information`."""
        if self.items.n_dims > MAX_GRID_DIMS:
            return objective.observed_information(point)
        return observed_information(objective, point)

    def flat(self, result):
        """Return the flat parameters of the result of a solver."""
        if self.items.n_dims > MAX_GRID_DIMS:
            return LinearItems.of(self.items).flat(result)
        return result


def attributes_of(items, point, rotation, start_transform=None, is_signed=False):
    """Return fitted attributes of item parameters, and the sign of z."""
    # Several abilities are rotated; see `rotated`. For one ability the sign is chosen
    # so that the sum of the slopes is positive, unless `is_signed`, where slopes are
    # fixed.
    attributes = items.describe(point)
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
