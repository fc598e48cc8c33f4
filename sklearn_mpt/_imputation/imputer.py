"""A transformer that fills gaps in by a model trained by masking."""

from typing import Self

import numpy as np
from narwhals.stable.v2.dependencies import is_into_dataframe
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    OneToOneFeatureMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils.validation import (
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from sklearn_mpt._checks import check_choice
from sklearn_mpt._frames import with_distinct_names
from sklearn_mpt._linear.vae import MPTLinearVAE
from sklearn_mpt._persistence import VersionedPickleMixin
from sklearn_mpt._seeds import RandomState


class MPTImputer(
    OneToOneFeatureMixin, TransformerMixin, VersionedPickleMixin, BaseEstimator
):
    r"""Fill gaps in by a model of the rows, for use in a Pipeline.

    A gap gets what the model expects there given the rest of the row, or a draw of all
    gaps of a row from their joint distribution :math:`p(x_{missing} \mid x_R)`. Several
    imputers that draw, each fitted to rows drawn with replacement (by `sample_weight`),
    make multiple imputation [1]_: fits differ by as much as rows leave uncertain.

    Parameters
    ----------
    estimator : estimator, default=None
        What fills in: anything with `fit` and `impute`, such as `MPTLinearVAE`,
        `MPTProbabilisticPCA` or `MPTDeepVAE`. None is an `MPTLinearVAE` with two
        components (one, if there is one column), ``noise="per_feature"`` and, where X
        is a DataFrame, ``likelihood="from_dtype"``.
    method : {"mean", "sample"}, default="mean"
        "mean" fills in the conditional expectation, or the most probable category;
        "sample" one draw.
    random_state : int, RandomState instance or None, default=None
        Determines the draws, and the fit of the default estimator. None takes the own
        one of `estimator`.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone of `estimator`.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    MPTLinearVAE : The default model, with the kinds of columns it takes.
    sklearn.impute.IterativeImputer : Fills in by regressions in turn.

    References
    ----------
    .. [1] D. B. Rubin, "Multiple imputation for nonresponse in surveys", Wiley, 1987.

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
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        *,
        method: str = "mean",
        random_state: RandomState = None,
    ):
        self.estimator = estimator
        self.method = method
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the model to X.

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
        check_choice(self.method, "method", ["mean", "sample"])
        self._check_estimator()
        estimator = self.estimator
        estimator = self._default(X) if estimator is None else clone(estimator)
        self.estimator_ = estimator.fit(X, **_weights_for(estimator, sample_weight))
        validate_data(self, with_distinct_names(X), skip_check_array=True)
        return self

    def _check_estimator(self):
        if self.estimator is not None and not hasattr(self.estimator, "impute"):
            raise TypeError(
                "estimator must have a method impute, such as MPTLinearVAE(), got "
                f"{self.estimator!r}."
            )

    def _default(self, X):
        return MPTLinearVAE(
            n_components=1 if np.shape(X)[1:] == (1,) else 2,
            likelihood="from_dtype" if is_into_dataframe(X) else "gaussian",
            noise="per_feature",
            random_state=self.random_state,
        )

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
            cannot hold what fills the gaps.
        """
        check_is_fitted(self)
        return self.estimator_.impute(
            X, method=self.method, random_state=self.random_state
        )

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
