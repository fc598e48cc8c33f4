"""The models that the imputer tries on coded rows.

A path is a sequence of models of one kind, each of which starts from the one before:
for example, Gaussians with decreasing shrinkage, or mixtures with increasing numbers of
components. Costs are seconds of a typical core, computed by formulas: the order in
which models are tried depends on no clock. A model that takes much longer than its
formula says is given up, by the clock of the process.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from sklearn_mpt._deep.vae import MPTDeepVAE
from sklearn_mpt._dependency.estimator import MPTDependencyNetwork
from sklearn_mpt._imputation.bayes_rule import GaussianIndicators, LevelsAsNumbers
from sklearn_mpt._imputation.coded_models import CodedModel, CodedNetwork
from sklearn_mpt._imputation.coded_rows import TableCoding
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.independent import IndependentColumns
from sklearn_mpt._integration.quadrature import MAX_GRID_DIMS, NODES
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._masked.estimator import MPTMaskedAutoencoder
from sklearn_mpt._mixture.estimator import MPTMixture

# ``benchmarks/bench_imputation_rules.py`` prints what other values of rules cost, and
# how long fits take beside their costs by formula.

# Variance that is added to the variance 1 of each number in every step of EM. More of
# them gain nothing: "Imputation: rules of the choice of models" in
# benchmarks/RESULTS.rst.
SHRINKAGES = 0.03, 0.0003
# Shrinkage of mixtures: columns for each row of a component, times this. The bias from
# it must vanish with the number of rows, as standard errors do.
SHRINKAGE_OF_MIXTURES = 0.03
# Numbers of components of mixtures, of factors, and of latent dimensions (and 1), each
# tried where the one before gained.
SIZES = 2, 4, 8, 16
# What the first model of a path is expected to gain, in nats per hidden entry: of a
# path of another kind, and of one that varies a kind.
MAY_GAIN, VARIANT_MAY_GAIN = 0.1, 0.02
# Epochs of mixtures, of a Gaussian and of linear models, and the gain at which they
# end: in nats per row, and of mixtures per row and column.
EM_EPOCHS, EM_TOL = 15, 5e-4
GAUSSIAN_EPOCHS = 8
LINEAR_EPOCHS, LINEAR_TOL = 60, 1e-3

# Costs in seconds of a typical core: of a fit, and of a step.
OVERHEAD, STEP = 0.01, 1e-3
# In a step of EM: of an entry of the covariance, of a pattern of gaps and of a row; and
# of a row and an indicator.
EM_PATTERN, EM_ROW, EM_INDICATOR = 6e-8, 5e-9, 5e-8
# Of a linear model; of a product of two numbers in a step, by EM and by integration.
LINEAR_OVERHEAD, LINEAR_FLOP, NODE_FLOP = 0.1, 6e-9, 2e-8
NODES_PER_DIM = 15  # of integrals over z
# Of conditionals of linear models by integration, with one latent dimension, and the
# factor for each other one: of all, and of a row and column. They are computed for each
# category, and at each node of averages of powers.
CONDITIONAL_OVERHEAD, CONDITIONAL_ENTRY = (0.03, 5), (3e-6, NODES_PER_DIM)
# Of nets: of a row and the square root of the number of columns; fits of fewer rows
# take as long.
NET_SECONDS, MIN_NET_ROWS = 1e-3, 2000

# Forests are not calibrated: that takes time, and means of numbers stay as they are.
FOREST_TREES, LEAF_ROWS, FOREST_MASKS = 10, 3, 1
# Costs in seconds, of a column, and of an entry of an input; see "Imputation: forests"
# in benchmarks/RESULTS.rst.
FOREST_COLUMN, FOREST_ENTRY = 0.01, 1e-6
# Alone they gained .1 to .6 nats per hidden entry on ten tables; this is in the middle.
# So they are tried after a Gaussian, but before it in tables of few columns, where they
# cost as little.
FOREST_MAY_GAIN = 0.3


class Candidate(NamedTuple):
    """A model to try.

    name : name to show. cost : seconds of a fit on a typical core. start : function of
    the fitted model before it in the path (or None); returns a model to fit.
    """

    name: str
    cost: float
    start: Callable


class CandidatePath(NamedTuple):
    """Models of one kind, in the order in which they are tried.

    may_gain : nats per hidden entry that the first one is expected to gain.
    """

    may_gain: float
    candidates: list[Candidate]


class TableSize(NamedTuple):
    """Numbers of rows, of columns, of columns with indicators, and of patterns of gaps.

    A column of categories has several indicators.
    """

    n_rows: int
    n_columns: int
    n_indicators: int
    n_patterns: int

    @classmethod
    def from_rows(cls, rows, hidden):
        """Return the size of coded rows, the first of which have hidden entries."""
        gaps = rows.gaps
        gaps[: len(hidden)] |= hidden
        n_indicators = int(rows.coding.indicators.widths.sum())
        return cls(*hidden.shape, n_indicators, len(np.unique(gaps, axis=0)))

    def em_seconds(self, n_components, n_features, n_others=0, n_steps=EM_EPOCHS):
        """Return the seconds that EM takes; `n_others` columns are not Gaussian."""
        matrix_cost = EM_PATTERN * self.n_patterns + EM_ROW * self.n_rows
        other_cost = EM_INDICATOR * self.n_rows * n_others
        step = n_components * (n_features**2 * matrix_cost + other_cost)
        return OVERHEAD + n_steps * (STEP + step)

    def conditional_seconds(self, n_dims):
        """Return the seconds of conditionals of all rows, by integration."""
        n_entries = self.n_rows * self.n_indicators
        (overhead, wider), (entry, more) = CONDITIONAL_OVERHEAD, CONDITIONAL_ENTRY
        power = min(n_dims, MAX_GRID_DIMS) - 1
        return overhead * wider**power + entry * more**power * n_entries


def candidate_paths(coding, size, seed):
    """Return paths of candidates. The first has independent columns alone."""
    settings = CandidateSettings(coding, size, seed)
    first = Candidate("columns alone", OVERHEAD, lambda _: IndependentColumns())
    paths = [
        CandidatePath(MAY_GAIN, [first]),
        CandidatePath(MAY_GAIN, _gaussians(settings)),
    ]
    paths += [
        CandidatePath(MAY_GAIN, _mixtures(settings, kind))
        for kind in settings.covariance_types
    ]
    if coding.layout.values:
        coded_mixtures = _mixtures(settings, "full", levels_are_numbers=False)
        paths.append(CandidatePath(MAY_GAIN, coded_mixtures))
    if coding.has_powers:
        without_powers = _gaussians(settings, with_powers=False)
        paths.append(CandidatePath(VARIANT_MAY_GAIN, without_powers))
    paths.append(CandidatePath(VARIANT_MAY_GAIN, _factors(settings)))
    paths.append(CandidatePath(VARIANT_MAY_GAIN, _linear(settings)))
    paths.append(CandidatePath(FOREST_MAY_GAIN, _forests(settings)))
    return paths + [CandidatePath(MAY_GAIN, net) for net in _nets(settings)]


class CandidateSettings(NamedTuple):
    """Settings that all candidates share."""

    coding: TableCoding
    size: TableSize
    seed: int

    @property
    def layout(self):
        return self.coding.layout

    @property
    def has_categories(self):
        return not self.layout.numbers.all()

    @property
    def n_conditionals(self):
        """How often conditionals are computed to predict hidden entries."""
        n_nodes = len(NODES) + 1 if self.coding.has_powers else 0
        return 1 + self.layout.n_categories.max(initial=0) + n_nodes

    @property
    def covariance_types(self):
        return ("full",) if self.has_categories else ("full", "tied")

    def mixture(self, n_components, layout, **params):
        """Return a mixture of columns with the kinds of a layout."""
        common = {
            "objective": "lml",
            "max_iter": EM_EPOCHS,
            "tol": EM_TOL * self.size.n_columns,
            "init_params": "kmeans" if n_components > 1 else "random_from_data",
            "random_state": self.seed,
            "likelihood": layout.likelihood_among(MPTMixture._kinds_taken),
        }
        return MPTMixture(n_components, **common | params)

    def gaussian(self, with_powers=True, **params):
        """Return a Gaussian of numbers, and of indicators for categories."""
        layout = self.layout
        wide = ColumnLayout(["gaussian"] * self.size.n_indicators, layout.n_categories)
        as_coded = GaussianIndicators if len(layout.coded) else CodedModel
        return as_coded(self.mixture(1, wide, **params), with_powers)

    def numbers(self, model):
        """Return a model of rows in which levels are numbers."""
        return LevelsAsNumbers(model) if self.layout.values else CodedModel(model)


def _gaussians(settings, with_powers=True):
    """Return Gaussians with decreasing shrinkage, with indicators for categories."""
    size = settings.size

    def start(before, shrinkage):
        if before is not None:
            return warm_started(before, reg_covar=shrinkage)
        return settings.gaussian(with_powers, reg_covar=shrinkage)

    cost = size.em_seconds(1, size.n_indicators, n_steps=GAUSSIAN_EPOCHS)
    name = (
        "Gaussian, shrinkage" if with_powers else "Gaussian without powers, shrinkage"
    )
    return [
        Candidate(f"{name} {s}", cost, lambda before, s=s: start(before, s))
        for s in SHRINKAGES
    ]


def _factors(settings):
    """Return Gaussians with increasing numbers of factors."""
    size, path = settings.size, []
    for k in SIZES:
        if 2 * k >= size.n_indicators or k > size.n_rows // 2:
            break
        params = {"covariance_type": "low_rank", "n_factors": k}
        cost = size.em_seconds(1, size.n_indicators)
        path.append(
            Candidate(
                f"Gaussian, {k} factors",
                cost,
                lambda _, params=params: settings.gaussian(**params),
            )
        )
    return path


def _mixtures(settings, kind, levels_are_numbers=True):
    """Return mixtures with increasing numbers of components.

    Columns that are not numbers are independent in a component.
    """
    layout, size = settings.layout, settings.size
    if levels_are_numbers:
        layout = layout.without_levels()
    n_numbers = layout.kinds.count("gaussian")
    n_others = layout.n_categories.sum()
    suffix = ", levels as categories" if not levels_are_numbers else ""

    def start(n_components):
        width = n_components * size.n_indicators / size.n_rows
        shrinkage = SHRINKAGE_OF_MIXTURES * width
        params = {"covariance_type": kind, "reg_covar": shrinkage}
        model = settings.mixture(n_components, layout, **params)
        return settings.numbers(model) if levels_are_numbers else CodedModel(model)

    return [
        Candidate(
            f"mixture of {k}, {kind}{suffix}",
            size.em_seconds(k, n_numbers, n_others),
            lambda _, k=k: start(k),
        )
        for k in SIZES
        if 2 * k <= size.n_rows
    ]


def _linear(settings):
    """Return linear models with increasing numbers of components.

    They are integrated if there are categories, and levels then are ordered.
    """
    size, is_integrated = settings.size, settings.has_categories
    layout = settings.layout if is_integrated else settings.layout.without_levels()

    def start(before, n_components):
        init = "pca"
        if before is not None:
            init = _with_directions(before.model, n_components, settings.seed)
        model = MPTLinearVAE(
            n_components,
            likelihood=layout.likelihood,
            noise="per_feature",
            objective="lml",
            init=init,
            max_iter=LINEAR_EPOCHS,
            tol=LINEAR_TOL,
            random_state=settings.seed,
        )
        return CodedModel(model) if is_integrated else settings.numbers(model)

    path = []
    for k in (1, *SIZES):
        if k > min(size.n_columns, size.n_rows // 2):
            break
        products = size.n_rows * (size.n_indicators * (k + k**2) + k**3)
        step = (
            NODE_FLOP * NODES_PER_DIM ** min(k, MAX_GRID_DIMS)
            if is_integrated
            else LINEAR_FLOP
        )
        cost = LINEAR_OVERHEAD + LINEAR_EPOCHS * (STEP + step * products)
        if is_integrated:
            cost += settings.n_conditionals * size.conditional_seconds(k)
        name = f"linear, {k} components"
        path.append(Candidate(name, cost, lambda before, k=k: start(before, k)))
    return path


def _with_directions(before, n_components, seed):
    """Return initial arrays: those of a smaller model, and small random components."""
    rng = np.random.default_rng(seed)
    known = before.components_
    size = 0.1 * np.sqrt((known**2).mean())
    shape = n_components - len(known), known.shape[1]
    names = {"mean_", "intercept_", "noise_variance_"} & set(vars(before))
    return {name.rstrip("_"): getattr(before, name) for name in names} | {
        "components": np.vstack([known, size * rng.normal(size=shape)])
    }


def _forests(settings):
    """Return forests, to which numbers have no power transforms."""
    # here, as the import takes half as long as that of all else
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    size = settings.size
    model = MPTDependencyNetwork(
        RandomForestClassifier(FOREST_TREES, min_samples_leaf=LEAF_ROWS),
        RandomForestRegressor(
            FOREST_TREES, min_samples_leaf=LEAF_ROWS, max_features=1 / 3
        ),
        likelihood=settings.layout.likelihood,
        n_masks=FOREST_MASKS,
        n_orders=1,
        calibrate=False,
        random_state=settings.seed,
    )

    column_cost = FOREST_COLUMN + FOREST_ENTRY * size.n_rows * size.n_indicators
    return [
        Candidate(
            "forests",
            size.n_columns * column_cost,
            lambda _: CodedNetwork(clone(model), with_powers=False),
        )
    ]


def _nets(settings):
    steps = max(settings.size.n_rows, MIN_NET_ROWS) * np.sqrt(
        settings.size.n_indicators
    )
    nets = {"masked autoencoder": MPTMaskedAutoencoder, "deep": MPTDeepVAE}

    def start(net):
        model = net(likelihood=settings.layout.likelihood, random_state=settings.seed)
        return CodedModel(model)

    return [
        [Candidate(name, NET_SECONDS * place * steps, lambda _, net=net: start(net))]
        for place, (name, net) in enumerate(nets.items(), start=1)
    ]


def warm_started(model, **params):
    """Return a copy of a fitted model whose `fit` starts from its parameters."""
    return copy.deepcopy(model).set_warm_start(**params)
