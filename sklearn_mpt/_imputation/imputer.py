"""A transformer that fills gaps in by models trained by masking."""

from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    OneToOneFeatureMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.validation import (
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from sklearn_mpt._checks import AUTO, COUNT, POSITIVE
from sklearn_mpt._frames import with_distinct_names
from sklearn_mpt._imputation.gaps import Shift, without_unknown
from sklearn_mpt._imputation.multiple import bootstrap_fits
from sklearn_mpt._imputation.scoring import hidden_score
from sklearn_mpt._imputation.stacking import StackedModels
from sklearn_mpt._persistence import VersionedPickleMixin
from sklearn_mpt._seeds import RandomState, spawn_seeds


class MPTImputer(
    OneToOneFeatureMixin, TransformerMixin, VersionedPickleMixin, BaseEstimator
):
    r"""Fill in missing entries of a table, in a Pipeline or for standard errors.

    `fit` hides some of the entries that are known, and chooses the models that predict
    them best from the other entries of their rows. `transform` replaces a missing entry
    by its expectation given the rest of the row, or draws all missing entries of a row
    from :math:`p(x_{missing} \mid x_R)`. `transform_multiple` returns several tables,
    for estimates whose standard errors account for the missing entries [1]_.

    Parameters
    ----------
    estimator : estimator, default=None
        Model that fills in: any estimator with `fit` and `impute`, such as
        `MPTLinearVAE`. With None, several models are tried and the useful ones are
        mixed: independent columns, Gaussians with different amounts of shrinkage,
        mixtures (`MPTMixture`), linear models (`MPTLinearVAE`) with 1, 2, 4, ...
        components and, if the budget allows it, `MPTMaskedAutoencoder` and
        `MPTDeepVAE`. They describe power transforms of numbers whose columns are skewed
        [3]_. The kinds of the columns of a DataFrame follow from their dtypes
        (``likelihood="from_dtype"``).
    method : {"mean", "sample"}, default="mean"
        Values that `transform` fills in. "mean": expected numbers, medians of ordered
        categories, the most probable of other categories. "sample": one draw of all
        missing entries of a row together, as multiple imputation needs.
    n_imputations : int, default=1
        Number of tables that `transform_multiple` returns.
    budget : "auto", int or float, default="auto"
        Limit for the choice of models, if `estimator` is None: a number of models
        (int); seconds of processor time (float), which makes results depend on the
        machine; or "auto", a time computed from the size of the table, at most about
        half of that of `IterativeImputer` with forests, and some tenths of a second
        for small tables.
    delta : dict or array-like of shape (n_features,), default=None
        Numbers that are added to the values filled in, in units of their column; a dict
        maps columns, by name or number, to them. Use it if entries may be missing
        because of their values (for example, high incomes), which no model can detect:
        repeat the analysis with several shifts to see which results depend on them.
    unknown : {"error", "missing"}, default="error"
        Whether `transform` refuses categories that did not occur in `fit`, or treats
        them as missing.
    random_state : int, RandomState instance or None, default=None
        Determines the entries that are hidden to choose models, the fits and the draws.
        None takes the `random_state` of `estimator`.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone of `estimator`, or the mixture of the chosen models, with their
        ``weights_`` and ``estimators_``, which are fitted to standardised columns, or
        to standardised transforms of skewed ones.
    selection_ : dict of ndarrays
        Results of all models that were tried, if `estimator` is None: ``name``; mean
        ``log_prob`` of hidden entries in nats, with numbers standardised; ``rmse`` of
        standardised numbers; share of ``wrong`` categories; mean number of ``steps``
        between predicted and true ordered categories; ``gain`` in the log-probability
        of the mixture of all models so far; ``seconds`` of processor time; ``weight``,
        0 if not chosen. ``pandas.DataFrame(imputer.selection_)`` makes a table.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all are strings.

    See Also
    --------
    pool_estimates : Pool estimates from several tables.
    sklearn.impute.IterativeImputer : Fill in by regressions of each column in turn.

    Notes
    -----
    A fifth of the present entries, of up to 2000 rows, is hidden from all models; in
    small tables up to four times, until 200 entries have been hidden.
    Models of each kind are tried from small to large, and most start from the smaller
    one. The next model is that with the largest expected gain for its cost: a model is
    expected to gain as much as the one before it. A kind of model is no longer tried
    when a larger one is not better. The conditionals of the models are mixed, with the
    weights that maximise the log-probability of the hidden entries [2]_. Independent
    columns always have a small weight, which bounds the loss where all other models are
    overconfident; draws are never made from them, unless no other model was chosen. All
    models with positive weights are then fitted to all rows.

    References
    ----------
    .. [1] D. B. Rubin, "Multiple imputation for nonresponse in surveys", Wiley, 1987.
    .. [2] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average
       Bayesian predictive distributions", Bayesian Analysis 13, 2018.
    .. [3] I.-K. Yeo and R. A. Johnson, "A new family of power transformations to
       improve normality or symmetry", Biometrika 87, 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_mpt import MPTImputer
    >>> X, y = load_iris(return_X_y=True)
    >>> X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
    >>> pipe = make_pipeline(MPTImputer(random_state=0), KNeighborsClassifier())
    >>> pipe = pipe.fit(X, y)
    >>> bool(pipe.score(X, y) > 0.85)
    True
    """

    estimator_: BaseEstimator
    selection_: dict[str, np.ndarray]
    n_features_in_: int
    feature_names_in_: np.ndarray

    _parameter_constraints: ClassVar[dict] = {
        "estimator": [None, HasMethods("impute")],
        "method": [StrOptions({"mean", "sample"})],
        "n_imputations": [COUNT],
        "budget": [AUTO, POSITIVE],
        "unknown": [StrOptions({"error", "missing"})],
    }

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        method: str = "mean",
        n_imputations: int = 1,
        budget: str | float = "auto",
        delta: dict | ArrayLike | None = None,
        unknown: str = "error",
        random_state: RandomState = None,
    ):
        self.estimator = estimator
        self.method = method
        self.n_imputations = n_imputations
        self.budget = budget
        self.delta = delta
        self.unknown = unknown
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Choose models, if `estimator` is None, and fit them to X.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Training rows; NaN or None marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts in the fit of the estimator, which must take it.

        Returns
        -------
        self : object
            The fitted imputer.

        Raises
        ------
        ValueError, TypeError
            If a parameter is not valid, or the model refuses X.
        """
        self._validate_params()
        if self.estimator is None:
            estimator = StackedModels(
                budget=self.budget, random_state=self.random_state
            )
        else:
            estimator = clone(self.estimator)
        weights = _weights_for(estimator, sample_weight)
        self.estimator_ = estimator.fit(X, **weights)
        if hasattr(self, "selection_"):
            del self.selection_
        if self.estimator is None:
            self.selection_ = estimator.selection_
        validate_data(self, with_distinct_names(X), skip_check_array=True)
        Shift.of(self.delta, X)
        return self

    def transform(self, X: ArrayLike) -> ArrayLike:
        """Fill the gaps of X in.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN or None marks missing entries.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            A copy without gaps, as the estimator's `impute` returns it: a DataFrame if
            X is one and the model's `likelihood` tells kinds of columns. Columns with
            gaps then have the dtypes they are given in, or those of `fit` where these
            cannot hold what fills the gaps. A row is filled alone as beside others.
        """
        check_is_fitted(self)
        return self._filled(self.estimator_, X, self.method, self.random_state)

    def _filled(self, estimator, X, method, random_state):
        if self.unknown == "missing":
            X = without_unknown(X, getattr(self.estimator_, "categories_", None))
        filled = estimator.impute(X, method=method, random_state=random_state)
        return Shift.of(self.delta, X).of_gaps(filled, X)

    def transform_multiple(self, X: ArrayLike) -> list:
        """Fill the gaps of X in several times, by draws, for standard errors.

        Each of the `n_imputations` tables has missing entries drawn from models of its
        own, which are fitted to rows of X drawn with replacement. So tables differ as
        much as the missing entries, and the parameters of the models, are uncertain.
        Analyse each table as if it were complete, and give the estimates and their
        squared standard errors to `pool_estimates`.

        Models are trained on from those of `fit`, if their class has the parameter
        `warm_start`, and otherwise fitted anew.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            The rows of `fit`, or others like them; NaN or None marks missing entries.

        Returns
        -------
        tables : list of ndarray or DataFrame
            Copies of X without gaps, as `transform` returns them. All gaps are drawn,
            whatever `method` is.

        See Also
        --------
        pool_estimates : Pools what is estimated from each of them.
        """
        check_is_fitted(self)
        if self.unknown == "missing":
            X = without_unknown(X, getattr(self.estimator_, "categories_", None))
        seeds = spawn_seeds(self.random_state, self.n_imputations)
        tables = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            estimator = bootstrap_fits(self.estimator_, X, rng)
            draw = int(rng.integers(2**31))
            tables.append(self._filled(estimator, X, "sample", draw))
        return tables

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Compute how well the imputer predicts entries that are known.

        Every present entry of X is hidden once, together with a quarter of its row, and
        predicted from the rest of the row. The result is the mean of the
        log-probabilities of the hidden entries; larger is better. Always the same
        entries are hidden together, so that a grid search compares imputers fairly.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN or None marks missing entries, which are not scored.
        y : Ignored
            Not used, present for API consistency by convention.

        Returns
        -------
        float
            In nats per entry: log-probabilities of categories, log-densities of numbers
            in the units of their column.
        """
        check_is_fitted(self)
        if not hasattr(self.estimator_, "conditional_log_prob"):
            raise TypeError(
                f"{type(self.estimator_).__name__} has no conditional_log_prob, and so "
                "MPTImputer has no score with it."
            )
        return hidden_score(self.estimator_, X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _weights_for(estimator, sample_weight):
    """Weights of rows as an argument of the estimator's fit, if there are any."""
    if sample_weight is None:
        return {}
    if not has_fit_parameter(estimator, "sample_weight"):
        raise TypeError(
            f"{type(estimator).__name__}.fit takes no sample_weight, and so MPTImputer "
            "takes none with it."
        )
    return {"sample_weight": sample_weight}
