"""Mixtures with gaps."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_mpt._mixture.family import MixtureFamily
from sklearn_mpt._seeds import RandomState
from sklearn_mpt._tables.estimator import LikelihoodNames, TableMPT


class MPTMixture(TableMPT):
    r"""Mixture of Gaussians, latent classes or latent profiles, with missing values.

    A row belongs to one of `n_components` components, k with probability
    :math:`\pi_k`. In a component the columns of numbers are Gaussian, as in
    `sklearn.mixture.GaussianMixture`; columns of another kind, as `likelihood` says,
    are independent of all others. Missing entries are integrated out, in training and
    everywhere else.

    Parameters
    ----------
    n_components : int, default=1
        Number of components.
    likelihood : str, sequence of str or dict, default="gaussian"
        Kinds of the columns: "gaussian", "bernoulli", "categorical", "poisson", one
        name for all or one for each, or "from_dtype", as in `MPTLinearVAE`.
        "categorical" makes latent classes, several kinds latent profiles.
    covariance_type : {"full", "tied", "diag", "spherical", "low_rank"}, default="full"
        What covariances of Gaussian columns are: one matrix for each component; one for
        all; diagonal; a number; or, for many columns, `n_factors` factors of each
        component and a noise variance for each column, a mixture of factor analysers
        [3]_ (there a component counts one more row, with the noise of all).
    n_factors : int, default=1
        Number of factors of each component, if `covariance_type` is "low_rank".
    mask_rate : "uniform", float or int, default="uniform"
        How many features each mask hides. "uniform" weighs all sizes alike and is
        unbiased for the log marginal likelihood (LML) [1]_; a float in (0, 1] is a
        fixed rate and an int a fixed size, both biased.
    n_masks : int or "auto", default="auto"
        Masks in each step, which the rows share. An int trains by masks alone. "auto"
        is 64, and for a uniform rate ends with epochs on the sum of the scores of all
        mask sizes.
    objective : {"mpt", "lml"}, default="mpt"
        What is maximised: the masked scores, or the LML itself, by EM.
    n_init : int, default=1
        Number of starts, of which the best after 25 epochs of EM goes on.
    init_params : str, default="kmeans"
        How rows are first shared among the components: "kmeans" by clusters of rows in
        which means stand in for gaps; "k-means++" and "random_from_data" by the nearest
        of drawn rows; "random" at random.
    weights_init : array-like of shape (n_components,), default=None
        Weights to start from.
    means_init : array-like of shape (n_components, n_gaussian), default=None
        Means of the Gaussian columns to start from.
    precisions_init : array-like, default=None
        Inverse covariances to start from, in the shape of `covariances_`.
    reg_covar : float, default=1e-6
        What is added to the diagonal of covariances in every step.
    max_iter : int, default=1000
        Largest number of epochs. 0 keeps the start.
    learning_rate : float, default=1.0
        Size of the first steps by masks; 1 is a full step of EM.
    tol : float, default=1e-4
        Training ends where an epoch, and all epochs to come, would gain less, in nats
        per row.
    n_iter_no_change : int, default=5
        Number of epochs by masks whose mean is compared with that of those before.
    warm_start : bool, default=False
        Whether `fit` goes on from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" takes CUDA if there is any, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines the starts and the masks.
    n_jobs : int, default=None
        Number of joblib workers that `mpt_curve` and `feature_contributions` use for
        this model unless told otherwise.

    Attributes
    ----------
    weights_ : ndarray of shape (n_components,)
        Probabilities of the components.
    means_ : ndarray of shape (n_components, n_features)
        Expected values; NaN for columns that are not Gaussian in tables with
        categories.
    covariances_ : ndarray
        Of the Gaussian columns: of shape (n_components, n_gaussian, n_gaussian);
        "tied": (n_gaussian, n_gaussian); "diag": (n_components, n_gaussian);
        "spherical": (n_components,).
    precisions_ : ndarray
        Their inverses, in the same shape.
    precisions_cholesky_ : ndarray
        Roots of these, in the same shape.
    locations_ : ndarray of shape (n_components, n_locations)
        Logits, log rates and logarithms of shares of the columns that are not Gaussian.
    factors_ : ndarray of shape (n_components, n_factors, n_gaussian)
        Loadings of the factors; empty unless `covariance_type` is "low_rank".
    noise_variances_ : ndarray of shape (n_components, n_gaussian)
        Noise variances beside the factors; empty unless there are factors.
    likelihoods_, categories_ : list
        Kinds and categories of the columns, where rows are read as a table.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "exact".
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where all are strings.

    See Also
    --------
    sklearn.mixture.GaussianMixture : The same by EM, without missing values.
    MPTLinearVAE : Continuous latent variables in the place of components.

    Notes
    -----
    An epoch of EM costs :math:`O(P K D^3 + N K D^2)` for P patterns of missing entries
    in N rows. A step by masks does what one of EM does, with expected statistics of
    masked rows in the place of those of whole rows [2]_. Columns that are not Gaussian
    count one more row, the mean of all, in every component: no category is impossible.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.
    .. [2] O. Cappé and E. Moulines, "On-line expectation-maximization algorithm for
       latent data models", Journal of the Royal Statistical Society B 71, 2009.
    .. [3] Z. Ghahramani and G. E. Hinton, "The EM algorithm for mixtures of factor
       analyzers", technical report CRG-TR-96-1, University of Toronto, 1996.

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

    _bound_parameters = ("likelihood", "covariance_type")

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
        init_params: str = "kmeans",
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

    def _family_of(self, likelihood):
        how = self.covariance_type, self.n_factors, self.reg_covar
        return MixtureFamily(likelihood, *how)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Compute the probability of each component, given the present entries.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_components)
        """
        X, model = self._validate_rows(X), self._model()
        return self._map_rows(model, lambda x: model.log_responsibility(x).exp(), X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable component of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        labels : ndarray of int, of shape (n_samples,)
        """
        return self.predict_proba(X).argmax(axis=1)

    def fit_predict(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Fit the model to X, and return the most probable component of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows; NaN marks missing entries.
        y : Ignored
            Not used, present for API consistency by convention.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts. None is 1.

        Returns
        -------
        labels : ndarray of int, of shape (n_samples,)
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
        """
        X, model = self._validate_rows(X), self._model()
        return self._map_rows(
            model, lambda x: model.log_responsibility(x).exp(), X, dtype=X.dtype
        )

    def bic(self, X: ArrayLike) -> float:
        """Compute the Bayesian information criterion on X; the lower the better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        bic : float
            -2 times the log-likelihood, plus log(n_samples) for each parameter.
        """
        log_prob = self.score_samples(X)
        return float(-2 * log_prob.sum() + self._n_parameters() * np.log(len(log_prob)))

    def aic(self, X: ArrayLike) -> float:
        """Compute Akaike's information criterion on X; the lower the better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN marks missing entries.

        Returns
        -------
        aic : float
            -2 times the log-likelihood, plus 2 for each parameter.
        """
        return float(-2 * self.score_samples(X).sum() + 2 * self._n_parameters())

    def _n_parameters(self):
        of = self.n_features_in_, len(self.weights_)
        return self._family.n_parameters(*of)
