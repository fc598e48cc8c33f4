"""The estimator MPTDependencyNetwork: any predictor of a column given the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.parallel import Parallel, delayed

from sklearn_mpt._autoregressive.column_fits import fit_column
from sklearn_mpt._autoregressive.conditionals import NetworkDensity
from sklearn_mpt._autoregressive.order_mixture import draw_orders
from sklearn_mpt._autoregressive.predictors import most_related
from sklearn_mpt._base.density import Units, unit_attributes
from sklearn_mpt._base.tables import LikelihoodNames, TableMPT
from sklearn_mpt._checks import COUNT, OPEN_UNIT_INTERVAL, RandomState
from sklearn_mpt._likelihoods import Likelihood
from sklearn_mpt._likelihoods.base import column_moments
from sklearn_mpt._tables.weights import warn_constant


class MPTDependencyNetwork(TableMPT):
    r"""Any predictor, one for each column, trained by masked pre-training (MPT).

    A set of conditional distributions, one predictor for each column, is called a
    dependency network [1]_. Each predictor is trained on copies of the rows in which
    random other columns are hidden, so that it predicts its column from any others. So
    the predictors that people use (forests, boosting, nearest neighbours, linear
    models) get a log-likelihood, a curve, imputation and draws.

    Conditionals of predictors belong to no joint distribution. As for
    `MPTMaskedAutoencoder`, the density is the mixture of a few orders of the columns,

    .. math:: p(x) = \frac{1}{K} \sum_{k=1}^K \prod_t
        p(x_{\pi_k(t)} \mid x_{\pi_k(1)}, \dots, x_{\pi_k(t-1)}),

    which sums or integrates to one. The :ref:`user guide <dependency_network>` says
    what the conditionals are and what they cost.

    Parameters
    ----------
    classifier : estimator with predict_proba, default=None
        Predictor of columns of categories, levels, or 0 and 1. None is a random forest
        of 60 trees with leaves of at least 3 rows. Probabilities of
        ``RandomForestClassifier`` and ``ExtraTreesClassifier`` are calibrated: they are
        mixed with the frequencies of all rows.
    regressor : estimator, default=None
        Predictor of columns of numbers, counts and amounts. Its conditionals are

        - for ``RandomForestRegressor`` and ``ExtraTreesRegressor``, a mixture of those
          in the leaves of all trees, of some with the mean of the forest and other
          widths, and of the numbers in the leaves, if numbers of the column repeat.
          The weights are fitted to rows that are out of the bags of trees, or, without
          `bootstrap`, to rows that are left out of other fits;
        - for a ``predict`` with `return_std`, one with this mean and deviation;
        - for any other, one with the predicted mean, and the variance of residuals of
          rows that are left out, by the number of visible columns.

        None is a random forest, as above.
    likelihood : str, sequence of str or dict, default="from_dtype"
        Kinds of the columns: "gaussian" (numbers), "bernoulli" (0 and 1, or booleans),
        "categorical", "ordinal", "partial_credit", "poisson" (counts),
        "negative_binomial" or "lognormal". "from_dtype"
        takes the columns of an array as numbers. See `MPTLinearVAE`.
    mask_rate : "uniform", float or int, default="uniform"
        How many columns are hidden in training. "uniform" trains on each row as it is,
        and on copies that hide 1 to all other columns. A float in (0, 1] is a fixed
        rate and an int a fixed number, which include the predicted column.
    max_inputs : int or None, default=20
        Number of columns that the predictors of a column read: those that tell most of
        it one by one, by Pearson's :math:`\phi^2` of categories and of quarters of
        numbers, less what chance gives. None is all others.
    max_rows : int or None, default=10000
        Number of rows to which the predictors of a column are fitted, drawn at random
        where there are more. None is all rows.
    n_masks : int, default=3
        Number of copies of each row. Each tree of a forest with `bootstrap` draws as
        many of them as there are rows, unless `max_samples` is another number.
    n_orders : int, default=8
        Number of random orders of the columns whose mixture is the density, at most as
        many as exist. Every second order is the reverse of the one before.
    marginal_weight : float, default=0.01
        Weight, in (0, 1), of a distribution in each conditional that does not depend on
        other columns, so that nothing is impossible: frequencies of categories, to
        which half an observation of each is added, or a normal with twice the standard
        deviation of the column.
    calibrate : bool, default=True
        Whether the distributions given a forest are calibrated by rows that trees have
        not seen. If not, a number has the mixture of the leaves, categories have the
        probabilities of the forest, and fits take less time.
    random_state : int, RandomState instance or None, default=None
        Determines masks, orders, and the `random_state` of predictors, where it is
        None.
    n_jobs : int, default=None
        Number of joblib workers of `fit`, over columns, and of `mpt_curve` and
        `feature_contributions`, unless these get another number.

    Attributes
    ----------
    estimators_ : list of list of estimators
        Fitted predictors of each column: one, or none for a column with one value.
    inputs_ : list of int ndarray
        The columns that the predictors of each column read.
    orders_ : ndarray of shape (n_orders, n_features)
        The orders whose mixture is the density.
    likelihoods_, categories_ : list
        Kinds and categories of the columns, if rows are read as a table.
    lml_method_ : str
        How `score_samples` computes densities: "exact".
    n_features_in_ : int
        Number of features in `fit`; `feature_names_in_` has their names, if strings.

    See Also
    --------
    MPTMaskedAutoencoder : One net that predicts all columns.
    order_log_prob : Log-probabilities along given orders of the columns.

    Notes
    -----
    Numbers are standardised. No variance is smaller than that of rounding to the
    smallest distance of two values of the column, or 0.003 standard deviations.
    Fits take time linear in rows and in columns, but for the choice of inputs, where
    there are more columns than `max_inputs`.
    A predictor that takes no NaN, by its tags, gets 0 for hidden inputs and indicators
    of visible columns. Weights of rows are passed to predictors as `sample_weight`; for
    the default forests they are probabilities to draw a row. If a predictor fails, the
    error names it and its column.

    References
    ----------
    .. [1] D. Heckerman, D. M. Chickering, C. Meek, R. Rounthwaite and C. Kadie,
       "Dependency networks for inference, collaborative filtering, and data
       visualization", Journal of Machine Learning Research 1, 2000.
    .. [2] B. Uria, I. Murray and H. Larochelle, "A deep and tractable density
       estimator", ICML 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mpt import MPTDependencyNetwork
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> X[:, 1] = X[:, 0] ** 2
    >>> model = MPTDependencyNetwork(random_state=0).fit(X)
    >>> model.impute([[1.0, np.nan]]).round().tolist()
    [[1.0, 1.0]]
    """

    estimators_: list[list[BaseEstimator]]
    inputs_: list[np.ndarray]
    orders_: np.ndarray
    device = "cpu"  # predictors compute on arrays

    _parameter_constraints: ClassVar[dict] = TableMPT._parameter_constraints | {
        "classifier": [None, HasMethods(["fit", "predict_proba"])],
        "regressor": [None, HasMethods(["fit", "predict"])],
        "max_inputs": [COUNT, None],
        "max_rows": [COUNT, None],
        "n_masks": [COUNT],
        "n_orders": [COUNT],
        "marginal_weight": [OPEN_UNIT_INTERVAL],
        "calibrate": ["boolean"],
    }

    def __init__(
        self,
        classifier: BaseEstimator | None = None,
        regressor: BaseEstimator | None = None,
        *,
        likelihood: LikelihoodNames = "from_dtype",
        mask_rate: str | float = "uniform",
        max_inputs: int | None = 20,
        max_rows: int | None = 10_000,
        n_masks: int = 3,
        n_orders: int = 8,
        marginal_weight: float = 0.01,
        calibrate: bool = True,
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.classifier = classifier
        self.regressor = regressor
        self.likelihood = likelihood
        self.mask_rate = mask_rate
        self.max_inputs = max_inputs
        self.max_rows = max_rows
        self.n_masks = n_masks
        self.n_orders = n_orders
        self.marginal_weight = marginal_weight
        self.calibrate = calibrate
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def _hooks(self):
        return ("chain_log_prob",)

    def _check_parameters(self, n_features):
        for name in ("classifier", "regressor"):
            if isinstance(getattr(self, name), type):
                raise TypeError(
                    f"{name} must be an instance of an estimator, got the class "
                    f"{getattr(self, name).__name__}."
                )
        if isinstance(self.likelihood, Likelihood):
            raise TypeError(
                "likelihood must name kinds of columns, got an instance of "
                f"{type(self.likelihood).__name__}: predictors have no locations of "
                "a likelihood."
            )

    def _has_priors(self, n_features):
        return True  # of marginals, and of the weights of shapes

    def _start(self, X, rng, weight):
        columns = self._likelihood_by_column()
        units = unit_attributes(columns, X, weight)
        # the scale of amounts is their mean, so that their logarithms are near 0
        amounts = [j for j, kind in enumerate(columns.kinds) if kind == "lognormal"]
        moments = column_moments(X[:, amounts].astype(np.float64), weight)
        units["_scale"][amounts] = moments[0]
        return units | {
            "orders_": draw_orders(self.n_orders, X.shape[1], rng),
            "lml_method_": "exact",
            "_marginal_weight": float(self.marginal_weight),
        }

    def _train(self, data, context):
        fitted, weight = data.fitted, data.weight
        if weight is not None and (weight == 1).all():
            weight = None  # predictors need not take weights of 1
        columns = self._likelihood_by_column()
        rows = (data.X.astype(np.float64) - fitted["_shift"]) / fitted["_scale"]
        related = most_related(rows, weight, columns, self.max_inputs, data.rng)
        entropy = data.rng.integers(2**32, size=4).tolist()
        seeds = np.random.SeedSequence(entropy).spawn(rows.shape[1])
        params, names = self.get_params(deep=False), self._column_names
        of_columns = enumerate(zip(names, related, seeds, strict=True))
        fits = Parallel(n_jobs=self.n_jobs)(
            delayed(fit_column)(rows, weight, j, name, read, columns, params, seed)
            for j, (name, read, seed) in of_columns
        )
        warn_constant(fitted["_constant"], vars(self))
        predictors, learned = zip(*fits, strict=True)
        return fitted | {
            "estimators_": list(predictors),
            "inputs_": related,
            "_learned": list(learned),
        }

    @property
    def _column_names(self):
        return getattr(self, "feature_names_in_", np.arange(self.n_features_in_))

    def _density_of(self, fitted: Mapping, device: torch.device) -> NetworkDensity:
        return NetworkDensity(
            self._likelihood_by_column(),
            fitted["estimators_"],
            fitted["_learned"],
            fitted["inputs_"],
            fitted["_marginal_weight"],
            Units.from_attributes(fitted, device),
            torch.tensor(fitted["orders_"], device=device),
            self._column_names,
        )

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Predict each column from the others that are present.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        predicted : ndarray of shape (n_samples, n_outputs)
            The expectation of a number, count or amount; the probability of 1; the
            probability of each category, or of the second of two. In the order of the
            columns.
        """
        X, density = self._validate_rows(X), self._density()
        return self._map_rows(density, density.predict, X, dtype=X.dtype)

    @property
    def _n_features_out(self):
        return self._density().n_outputs

    def __sklearn_is_fitted__(self):
        return hasattr(self, "estimators_")
