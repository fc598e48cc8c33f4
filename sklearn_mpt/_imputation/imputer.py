"""A transformer that fills gaps in by models trained by masking."""

from __future__ import annotations

import copy
import reprlib
import warnings
from collections import defaultdict
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import HasMethods, MissingValues, StrOptions
from sklearn.utils.validation import (
    _check_feature_names_in,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from sklearn_mpt._base.state import (
    VersionedPickleMixin,
    all_or_nothing,
    bound_parameters,
    check_bound_parameters,
    forget,
)
from sklearn_mpt._checks import (
    AUTO,
    COUNT,
    POSITIVE,
    RandomState,
    check_seed,
    joined,
    listed,
    seed_from,
    spawn_seeds,
    warn_caller,
)
from sklearn_mpt._imputation.gaps import (
    as_table,
    check_kind_of_table,
    equal_entries,
    unknown_entries,
    with_dtypes_of,
    with_indicators,
    with_missing,
    with_zeros,
)
from sklearn_mpt._imputation.limits import filled_within, read_bounds
from sklearn_mpt._imputation.stacking import StackedModels
from sklearn_mpt._measure.contract import given_or_parameter
from sklearn_mpt._measure.rows import copy_of, digest_of, missing_entries, take
from sklearn_mpt._tables.frames import column_names, columns_at, with_distinct_names
from sklearn_mpt._tables.kinds import EMPTY, ONE_VALUE, looks_of_strings
from sklearn_mpt._tables.reader import TableReader
from sklearn_mpt._tables.weights import check_sample_weight, rows_that_count

# Kinds that all models take which are tried; for others, users give a model.
KINDS = "gaussian", "bernoulli", "categorical", "ordinal", "partial_credit"


class MPTImputer(TransformerMixin, VersionedPickleMixin, BaseEstimator):
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
        mixed: independent columns; Gaussians with all covariances and less and less
        shrinkage, or, in wide tables, with 1, 2, 4, ... factors; in tables of up to 30
        columns, with those of indicators of categories, a mixture of three Gaussians;
        trees for four columns of a kind, and for others where they gain. Numbers whose
        columns are skewed are power transforms [3]_ where these are more normal.
    method : {"mean", "sample"}, default="mean"
        Values that `transform` fills in. "mean": expected numbers, medians of ordered
        categories, the most probable of other categories. "sample": one draw of all
        missing entries of a row together, as multiple imputation needs.
    n_imputations : int, default=10
        Number of tables that `transform_multiple` returns. With m tables, and a
        fraction f of missing information, the variance of pooled estimates is larger by
        the factor 1 + f / m than with infinitely many [1]_: by 3% with 10 tables and
        f = 0.3.
    likelihood : str, sequence of str or dict, default="from_dtype"
        Kinds of the columns: a name, a name for each column, or a dict from columns to
        names; for other columns, dtypes determine the kinds. Only if `estimator` is
        None, and refused otherwise: a model has a `likelihood` of its own.
        Names are "gaussian" (numbers), "bernoulli" (0 and 1, or booleans),
        "categorical", "ordinal" and "partial_credit". With "from_dtype", dtypes
        determine the kinds: booleans; strings and categories; ordered categories;
        numbers, among them objects that are all numbers, dates and time differences.
        Arrays of floats hold numbers.
    min_value, max_value : float, dict or array-like, default=None
        Bounds of the numbers that are filled in: one for all columns of numbers, or one
        for each column, of shape (n_features,), or a dict or Series from columns, by
        name or number, to bounds. Draws and expectations are those of distributions
        that are truncated at the bounds: exactly, where a row has one gap with bounds.
        Several are drawn one after the other, each given those drawn before, and
        expected each by itself. With an `estimator`, a row is drawn until all of it is
        within, at most a hundred times; beyond, and for expectations, truncated
        distributions are normal ones, with the deviation of such draws. With None,
        numbers lie at most a standard deviation outside of what was seen, dates do not
        lie outside, and numbers are not negative where nothing is, and not below half
        of the least number seen where all are above zero, unless there is an
        `estimator`; infinite bounds lift that.
    missing_values : int, float, str, NaN, None or pandas.NA, default=NaN
        Entries that are missing, besides NaN, None and NA, which always are.
    add_indicator : bool, default=False
        Whether to add a column of indicators of missing entries, at the right, for each
        column that has missing entries in `fit`, as `MissingIndicator` does.
    keep_empty_features : bool, default=False
        Whether to keep columns without any value in `fit`, which are left out
        otherwise. Numbers in them are filled in as 0, as by scikit-learn's imputers.
        Only if `estimator` is None, and refused otherwise.
    max_seconds : "auto", float or None, default="auto"
        Limit for the choice of models, if `estimator` is None. "auto" or None: there is
        none; larger models are tried while they predict better, and the result does not
        depend on the machine. A float: seconds of processor time, after which no other
        model is begun; the result then depends on the machine.
    max_models : int, default=None
        Largest number of models that are tried, if `estimator` is None.
    unknown : {"missing", "error"}, default="missing"
        Whether `transform` treats categories that did not occur in `fit` as missing,
        with a warning, or refuses them.
    random_state : int, RandomState instance or None, default=None
        Determines the entries that are hidden to choose models, the fits and the draws.
        None takes the `random_state` of `estimator`. With an int, every call of
        `transform` draws by the same random numbers, so that parts of a table that are
        filled one after the other have equal errors: fill it in one call, or give a
        RandomState instance.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone of `estimator`, or the mixture of the chosen models,
        ``estimators_``; ``weights_`` and ``mean_weights_``, both (n_models,
        n_columns), are their weights in log-probabilities and draws, and in means.
    selection_ : dict of ndarrays
        Results of all models that were tried, if `estimator` is None: ``name``; mean
        ``log_prob`` of hidden entries in nats, with numbers standardised; ``rmse`` of
        standardised numbers; fraction of ``wrong`` categories; mean number of ``steps``
        between predicted and true ordered categories; ``gain`` in the log-probability
        of the mixture of all models so far; ``seconds`` of processor time; ``outcome``:
        "gained" if the mixture predicts better with the model, "no gain", with which a
        kind ends, or "failed"; ``weight``, the mean over columns, 0 if not chosen.
        ``pandas.DataFrame(imputer.selection_)`` makes a table.
    unmodelled_ : dict
        Columns that are not modelled, by name or number, and why, if `estimator` is
        None.
    indicator_ : MissingIndicator
        Fitted to the missing entries, if `add_indicator`.
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
    Columns without a kind are not modelled: names, free text, lists, mixed objects,
    dates in several time zones, periods, infinite numbers, and columns with one value
    or none. `fit` warns of them. They stay as they are, with their gaps; those with
    one value are filled with it, and those without any are left out, or kept with
    `keep_empty_features`. Gaps of dates and time differences are filled in their dtype,
    rounded to days, hours, minutes or seconds if all dates are.

    A fifth of the present entries, of 500 to 2000 rows, is hidden from all models. A
    larger model of a kind, or less shrinkage, is tried if with the one before it the
    mixture of all models gained more than 0.008 nats per hidden entry, or 0.8% of the
    root mean squared error. A model that cannot be fitted to the table is left out. The
    models are mixed, with weights for each column: those of conditionals maximise the
    log-probability of the hidden entries [2]_ [4]_, those of means the squared error
    [5]_. Hidden entries of a column count beside ten (200 for means) that are like
    those of all numbers, or all categories. A model whose squared error in a column is
    larger than that of independent columns does not take part in its means. Independent
    columns always have a small weight, which bounds the loss where all other models are
    overconfident; draws are never made from them, unless no other model was chosen.
    Gaussians and mixtures are then trained on, on all rows, or on 20,000 of them; trees
    stay as they are.

    Numbers that follow from others of their row by linear relations that hold in all
    rows, such as a total of its parts, are filled in by these.

    Missing entries of a row are drawn one after the other, in random order, each given
    those that are present or drawn before it. Numbers with at most 20 values, each in
    five rows or more on average, are levels, and draws of them are levels. Draws of
    other numbers are on the grid of what was seen: whole numbers are whole. They are
    drawn from a density, unless a tenth of the rows or more share one number, such as
    an amount of 0: then draws come from hidden entries for which the models expected
    nearly the same, if ten are hidden. A draw is the number if such an entry is, and
    otherwise has its error [6]_. These entries are weighted so that their share of the
    number is that of all rows. Densities of rounded numbers are at most one over the
    rounding, so that nothing is gained below it.

    References
    ----------
    .. [1] D. B. Rubin, "Multiple imputation for nonresponse in surveys", Wiley, 1987.
    .. [2] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average
       Bayesian predictive distributions", Bayesian Analysis 13, 2018.
    .. [3] I.-K. Yeo and R. A. Johnson, "A new family of power transformations to
       improve normality or symmetry", Biometrika 87, 2000.
    .. [4] Y. Yao, G. Pirš, A. Vehtari and A. Gelman, "Bayesian hierarchical stacking:
       some models are (somewhere) useful", Bayesian Analysis 17, 2022.
    .. [5] J. M. Bates and C. W. J. Granger, "The combination of forecasts", Operational
       Research Quarterly 20, 1969.
    .. [6] N. Schenker and J. M. G. Taylor, "Partially parametric techniques for
       multiple imputation", Computational Statistics & Data Analysis 22, 1996.

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
    unmodelled_: dict
    indicator_: BaseEstimator
    n_features_in_: int
    feature_names_in_: np.ndarray
    _reader: TableReader
    _bounds: np.ndarray  # shape: (2, n_features), NaN where there is none
    _kept: np.ndarray  # indices of the columns that `transform` returns

    # All other parameters must not change after `fit`.
    _free_parameters = ("estimator", "max_seconds", "max_models", "random_state")
    _parameter_constraints: ClassVar[dict] = {
        "estimator": [None, HasMethods("impute")],
        "method": [StrOptions({"mean", "sample"})],
        "n_imputations": [COUNT],
        "missing_values": [MissingValues()],
        "add_indicator": ["boolean"],
        "keep_empty_features": ["boolean"],
        "max_seconds": [AUTO, POSITIVE, None],
        "max_models": [COUNT, None],
        "unknown": [StrOptions({"error", "missing"})],
    }

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        method: str = "mean",
        n_imputations: int = 10,
        likelihood: str | list | tuple | dict = "from_dtype",
        min_value: float | dict | ArrayLike | None = None,
        max_value: float | dict | ArrayLike | None = None,
        missing_values: object = np.nan,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        max_seconds: str | float | None = "auto",
        max_models: int | None = None,
        unknown: str = "missing",
        random_state: RandomState = None,
    ):
        self.estimator = estimator
        self.method = method
        self.n_imputations = n_imputations
        self.likelihood = likelihood
        self.min_value = min_value
        self.max_value = max_value
        self.missing_values = missing_values
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.max_seconds = max_seconds
        self.max_models = max_models
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
            What each row counts, in the choice of models, in the units of numbers and
            in fits: 2 is the row twice, and 0 leaves it out. None is 1. A given
            `estimator` must take it.

        Returns
        -------
        self : object
            The fitted imputer.

        Raises
        ------
        ValueError, TypeError
            If a parameter is not valid, or X has nothing to model. The message lists
            all problems, and the imputer stays as it was.

        Warns
        -----
        UserWarning
            If columns are not modelled, or hold numbers or dates as strings.
        """
        self._validate_params()
        check_seed(self.random_state)
        with all_or_nothing(self):
            forget(self)
            given = self._read(X, reset=True)
            X, weight = rows_that_count(given, sample_weight)
            weights, self._training_weight = {}, None
            if weight is not None:
                weights = {"sample_weight": weight}
                self._training_weight = digest_of(given), np.array(sample_weight)
            self._learn_table(X)
            if self.estimator is not None:
                self.estimator_ = clone(self.estimator).fit(X, **weights)
            else:
                self.estimator_ = StackedModels(
                    self._reader,
                    max_seconds=self.max_seconds,
                    max_models=self.max_models,
                    random_state=self.random_state,
                ).fit(X, **weights)
                self.selection_ = self.estimator_.selection_
            self._bound = bound_parameters(self, self._free_parameters)
        return self

    def _check_is_fitted(self):
        check_is_fitted(self)
        check_bound_parameters(self, self._bound)

    def _read(self, X, reset=False):
        """Check a table, and replace `missing_values` in it."""
        X = as_table(X, self, min_samples=2 if reset else 1)
        validate_data(self, with_distinct_names(X), reset=reset, skip_check_array=True)
        if not reset:
            names = getattr(self, "feature_names_in_", column_names(X))
            check_kind_of_table(X, self._reader, list(names))
        return with_missing(X, equal_entries(X, self.missing_values))

    def _learn_table(self, X):
        """Learn how columns are read, and warn of those that are not modelled."""
        likelihood, problems, names = self.likelihood, [], column_names(X)
        if self.estimator is not None:
            likelihood = "from_dtype"
            what = (
                f"is for the models that MPTImputer chooses, but estimator is a "
                f"{type(self.estimator).__name__}"
            )
            if not isinstance(self.likelihood, str) or self.likelihood != likelihood:
                given = reprlib.repr(self.likelihood)
                problems.append(f"likelihood={given} {what}: set its likelihood.")
            if self.keep_empty_features:
                problems.append(f"keep_empty_features {what}: leave it out.")
        try:
            self._reader, reasons = TableReader.learn(X, likelihood, KINDS)
        except (TypeError, ValueError) as error:
            self._reader, reasons = TableReader.learn(X, "from_dtype", KINDS)
            problems.append(str(error))
        bounds = self.min_value, self.max_value
        self._bounds, wrong = read_bounds(*bounds, self._reader, names)
        problems += wrong
        if self.estimator is None and not len(self._reader.modelled):
            advice = [
                " Convert columns, or name kinds to model them as they are: "
                f"MPTImputer(likelihood={{{names[j]!r}: 'categorical'}})."
                for j, why in reasons.items()
                if why not in (EMPTY, ONE_VALUE)
            ]
            found = _by_reason({names[j]: why for j, why in reasons.items()})
            problems.append(f"X has nothing to model: {found}.{''.join(advice[:1])}")
        if problems:
            raise ValueError(" ".join(problems))
        self._kept = np.arange(len(names))
        if self.estimator is None:
            self._learn_unmodelled(X, reasons)
        if self.add_indicator:
            from sklearn.impute import MissingIndicator  # its import takes long

            self.indicator_ = MissingIndicator(error_on_new=False)
            self.indicator_.fit(_as_nan(missing_entries(X)))

    def _learn_unmodelled(self, X, reasons):
        """Learn which columns have no model; warn of them, and of hidden numbers."""
        names = column_names(with_distinct_names(X))
        self.unmodelled_ = {names[j]: why for j, why in reasons.items()}
        empty, parts = [j for j, why in reasons.items() if why == EMPTY], []
        hints = looks_of_strings(X, self._reader, reasons)
        if reasons:
            parts.append(
                "MPTImputer does not model these columns, and leaves their values as "
                f"they are: {_by_reason(self.unmodelled_)}."
            )
        if ONE_VALUE in reasons.values():
            parts.append("Gaps beside one value are filled with it.")
        if self.keep_empty_features:
            self._reader = with_zeros(self._reader, empty)
        elif empty:
            self._kept = np.delete(self._kept, empty)
            parts.append(
                "Columns without values are left out (see keep_empty_features)."
            )
        if parts or hints:
            warn_caller(" ".join([*parts, *hints]))

    def transform(self, X: ArrayLike) -> Any:
        """Fill the gaps of X in.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
            Rows; NaN or None marks missing entries.

        Returns
        -------
        X : ndarray or DataFrame of shape (n_samples, n_features)
            A copy without gaps, as the estimator's `impute` returns it: a DataFrame if
            X is one and the model's `likelihood` determines kinds of columns. Columns
            with gaps then have the dtypes they are given in, or those of `fit` where
            these cannot hold what fills the gaps. A row is filled alone as beside
            others, but for draws, of which each row has its own, and for bounds with an
            `estimator`, which take draws.
        """
        known = self._known(X)
        return self._filled(self.estimator_, X, known, self.method, self.random_state)

    def _known(self, X):
        """Check a table, and replace what `transform` takes as missing in it."""
        self._check_is_fitted()
        X = self._read(X)
        categories = getattr(self.estimator_, "categories_", None)
        if self.unknown == "error" or categories is None:
            return X
        unknown = unknown_entries(X, categories)
        if unknown.any():
            found = [
                f"{column.name!r}: {listed(sorted({*map(str, column.values[here])}))}"
                for j, column in columns_at(X, np.flatnonzero(unknown.any(axis=0)))
                for here in [unknown[:, j]]
            ]
            warn_caller(
                "X has categories that fit did not see, which MPTImputer takes as "
                f"missing, in column(s) {', '.join(found)}."
            )
        return with_missing(X, unknown)

    def _filled(self, estimator, given, known, method, random_state):
        """Fill a table in, in the dtypes that were given, and add indicators."""
        filled = self._imputed(estimator, known, method, random_state)
        filled = _safe_indexing(with_dtypes_of(given, filled), self._kept, axis=1)
        if not hasattr(self, "indicator_"):
            return filled
        indicators = self.indicator_.transform(_as_nan(missing_entries(known)))
        names = column_names(with_distinct_names(known))
        added = self.indicator_.get_feature_names_out(names)
        return with_indicators(filled, indicators, added)

    def _imputed(self, estimator, X, method, random_state):
        """Return what an estimator fills in within bounds."""
        if hasattr(self, "selection_"):  # the parameter may have changed after fit
            return estimator.impute(X, method, random_state, self._bounds)
        filled = estimator.impute(X, method=method, random_state=random_state)
        if not np.isfinite(self._bounds).any():
            return filled
        is_draw, state = method == "sample", 0  # the same means in every call
        if is_draw:
            state = given_or_parameter(estimator, "random_state", random_state)
        how = self._reader, self._bounds, is_draw, spawn_seeds(state, 1)[0]
        return filled_within(estimator, X, filled, *how)

    def get_feature_names_out(self, input_features: ArrayLike | None = None):
        """Return the names of the columns that `transform` returns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the columns of X. None takes `feature_names_in_`, or x0, x1, ...

        Returns
        -------
        names : ndarray of str
            Those of columns that are left out because they are empty are not among
            them; those of indicators come last.
        """
        self._check_is_fitted()
        names = _check_feature_names_in(self, input_features)
        kept = names[self._kept]
        if not hasattr(self, "indicator_"):
            return kept
        return np.append(kept, self.indicator_.get_feature_names_out(names))

    def transform_multiple(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> list:
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
            The rows of `fit`, or others like them, to which alone the models of the
            tables are fitted: give few new rows together with those of `fit`. NaN or
            None marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts when rows are drawn; as many are drawn as the weights
            add up to. None is 1 or, if `fit` had weights, these: X must then be the
            table of `fit`.

        Returns
        -------
        tables : list of ndarray or DataFrame
            Copies of X without gaps, as `transform` returns them. All gaps are drawn,
            whatever `method` is.

        Raises
        ------
        ValueError
            If X has fewer than two rows, or no entry of a column that is modelled. If
            `fit` had weights, `sample_weight` is None, and X is another table.

        See Also
        --------
        pool_estimates : Pools what is estimated from each of them.
        """
        known = self._known(X)
        is_empty, names = missing_entries(known).all(axis=0), column_names(known)
        empty = [names[j] for j in self._reader.modelled if is_empty[j]]
        if len(known) < 2 or empty:
            found = f"no entries of column(s) {listed(empty)}" if empty else "one row"
            raise ValueError(
                f"transform_multiple fits models to the rows of X, which has {found}: "
                "give new rows together with those of fit."
            )
        if sample_weight is None and self._training_weight is not None:
            digest, sample_weight = self._training_weight
            if digest_of(known) != digest:
                raise ValueError(
                    "fit had sample_weight, and X is another table: give its weights."
                )
        weight = check_sample_weight(sample_weight, known)
        if weight.sum() < 2:
            raise ValueError(
                "sample_weight counts rows, and must add up to at least 2 for draws of "
                f"rows, got {weight.sum():.6g}."
            )
        tables = []
        for seed in spawn_seeds(self.random_state, self.n_imputations):
            rng = np.random.default_rng(seed)
            estimator = _bootstrap_fit(self.estimator_, known, rng, weight)
            tables.append(self._filled(estimator, X, known, "sample", seed_from(rng)))
        return tables

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
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
        sample_weight : array-like of shape (n_samples,), default=None
            What the entries of each row count in the mean. None is 1.

        Returns
        -------
        float
            In nats per entry: log-probabilities of categories, log-densities of numbers
            in the units of their column.
        """
        X = self._known(X)
        if not hasattr(self.estimator_, "conditional_log_prob"):
            raise TypeError(
                f"{type(self.estimator_).__name__} has no conditional_log_prob, and so "
                "MPTImputer has no score with it."
            )
        weight = check_sample_weight(sample_weight, X)
        present, columns = ~missing_entries(X) & (weight > 0)[:, None], slice(None)
        if hasattr(self, "unmodelled_"):  # not the user's estimator
            columns = self._reader.modelled
        keys = np.random.default_rng(0).random(present.shape)[:, columns]
        part_of, log_prob = np.full(present.shape, -1), np.zeros(present.shape)
        part_of[:, columns] = keys.argsort(axis=1).argsort(axis=1) % 4
        present &= part_of >= 0
        if not present.any():
            raise ValueError("X has no present entries to score.")
        for part in np.unique(part_of[present]):
            mask = part_of == part
            found = self.estimator_.conditional_log_prob(copy_of(X), mask)
            log_prob = np.where(mask & present, found, log_prob)
        return float(weight @ log_prob.sum(axis=1) / (weight @ present.sum(axis=1)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = self.estimator is None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _as_nan(missing):
    """Return an array that is NaN where entries are missing."""
    return np.where(missing, np.nan, 0.0)


def _by_reason(reasons):
    """List columns by the reason why they are not modelled."""
    columns = defaultdict(list)
    for name, reason in reasons.items():
        columns[reason].append(name)
    return "; ".join(f"{joined(part)} ({why})" for why, part in columns.items())


def _bootstrap_fit(estimator, X, rng, weight):
    """Return a copy of a fitted estimator, fitted to rows drawn with replacement."""
    # weight : (n,); as many rows are drawn as the sum, rounded. Training goes on from
    # the existing fit where the class has `warm_start`.
    n_drawn = int(np.floor(weight.sum() + 0.5))
    drawn = rng.choice(len(weight), size=n_drawn, p=weight / weight.sum())
    model = clone(estimator)
    if "warm_start" in estimator.get_params():
        model = copy.deepcopy(estimator).set_params(warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if has_fit_parameter(model, "sample_weight"):
            weight = np.bincount(drawn, minlength=len(weight)).astype(float)
            return model.fit(X, sample_weight=weight)
        return model.fit(take(X, np.sort(drawn)))
