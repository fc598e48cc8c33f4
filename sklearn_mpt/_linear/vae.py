"""A linear latent variable model of any kinds of features, trained by masking."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions

from sklearn_mpt._base.inference import StandardErrorsMixin
from sklearn_mpt._base.tables import LikelihoodNames, TableMPT
from sklearn_mpt._checks import POSITIVE, RandomState
from sklearn_mpt._likelihoods import LIKELIHOODS, Gaussian
from sklearn_mpt._linear.estimator import LinearMPT
from sklearn_mpt._linear.gaussian_model import GaussianModel
from sklearn_mpt._linear.integrated_model import IntegratedModel


class MPTLinearVAE(StandardErrorsMixin, TableMPT, LinearMPT):
    r"""Linear latent variable model trained by masked pre-training (MPT).

    Each feature has a :term:`location` that is a linear function of the standard normal
    z. With binary features only, the model is logistic principal components; with
    numbers only, it is `MPTProbabilisticPCA` or factor analysis. Training maximises the
    log-probability of hidden features given visible ones. With a uniform mask rate, the
    expectation of this objective over masks is the log marginal likelihood (LML) ([1]_,
    Proposition 1). The user guide says :ref:`how it is trained and scored <training>`,
    and :ref:`which epochs draw masks <masks_not_drawn>`.

    Parameters
    ----------
    n_components : int, default=2
        Number K of latent variables; at most n_features with a Gaussian likelihood.
    likelihood : str, sequence of str or dict, default="gaussian"
        Distribution of features given z: "gaussian" (numbers), "bernoulli" (0 and 1, or
        booleans), "categorical", "ordinal" or "partial_credit" (levels in order),
        "poisson" or "negative_binomial" (counts), "lognormal" (positive amounts),
        "interval" (numbers known only to lie in intervals: :ref:`intervals`). One name
        for all columns; a sequence of names, one for each; or a dict from columns to
        names, ``...`` for the others. "from_dtype" chooses by the dtypes of a
        DataFrame: see :doc:`/tables`. Categories are codes 0, 1, 2 in arrays.
    noise : {"shared", "per_feature"}, default="shared"
        Whether all Gaussian features have one noise variance, or each has its own, as
        in factor analysis and in tables with other kinds.
    rotation : {"varimax", "quartimax"}, default=None
        Rotation of the components after training, which does not change the density.
        None is the principal axes.
    slope_prior : float, default=None
        Standard deviation of a normal prior of the slopes, if some features are not
        Gaussian. None is maximum likelihood, but if a feature separates the rows and a
        slope exceeds 10, the excess has one of standard deviation 1, and `fit` warns.
    mask_rate : "uniform", float or int, default="uniform"
        Fraction of hidden features, or their number if an int: the score of that size
        alone is maximised, and the LML is lower. "uniform" is unbiased for the LML.
    n_masks : int or "auto", default="auto"
        Number of masks in each step; the rows are divided among them. "auto" is 32, or
        all masks of a fixed size if they are at most 512. With a uniform rate, masks
        are drawn in at most ten epochs, and the last epochs use the sum of the scores
        of all sizes, without masks. With counts, positive amounts, or numbers beside
        columns of other kinds, an int draws no masks either.
    objective : {"mpt", "elbo", "lml"}, default="mpt"
        What is maximised: masked scores, the evidence lower bound, or the LML by EM.
    init : {"random", "pca"} or dict, default="random"
        Starting values: random components, of features that are not Gaussian principal
        ones with a random part; principal components; or a dict of arrays, the fitted
        attributes without the underscore: `components`, `intercept`, and as far as the
        likelihood has them `mean`, `noise_variance`, `dispersion` and `thresholds`.
    max_iter : int, default=1000
        Largest number of epochs. With 0 the parameters stay at their start.
    learning_rate : float, default=1.0
        Size of the first steps; 1 is a full step, as in EM. With longer ones and few
        masks a fit may end below its start, as `loss_curve_` then shows.
    batch_size : int or "auto", default="auto"
        Rows per step. "auto" is all, up to 131072 if all are Gaussian, else 65536.
    tol : float, default=1e-4
        Training with masks ends when another `n_iter_no_change` epochs would gain less,
        in nats per row.
    n_iter_no_change : int, default=2
        Number of epochs whose expected gain is compared with `tol`.
    warm_start : bool, default=False
        Whether `fit` starts from the parameters of the previous call.
    verbose : bool, default=False
        Whether to print the loss of each epoch.
    device : str or torch.device, default="auto"
        Where to compute; "auto" is CUDA if there is a GPU, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Determines initial components, minibatches, masks and samples for integrals.
    n_jobs : int, default=None
        Number of joblib workers of `mpt_curve` and `feature_contributions`, unless
        these get another number; `fit` does not use it.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_locations)
        Slopes of the locations in z, on the principal axes (longest first) or rotated
        by `rotation`, if ``max_iter > 0``. A feature has one location; a categorical
        one C, of mean zero, in the order of `categories_`.
    mean_ : ndarray of shape (n_features,)
        Mean of the features. Only if all are Gaussian; else there is `intercept_`.
    intercept_ : ndarray of shape (n_locations,)
        Locations at z = 0. Only if some feature is not Gaussian.
    noise_variance_ : float or ndarray of shape (n_features,)
        Variance of the noise, or of that of logarithms. Only if some features have it,
        and NaN for the others, as in the next two.
    dispersion_ : ndarray of shape (n_features,)
        With the mean m, the variance of a "negative_binomial" column is m plus
        dispersion times m^2.
    thresholds_ : ndarray of shape (n_features, n_levels - 1)
        Added to the location: it is then the logit of level c or above for "ordinal"
        (the first is 0, and they fall), of level c against c - 1 for "partial_credit"
        (their mean is 0). NaN beyond the levels of a feature.
    likelihoods_, categories_ : list
        Kind and categories of each feature. Only if `likelihood` has kinds of columns.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_ : list of float
        Minus the training objective in each epoch, in nats per row.
    lml_method_ : str
        How `score_samples` computes the LML: "exact" (Gaussian features), "quadrature"
        or, with more than three components, "importance".
    n_features_in_ : int
        Number of features in `fit`; `feature_names_in_` has their names, if strings.

    See Also
    --------
    MPTProbabilisticPCA : The same for numbers with one noise variance.

    References
    ----------
    .. [1] P. Moreno-Muñoz, P. G. Recasens and S. Hauberg, "On masked pre-training and
       the marginal likelihood", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn_mpt import MPTLinearVAE
    >>> X = 1.0 * (load_digits().data[:200] > 7)
    >>> model = MPTLinearVAE(1, likelihood="bernoulli", slope_prior=4.0).fit(X)
    >>> model.transform(X).shape, model.lml_method_
    ((200, 1), 'quadrature')
    """

    components_: np.ndarray
    mean_: np.ndarray
    intercept_: np.ndarray
    noise_variance_: float | np.ndarray

    # If all features are Gaussian, the evidence lower bound is the LML.
    _parameter_constraints: ClassVar[dict] = LinearMPT._parameter_constraints | {
        "noise": [StrOptions({"shared", "per_feature"})],
        "rotation": [StrOptions({"varimax", "quartimax"}), None],
        "slope_prior": [POSITIVE, None],
    }

    _kinds_taken = tuple(LIKELIHOODS)

    def __init__(
        self,
        n_components: int = 2,
        *,
        likelihood: LikelihoodNames = "gaussian",
        noise: str = "shared",
        rotation: str | None = None,
        slope_prior: float | None = None,
        mask_rate: str | float = "uniform",
        n_masks: int | str = "auto",
        objective: str = "mpt",
        init: str | dict = "random",
        max_iter: int = 1000,
        learning_rate: float = 1.0,
        batch_size: int | str = "auto",
        tol: float = 1e-4,
        n_iter_no_change: int = 2,
        warm_start: bool = False,
        verbose: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.likelihood = likelihood
        self.noise = noise
        self.rotation = rotation
        self.slope_prior = slope_prior
        self.mask_rate = mask_rate
        self.n_masks = n_masks
        self.objective = objective
        self.init = init
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def _model(self):
        kinds = self._kinds
        if all(kind == "gaussian" or isinstance(kind, Gaussian) for kind in kinds):
            return GaussianModel(self, self.noise)
        return IntegratedModel(self, self._likelihood())

    @property
    def _kinds_of_columns(self):
        kinds = self._kinds
        return list(kinds) if len(kinds) > 1 else [*kinds] * self.n_features_in_

    def _has_priors(self, n_features):
        return self.slope_prior is not None
