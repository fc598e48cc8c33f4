"""The models that the imputer tries on coded rows: a plain list.

Models come in kinds, such as mixtures, and those of a kind from small to large. Each is
affordable by its design: a model of many columns has few factors, forests read few
inputs, and no kind needs a price.
"""

from collections.abc import Callable
from typing import NamedTuple

from sklearn.base import clone

from sklearn_mpt._deep.vae import MPTDeepVAE
from sklearn_mpt._dependency.estimator import MPTDependencyNetwork
from sklearn_mpt._imputation.bayes_rule import (
    FactorIndicators,
    GaussianIndicators,
    LevelsAsNumbers,
)
from sklearn_mpt._imputation.coded_models import CodedModel
from sklearn_mpt._imputation.coded_rows import TableCoding
from sklearn_mpt._imputation.column_layout import ColumnLayout
from sklearn_mpt._imputation.independent import IndependentColumns
from sklearn_mpt._masked.estimator import MPTMaskedAutoencoder
from sklearn_mpt._mixture.estimator import MPTMixture

# Variance that is added to the variance 1 of each number in every step of EM. More of
# them gain nothing: "Imputation: rules of the choice of models" in
# benchmarks/RESULTS.rst.
SHRINKAGES = 0.03, 0.0003
# Shrinkage of mixtures: columns for each row of a component, times this. The bias from
# it must vanish with the number of rows, as standard errors do.
SHRINKAGE_OF_MIXTURES = 0.03
# Most columns, with those of indicators, of Gaussians with covariances of all columns,
# in a table of 1,000 rows; see `TableSettings.allows_covariances`. What other limits
# cost is in benchmarks/RESULTS.rst, "Imputation: rules of the choice of models".
MAX_DENSE_COLUMNS = 80
# Most columns, with those of indicators, that have no models with few factors: there,
# Gaussians with all covariances predict as well: "Imputation: a plain list of models"
# in benchmarks/RESULTS.rst.
MIN_FACTOR_COLUMNS = 30
# Most factors that are tried. Time grows with their square, and the two of 329 raw
# tables whose searches went on to 64 gained nothing by them, in 32 and 48 seconds.
MAX_FACTORS = 32
# Numbers of components of mixtures, each tried where the one before gained.
MIXTURE_SIZES = 2, 4, 8, 16
# Most epochs of mixtures and of factors, and the gain at which they end, in nats per
# row and column. The chosen models are trained on, on all entries.
EM_EPOCHS, FACTOR_EPOCHS = 8, 30
TOL = 5e-4
# Forests are not calibrated: that takes time, and means of numbers stay as they are.
# Splits for numbers choose from half of the inputs, those for categories from more,
# because one input may determine a category of many levels, some of which have two rows
# in a tree. What other numbers gain is in benchmarks/RESULTS.rst, "Imputation: rules of
# the choice of models".
CLASSIFIER_FOREST = {"n_estimators": 10, "min_samples_leaf": 2, "max_features": 0.75}
REGRESSOR_FOREST = {"n_estimators": 7, "min_samples_leaf": 3, "max_features": 0.5}


class Candidate(NamedTuple):
    """A model to try.

    name : name to show. start : function of the fitted model before it of its kind (or
    None); returns a model to fit.
    """

    name: str
    start: Callable


class TableSettings(NamedTuple):
    """What all candidates depend on: the coding of the rows, their number, a seed."""

    coding: TableCoding
    n_rows: int
    seed: int

    @property
    def layout(self):
        return self.coding.layout

    @property
    def n_indicators(self):
        """Number of columns in which categories have an indicator each."""
        return int(self.coding.indicators.widths.sum())

    def allows_covariances(self, n_columns):
        """Return whether covariances of so many columns take no longer than others.

        EM inverts those of the columns that are missing in a row, for each pattern of
        gaps. With few rows or few columns of the table, patterns are few.
        """
        n_patterns = min(self.n_rows, 2 ** len(self.layout.kinds))
        return n_patterns * n_columns**3 <= 1000 * MAX_DENSE_COLUMNS**3

    def mixture(self, n_components, layout, **params):
        """Return a mixture of columns with the kinds of a layout."""
        common = {
            "objective": "lml",
            "max_iter": EM_EPOCHS,
            "tol": TOL * len(layout.kinds),
            "init_params": "kmeans" if n_components > 1 else "random_from_data",
            "random_state": self.seed,
            "likelihood": layout.likelihood_among(MPTMixture._kinds_taken),
        }
        return MPTMixture(n_components, **common | params)


def kinds_of_models(settings):
    """Return the kinds that are always tried, each a list of `Candidate`.

    Power transforms make skewed columns normal, but bend what is linear: where a column
    is the sum of others, or nearly so, numbers must stay as they are.
    """
    kinds = [columns_alone(), factors(settings), gaussians(settings)]
    kinds += [mixtures(settings), forests(settings)]
    if settings.coding.has_powers:
        kinds += [factors(settings, False), gaussians(settings, False)]
    return kinds


def columns_alone():
    """Return independent columns, with which all others are compared."""
    return [Candidate("columns alone", lambda _: IndependentColumns())]


def factors(settings, with_powers=True):
    """Return Gaussians of 1, 2, 4, ... factors, with indicators for categories.

    with_powers : whether they describe power transforms of skewed numbers.
    """
    if settings.n_indicators <= MIN_FACTOR_COLUMNS:
        return []
    n_most = min(settings.n_indicators // 2, settings.n_rows // 2, MAX_FACTORS)
    params = FACTOR_EPOCHS, TOL * settings.n_indicators
    sizes = [2**i for i in range(n_most.bit_length())]
    return [
        Candidate(
            f"{_gaussian(with_powers)}, {k} {'factor' if k == 1 else 'factors'}",
            lambda _, k=k: FactorIndicators(k, *params, with_powers),
        )
        for k in sizes
    ]


def gaussians(settings, with_powers=True):
    """Return Gaussians with decreasing shrinkage, with indicators for categories.

    with_powers : whether they describe power transforms of skewed numbers. Numbers as
    they are have the least shrinkage only, which sums of columns need.
    """
    n_columns, layout = settings.n_indicators, settings.layout
    if not settings.allows_covariances(n_columns):
        return []
    wide = ColumnLayout(["gaussian"] * n_columns, layout.n_categories)

    def start(before, shrinkage):
        if before is not None:
            return before.warm_started(reg_covar=shrinkage)
        model = settings.mixture(1, wide, reg_covar=shrinkage)
        return GaussianIndicators(model, with_powers)

    return [
        Candidate(
            f"{_gaussian(with_powers)}, shrinkage {s}",
            lambda before, s=s: start(before, s),
        )
        for s in (SHRINKAGES if with_powers else SHRINKAGES[-1:])
    ]


def _gaussian(with_powers):
    return "Gaussian" if with_powers else "untransformed Gaussian"


def mixtures(settings):
    """Return mixtures of 2, 4, ... components, in which categories are independent."""
    layout = settings.layout.without_levels()
    if not settings.allows_covariances(layout.kinds.count("gaussian")):
        return []

    def start(n_components):
        width = n_components * settings.n_indicators / settings.n_rows
        shrinkage = SHRINKAGE_OF_MIXTURES * width
        model = settings.mixture(n_components, layout, reg_covar=shrinkage)
        return LevelsAsNumbers(model) if settings.layout.values else CodedModel(model)

    return [
        Candidate(f"mixture of {k}", lambda _, k=k: start(k))
        for k in MIXTURE_SIZES
        if 2 * k <= settings.n_rows
    ]


def forests(settings):
    """Return forests, to which numbers have no power transforms.

    A column alone has nothing that predicts it.
    """
    if len(settings.layout.kinds) == 1:
        return []
    # here, as the import takes half as long as that of all else
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    model = MPTDependencyNetwork(
        RandomForestClassifier(**CLASSIFIER_FOREST),
        RandomForestRegressor(**REGRESSOR_FOREST),
        likelihood=settings.layout.likelihood,
        n_masks=1,
        n_orders=1,
        calibrate=False,
        random_state=settings.seed,
    )
    return [Candidate("forests", lambda _: CodedModel(clone(model), False))]


def nets(settings):
    """Return nets, which take long: each is a kind of its own."""
    kinds = {"masked autoencoder": MPTMaskedAutoencoder, "deep": MPTDeepVAE}

    def start(net):
        model = net(likelihood=settings.layout.likelihood, random_state=settings.seed)
        return CodedModel(model)

    return [
        [Candidate(name, lambda _, net=net: start(net))] for name, net in kinds.items()
    ]
