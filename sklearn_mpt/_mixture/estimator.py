"""The mixture estimator, for rows with missing values."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import entr
from sklearn.utils import Bunch, check_consistent_length
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.density import as_tensor, as_view, torch_modes
from sklearn_mpt._base.inference import InformationCriteriaMixin
from sklearn_mpt._base.iterative import IterativeMPT
from sklearn_mpt._base.tables import LikelihoodNames, TableMPT
from sklearn_mpt._checks import (
    COUNT,
    POSITIVE_OR_0,
    RandomState,
    check_as_fitted,
    check_choice,
    check_device,
    check_int,
    listed,
    warn_caller,
)
from sklearn_mpt._likelihoods import Bernoulli, Columns
from sklearn_mpt._likelihoods.gaussian import check_sizes
from sklearn_mpt._likelihoods.interval import check_intervals, numbers_near
from sklearn_mpt._matrices import identity
from sklearn_mpt._mixture.covariances import FORMS
from sklearn_mpt._mixture.density import Components, MixtureDensity, MixtureLayout
from sklearn_mpt._mixture.em import MaskedRows, MixtureRows, em, em_on_part
from sklearn_mpt._mixture.information import MixtureParameters
from sklearn_mpt._mixture.start import (
    KINDS_OF_STARTS,
    first_components,
    with_given_arrays,
)
from sklearn_mpt._mixture.three_step import (
    CORRECTIONS,
    Assignments,
    ClassOutcomes,
    CovariateEffects,
    class_outcomes,
    covariate_effects,
    read_covariates,
    read_outcome,
)
from sklearn_mpt._numbers import ROUNDING
from sklearn_mpt._optim.masks import MaskSource, ends_without_masks
from sklearn_mpt._optim.steps import (
    Training,
    ascent_to_noise,
    averaged_ascent,
    best_of_runs,
)
from sklearn_mpt._tables.kinds import INTERVAL
from sklearn_mpt._tables.weights import check_sample_weight, warn_of_row_labels


class MPTMixture(InformationCriteriaMixin, TableMPT, IterativeMPT):
    r"""Mixture of Gaussians, latent classes or latent profiles, with missing values.

    Each row belongs to one of `n_components` components, to component k with
    probability :math:`\pi_k`. Within a component, Gaussian columns have a joint
    Gaussian distribution, as in `sklearn.mixture.GaussianMixture`. Columns of other
    kinds (see `likelihood`) are independent of all other columns within a component.
    Missing entries are integrated out, in training and in every method. A step with
    masks is a step of EM in which the expected statistics of masked rows replace those
    of whole rows [2]_. The :ref:`user guide <mixture>` has the cost of an epoch.

    Parameters
    ----------
    n_components : int, default=1
        Number of components. `fit` warns if categories have fewer cells than the
        components have parameters: then other components fit as well.
    likelihood : str, sequence of str or dict, default="gaussian"
        Kinds of the columns: "gaussian", "bernoulli", "categorical" or "poisson", one
        name for all columns or one for each, a dict or "from_dtype", as in
        `MPTLinearVAE`. Ordered categories are "categorical". With `covariance_type`
        "diag" or "spherical" also "interval", Gaussian columns of numbers known only to
        lie in intervals: :ref:`intervals`.
    covariance_type : {"full", "tied", "diag", "spherical", "low_rank"}, default="full"
        Form of the covariances of Gaussian columns: a matrix for each component, one
        matrix for all, a variance for each column, one variance for each component, or,
        for many columns, `n_factors` factors and noise variances [3]_.
    n_factors : int, default=1
        Number of factors of each component, if `covariance_type` is "low_rank".
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" weighs all sizes alike and is
        unbiased for the log marginal likelihood (LML) [1]_; a float in (0, 1] is a
        fixed rate and an int a fixed size, both biased.
    n_masks : int or "auto", default="auto"
        Number of masks in each step, shared by the rows. "auto" is 32; if `mask_rate`
        is "uniform", masks are drawn until an epoch gains no more than their noise, and
        the last epochs train on all mask sizes without masks.
    objective : {"mpt", "lml"}, default="mpt"
        What training maximises: the masked scores, or the LML by EM.
    n_init : int, default=1
        Number of starts. Each is trained by EM until it ends, and the best goes on.
    init_params : str, default="auto"
        How the first responsibilities are found: "kmeans", "k-means++", "random" or
        "random_from_data", as in `sklearn.mixture.GaussianMixture`; or "hierarchical",
        which merges rows by Ward's criterion in columns without correlations and of
        variance 1, much as mclust does [4]_ (2,000 drawn rows, if there are more).
        Means take the place of gaps. "auto" is "kmeans" for the first of `n_init`
        starts, "hierarchical" for the second, and "random_from_data" for others. With
        another value all starts are of this kind.
    weights_init, means_init, precisions_init : array-like, default=None
        Weights, means of the Gaussian columns and inverse covariances to start from, in
        the shapes of `weights_`, (n_components, n_gaussian) and of `covariances_`. Rows
        and columns of Series and DataFrames are matched by their labels.
    reg_covar : float, default=1e-6
        Number added to the diagonal of covariances in every step.
    max_iter : int, default=1000
        Largest number of epochs. With 0 the parameters stay at their start.
    learning_rate : float, default=1.0
        Size of the first steps with masks; 1 is a full step of EM.
    tol : float, default=1e-4
        Training ends when the last epoch gained less than this, and all epochs to come
        are expected to gain less together; in nats per row.
    n_iter_no_change : int, default=5
        Where all epochs draw masks, training ends when so many more are expected to
        gain less than `tol`.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if there is a GPU, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the starts and the masks.
    n_jobs : int, default=None
        Number of joblib workers of `mpt_curve` and `feature_contributions`, unless
        these get another number.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Probabilities of the components.
    means_ : ndarray of shape (n_components, n_features)
        Expected values of the columns in each component. In tables with categorical
        columns, NaN for all columns that are not Gaussian.
    covariances_, precisions_, precisions_cholesky_ : ndarray
        Covariances of the Gaussian columns, their inverses, and Cholesky factors of
        these, shaped as in `sklearn.mixture.GaussianMixture`; "low_rank" as "full".
    locations_ : ndarray of shape (n_components, n_locations)
        Logits ("bernoulli"), logarithms of rates ("poisson"), or logarithms of
        probabilities up to a constant ("categorical") of the other columns.
    factors_, noise_variances_ : ndarray
        Loadings of the factors, (n_components, n_factors, n_gaussian), and noise
        variances, (n_components, n_gaussian); empty unless "low_rank".
    likelihoods_, categories_ : list
        Kinds and categories of the columns, if rows are read as a table.
    n_iter_ : int
        Number of epochs trained, without those that chose among several starts.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "exact".
    n_features_in_ : int
        Number of features in `fit`; `feature_names_in_` has their names, if strings.

    See Also
    --------
    sklearn.mixture.GaussianMixture : Mixture fitted by EM to complete rows.
    MPTLinearVAE : Model with continuous latent variables.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for
       latent data models", Journal of the Royal Statistical Society B 71, 2009.
    .. [3] Z. Ghahramani and G. E. Hinton, "The EM algorithm for mixtures of factor
       analyzers", technical report CRG-TR-96-1, University of Toronto, 1996.
    .. [4] L. Scrucca and A. E. Raftery, "Improved initialisation of model-based
       clustering using Gaussian hierarchical partitions", Advances in Data Analysis
       and Classification 9, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_mpt import MPTMixture
    >>> X = load_iris().data
    >>> X[::3, 1] = np.nan
    >>> model = MPTMixture(n_components=3, random_state=0).fit(X)
    >>> model.predict_proba(X).shape
    (150, 3)
    >>> bool(np.isnan(model.impute(X)).any())
    False
    """

    weights_: np.ndarray
    means_: np.ndarray
    covariances_: np.ndarray
    precisions_: np.ndarray
    precisions_cholesky_: np.ndarray
    locations_: np.ndarray
    factors_: np.ndarray
    noise_variances_: np.ndarray
    _floor: float

    _free_parameters = (
        *IterativeMPT._free_parameters,
        "n_init",
        "init_params",
        "weights_init",
        "means_init",
        "precisions_init",
        "reg_covar",
    )
    # components have no thresholds or dispersions of their own
    _kinds_taken = ("gaussian", "bernoulli", "categorical", "poisson", INTERVAL)
    _parameter_constraints: ClassVar[dict] = IterativeMPT._parameter_constraints | {
        "objective": [StrOptions({"mpt", "lml"})],
        "covariance_type": [StrOptions({*FORMS})],
        "init_params": [StrOptions({"auto", *KINDS_OF_STARTS})],
        "n_init": [COUNT],
        "n_factors": [COUNT],
        "reg_covar": [POSITIVE_OR_0],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        likelihood: LikelihoodNames = "gaussian",
        covariance_type: str = "full",
        n_factors: int = 1,
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        objective: str = "mpt",
        n_init: int = 1,
        init_params: str = "auto",
        weights_init: ArrayLike | None = None,
        means_init: ArrayLike | None = None,
        precisions_init: ArrayLike | None = None,
        reg_covar: float = 1e-6,
        max_iter: int = 1000,
        learning_rate: float = 1.0,
        tol: float = 1e-4,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.likelihood = likelihood
        self.covariance_type = covariance_type
        self.n_factors = n_factors
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.objective = objective
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Compute the probability of each component given the present entries.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_components)
            Probabilities, which add up to 1 in each row.
        """
        return self._proba_of_rows(self._validate_rows(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable component of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        labels : ndarray of int, of shape (n_samples,)
            Numbers of components, from 0 on.
        """
        return self.predict_proba(X).argmax(axis=1)

    def fit_predict(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Fit the model to X and return the most probable component of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows. With None all are 1.

        Returns
        -------
        labels : ndarray of int, of shape (n_samples,)
            Numbers of components, from 0 on.
        """
        return self.fit(X, y, sample_weight).predict(X)

    def transform(self, X: ArrayLike) -> np.ndarray:
        """Compute the probability of each component, as `predict_proba` does.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_components)
            Probabilities, which add up to 1 in each row.
        """
        X = self._validate_rows(X)
        return self._proba_of_rows(X, X.dtype)

    def _proba_of_rows(self, X, dtype=None):
        """Return the probability of each component, for rows that are checked."""
        density = self._density()
        return self._map_rows(
            density, lambda x: density.log_responsibility(x).exp(), X, dtype=dtype
        )

    def standard_errors(
        self, X: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Bunch:
        r"""Compute standard errors of the fitted parameters, by observed information.

        The covariance of the estimates is the inverse of minus the second derivatives
        of :math:`\sum_i \log p(x_i)` at the fitted parameters, as for
        `MPTLinearVAE.standard_errors`. Priors that keep probabilities above zero are
        not in it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training rows; NaN marks missing entries.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, as in `fit`.

        Returns
        -------
        errors : Bunch
            Standard errors, of the shapes of the fitted attributes: ``weights``;
            ``means``, NaN where `means_` is; ``covariances``, if there are Gaussian
            columns; and, if there are others, ``locations``, less their mean over the
            categories of a column, and ``probabilities``, which are the probabilities
            and rates that `locations_` stand for, in the same shape. NaN, with a
            warning, for parameters that these rows, or any number of rows, do not
            determine; and for covariances at the floor of `reg_covar`, which the other
            errors take as known. Also
            ``covariance``, of all weights, means and locations, flattened and in this
            order, from which errors of functions of them follow.

        Warns
        -----
        UserWarning
            If X and `sample_weight` are not those of the last `fit`. If the rows do not
            determine some parameters, or the model is not at a maximum: fit with a
            smaller `tol`. If no number of rows determines some parameters: five classes
            of three binary columns have more parameters than the table has cells.

        Notes
        -----
        The second derivatives are exact, by automatic differentiation. With P
        parameters they cost P passes over the rows. Parameters that no number of rows
        determines are found as in `MPTLinearVAE.standard_errors`.

        Components may be numbered in any order, and the errors are those of the order
        of the fit. They suppose that components are well apart: near a fit with fewer
        components the likelihood is far from a parabola.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn_mpt import MPTMixture
        >>> X = load_iris().data
        >>> model = MPTMixture(2, tol=1e-8, random_state=0).fit(X)
        >>> model.standard_errors(X).means.shape
        (2, 4)
        """
        warn_of_row_labels(X, sample_weight, "sample_weight")
        X = self._validate_rows(X)
        weight = self._check_training_weight(X, sample_weight)
        device = check_device(self.device)
        layout = self._layout(device)
        with torch_modes(with_grad=True):
            components = self._components(vars(self), device)
            parameters = MixtureParameters(components, layout)
            tensors = as_tensor(X, device), as_tensor(weight, device)
            at_floor = self._components_at_floor(vars(self))
            return Bunch(**parameters.standard_errors(*tensors, at_floor))

    def covariate_effects(
        self,
        X: ArrayLike,
        covariates: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        correction: str = "ml",
        reference: int = 0,
    ) -> CovariateEffects:
        r"""Regress the class of a row on covariates, in three steps.

        Rows are assigned to their most probable classes. A multinomial logit of the
        class is then fitted to the covariates, corrected for wrong assignments.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training rows; NaN marks missing entries.
        covariates : array-like of shape (n_samples, n_columns) or (n_samples,)
            Columns of numbers, booleans or strings, by position as X has its rows, not
            by labels. A column of strings, or of a categorical dtype, becomes an
            indicator of each of its categories but the first one. Rows with gaps have
            no part in the regression, with a warning; they count in ``assignment``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, as in `fit`.
        correction : {"ml", "bch", "none"}, default="ml"
            "ml" maximises the likelihood of the assignments, given their errors [1]_;
            "bch" weights rows by the inverse of the probabilities of errors [2]_;
            "none" takes assignments as if they had no errors, so that effects are too
            small.
        reference : int, default=0
            The class with which others are compared.

        Returns
        -------
        effects : named tuple
            ``intercept`` and ``coef``, each with ``_std_error``, of shapes
            (n_components,) and (n_components, n_covariates): the log-odds of class k
            beside the class `reference` are ``intercept[k] + coef[k] @ z``.
            ``covariance`` of all of them, (n_components, 1 + n_covariates) twice;
            ``statistic`` and ``p_value`` of Wald's tests that a covariate has no
            effect; ``assignment``, the probability that a row of a class (first axis)
            is assigned to a class; and ``names`` of the covariates, such as
            "town=Bern" of an indicator.

        Raises
        ------
        ValueError
            If no row is assigned to some class, or a covariate has one value.

        Warns
        -----
        ConvergenceWarning
            If steps do not end. Where covariates separate classes, effects and their
            errors are large.
        UserWarning
            If covariates have gaps, the rows do not determine some effects, or X and
            `sample_weight` are not those of the last `fit` and there is a correction.

        Notes
        -----
        Standard errors are from the observed information ("ml"), or robust ones. The
        errors of the probabilities of assignments are in them [3]_, unless `correction`
        is "none": they cost those of `standard_errors`.

        References
        ----------
        .. [1] J. K. Vermunt, "Latent class modeling with covariates: two improved
           three-step approaches", Political Analysis 18, 2010.
        .. [2] A. Bolck, M. Croon and J. Hagenaars, "Estimating latent structure models
           with categorical variables: one-step versus three-step estimators",
           Political Analysis 12, 2004.
        .. [3] Z. Bakk, D. L. Oberski and J. K. Vermunt, "Relating latent class
           assignments to external variables: standard errors for correct inference",
           Political Analysis 22, 2014.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn_mpt import MPTMixture
        >>> X = load_iris().data
        >>> model = MPTMixture(2, random_state=0).fit(X[:, :2])
        >>> effects = model.covariate_effects(X[:, :2], X[:, 3:])
        >>> effects.coef.shape
        (2, 1)
        """
        check_choice(correction, "correction", CORRECTIONS)
        self._check_is_fitted()
        check_int(reference, "reference", 0)
        largest = len(self.weights_) - 1
        if reference > largest:
            raise ValueError(
                f"reference must be a class from 0 to {largest}, got {reference}."
            )
        if largest == 0:
            raise ValueError("n_components=1 has no classes to tell from each other.")
        warn_of_row_labels(X, covariates, "covariates")
        Z, names = read_covariates(covariates)
        check_consistent_length(X, Z)
        has_all = ~np.isnan(Z).any(axis=1)
        n_gaps = np.count_nonzero(~has_all)
        if n_gaps == len(Z):
            raise ValueError("covariates must have a row without gaps, got none.")
        if n_gaps:
            warn_caller(
                f"{n_gaps} of {len(Z)} rows of covariates have gaps, and have no part "
                "in the regression."
            )
        with torch_modes(with_grad=True):
            assignments = self._assignments(X, sample_weight, correction)
            assignments = assignments.take(torch.from_numpy(has_all))
            return covariate_effects(assignments, Z[has_all], names, int(reference))

    def class_outcomes(
        self,
        X: ArrayLike,
        outcome: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        correction: str = "bch",
    ) -> ClassOutcomes:
        r"""Estimate the mean of an outcome in each class, in three steps.

        Rows are assigned to their most probable classes, and means are corrected for
        wrong assignments. The outcome has no part in the fit, so it does not change the
        classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training rows; NaN marks missing entries.
        outcome : array-like of shape (n_samples,)
            Numbers, whose means are estimated, or categories (strings or booleans),
            whose probabilities are, by position as X has its rows, not by labels. Rows
            whose outcome is missing are left out.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows, as in `fit`.
        correction : {"bch", "ml", "none"}, default="bch"
            As in `covariate_effects`. "bch" supposes nothing about the distribution of
            the outcome; its probabilities may be a little below 0 or above 1. "ml"
            supposes that numbers are normal in each class: if they are not, its means
            may be far off.

        Returns
        -------
        outcomes : named tuple
            ``estimate`` and ``std_error``, of shape (n_components,) for numbers, or
            (n_components, n_categories); ``covariance`` of the estimates, flattened;
            ``statistic`` and ``p_value`` of Wald's test that all classes are alike;
            ``categories``; and ``assignment`` as in `covariate_effects`.

        Raises
        ------
        ValueError
            If no row is assigned to some class, or all outcomes are the same.

        Warns
        -----
        UserWarning
            If X and `sample_weight` are not those of the last `fit`, and there is a
            correction.

        See Also
        --------
        covariate_effects : What the class of a row depends on, with references.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn_mpt import MPTMixture
        >>> X = load_iris().data
        >>> model = MPTMixture(2, random_state=0).fit(X[:, :2])
        >>> model.class_outcomes(X[:, :2], X[:, 3]).estimate.shape
        (2,)
        """
        check_choice(correction, "correction", CORRECTIONS)
        warn_of_row_labels(X, outcome, "outcome")
        present, categories, is_missing = read_outcome(outcome)
        check_consistent_length(X, is_missing)
        with torch_modes(with_grad=True):
            assignments = self._assignments(X, sample_weight, correction)
            assignments = assignments.take(torch.from_numpy(~is_missing))
            return class_outcomes(assignments, present, categories)

    def _assignments(self, X, sample_weight, correction):
        """Return the rows assigned to classes, with the probabilities of errors."""
        weight = check_sample_weight(sample_weight, X)
        X = self._validate_rows(X)
        X, weight = as_tensor(X, "cpu"), as_tensor(weight, "cpu")
        parameters = MixtureParameters(
            self._components(vars(self), "cpu"), self._layout()
        )

        def proba_of(values):
            return parameters.density(values).log_responsibility(X).exp()

        def covariance():
            self._check_training_weight(X.numpy(), weight.numpy())
            at_floor = self._components_at_floor(vars(self))
            return parameters.covariance(X, weight, at_floor)

        return Assignments.from_proba(
            proba_of, parameters.values, weight, correction, covariance
        )

    def _n_parameters(self, fitted=None):
        """Return the number of free parameters of fitted attributes."""
        components = self._components(fitted or vars(self), "cpu")
        n_components, n_gaussian = components.means.shape
        layout = self._layout()
        eye = identity(components.locations.shape[1], components.locations)
        # locations that change the distribution: centring is a projection
        n_locations = round(float(layout.likelihood.centre(eye).trace()))
        rotations = layout.form.n_rotations(n_gaussian)
        n_numbers = sum(part.numel() for part in layout.form.free(components))
        means = n_components * (n_gaussian + n_locations - rotations)
        return n_components - 1 + means + n_numbers

    @property
    def _n_features_out(self):
        return len(self.weights_)

    def _check_parameters(self, n_features):
        if INTERVAL in self._kinds and not self._layout().form.takes_intervals:
            forms = [name for name, form in FORMS.items() if form.takes_intervals]
            raise ValueError(
                f"covariance_type={self.covariance_type!r} takes no columns of "
                f"intervals: use one of {listed(forms)}, or MPTLinearVAE, with "
                "correlated columns."
            )

    def _check_fitted_parameters(self):
        check_as_fitted(self.n_components, self._n_features_out, "n_components")

    def _layout(self, device="cpu"):
        """Return which columns are Gaussian, and the likelihood of the others."""
        by_column, likelihood = self._likelihood_by_column(), Bernoulli()
        kinds = by_column.kinds
        is_gaussian = np.array([kind in ("gaussian", INTERVAL) for kind in kinds])
        gaussian, others = np.flatnonzero(is_gaussian), np.flatnonzero(~is_gaussian)
        if len(others):
            kinds = [kinds[j] for j in others]
            counts = [by_column.n_categories[j] for j in others]
            likelihood = Columns(kinds, counts).to(device).requires_grad_(False)
        columns = (torch.from_numpy(part).to(device) for part in (gaussian, others))
        form = FORMS[self.covariance_type](self.n_factors)
        return MixtureLayout(form, *columns, likelihood)

    def _has_priors(self, n_features):
        layout = self._layout()
        return len(layout.others) > 0 or layout.form.has_prior

    # The start

    def _start(self, X, rng, weight):
        if self.n_components > len(X):
            raise ValueError(
                f"n_components={self.n_components} must be at most the number of "
                f"rows, {len(X)}."
            )
        if INTERVAL in self._kinds:
            check_intervals(X[:, np.array(self._kinds) == INTERVAL])
        check_sizes(self._numbers(X))
        components = self._started(X, weight, 0, rng)
        return {"lml_method_": "exact"} | self._trained_attributes(components, {})

    def _started(self, X, weight, i, rng):
        """Return the components of the i-th start, with the arrays of the user."""
        layout, kind = self._layout(), self.init_params
        if kind == "auto":
            kind = ("kmeans", "hierarchical", "random_from_data")[min(i, 2)]
        weight = np.ones(len(X)) if weight is None else weight
        args = self.n_components, kind, rng, layout, self.reg_covar
        components = first_components(self._numbers(X), weight, *args)
        names = self._table_names or range(self.n_features_in_)
        arrays = {
            name: getattr(self, name)
            for name in ("weights_init", "means_init", "precisions_init")
        }
        columns = [names[j] for j in layout.gaussian.tolist()]
        return with_given_arrays(
            components, arrays, columns, layout.form, self.reg_covar
        )

    def _numbers(self, X):
        """Return rows with numbers in place of intervals, for starts."""
        return numbers_near(X) if INTERVAL in self._kinds else X

    # Training

    def _epochs(self, data, training):
        device, rate, tol = data.device, self.learning_rate, self.tol
        weight = np.ones(len(data.X)) if data.weight is None else data.weight
        rows = MixtureRows(
            as_view(data.X, device),
            as_tensor(weight, device),
            self._layout(device),
            self.reg_covar,
            data.is_all,
        )
        training.params = self._components(data.fitted, device)
        if not data.is_all:
            n_steps = data.fitted["n_iter_"]
            yield from em_on_part(training, rows, learning_rate=rate, n_steps=n_steps)
            return
        if data.is_new and self.n_components > 1 and self.n_init > 1:
            runs = [Training(self.max_iter, training.params)]
            for i in range(1, self.n_init):
                start = self._started(data.X, data.weight, i, data.rng)
                start = Components(*(part.to(device) for part in start))
                runs.append(Training(self.max_iter, start))
            training.params = best_of_runs([(r, em(r, rows, tol=tol)) for r in runs])
        epochs = em(training, rows, tol=tol)
        if self.objective != "lml":
            source = MaskSource(self.mask_rate, self.n_masks, data.X.shape[1])
            masked = training, MaskedRows(rows, source)
            params = {"learning_rate": rate, "rng": data.rng, "tol": tol}
            if ends_without_masks(self.mask_rate, self.n_masks):
                epochs = ascent_to_noise(*masked, epochs, **params)
            else:
                params["n_iter_no_change"] = self.n_iter_no_change
                epochs = averaged_ascent(*masked, **params)
        yield from epochs

    def _trained_attributes(self, result, fitted):
        layout, components = self._layout(), Components(*(p.cpu() for p in result))
        form, covariances = layout.form, components.covariances
        roots, precisions = form.inverses(covariances)
        attributes = {
            "weights_": components.weights,
            "means_": layout.means(components),
            "covariances_": form.compress(covariances),
            "precisions_cholesky_": form.compress(roots),
            "precisions_": form.compress(precisions),
            "locations_": components.locations,
            "factors_": components.loadings.mT,
            "noise_variances_": components.noise,
        }
        floor = {"_floor": self.reg_covar}  # of variances
        return {k: v.numpy().copy() for k, v in attributes.items()} | floor

    def _components(self, fitted, device):
        layout = self._layout()
        means = fitted["means_"][:, layout.gaussian.numpy()]
        loadings = np.swapaxes(fitted["factors_"], 1, 2)
        others = (fitted["locations_"], loadings, fitted["noise_variances_"])
        arrays = (fitted["weights_"], means, fitted["covariances_"], *others)
        components = Components(*(as_tensor(array, device) for array in arrays))
        return components._replace(
            covariances=layout.form.expand(components.covariances, *means.shape)
        )

    def _density_of(self, fitted, device):
        layout = self._layout(device)
        return MixtureDensity(self._components(fitted, device), layout)

    def _train(self, data, context):
        fitted = super()._train(data, context)
        if self.max_iter > 0:
            self._warn_of_components(fitted, data)
            self._warn_of_cells(fitted)
        return fitted

    def _warn_of_cells(self, fitted):
        """Warn if classes have more parameters than their table has cells."""
        values = self._layout().values_of_each
        if values is None:
            return
        n_cells = math.prod(map(len, values))
        n_parameters = self._n_parameters(fitted)
        if n_parameters >= n_cells:
            warn_caller(
                f"{self.n_components} components have {n_parameters} parameters, but "
                f"the table has only {n_cells} cells: other components fit as well, so "
                "these have no meaning of their own. Use fewer, or more columns."
            )

    def _warn_of_components(self, fitted, data):
        """Warn of components that stand for few rows, or that are all the same."""
        n_rows = len(data.X)
        if data.weight is not None:  # small ones may be relative
            n_rows = max(n_rows, data.weight.sum())
        few = np.flatnonzero(n_rows * fitted["weights_"] < 1.5)
        if len(few):
            warn_caller(
                f"Component(s) {listed(few)} stand for fewer than 1.5 rows each. Use "
                "fewer components, or another start (n_init)."
            )
        if self.n_components == 1:
            return
        # Mutual information of rows and components: at most the entropy of these. By
        # 2000 rows, so that it costs no epoch. 72 fits to noise told 1.4% and more of
        # the entropy (benchmarks/RESULTS.rst, "Mixtures of noise").
        rows = slice(None, None, math.ceil(len(data.X) / 2000))
        density = self._density_of(fitted, data.device)
        X = as_tensor(data.X[rows], data.device)
        proba = density.log_responsibility(X).exp().cpu().numpy()
        weight = None if data.weight is None else data.weight[rows]
        entropy = entr(np.average(proba, axis=0, weights=weight)).sum()
        left = np.average(entr(proba).sum(axis=1), weights=weight)
        if entropy - left < 0.01 * entropy:
            warn_caller(
                f"All {self.n_components} components have nearly the same "
                f"distribution: a row tells {entropy - left:.2g} of the {entropy:.2g} "
                "nats that say which one it is from. One component describes X as "
                "well; use n_components=1, or other starts (n_init, init_params)."
            )

    def _components_at_floor(self, fitted):
        """Return the components with a variance at the floor, `reg_covar` of fit.

        A variance is there, too, if it is 0, or a rounding error beside those of the
        columns.
        """
        components = self._components(fitted, "cpu")
        if not components.means.numel():
            return np.arange(0)
        form = self._layout().form
        least, relative = form.least_variances(components.covariances)
        return np.flatnonzero((least < 2 * fitted["_floor"]) | (relative < ROUNDING))

    def _warn_of_limits(self, fitted, n_samples):
        flat = self._components_at_floor(fitted)
        if len(flat):
            warn_caller(
                f"The variance of component(s) {listed(flat)} fell to the floor of "
                f"reg_covar={self.reg_covar}, or to a rounding error, in some "
                "direction: the likelihood has no maximum there. Use fewer components, "
                "a simpler covariance_type, or a larger reg_covar."
            )
